"""Columns for `send_batch` and `send_arrow`: the forms taken, and the records made."""

from __future__ import annotations

import json
from array import array
from collections import deque

import pytest

from tests.made_columns import (
    BYTES,
    HEADERS,
    LONG,
    MAP,
    NOW_MS,
    blocks_of,
    partitions_of,
    records_of,
    sliced,
    timestamps_of,
    values_of,
)
from txnproducer._shell.columns.blocks import _binary_column, arrow_blocks
from txnproducer.errors import RecordTooLargeError, SerializationError

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")
np = pytest.importorskip(
    "numpy", reason="NumPy is not installed (pandas brings it, extra `spark`)"
)
pd = pytest.importorskip("pandas", reason="pandas is not installed (extra `spark`)")


# --- keys and values -----------------------------------------------------------------------------


@pytest.mark.parametrize("make", [list, tuple, deque, lambda items: np.array(items, dtype=object)])
def test_sequences_of_bytes_are_taken_with_none_for_null(make):
    [block] = blocks_of(make(BYTES), make(BYTES[::-1]))
    assert block.has_keys
    assert block.partitions is None
    assert records_of([block]) == [
        (NOW_MS, key, value, ()) for value, key in zip(BYTES, BYTES[::-1], strict=True)
    ]


def test_columns_without_keys_have_no_keys():
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


# --- serializers ---------------------------------------------------------------------------------


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
def test_a_serializer_gets_the_values_of_arrow_and_numpy_columns(column):
    blocks = blocks_of(column, value_serializer=lambda item: item.encode() + b"!")
    assert values_of(blocks) == [b"a!", None]


def test_a_failing_serializer_is_named_with_its_row_and_its_error_kept():
    with pytest.raises(
        SerializationError, match=r"^row 1: key_serializer failed for topic 'topic' and a int"
    ) as caught:
        blocks_of([b"a", b"b"], ["x", 1], key_serializer=lambda item: item.encode())
    assert isinstance(caught.value.__cause__, AttributeError)


def test_a_serializer_that_returns_text_is_refused_with_its_row():
    with pytest.raises(SerializationError, match=r"^row 1: value_serializer returned a str"):
        blocks_of([None, 1], value_serializer=str)


def test_a_serializer_may_raise_an_error_of_this_package():
    class RefusedError(SerializationError):
        def __init__(self):
            super().__init__("by hand")

    def refuse(item):
        raise RecordTooLargeError("no") if item == 1 else RefusedError

    with pytest.raises(RecordTooLargeError, match=r"^no$"):
        blocks_of([1], value_serializer=refuse)
    with pytest.raises(RefusedError, match=r"^row 0: by hand"):
        blocks_of([2], value_serializer=refuse)


# --- headers, partitions, timestamps -------------------------------------------------------------


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
def test_headers_of_a_row_have_the_types_of_send_or_are_none(headers):
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
def test_numbers_may_be_of_pandas_or_of_any_array_like(column):
    [block] = blocks_of([b"v"] * 3, None, None, column, column)
    assert block.partitions == array("i", [0, 1, 2])
    assert timestamps_of([block]) == [0, 1, 2]


def test_every_block_has_the_highest_partition_of_the_call():
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
