"""The batches of a log, with the newest record of each key decoded when it is asked for.

Why it exists: a ledger's topic may hold a million records, and only the newest of each key count.
Finding the keys takes an eighth of the time that an object for each record does.
Owns: the walk over the bytes of a fetched answer. Must not know: how they were fetched, which
transactions are committed.

Rules:
* The CRC of each batch is checked, since the walk trusts the lengths in it.
* A record that is asked for is decoded by `_record`, with all of its checks.
* A batch copies its records out of the answer, so that one record does not keep all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from crc32c import crc32c

from txnproducer._record.batch_reader import decode_records
from txnproducer._record.compression import decompress
from txnproducer._record.control_records import EndTransactionType, control_record_type
from txnproducer._record.format import (
    ATTRIBUTES_OFFSET,
    BATCH_OVERHEAD_BYTES,
    COMPRESSION_MASK,
    CONTROL_MASK,
    HEADER,
    LENGTH_OFFSET,
    LOG_OVERHEAD_BYTES,
    MAGIC_OFFSET,
    MAGIC_V2,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    decode_varint,
)
from txnproducer.errors import (
    CorruptRecordError,
    InvalidConfigurationError,
    KafkaError,
    UnsupportedCompressionTypeError,
)

_MOST_OF_ONE_BYTE: Final = 0x7F
# The same bytes give the same error, however often they are read. The last one stands for a
# codec's library that is not installed.
UNREADABLE: Final = (
    CorruptRecordError,
    UnsupportedCompressionTypeError,
    InvalidConfigurationError,
)


@dataclass(frozen=True)
class LogRecord:
    """A record of the log.

    Attributes:
        offset: of the record.
        timestamp_ms: of the record, since the epoch.
        key, value: as stored.
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


class LogBatch(NamedTuple):
    """A batch of records, or the marker at the end of a transaction.

    Attributes:
        next_offset: the offset after the batch.
        producer_id: of the producer that wrote it.
        is_transactional: whether a marker decides about its records.
        is_commit: of a marker: whether it is one of a commit; None for a batch of records.
        first_offset: where the batch begins; compaction may have removed its first records.
        at_ms: the largest time of its records. A marker's time is by the broker's clock.
        newest: the last record of each key. Empty for a marker, and if compaction has removed all
            records.
    """

    next_offset: int
    producer_id: int
    is_transactional: bool
    is_commit: bool | None
    first_offset: int
    at_ms: int
    newest: Mapping[bytes | None, LogRecord]


class _Newest(Mapping[bytes | None, LogRecord]):
    """The last record of each key of a batch, each decoded when it is asked for."""

    __slots__ = ("_append_ms", "_base_ms", "_base_offset", "_body", "_log", "_places")

    def __init__(
        self,
        log: str,
        body: bytes,
        places: dict[bytes | None, int],
        base_offset: int,
        base_ms: int,
        append_ms: int | None,
    ) -> None:
        self._log = log
        self._body = body
        self._places = places
        self._base_offset = base_offset
        self._base_ms = base_ms
        # Of a topic whose broker sets the times: all records of the batch have this one.
        self._append_ms = append_ms

    def __getitem__(self, key: bytes | None) -> LogRecord:
        start = self._places[key]
        size, content = decode_varint(self._body, start)
        try:
            (found,) = decode_records(self._body[start : content + size], 1, self._base_ms)
        except CorruptRecordError as error:
            # Which one is not known: the record would say it itself.
            raise _at(error, self._log, self._base_offset) from error
        at_ms = found.timestamp_ms if self._append_ms is None else self._append_ms
        return LogRecord(self._base_offset + found.offset_delta, at_ms, found.key, found.value)

    def __iter__(self) -> Iterator[bytes | None]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: object) -> bool:
        return key in self._places


