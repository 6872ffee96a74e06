"""The layout of a v2 record batch, and the sizes of records.

Owns: the header struct with its offsets, the attribute masks, the limits, the variable-length
integers, the size arithmetic, the sequence arithmetic. Must not know: codecs, the building and
reading of batches, policy.

Layout (KIP-98; all integers big-endian, 61 bytes before the records):

    offset  size  field
         0     8  base offset               outside the CRC: the broker assigns it
         8     4  length                    of everything after this field
        12     4  partition leader epoch    outside the CRC, likewise; -1 from a client
        16     1  magic                     2
        17     4  CRC-32C                   of everything after this field
        21     2  attributes                bits 0-2 codec, 3 timestamp type, 4 transactional,
                                            5 control, 6 base timestamp is the delete horizon
        23     4  last offset delta         doubles as the delta to the last sequence number
        27     8  base timestamp            of the first record; the others are deltas to it
        35     8  max timestamp
        43     8  producer id
        51     2  producer epoch
        53     4  base sequence
        57     4  record count
        61        records, compressed as one block if a codec is set

A record is: length, attributes (one unused byte), timestamp delta, offset delta, key, value,
headers. Each number except the attributes is a zigzag varint, and the length -1 stands for null.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

Header: TypeAlias = tuple[str, bytes | None]

MAGIC_V2: Final = 2
MAX_INT32: Final = 0x7FFF_FFFF
MAX_INT64: Final = 0x7FFF_FFFF_FFFF_FFFF

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1
NO_PARTITION_LEADER_EPOCH: Final = -1

# The header in two parts, because the CRC lies in the first and covers the second.
HEADER_HEAD: Final = struct.Struct(">qiibI")  # base offset, length, leader epoch, magic, CRC
HEADER_TAIL: Final = struct.Struct(">hiqqqhii")  # attributes ... record count
HEADER: Final = struct.Struct(">qiibIhiqqqhii")

LENGTH_OFFSET: Final = 8
LOG_OVERHEAD_BYTES: Final = 12  # base offset and length, which the length field does not count
MAGIC_OFFSET: Final = 16
CRC_OFFSET: Final = 17
ATTRIBUTES_OFFSET: Final = HEADER_HEAD.size
BATCH_OVERHEAD_BYTES: Final = HEADER.size

COMPRESSION_MASK: Final = 0x07
TIMESTAMP_TYPE_MASK: Final = 0x08
TRANSACTIONAL_MASK: Final = 0x10
CONTROL_MASK: Final = 0x20
DELETE_HORIZON_MASK: Final = 0x40

# 5 bytes length, 10 timestamp delta, 5 offset delta, 1 attributes.
MAX_RECORD_OVERHEAD_BYTES: Final = 21


def encode_varint(value: int) -> bytes:
    """Encode a signed 64-bit integer as a zigzag varint of 1 to 10 bytes."""
    zigzag = (value << 1) ^ (value >> 63)
    # Nearly all numbers of a record have one to three bytes. A loop takes several times as long.
    if zigzag < 0x80:
        return bytes((zigzag,))
    if zigzag < 0x4000:
        return bytes((zigzag & 0x7F | 0x80, zigzag >> 7))
    if zigzag < 0x20_0000:
        return bytes((zigzag & 0x7F | 0x80, zigzag >> 7 & 0x7F | 0x80, zigzag >> 14))
    encoded = bytearray()
    while zigzag > 0x7F:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)


# Larger values take more, as do those below -64.
ONE_BYTE_VARINT_COUNT: Final = 64


def size_of_varint(value: int) -> int:
    """Return the number of bytes in the encoded form of a value."""
    if 0 <= value < ONE_BYTE_VARINT_COUNT:
        return 1
    zigzag = (value << 1) ^ (value >> 63)
    # 0 has no bit, and takes one byte nevertheless.
    return (zigzag.bit_length() + 6) // 7 or 1


def decode_varint(data: bytes, position: int) -> tuple[int, int]:
    """Decode the zigzag varint that starts at a position.

    Returns:
        The value and the position after it.

    Raises:
        IndexError: the data ends inside the varint.
        ValueError: the varint does not fit 64 bits.
    """
    byte = data[position]
    position += 1
    zigzag = byte & 0x7F
    shift = 7
    while byte & 0x80:
        byte = data[position]
        position += 1
        zigzag |= (byte & 0x7F) << shift
        shift += 7
        # Bounded, or corrupt bytes could make a number of any size.
        if shift > 70:
            raise ValueError("a varint of more than 10 bytes")
    # Of the tenth byte only one bit belongs to the 64.
    if zigzag >> 64:
        raise ValueError("a varint of more than 64 bits")
    return (zigzag >> 1) ^ -(zigzag & 1), position


# The lengths and offset deltas of ordinary records are looked up, not encoded. The table has as
# many entries as a batch of 1 MiB has records of 64 bytes; it costs 10 ms of the import and 1.4
# MB.
SMALL_VARINT_COUNT: Final = 16384
SMALL_VARINTS: Final = tuple(encode_varint(value) for value in range(SMALL_VARINT_COUNT))


def varint(value: int) -> bytes:
    """Return the zigzag varint of a value, from the table if it is small and not negative."""
    if 0 <= value < SMALL_VARINT_COUNT:
        return SMALL_VARINTS[value]
    return encode_varint(value)


def _size_of_payload(key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> int:
    """Return the bytes of a record from its key's length on."""
    # In one function: each batch's first record is measured three times. Null takes one byte.
    size = 1 if key is None else size_of_varint(len(key)) + len(key)
    size += 1 if value is None else size_of_varint(len(value)) + len(value)
    size += size_of_varint(len(headers)) if headers else 1
    for header_key, header_value in headers:
        encoded_key = header_key.encode()
        size += size_of_varint(len(encoded_key)) + len(encoded_key)
        size += (
            1 if header_value is None else size_of_varint(len(header_value)) + len(header_value)
        )
    return size


def size_in_bytes(
    offset_delta: int,
    timestamp_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[Header] = (),
) -> int:
    """Return the exact uncompressed size of a record at its place in a batch, in bytes."""
    body = 1 + size_of_varint(offset_delta) + size_of_varint(timestamp_delta)
    body += _size_of_payload(key, value, headers)
    return body + size_of_varint(body)


def record_size_upper_bound(
    key: bytes | None, value: bytes | None, headers: Sequence[Header] = ()
) -> int:
    """Return the largest uncompressed size of a record, at any place in a batch."""
    return MAX_RECORD_OVERHEAD_BYTES + _size_of_payload(key, value, headers)


def batch_size_upper_bound(
    key: bytes | None, value: bytes | None, headers: Sequence[Header] = ()
) -> int:
    """Return the largest uncompressed size of a batch with only this record."""
    payload_bytes = _size_of_payload(key, value, headers)
    return BATCH_OVERHEAD_BYTES + MAX_RECORD_OVERHEAD_BYTES + payload_bytes


def increment_sequence(sequence: int, increment: int) -> int:
    """Add to a sequence number. 0 follows 2^31-1."""
    return (sequence + increment) & MAX_INT32
