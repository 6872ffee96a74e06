"""The pure-Python `RecordBatchBuilder`: records in, the bytes of one v2 batch out.

Owns: the encoding of records, the judgement whether one more fits, the header with its CRC. Must
not know: partitions, futures, time-outs, who sends the batch or how often.

Rules:
* The compiled twin offers this class and nothing else, with plain arguments: hot loops take
  primitives.
* `append` that returns None has changed nothing, and neither has one that raises.
* Records are encoded when they are appended; the caller may change its objects afterwards.
* What `build` has returned is never written to again, so a batch on its way to a socket cannot
  change under it. A new producer state makes a new buffer: the header is written anew, the body is
  copied, never compressed again. Callers treat the bytes as read-only.
* A batch is assembled in one buffer, without another of its size beside it.
* Not thread-safe: the caller holds a lock from the first `append` to `close`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from crc32c import crc32c

from txnproducer.errors import IllegalStateError, RecordTooLargeError

from .batch_reader import decode_records
from .compression import codec_for, decompress
from .format import (
    ATTRIBUTES_OFFSET,
    BATCH_OVERHEAD_BYTES,
    CONTROL_MASK,
    HEADER_HEAD,
    HEADER_TAIL,
    LOG_OVERHEAD_BYTES,
    MAGIC_V2,
    MAX_INT32,
    MAX_INT64,
    NO_PARTITION_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    SMALL_VARINTS,
    TRANSACTIONAL_MASK,
    Header,
    size_in_bytes,
    varint,
)

# Java's constant: an estimated size errs on the safe side.
COMPRESSION_RATE_ESTIMATION_FACTOR: Final = 1.05

# Larger values stay as they are until `close`: a copy of each would double a batch's memory, which
# the allocator then returns to the system and faults in again, batch after batch.
_JOINED_VALUE_BYTES: Final = 4096
_MAX_INT16: Final = 0x7FFF
_NULL: Final = varint(-1)
_ZERO: Final = varint(0)
# A record's length and its attributes, which are always zero, as one piece; by the length.
_LENGTH_AND_ATTRIBUTES: Final = tuple(length + b"\0" for length in SMALL_VARINTS)
_EMPTY_HEADER: Final = bytes(BATCH_OVERHEAD_BYTES)
_join: Final = b"".join
_BYTES_LIKE: Final = (bytes, bytearray, memoryview)


class RecordBatchBuilder:
    """Build one record batch.

    Args:
        size_limit_bytes: how large the batch may become, header included. An empty batch takes any
            record.
        compression: `none`, `gzip`, `snappy`, `lz4` or `zstd`.
        compression_level: the codec's level; None for its default.
        is_transactional: whether the batch belongs to a transaction, until `set_producer_state`
            says it.
        is_control: whether its records are control records (only brokers write those).

    Raises:
        InvalidConfigurationError: an unknown codec, a level it does not have, or a library that is
            missing.
    """

    __slots__ = (
        "_attributes",
        "_buffer",
        "_certain_limit_bytes",
        "_chunks",
        "_codec",
        "_compression_ratio",
        "_is_handed_out",
        "_is_stamped",
        "_last_timestamp_ms",
        "_producer_state",
        "_size_limit_bytes",
        "_timestamp_varint",
        "base_timestamp_ms",
        "max_timestamp_ms",
        "record_count",
        "size_bytes",
    )

    def __init__(
        self,
        size_limit_bytes: int,
        compression: str = "none",
        compression_level: int | None = None,
        is_transactional: bool = False,
        is_control: bool = False,
    ) -> None:
        self._codec = codec_for(compression, compression_level)
        self._size_limit_bytes = min(size_limit_bytes, MAX_INT32)
        self.record_count = 0
        self.size_bytes = BATCH_OVERHEAD_BYTES
        self.base_timestamp_ms = NO_TIMESTAMP
        self.max_timestamp_ms = NO_TIMESTAMP
        # Encoded pieces of the records; joined by `close`.
        self._chunks: list[bytes] = []
        # Header and body of the closed batch; the header is written by `build`.
        self._buffer: bytearray | None = None
        self._is_stamped = False
        self._is_handed_out = False
        self._attributes = self._codec.codec_id | (CONTROL_MASK if is_control else 0)
        if is_transactional:
            self._attributes |= TRANSACTIONAL_MASK
        self._producer_state = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)
        self._last_timestamp_ms: int | None = None
        self._timestamp_varint = _ZERO
        self.compression_ratio = 1.0

    @property
    def compression_ratio(self) -> float:
        """The expected ratio of compressed to uncompressed bytes, learnt from earlier batches."""
        return self._compression_ratio

    @compression_ratio.setter
    def compression_ratio(self, ratio: float) -> None:
        self._compression_ratio = ratio
        if self._buffer is not None:
            return
        # Below this many bytes any record fits, however badly it compresses; beyond it `_fits`
        # decides.
        growth = max(1.0, self._estimation_factor())
        room_bytes = self._size_limit_bytes - BATCH_OVERHEAD_BYTES
        self._certain_limit_bytes = BATCH_OVERHEAD_BYTES + int(room_bytes / growth)

    @property
    def estimated_size_bytes(self) -> int:
        """The finished batch's size: exact once closed or without a codec, else by the ratio."""
        if self._buffer is not None:
            return len(self._buffer)
        uncompressed_bytes = self.size_bytes - BATCH_OVERHEAD_BYTES
        return BATCH_OVERHEAD_BYTES + int(uncompressed_bytes * self._estimation_factor())

    @property
    def actual_compression_ratio(self) -> float:
        """The ratio of compressed to uncompressed bytes that was reached; 1.0 while open."""
        if self._buffer is None or not self.record_count:
            return 1.0
        body_bytes = len(self._buffer) - BATCH_OVERHEAD_BYTES
        return body_bytes / (self.size_bytes - BATCH_OVERHEAD_BYTES)

    @property
    def is_closed(self) -> bool:
        """Whether no more records can be appended."""
        return self._buffer is not None

    @property
    def is_full(self) -> bool:
        """Whether the batch is closed, or holds a record and has reached its limit."""
        if self._buffer is not None:
            return True
        return self.record_count > 0 and self._size_limit_bytes <= self.estimated_size_bytes

    def has_room_for(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
    ) -> bool:
        """Return whether `append` would take this record. An empty batch takes any."""
        delta_ms = timestamp_ms - self.base_timestamp_ms if self.record_count else 0
        return self._fits(size_in_bytes(self.record_count, delta_ms, key, value, headers))

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
            The record's index in the batch (its offset delta), or None when the batch is closed or
            the record does not fit; then nothing has changed.

        Raises:
            TypeError: an argument of another type.
            ValueError: a timestamp that is negative (but -1) or beyond 64 bits.
            RecordTooLargeError: more bytes than the format can count.
        """
        count = self.record_count
        stamp = self._timestamp_varint
        if timestamp_ms != self._last_timestamp_ms:
            stamp = self._encode_timestamp(timestamp_ms)
        tail = _encode_headers(headers) if headers else _ZERO
        # The ordinary record: bytes, small, its lengths and index within the tables. Any other
        # goes the long way.
        if type(value) is not bytes or len(value) > _JOINED_VALUE_BYTES:
            return self._append_any(timestamp_ms, stamp, key, value, tail)
        small = SMALL_VARINTS
        try:
            if key is None:
                rest = _join((stamp, small[count], _NULL, small[len(value)], value, tail))
            elif type(key) is bytes:
                rest = _join(
                    (stamp, small[count], small[len(key)], key, small[len(value)], value, tail)
                )
            else:
                return self._append_any(timestamp_ms, stamp, key, value, tail)
            head = _LENGTH_AND_ATTRIBUTES[len(rest) + 1]
        except IndexError:
            return self._append_any(timestamp_ms, stamp, key, value, tail)
        size_bytes = self.size_bytes + len(head) + len(rest)
        if size_bytes > self._certain_limit_bytes and not self._fits(len(head) + len(rest)):
            return None
        self._chunks += (head, rest)
        self.size_bytes = size_bytes
        self.record_count = count + 1
        if timestamp_ms > self.max_timestamp_ms:
            self._raise_max_timestamp(timestamp_ms)
        return count

    def close(self) -> None:
        """Take no more records; assemble and compress the body. Closing again does nothing."""
        self._assemble()

    def set_producer_state(
        self, producer_id: int, producer_epoch: int, base_sequence: int, is_transactional: bool
    ) -> None:
        """Stamp the batch with its producer and its first sequence number.

        It may be called before `build` and after it, when an epoch bump renumbers the batch: the
        next `build` then makes new bytes, and those handed out before stay as they are.

        Args:
            producer_id: from InitProducerId; -1 for a producer without idempotence.
            producer_epoch: its epoch; -1 with a producer id of -1.
            base_sequence: of the first record, 0 to 2^31-1; -1 with a producer id of -1.
            is_transactional: whether the batch belongs to a transaction.

        Raises:
            ValueError: a combination that a broker would refuse; nothing has changed.
        """
        self._check_producer_state(producer_id, producer_epoch, base_sequence, is_transactional)
        self._producer_state = (producer_id, producer_epoch, base_sequence)
        self._attributes &= ~TRANSACTIONAL_MASK
        if is_transactional:
            self._attributes |= TRANSACTIONAL_MASK
        self._is_stamped = False

    def build(self) -> bytearray:
        """Return the bytes of the batch, and close it.

        The same object each time, until the producer state changes.

        Raises:
            IllegalStateError: the batch is empty, or transactional without a producer id.
        """
        self._check_can_build()
        buffer = self._assemble()
        if self._is_stamped:
            return buffer
        if self._is_handed_out:
            buffer = self._buffer = bytearray(buffer)
        HEADER_TAIL.pack_into(
            buffer,
            ATTRIBUTES_OFFSET,
            self._attributes,
            self.record_count - 1,
            self.base_timestamp_ms,
            self.max_timestamp_ms,
            *self._producer_state,
            self.record_count,
        )
        crc = crc32c(memoryview(buffer)[ATTRIBUTES_OFFSET:])
        length = len(buffer) - LOG_OVERHEAD_BYTES
        HEADER_HEAD.pack_into(buffer, 0, 0, length, NO_PARTITION_LEADER_EPOCH, MAGIC_V2, crc)
        self._is_stamped = self._is_handed_out = True
        return buffer

    def records(self) -> Iterator[tuple[int, bytes | None, bytes | None, tuple[Header, ...]]]:
        """Iterate over what was appended, closed or not, for a split of the batch.

        Yields:
            Timestamp, key, value and headers of each record.
        """
        if self._buffer is None:
            data = _join(self._chunks)
        else:
            body = memoryview(self._buffer)[BATCH_OVERHEAD_BYTES:]
            data = decompress(self._codec.codec_id, body)
        for record in decode_records(data, self.record_count, self.base_timestamp_ms):
            yield record.timestamp_ms, record.key, record.value, record.headers

    def _append_any(
        self, timestamp_ms: int, stamp: bytes, key: object, value: object, tail: bytes
    ) -> int | None:
        """Append a record that `append` has no short way for, with every check."""
        count = self.record_count
        # Left in pieces, see _JOINED_VALUE_BYTES.
        pieces = [stamp, varint(count)]
        pieces += _encode_nullable("key", key)
        pieces += _encode_nullable("value", value)
        pieces.append(tail)
        body_bytes = sum(map(len, pieces)) + 1
        head = varint(body_bytes) + b"\0"
        record_bytes = len(head) - 1 + body_bytes
        if BATCH_OVERHEAD_BYTES + record_bytes > MAX_INT32:
            raise RecordTooLargeError(
                f"a record of {record_bytes} bytes: a batch ends at 2^31-1 bytes"
            )
        if not self._fits(record_bytes):
            return None
        self._chunks.append(head)
        self._chunks += pieces
        self.size_bytes += record_bytes
        self.record_count = count + 1
        if timestamp_ms > self.max_timestamp_ms:
            self._raise_max_timestamp(timestamp_ms)
        return count

    def _raise_max_timestamp(self, timestamp_ms: int) -> None:
        """Note a new maximum; the first record's is the base of the others."""
        self.max_timestamp_ms = timestamp_ms
        if self.record_count == 1:
            self.base_timestamp_ms = timestamp_ms

    def _encode_timestamp(self, timestamp_ms: int) -> bytes:
        """Return a timestamp's encoded delta, and remember it: neighbours often share it."""
        if type(timestamp_ms) is not int:
            raise TypeError(f"timestamp_ms must be an int, not {type(timestamp_ms).__name__}")
        # Below 2^63-1, so that its delta to a first record without a timestamp (-1) fits 64 bits
        # as well.
        if not NO_TIMESTAMP <= timestamp_ms < MAX_INT64:
            raise ValueError(
                f"timestamp_ms must be milliseconds since the epoch, or -1, not {timestamp_ms}"
            )
        stamp = varint(timestamp_ms - self.base_timestamp_ms) if self.record_count else _ZERO
        self._last_timestamp_ms = timestamp_ms
        self._timestamp_varint = stamp
        return stamp

    def _fits(self, record_bytes: int) -> bool:
        # The new record counts uncompressed: how well it compresses is not known yet.
        if self._buffer is not None:
            return False
        if self.record_count == 0:
            return True
        return self.estimated_size_bytes + record_bytes <= self._size_limit_bytes

    def _estimation_factor(self) -> float:
        if self._codec.codec_id == 0:
            return 1.0
        return self._compression_ratio * COMPRESSION_RATE_ESTIMATION_FACTOR

    def _assemble(self) -> bytearray:
        """Return the buffer of the closed batch, its body written."""
        if self._buffer is None:
            chunks = self._chunks
            if self._codec.codec_id:
                chunks = [self._codec.compress(_join(chunks))]
            self._buffer = bytearray().join((_EMPTY_HEADER, *chunks))
            self._chunks = []
            self._certain_limit_bytes = -1
        return self._buffer

    def _check_can_build(self) -> None:
        if not self.record_count:
            raise IllegalStateError("an empty batch has no bytes: append a record first")
        if self._attributes & TRANSACTIONAL_MASK and self._producer_state[0] == NO_PRODUCER_ID:
            raise IllegalStateError(
                "a transactional batch needs a producer id: call set_producer_state first"
            )

    def _check_producer_state(
        self, producer_id: int, producer_epoch: int, base_sequence: int, is_transactional: bool
    ) -> None:
        if not NO_PRODUCER_ID <= producer_id <= MAX_INT64:
            raise ValueError(f"producer_id must be -1 or a 64-bit number, not {producer_id}")
        if producer_id == NO_PRODUCER_ID:
            if is_transactional:
                raise ValueError("a transactional batch needs a producer_id, not -1")
            return
        if not 0 <= producer_epoch <= _MAX_INT16:
            raise ValueError(f"producer_epoch must be 0 to {_MAX_INT16}, not {producer_epoch}")
        # Control batches carry no sequence numbers.
        lowest = NO_SEQUENCE if self._attributes & CONTROL_MASK else 0
        if not lowest <= base_sequence <= MAX_INT32:
            raise ValueError(f"base_sequence must be {lowest} to {MAX_INT32}, not {base_sequence}")


def _encode_nullable(field: str, data: object) -> tuple[bytes, ...]:
    """Return a length and the bytes that it counts; a copy if the caller could change them."""
    if data is None:
        return (_NULL,)
    if not isinstance(data, _BYTES_LIKE):
        raise TypeError(f"{field} must be bytes or None, not {type(data).__name__}: serialize it")
    encoded = bytes(data)
    return varint(len(encoded)), encoded


def _encode_headers(headers: Sequence[Header]) -> bytes:
    pieces = [varint(len(headers))]
    for name, value in headers:
        if not isinstance(name, str):
            raise TypeError(f"a header's name must be a str, not {type(name).__name__}")
        pieces.append(_encode_header_name(name))
        pieces += _encode_nullable("a header's value", value)
    return _join(pieces)


# A topic's records share their header names.
@lru_cache(maxsize=256)
def _encode_header_name(name: str) -> bytes:
    encoded = name.encode()
    return varint(len(encoded)) + encoded