def read_batches(data: bytes, log: str) -> Iterator[LogBatch]:
    """Read consecutive batches, as they are in the answer to a fetch.

    A batch that is cut off at the end is left out: brokers cut at the fetch size.

    Args:
        data: the batches.
        log: the name of the partition, for errors; they have the offset as well.

    Raises:
        CorruptRecordError: a batch is not valid.
        UnsupportedCompressionTypeError: this version does not know its codec.
        InvalidConfigurationError: the library of its codec is not installed.
    """
    view = memoryview(data)
    start = 0
    # A message of an older format can be shorter than this header, see below.
    while start + BATCH_OVERHEAD_BYTES <= len(data):
        # A tuple, since many batches hold one record, and an object for a header takes as long as
        # all that is done with it.
        (base_offset, length, _, magic, crc, attributes, last_delta, *rest) = HEADER.unpack_from(
            data, start
        )
        base_ms, max_ms, producer_id, _, _, count = rest
        body_at, end = start + BATCH_OVERHEAD_BYTES, start + LOG_OVERHEAD_BYTES + length
        if magic != MAGIC_V2:
            raise _other_format(data, start, log)
        if end < body_at:
            broken = CorruptRecordError(f"a batch of {length} bytes, shorter than its header")
            raise _at(broken, log, base_offset)
        if end > len(data):
            return
        if crc32c(view[start + ATTRIBUTES_OFFSET : end]) != crc:
            broken = CorruptRecordError(f"the CRC of the batch is not {crc:#010x}")
            raise _at(broken, log, base_offset)
        codec_id = attributes & COMPRESSION_MASK
        packed = view[body_at:end]
        try:
            body = decompress(codec_id, packed) if codec_id else bytes(packed)
            places = _places_of_newest(body, count)
        except UNREADABLE as error:
            raise _at(error, log, base_offset) from error
        is_marker = bool(attributes & CONTROL_MASK)
        append_ms = max_ms if attributes & TIMESTAMP_TYPE_MASK else None
        yield LogBatch(
            base_offset + last_delta + 1,
            producer_id,
            bool(attributes & TRANSACTIONAL_MASK),
            any(map(_is_commit, places)) if is_marker else None,
            base_offset,
            max_ms,
            {} if is_marker else _Newest(log, body, places, base_offset, base_ms, append_ms),
        )
        start = end
    # All formats have the magic at the same place, so a batch that is cut off has it as well.
    if len(data) - start > MAGIC_OFFSET and data[start + MAGIC_OFFSET] != MAGIC_V2:
        raise _other_format(data, start, log)


def _other_format(data: bytes, start: int, log: str) -> KafkaError:
    # So do they the offset, in the first eight bytes.
    offset = int.from_bytes(data[start : start + LENGTH_OFFSET], "big", signed=True)
    other = CorruptRecordError(
        f"a message of format v{data[start + MAGIC_OFFSET]} (its magic byte); only v{MAGIC_V2} is"
        " read, which Kafka 0.11 and newer write"
    )
    return _at(other, log, offset)


def _at(error: KafkaError, log: str, offset: int) -> KafkaError:
    """Return an error with the place in its text, for which no repetition is of use."""
    return type(error)(f"{log}, offset {offset}: {error}", recovery="fix")


def _is_commit(key: bytes | None) -> bool:
    return control_record_type(key) == EndTransactionType.COMMIT


def _places_of_newest(body: bytes, count: int) -> dict[bytes | None, int]:
    """Return where in a batch's body the last record of each key begins.

    Raises:
        CorruptRecordError: the bytes are not that many records.
    """
    places: dict[bytes | None, int] = {}
    at = 0
    try:
        for _ in range(count):
            places_at = at
            # The usual sizes are read here: a call for each takes as long as all of the rest.
            first, second = body[at], body[at + 1]
            if first <= _MOST_OF_ONE_BYTE:
                end = at + 1 + (first >> 1)
                at += 1
            elif second <= _MOST_OF_ONE_BYTE:
                end = at + 2 + ((first & _MOST_OF_ONE_BYTE | second << 7) >> 1)
                at += 2
            else:
                size, at = decode_varint(body, at)
                end = at + size
            at += 1  # the attributes
            while body[at] > _MOST_OF_ONE_BYTE:  # of the time
                at += 1
            at += 1
            while body[at] > _MOST_OF_ONE_BYTE:  # of the offset
                at += 1
            at += 1
            first = body[at]
            if first <= _MOST_OF_ONE_BYTE:
                size, at = (first >> 1) ^ -(first & 1), at + 1
            else:
                size, at = decode_varint(body, at)
            places[None if size < 0 else body[at : at + size]] = places_at
            at = end
    except (IndexError, ValueError) as error:
        raise CorruptRecordError(f"a malformed record at byte {at}: {error}") from error
    # A size of another length than the record has would hide records.
    if at != len(body):
        raise CorruptRecordError(f"{count} records take {at} of {len(body)} bytes")
    return places
