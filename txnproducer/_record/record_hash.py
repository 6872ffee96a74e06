"""The bytes that represent a record where records are compared, and their hash.

Owns: version 1 of the layout, a durable format: ledgers store hashes of it. Must not know: the
hash function, or the use of a hash.

A field of bytes starts with its length (int32, -1 for null); all integers are big-endian. A record
is its topic, its partition (int32, -1 for none), key, value, the number of headers (int32), and
the name and value of each. The compiled twin is in `_speedups.pyx`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from .format import Header

_INT32: Final = struct.Struct(">i").pack
_NULL: Final = _INT32(-1)


@dataclass(frozen=True, slots=True)
class RecordHash:
    """A hash of 128 bits.

    Attributes:
        of: returns the hash of bytes.
        address: the address of a C function that does the same, with the signature of libxxhash's
            `XXH3_128bits`, or 0. Its library must stay loaded.
    """

    of: Callable[[bytes], int]
    address: int = 0


def laid_out(
    topic: bytes,
    partition: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[Header],
) -> bytes:
    """Return the bytes that represent a record."""
    # With each length and the number of headers, two different records never have the same bytes.
    parts = [_field(topic), _INT32(partition), _field(key), _field(value), _INT32(len(headers))]
    for name, data in headers:
        parts += _field(name.encode()), _field(data)
    return b"".join(parts)


def _field(data: bytes | None) -> bytes:
    return _NULL if data is None else _INT32(len(data)) + data
