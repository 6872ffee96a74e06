"""Columns and tables that `send_batch` and `send_arrow` refuse, by name and row."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.made_columns import NOW_MS, blocks_of
from txnproducer._shell.columns.blocks import arrow_blocks

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")
np = pytest.importorskip(
    "numpy", reason="NumPy is not installed (pandas brings it, extra `spark`)"
)
pd = pytest.importorskip("pandas", reason="pandas is not installed (extra `spark`)")


class OtherArray(list[bytes]):
    """An array of a library with types of its own, not NumPy's."""

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
        (pa.array([0, -1]), ValueError, r"be negative: -1 \(null: the producer chooses"),
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
            r"timestamps_ms\[1\] is not a valid timestamp: -1 \(None: the present time\)",
        ),
        ([0, 2**63 - 1], ValueError, "milliseconds since the epoch, not 9223372036854775807"),
        ([0, 2**63], ValueError, r"timestamps_ms\[1\] is not a valid timestamp"),
        ([0, 1.5], TypeError, r"timestamps_ms\[1\] must be an int or None, not float"),
        ([0, False], TypeError, r"timestamps_ms\[1\] must be an int or None, not bool"),
        (np.array([0, -1]), ValueError, "timestamps_ms must not be negative: -1"),
        (np.array([0, 2**63 - 1]), ValueError, "milliseconds since the epoch"),
        (np.array([0.5, 1]), TypeError, "timestamps_ms must be a NumPy array of integers"),
        (np.array([0, "NaT"], dtype="datetime64[s]"), ValueError, "timestamps_ms has NaT: fill"),
        (
            np.array([0, 2**62], dtype="datetime64[s]"),
            ValueError,
            r"timestamps_ms\[1\] is .* 64-bit",
        ),
        (np.array([0, 2**60], dtype="datetime64[3h]"), ValueError, r"ms\[1\] is .* does not fit"),
        (pd.Series(pd.to_datetime(["2020-01-01", None])), ValueError, "timestamps_ms has NaT"),
        (pd.Series(np.array([0, 2**55], "M8[s]")), ValueError, r"timestamps_ms\[1\] is .* 64-bit"),
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
def test_data_that_is_no_such_table_is_refused_with_the_way_out(data, error, message):
    with pytest.raises(error, match=message):
        arrow_blocks(data, NOW_MS)


def test_lists_need_neither_numpy_nor_pyarrow():
    script = (
        "import sys\n"
        "from txnproducer._shell.columns.blocks import Columns, column_blocks\n"
        "columns = Columns([b'v'], [b'k'], [None], [0], [1])\n"
        "blocks = column_blocks('topic', columns, 2, None)\n"
        "print(len(blocks), 'numpy' in sys.modules, 'pyarrow' in sys.modules)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout.split() == ["1", "False", "False"]
