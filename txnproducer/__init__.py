"""Exactly-once writes into Apache Kafka from Python and Spark."""
