"""The rows of the columns that a caller passes: lists, NumPy arrays, Arrow arrays and tables.

Owns: the checks of columns, the conversion of Arrow's and NumPy's types, the cut of chunked
columns into blocks. Must not know: producers or transactions. Nothing here changes any state, so a
refused call has no effect.
Rules:
* Every refusal names the column, the row if it is known, and the way out.
* Arrow's buffers are read in place; only dictionaries, views, fixed sizes and chunks of few rows
  are copied.
* Neither NumPy nor pyarrow is imported unless the caller has imported it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise, repeat
from typing import Any, Final

from txnproducer._record.implementation import Rows, first_not_bytes
from txnproducer._record.rows import NO_PARTITION, BinaryColumn, Column
from txnproducer._shell.arguments import to_bytes
from txnproducer._shell.columns.arrow import (
    as_arrow,
    as_table,
    chunk_ends,
    is_arrow,
    join_small_chunks,
    pieces,
)
from txnproducer._shell.columns.headers import HeaderColumn, arrow_headers, listed_headers
from txnproducer._shell.columns.numeric import known_partition, partition_column, timestamp_column
from txnproducer._shell.serialization import RecordSerializers

__all__ = ["Block", "Columns", "arrow_blocks", "column_blocks"]

_ARROW_COLUMNS: Final = ("value", "key", "headers", "partition", "timestamp")
_ONE_FOR_ALL: Final = ("partitions", "timestamps_ms")


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive rows of one call.

    Attributes:
        rows: the records to write.
        partitions: the partition of each row, `NO_PARTITION` if it names none; None if no row
            names one.
        has_keys: whether any row may have a key.
        highest_partition: the highest partition named in any block of the call, or
            `NO_PARTITION`.
        partition: the partition of all rows; None if `partitions`, key or load decide.
    """

    rows: Rows
    partitions: array[int] | None
    has_keys: bool
    highest_partition: int = NO_PARTITION
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a call, as they were passed.

    Attributes:
        values: a sequence, a NumPy array or an Arrow array; None in it is a tombstone.
        keys: likewise, or None.
        headers: a sequence with headers as `send` takes them, or None.
        partitions: a sequence or array of ints, with None for rows whose partition key or load
            decides; one int for all; or None.
        timestamps_ms: likewise.
    """

    values: Any
    keys: Any
    headers: Any
    partitions: Any
    timestamps_ms: Any


def column_blocks(
    topic: str, columns: Columns, now_ms: int, serializers: RecordSerializers | None
) -> list[Block]:
    """Return the rows of `send_batch`.

    Args:
        topic: the topic of all rows, for the serializers.
        columns: the arguments.
        now_ms: the timestamp of rows without one.
        serializers: of the producer, if it has any.

    Raises:
        TypeError, ValueError: a column does not fit.
        SerializationError: a serializer failed.
    """
    given = Columns(
        *(as_arrow(each.name, getattr(columns, each.name)) for each in fields(columns))
    )
    count = _length("values", given.values)
    for name in ("keys", "headers", "partitions", "timestamps_ms"):
        column = getattr(given, name)
        # The exact type: `True` is an int as well, and names no partition.
        if column is None or (name in _ONE_FOR_ALL and type(column) is int):
            continue
        length = _length(name, column)
        if length != count:
            raise ValueError(f"{name} has {length} rows, values has {count}")
    headers = None if given.headers is None else _headers(given.headers)
    if serializers is not None:
        given, headers = _serialized(topic, given, headers, serializers)
    return _blocks(given, headers, count, now_ms)


def arrow_blocks(data: Any, now_ms: int, partition: int | None = None) -> list[Block]:
    """Return the rows of `send_arrow`.

    Args:
        data: a pyarrow Table or RecordBatch with a column `value` (binary or string), and any of
            `key` (likewise), `headers` (list of structs of a key and a value, or map), `partition`
            (integers), `timestamp` (timestamps, or integers in milliseconds).
        now_ms: the timestamp of rows without one.
        partition: the partition of all rows, or None.

    Raises:
        TypeError, ValueError: the data is not such a table, or a column does not fit.
    """
    data = as_table(data)
    names = getattr(getattr(data, "schema", None), "names", None)
    if not is_arrow(data) or names is None or not hasattr(data, "column"):
        way_out = "use send_batch for a single array"
        if names is not None:  # a reader, a dataset, a scanner
            way_out = "send each of its batches"
        raise TypeError(
            f"send_arrow takes a pyarrow Table or RecordBatch, not {type(data).__name__};"
            f" {way_out}"
        )
    unknown = sorted(set(names) - set(_ARROW_COLUMNS))
    # Arrow allows a name twice, and then finds neither column by it.
    if unknown or "value" not in names or len(set(names)) != len(names):
        problem = f"has {', '.join(map(repr, unknown))}" if unknown else f"has {names}"
        raise ValueError(
            f"the table {problem}: it needs a column 'value', and may have one each of 'key',"
            " 'headers', 'partition' and 'timestamp'; rename or drop the others"
        )
    columns = {name: data.column(name) if name in names else None for name in _ARROW_COLUMNS}
    if partition is not None:
        if columns["partition"] is not None:
            raise ValueError(
                f"partition={partition} is for all rows, and the table has a column 'partition':"
                " leave out the one or drop the other"
            )
        columns["partition"] = partition
    given = Columns(*columns.values())
    headers = None if given.headers is None else _headers(given.headers)
    return _blocks(given, headers, data.num_rows, now_ms)


# --- from columns to blocks ---------------------------------------------------------------------


def _serialized(
    topic: str, given: Columns, headers: HeaderColumn | None, serializers: RecordSerializers
) -> tuple[Columns, HeaderColumn | None]:
    """Return the columns with keys and values in bytes, and the headers with those added."""
    keys, values = given.keys, given.values
    if serializers.has_key and keys is not None:
        keys = _items("keys", keys)
    if serializers.has_value:
        values = _items("values", values)
    keys, values, headers = serializers.rows(topic, keys, values, headers)
    return replace(given, keys=keys, values=values), headers


def _blocks(given: Columns, headers: HeaderColumn | None, count: int, now_ms: int) -> list[Block]:
    values = _prepared("values", given.values)
    keys = None if given.keys is None else _prepared("keys", given.keys)
    partition, partitions, highest = None, None, NO_PARTITION
    if type(given.partitions) is int:
        partition = highest = known_partition(given.partitions)
    elif given.partitions is not None:
        partitions, highest = partition_column(given.partitions)
    stamps: array[int] | int = now_ms
    if given.timestamps_ms is not None:
        stamps = timestamp_column(given.timestamps_ms, now_ms)
    blocks = []
    spans = _spans(count, (values, keys))
    value_parts = _parts(values, spans)
    key_parts = repeat(None) if keys is None else _parts(keys, spans)
    # Not strict, since the keys of a call without keys do not end.
    for (start, stop), some_values, some_keys in zip(spans, value_parts, key_parts, strict=False):
        rows = Rows(
            stop - start,
            some_values,
            some_keys,
            None if headers is None else headers[start:stop],
            stamps if isinstance(stamps, int) else stamps[start:stop],
        )
        places = None if partitions is None else partitions[start:stop]
        blocks.append(Block(rows, places, keys is not None, highest, partition))
    return blocks


def _spans(count: int, columns: Sequence[Any]) -> list[tuple[int, int]]:
    """Return start and stop of each block, cut so that no block spans two chunks of a column."""
    borders = {0, count}
    for column in columns:
        # Cut at the chunks, so that a block reads its columns' buffers without a copy.
        borders.update(chunk_ends(column))
    return list(pairwise(sorted(borders)))


def _parts(column: Any, spans: Sequence[tuple[int, int]]) -> Iterator[Column | None]:
    """Yield a column's part of each block."""
    if not isinstance(column, tuple):
        return map(_binary_column, pieces(column, spans))
    if len(spans) == 1:
        return iter((column,))
    return (column[start:stop] for start, stop in spans)


