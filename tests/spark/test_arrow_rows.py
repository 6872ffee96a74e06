"""Arrow batches become the records that rows would have become, and have the same digest."""

from __future__ import annotations

from typing import Any

import pytest

from txnproducer._shell.columns.blocks import arrow_blocks
from txnproducer.spark.errors import SchemaError
from txnproducer.spark.ledger.digest import Digest
from txnproducer.spark.rows.arrow_rows import ArrowRows
from txnproducer.spark.rows.schema import RowReader

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
LONG = "longer than what a view keeps beside its length"


class Writer:
    """A producer that remembers its rows, as records."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.sent: list[Any] = []
        self.calls = 0
        self.fails_at = fails_at

    def send_arrow(self, topic, data, partition=None):
        if self.calls == self.fails_at:
            raise ConnectionError("lost")
        self.calls += 1
        for block in arrow_blocks(data, 0, partition):
            for row in range(block.rows.count):
                _, key, value, headers = block.rows.record(row)
                place = block.partition
                if block.partitions is not None and block.partitions[row] >= 0:
                    place = block.partitions[row]
                self.sent.append((topic, place, key, value, headers))


def digest_of(records):
    digest = Digest()
    for record in records:
        digest.add(*record)
    return digest.count, digest.size_bytes, digest.hex()


def sent(batches, topic: str | None = "t", partition=None, **arguments):
    """Return the rows that were sent, and their sum."""
    rows, writer = ArrowRows(batches, RowReader(topic, **arguments)), Writer()
    rows.send_to(writer, partition)
    digest = rows.digest
    return writer.sent, (digest.count, digest.size_bytes, digest.hex())


def batch(**columns):
    return pa.RecordBatch.from_pydict(columns)


def of_kind(kind, items):
    """Return an array of a type that a cast alone may not make."""
    if pa.types.is_dictionary(kind):
        return pa.array(items, kind.value_type).dictionary_encode()
    return pa.array(items).cast(kind)


STRINGS = [
    pa.string(),
    pa.binary(),
    pa.large_string(),
    pa.large_binary(),
    pa.string_view(),
    pa.binary_view(),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int32(), pa.binary()),
]


@pytest.mark.parametrize("kind", STRINGS, ids=str)
def test_keys_and_values_come_as_any_of_arrows_strings(kind):
    values, keys = ["one", None, "", LONG], [None, "k", LONG, ""]
    one = batch(value=of_kind(kind, values), key=of_kind(kind, keys))
    expected = [
        ("t", None, key and key.encode(), value and value.encode(), ())
        for key, value in zip(keys, values, strict=True)
    ]
    expected[2] = ("t", None, LONG.encode(), b"", ())
    expected[3] = ("t", None, b"", LONG.encode(), ())
    found, digest = sent([one, one.slice(1, 2)])
    assert found == expected + expected[1:3]
    assert digest == digest_of(found)


def test_columns_of_nulls_alone_are_tombstones_without_keys():
    found, digest = sent([batch(value=pa.nulls(2), key=pa.nulls(2))])
    assert found == [("t", None, None, None, ())] * 2
    assert digest == digest_of(found)


def test_headers_are_written_unless_they_are_left_out():
    lists = [[("a", b"1"), ("b", None), ("a", b"")], None, []]
    items = [None if row is None else [{"key": k, "value": v} for k, v in row] for row in lists]
    one = batch(value=["x", "y", "z"], headers=pa.array(items, HEADERS))
    found, digest = sent([one])
    assert [record[4] for record in found] == [tuple(row or ()) for row in lists]
    assert digest == digest_of(found)
    without, _ = sent([one], include_headers=False)
    assert [record[4] for record in without] == [(), (), ()]


def test_rows_go_where_their_partition_says_and_where_all_are_sent():
    one = batch(value=["x", "y"], partition=pa.array([3, None], pa.int32()))
    found, digest = sent([one])
    assert [record[1] for record in found] == [3, None]
    assert digest == digest_of(found)
    # The digest is of the rows as they came, wherever they are sent.
    together, same = sent([one], partition=1)
    assert [record[1] for record in together] == [1, 1]
    assert same == digest


@pytest.mark.parametrize("kind", [pa.string(), pa.string_view(), STRINGS[-2]], ids=str)
def test_rows_choose_their_topic_and_keep_their_order_in_it(kind):
    topics = [f"t{n * 7 % 3}" for n in range(60)]
    one = batch(value=[f"{n}" for n in range(60)], topic=of_kind(kind, topics))
    found, digest = sent([one, one], topic=None)
    for name in set(topics):
        numbers = [int(record[3]) for record in found if record[0] == name]
        assert numbers == [n for n in range(60) if topics[n] == name] * 2
    assert len(found) == 120
    assert digest == digest_of(found)


def test_a_topic_for_all_wins_over_the_column():
    found, _ = sent([batch(value=["x"], topic=["other"], more=[1.5])])
    assert found == [("t", None, None, b"x", ())]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": ["x", "y"], "topic": ["t", None]}, "topic is null"),
        ({"value": ["x"], "topic": ["t"], "partition": [-1]}, "negative"),
        (
            {"value": ["x"], "topic": ["t"], "headers": pa.array([[{"value": b""}]], HEADERS)},
            "name must be a str",
        ),
        ({"value": ["x"], "topic": ["t"], "headers": pa.array([[None]], HEADERS)}, "headers"),
    ],
)
def test_a_row_that_is_no_record_is_refused_before_its_batch_is_sent(columns, message):
    rows, writer = ArrowRows([batch(**columns)], RowReader(None)), Writer()
    with pytest.raises(SchemaError, match=message):
        rows.send_to(writer)
    assert writer.sent == []


def test_a_task_that_loses_the_transaction_half_way_reads_on_to_the_same_digest():
    batches = [batch(value=["x", "y", "z"], topic=["b", "a", "b"])] * 3
    _, whole = sent(batches, topic=None)
    for call in range(6):
        rows = ArrowRows(batches, RowReader(None))
        with pytest.raises(ConnectionError):
            rows.send_to(Writer(fails_at=call))
        rows.read()
        assert (rows.digest.count, rows.digest.size_bytes, rows.digest.hex()) == whole


def test_batches_without_rows_are_nothing():
    empty = batch(value=pa.array([], pa.string()), topic=pa.array([], pa.string()))
    assert sent([empty], topic=None) == ([], digest_of([]))
    assert sent([], topic=None) == ([], digest_of([]))
