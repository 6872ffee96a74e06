"""Tables, chunks and other libraries' columns that `send_batch` and `send_arrow` take as Arrow."""

from __future__ import annotations

import pytest

from tests.made_columns import (
    BYTES,
    HEADERS,
    LIST_OF_STRUCTS,
    MAP,
    NOW_MS,
    blocks_of,
    partitions_of,
    records_of,
    timestamps_of,
    values_of,
)
from txnproducer._shell.columns.arrow import pieces
from txnproducer._shell.columns.blocks import arrow_blocks

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")
np = pytest.importorskip(
    "numpy", reason="NumPy is not installed (pandas brings it, extra `spark`)"
)
pd = pytest.importorskip("pandas", reason="pandas is not installed (extra `spark`)")


# --- what is Arrow's in another library ----------------------------------------------------------


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


# --- chunks --------------------------------------------------------------------------------------


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


# --- tables --------------------------------------------------------------------------------------


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