def _prepared(name: str, column: Any) -> Any:
    """Return a column as an Arrow array, or as a tuple of bytes and None."""
    if is_arrow(column):
        _check_one_column(name, column)
        _check_kind(name, column.type)
        return join_small_chunks(column)
    items = _items(name, column)
    if first_not_bytes(items) < 0:
        return items
    return tuple(_to_bytes(name, row, item) for row, item in enumerate(items))


def _items(name: str, column: Any) -> tuple[Any, ...]:
    """Return the items of a column as Python's objects."""
    if is_arrow(column):
        _check_one_column(name, column)
        return tuple(column.to_pylist())
    if hasattr(column, "dtype"):
        return _numpy_items(name, column)
    return tuple(column)


def _check_one_column(name: str, column: Any) -> None:
    if not hasattr(column, "type"):
        raise TypeError(
            f"{name} must be one column, not a {type(column).__name__}: use send_arrow"
        )


def _to_bytes(name: str, row: int, item: Any) -> bytes | None:
    try:
        return to_bytes(name[:-1], item)
    except TypeError as error:
        raise TypeError(f"{name}[{row}]: {error}") from None


def _length(name: str, column: Any) -> int:
    # These have a length as well, but their items are no rows.
    if isinstance(column, str | bytes | bytearray | dict | set) or not hasattr(column, "__len__"):
        raise TypeError(
            f"{name} must be a list, a NumPy array or an Arrow array with a row per record, not"
            f" {type(column).__name__}"
        )
    return len(column)


