"""The Spark sink: frames to Kafka, each row exactly once.

`ExactlyOnceKafkaSink` is what users need; see docs/spark.md. Nothing here imports pyspark before a
frame is written.
"""

from __future__ import annotations

from txnproducer.spark.errors import (
    LedgerError,
    PartialReplayError,
    ReplayMismatchError,
    SchemaError,
    SinkError,
    StaleRunError,
)
from txnproducer.spark.partition_writer import PartitionReport
from txnproducer.spark.sink import BatchReport, ExactlyOnceKafkaSink

__all__ = [
    "BatchReport",
    "ExactlyOnceKafkaSink",
    "LedgerError",
    "PartialReplayError",
    "PartitionReport",
    "ReplayMismatchError",
    "SchemaError",
    "SinkError",
    "StaleRunError",
]
