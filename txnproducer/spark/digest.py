"""The digest of a partition's records: how a replay is recognised.

Owns: digest version 1, a durable format: it is stored in ledgers that outlive this program.
Must not know: Spark, Kafka.

Version 1: each record is hashed by xxh3-128 (seed 0) over topic, partition (int32, -1 for none),
key, value, the number of headers (int32), and the name and value of each; a bytes field is led by
its length (int32, -1 for null), texts are UTF-8, all integers big-endian. The 128-bit hashes are
added modulo 2^128, so that the order of rows does not matter, but their number does (an XOR would
not see a pair of equal rows). Written as 32 lower-case hex digits.

It recognises a replay. It does not prove delivery, and does not withstand an attacker.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

import xxhash

VERSION: Final = 1
_INT32 = struct.Struct(">i").pack
_NULL: Final = _INT32(-1)
_MODULUS: Final = 1 << 128
_NO_PARTITION: Final = -1


def _field(data: bytes | None) -> bytes:
    return _NULL if data is None else _INT32(len(data)) + data


class Digest:
    """Adds up the records of one partition.

    Attributes:
        count: how many records.
        size_bytes: bytes of their keys and values.
    """

    __slots__ = ("_sum", "count", "size_bytes")

    def __init__(self) -> None:
        self._sum = 0
        self.count = 0
        self.size_bytes = 0

    def add(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        """Add a record."""
        parts = [
            _field(topic.encode()),
            _INT32(_NO_PARTITION if partition is None else partition),
            _field(key),
            _field(value),
            _INT32(len(headers)),
        ]
        for name, data in headers:
            parts += _field(name.encode()), _field(data)
        self._sum = (self._sum + xxhash.xxh3_128_intdigest(b"".join(parts))) % _MODULUS
        self.count += 1
        self.size_bytes += len(key or b"") + len(value or b"")

    def hex(self) -> str:
        """Return the digest as it is stored."""
        return f"{self._sum:032x}"


def total(digests: Iterable[str]) -> str:
    """Return the digest of all the records that some digests are of."""
    return f"{sum(int(digest, 16) for digest in digests) % _MODULUS:032x}"
