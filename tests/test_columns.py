"""Columns for `send_batch` and `send_arrow`: the forms taken, the records made, the refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from array import array
from collections import deque
from typing import Any

import pytest

from txnproducer._shell.columns.arrow import pieces
from txnproducer._shell.columns.blocks import _binary_column, arrow_blocks, column_blocks
from txnproducer.errors import RecordTooLargeError, SerializationError

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")
np = pytest.importorskip(
    "numpy", reason="NumPy is not installed (pandas brings it, extra `spark`)"
)
pd = pytest.importorskip("pandas", reason="pandas is not installed (extra `spark`)")

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
    serializers = value_serializer, key_serializer
    return column_blocks(values, keys, headers, partitions, timestamps_ms, NOW_MS, serializers)


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


# --- keys and values


@pytest.mark.parametrize("make", [list, tuple, deque, lambda items: np.array(items, dtype=object)])
def test_sequences_of_bytes_are_taken_with_none_for_null(make):
    [block] = blocks_of(make(BYTES), make(BYTES[::-1]))
    assert block.has_keys
    assert block.partitions is None
    assert records_of([block]) == [
        (NOW_MS, key, value, ()) for value, key in zip(BYTES, BYTES[::-1], strict=True)
    ]


def test_without_keys_there_are_none():
    [block] = blocks_of(BYTES)
    assert not block.has_keys
    assert [record[1] for record in records_of([block])] == [None] * 5


def test_bytes_like_items_become_bytes_and_are_copied():
    item = bytearray(b"before")
    blocks = blocks_of([b"x", item, memoryview(item)])
    item[:] = b"after!"
    assert values_of(blocks) == [b"x", b"before", b"before"]


@pytest.mark.parametrize("kind", ["S3", "V3"])
def test_numpy_arrays_of_bytes_are_taken(kind):
    assert values_of(blocks_of(np.array([b"one", b"two"], dtype=kind))) == [b"one", b"two"]


def test_a_part_of_a_numpy_array_is_taken():
    assert values_of(blocks_of(np.array([b"0", b"1", b"2", b"3"])[1::2])) == [b"1", b"3"]


BINARY = [pa.binary(), pa.large_binary(), pa.binary_view()]
STRING = [pa.string(), pa.large_string(), pa.string_view()]


@pytest.mark.parametrize("shape", [lambda column: column, sliced], ids=["whole", "sliced"])
@pytest.mark.parametrize("kind", [*BINARY, *STRING])
def test_arrow_arrays_are_taken_with_null_for_none(kind, shape):
    items = BYTES if kind in BINARY else [None if b is None else b.decode() for b in BYTES]
    column = shape(pa.array(items, kind))
    assert values_of(blocks_of(column)) == BYTES
    assert [record[1] for record in records_of(blocks_of([b""] * 5, column))] == BYTES


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary()])
def test_arrow_arrays_without_null_are_taken(kind):
    column = pa.array(["one", "", "drei"], kind)
    assert column.buffers()[0] is None
    assert values_of(blocks_of(column)) == [b"one", b"", b"drei"]
    assert values_of(blocks_of(sliced(column))) == [b"one", b"", b"drei"]


def test_a_part_without_null_of_an_arrow_array_that_has_some_is_taken():
    column = pa.array([None, b"one", b"two", None]).slice(1, 2)
    assert values_of(blocks_of(column)) == [b"one", b"two"]


def test_text_is_encoded_as_arrow_does():
    assert values_of(blocks_of(pa.array(["grün", "日本"]))) == ["grün".encode(), "日本".encode()]


@pytest.mark.parametrize("shape", [lambda column: column, sliced], ids=["whole", "sliced"])
@pytest.mark.parametrize("items", [[b"one", None, b"two"], [b"one", b"two", b"six"]])
def test_fixed_sizes_are_taken(shape, items):
    assert values_of(blocks_of(shape(pa.array(items, pa.binary(3))))) == items


@pytest.mark.parametrize("shape", [lambda column: column, sliced], ids=["whole", "sliced"])
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_string(), pa.binary(3)])
def test_dictionaries_are_taken(shape, kind):
    column = pa.array([b"one", b"two", None, b"one"]).cast(pa.binary())
    column = pa.array(column.to_pylist(), kind) if "fixed" in str(kind) else column.cast(kind)
    assert values_of(blocks_of(shape(column.dictionary_encode()))) == [
        b"one",
        b"two",
        None,
        b"one",
    ]


@pytest.mark.parametrize("kind", [pa.binary_view(), pa.string_view()])
def test_dictionaries_of_views_are_taken(kind):
    items = pa.array([LONG.decode(), None, "b"], kind)
    column = pa.DictionaryArray.from_arrays(pa.array([2, 0, None, 1, 0]), items)
    assert values_of(blocks_of(column)) == [b"b", LONG, None, None, LONG]
    assert values_of(blocks_of(column.slice(1, 2))) == [LONG, None]
    assert values_of(blocks_of(pa.chunked_array([column, column.slice(4)]))) == [
        *(b"b", LONG, None, None, LONG),
        LONG,
    ]


@pytest.mark.parametrize("items", [[None, None], ["", ""], [None, ""]])
def test_arrow_arrays_without_data_are_taken(items):
    encoded = [None if item is None else b"" for item in items]
    assert values_of(blocks_of(pa.array(items, pa.string()))) == encoded


def test_arrow_nulls_are_nulls():
    assert values_of(blocks_of(pa.nulls(3))) == [None] * 3
    assert values_of(blocks_of(pa.nulls(2), pa.nulls(2))) == [None] * 2


def test_chunks_with_other_borders_in_each_column_are_cut_at_all_of_them():
    values = pa.chunked_array([["a", "b", "c"], [], ["d"], ["e", None]])
    keys = pa.chunked_array([["1"], ["2", None, "4", "5"], ["6"]], pa.large_string())
    headers = [[("n", b"%d" % n)] for n in range(6)]
    blocks = blocks_of(values, keys, headers, [5, None, 3, 2, 1, 0], list(range(6)))
    assert [block.rows.count for block in blocks] == [1, 2, 1, 1, 1]
    assert records_of(blocks) == [
        (n, key, value, (("n", b"%d" % n),))
        for n, (key, value) in enumerate(
            zip(
                [b"1", b"2", None, b"4", b"5", b"6"],
                [b"a", b"b", b"c", b"d", b"e", None],
                strict=True,
            )
        )
    ]
    assert partitions_of(blocks) == [5, -1, 3, 2, 1, 0]


def test_a_list_beside_chunks_is_cut_like_them():
    keys = pa.chunked_array([[b"1"], [b"2", b"3"]])
    blocks = blocks_of([b"a", b"b", b"c"], keys)
    assert [record[1:3] for record in records_of(blocks)] == [
        (b"1", b"a"),
        (b"2", b"b"),
        (b"3", b"c"),
    ]


def test_a_dictionary_of_few_items_may_stand_for_more_than_2_gib():
    # Laid out, they need wider offsets than the dictionary has.
    (block,) = blocks_of(pa.array(["a", None, "a"]).dictionary_encode())
    assert values_of([block]) == [b"a", None, b"a"]
    column = _binary_column(pa.array(["a", None, "a"]).dictionary_encode())
    assert column is not None
    assert column.offsets.format == "q"


def test_chunks_of_dictionaries_may_differ():
    chunks = [pa.array(part).dictionary_encode() for part in (["a", "b"], ["b", "c"])]
    assert values_of(blocks_of(pa.chunked_array(chunks))) == [b"a", b"b", b"b", b"c"]


@pytest.mark.parametrize(
    "values",
    [
        [],
        (),
        np.array([], dtype="S1"),
        pa.array([], pa.binary()),
        pa.array([], pa.string()).dictionary_encode(),
        pa.chunked_array([], pa.string()),
        pa.chunked_array([[], []], pa.string()),
        pa.array(["a"]).slice(1),
    ],
)
def test_no_rows_are_no_block(values):
    assert blocks_of(values) == []
    assert blocks_of(values, values, [], [], []) == []
    empty = np.array([], dtype="int64")
    assert blocks_of(values, None, None, empty, pa.array([], pa.timestamp("s"))) == []


# --- serializers


def test_serializers_get_every_item_but_none():
    blocks = blocks_of(
        [{"a": 1}, None, []],
        ["x", "y", None],
        value_serializer=lambda item: json.dumps(item).encode(),
        key_serializer=str.encode,
    )
    assert [record[1:3] for record in records_of(blocks)] == [
        (b"x", b'{"a": 1}'),
        (b"y", None),
        (None, b"[]"),
    ]


def test_a_serializer_gets_bytes_too_and_may_make_tombstones():
    blocks = blocks_of([b"a", b""], value_serializer=lambda item: item * 2 or None)
    assert values_of(blocks) == [b"aa", None]


@pytest.mark.parametrize(
    "column", [pa.array(["a", None]), pa.chunked_array([["a"], [None]]), np.array(["a", None])]
)
def test_a_serializer_gets_what_is_in_arrow_and_numpy_columns(column):
    blocks = blocks_of(column, value_serializer=lambda item: item.encode() + b"!")
    assert values_of(blocks) == [b"a!", None]


def test_a_failing_serializer_is_named_with_its_row_and_its_error_kept():
    with pytest.raises(
        SerializationError, match=r"^keys\[1\]: key_serializer failed for a int"
    ) as caught:
        blocks_of([b"a", b"b"], ["x", 1], key_serializer=lambda item: item.encode())
    assert isinstance(caught.value.__cause__, AttributeError)


def test_a_serializer_that_returns_text_is_refused_with_its_row():
    with pytest.raises(SerializationError, match=r"values\[1\]: value_serializer returned a str"):
        blocks_of([None, 1], value_serializer=str)


def test_a_serializer_may_raise_an_error_of_this_package():
    class RefusedError(SerializationError):
        def __init__(self):
            super().__init__("by hand")

    def refuse(item):
        raise RecordTooLargeError("no") if item == 1 else RefusedError

    with pytest.raises(RecordTooLargeError, match=r"^no$"):
        blocks_of([1], value_serializer=refuse)
    with pytest.raises(RefusedError, match=r"values\[0\]: by hand"):
        blocks_of([2], value_serializer=refuse)


# --- headers, partitions, timestamps


@pytest.mark.parametrize(
    "headers",
    [
        HEADERS,
        tuple(HEADERS),
        pa.array(HEADERS, MAP),
        pa.chunked_array([HEADERS[:2], HEADERS[2:]], MAP),
    ],
    ids=lambda column: type(column).__name__,
)
def test_headers_of_a_row_are_what_send_takes_or_none(headers):
    expected = [tuple(row or ()) for row in HEADERS]
    assert [record[3] for record in records_of(blocks_of(BYTES, None, headers))] == expected


def test_headers_of_lists_and_bytes_like_values_become_pairs_of_bytes():
    blocks = blocks_of([b"v"], None, [[["a", bytearray(b"1")]]])
    assert records_of(blocks) == [(NOW_MS, None, b"v", (("a", b"1"),))]


@pytest.mark.parametrize(
    "partitions",
    [
        [0, None, 7],
        (0, None, 7),
        pa.array([0, None, 7]),
        pa.array([0, None, 7], pa.int8()),
        pa.array([0, None, 7], pa.uint64()),
        pa.chunked_array([[0], [], [None, 7]]),
        pa.array([9, 0, None, 7, 9]).slice(1, 3),
        pa.array([9, 0, None, 7, 9]).dictionary_encode().slice(1, 3),
        pa.chunked_array([pa.array(part).dictionary_encode() for part in ([0], [None, 7])]),
        np.ma.array([0, 3, 7], mask=[False, True, False]),
        pd.Series([0, None, 7], dtype="Int64"),
        pd.Series([0, None, 7], dtype="int32[pyarrow]"),
        pd.Series([0, None, 7], dtype=object),
    ],
)
def test_partitions_are_numbers_or_left_to_us(partitions):
    [block] = blocks_of([b"v"] * 3, None, None, partitions)
    assert block.partitions == array("i", [0, -1, 7])
    assert block.partitions.typecode == "i"


@pytest.mark.parametrize("kind", [pa.null(), pa.int8(), pa.dictionary(pa.int8(), pa.null())])
def test_arrow_columns_of_nulls_leave_all_of_it_to_us(kind):
    column = pa.nulls(2, kind)
    [block] = blocks_of([b"v"] * 2, None, None, column, column)
    assert block.partitions == array("i", [-1, -1])
    assert timestamps_of([block]) == [NOW_MS] * 2
    table = pa.table({"value": ["a"], "partition": [None], "timestamp": [None]})
    assert records_of(arrow_blocks(table, NOW_MS)) == [(NOW_MS, None, b"a", ())]


class Numbers:
    """An array of another library."""

    def __array__(self):
        return np.array([0, 1, 2])

    def __len__(self):
        return 3


@pytest.mark.parametrize(
    "column",
    [
        pd.Series([0, 1, 2]),
        pd.Series([0, 1, 2], dtype="uint8"),
        pd.Series([0, 1, 2], dtype="Int64"),
        pd.Index([0, 1, 2]),
        pd.DataFrame({"n": [0, 1, 2], "o": [0, 1, 2]})["n"],
        Numbers(),
    ],
)
def test_numbers_may_be_of_pandas_or_of_what_can_be_an_array(column):
    [block] = blocks_of([b"v"] * 3, None, None, column, column)
    assert block.partitions == array("i", [0, 1, 2])
    assert timestamps_of([block]) == [0, 1, 2]


def test_every_block_tells_the_highest_partition_of_the_call():
    values = pa.chunked_array([[b"0", b"1"], [b"2"]])
    for partitions, highest in (([7, None, 3], 7), ([None] * 3, -1), (None, -1)):
        blocks = blocks_of(values, None, None, partitions)
        assert [block.highest_partition for block in blocks] == [highest] * 2


@pytest.mark.parametrize("kind", ["int8", "uint8", "int32", "int64", "uint64", ">i4"])
def test_partitions_may_be_any_integers_of_numpy(kind):
    [block] = blocks_of([b"v"] * 3, None, None, np.array([0, 9, 1, 9, 2], dtype=kind)[::2])
    assert block.partitions == array("i", [0, 1, 2])


def test_one_timestamp_is_for_all_rows_and_none_is_now():
    assert timestamps_of(blocks_of([b"v"] * 2)) == [NOW_MS] * 2
    assert timestamps_of(blocks_of([b"v"] * 2, timestamps_ms=0)) == [0, 0]


@pytest.mark.parametrize(
    "timestamps",
    [
        [5_000, None, 0],
        pa.array([5_000, None, 0]),
        pa.array([5, None, 0], pa.timestamp("s")),
        pa.array([5_000, None, 0], pa.timestamp("ms")),
        pa.array([5_000_999, None, 0], pa.timestamp("us")),
        pa.array([5_000_999_999, None, 0], pa.timestamp("ns")),
        pa.array([5, None, 0], pa.timestamp("s", "Europe/Berlin")),
        pa.chunked_array([[5], [None, 0]], pa.timestamp("s")),
    ],
)
def test_timestamps_are_milliseconds_or_of_arrow_and_now_where_there_is_none(timestamps):
    assert timestamps_of(blocks_of([b"v"] * 3, timestamps_ms=timestamps)) == [5_000, NOW_MS, 0]


@pytest.mark.parametrize(
    "timestamps",
    [
        np.array([5_000, 0]),
        np.array([5_000, 0], dtype="uint16"),
        np.array([5, 0], dtype="datetime64[s]"),
        np.array([5_000_999, 0], dtype="datetime64[us]"),
        np.array([500, 0], dtype="datetime64[10ms]"),
        np.array([1, 0], dtype="datetime64[5s]"),
        pd.Series(pd.to_datetime([5_000_999_999, 0])),
        pd.Series(pd.to_datetime([5, 0], unit="s", utc=True)).dt.tz_convert("Europe/Berlin"),
        pd.Series(np.array([5, 0], "M8[s]")),
        pd.Series(np.array([5, 0], "M8[s]")).dt.tz_localize("UTC"),
        pd.DatetimeIndex(pd.to_datetime([5, 0], unit="s")),
        pd.Series(pd.to_datetime([5, 0], unit="s")).astype("timestamp[us][pyarrow]"),
        pa.array([5, 0], pa.timestamp("s")).dictionary_encode(),
    ],
)
def test_timestamps_may_be_numpys(timestamps):
    assert timestamps_of(blocks_of([b"v"] * 2, timestamps_ms=timestamps)) == [5_000, 0]


def test_the_last_timestamp_that_a_record_can_have_is_taken():
    last = 2**63 - 2
    assert timestamps_of(blocks_of([b"v"], timestamps_ms=[last])) == [last]
    assert timestamps_of(blocks_of([b"v"], timestamps_ms=last)) == [last]


# --- what is Arrow's in another library


class ExportsArray:
    """A column, or a batch, of another library."""

    def __init__(self, whole):
        self._whole = whole

    def __arrow_c_array__(self, requested_schema=None):
        return self._whole.__arrow_c_array__(requested_schema)


class ExportsStream:
    """A chunked column, or a table, of another library."""

    def __init__(self, whole):
        self._whole = whole

    def __arrow_c_stream__(self, requested_schema=None):
        return self._whole.__arrow_c_stream__(requested_schema)


def test_columns_that_can_be_exported_to_arrow_are_taken_as_arrows():
    values, stamps = pa.array(["a", None]), pa.array([5, None], pa.timestamp("s"))
    headers, partitions = pa.array([HEADERS[0], None], MAP), pa.array([3, None])
    for export, wrapped in ((ExportsArray, pa.array), (ExportsStream, pa.chunked_array)):
        columns = [
            export(column if wrapped is pa.array else wrapped([column]))
            for column in (values, values, headers, partitions, stamps)
        ]
        blocks = blocks_of(*columns)
        assert records_of(blocks) == [
            (5_000, b"a", b"a", (("a", b"1"), ("b", None))),
            (NOW_MS, None, None, ()),
        ]
        assert partitions_of(blocks) == [3, -1]
    with pytest.raises(TypeError, match="values must be binary or string in Arrow, not int64"):
        blocks_of(ExportsArray(pa.array([1])))


def test_tables_that_can_be_exported_to_arrow_are_taken_as_arrows():
    assert_is_whole(arrow_blocks(ExportsStream(whole_table()), NOW_MS))
    [batch] = whole_table().to_batches()
    assert_is_whole(arrow_blocks(ExportsArray(batch), NOW_MS))
    with pytest.raises(TypeError, match="send each of its batches"):
        arrow_blocks(whole_table().to_reader(), NOW_MS)


def test_a_series_of_pandas_that_is_arrows_may_have_nulls():
    series = pd.Series([b"a", None, b"c"], dtype=pd.ArrowDtype(pa.binary()))
    assert values_of(blocks_of(series)) == [b"a", None, b"c"]
    assert values_of(blocks_of(series, value_serializer=lambda item: item + b"!")) == [
        b"a!",
        None,
        b"c!",
    ]
    numbers = pd.Series([1, None], dtype="int64[pyarrow]")
    assert partitions_of(blocks_of([b"v"] * 2, partitions=numbers)) == [1, -1]


def test_numpys_numbers_may_stand_in_a_list():
    partitions, stamps = [np.int32(1), None], [np.int64(5), 6]
    blocks = blocks_of([b"v"] * 2, partitions=partitions, timestamps_ms=stamps)
    assert (partitions_of(blocks), timestamps_of(blocks)) == ([1, -1], [5, 6])
    for refused in (True, np.bool_(1), np.float64(1)):
        with pytest.raises(TypeError, match=r"partitions\[1\] must be an int or None, not "):
            blocks_of([b"v"] * 2, partitions=[1, refused])


# --- chunks


def test_many_small_chunks_are_few_blocks():
    chunk = pa.array([b"a", None, b"", b"b", b"c"])
    values = pa.chunked_array([chunk] * 4_000)
    keys = pa.chunked_array([chunk.slice(0, 2), chunk.slice(1, 3)] * 4_000)
    blocks = blocks_of(values, keys)
    assert len(blocks) <= 6
    assert [record[2] for record in records_of(blocks)] == values.to_pylist()
    assert [record[1] for record in records_of(blocks)] == keys.to_pylist()


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_binary(), pa.binary(1), pa.binary_view(), pa.null()]
)
def test_small_chunks_of_every_kind_are_joined(kind):
    chunk = pa.array([None] if pa.types.is_null(kind) else ["a", None], kind)
    values = pa.chunked_array([chunk] * 100)
    [block] = blocks_of(values)
    expected = [None] * 100 if pa.types.is_null(kind) else [b"a", None] * 100
    assert values_of([block]) == expected


def test_small_chunks_with_dictionaries_are_joined_where_that_is_possible():
    words = [f"word {number}" for number in range(300)]
    alike, apart = (
        [
            pa.DictionaryArray.from_arrays(
                pa.array([number % 100, None], pa.int8()), words[first : first + 100]
            )
            for number, first in enumerate(starts)
        ]
        for starts in ([0] * 50, [0, 100, 200] * 7)
    )
    for chunks, count in ((alike, 1), (apart, 21)):
        blocks = blocks_of(pa.chunked_array(chunks))
        assert len(blocks) == count
        items = [word for chunk in chunks for word in chunk.to_pylist()]
        assert values_of(blocks) == [word and word.encode() for word in items]


def test_large_chunks_lie_as_they_are():
    large, small = pa.array([b"v" * 100_000]), pa.array([b"s"])
    values = pa.chunked_array(
        [large, small, small, large, large, small, large.slice(1), large] * 2
    )
    blocks = blocks_of(values)
    assert [block.rows.count for block in blocks] == [1, 2, 1, 1, 1, 1] * 2
    assert values_of(blocks) == values.to_pylist()


def test_chunks_are_walked_once():
    class Chunks:
        """A chunked column that has no other way to its items."""

        def __init__(self, chunks):
            self.chunks = chunks

    chunks = [pa.array([b"%d" % number] * 3) for number in range(4)]
    spans = [(0, 1), (1, 3), (3, 6), (9, 10), (10, 12)]
    found = list(pieces(Chunks([*chunks, chunks[0].slice(3)]), spans))
    assert [piece.to_pylist() for piece in found] == [
        [b"%d" % (start // 3)] * (stop - start) for start, stop in spans
    ]


# --- tables


def whole_table():
    return pa.table(
        {
            "value": pa.array(BYTES),
            "key": pa.array(["a", None, "c", "d", "e"]),
            "headers": pa.array(
                [
                    None
                    if row is None
                    else [dict(zip(("key", "value"), pair, strict=True)) for pair in row]
                    for row in HEADERS
                ],
                LIST_OF_STRUCTS,
            ),
            "partition": pa.array([2, None, 0, 1, None], pa.int32()),
            "timestamp": pa.array([1, 2, None, 4, 5], pa.timestamp("s", "UTC")),
        }
    )


def assert_is_whole(blocks, rows=slice(None)):
    stamps = [1_000, 2_000, NOW_MS, 4_000, 5_000][rows]
    keys = [b"a", None, b"c", b"d", b"e"][rows]
    headers = [tuple(row or ()) for row in HEADERS[rows]]
    expected = list(zip(stamps, keys, BYTES[rows], headers, strict=True))
    assert records_of(blocks) == expected
    assert partitions_of(blocks) == [2, -1, 0, 1, -1][rows]


def test_a_table_has_its_columns_by_name_in_any_order():
    table = whole_table()
    assert_is_whole(arrow_blocks(table, NOW_MS))
    assert_is_whole(arrow_blocks(table.select(table.column_names[::-1]), NOW_MS))


def test_a_record_batch_is_taken_like_a_table():
    [batch] = whole_table().to_batches()
    assert_is_whole(arrow_blocks(batch, NOW_MS))
    assert_is_whole(arrow_blocks(batch.slice(1, 3), NOW_MS), slice(1, 4))


def test_a_table_of_chunks_and_a_part_of_one_are_taken():
    table = pa.concat_tables([whole_table().slice(0, 2), whole_table().slice(2)])
    assert_is_whole(arrow_blocks(table, NOW_MS))
    assert_is_whole(arrow_blocks(table.slice(1, 3), NOW_MS), slice(1, 4))


def test_a_table_may_have_its_headers_as_maps():
    table = pa.table({"value": BYTES, "headers": pa.array(HEADERS, MAP)})
    assert [record[3] for record in records_of(arrow_blocks(table, NOW_MS))] == [
        tuple(row or ()) for row in HEADERS
    ]


def test_a_table_of_values_alone_is_enough():
    [block] = arrow_blocks(pa.table({"value": ["a", None]}), NOW_MS)
    assert records_of([block]) == [(NOW_MS, None, b"a", ()), (NOW_MS, None, None, ())]
    assert (block.partitions, block.has_keys) == (None, False)


def test_one_partition_may_be_for_all_rows():
    table = pa.table({"value": ["a", "b"]})
    for [block] in (arrow_blocks(table, NOW_MS, 7), blocks_of([b"a", b"b"], partitions=7)):
        assert (block.partition, block.partitions, block.highest_partition) == (7, None, 7)
    with pytest.raises(ValueError, match="leave out the one or drop the other"):
        arrow_blocks(pa.table({"value": ["a"], "partition": [1]}), NOW_MS, 7)
    for partition in (-1, 1 << 20):
        with pytest.raises(ValueError, match=f"there is no partition {partition}"):
            blocks_of([b"a"], partitions=partition)


def test_a_table_without_rows_is_no_block():
    assert arrow_blocks(whole_table().slice(5), NOW_MS) == []
    assert arrow_blocks(whole_table().schema.empty_table(), NOW_MS) == []


# --- refusals


class OtherArray(list[bytes]):
    """An array of a library whose types are not NumPy's."""

    dtype = "bits"


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (b"text", TypeError, "values must be a list.* a row per record, not bytes"),
        ("text", TypeError, "values must be .*, not str"),
        (bytearray(b"x"), TypeError, "values must be .*, not bytearray"),
        ({b"a": 1}, TypeError, "values must be .*, not dict"),
        ({b"a"}, TypeError, "values must be .*, not set"),
        (None, TypeError, "values must be .*, not NoneType"),
        (7, TypeError, "values must be .*, not int"),
        ((b"x" for _ in range(2)), TypeError, "values must be .*, not generator"),
        (pa.scalar(b"x"), TypeError, "values must be .*, not BinaryScalar"),
        (np.array(b"x"), TypeError, "unsized"),
        ([b"a", "b"], TypeError, r"values\[1\]: value must be bytes, not str: .*\.encode\(\)"),
        ([b"a", None, 3], TypeError, r"values\[2\].* not int.*with value_serializer="),
        (np.array(["a"]), TypeError, "values must be a NumPy array .* bytes.* not 1 of <U1"),
        (np.array([1.5]), TypeError, "values must be a NumPy array .*, not 1 of float64"),
        (np.array([[b"a"]]), TypeError, "of one dimension .*, not 2 of .S1"),
        (np.array([b"a", 5], dtype=object), TypeError, r"values\[1\]: .*not int"),
        (pa.array([1]), TypeError, "values must be binary or string in Arrow, not int64: cast"),
        (pa.array([[b"a"]]), TypeError, "values must be .* not list<item: binary>: cast"),
        (pa.array([1]).dictionary_encode(), TypeError, "values must be .* not int64"),
        (pa.chunked_array([[1]]), TypeError, "values must be .* not int64"),
        (pa.table({"value": [b"a"]}), TypeError, "values must be one column.*use send_arrow"),
        (pa.array([], pa.int64()), TypeError, "values must be .* not int64: cast"),
        (pa.chunked_array([], pa.int64()), TypeError, "values must be .* not int64: cast"),
        (np.array([]), TypeError, "values must be a NumPy array .*, not 1 of float64"),
        (pd.Series([1]), TypeError, "values must be a NumPy array .*, not 1 of int64"),
        (OtherArray(), TypeError, "values must be a NumPy array .*, not 1 of bits"),
    ],
)
def test_values_of_another_kind_are_refused_by_name(values, error, message):
    with pytest.raises(error, match=message):
        blocks_of(values)


