"""Arrow columns: how to recognise them, how to convert other columns, how to walk their chunks.

Owns: the check whether a column can become Arrow's without a copy; joining chunks of few rows, and
cutting chunked columns into blocks. Must not know: the meaning of a column.
Rules:
* Chunks are walked once, from the first to the last: there may be as many as there are rows.
* Only chunks of few rows are copied, to be joined: each block costs as much as hundreds of rows.
* pyarrow is imported only if the caller has passed an Arrow object.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, Final

__all__ = ["as_arrow", "as_table", "chunk_ends", "is_arrow", "join_small_chunks", "pieces"]

# Columns with at most so many chunks are left alone.
_FEW_CHUNKS: Final = 10
# Below both limits a chunk is small, and is joined with its neighbours.
_FEW_ROWS: Final = 1_000
_FEW_BYTES: Final = 64 << 10
# A group of joined chunks ends here: more rows would gain nothing, and copying costs memory.
_ENOUGH_ROWS: Final = 10_000
_ENOUGH_BYTES: Final = 1 << 20


def is_arrow(column: Any) -> bool:
    """Return whether a column is pyarrow's."""
    # Not by an import, which takes long: without a loaded pyarrow there is no column of it.
    return "pyarrow" in sys.modules and type(column).__module__.startswith("pyarrow")


def as_arrow(name: str, column: Any) -> Any:
    """Return a column as pyarrow's if another library exports it as Arrow, or unchanged otherwise.

    Raises:
        TypeError: the column is Arrow's, and pyarrow is not installed.
    """
    if isinstance(column, list | tuple) or is_arrow(column):
        return column
    is_pandas = type(column).__module__.partition(".")[0] == "pandas"
    if is_pandas and not hasattr(getattr(column, "dtype", None), "pyarrow_dtype"):
        return column  # even if it can be exported: how objects would be converted is a guess
    if is_pandas or hasattr(column, "__arrow_c_array__"):
        return _pyarrow(name).array(column)
    if hasattr(column, "__arrow_c_stream__"):
        return _pyarrow(name).chunked_array(column)
    return column


def as_table(data: Any) -> Any:
    """Return a table as pyarrow's if another library exports it as Arrow, or unchanged otherwise.

    Raises:
        TypeError: the table is Arrow's, and pyarrow is not installed.
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
    """Return an Arrow column. If it has many chunks, small neighbours are joined."""
    chunks = getattr(column, "chunks", ())
    # Each chunk becomes a block with calls of its own, which cost nothing for a few of them.
    if len(chunks) <= _FEW_CHUNKS:
        return column
    import pyarrow as pa

    joined: list[Any] = []
    for group in _groups(chunks):
        try:
            joined += group if len(group) == 1 else [pa.concat_arrays(group)]
        except pa.ArrowException:  # dictionaries that cannot be unified
            joined += group
    return pa.chunked_array(joined, column.type)


def _groups(chunks: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield groups of chunks: small neighbours together, each large chunk alone."""
    group: list[Any] = []
    rows = size_bytes = 0
    for chunk in chunks:
        chunk_bytes = _size_bytes(chunk)
        is_small = len(chunk) < _FEW_ROWS and chunk_bytes < _FEW_BYTES
        if group and not (is_small and rows < _ENOUGH_ROWS and size_bytes < _ENOUGH_BYTES):
            yield group
            group, rows, size_bytes = [], 0, 0
        group.append(chunk)
        # A large chunk fills its group: the next chunk begins another one.
        rows += len(chunk) if is_small else _ENOUGH_ROWS
        size_bytes += chunk_bytes
    yield group


def _size_bytes(chunk: Any) -> int:
    """Return the bytes that copying a chunk takes. A dictionary column counts its indices only."""
    return int(getattr(chunk, "indices", chunk).nbytes)


def chunk_ends(column: Any) -> Iterable[int]:
    """Return the row after each chunk's last row, or nothing for a column without chunks."""
    return accumulate(map(len, getattr(column, "chunks", ())))


def pieces(column: Any, spans: Iterable[tuple[int, int]]) -> Iterator[Any]:
    """Yield consecutive parts of an Arrow column, none of which spans two chunks.

    Args:
        column: an array, or a chunked one.
        spans: start and stop of each part.
    """
    chunks = iter(getattr(column, "chunks", (column,)))
    chunk: Any = None
    begin = end = 0
    for start, stop in spans:
        # A loop, since chunks may be empty.
        while start >= end:
            chunk = next(chunks)
            begin, end = end, end + len(chunk)
        yield chunk.slice(start - begin, stop - start)
