"""The records of one open batch, encoded one after the other: the Python twin.

Why it exists: a producer appends a million times as often as it does anything else. So this is a
class of its own, small enough to be written twice: `_speedups.pyx` has the compiled twin.
Owns: the encoding of records, the decision whether one more fits. Must not know: the header's
fields, codecs, partitions, futures.

Rules:
* Both twins offer this class with plain arguments, give the same bytes and raise the same errors.
* An `append` that returns None, or raises, has changed nothing.
* Records are encoded when they are appended; the caller may change its objects afterwards.
* A batch is assembled in one buffer, without a second one of its size.
* Not thread-safe: the caller holds a lock from the first `append` to `take`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from math import nan
from typing import Final

from txnproducer.errors import RecordTooLargeError

from .format import (
    BATCH_OVERHEAD_BYTES,
    MAX_INT32,
    MAX_INT64,
    NO_TIMESTAMP,
    SMALL_VARINTS,
    Header,
    varint,
)
from .value_runs import ValueRun

# Larger values are kept unchanged until `take`: a copy of each would double a batch's memory,
# which the allocator then returns to the system and faults in again for every batch.
_JOINED_VALUE_BYTES: Final = 4096
# Records that are appended together are joined up to this size on average. The pieces of larger
# ones cost `take` little, and are less memory than a copy.
_JOINED_RECORD_BYTES: Final = 512
_NULL: Final = varint(-1)
_ZERO: Final = varint(0)
# A record's length and its attributes, which are always zero, as one piece, indexed by the length.
_LENGTH_AND_ATTRIBUTES: Final = tuple(length + b"\0" for length in SMALL_VARINTS)
_EMPTY_HEADER: Final = bytes(BATCH_OVERHEAD_BYTES)
_join: Final = b"".join
NO_ROOM: Final = -1
_BYTES_LIKE: Final = (bytes, bytearray, memoryview)


class RecordBuffer:
    """Encoder of the records of a batch.

    Args:
        size_limit_bytes: the largest size of the batch, header included. An empty batch takes any
            record.

    Attributes:
        record_count: the number of records.
        size_bytes: the size of header and records, uncompressed.
        base_timestamp_ms: the first record's timestamp.
        max_timestamp_ms: the greatest timestamp.
        is_taken: whether no more records can be appended.
    """

    __slots__ = (
        "_certain_limit_bytes",
        "_chunks",
        "_growth",
        "_last_timestamp_ms",
        "_memory_bytes",
        "_size_limit_bytes",
        "_taken",
        "_timestamp_varint",
        "base_timestamp_ms",
        "is_taken",
        "max_timestamp_ms",
        "record_count",
        "size_bytes",
    )

    def __init__(self, size_limit_bytes: int) -> None:
        # The header counts a batch's length in 31 bits.
        self._size_limit_bytes = min(size_limit_bytes, MAX_INT32)
        self.record_count = 0
        self.size_bytes = BATCH_OVERHEAD_BYTES
        self.base_timestamp_ms = NO_TIMESTAMP
        self.max_timestamp_ms = NO_TIMESTAMP
        self.is_taken = False
        self._taken = bytearray()
        self._chunks: list[bytes] = []
        self._last_timestamp_ms: object = nan  # equals nothing, so the first one is checked
        self._timestamp_varint = _ZERO
        self._memory_bytes = MAX_INT64
        self.set_growth(1.0)

    def set_growth(self, growth: float) -> None:
        """Set the expected ratio of bytes in the finished batch to appended bytes."""
        self._growth = growth
        self._set_certain_limit()

    def set_memory(self, memory_bytes: int) -> None:
        """Set the bytes that the batch may use, header included. By default there is no limit."""
        self._memory_bytes = memory_bytes
        self._set_certain_limit()

    def _set_certain_limit(self) -> None:
        if self.is_taken:
            return  # no record is certain to fit any more, see `take`
        # Up to this many bytes any record fits, however badly it compresses. Beyond it `fits`
        # decides.
        room_bytes = int((self._size_limit_bytes - BATCH_OVERHEAD_BYTES) / max(1.0, self._growth))
        self._certain_limit_bytes = min(BATCH_OVERHEAD_BYTES + room_bytes, self._memory_bytes)

    @property
    def estimated_size_bytes(self) -> int:
        """The expected size of the finished batch, by the growth that was set."""
        return BATCH_OVERHEAD_BYTES + int((self.size_bytes - BATCH_OVERHEAD_BYTES) * self._growth)

    def _estimate(self, size_bytes: int) -> int:
        # The property does not call it: that would cost each record for which `fits` is asked.
        return BATCH_OVERHEAD_BYTES + int((size_bytes - BATCH_OVERHEAD_BYTES) * self._growth)

    def fits(self, record_bytes: int) -> bool:
        """Return whether a record of this size would be taken. An empty batch takes any."""
        # The new record counts uncompressed: its compression ratio is not known yet.
        if self.is_taken:
            return False
        # Before the limits: a record that is larger than them could otherwise never be sent.
        if self.record_count == 0:
            return True
        if self.size_bytes + record_bytes > self._memory_bytes:
            return False
        return self.estimated_size_bytes + record_bytes <= self._size_limit_bytes

    def append(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
    ) -> int | None:
        """Append a record.

        Args:
            timestamp_ms: milliseconds since the epoch; -1 for none.
            key: bytes, or None for null.
            value: bytes, or None for null (a tombstone).
            headers: pairs of a name and bytes or None.

        Returns:
            The record's index in the batch (its offset delta). None if the batch is closed or the
            record does not fit; then nothing has changed.

        Raises:
            TypeError: an argument is of another type.
            ValueError: the timestamp is negative (other than -1) or exceeds 64 bits.
            RecordTooLargeError: the record has more bytes than the format can count.
        """
        count = self.record_count
        stamp = self._timestamp_varint
        if timestamp_ms != self._last_timestamp_ms:
            stamp = self._encode_timestamp(timestamp_ms)
        tail = encode_headers(headers) if headers else _ZERO
        # The ordinary record: bytes, small, its lengths and index within the tables. All others
        # take the slow path.
        if type(value) is not bytes or len(value) > _JOINED_VALUE_BYTES:
            return self._append_any(timestamp_ms, stamp, key, value, tail)
        small = SMALL_VARINTS
        try:
            if key is None:
                rest = _join((stamp, small[count], _NULL, small[len(value)], value, tail))
            # Exactly bytes: other types can change later, and have to be copied.
            elif type(key) is bytes:
                rest = _join(
                    (stamp, small[count], small[len(key)], key, small[len(value)], value, tail)
                )
            else:
                return self._append_any(timestamp_ms, stamp, key, value, tail)
            head = _LENGTH_AND_ATTRIBUTES[len(rest) + 1]
        # A length or an index beyond the tables. To look before would cost each record.
        except IndexError:
            return self._append_any(timestamp_ms, stamp, key, value, tail)
        size_bytes = self.size_bytes + len(head) + len(rest)
        if size_bytes > self._certain_limit_bytes and not self.fits(len(head) + len(rest)):
            return None
        self._chunks += (head, rest)
        self.size_bytes = size_bytes
        self.record_count = count + 1
        if timestamp_ms > self.max_timestamp_ms:
            # Written out in both places: a signal can arrive at the start of a function, and would
            # leave half a record.
            self.max_timestamp_ms = timestamp_ms
            if not count:
                self.base_timestamp_ms = timestamp_ms
        return count

    def append_fast(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[Header, ...],
    ) -> int:
        """Append a record like `append`, but return -1 where that returns None."""
        # The compiled twin takes no None here, and both raise the same.
        if headers is None:
            raise no_headers()
        index = self.append(timestamp_ms, key, value, headers)
        return NO_ROOM if index is None else index

    def append_values(self, values: Sequence[bytes]) -> int:
        """Append records without key and headers. Return the number that there was room for.

        They follow a record that `append` has just taken, and have its timestamp. The next one is
        again for `append`: it may not fit, or may have a longer index.

        Args:
            values: exactly bytes.
        """
        count = self.record_count
        if self.is_taken or not count or not values:
            return 0
        run = ValueRun(self._timestamp_varint, count, values)
        sizes = run.sizes_of_batch(self.size_bytes)
        taken = self._fitting(run, sizes)
        if not taken:
            return 0
        size_bytes = sizes[taken]
        pieces = run.pieces(taken)
        if size_bytes - self.size_bytes <= taken * _JOINED_RECORD_BYTES:
            pieces = [_join(pieces)]
        # No call from here on: a signal can arrive with one, and would leave half the records.
        self._chunks += pieces
        self.size_bytes = size_bytes
        self.record_count = count + taken
        return taken

    def _fitting(self, run: ValueRun, sizes: Sequence[int]) -> int:
        """Return the number of records that fit, by the batch's size before and after each."""
        limit_bytes = self._size_limit_bytes
        certain = bisect_right(sizes, self._certain_limit_bytes) - 1
        in_memory = bisect_right(sizes, self._memory_bytes) - 1
        if certain == in_memory:
            return max(certain, 0)
        # Where the largest record would fit, each does. Those after are looked at as by `fits`.
        room_bytes = limit_bytes - run.largest_bytes()
        by_estimate = bisect_right(sizes, room_bytes, key=self._estimate)
        count = max(certain, min(by_estimate, in_memory))
        while count < in_memory:
            record_bytes = sizes[count + 1] - sizes[count]
            if self._estimate(sizes[count]) + record_bytes > limit_bytes:
                break
            count += 1
        return count

    def body(self) -> bytes:
        """Return a copy of the encoded records, of a batch that is not taken."""
        return _join(self._chunks)

    def take(self) -> bytearray:
        """Close the buffer. Return it with room for the header before the records.

        A later call returns the same, until `drop`: an interrupt may have lost the first result.
        """
        if not self.is_taken:
            self._taken = bytearray().join((_EMPTY_HEADER, *self._chunks))
            # No record is certain to fit any more, so that the fast path asks `fits`, which
            # refuses it.
            self._certain_limit_bytes = -1
            self.is_taken = True
        # They are copied, and would hold the batch twice.
        self._chunks = []
        return self._taken

    def drop(self) -> None:
        """Forget the records that were taken: from now on they are the caller's alone."""
        self._taken = bytearray()

    def _append_any(
        self, timestamp_ms: int, stamp: bytes, key: object, value: object, tail: bytes
    ) -> int | None:
        """Append a record that does not take the fast path of `append`, with every check."""
        count = self.record_count
        # Left in pieces, see _JOINED_VALUE_BYTES.
        pieces = [stamp, varint(count)]
        pieces += _encode_nullable("key", key)
        pieces += _encode_nullable("value", value)
        pieces.append(tail)
        body_bytes = sum(map(len, pieces)) + 1
        head = varint(body_bytes) + b"\0"
        record_bytes = len(head) - 1 + body_bytes
        # An empty batch takes any record, so the format's own limit is checked apart.
        if BATCH_OVERHEAD_BYTES + record_bytes > MAX_INT32:
            raise too_large(record_bytes)
        if not self.fits(record_bytes):
            return None
        self._chunks += (head, *pieces)
        self.size_bytes += record_bytes
        self.record_count = count + 1
        if timestamp_ms > self.max_timestamp_ms:
            # Written out in both places: a signal can arrive at the start of a function, and would
            # leave half a record.
            self.max_timestamp_ms = timestamp_ms
            if not count:
                self.base_timestamp_ms = timestamp_ms
        return count

    def _encode_timestamp(self, timestamp_ms: int) -> bytes:
        """Return a timestamp's encoded delta, and keep it: consecutive records often share it."""
        check_timestamp(timestamp_ms)
        stamp = varint(timestamp_ms - self.base_timestamp_ms) if self.record_count else _ZERO
        self._last_timestamp_ms = timestamp_ms
        self._timestamp_varint = stamp
        return stamp


