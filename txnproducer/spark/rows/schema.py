"""Spark's columns for Kafka, checked on the driver, and rows turned into records.

Owns: which columns and types there may be (those of Spark's own Kafka sink), what a row becomes.
Must not know: sessions, transactions.

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
    """A row, as Kafka takes it."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def check_schema(columns: Iterable[tuple[str, str]], topic: str | None) -> None:
    """Check a frame's columns.

    Args:
        columns: name and type (Spark's simple string) of each.
        topic: the option `topic`.

    Raises:
        SchemaError: naming the column, its type, and what it should be.
    """
    kinds = list(columns)
    written = own_columns(name for name, _ in kinds)
    found = {name: dict(kinds)[written[name]] for name in written}
    if "value" not in found:
        there = ", ".join(name for name, _ in kinds) or "no columns"
        raise SchemaError(
            f"the column `value` is missing; there are {there}. Kafka "
            "records are made of value, and optionally key, topic, partition and headers: select "
            "and cast them first"
        )
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
    """Return the columns that are written: Kafka's name of each, to the name that it has.

    As Spark's own sink does, others are left out.

    Args:
        names: of a frame's columns.

    Raises:
        SchemaError: two of them differ in their case alone.
    """
    found: dict[str, str] = {}
    for name in names:
        own = name.lower()
        if own not in _TYPES:
            continue
        if own in found:
            raise SchemaError(
                f"the columns `{found[own]}` and `{name}` are one to Kafka, since names are read "
                "in any case: drop or rename one of them"
            )
        found[own] = name
    return found


def written_columns(frame: Any, reader: RowReader) -> Any:
    """Return a frame with the columns that a reader reads, and no others."""
    columns = own_columns(frame.columns)
    wanted = [name for name in columns if name in reader.columns]
    # A selection that selects nothing costs Spark's driver a twentieth of a second nevertheless.
    if wanted == frame.columns:
        return frame
    written = [columns[name] for name in wanted]
    chosen = frame.select(written)
    return chosen if written == wanted else chosen.toDF(*wanted)


@dataclass(frozen=True)
class RowReader:
    """Turns rows into records; goes to the tasks in the closure.

    Attributes:
        topic: for all rows, or None to take each row's.
        include_headers: whether the column `headers` is written.
        partitions: of the topic, for rows that name theirs; None to let the producer find out.
    """

    topic: str | None
    include_headers: bool = True
    partitions: TopicPartitions | None = None

    @property
    def columns(self) -> frozenset[str]:
        """The columns that are read, by Kafka's names; the option `topic` wins over the column."""
        left_out = set() if self.topic is None else {"topic"}
        if not self.include_headers:
            left_out.add("headers")
        return frozenset(_TYPES) - left_out

    def records(self, rows: Iterable[Any]) -> Iterator[Record]:
        """Turn rows of one frame into records."""
        columns: dict[str, str] | None = None
        for row in rows:
            if columns is None:
                columns = own_columns(row.__fields__)
                names = self.columns.intersection(columns)
                is_as_written = all(own == name for own, name in columns.items())
            yield to_record(row if is_as_written else _Renamed(row, columns), names, self.topic)


class _Renamed:
    """A row whose columns are written in another case."""

    __slots__ = ("_columns", "_row")

    def __init__(self, row: Any, columns: Mapping[str, str]) -> None:
        self._row, self._columns = row, columns

    def __getitem__(self, name: str) -> Any:
        return self._row[self._columns[name]]


def to_record(row: Any, names: frozenset[str], topic: str | None) -> Record:
    """Turn a row into a record.

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
    return data.encode() if isinstance(data, str) else bytes(data)
