"""Columns for tests of `send_batch` and `send_arrow`, and the records that are made of them."""

from __future__ import annotations

import pytest

from tests.built_config import build
from txnproducer._shell.columns.blocks import Columns, column_blocks
from txnproducer._shell.serialization import RecordSerializers

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")
NOW_MS = 1_700_000_000_000
LONG = b"longer than what a view keeps beside its length"
BYTES = [b"one", None, b"", LONG, b"five"]
HEADERS = [[("a", b"1"), ("b", None)], [], None, [("a", b"")], None]
LIST_OF_STRUCTS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
MAP = pa.map_(pa.string(), pa.binary())


def blocks_of(
    values,
    keys=None,
    headers=None,
    partitions=None,
    timestamps_ms=None,
    *,
    value_serializer=None,
    key_serializer=None,
):
    serializers = RecordSerializers.of(
        build(value_serializer=value_serializer, key_serializer=key_serializer)
    )
    given = Columns(values, keys, headers, partitions, timestamps_ms)
    return column_blocks("topic", given, NOW_MS, serializers)


def records_of(blocks):
    """Return the records of all rows."""
    return [block.rows.record(row) for block in blocks for row in range(block.rows.count)]


def values_of(blocks):
    return [record[2] for record in records_of(blocks)]


def partitions_of(blocks):
    return [partition for block in blocks for partition in block.partitions]


def timestamps_of(blocks):
    return [record[0] for record in records_of(blocks)]


def sliced(column):
    """Return an Arrow column as a part of another one that has more before and after it."""
    kind = column.type
    more = column.slice(0, 1)
    whole = pa.concat_arrays([more, more, more, column, more])
    assert whole.type == kind
    return whole.slice(3, len(column))
