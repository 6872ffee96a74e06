"""The hash by which Kafka's clients place keys: the Python twin of `_speedups.murmur2`.

Why it is here and not with the partitioner: it is compiled with the other code for each record.
"""

from __future__ import annotations

from struct import iter_unpack
from typing import Final

# Kafka's own seed: with another one, keys would go to other partitions than Java sends them to.
_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the unsigned 32-bit murmur2 hash of a key."""
    length = len(data)
    h = (_SEED ^ length) & _MASK
    tail = length & ~3
    # Little-endian on every machine, as in Java. Python's numbers do not wrap by themselves, so
    # each product is masked.
    for (k,) in iter_unpack("<I", memoryview(data)[:tail]):
        k = k * _M & _MASK
        h = (h * _M & _MASK) ^ ((k ^ k >> 24) * _M & _MASK)
    # Java adds the last one to three bytes one by one. As one number they give the same.
    if length != tail:
        h = (h ^ int.from_bytes(data[tail:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15