def test_keys_of_another_kind_are_refused_by_name():
    with pytest.raises(TypeError, match=r"keys\[1\]: key must be bytes.*key\.encode\(\).*key_ser"):
        blocks_of([b"a", b"b"], [None, "b"])
    with pytest.raises(TypeError, match="keys must be a list"):
        blocks_of([b"a"], b"a")
    with pytest.raises(TypeError, match="keys must be binary or string in Arrow, not double"):
        blocks_of([b"a"], pa.array([1.0]))


@pytest.mark.parametrize("name", ["keys", "headers", "partitions", "timestamps_ms"])
@pytest.mark.parametrize("column", [[None], [None] * 3, pa.nulls(3)], ids=["1", "3", "arrow"])
def test_a_column_of_another_length_is_refused_by_name(name, column):
    columns: dict[str, Any] = {name: column}
    with pytest.raises(ValueError, match=f"^{name} has {len(column)} rows, values has 2$"):
        blocks_of([b"a", b"b"], **columns)


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ([None, "text"], "headers of row 1: headers must be a mapping.*not a str"),
        ([None, 7], "headers of row 1: headers must be a mapping"),
        ([None, [("a",)]], r"headers of row 1: headers\[0\] must be a pair"),
        ([{"a": 1}, None], r"headers of row 0: headers\[0\] \('a'\).*bytes, str or None"),
        ([[(b"a", b"1")], None], r"headers of row 0: headers\[0\]: the name must be a str"),
        (pa.array([None, [{"x": "a"}]]), r"headers of row 1: headers\[0\] must be a pair"),
        (
            pa.array([None, [{"k": "a", "v": b"1"}, None]]),
            r"headers of row 1: headers\[1\] must be a pair",
        ),
        (pa.array([None, [{"k": None, "v": b"1"}]]), r"headers of row 1: .* must be a str"),
        (pa.array([None, "text"]), "headers of row 1: .*not a str"),
        (7, "headers must be a list"),
        ("no", "headers must be a list"),
    ],
)
def test_malformed_headers_are_refused_by_row(headers, message):
    with pytest.raises(TypeError, match=message):
        blocks_of([b"a", b"b"], None, headers)


