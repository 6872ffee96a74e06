"""Spark's hash of an int, by which `repartition(n, column)` chooses a row's partition.

Owns: that hash (MurmurHash3 of 32 bits, seed 42, as Spark's `hash` function gives it), and the
numbers that lead to each partition. Must not know: frames, Kafka (its murmur2 is another hash).
"""

from __future__ import annotations

from typing import Final

# Spark's own seed in `hash` and in `repartition` by a column (Murmur3Hash).
_SEED: Final = 42
_MASK: Final = 0xFFFFFFFF


def spark_hash(number: int) -> int:
    """Return Spark's hash of an int, as Spark does: signed, 32 bits."""
    mixed = _rotated(number * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    found = (_rotated(_SEED ^ mixed, 13) * 5 + 0xE6546B64) & _MASK
    found ^= 4  # bytes of an int
    found = (found ^ found >> 16) * 0x85EBCA6B & _MASK
    found = (found ^ found >> 13) * 0xC2B2AE35 & _MASK
    found ^= found >> 16
    return found - (1 << 32) if found >> 31 else found


def numbers_by_hash(partitions: int) -> tuple[int, ...]:
    """Return, for each partition, the least number that Spark's hash sends to it."""
    numbers: dict[int, int] = {}
    number = 0
    # The hash spreads the numbers evenly, so n partitions need about n * ln(n) of them.
    while len(numbers) < partitions:
        # Python's remainder is never negative, like Spark's `pmod`.
        numbers.setdefault(spark_hash(number) % partitions, number)
        number += 1
    return tuple(numbers[partition] for partition in range(partitions))


def _rotated(bits: int, by: int) -> int:
    return (bits << by | bits >> (32 - by)) & _MASK
