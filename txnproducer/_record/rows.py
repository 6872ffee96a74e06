"""Many records at once, column by column: the Python twin.

Why it exists: a caller with a million values in a list or an Arrow table should not pay for a
call, a future and a look at the clock for each. So a column is checked and hashed in one call, and
appended to a batch in another. Owns: `Rows`, `BinaryColumn`. Must not know: topics, futures,
memory; Arrow and NumPy, since their arrays arrive as plain buffers.

Rules:
* Both twins (the other is in `_speedups.pyx`) offer the same with plain arguments, give the same
  bytes and raise the same errors.
* Rows that were appended to a batch are copied there. Until then the caller must not change the
  data of the columns. Their offsets and their validity are copied first.
* An append takes as many rows as there is room for, in their order, and returns their number.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from io import BytesIO
from operator import sub
from typing import Final, TypeAlias

from .format import Header, batch_size_upper_bound, size_in_bytes
from .murmur2 import murmur2
from .plain_rows import plain_rows
from .record_buffer import RecordBuffer
from .record_hash import RecordHash, laid_out

NO_PARTITION: Final = -1
"""In a column of partitions: chosen by key, or sticky without a key."""
MAX_PARTITIONS: Final = 1 << 20
"""More than any cluster has, and small enough for a table with one counter for each."""

_POSITIVE: Final = 0x7FFFFFFF
_MASK_128: Final = (1 << 128) - 1
_BYTES_OR_NONE: Final = {bytes, type(None)}
# So many items of a column are copied twice at a time, not all of them.
_ITEMS_AT_A_TIME: Final = 512
# Fewer rows cost less one by one.
_LEAST_PLAIN_ROWS: Final = 10


class BinaryColumn:
    """A column of bytes in Arrow's layout: one buffer of data, and the offset of each item.

    Args:
        count: the number of items.
        first: the column's first item within the buffers.
        validity: a bit per item, 0 for null, starting with the lowest bit of a byte; None if
            nothing is null.
        offsets: the start of each item, 32 or 64 bits each (`i` or `q`), and the end of the last.
        data: the bytes of all items.
    """

    __slots__ = ("count", "data", "first", "offsets", "validity")

    def __init__(
        self,
        count: int,
        first: int,
        validity: memoryview | None,
        offsets: memoryview,
        data: memoryview,
    ) -> None:
        self.count = count
        self.first = first
        self.validity = validity
        self.offsets = offsets
        self.data = data

    def items(self) -> tuple[bytes | None, ...]:
        """Return a copy of each item."""
        if self.validity is None:
            return tuple(self._items_without_null())
        return tuple(map(self._item, range(self.first, self.first + self.count)))

    def _items_without_null(self) -> list[bytes]:
        items: list[bytes] = []
        end = self.first + self.count
        for first in range(self.first, end, _ITEMS_AT_A_TIME):
            offsets = self.offsets[first : min(first + _ITEMS_AT_A_TIME, end) + 1].tolist()
            # Read one after the other: no call in Python and no slice for each.
            data = BytesIO(self.data[offsets[0] : offsets[-1]])
            items += map(data.read, map(sub, offsets[1:], offsets))
        return items

    def _item(self, index: int) -> bytes | None:
        if self.validity is not None and not self.validity[index >> 3] >> (index & 7) & 1:
            return None
        return bytes(self.data[self.offsets[index] : self.offsets[index + 1]])


Column: TypeAlias = "tuple[bytes | None, ...] | BinaryColumn"


class Rows:
    """Records to append, column by column.

    Args:
        count: the number of rows.
        values: the value of each row, or None if all are null.
        keys: likewise.
        headers: the headers of each row, None for a row without; or None for all.
        timestamps_ms: the timestamp of each row, or one for all.

    Raises:
        ValueError: a column has another length.
    """

    __slots__ = ("_headers", "_keys", "_plain", "_timestamps_ms", "_values", "count")

    def __init__(
        self,
        count: int,
        values: Column | None,
        keys: Column | None,
        headers: tuple[tuple[Header, ...] | None, ...] | None,
        timestamps_ms: array[int] | int,
    ) -> None:
        self.count = count
        self._values = _items(count, values)
        self._keys = _items(count, keys)
        if headers is not None and len(headers) != count:
            raise ValueError(f"headers for {len(headers)} of {count} rows")
        self._headers = headers
        if not isinstance(timestamps_ms, int) and len(timestamps_ms) != count:
            raise ValueError(f"{len(timestamps_ms)} timestamps for {count} rows")
        self._timestamps_ms = timestamps_ms
        self._plain = None
        if keys is None and headers is None:
            self._plain = plain_rows(self._values, timestamps_ms)

    def record(self, row: int) -> tuple[int, bytes | None, bytes | None, tuple[Header, ...]]:
        """Return a row's timestamp, key, value and headers."""
        # A negative index would take a row from the other end.
        if not 0 <= row < self.count:
            raise IndexError(row)
        stamps, headers = self._timestamps_ms, self._headers
        return (
            stamps if isinstance(stamps, int) else stamps[row],
            self._keys[row],
            self._values[row],
            () if headers is None else headers[row] or (),
        )

    def append_to(
        self, buffer: RecordBuffer, order: array[int] | None, start: int, stop: int
    ) -> int:
        """Append rows to a batch while it has room. Return the number of rows it took.

        Args:
            buffer: the batch's buffer.
            order: the order of the rows; None for their own order.
            start: the first position in this order.
            stop: the position after the last.
        """
        if start < 0 or stop > (self.count if order is None else len(order)):
            raise IndexError(f"rows {start} to {stop} of {self.count}")
        if self._plain is not None and stop - start >= _LEAST_PLAIN_ROWS:
            return self._plain.append_to(buffer, order, start, stop)
        for position in range(start, stop):
            row = position if order is None else order[position]
            if buffer.append(*self.record(row)) is None:
                return position - start
        return stop - start

    def largest(self) -> tuple[int, int]:
        """Return the largest row, and the largest size of a batch with only this row."""
        if self._plain is not None:
            row = self._plain.longest()
            return row, batch_size_upper_bound(None, self._values[row])
        sizes = [batch_size_upper_bound(*self.record(row)[1:]) for row in range(self.count)]
        row = max(range(self.count), key=sizes.__getitem__)
        return row, sizes[row]

    def reach(self, order: array[int], start: int, stop: int, room_bytes: int) -> tuple[int, int]:
        """Return the end of the rows, one at least, that fit `room_bytes`, and their size.

        Each row is counted as a batch's first row. The few bytes more of later rows do not matter.
        """
        if start < 0 or stop > len(order):
            raise IndexError(f"rows {start} to {stop} of {self.count}")
        size = 0
        for position in range(start, stop):
            row_bytes = size_in_bytes(0, 0, *self.record(order[position])[1:])
            # At least one row, or one that is larger than the room would stop all rows after it.
            if size and size + row_bytes > room_bytes:
                return position, size
            size += row_bytes
        return stop, size

    def by_partition(
        self, partitions: array[int] | None, partition_count: int
    ) -> tuple[array[int], list[tuple[int, int, int]]]:
        """Sort the rows by partition. Those of one partition keep their order.

        Args:
            partitions: the partition of each row, `NO_PARTITION` to choose by key; None to choose
                all by key.
            partition_count: the topic's number of partitions; 0 to ignore keys.

        Returns:
            The order of the rows, and for each partition with rows: its number (`NO_PARTITION`
            for rows without partition and key), the start and the end of its rows.
        """
        if partitions is not None:
            if len(partitions) != self.count:
                raise ValueError(f"{len(partitions)} partitions for {self.count} rows")
            # The extremes stand for all: one look at each is enough to index a table of counters.
            for partition in (min(partitions, default=0), max(partitions, default=0)):
                if not NO_PARTITION <= partition < MAX_PARTITIONS:
                    raise ValueError(f"there is no partition {partition}")
        groups: dict[int, list[int]] = {}
        for row in range(self.count):
            partition = NO_PARTITION if partitions is None else partitions[row]
            key = self._keys[row]
            if partition == NO_PARTITION and key is not None and partition_count:
                partition = (murmur2(key) & _POSITIVE) % partition_count
            groups.setdefault(partition, []).append(row)
        order = array("i")
        runs = []
        # Sorted, as the compiled twin counts them: both give the same order.
        for partition in sorted(groups):
            start = len(order)
            order.extend(groups[partition])
            runs.append((partition, start, len(order)))
        return order, runs

    def places(self, partition_count: int) -> array[int]:
        """Return the partition for each row's key, `NO_PARTITION` for a row without one.

        Args:
            partition_count: the topic's number of partitions, above 0.
        """
        if not 0 < partition_count <= MAX_PARTITIONS:
            raise ValueError(f"there is no topic of {partition_count} partitions")
        return array(
            "i",
            [
                NO_PARTITION if key is None else (murmur2(key) & _POSITIVE) % partition_count
                for key in self._keys
            ],
        )

    def hash_sum(
        self, topic: bytes, partitions: array[int] | None, record_hash: RecordHash
    ) -> tuple[int, int]:
        """Return the sum of the hashes of all rows modulo 2^128, and the hashed bytes.

        Timestamps are not hashed; `record_hash` describes the rest.

        Args:
            topic: the topic of all rows.
            partitions: the partition of each row, as hashed; None for `NO_PARTITION` for all.
            record_hash: the hash of one record.

        Returns:
            The sum, and the number of bytes of keys and values.
        """
        if partitions is not None and len(partitions) != self.count:
            raise ValueError(f"{len(partitions)} partitions for {self.count} rows")
        total = size_bytes = 0
        for row in range(self.count):
            _, key, value, headers = self.record(row)
            partition = NO_PARTITION if partitions is None else partitions[row]
            # A sum, since the order of rows does not matter. An XOR would not notice two equal
            # rows.
            total += record_hash.of(laid_out(topic, partition, key, value, headers))
            size_bytes += len(key or b"") + len(value or b"")
        return total & _MASK_128, size_bytes


def first_not_bytes(items: Sequence[object]) -> int:
    """Return the index of the first item that is neither bytes nor None, or -1."""
    # Nearly always there is none, and this finds that out without a step in Python for each.
    if set(map(type, items)) <= _BYTES_OR_NONE:
        return -1
    for index, item in enumerate(items):
        # Exactly bytes: other types can change before the row is appended.
        if item is not None and type(item) is not bytes:
            return index
    return -1


def _items(count: int, column: Column | None) -> tuple[bytes | None, ...]:
    if column is None:
        return (None,) * count
    items = column.items() if isinstance(column, BinaryColumn) else column
    if len(items) != count:
        raise ValueError(f"a column of {len(items)} items for {count} rows")
    return items
