"""Spark's columns for Kafka. They are checked on the driver, and turned into records in tasks.

Owns: the columns and types that are allowed (those of Spark's own Kafka sink), the record made of
a row. Must not know: sessions, transactions.

    value      string or binary, required; null is a tombstone
    key        string or binary
    topic      string; required unless the option `topic` is given, which wins
    partition  int
    headers    array<struct<key:string,value:binary>>

Names of columns are read in any case, as Spark reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from txnproducer.spark.errors import SchemaError
from txnproducer.spark.rows.topic_partitions import TopicPartitions

_TEXT: Final = ("string", "binary")
_HEADERS: Final = "array<struct<key:string,value:binary>>"
_TYPES: Final = {
    "value": _TEXT,
    "key": _TEXT,
    "topic": ("string",),
    "partition": ("int",),
    "headers": (_HEADERS,),
}


class Record(NamedTuple):
    """A row as a Kafka record."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def check_schema(columns: Iterable[tuple[str, str]], topic: str | None) -> None:
    """Check a frame's columns.

    Args:
        columns: the name and type (Spark's simple string) of each column.
        topic: the option `topic`.

    Raises:
        SchemaError: a column is missing, or has the wrong type; names both types.
    """
    kinds = list(columns)
    # Spark reads names of columns in any case, so a frame may spell them otherwise.
    written = own_columns(name for name, _ in kinds)
    found = {name: dict(kinds)[written[name]] for name in written}
    if "value" not in found:
        there = ", ".join(name for name, _ in kinds) or "no columns"
        raise SchemaError(
            f"the column `value` is missing; there are {there}. Kafka "
            "records are made of value, and optionally key, topic, partition and headers: select "
            "and cast them first"
        )
    # Refused here, on the driver: each task would meet it as an error of its first row.
    if topic is None and "topic" not in found:
        raise SchemaError(
            "no topic: give the sink the option `topic`, or the frame a column `topic`"
        )
    for name, kind in found.items():
        if kind not in _TYPES[name]:
            raise SchemaError(
                f"the column `{written[name]}` is {kind}; it must be "
                f"{' or '.join(_TYPES[name])}: cast it first"
            )


def own_columns(names: Iterable[str]) -> dict[str, str]:
    """Return the columns for Kafka, as a dict from Kafka's name to the name in the frame.

    Other columns are left out, as by Spark's own sink.

    Args:
        names: of a frame's columns.

    Raises:
        SchemaError: two names differ only in case.
    """
    found: dict[str, str] = {}
    for name in names:
        own = name.lower()
        if own not in _TYPES:
            continue
        if own in found:
            raise SchemaError(
                f"the columns `{found[own]}` and `{name}` have the same name, since upper and "
                "lower case make no difference here: drop or rename one of them"
            )
        found[own] = name
    return found


def written_columns(frame: Any, reader: RowReader) -> Any:
    """Return a frame with the columns that a reader reads, and no others."""
    columns = own_columns(frame.columns)
    wanted = [name for name in columns if name in reader.columns]
    # Even a selection of all columns costs Spark's driver a twentieth of a second.
    if wanted == frame.columns:
        return frame
    written = [columns[name] for name in wanted]
    chosen = frame.select(written)
    # Renamed only if needed: each step of a plan costs the driver time, in every batch.
    return chosen if written == wanted else chosen.toDF(*wanted)


@dataclass(frozen=True)
class RowReader:
    """The reader that turns rows into records, sent to the tasks in their closure.

    Attributes:
        topic: for all rows; None to take the topic of each row.
        include_headers: whether the column `headers` is written.
        partitions: of the topic, to check rows that name one; None leaves that to the producer.
    """

    topic: str | None
    include_headers: bool = True
    partitions: TopicPartitions | None = None

    @property
    def columns(self) -> frozenset[str]:
        """The columns that are read, by Kafka's names. The option `topic` wins over the column."""
        left_out = set() if self.topic is None else {"topic"}
        if not self.include_headers:
            left_out.add("headers")
        return frozenset(_TYPES) - left_out

    def records(self, rows: Iterable[Any]) -> Iterator[Record]:
        """Yield the records of the rows of one frame."""
        columns: dict[str, str] | None = None
        for row in rows:
            if columns is None:
                # Once: all rows of a frame have the same columns.
                columns = own_columns(row.__fields__)
                names = self.columns.intersection(columns)
                # Names as Kafka has them are the usual case, and spare an object for each row.
                is_as_written = all(own == name for own, name in columns.items())
            yield to_record(row if is_as_written else _Renamed(row, columns), names, self.topic)


class _Renamed:
    """A row of a frame that names its columns in another case."""

    __slots__ = ("_columns", "_row")

    def __init__(self, row: Any, columns: Mapping[str, str]) -> None:
        self._row, self._columns = row, columns

    def __getitem__(self, name: str) -> Any:
        return self._row[self._columns[name]]


def to_record(row: Any, names: frozenset[str], topic: str | None) -> Record:
    """Return the record of a row.

    Raises:
        SchemaError: the row's topic is null, or a header has no name.
    """
    place = topic if topic is not None else row["topic"]
    if place is None:
        raise SchemaError("a row's topic is null: filter such rows out, or set the option `topic`")
    headers: tuple[tuple[str, bytes | None], ...] = ()
    if "headers" in names and row["headers"]:
        headers = tuple(_header(header) for header in row["headers"])
    return Record(
        place,
        row["partition"] if "partition" in names else None,
        _to_bytes(row["key"]) if "key" in names else None,
        _to_bytes(row["value"]),
        headers,
    )


def _header(header: Any) -> tuple[str, bytes | None]:
    if header is None or header["key"] is None:
        raise SchemaError("a row has a header without a name (null): filter it out")
    return header["key"], _to_bytes(header["value"])


def _to_bytes(data: Any) -> bytes | None:
    if data is None or type(data) is bytes:
        return data
    # Spark hands out binary columns as bytearrays.
    return data.encode() if isinstance(data, str) else bytes(data)
