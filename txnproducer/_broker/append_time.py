"""Rewriting of a batch for a topic with `message.timestamp.type=LogAppendTime`.

Owns: `stamped`. Must not know: logs, topics.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from txnproducer._record import RecordBatch

_CRC: Final = struct.Struct(">I")
_ATTRIBUTES: Final = struct.Struct(">h")
_TIMESTAMP: Final = struct.Struct(">q")
_CRC_AT: Final = 17
_ATTRIBUTES_AT: Final = 21  # the CRC covers the bytes from here on
_MAX_TIMESTAMP_AT: Final = 35
_LOG_APPEND_TIME: Final = 0x08


def stamped(batch: RecordBatch, now_ms: int) -> RecordBatch:
    """Return the batch with the broker's time as the timestamp of each record."""
    data = bytearray(bytes(batch))
    # With this bit set, readers take the maximum timestamp of the header for every record, so the
    # records themselves stay as the client compressed them.
    _ATTRIBUTES.pack_into(data, _ATTRIBUTES_AT, batch.header.attributes | _LOG_APPEND_TIME)
    _TIMESTAMP.pack_into(data, _MAX_TIMESTAMP_AT, now_ms)
    # Last: the checksum covers the two fields changed above.
    _CRC.pack_into(data, _CRC_AT, crc32c(data[_ATTRIBUTES_AT:]))
    return RecordBatch(bytes(data))
