"""Faults on a real Spark and a real Kafka cluster while a query writes, and a count."""
