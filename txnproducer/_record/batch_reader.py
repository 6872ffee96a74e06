"""The reading of record batches: verification, and iteration over their records.

Owns: the decoding of a v2 batch and every check that a broker makes before it trusts one.
Must not know: how a batch is built, which offsets or sequences are expected.

Rules:
* Bytes that break the format raise `CorruptRecordError`. They never raise another error, and never
  give a wrong record.
* Reading copies keys and values, so a record outlives the buffer that it was read from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from txnproducer.errors import CorruptRecordError

from .compression import codec_name, decompress
from .format import (
    ATTRIBUTES_OFFSET,
    BATCH_OVERHEAD_BYTES,
    COMPRESSION_MASK,
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    HEADER,
    LENGTH_OFFSET,
    LOG_OVERHEAD_BYTES,
    MAGIC_OFFSET,
    MAGIC_V2,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    Header,
    decode_varint,
    increment_sequence,
)


class DecodedRecord(NamedTuple):
    """A decoded record; `offset_delta` counts from the batch's base offset."""

    offset_delta: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The 61 bytes before the records, field by field, with values that follow from them."""

    base_offset: int
    length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch."""
        return self.length + LOG_OVERHEAD_BYTES

    @property
    def codec_id(self) -> int:
        """The id of the codec of the records, 0 for none."""
        return self.attributes & COMPRESSION_MASK

    @property
    def compression(self) -> str:
        """The name of the codec of the records."""
        return codec_name(self.codec_id)

    @property
    def is_log_append_time(self) -> bool:
        """Whether the broker set the timestamps: every record then has the maximum timestamp."""
        return bool(self.attributes & TIMESTAMP_TYPE_MASK)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_MASK)

    @property
    def is_control(self) -> bool:
        """Whether the records are control records, such as the markers that end a transaction."""
        return bool(self.attributes & CONTROL_MASK)

    @property
    def has_delete_horizon(self) -> bool:
        """Whether the log cleaner has put its delete horizon in the base timestamp (KIP-534)."""
        return bool(self.attributes & DELETE_HORIZON_MASK)

    @property
    def has_producer_id(self) -> bool:
        """Whether an idempotent producer wrote the batch."""
        return self.producer_id != NO_PRODUCER_ID

    @property
    def last_offset(self) -> int:
        """The offset of the last record. The log cleaner may have removed the record itself."""
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record; -1 without sequence numbers."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return increment_sequence(self.base_sequence, self.last_offset_delta)


class RecordBatch:
    """A verified batch, which iterates over its records.

    Args:
        data: the bytes of exactly one batch.

    Raises:
        CorruptRecordError: the length, the magic or the CRC is wrong, or the counts contradict
            each other.
    """

    __slots__ = ("_data", "header")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        # An index counts items of the caller's view, so the items have to be bytes.
        self._data = memoryview(data).cast("B")
        self.header = read_header(self._data)
        _check_batch(self.header, self._data)

    def __iter__(self) -> Iterator[DecodedRecord]:
        """Decode the records one by one."""
        header = self.header
        body = decompress(header.codec_id, self._data[BATCH_OVERHEAD_BYTES:])
        for record in decode_records(body, header.record_count, header.base_timestamp_ms):
            if record.offset_delta > header.last_offset_delta:
                raise CorruptRecordError(
                    f"a record at offset delta {record.offset_delta}, after the batch's last, "
                    f"{header.last_offset_delta}"
                )
            # The body of a batch with LogAppendTime is not rewritten: the broker changes the
            # header alone.
            if header.is_log_append_time:
                yield record._replace(timestamp_ms=header.max_timestamp_ms)
            else:
                yield record

    def __bytes__(self) -> bytes:
        return bytes(self._data)

    def __repr__(self) -> str:
        return f"RecordBatch({self.header!r})"


def read_header(data: bytes | bytearray | memoryview) -> BatchHeader:
    """Decode the header at the start of some bytes, and check only that it is a v2 header.

    Raises:
        CorruptRecordError: fewer bytes than a header has, or not a v2 batch.
    """
    if len(data) < BATCH_OVERHEAD_BYTES:
        raise CorruptRecordError(
            f"{len(data)} bytes are not a record batch: its header alone has"
            f" {BATCH_OVERHEAD_BYTES}"
        )
    if data[MAGIC_OFFSET] != MAGIC_V2:
        raise CorruptRecordError(
            f"a batch of magic {data[MAGIC_OFFSET]}: only magic {MAGIC_V2} is read"
        )
    return BatchHeader(*HEADER.unpack_from(data))


