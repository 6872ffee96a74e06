"""Rows: the schema, Arrow batches, their place in Kafka and in Spark, the records made of them."""
