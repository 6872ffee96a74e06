"""Consecutive records with a value and nothing more, encoded together.

Why it exists: without compiled parts, a call in Python for each row of a column costs several
times as much as its bytes. So every loop over records is here one of the interpreter's own C code:
`map`, `accumulate`, a slice with a step.
Owns: `ValueRun`, and the tables by length. Must not know: the limits of a batch, columns, the
order of rows.

Rules:
* The bytes are those that `RecordBuffer.append` makes of the same records one by one.
* All records of a run have one timestamp, and indexes whose varints have the same size. So the
  size of a record depends on its value's length alone, and grows with it.
* Threads share the tables: a table only grows, and all of them write the same into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate
from typing import Final

from .format import SMALL_VARINT_COUNT, SMALL_VARINTS, size_of_varint, varint

_ATTRIBUTES: Final = b"\0"
_NULL: Final = varint(-1)
_NO_HEADERS: Final = varint(0)
# A record's length, attributes and timestamp, index, key and the value's length, value, headers.
_PIECES: Final = 6
# A table of more lengths is not kept: nobody knows which of them will be seen again.
_MOST_LENGTHS: Final = 4096


class LengthTable:
    """The parts of a record that depend on the length of its value.

    Args:
        delta_bytes: the size of the record's timestamp and index, encoded.

    Attributes:
        sizes: the size of the whole record, by the value's length.
        heads: the record's length, encoded.
        middles: the bytes between its index and its value.
    """

    __slots__ = ("_fixed_bytes", "heads", "middles", "sizes")

    def __init__(self, delta_bytes: int) -> None:
        self._fixed_bytes = len(_ATTRIBUTES) + delta_bytes + len(_NULL) + len(_NO_HEADERS)
        self.sizes: dict[int, int] = {}
        self.heads: dict[int, bytes] = {}
        self.middles: dict[int, bytes] = {}

    def add(self, lengths: Iterable[int]) -> None:
        """Add the lengths of values."""
        for length in lengths:
            if length in self.sizes:
                continue
            encoded_length = varint(length)
            body_bytes = self._fixed_bytes + len(encoded_length) + length
            head = self.heads[length] = varint(body_bytes)
            self.middles[length] = _NULL + encoded_length
            # Last: a length with a size is complete, for other threads and after an interrupt.
            self.sizes[length] = len(head) + body_bytes
        if len(self.sizes) > _MOST_LENGTHS:
            # The next run takes a new table. This one may be in use by other threads.
            _length_table.cache_clear()


# There are about a dozen sizes.
@cache
def _length_table(delta_bytes: int) -> LengthTable:
    return LengthTable(delta_bytes)


class ValueRun:
    """Records to append to a batch.

    Args:
        stamp: the timestamp delta of all of them, encoded.
        first_index: the index of the first one in its batch.
        values: exactly bytes, and at least one. Those whose index has a longer varint than the
            first are left out.
    """

    __slots__ = ("_are_equal", "_first_index", "_lengths", "_stamp", "_table", "_values")

    def __init__(self, stamp: bytes, first_index: int, values: Sequence[bytes]) -> None:
        index_bytes = size_of_varint(first_index)
        # A byte has seven bits of a varint, and one bit of all is the sign's.
        self._values = values[: (1 << 7 * index_bytes - 1) - first_index]
        self._stamp = stamp
        self._first_index = first_index
        self._lengths = list(map(len, self._values))
        self._are_equal = self._lengths.count(self._lengths[0]) == len(self._lengths)
        self._table = _length_table(len(stamp) + index_bytes)

    def sizes_of_batch(self, size_bytes: int) -> Sequence[int]:
        """Return the size of a batch before the first record, and after each."""
        if self._are_equal:
            step = self.largest_bytes()
            return range(size_bytes, size_bytes + step * len(self._lengths) + 1, step)
        size_of = self._table.sizes.__getitem__
        try:
            return list(accumulate(map(size_of, self._lengths), initial=size_bytes))
        except KeyError:
            # To look for new lengths before would cost each record.
            self._table.add(set(self._lengths))
        return list(accumulate(map(size_of, self._lengths), initial=size_bytes))

    def largest_bytes(self) -> int:
        """Return the size of the largest record."""
        longest = max(self._lengths)
        self._table.add((longest,))
        return self._table.sizes[longest]

    def pieces(self, count: int) -> list[bytes]:
        """Return the first records in pieces to join, after `sizes_of_batch`.

        Args:
            count: the number of records, at least one.
        """
        table, lengths, first = self._table, self._lengths[:count], self._first_index
        head, middle = table.heads[lengths[0]], table.middles[lengths[0]]
        pieces = [head, _ATTRIBUTES + self._stamp, b"", middle, b"", _NO_HEADERS] * count
        if not self._are_equal:
            pieces[0::_PIECES] = map(table.heads.__getitem__, lengths)
            pieces[3::_PIECES] = map(table.middles.__getitem__, lengths)
        pieces[2::_PIECES] = _varints(first, first + count)
        pieces[4::_PIECES] = self._values[:count]
        return pieces


def _varints(start: int, stop: int) -> Iterable[bytes]:
    if stop <= SMALL_VARINT_COUNT:
        return SMALL_VARINTS[start:stop]
    return map(varint, range(start, stop))
