"""The rows of one task. They are read or sent once, timed, reported to the hook, and added up.

Why it exists: a task may commit its partition, lease its transaction to a commit, or write into
the driver's transaction. All three do the same around the rows.

Owns: the phases and their seconds, the events, the check that no row of the task is missing. Must
not know: transactions, the ledger, the other fields of a task's report.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypedDict

from txnproducer._shell.record_writer import RecordWriter
from txnproducer.spark.ledger.slots import Content
from txnproducer.spark.reports import OnEvent, tell
from txnproducer.spark.rows.record_sources import RecordSource
from txnproducer.spark.rows.whole_input import check_input_is_whole


class Measured(TypedDict):
    """The fields that the reports of all tasks have in common."""

    rows: int
    size_bytes: int
    digest: str
    seconds: dict[str, float]


class TaskRows:
    """The rows of one task.

    Args:
        source: of the rows.
        batch_id: of their batch.
        partition: Spark's number of the task's partition.
        on_event: called with the task's events; may be None.

    Attributes:
        source: of the rows.
        partition: Spark's number of the task's partition.
    """

    def __init__(
        self, source: RecordSource, batch_id: int, partition: int, on_event: OnEvent | None
    ) -> None:
        self.source = source
        self.partition = partition
        self._batch_id = batch_id
        self._on_event = on_event
        self._seconds: dict[str, float] = {}

    @property
    def count(self) -> int:
        """How many rows were read."""
        return self.source.digest.count

    @property
    def content(self) -> Content:
        """The number of the rows that were read, and their digest."""
        return self.source.digest.count, self.source.digest.hex()

    @property
    def measured(self) -> Measured:
        """The rows that were read, their bytes and digest, and the seconds by phase."""
        digest = self.source.digest
        return {
            "rows": digest.count,
            "size_bytes": digest.size_bytes,
            "digest": digest.hex(),
            "seconds": self._seconds,
        }

    def send_to(self, writer: RecordWriter, partition: int | None = None) -> None:
        """Send all rows.

        Args:
            writer: a producer with an open transaction, or a participant in one.
            partition: of Kafka's, for all rows; None: the column, key or load decide.

        Raises:
            InputBrokenError: Spark has not handed out all rows of the task.
            KafkaError: raised by the writer.
        """
        self.source.send_to(writer, partition)
        # Before the caller can commit: half of a partition looks like all of it.
        check_input_is_whole()

    def read(self) -> None:
        """Read the rows that are left, and send nothing.

        Raises:
            InputBrokenError: Spark has not handed out all rows of the task.
        """
        self.source.read()
        check_input_is_whole()

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the seconds of a block to a phase."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            # Also if the block raised: a part that failed reports its seconds as well.
            self._seconds[phase] = self._seconds.get(phase, 0.0) + time.monotonic() - began_s

    def tell(self, event: str, rows: int | None = None) -> None:
        """Call the hook with an event of the task.

        Args:
            event: its name.
            rows: how many it is about; None for those that were read.
        """
        rows = self.count if rows is None else rows
        tell(self._on_event, event, self._batch_id, rows, self.partition)
