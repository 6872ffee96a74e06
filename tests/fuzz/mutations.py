"""Ways to damage an answer, drawn from a seeded source. The correlation id is mostly kept."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import NamedTuple

HEAD_BYTES = 4  # the correlation id
_INT32 = (0, 1, -1, -2, 7, 100_001, 2**31 - 1, -(2**31))
_INT16 = (0, 1, -1, -2, 2**15 - 1)
_BYTES = (0x00, 0x01, 0x02, 0x7F, 0x80, 0xFF)
_VARINTS = (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\x80\x00", b"\x80\x80\x80\x80\x80")
_ENDLESS = (6, 40, 2000, 200_000)


class Damaged(NamedTuple):
    """An answer after its damage.

    Attributes:
        payload: its bytes.
        kinds: the names of what was done to it, in order.
        is_surely_bad: whether no reader may accept it, wherever it was hit.
    """

    payload: bytes
    kinds: tuple[str, ...]
    is_surely_bad: bool


def damage(rng: random.Random, payload: bytes, other: bytes) -> Damaged:
    """Damage an answer in one to three ways. `other` is an answer of any API."""
    kinds = rng.choices(_NAMES, _WEIGHTS, k=rng.choice((1, 1, 1, 2, 3)))
    damaged = payload
    for kind in kinds:
        damaged = _KINDS[kind][0](rng, damaged, other)
    is_surely_bad = kinds in (["truncate"], ["pad"]) and damaged != payload
    return Damaged(damaged, tuple(kinds), is_surely_bad)


def _at(rng: random.Random, data: bytes) -> int:
    return rng.randint(min(HEAD_BYTES, len(data)), len(data))


def _put(data: bytes, at: int, new: bytes, instead_of: int) -> bytes:
    return data[:at] + new + data[at + instead_of :]


def _flip(rng: random.Random, data: bytes, _: bytes) -> bytes:
    flipped = bytearray(data)
    for _bit in range(rng.choice((1, 1, 2, 8))):
        if len(data) > HEAD_BYTES:
            flipped[rng.randrange(HEAD_BYTES, len(data))] ^= 1 << rng.randrange(8)
    return bytes(flipped)


def _truncate(rng: random.Random, data: bytes, _: bytes) -> bytes:
    return data[: _at(rng, data)]


def _pad(rng: random.Random, data: bytes, _: bytes) -> bytes:
    return data + rng.choice((b"\0", b"\xff", bytes(100), rng.randbytes(20)))


def _int32(rng: random.Random, data: bytes, _: bytes) -> bytes:
    return _put(data, _at(rng, data), struct.pack(">i", rng.choice(_INT32)), 4)


def _int16(rng: random.Random, data: bytes, _: bytes) -> bytes:
    return _put(data, _at(rng, data), struct.pack(">h", rng.choice(_INT16)), 2)


def _byte(rng: random.Random, data: bytes, _: bytes) -> bytes:
    return _put(data, _at(rng, data), bytes((rng.choice(_BYTES),)), 1)


def _varint(rng: random.Random, data: bytes, _: bytes) -> bytes:
    return _put(data, _at(rng, data), rng.choice(_VARINTS), 1)


def _endless_varint(rng: random.Random, data: bytes, _: bytes) -> bytes:
    (size,) = rng.choices(_ENDLESS, (40, 40, 19, 1))
    return _put(data, _at(rng, data), b"\xff" * size, 1)


def _remove(rng: random.Random, data: bytes, _: bytes) -> bytes:
    return _put(data, _at(rng, data), b"", rng.choice((1, 2, 4, 8, 20)))


def _repeat(rng: random.Random, data: bytes, _: bytes) -> bytes:
    at, size = _at(rng, data), rng.choice((1, 4, 6, 18, 30))
    return _put(data, at, data[at : at + size] * rng.choice((2, 2, 50)), size)


def _splice(rng: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: _at(rng, data)] + other[_at(rng, other) :]


def _other(_: random.Random, data: bytes, other: bytes) -> bytes:
    return data[:HEAD_BYTES] + other[HEAD_BYTES:]


def _number(rng: random.Random, data: bytes, _: bytes) -> bytes:
    return rng.randbytes(HEAD_BYTES) + data[HEAD_BYTES:]


_KINDS: dict[str, tuple[Callable[[random.Random, bytes, bytes], bytes], int]] = {
    "flip": (_flip, 20),
    "truncate": (_truncate, 8),
    "pad": (_pad, 5),
    "int32": (_int32, 20),
    "int16": (_int16, 10),
    "byte": (_byte, 15),
    "varint": (_varint, 6),
    "endless-varint": (_endless_varint, 3),
    "remove": (_remove, 6),
    "repeat": (_repeat, 8),
    "splice": (_splice, 5),
    "other-answer": (_other, 2),
    "number": (_number, 1),
}
_NAMES = tuple(_KINDS)
_WEIGHTS = tuple(weight for _, weight in _KINDS.values())