@pytest.mark.parametrize(
    ("partitions", "error", "message"),
    [
        ([0, "1"], TypeError, r"partitions\[1\] must be an int or None, not str"),
        ([0, True], TypeError, r"partitions\[1\] must be an int or None, not bool"),
        ([0, 1.0], TypeError, r"partitions\[1\] must be an int or None, not float"),
        ([0, -1], ValueError, r"partitions\[1\] is not a valid partition: -1"),
        ([0, 2**63], ValueError, r"partitions\[1\] is not a valid partition: 9223372036854775808"),
        ([0, 1 << 20], ValueError, "there is no partition 1048576"),
        ([0, 1 << 40], ValueError, "there is no partition 1099511627776"),
        (np.array([0.0, 1.0]), TypeError, "partitions must be a NumPy array of integers.*float64"),
        (np.array([True, False]), TypeError, "partitions must be a NumPy array .* of bool"),
        (np.array([[0], [1]]), TypeError, "partitions must be a NumPy array of integers"),
        (np.array([0, 1], dtype="datetime64[s]"), TypeError, "partitions must be a NumPy array"),
        (np.array([0, -1]), ValueError, "partitions must not be negative: -1"),
        (
            np.array([0, 2**63], dtype="uint64"),
            ValueError,
            "partitions .* large: 92233720368547758",
        ),
        (np.array([0, 1 << 40]), ValueError, "there is no partition 1099511627776"),
        (pa.array([0, 0.5]), TypeError, "partitions must be integers in Arrow, not double: cast"),
        (pa.array([0, 1], pa.timestamp("s")), TypeError, "partitions must be integers in Arrow"),
        (
            pa.array(["0", "1"]).dictionary_encode(),
            TypeError,
            "partitions must be int.*not string",
        ),
        (pd.Series([0.0, None]), TypeError, "partitions must be .* integers, not of float64"),
        (pd.Series(["0", "1"]), TypeError, r"partitions\[0\] must be an int or None, not str"),
        (pd.Series([0, -1]), ValueError, "partitions must not be negative: -1"),
        (
            pd.Series([0, -1], dtype="Int64"),
            ValueError,
            r"partitions\[1\] is not a valid partition: -1",
        ),
        (pa.array([0, -1]), ValueError, r"partitions must not be negative: -1 \(null lets us"),
        (pa.array([0, 2**63], pa.uint64()), ValueError, "partitions has .*9223372036854775808"),
        (pa.array([0, 1 << 40]), ValueError, "there is no partition 1099511627776"),
        (1.0, TypeError, "partitions must be a list"),
        (True, TypeError, "partitions must be a list"),
    ],
)
def test_partitions_that_there_cannot_be_are_refused(partitions, error, message):
    with pytest.raises(error, match=message):
        blocks_of([b"a", b"b"], None, None, partitions)


