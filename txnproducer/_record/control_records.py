"""The records by which a transaction coordinator ends a transaction in a partition's log.

Owns: the key and value of control records. Must not know: who writes them, or when.

A control record's key is a version and a type, both 16 bits. Types 2 and up belong to KRaft. A
reader skips those, and types that it does not know. The value of an end-of-transaction marker is a
version (16 bits) and the coordinator's epoch (32 bits); later versions may append more.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from txnproducer.errors import CorruptRecordError

_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_VERSION: Final = 0


class EndTransactionType(IntEnum):
    """The outcome of a transaction."""

    ABORT = 0
    COMMIT = 1


@dataclass(frozen=True, slots=True)
class EndTransactionMarker:
    """The marker that ends a transaction in one partition."""

    type: EndTransactionType
    coordinator_epoch: int

    def key(self) -> bytes:
        """Encode the key of its control record."""
        return _KEY.pack(_VERSION, self.type)

    def value(self) -> bytes:
        """Encode the value of its control record."""
        return _VALUE.pack(_VERSION, self.coordinator_epoch)


def control_record_type(key: bytes | None) -> int:
    """Return the type of a control record by its key.

    Raises:
        CorruptRecordError: no control record has such a key.
    """
    # At least this long, since later versions may append fields.
    if key is None or len(key) < _KEY.size:
        raise CorruptRecordError(f"the key of a control record has 4 bytes or more, not {key!r}")
    version, record_type = _KEY.unpack_from(key)
    # A higher version is read like the first one, as in Java: it may only append.
    if version < 0:
        raise CorruptRecordError(f"version {version} in the key of a control record")
    return int(record_type)


def decode_marker(key: bytes | None, value: bytes | None) -> EndTransactionMarker | None:
    """Decode a control record as an end-of-transaction marker.

    Returns:
        The marker, or None for a control record of another type.

    Raises:
        CorruptRecordError: the key or the value breaks the format.
    """
    record_type = control_record_type(key)
    # KRaft's own records lie in logs, too, and are no markers.
    if record_type not in (EndTransactionType.ABORT, EndTransactionType.COMMIT):
        return None
    if value is None or len(value) < _VALUE.size:
        raise CorruptRecordError(
            f"the value of an end-of-transaction marker has 6 bytes or more, not {value!r}"
        )
    version, coordinator_epoch = _VALUE.unpack_from(value)
    if version < 0:
        raise CorruptRecordError(f"version {version} in an end-of-transaction marker")
    return EndTransactionMarker(EndTransactionType(record_type), coordinator_epoch)
