"""Columns of headers, for each row of a call as `send` takes them.

Owns: the conversion of lists, and of Arrow's lists of structs and maps, and their refusals.
Must not know: rows, keys and values.
Rules:
* Every refusal names the row and the header, and the way out.
* Well-formed headers are recognised quickly, by the row or by the column. All others are checked
  as `send` checks them, with the same result.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, TypeAlias

from txnproducer._record.format import Header
from txnproducer._shell.arguments import check_headers

__all__ = ["HeaderColumn", "arrow_headers", "listed_headers"]

HeaderColumn: TypeAlias = "tuple[tuple[Header, ...] | None, ...]"


def listed_headers(column: Iterable[Any]) -> HeaderColumn:
    """Return the headers of each row, None for a row without any.

    Raises:
        TypeError, ValueError: as for `send`; the error names the row.
    """
    checked: list[tuple[Header, ...] | None] = []
    for index, row in enumerate(column):
        try:
            checked.append(_of_row(row) if row else None)
        except (TypeError, ValueError) as error:
            raise type(error)(f"headers of row {index}: {error}") from None
    return tuple(checked)


def arrow_headers(column: Any) -> HeaderColumn:
    """Return each row's headers, from an Arrow array of maps or struct lists.

    Raises:
        TypeError, ValueError: as for `send`; the error names the row.
    """
    rows: list[tuple[Header, ...] | None] = []
    for chunk in getattr(column, "chunks", (column,)):
        found = _fast_rows(chunk)
        if found is None:
            # All rows again, from the first one, so that a refusal names the right row.
            return listed_headers([_as_pairs(row) for row in column.to_pylist()])
        rows += found
    return tuple(rows)


def _of_row(row: Any) -> tuple[Header, ...]:
    if type(row) is not list and type(row) is not tuple:
        return check_headers(row)
    for header in row:
        if type(header) is not tuple or len(header) != 2:
            return check_headers(row)
        name, value = header
        if type(name) is not str or not (value is None or type(value) is bytes):
            return check_headers(row)
        # Other names may have half a surrogate pair, which has no bytes.
        if not name.isascii():
            return check_headers(row)
    return tuple(row)


def _fast_rows(chunk: Any) -> list[tuple[Header, ...] | None] | None:
    """Return the headers of each row of a chunk, or None if they need a closer look."""
    import pyarrow as pa

    kinds = pa.types
    is_list = kinds.is_list(chunk.type) or kinds.is_large_list(chunk.type)
    if not is_list and not kinds.is_map(chunk.type):
        return None
    places = chunk.offsets.to_pylist()
    # A slice may be a small part of its parent: take only the pairs of its own rows.
    pairs = chunk.values.slice(places[0], places[-1] - places[0])
    # Buffers of other shapes can't be read in pairs; the slow way refuses them with the row's
    # number.
    if not kinds.is_struct(pairs.type) or pairs.type.num_fields != 2 or pairs.null_count:
        return None
    names, values = pairs.flatten()
    is_text = kinds.is_string(names.type) or kinds.is_large_string(names.type)
    is_bytes = kinds.is_binary(values.type) or kinds.is_large_binary(values.type)
    if not is_text or not is_bytes or names.null_count:
        return None
    headers = list(zip(names.to_pylist(), values.to_pylist(), strict=True))
    first = places[0]
    rows: list[tuple[Header, ...] | None] = [
        tuple(headers[start - first : stop - first]) or None for start, stop in pairwise(places)
    ]
    # A null row may still span items of the buffer, which are no headers of its own.
    if chunk.null_count:
        are_null = chunk.is_null().to_pylist()
        rows = [None if is_null else row for row, is_null in zip(rows, are_null, strict=True)]
    return rows


def _as_pairs(row: Any) -> Any:
    """Return a list of structs as pairs. The items of a map are pairs already."""
    if row and isinstance(row[0], dict):
        return [tuple(header.values()) if header else header for header in row]
    return row
