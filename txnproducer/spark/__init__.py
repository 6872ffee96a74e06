"""The Spark sink: frames to Kafka, each row exactly once.

Users need `ExactlyOnceKafkaSink`, for `foreachBatch`, or `KafkaExactlyOnceDataSource`, for
`format(...)`; see docs/spark.md. Nothing here imports pyspark before a frame is written, or the
data source is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from txnproducer.spark.errors import (
    BatchFailedError,
    BatchTimedOutError,
    LedgerError,
    MissingRightError,
    PartialReplayError,
    ReplayMismatchError,
    SchemaError,
    SinkError,
    StaleRunError,
    StoppedError,
    TornBatchError,
)
from txnproducer.spark.reports import BatchReport, PartitionReport, SinkTotals
from txnproducer.spark.sink import ExactlyOnceKafkaSink
from txnproducer.spark.status import EntryStatus, SinkStatus

if TYPE_CHECKING:
    from txnproducer.spark.data_source import KafkaExactlyOnceDataSource

__all__ = [
    "BatchFailedError",
    "BatchReport",
    "BatchTimedOutError",
    "EntryStatus",
    "ExactlyOnceKafkaSink",
    "KafkaExactlyOnceDataSource",
    "LedgerError",
    "MissingRightError",
    "PartialReplayError",
    "PartitionReport",
    "ReplayMismatchError",
    "SchemaError",
    "SinkError",
    "SinkStatus",
    "SinkTotals",
    "StaleRunError",
    "StoppedError",
    "TornBatchError",
]


def __getattr__(name: str) -> Any:
    if name == "KafkaExactlyOnceDataSource":
        from txnproducer.spark.data_source import KafkaExactlyOnceDataSource

        return KafkaExactlyOnceDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