def read_batches(data: bytes | bytearray | memoryview) -> Iterator[RecordBatch]:
    """Read consecutive batches, as in a fetch response.

    A batch that is cut off at the end is left out: brokers cut at the fetch size.

    Raises:
        CorruptRecordError: a batch is not valid.
    """
    view = memoryview(data).cast("B")
    while len(view) >= LOG_OVERHEAD_BYTES:
        # These 12 bytes are the same in batches of every magic.
        length = int.from_bytes(view[LENGTH_OFFSET:LOG_OVERHEAD_BYTES], "big", signed=True)
        size_bytes = length + LOG_OVERHEAD_BYTES
        # With a size of 0 or less, the loop would not end.
        if size_bytes < BATCH_OVERHEAD_BYTES:
            raise CorruptRecordError(
                f"a batch of {size_bytes} bytes is shorter than its own header"
            )
        if size_bytes > len(view):
            return
        yield RecordBatch(view[:size_bytes])
        view = view[size_bytes:]


def decode_records(
    body: bytes, record_count: int, base_timestamp_ms: int
) -> Iterator[DecodedRecord]:
    """Decode uncompressed records.

    Raises:
        CorruptRecordError: the bytes do not hold exactly this many well-formed records.
    """
    position = 0
    for _ in range(record_count):
        try:
            record, position = _decode_record(body, position, base_timestamp_ms)
        # All that the decoders meet in malformed bytes. A name that is not UTF-8 is a ValueError,
        # too.
        except (IndexError, ValueError) as error:
            raise CorruptRecordError(f"a malformed record at byte {position}: {error}") from error
        yield record
    # Otherwise a record count that is too low would hide records.
    if position != len(body):
        raise CorruptRecordError(
            f"{len(body) - position} bytes are left after the {record_count} records of a batch"
        )


def _check_batch(header: BatchHeader, data: memoryview) -> None:
    # The length first: with a wrong one the CRC would cover other bytes, and be the wrong
    # complaint.
    if header.size_bytes != len(data):
        raise CorruptRecordError(f"a batch of {header.size_bytes} bytes in {len(data)} bytes")
    computed_crc = crc32c(data[ATTRIBUTES_OFFSET:])
    if computed_crc != header.crc:
        raise CorruptRecordError(
            f"the batch's CRC is {header.crc:#010x}, its bytes have {computed_crc:#010x}"
        )
    # There may be fewer records than offsets: the log cleaner removes records, and keeps the last
    # offset.
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        raise CorruptRecordError(
            f"{header.record_count} records with a last offset delta of {header.last_offset_delta}"
        )


def _decode_record(
    data: bytes, position: int, base_timestamp_ms: int
) -> tuple[DecodedRecord, int]:
    """Decode the record at a position. Raise IndexError or ValueError if it breaks the format."""
    length, position = decode_varint(data, position)
    end = position + length
    # A slice past the end is only shorter, and would give a wrong record instead of an error.
    if length < 0 or end > len(data):
        raise ValueError(f"a length of {length} with {len(data) - position} bytes left")
    position += 1  # the attributes, which no version uses
    timestamp_delta_ms, position = decode_varint(data, position)
    offset_delta, position = decode_varint(data, position)
    if offset_delta < 0:
        raise ValueError(f"an offset delta of {offset_delta}")
    key, position = _decode_nullable(data, position, end)
    value, position = _decode_nullable(data, position, end)
    headers, position = _decode_headers(data, position, end)
    # Java's reader refuses such a record as well: no version of the format appends fields.
    if position != end:
        raise ValueError(f"its fields end at {position}, its length says {end}")
    timestamp_ms = base_timestamp_ms + timestamp_delta_ms
    return DecodedRecord(offset_delta, timestamp_ms, key, value, headers), position


def _decode_nullable(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = decode_varint(data, position)
    if length == -1:
        return None, position
    after = position + length
    # The record's end, not the data's: a field must not reach into the next record.
    if length < 0 or after > end:
        raise ValueError(f"a field of {length} bytes with {end - position} left in the record")
    return data[position:after], after


def _decode_headers(data: bytes, position: int, end: int) -> tuple[tuple[Header, ...], int]:
    count, position = decode_varint(data, position)
    # Every header takes at least two bytes. A larger count cannot be right, and would loop for
    # long.
    if not 0 <= count <= end - position:
        raise ValueError(f"a count of {count} headers")
    headers: list[Header] = []
    for _ in range(count):
        name, position = _decode_nullable(data, position, end)
        if name is None:
            raise ValueError("a header without a name")
        value, position = _decode_nullable(data, position, end)
        headers.append((name.decode(), value))
    return tuple(headers), position