# --- Arrow --------------------------------------------------------------------------------------


def _check_kind(name: str, kind: Any) -> None:
    """Refuse a column that is neither binary nor string, even if it has no rows."""
    import pyarrow as pa

    kinds = pa.types
    plain = kind.value_type if kinds.is_dictionary(kind) else kind
    if not (
        kinds.is_binary(plain)
        or kinds.is_string(plain)
        or kinds.is_large_binary(plain)
        or kinds.is_large_string(plain)
        or kinds.is_fixed_size_binary(plain)
        or kinds.is_null(plain)
        or _is_view(plain)
    ):
        raise TypeError(f"{name} must be binary or string in Arrow, not {plain}: cast the column")


def _without_dictionary(column: Any) -> Any:
    """Return a dictionary column with each item in its place.

    Items become large binary: a few repeated items can exceed 2 GiB, and Arrow cannot look up
    items in views.
    """
    import pyarrow as pa

    items = column.dictionary.cast(pa.large_binary())
    return pa.DictionaryArray.from_arrays(column.indices, items).dictionary_decode()


def _is_view(kind: Any) -> bool:
    return str(kind) in ("binary_view", "string_view")


def _binary_column(column: Any) -> BinaryColumn | None:
    """Return an Arrow array's buffers, or None if every item is null."""
    import pyarrow as pa

    kinds = pa.types
    if kinds.is_dictionary(column.type):
        column = _without_dictionary(column)
    kind = column.type
    if kinds.is_null(kind):
        return None
    if kinds.is_fixed_size_binary(kind) or _is_view(kind):
        # Offsets of 64 bits: the items of a fixed size or in views may exceed 2 GiB together.
        column = column.cast(pa.large_binary())
        kind = column.type
    is_large = kinds.is_large_binary(kind) or kinds.is_large_string(kind)
    validity, offsets, data = column.buffers()
    # A slice shares the buffers of its whole array, so its offset counts, and the rest is cut off.
    needed_bytes = (column.offset + len(column) + 1) * (8 if is_large else 4)
    places = memoryview(offsets).cast("B")[:needed_bytes]
    return BinaryColumn(
        len(column),
        column.offset,
        None if validity is None or not column.null_count else memoryview(validity).cast("B"),
        places.cast("q") if is_large else places.cast("i"),
        memoryview(b"" if data is None else data).cast("B"),
    )


# --- NumPy --------------------------------------------------------------------------------------


def _numpy_items(name: str, column: Any) -> tuple[Any, ...]:
    dimensions, kind = getattr(column, "ndim", 1), getattr(column.dtype, "kind", "")
    if dimensions != 1 or kind not in tuple("SVO"):
        raise TypeError(
            f"{name} must be a NumPy array of one dimension with bytes (dtype S, V or object), not"
            f" {dimensions} of {column.dtype}: use .astype('S')"
        )
    return tuple(column.tolist())


def _headers(column: Any) -> HeaderColumn:
    return arrow_headers(column) if is_arrow(column) else listed_headers(column)
