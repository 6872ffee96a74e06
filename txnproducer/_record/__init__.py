"""The bytes of a v2 record batch: building, reading, compressing.

Must not know: anything above a batch (partitions, transactions, brokers).

`implementation` chooses between compiled and Python code; codecs and the reader are always Python.
"""

from __future__ import annotations

from .implementation import IMPL, places_of_modules

__path__ = places_of_modules(__path__)

from .batch_builder import RecordBatchBuilder
from .batch_reader import (
    BatchHeader,
    DecodedRecord,
    RecordBatch,
    decode_records,
    read_batches,
    read_header,
)
from .control_records import EndTransactionMarker, EndTransactionType, decode_marker
from .format import batch_size_upper_bound, record_size_upper_bound, size_in_bytes

__all__ = [
    "IMPL",
    "RecordBatchBuilder",
    "BatchHeader",
    "DecodedRecord",
    "RecordBatch",
    "decode_records",
    "read_batches",
    "read_header",
    "EndTransactionMarker",
    "EndTransactionType",
    "decode_marker",
    "batch_size_upper_bound",
    "record_size_upper_bound",
    "size_in_bytes",
]
