"""The Python data source `kafka-exactly-once`: Spark's `writeStream.format` and `write.format`.

    spark.dataSource.register(KafkaExactlyOnceDataSource)
    (
        frame.writeStream.format("kafka-exactly-once")
        .option("kafka.bootstrap.servers", "localhost:9092")
        .option("topic", "orders")
        .option("sinkId", "orders-sink")
        .option("checkpointLocation", "/data/checkpoints/orders")
        .start()
    )

Owns: Spark's classes, and their questions to Spark. Must not know: how a part is written
(`open_part.py`), how it is committed (`part_commits.py`).

Rules:
* Names and arguments are Spark's: its commit passes them by name.
* The source, its writer and the commit each live in a process of their own, and are pickled on the
  way: nothing is remembered between them.
* This module imports pyspark, so no other module imports it, except by name in `__getattr__`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyspark.sql.datasource
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)

from txnproducer._version import __version__
from txnproducer.errors import IllegalStateError, InvalidConfigurationError
from txnproducer.spark.data_source_options import (
    DataSourceSettings,
    naming_options,
    read_data_source_options,
)
from txnproducer.spark.driver.checks import ClusterChecks
from txnproducer.spark.driver.part_commits import PartCommits
from txnproducer.spark.interpreters import check_version
from txnproducer.spark.reports import OnEvent
from txnproducer.spark.rows.schema import check_schema
from txnproducer.spark.session import QUERY_ID_PROPERTY
from txnproducer.spark.tasks.open_part import OpenPart, PartWriter
from txnproducer.spark.tasks.worker_imports import forget_sparks_zips

# A local property that Spark sets for the jobs of a streaming query, and that a task can read.
# Spark calls `write` with the rows alone.
_BATCH_ID_PROPERTY: Final = "streaming.sql.batchId"
# Writers with Arrow batches, since Spark 4.0, and 4.1 for streams. Older versions hand out rows.
_ArrowStreamWriter: Any = getattr(pyspark.sql.datasource, "DataSourceStreamArrowWriter", None)
_ArrowWriter: Any = getattr(pyspark.sql.datasource, "DataSourceArrowWriter", None)


@dataclass(frozen=True)
class PartMessage(WriterCommitMessage):  # type: ignore[misc]
    """The message of a task, which Spark hands to the commit."""

    part: OpenPart


class KafkaExactlyOnceDataSource(DataSource):  # type: ignore[misc]
    """Write frames to Kafka, each row exactly once. See docs/spark.md for the options.

    Attributes:
        on_event: called with events, in the process of each; tests set it in a subclass.
    """

    # Of the class, because Spark makes the object itself, from options, and those are texts.
    on_event: ClassVar[OnEvent | None] = None

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "kafka-exactly-once"

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:  # noqa: N802
        """Return the writer of a streaming query. Spark asks for one with every batch.

        Raises:
            KafkaError: an option, the schema or the cluster does not fit.
        """
        del overwrite  # the output mode "complete": each batch is appended nevertheless
        with naming_options():
            # A data source has options only, so an error must not name an argument such as
            # `sink_id`.
            return StreamWriter(*self._checked(schema, is_streaming=True))

    def writer(self, schema: Any, overwrite: bool) -> BatchWriter:
        """Return the writer of a batch job.

        Raises:
            KafkaError: an option, the schema or the cluster does not fit.
        """
        if overwrite:
            raise InvalidConfigurationError(
                'mode("overwrite"): a topic can\'t be written over; use mode("append")'
            )
        with naming_options():
            return BatchWriter(*self._checked(schema, is_streaming=False))

    def _checked(
        self, schema: Any, *, is_streaming: bool
    ) -> tuple[DataSourceSettings, dict[str, str], int, OnEvent | None]:
        settings = read_data_source_options(self.options, is_streaming=is_streaming)
        sink = settings.sink
        columns = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        check_schema(columns, sink.topic)
        # The number of Spark partitions is not known here; a right is for all groups, or for none.
        cluster = ClusterChecks(sink, settings.ledger, checks_groups=True)
        # By the class: from the object, a plain function would come as a method that is bound to
        # it.
        return settings, cluster.producer_settings(), cluster.partitions, type(self).on_event


class _Writer:
    """The common part of the two writers.

    Attributes:
        takes_arrow: whether Spark hands out Arrow batches instead of rows.
    """

    takes_arrow: ClassVar[bool]

    def __init__(
        self,
        settings: DataSourceSettings,
        producer: Mapping[str, str],
        count: int,
        on_event: OnEvent | None,
    ) -> None:
        self._settings = settings
        self._version = __version__  # of the driver, to be compared in the tasks
        # Values only, and no connections: Spark pickles the writer for the tasks and for the
        # commit.
        ledger, rules = settings.ledger, settings.rules
        reader = settings.sink.reader(count)
        self._parts = PartWriter(ledger, rules, producer, reader, on_event, self.takes_arrow)
        self._commits = PartCommits(ledger, rules, producer, on_event)

    def write(self, iterator: Iterator[Any]) -> PartMessage:
        """Write the partition of the calling task."""
        context = TaskContext.get()
        if context is None:
            raise IllegalStateError("a data source writes inside a Spark task only")
        with naming_options():
            check_version(self._version)
            batch_id, query_id = self._batch_of(context)
            part = self._parts.write(context.partitionId(), batch_id, query_id, iterator)
        # At the end, since Spark before 4.2 begins the next task by invalidating all importers. On
        # a busy machine a batch of 100 rows took 859 ms because of that, and 278 ms without.
        forget_sparks_zips()
        return PartMessage(part)

    def _batch_of(self, context: TaskContext) -> tuple[int, str]:
        raise NotImplementedError

    def _commit(self, messages: Sequence[PartMessage | None], batch_id: int) -> None:
        with naming_options():
            self._commits.commit(_parts_of(messages), batch_id)

    def _abort(self, messages: Sequence[PartMessage | None]) -> None:
        # The option's query id as well, if it was given. If no task has sent a message, the parts
        # name no query, and then the ids of the tasks are fenced only if the option does.
        self._commits.abort(_parts_of(messages), self._settings.sink.query_id)


class StreamWriter(_Writer, _ArrowStreamWriter or DataSourceStreamWriter):  # type: ignore[misc]
    """The writer of a streaming query, with the methods that Spark calls."""

    takes_arrow = _ArrowStreamWriter is not None

    def _batch_of(self, context: TaskContext) -> tuple[int, str]:
        batch_id = context.getLocalProperty(_BATCH_ID_PROPERTY)
        query_id = self._settings.sink.query_id or context.getLocalProperty(QUERY_ID_PROPERTY)
        # Nothing is guessed: under a wrong batch id rows would be taken for a replay, or be
        # doubled.
        if batch_id is None or not query_id:
            raise IllegalStateError(
                f"Spark does not tell the task its batch ({_BATCH_ID_PROPERTY}={batch_id},"
                f" {QUERY_ID_PROPERTY}={query_id}); nothing was written"
            )
        return int(batch_id), query_id

    def commit(self, messages: list[PartMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a batch. See `PartCommits.commit`."""
        self._commit(messages, batchId)

    def abort(self, messages: list[PartMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Abort a batch. See `PartCommits.abort`."""
        self._abort(messages)


class BatchWriter(_Writer, _ArrowWriter or DataSourceWriter):  # type: ignore[misc]
    """The writer of a batch job, with the methods that Spark calls."""

    takes_arrow = _ArrowWriter is not None

    def _batch_of(self, context: TaskContext) -> tuple[int, str]:  # noqa: ARG002
        # Never None here: a batch job without `queryId` was refused when its options were read.
        return self._batch_id(), str(self._settings.sink.query_id)

    def _batch_id(self) -> int:
        batch_id = self._settings.batch_id
        if batch_id is None:
            raise IllegalStateError("a batch job without batchId")
        return batch_id

    def commit(self, messages: list[PartMessage | None]) -> None:
        """Commit the job. See `PartCommits.commit`."""
        self._commit(messages, self._batch_id())

    def abort(self, messages: list[PartMessage | None]) -> None:
        """Abort the job. See `PartCommits.abort`."""
        self._abort(messages)


def _parts_of(messages: Sequence[PartMessage | None]) -> list[OpenPart | None]:
    # Spark hands over None for each task that has not sent a message.
    return [None if message is None else message.part for message in messages]
