"""Rows: schema, Arrow, their partitions in Kafka and in Spark."""
