"""The bytes of a v2 record batch: building, reading, compressing.

Owns: the choice of the implementation. `TXNPRODUCER_IMPL=python` or `cython` decides it; unset,
the pure Python one is taken. Must not know: anything above a batch (partitions, transactions,
brokers).

`RecordBatchBuilder` is the whole boundary between the implementations; the reader is always
Python.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

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

_MODULES: Final = {
    "python": "txnproducer._record.batch_builder",
    "cython": "txnproducer._record._speedups",
}


def implementation_name(wanted: str | None) -> str:
    """Return the implementation that `TXNPRODUCER_IMPL` asks for; python if it is not set.

    Raises:
        ImportError: a name that is not an implementation.
    """
    name = (wanted or "python").strip().lower()
    if name not in _MODULES:
        raise ImportError(
            f"TXNPRODUCER_IMPL must be python or cython, not {wanted!r}; unset it for python"
        )
    return name


def load_builder(name: str) -> Any:
    """Return the class `RecordBatchBuilder` of an implementation.

    Raises:
        ImportError: it is not part of this installation.
    """
    try:
        return import_module(_MODULES[name]).RecordBatchBuilder
    except ImportError as error:
        raise ImportError(
            f"TXNPRODUCER_IMPL={name} asks for what this installation does not have ({error}); "
            "unset it, or set TXNPRODUCER_IMPL=python"
        ) from error


IMPL: Final = implementation_name(os.environ.get("TXNPRODUCER_IMPL"))
"""The implementation in use."""

if TYPE_CHECKING:
    from .batch_builder import RecordBatchBuilder
else:
    RecordBatchBuilder = load_builder(IMPL)