# --- refusals, of both twins --------------------------------------------------------------------


def check_timestamp(timestamp_ms: object) -> None:
    """Check a record's timestamp.

    Raises:
        TypeError: the timestamp is no int.
        ValueError: the timestamp is negative (other than -1), or exceeds 64 bits.
    """
    # Exactly int: True and False are ints as well.
    if type(timestamp_ms) is not int:
        raise TypeError(f"timestamp_ms must be an int, not {type(timestamp_ms).__name__}")
    # Below 2^63-1, so that its delta to a first record without a timestamp (-1) also fits 64 bits.
    if not NO_TIMESTAMP <= timestamp_ms < MAX_INT64:
        raise ValueError(
            f"timestamp_ms must be milliseconds since the epoch, or -1, not {timestamp_ms}"
        )


def too_large(record_bytes: int) -> RecordTooLargeError:
    """Return the error for a record with more bytes than the format can count."""
    return RecordTooLargeError(f"a record of {record_bytes} bytes: a batch ends at 2^31-1 bytes")


def no_headers() -> TypeError:
    """Return the error for headers that are None, not a tuple."""
    return TypeError("headers must be a tuple, not None")


def to_encode(field: str, data: object) -> bytes:
    """Return bytes to encode: a copy if the caller could change them.

    Raises:
        TypeError: the data is not bytes-like.
    """
    if not isinstance(data, _BYTES_LIKE):
        raise TypeError(f"{field} must be bytes or None, not {type(data).__name__}: serialize it")
    return bytes(data)


def _encode_nullable(field: str, data: object) -> tuple[bytes, ...]:
    """Return a length and the bytes that it counts."""
    if data is None:
        return (_NULL,)
    encoded = to_encode(field, data)
    return varint(len(encoded)), encoded


def encode_headers(headers: Sequence[Header]) -> bytes:
    """Return headers in their encoded form, with their count first.

    Raises:
        TypeError: a name is no str, or a value is not bytes-like.
    """
    pieces = [varint(len(headers))]
    for name, value in headers:
        pieces.append(encode_header_name(name))
        pieces += _encode_nullable("a header's value", value)
    return _join(pieces)


def encode_header_name(name: object) -> bytes:
    """Return a header's name in its encoded form, with its length first.

    Raises:
        TypeError: the name is no str.
    """
    if not isinstance(name, str):
        raise TypeError(f"a header's name must be a str, not {type(name).__name__}")
    return _encode_known_name(name)


# A topic's records share their header names.
@lru_cache(maxsize=256)
def _encode_known_name(name: str) -> bytes:
    encoded = name.encode()
    return varint(len(encoded)) + encoded
