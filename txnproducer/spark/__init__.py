"""The Spark sink: frames to Kafka, each row exactly once.

Users need `ExactlyOnceKafkaSink`, for `foreachBatch`, or `KafkaExactlyOnceDataSource`, for
`format(...)`; see docs/spark.md. Importing this package does not import pyspark; the first write
does, and the name of the data source.

The room is for the rule that a batch of Spark is committed once, and for Spark's own classes,
which no other room imports. It must not know how a record reaches a broker, nor how a transaction
ends there: the producer does. Its root knows the driver, the driver knows the tasks, and tasks
know rows and ledger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from txnproducer.spark.errors import (
    BatchFailedError,
    BatchTimedOutError,
    CommitIncompleteError,
    InputBrokenError,
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
from txnproducer.spark.status import EntryStatus, RunStatus, SinkStatus

if TYPE_CHECKING:
    from txnproducer.spark.data_source import KafkaExactlyOnceDataSource

__all__ = [
    "BatchFailedError",
    "BatchReport",
    "BatchTimedOutError",
    "CommitIncompleteError",
    "EntryStatus",
    "ExactlyOnceKafkaSink",
    "InputBrokenError",
    "KafkaExactlyOnceDataSource",
    "LedgerError",
    "MissingRightError",
    "PartialReplayError",
    "PartitionReport",
    "ReplayMismatchError",
    "RunStatus",
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
        try:
            from txnproducer.spark.data_source import KafkaExactlyOnceDataSource
        except ModuleNotFoundError as error:
            if error.name != "pyspark.sql.datasource":
                raise
            raise ImportError(
                "data sources in Python need Spark 4.0 or newer, and this is an older PySpark: "
                "write with ExactlyOnceKafkaSink and foreachBatch, which Spark 3.5 runs as well"
            ) from error
        return KafkaExactlyOnceDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
