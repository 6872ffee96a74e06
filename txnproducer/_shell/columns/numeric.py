"""Columns of whole numbers: the partitions and timestamps of rows.

Owns: the conversion of lists and of the arrays of NumPy, Arrow and pandas to partitions and
timestamps, and their refusals. Must not know: rows, keys and values.
Rules:
* Every refusal names the column, the row if it is known, and the way out.
* A missing number (None, null, NA) lets the producer choose. A number that does not fit is never
  changed into another one.
* Neither NumPy nor pyarrow is imported unless the caller has imported it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from operator import index as as_int
from typing import Any, Final

from txnproducer._record.format import MAX_INT64
from txnproducer._record.rows import MAX_PARTITIONS, NO_PARTITION
from txnproducer._shell.columns.arrow import is_arrow

__all__ = ["known_partition", "partition_column", "timestamp_column"]

_PARTITION: Final = "partition"
_TIMESTAMP: Final = "timestamp"
# A missing number of each kind, for the refusals.
_WITHOUT: Final = {
    _PARTITION: "the producer chooses the partition",
    _TIMESTAMP: "the present time",
}
# NumPy's units of time that are shorter than a millisecond.
_FINE_UNITS: Final = ("us", "ns", "ps", "fs", "as")
# Each of Arrow's units of time, as its number in a second.
_IN_A_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def partition_column(column: Any) -> tuple[array[int], int]:
    """Return the partition of each row, or `NO_PARTITION`, and the highest partition.

    Raises:
        TypeError, ValueError: the column does not fit.
    """
    if is_arrow(column):
        return _arrow_partitions(column)
    numbers = _integers("partitions", column, NO_PARTITION, _PARTITION)
    highest = max(numbers, default=NO_PARTITION)
    if highest != NO_PARTITION:
        known_partition(highest)
    return array("i", numbers), highest


def known_partition(partition: int) -> int:
    """Return a partition number if a topic can have it.

    Raises:
        ValueError: no topic has so many partitions.
    """
    if not 0 <= partition < MAX_PARTITIONS:
        raise ValueError(f"there is no partition {partition}")
    return partition


def timestamp_column(column: Any, now_ms: int) -> array[int] | int:
    """Return the timestamp of each row, or one for all rows.

    Raises:
        TypeError, ValueError: the column does not fit.
    """
    if type(column) is int:
        return _known_timestamp(column)
    numbers = _integers("timestamps_ms", column, now_ms, _TIMESTAMP)
    _known_timestamp(max(numbers, default=0))
    return numbers


def _known_timestamp(timestamp_ms: int) -> int:
    if timestamp_ms < 0:
        raise ValueError(f"timestamps_ms must not be negative: {timestamp_ms}")
    if timestamp_ms >= MAX_INT64:
        raise ValueError(
            f"timestamps_ms must be 64-bit milliseconds since the epoch, not {timestamp_ms}"
        )
    return timestamp_ms


def _integers(name: str, column: Any, missing: int, kind: str) -> array[int]:
    """Return a column of numbers, with `missing` in place of each missing number."""
    if is_arrow(column):
        return _as_array("q", _arrow_integers(name, column, missing, kind))
    if hasattr(column, "__array__"):
        column = _numpy_or_list(column)
    if hasattr(column, "dtype"):
        numbers = _numpy_integers(name, column, kind)
        if min(numbers, default=0) < 0:
            raise ValueError(f"{name} must not be negative: {min(numbers)}")
        return numbers
    plain = _plain_integers(column)
    if plain is not None:
        return plain
    check = _number(name, kind)
    return array("q", [missing if n is None else check(i, n) for i, n in enumerate(column)])


def _plain_integers(column: Any) -> array[int] | None:
    """Return a list of valid numbers as an array, or None if it needs a look at each item."""
    # The exact types: `True` is an int as well.
    if type(column) not in (list, tuple) or set(map(type, column)) != {int}:
        return None
    try:
        numbers = array("q", column)
    # The look at each item names the one that is too large.
    except OverflowError:
        return None
    return numbers if min(numbers) >= 0 else None


def _number(name: str, kind: str) -> Callable[[int, Any], int]:
    def check(index: int, number: Any) -> int:
        try:
            # `bool` is a subclass of int, and `True` would be partition 1.
            if isinstance(number, bool):
                raise TypeError
            number = as_int(number)  # NumPy's whole numbers, for example, are no int
        except TypeError:
            raise TypeError(
                f"{name}[{index}] must be an int or None, not {type(number).__name__}"
            ) from None
        if not 0 <= number < 1 << 63:
            raise ValueError(
                f"{name}[{index}] is not a valid {kind}: {number} (None: {_WITHOUT[kind]})"
            )
        return int(number)

    return check


# --- Arrow --------------------------------------------------------------------------------------


def _arrow_partitions(column: Any) -> tuple[array[int], int]:
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = _arrow_integers("partitions", column, NO_PARTITION, _PARTITION)
    highest = pc.max(numbers).as_py()
    if highest is None:
        highest = NO_PARTITION  # there are no rows
    if highest != NO_PARTITION:
        known_partition(highest)
    return _as_array("i", numbers.cast(pa.int32())), highest


def _as_array(kind: str, column: Any) -> array[int]:
    numbers = array(kind)
    for chunk in getattr(column, "chunks", (column,)):
        # Chunk by chunk: joining them first would copy the column once more.
        numbers.frombytes(memoryview(chunk.to_numpy()).cast("B"))
    return numbers


def _arrow_integers(name: str, column: Any, missing: int, kind: str) -> Any:
    """Return a column as Arrow's int64, with `missing` in place of each missing number."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kinds = pa.types
    if kinds.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    try:
        if kind == _TIMESTAMP and kinds.is_timestamp(column.type):
            # Before the cast, which truncates: a moment just before the epoch would become 0.
            in_a_second = _IN_A_SECOND[column.type.unit]
            _refuse_negative(name, column.cast(pa.int64()), kind, in_a_second)
            # A finer unit is truncated; with a coarser one the milliseconds may overflow.
            is_exact = column.type.unit == "s"
            column = column.cast(pa.timestamp("ms", column.type.tz), safe=is_exact)
        elif not (kinds.is_integer(column.type) or kinds.is_null(column.type)):
            raise TypeError(
                f"{name} must be integers in Arrow, not {column.type}: cast the column"
            )
        column = column.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise ValueError(f"{name} has a number that is too large: {error}") from None
    _refuse_negative(name, column, kind)
    return pc.fill_null(column, missing)