@pytest.mark.parametrize(
    ("timestamps", "error", "message"),
    [
        (-1, ValueError, "timestamps_ms must not be negative: -1"),
        (2**63 - 1, ValueError, "milliseconds since the epoch, not 9223372036854775807"),
        (2**70, ValueError, "milliseconds since the epoch"),
        (True, TypeError, "timestamps_ms must be a list.*not bool"),
        (1.5, TypeError, "timestamps_ms must be a list.*not float"),
        (
            [0, -1],
            ValueError,
            r"timestamps_ms\[1\] is not a valid timestamp: -1 \(None lets us choose\)",
        ),
        ([0, 2**63 - 1], ValueError, "milliseconds since the epoch, not 9223372036854775807"),
        ([0, 2**63], ValueError, r"timestamps_ms\[1\] is not a valid timestamp"),
        ([0, 1.5], TypeError, r"timestamps_ms\[1\] must be an int or None, not float"),
        ([0, False], TypeError, r"timestamps_ms\[1\] must be an int or None, not bool"),
        (np.array([0, -1]), ValueError, "timestamps_ms must not be negative: -1"),
        (np.array([0, 2**63 - 1]), ValueError, "milliseconds since the epoch"),
        (np.array([0.5, 1]), TypeError, "timestamps_ms must be a NumPy array of integers"),
        (np.array([0, "NaT"], dtype="datetime64[s]"), ValueError, "timestamps_ms has NaT: fill"),
        (np.array([0, 2**62], dtype="datetime64[s]"), ValueError, "timestamps_ms has .* too many"),
        (np.array([0, 2**60], dtype="datetime64[3h]"), ValueError, "timestamps_ms .* too many"),
        (pd.Series(pd.to_datetime(["2020-01-01", None])), ValueError, "timestamps_ms has NaT"),
        (pd.Series(np.array([0, 2**55], "M8[s]")), ValueError, "timestamps_ms has .* too many"),
        (pd.Series([0.5, 1]), TypeError, "timestamps_ms must be .* integers, not of float64"),
        (
            pa.array([0, 2**62], pa.timestamp("s")),
            ValueError,
            "timestamps_ms has .* out of bounds",
        ),
        (pa.array([0, 2**63], pa.uint64()), ValueError, "timestamps_ms has a number .* too large"),
        (pa.array([0, -1], pa.timestamp("s")), ValueError, "must not be negative: -1000"),
        (pa.array([0, -1], pa.timestamp("ns")), ValueError, "must not be negative: -1 "),
        (pa.array([0, -1001], pa.timestamp("us", "UTC")), ValueError, "must not be negative: -2 "),
        (np.array([0, -1], "M8[ns]"), ValueError, "timestamps_ms must not be negative: -1"),
        (pa.array([0, 2**63 - 1]), ValueError, "milliseconds since the epoch"),
        (pa.array([0, 1], pa.date32()), TypeError, "integers in Arrow, not date32.*: cast"),
    ],
)
def test_timestamps_that_there_cannot_be_are_refused(timestamps, error, message):
    with pytest.raises(error, match=message):
        blocks_of([b"a", b"b"], timestamps_ms=timestamps)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (pa.array([b"a"]), TypeError, "not BinaryArray; use send_batch for a single array"),
        (pa.schema([]), TypeError, "send_arrow takes a pyarrow Table or RecordBatch, not Schema"),
        (
            pa.table({"value": ["a"]}).to_reader(),
            TypeError,
            "send_arrow takes .*, not RecordBatchReader; send each of its batches",
        ),
        ({"value": [b"a"]}, TypeError, "send_arrow takes .*, not dict"),
        (None, TypeError, "send_arrow takes .*, not NoneType"),
        (pa.table({"key": ["a"]}), ValueError, r"has \['key'\]: it needs a column 'value'"),
        (pa.table({}), ValueError, r"has \[\]: it needs a column 'value'"),
        (
            pa.table({"value": ["a"], "ts": [1], "Key": ["k"]}),
            ValueError,
            "has 'Key', 'ts': .*rename or drop the others",
        ),
        (
            pa.table([["a"], ["b"]], names=["value", "value"]),
            ValueError,
            r"has \['value', 'value'\]: .* one each",
        ),
        (pa.table({"value": [1]}), TypeError, "values must be binary or string in Arrow"),
        (pa.table({"value": ["a"], "key": [1]}), TypeError, "keys must be binary or string"),
        (pa.table({"value": ["a"], "partition": ["1"]}), TypeError, "partitions must be integers"),
        (pa.table({"value": ["a"], "partition": [-5]}), ValueError, "must not be negative: -5"),
        (pa.table({"value": ["a"], "timestamp": ["now"]}), TypeError, "timestamps_ms must be int"),
        (pa.table({"value": ["a"], "headers": ["h"]}), TypeError, "headers of row 0: "),
    ],
)
def test_what_is_no_such_table_is_refused_with_the_way_out(data, error, message):
    with pytest.raises(error, match=message):
        arrow_blocks(data, NOW_MS)


def test_lists_need_neither_numpy_nor_pyarrow():
    script = (
        "import sys\n"
        "from txnproducer._shell.columns.blocks import column_blocks\n"
        "blocks = column_blocks([b'v'], [b'k'], [None], [0], [1], 2, (None, None))\n"
        "print(len(blocks), 'numpy' in sys.modules, 'pyarrow' in sys.modules)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout.split() == ["1", "False", "False"]
