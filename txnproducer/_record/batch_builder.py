"""`RecordBatchBuilder`: records in, the bytes of one v2 batch out.

Owns: the header with its CRC, compression, the decision that a batch is full. Must not know:
partitions, futures, time-outs, the sending of the batch; how a record is encoded (`record_buffer`,
or its compiled twin, does that).

Rules:
* `build` never writes to bytes that it has returned, so a batch on its way to a socket cannot
  change. A new producer state makes a new buffer: the header is written again, and the body is
  copied, never compressed again. Callers treat the bytes as read-only.
* Not thread-safe: the caller holds a lock. The result of `seal` may be compressed without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Final, TypeAlias

from crc32c import crc32c

from txnproducer.errors import IllegalStateError

from .batch_reader import decode_records
from .compression import LEAST_LZ4_BLOCK_BYTES, codec_for, decompress
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
    TRANSACTIONAL_MASK,
    Header,
    size_in_bytes,
)
from .implementation import RecordBuffer
from .sealed_records import SealedRecords

# The Java client's constant: an estimate should rather be too large than too small.
COMPRESSION_RATE_ESTIMATION_FACTOR: Final = 1.05

_MAX_INT16: Final = 0x7FFF
# Above 0, since it is a divisor.
_LEAST_GROWTH: Final = 0.001

Append: TypeAlias = Callable[..., int | None]


class RecordBatchBuilder:
    """Builder of one record batch.

    Args:
        size_limit_bytes: the largest size of the batch, header included. An empty batch takes any
            record.
        compression: `none`, `gzip`, `snappy`, `lz4` or `zstd`.
        compression_level: the codec's level; None for its default.
        lz4_block_bytes: the size of lz4's blocks.
        is_transactional: whether the batch belongs to a transaction; `set_producer_state` may
            change it.
        is_control: whether its records are control records (only brokers write those).

    Raises:
        InvalidConfigurationError: an unknown codec, a level it does not have, or a missing
            library.
    """

    __slots__ = (
        "_attributes",
        "_buffer",
        "_codec",
        "_compression_ratio",
        "_is_handed_out",
        "_is_stamped",
        "_memory_bytes",
        "_producer_state",
        "_sealed",
        "_size_limit_bytes",
        "append",
        "records_buffer",
    )
    # Tests put each of the twins here.
    buffer_class: ClassVar = RecordBuffer

    def __init__(
        self,
        size_limit_bytes: int,
        compression: str = "none",
        compression_level: int | None = None,
        lz4_block_bytes: int = LEAST_LZ4_BLOCK_BYTES,
        is_transactional: bool = False,
        is_control: bool = False,
    ) -> None:
        self._codec = codec_for(compression, compression_level, lz4_block_bytes)
        # The header counts a batch's length in 31 bits.
        self._size_limit_bytes = min(size_limit_bytes, MAX_INT32)
        records = self.records_buffer = self.buffer_class(size_limit_bytes)
        # The buffer's own method: one call less for each record.
        self.append: Append = records.append
        # The records of a batch that is sealed and not closed.
        self._sealed: SealedRecords | None = None
        # Header and body of the closed batch; `build` writes the header.
        self._buffer: bytearray | None = None
        self._is_stamped = False
        self._is_handed_out = False
        self._attributes = self._codec.codec_id | (CONTROL_MASK if is_control else 0)
        if is_transactional:
            self._attributes |= TRANSACTIONAL_MASK
        self._producer_state = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)
        self._memory_bytes = MAX_INT64
        self._compression_ratio = 1.0
        # Through the setter: even at a ratio of 1.0 the estimate adds its five per cent.
        if self._codec.codec_id:
            self.compression_ratio = 1.0

    @property
    def record_count(self) -> int:
        """The number of records."""
        return self.records_buffer.record_count

    @property
    def size_bytes(self) -> int:
        """The size of header and records, uncompressed."""
        return self.records_buffer.size_bytes

    @property
    def base_timestamp_ms(self) -> int:
        """The first record's timestamp; -1 without records."""
        return self.records_buffer.base_timestamp_ms

    @property
    def max_timestamp_ms(self) -> int:
        """The greatest timestamp; -1 without records."""
        return self.records_buffer.max_timestamp_ms

    @property
    def compression_ratio(self) -> float:
        """The expected ratio of compressed to uncompressed bytes, learnt from earlier batches."""
        return self._compression_ratio

    @compression_ratio.setter
    def compression_ratio(self, ratio: float) -> None:
        self._compression_ratio = ratio
        # Without a codec the sizes are exact, and need no estimate.
        if self._buffer is None and self._codec.codec_id:
            self.records_buffer.set_growth(ratio * COMPRESSION_RATE_ESTIMATION_FACTOR)

    @property
    def estimated_size_bytes(self) -> int:
        """The finished batch's size: exact without a codec, and once settled or closed."""
        if self._buffer is not None:
            return len(self._buffer)
        sealed = self._sealed
        # Only once it is settled: another thread may set `body` at any moment, and the size must
        # not change between two looks of a step.
        if sealed is not None and sealed.body is not None and not sealed.records:
            return BATCH_OVERHEAD_BYTES + len(sealed.body)
        return self.records_buffer.estimated_size_bytes

    @property
    def actual_compression_ratio(self) -> float:
        """The ratio of compressed to uncompressed bytes that was reached. 1.0 while open."""
        if self._buffer is None or not self.record_count:
            return 1.0
        # The header is never compressed, so it counts on neither side.
        body_bytes = len(self._buffer) - BATCH_OVERHEAD_BYTES
        return body_bytes / (self.size_bytes - BATCH_OVERHEAD_BYTES)

    @property
    def is_closed(self) -> bool:
        """Whether the batch takes no more records and its size is final."""
        return self._buffer is not None

    @property
    def is_full(self) -> bool:
        """Whether the batch is compressed or closed, or has a record and reached its limit."""
        if self.is_compressed:
            return True
        # An empty batch takes any record, so it is not full, however low its limit.
        return self.record_count > 0 and self._size_limit_bytes <= self.estimated_size_bytes

    @property
    def is_compressed(self) -> bool:
        """Whether the body is compressed, or the batch closed. True at once on another thread."""
        sealed = self._sealed
        return self._buffer is not None or (sealed is not None and sealed.body is not None)

    def has_room_for(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
    ) -> bool:
        """Return whether `append` would take this record. An empty batch takes any."""
        return self.records_buffer.fits(self._size_of(timestamp_ms, key, value, headers))

    def set_memory(self, memory_bytes: int) -> None:
        """Set the bytes that the batch may use before compression, header included.

        Without a codec this has no effect: the batch may use its size limit.
        """
        if self._buffer is None and self._codec.codec_id:
            self._memory_bytes = memory_bytes
            self.records_buffer.set_memory(memory_bytes)

    def missing_memory_bytes(
        self,
        step_bytes: int,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
    ) -> int:
        """Return the additional memory with which `append` would take this record.

        Args:
            step_bytes: the amount to ask for, unless the batch is full before it uses that.
            timestamp_ms: the record's timestamp.
            key: bytes or None.
            value: bytes or None.
            headers: pairs of a name and bytes or None.

        Returns:
            At least the bytes that the record needs; 0 if memory is not the reason of a refusal.
        """
        record_bytes = self._size_of(timestamp_ms, key, value, headers)
        missing_bytes = self.size_bytes + record_bytes - self._memory_bytes
        left_bytes = self._size_limit_bytes - self.estimated_size_bytes
        # More memory does not help a batch that is closed, or has no room on the wire.
        if self.is_compressed or missing_bytes <= 0 or record_bytes > left_bytes:
            return 0
        growth = max(_LEAST_GROWTH, self._compression_ratio * COMPRESSION_RATE_ESTIMATION_FACTOR)
        unused_bytes = self._memory_bytes - self.size_bytes
        # Near its end a batch cannot use a whole step, and would keep other batches from growing.
        return max(missing_bytes, min(step_bytes, int(left_bytes / growth) - unused_bytes))

    def _size_of(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
    ) -> int:
        delta_ms = timestamp_ms - self.base_timestamp_ms if self.record_count else 0
        return size_in_bytes(self.record_count, delta_ms, key, value, headers)

    def seal(self) -> SealedRecords:
        """Take no more records, and return them, so that they can be compressed before `close`.

        Until the batch is settled or closed, its size stays an estimate. `close` uses the
        compressed form if there is one. Otherwise it compresses the records itself, and a later
        result is dropped.
        """
        if self._sealed is None:
            self._sealed = SealedRecords(self._codec, self.records_buffer.take())
        # After they are kept: an interrupt before this line would lose the records for good.
        self.records_buffer.drop()
        return self._sealed

    def settle(self) -> bool:
        """Drop the records if they are compressed. Return whether they are."""
        if self._sealed is None:
            # A closed batch has dropped its records already.
            return self._buffer is not None
        return self._sealed.drop_records()

    def close(self) -> None:
        """Take no more records. Assemble and compress the body. A second call does nothing."""
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
            base_sequence: the first record's number, 0 to 2^31-1; -1 with a producer id of -1.
            is_transactional: whether the batch belongs to a transaction.

        Raises:
            ValueError: a broker would refuse this combination; nothing has changed.
        """
        self._check_producer_state(producer_id, producer_epoch, base_sequence, is_transactional)
        self._producer_state = (producer_id, producer_epoch, base_sequence)
        # The bit may be set from before: a renumbered batch is stamped again.
        self._attributes &= ~TRANSACTIONAL_MASK
        if is_transactional:
            self._attributes |= TRANSACTIONAL_MASK
        self._is_stamped = False

    def build(self) -> bytearray:
        """Return the bytes of the batch, and close it.

        Each call returns the same object, until the producer state changes.

        Raises:
            IllegalStateError: the batch is empty, or transactional without a producer id.
        """
        self._check_can_build()
        buffer = self._assemble()
        if self._is_stamped:
            return buffer
        # A copy, since the old bytes may be on their way to a socket.
        if self._is_handed_out:
            buffer = self._buffer = bytearray(buffer)
        records = self.records_buffer
        HEADER_TAIL.pack_into(
            buffer,
            ATTRIBUTES_OFFSET,
            self._attributes,
            records.record_count - 1,
            records.base_timestamp_ms,
            records.max_timestamp_ms,
            *self._producer_state,
            records.record_count,
        )
        # The header's tail goes first: the CRC covers it, and stands before it.
        crc = crc32c(memoryview(buffer)[ATTRIBUTES_OFFSET:])
        length = len(buffer) - LOG_OVERHEAD_BYTES
        # The base offset is 0, and the leader epoch -1: the broker fills both in, so the CRC
        # leaves them out.
        HEADER_HEAD.pack_into(buffer, 0, 0, length, NO_PARTITION_LEADER_EPOCH, MAGIC_V2, crc)
        self._is_stamped = self._is_handed_out = True
        return buffer

    def records(self) -> Iterator[tuple[int, bytes | None, bytes | None, tuple[Header, ...]]]:
        """Iterate over the appended records, closed or not, for a split of the batch.

        Yields:
        Timestamp, key, value and headers of each record.
        """
        sealed = self._sealed
        if self._buffer is not None:
            body = memoryview(self._buffer)[BATCH_OVERHEAD_BYTES:]
            data = decompress(self._codec.codec_id, body)
        elif sealed is None:
            data = self.records_buffer.body()
        elif sealed.body is None:
            data = bytes(memoryview(sealed.records)[BATCH_OVERHEAD_BYTES:])
        else:
            data = decompress(self._codec.codec_id, sealed.body)
        for record in decode_records(data, self.record_count, self.base_timestamp_ms):
            yield record.timestamp_ms, record.key, record.value, record.headers

    def _assemble(self) -> bytearray:
        """Return the buffer of the closed batch, with its body written."""
        if self._buffer is None and self._sealed is None and not self._codec.codec_id:
            # Without a codec the records lie in their place already, and need no copy.
            self._buffer = self.records_buffer.take()
            self.records_buffer.drop()
        if self._buffer is None:
            sealed = self.seal()
            sealed.compress()
            if sealed.body is not None:
                # Room for the header, which is written last: its CRC covers the body.
                self._buffer = bytearray().join((bytes(BATCH_OVERHEAD_BYTES), sealed.body))
            else:
                self._buffer = sealed.records
            # A thread that is still compressing has its own reference. Its result is dropped.
            self._sealed = None
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
