"""Rows: the schema, Arrow batches, their place in Kafka and in Spark, the records made of them.

It is for all that a frame's columns and partitions decide. It must not know transactions, nor
whether a row is written or only read: the tasks decide that.
"""
