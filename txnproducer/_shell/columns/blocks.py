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
from dataclasses import dataclass
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
from txnproducer.config import Serializer
from txnproducer.errors import SerializationError

__all__ = ["Block", "arrow_blocks", "column_blocks"]

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
class _Columns:
    """The arguments of a call, as they were passed."""

    values: Any
    keys: Any
    headers: Any
    partitions: Any
    timestamps_ms: Any


def column_blocks(
    values: Any,
    keys: Any,
    headers: Any,
    partitions: Any,
    timestamps_ms: Any,
    now_ms: int,
    serializers: tuple[Serializer | None, Serializer | None],
) -> list[Block]:
    """Return the rows of `send_batch`.

    Args:
        values: a sequence, a NumPy array or an Arrow array; None in it is a tombstone.
        keys: likewise, or None.
        headers: a sequence with headers as `send` takes them, or None.
        partitions: a sequence or array of ints, with None for rows whose partition key or load
            decides; one int for all; or None.
        timestamps_ms: likewise.
        now_ms: the timestamp of rows without one.
        serializers: for values and for keys.

    Raises:
        TypeError, ValueError: a column does not fit.
        SerializationError: a serializer failed.
    """
    columns = {
        "values": values,
        "keys": keys,
        "headers": headers,
        "partitions": partitions,
        "timestamps_ms": timestamps_ms,
    }
    given = _Columns(**{name: as_arrow(name, column) for name, column in columns.items()})
    count = _length("values", given.values)
    for name in ("keys", "headers", "partitions", "timestamps_ms"):
        column = getattr(given, name)
        # The exact type: `True` is an int as well, and names no partition.
        if column is None or (name in _ONE_FOR_ALL and type(column) is int):
            continue
        length = _length(name, column)
        if length != count:
            raise ValueError(f"{name} has {length} rows, values has {count}")
    return _blocks(given, count, now_ms, serializers)


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
    return _blocks(_Columns(*columns.values()), data.num_rows, now_ms, (None, None))


# --- from columns to blocks ---------------------------------------------------------------------


def _blocks(
    given: _Columns,
    count: int,
    now_ms: int,
    serializers: tuple[Serializer | None, Serializer | None],
) -> list[Block]:
    value_serializer, key_serializer = serializers
    values = _prepared("values", given.values, value_serializer)
    keys = None if given.keys is None else _prepared("keys", given.keys, key_serializer)
    headers = None if given.headers is None else _headers(given.headers)
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


def _prepared(name: str, column: Any, serializer: Serializer | None) -> Any:
    """Return a column as an Arrow array, or as a tuple of bytes and None."""
    if is_arrow(column):
        if not hasattr(column, "type"):
            raise TypeError(
                f"{name} must be one column, not a {type(column).__name__}: use send_arrow"
            )
        if serializer is None:
            _check_kind(name, column.type)
            return join_small_chunks(column)
        items = tuple(column.to_pylist())
    elif hasattr(column, "dtype"):
        items = _numpy_items(name, column)
    else:
        items = tuple(column)
    if serializer is None:
        index = first_not_bytes(items)
        if index < 0:
            return items
    return tuple(_to_bytes(name, row, item, serializer) for row, item in enumerate(items))


def _to_bytes(name: str, row: int, item: Any, serializer: Serializer | None) -> bytes | None:
    try:
        return to_bytes(name[:-1], item, serializer)
    except TypeError as error:
        raise TypeError(f"{name}[{row}]: {error}") from None
    except SerializationError as error:
        # Changed in place: a serializer may raise a class of its own, which cannot be rebuilt
        # here.
        error.args = (f"{name}[{row}]: {error}",)
        raise


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
