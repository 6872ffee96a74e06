"""Sources of a task's records. One pass over them sends them, or only adds them up.

Owns: the methods of a source, and the source made of Spark's rows (the one of Arrow batches is in
`arrow_rows.py`). Must not know: transactions, tasks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from txnproducer._shell.record_writer import RecordWriter
from txnproducer.spark.ledger.digest import Digest
from txnproducer.spark.rows.schema import RowReader


class RecordSource(Protocol):
    """Records that can be taken once."""

    @property
    def digest(self) -> Digest:
        """The sum of the records that were taken."""

    def send_to(self, writer: RecordWriter, partition: int | None = None) -> None:
        """Send the records that are left, to one partition if it is named."""

    def read(self) -> None:
        """Read the records that are left, and send nothing."""


class RowRecords:
    """The records of Spark's rows, one by one, as `foreachPartition` hands them out.

    Args:
        rows: of one frame.
        reader: turns the rows into records.
    """

    def __init__(self, rows: Iterable[Any], reader: RowReader) -> None:
        self.digest = Digest()
        self._records = reader.records(iter(rows))
        self._partitions = reader.partitions

    def send_to(self, writer: RecordWriter, partition: int | None = None) -> None:
        """Send the records that are left, to one partition if it is named."""
        for record in self._records:
            topic, place, key, value, headers = record
            self.digest.add(*record)
            # With a partition for all rows the row's own is not used, so it need not exist.
            if self._partitions is not None and partition is None:
                self._partitions.check(place)
            writer.send(topic, value, key, headers, place if partition is None else partition)

    def read(self) -> None:
        """Read the records that are left, and send nothing."""
        for record in self._records:
            self.digest.add(*record)
