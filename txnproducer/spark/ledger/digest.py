"""Digest of a partition's records, by which a replay is recognised.

Owns: digest version 1, a durable format: it is stored in ledgers that outlive this program.
Must not know: Spark, Kafka, Arrow.

Version 1: each record is hashed by xxh3-128 (seed 0) over topic, partition, key, value and
headers, laid out by version 1 of `record_hash`. The 128-bit hashes are added modulo 2^128. So the
order of rows does not matter, but their number does. (An XOR would not notice two equal rows.) The
sum is written as 32 lower-case hex digits.

The digest recognises a replay. It does not prove delivery, and does not withstand an attacker.
"""

from __future__ import annotations

import ctypes
import logging
from array import array
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Final

import xxhash

from txnproducer._record.implementation import Rows
from txnproducer._record.record_hash import RecordHash, laid_out
from txnproducer._record.rows import NO_PARTITION

_LOG = logging.getLogger(__name__)

VERSION: Final = 1
_MODULUS: Final = 1 << 128
# Longer than 1,024 bytes, the block of XXH3, so that the check below passes from one to the next.
_SAMPLE: Final = bytes(range(256)) * 5


class _XXH128(ctypes.Structure):
    """A hash of 128 bits, as libxxhash returns it by its stable ABI."""

    _fields_ = (("low", ctypes.c_uint64), ("high", ctypes.c_uint64))


def xxh3_128() -> RecordHash:
    """Return the hash function, with its address in C if the package xxhash exports it.

    The package contains libxxhash, or is linked to it, so nothing has to be compiled against that
    library. Its function is used only if it gives the same hashes as the package.
    """
    of = xxhash.xxh3_128_intdigest
    try:
        # The library stays loaded with the package.
        library = ctypes.CDLL(import_module("xxhash._xxhash").__file__)
        function = library.XXH3_128bits
    # Other builds of the package keep the symbol to themselves, and then its Python function is
    # used.
    except (ImportError, OSError, AttributeError) as error:
        _LOG.info("rows are hashed one by one: %s", error)
        return RecordHash(of)
    function.argtypes, function.restype = [ctypes.c_char_p, ctypes.c_size_t], _XXH128
    # XXH3 takes another path for each of these ranges of lengths.
    for size in (0, 3, 8, 16, 128, 240, len(_SAMPLE)):
        sample = _SAMPLE[:size]
        found = function(sample, size)
        if found.high << 64 | found.low != of(sample):
            _LOG.warning("rows are hashed one by one: libxxhash is not the one of %s", xxhash)
            return RecordHash(of)
    return RecordHash(of, ctypes.cast(function, ctypes.c_void_p).value or 0)


# Once for each process, since it loads a library.
_HASH: Final = xxh3_128()


class Digest:
    """The sum of the records of one partition.

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
        # The partition that the row names, not the one it is sent to, which may differ in a
        # replay.
        place = NO_PARTITION if partition is None else partition
        # The topic is hashed as well: the same row for another topic is another record.
        record = laid_out(topic.encode(), place, key, value, headers)
        # A sum, since Spark may give the rows in another order. An XOR would cancel two equal
        # rows.
        self._sum = (self._sum + _HASH.of(record)) % _MODULUS
        self.count += 1
        self.size_bytes += len(key or b"") + len(value or b"")

    def add_rows(self, topic: str, rows: Rows, partitions: array[int] | None = None) -> None:
        """Add rows of one topic, as if one by one.

        Args:
            topic: of all rows.
            rows: the rows.
            partitions: the partition that each row names, or `NO_PARTITION`; None if none does.
        """
        added, size_bytes = rows.hash_sum(topic.encode(), partitions, _HASH)
        self._sum = (self._sum + added) % _MODULUS
        self.count += rows.count
        self.size_bytes += size_bytes

    def hex(self) -> str:
        """Return the digest as it is stored."""
        return f"{self._sum:032x}"


def total(digests: Iterable[str]) -> str:
    """Return the sum of digests, which is the digest of all their records."""
    return f"{sum(int(digest, 16) for digest in digests) % _MODULUS:032x}"