def _refuse_negative(name: str, column: Any, kind: str, in_a_second: int = 1_000) -> None:
    """Refuse an Arrow column with a number below zero. The error gives times in milliseconds."""
    import pyarrow.compute as pc

    lowest = pc.min(column).as_py()
    if lowest is not None and lowest < 0:
        lowest = lowest * 1_000 // in_a_second
        raise ValueError(f"{name} must not be negative: {lowest} (null: {_WITHOUT[kind]})")


# --- NumPy, and columns that convert to it ------------------------------------------------------


def _numpy_or_list(column: Any) -> Any:
    """Return a column as a NumPy array, or as a list if a number may be missing."""
    if hasattr(column, "filled"):
        return column.tolist()  # NumPy's masked array: None where it is masked
    if not hasattr(column, "to_numpy"):
        column = column.__array__()
    # pandas, or a library with the same interface.
    elif getattr(column.dtype, "kind", None) == "M":
        # The same moment in UTC. A dtype can be `datetime64[ns, Europe/Berlin]`, for example.
        unit = str(column.dtype).partition("[")[2][:2].strip(",]")
        column = column.to_numpy(dtype=f"datetime64[{unit}]")
    elif hasattr(column.dtype, "na_value"):
        column = column.to_numpy(dtype=object, na_value=None)
    else:
        column = column.to_numpy()
    return column.tolist() if column.dtype.kind == "O" else column


def _numpy_integers(name: str, column: Any, kind: str) -> array[int]:
    if column.ndim == 1 and kind == _TIMESTAMP and column.dtype.kind == "M":
        column = _numpy_milliseconds(name, column)
    elif column.ndim != 1 or column.dtype.kind not in "iu":
        raise TypeError(f"{name} must be a NumPy array of integers, not of {column.dtype}")
    # The conversion below would make a negative number of it.
    elif column.dtype.kind == "u" and (column > MAX_INT64).any():
        raise ValueError(f"{name} has a number that is too large: {column.max()}")
    numbers = array("q")
    numbers.frombytes(column.astype("int64").tobytes())
    return numbers


def _numpy_milliseconds(name: str, column: Any) -> Any:
    if (column != column).any():  # only NaT differs from itself
        raise ValueError(f"{name} has NaT: fill it, or pass a list with None for now")
    unit = column.dtype.str.partition("[")[2].lstrip("0123456789").rstrip("]")
    # Of a finer unit there are always enough, and the conversion truncates.
    if unit not in _FINE_UNITS and not _fits(column):
        row = next(row for row in range(len(column)) if not _fits(column[row : row + 1]))
        raise ValueError(
            f"{name}[{row}] is {column[row]}, a time that does not fit into 64-bit milliseconds"
        )
    return column.astype("datetime64[ms]")


def _fits(column: Any) -> bool:
    """Return whether all times of a NumPy column have a number of milliseconds in 64 bits."""
    try:
        # NumPy before 2.5 overflows silently: compare after converting back.
        return bool((column.astype("datetime64[ms]").astype(column.dtype) == column).all())
    except OverflowError:
        return False
