"""Arrow batches of Spark's columns. Each block is sent to Kafka and added to a digest.

Why it exists: Spark hands out a million rows a second as Arrow batches, and a third of that as
Python rows. So no Python object is made for a row here.

Owns: the way of the columns, the cut of a batch by topic. Must not know: transactions, tasks,
Spark's sessions.

Rules:
* The digest includes a whole batch before any of its rows is sent. A task that loses its
  transaction half-way can read on, and has the sum of all rows.
* Rows of a topic keep their order.
* Batches are handled one at a time, and nothing is kept of those that were sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol, TypeAlias

from txnproducer._shell.columns.blocks import Block, arrow_blocks
from txnproducer.spark.errors import SchemaError
from txnproducer.spark.ledger.digest import Digest
from txnproducer.spark.rows.schema import RowReader, own_columns

_Part: TypeAlias = tuple[str, Any]
_WRITTEN: Final = ("value", "key", "headers", "partition")


class ArrowWriter(Protocol):
    """The method that a producer and a participant share."""

    def send_arrow(self, topic: str, data: Any, partition: int | None = None) -> object:
        """Send a RecordBatch. See `TransactionalProducer.send_arrow`."""


class ArrowRows:
    """The rows of record batches. The batches are taken from an iterator once.

    Args:
        batches: pyarrow's, with Spark's columns: `value`, and any of `key`, `headers`,
            `partition`, `topic`; other columns are not written.
        reader: names the columns that are written, and the topic.

    Attributes:
        digest: the number, the bytes and the sum of all rows that were taken.
    """

    def __init__(
        self,
        batches: Iterable[Any],
        reader: RowReader,
    ) -> None:
        self.digest = Digest()
        self._batches = map(_named, batches)
        self._topic = reader.topic
        self._partitions = reader.partitions
        self._names = tuple(name for name in _WRITTEN if name in reader.columns)

    def send_to(self, writer: ArrowWriter, partition: int | None = None) -> None:
        """Send all rows.

        Args:
            writer: a producer with an open transaction, or a participant in one.
            partition: of Kafka's, for all rows; None: the column, key or load decide.

        Raises:
            SchemaError: a row is not a Kafka record; no row of its batch was sent.
            KafkaError: raised by the writer.
        """
        for batch in self._batches:
            # The whole batch first: if the transaction is lost half-way, the rest is still read
            # and compared.
            parts = self._digested(batch)
            if partition is None:
                self._check_partitions(batch)
            for topic, part in parts:
                if partition is not None and "partition" in part.schema.names:
                    # `send_arrow` refuses a partition for all rows beside a column of partitions.
                    part = part.drop_columns(["partition"])
                writer.send_arrow(topic, part, partition)

    def read(self) -> None:
        """Read the rows that are left, and send nothing.

        Raises:
            SchemaError: a row is not a Kafka record.
        """
        for batch in self._batches:
            self._digested(batch)

    def _check_partitions(self, batch: Any) -> None:
        if self._partitions is not None and "partition" in batch.schema.names:
            import pyarrow.compute as pc

            # Per batch, not per row: the lowest and the highest show whether any is out of range.
            bounds = pc.min_max(batch.column("partition")).as_py()
            self._partitions.check(bounds["min"], bounds["max"])

    def _digested(self, batch: Any) -> list[_Part]:
        """Add a batch to the digest, and return its rows by topic."""
        parts = list(self._by_topic(batch)) if batch.num_rows else []
        for topic, part in parts:
            for block in _blocks(part):
                self.digest.add_rows(topic, block.rows, block.partitions)
        return parts

    def _by_topic(self, batch: Any) -> Iterator[_Part]:
        rows = batch.select([name for name in self._names if name in batch.schema.names])
        if self._topic is not None:
            yield self._topic, rows
            return
        yield from _cut(rows, batch.column("topic"))


def _named(batch: Any) -> Any:
    """Return a batch with its columns named as Kafka names them. Spark takes any case."""
    kafkas = {name: own for own, name in own_columns(batch.schema.names).items()}
    if all(own == name for name, own in kafkas.items()):
        return batch
    return batch.rename_columns([kafkas.get(name, name) for name in batch.schema.names])


def _cut(rows: Any, topics: Any) -> Iterator[_Part]:
    """Yield the rows of each topic, in their order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if topics.null_count:
        raise SchemaError("a row's topic is null: filter such rows out, or set the option `topic`")
    topics = topics.cast(pa.string())  # it may be a dictionary, or views
    names = pc.unique(topics)
    # The usual case, and without the copy that `take` makes of every column.
    if len(names) == 1:
        yield names[0].as_py(), rows
        return
    order = pc.sort_indices(topics)  # rows of one topic stay in their order
    rows, runs = rows.take(order), pc.run_end_encode(topics.take(order))
    start = 0
    for name, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield name, rows.slice(start, end - start)
        start = end


def _blocks(rows: Any) -> list[Block]:
    try:
        return arrow_blocks(rows, 0)
    except (TypeError, ValueError) as error:
        raise SchemaError(f"a row is not a Kafka record: {error}") from error
