"""The bytes of a v2 record batch: building, reading, compressing.

Must not know: anything above a batch (partitions, transactions, brokers).

`RecordBuffer` is the whole boundary between the implementations (`implementation` chooses one);
header, codecs and the reader are always Python.
"""

from __future__ import annotations

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
from .implementation import IMPL

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
