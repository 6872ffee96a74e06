"""Rows with a value each, one timestamp and nothing more: a part of the Python twin of `Rows`.

Why it exists: most columns that are sent are like this, and need no call in Python for each row.
Owns: `PlainRows`, the number of rows that are looked at together. Must not know: keys and headers;
how records are encoded, and which of them fit (`value_runs` and `record_buffer`).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import indexOf
from typing import Final, TypeGuard

from .record_buffer import RecordBuffer

# Rows that are looked at together: these at first, then twice as many each time. So a batch with
# room for few is not asked about many.
_FIRST_RUN: Final = 64
# The lists for these stay within the processor's cache.
_LONGEST_RUN: Final = 512


class PlainRows:
    """Rows to append.

    Args:
        values: the value of each row.
        timestamp_ms: the timestamp of all rows.
    """

    __slots__ = ("_timestamp_ms", "_values")

    def __init__(self, values: tuple[bytes, ...], timestamp_ms: int) -> None:
        self._values = values
        self._timestamp_ms = timestamp_ms

    def append_to(
        self, buffer: RecordBuffer, order: array[int] | None, start: int, stop: int
    ) -> int:
        """Append rows to a batch while it has room. See `Rows.append_to`."""
        position, ahead = start, _FIRST_RUN
        while position < stop:
            # Each run follows a record that `append` takes, and ends where `append` has to decide.
            (value,) = self._part(order, position, position + 1)
            if buffer.append(self._timestamp_ms, None, value) is None:
                break
            position += 1
            values = self._part(order, position, min(position + ahead, stop))
            position += buffer.append_values(values)
            ahead = min(2 * ahead, _LONGEST_RUN)
        return position - start

    def longest(self) -> int:
        """Return the first of the rows with the longest value."""
        return indexOf(map(len, self._values), max(map(len, self._values)))

    def _part(self, order: array[int] | None, start: int, stop: int) -> Sequence[bytes]:
        values = self._values
        if order is None:
            return values[start:stop]
        # Without a sign, since a negative row would be taken from the other end.
        rows = array(order.typecode.upper(), order[start:stop].tobytes())
        return [values[row] for row in rows]


def plain_rows(
    values: tuple[bytes | None, ...], timestamps_ms: array[int] | int
) -> PlainRows | None:
    """Return rows without keys and headers as plain ones, or None if they are not plain."""
    if isinstance(timestamps_ms, int) and _are_bytes(values):
        return PlainRows(values, timestamps_ms)
    return None


def _are_bytes(values: tuple[bytes | None, ...]) -> TypeGuard[tuple[bytes, ...]]:
    # Exactly bytes: it is for `RecordBuffer.append` to judge all others.
    return set(map(type, values)) == {bytes}
