"""Columns of headers: at a glance or looked at closely, they are the same."""

from __future__ import annotations

import pyarrow as pa
import pytest

from txnproducer._shell.columns import headers
from txnproducer._shell.columns.headers import arrow_headers, listed_headers

STRUCT = pa.struct([("key", pa.string()), ("value", pa.binary())])
ROWS = [
    [("a", b"1")],
    None,
    [],
    [("a", b"1"), ("b", None), ("a", b"")],
    [("ü", b"\xff")],
]
STRUCTS = [None if row is None else [{"key": k, "value": v} for k, v in row] for row in ROWS]
EXPECTED = tuple(tuple(row) if row else None for row in ROWS)


def arrays():
    large = pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])
    lists = pa.array(STRUCTS, pa.list_(STRUCT))
    longer = pa.array([*STRUCTS, *STRUCTS, *STRUCTS], pa.list_(STRUCT))
    # Below a null there may be something.
    offsets, values = pa.array([0, 1, 2, 2, 5, 6], pa.int32()), lists.values
    below = pa.ListArray.from_arrays(
        offsets,
        pa.concat_arrays([values.slice(0, 1), values.slice(0, 1), values.slice(1)]),
        mask=pa.array([False, True, False, False, False]),
    )
    return {
        "lists": lists,
        "large": pa.array(STRUCTS, pa.large_list(large)),
        "maps": pa.array(ROWS, pa.map_(pa.string(), pa.binary())),
        "slice": longer.slice(5, 5),
        "chunks": pa.chunked_array([lists.slice(0, 2), lists.slice(2, 0), lists.slice(2)]),
        "below a null": below,
    }


@pytest.mark.parametrize("name", arrays())
def test_usual_headers_are_taken_by_the_column(name, monkeypatch):
    column = arrays()[name]
    expected = listed_headers([headers._as_pairs(row) for row in column.to_pylist()])
    assert expected == EXPECTED
    monkeypatch.delattr(headers, "listed_headers")  # nobody looks at a row
    assert arrow_headers(column) == EXPECTED


def test_no_more_of_an_array_is_looked_at_than_the_slice_of_it(monkeypatch):
    column = pa.array(STRUCTS * 1_000, pa.list_(STRUCT)).slice(2_500, 5)
    looked_at: list[int] = []

    def count(*columns, strict):
        looked_at.extend(len(each) for each in columns)
        return zip(*columns, strict=strict)

    monkeypatch.setattr(headers, "zip", count, raising=False)
    assert arrow_headers(column) == EXPECTED
    assert looked_at
    assert max(looked_at) == 5


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            [{"key": None, "value": b"1"}],
            r"headers of row 1: headers\[0\]: the name must be a str",
        ),
        ([None], r"headers of row 1: headers\[0\] must be a pair"),
    ],
)
def test_an_unusual_header_is_refused_by_its_row_in_the_column(row, message):
    column = pa.chunked_array(
        [pa.array([STRUCTS[0]], pa.list_(STRUCT)), pa.array([row], pa.list_(STRUCT))]
    )
    with pytest.raises(TypeError, match=message):
        arrow_headers(column)


@pytest.mark.parametrize(
    "row",
    [
        (("a", b"1"),),
        [["a", b"1"]],
        [("a", bytearray(b"1"))],
        iter([("a", b"1")]),
        [("a", memoryview(b"1"))],
    ],
)
def test_other_forms_of_a_header_give_the_same_headers(row):
    assert listed_headers([None, row]) == (None, (("a", b"1"),))


@pytest.mark.parametrize(
    "column",
    [
        [{"a": "text", "b": None}, None],
        [[("a", "text"), ("b", b"")], None],
        pa.array([[("a", "text"), ("b", None)], None], pa.map_(pa.string(), pa.string())),
    ],
    ids=["mappings", "pairs", "arrow"],
)
def test_a_row_may_be_a_mapping_and_values_may_be_text(column):
    [first, second] = (
        arrow_headers(column) if isinstance(column, pa.Array) else listed_headers(column)
    )
    assert first is not None
    assert [(name, value or None) for name, value in first] == [("a", b"text"), ("b", None)]
    assert second is None


def test_text_without_an_encoding_is_refused_by_row():
    with pytest.raises(ValueError, match=r"headers of row 1: headers\[0\] \('a'\)"):
        listed_headers([None, {"a": "\ud800"}])


def test_a_name_without_an_encoding_is_refused_by_row():
    with pytest.raises(ValueError, match=r"headers of row 1: headers\[0\] \('\\ud800'\)"):
        listed_headers([None, [("\ud800", b"x")]])
