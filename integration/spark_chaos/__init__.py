"""Faults on a real Spark cluster and a real Kafka cluster while a query writes; a count after."""
