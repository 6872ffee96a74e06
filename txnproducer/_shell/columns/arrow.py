"""Columns of Arrow's: whose they are, how others become them, how their chunks are walked.

Owns: the look at what can be made Arrow's without a copy; joining chunks of few rows, and cutting
chunked columns into blocks. Must not know: what a column is for.
Rules:
* Chunks are walked once, from the first to the last: there may be as many as there are rows.
* Only chunks of few rows are copied, to be joined: each block costs what hundreds of rows do.
* pyarrow is imported only for a caller who has something of Arrow's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, Final

__all__ = ["as_arrow", "as_table", "chunk_ends", "is_arrow", "join_small_chunks", "pieces"]

# What is not worth a copy, what makes a chunk small, and how far small ones are joined.
_FEW_CHUNKS: Final = 10
_FEW_ROWS: Final = 1_000
_FEW_BYTES: Final = 64 << 10
_ENOUGH_ROWS: Final = 10_000
_ENOUGH_BYTES: Final = 1 << 20


def is_arrow(column: Any) -> bool:
    """Return whether a column is pyarrow's."""
    return "pyarrow" in sys.modules and type(column).__module__.startswith("pyarrow")


def as_arrow(name: str, column: Any) -> Any:
    """Return a column as pyarrow's, if it is one of Arrow's in another library; else as it is.

    Raises:
        TypeError: it is, and there is no pyarrow.
    """
    if isinstance(column, list | tuple) or is_arrow(column):
        return column
    is_pandas = type(column).__module__.partition(".")[0] == "pandas"
    if is_pandas and not hasattr(getattr(column, "dtype", None), "pyarrow_dtype"):
        return column  # also if it can be exported: what would become of objects is a guess
    if is_pandas or hasattr(column, "__arrow_c_array__"):
        return _pyarrow(name).array(column)
    if hasattr(column, "__arrow_c_stream__"):
        return _pyarrow(name).chunked_array(column)
    return column


def as_table(data: Any) -> Any:
    """Return a table as pyarrow's, if it is one of Arrow's in another library; else as it is.

    Raises:
        TypeError: it is, and there is no pyarrow.
    """
    if is_arrow(data):
        return data
    if hasattr(data, "__arrow_c_array__"):
        return _pyarrow("the table").record_batch(data)
    return _pyarrow("the table").table(data) if hasattr(data, "__arrow_c_stream__") else data


def _pyarrow(name: str) -> Any:
    try:
        import pyarrow as pa
    except ImportError:
        raise TypeError(f"{name} can be read by pyarrow alone: pip install pyarrow") from None
    return pa


def join_small_chunks(column: Any) -> Any:
    """Return an Arrow column; of many chunks, with neighbours joined that are small."""
    chunks = getattr(column, "chunks", ())
    if len(chunks) <= _FEW_CHUNKS:
        return column
    import pyarrow as pa

    joined: list[Any] = []
    for group in _groups(chunks):
        try:
            joined += group if len(group) == 1 else [pa.concat_arrays(group)]
        except pa.ArrowException:  # dictionaries that cannot be made one
            joined += group
    return pa.chunked_array(joined, column.type)


def _groups(chunks: Iterable[Any]) -> Iterator[list[Any]]:
    """Return chunks, with neighbours together that are small."""
    group: list[Any] = []
    rows = size_bytes = 0
    for chunk in chunks:
        chunk_bytes = _size_bytes(chunk)
        is_small = len(chunk) < _FEW_ROWS and chunk_bytes < _FEW_BYTES
        if group and not (is_small and rows < _ENOUGH_ROWS and size_bytes < _ENOUGH_BYTES):
            yield group
            group, rows, size_bytes = [], 0, 0
        group.append(chunk)
        rows += len(chunk) if is_small else _ENOUGH_ROWS
        size_bytes += chunk_bytes
    yield group


def _size_bytes(chunk: Any) -> int:
    """Return what copying a chunk copies; of dictionaries that are one, the indices alone."""
    return int(getattr(chunk, "indices", chunk).nbytes)


def chunk_ends(column: Any) -> Iterable[int]:
    """Return the rows before which a column's chunks end; none for a column without."""
    return accumulate(map(len, getattr(column, "chunks", ())))


def pieces(column: Any, spans: Iterable[tuple[int, int]]) -> Iterator[Any]:
    """Return parts of an Arrow column, one behind the other; none has the border of chunks in it.

    Args:
        column: an array, or a chunked one.
        spans: where each part starts and stops.
    """
    chunks = iter(getattr(column, "chunks", (column,)))
    chunk: Any = None
    begin = end = 0
    for start, stop in spans:
        while start >= end:
            chunk = next(chunks)
            begin, end = end, end + len(chunk)
        yield chunk.slice(start - begin, stop - start)
