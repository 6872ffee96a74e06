"""`send_batch` and `send_arrow` over the real core, loop and lock. The brokers are a script."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests import sent_rows
from tests.live_client import commits_sent
from tests.sent_rows import PATIENCE_S, values_written, written
from txnproducer._core.batches.partitioner import partition_for_key
from txnproducer._protocol.messages import ApiKey

# Fixtures of these tests. Other tests have their own under these names.
client, make, ready = sent_rows.client, sent_rows.make, sent_rows.ready


def test_a_batch_of_rows_is_committed(ready, client):
    ready.begin_transaction()
    future = ready.send_batch(
        "topic",
        [b"a", None, b"c"],
        [b"k", b"l", None],
        [[("h", b"1")], None, []],
        [0, 0, 0],
        [5, None, 7],
    )
    ready.commit_transaction()
    assert commits_sent(client) == [True]
    assert future.done()
    metadata = future.result(0)
    assert list(metadata.partitions) == [0, 0, 0]
    assert list(metadata.offsets) == [0, 1, 2]
    records = written(client)[0]
    assert [(r.key, r.value, r.headers) for r in records] == [
        (b"k", b"a", (("h", b"1"),)),
        (b"l", None, ()),
        (None, b"c", ()),
    ]
    assert records[0].timestamp_ms == 5
    assert records[1].timestamp_ms > 1_600_000_000_000
    assert records[2].timestamp_ms == 7


def test_an_arrow_table_is_committed(ready, client):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")
    table = pa.table(
        {
            "value": pa.chunked_array([["a", "b"], ["c", "d"]]),
            "key": ["k", None, "l", None],
            "partition": [1, 0, 1, 2],
        }
    )
    with ready.transaction() as txn:
        future = ready.send_arrow("topic", table)
    assert txn.outcome == "committed"
    metadata = future.result(0)
    assert list(metadata.partitions) == [1, 0, 1, 2]
    assert {part: [r.value for r in records] for part, records in written(client).items()} == {
        0: [b"b"],
        1: [b"a", b"c"],
        2: [b"d"],
    }
    # Where the I/O thread runs beside this one, they may be in two batches.
    assert metadata.offsets[2] > metadata.offsets[0]


def test_keyed_rows_go_where_send_puts_them_and_stay_in_order(ready, client):
    keys = [b"key-%d" % (n % 17) for n in range(300)]
    values = [b"%d" % n for n in range(300)]
    with ready.transaction():
        future = ready.send_batch("topic", values, keys)
    partitions = list(future.result(0).partitions)
    assert partitions == [partition_for_key(key, 3) for key in keys]
    with ready.transaction():
        one_by_one = [ready.send("topic", b"v", key=key) for key in keys[:17]]
    assert [f.result(0).partition for f in one_by_one] == partitions[:17]
    for part, records in written(client).items():
        sent = [int(record.value) for record in records if record.value != b"v"]
        assert sent == [n for n in range(300) if partitions[n] == part]


def test_rows_without_key_among_keyed_ones_and_those_with_a_partition_go_their_own_way(
    ready, client
):
    keys = [b"key", None, b"key", None]
    with ready.transaction():
        future = ready.send_batch(
            "topic", [b"0", b"1", b"2", b"3"], keys, None, [None, None, 2, 2]
        )
    partitions = list(future.result(0).partitions)
    assert partitions[0] == partition_for_key(b"key", 3)
    assert partitions[1] in (0, 1, 2)
    assert partitions[2:] == [2, 2]


def test_keys_that_are_ignored_decide_nothing(make, client):
    one = make(partitioner_ignore_keys=True, linger_ms=5)
    with one.transaction():
        future = one.send_batch("topic", [b"v"] * 50, [b"key-%d" % n for n in range(50)])
    assert len(set(future.result(0).partitions)) == 1
    [records] = written(client).values()
    assert [record.key for record in records] == [b"key-%d" % n for n in range(50)]


def test_partitions_take_turns_a_batch_at_a_time(make, client):
    one = make(batch_size=1_000, linger_ms=1_000)
    turns = []
    append = one._core.rows.append

    def note(topic, run, now_ms, blocked=None):
        turns.append(run.partition)
        return append(topic, run, now_ms, blocked)

    one._core.rows.append = note
    one.partitions_for("topic")
    with one.transaction():
        one.send_batch("topic", [b"x" * 100] * 60, None, None, [0] * 10 + [1] * 20 + [2] * 30)
    assert turns[:6] == [0, 1, 2, 0, 1, 2]
    assert turns[6:] == [1, 2, 2]
    assert {part: len(records) for part, records in written(client).items()} == {
        0: 10,
        1: 20,
        2: 30,
    }


def test_rows_and_records_share_batches(make, client):
    one = make(linger_ms=1_000)
    with one.transaction():
        first = one.send("topic", b"0", partition=1)
        future = one.send_batch("topic", [b"1", b"2"], partitions=[1, 1])
        last = one.send("topic", b"3", partition=1)
    assert [r.value for r in written(client)[1]] == [b"0", b"1", b"2", b"3"]
    offsets = [first.result(0).offset, *future.result(0).offsets, last.result(0).offset]
    assert offsets == list(range(offsets[0], offsets[0] + 4))


def test_an_idempotent_producer_sends_rows_without_a_transaction(make, client):
    one = make(None)
    future = one.send_batch("topic", [b"%d" % n for n in range(100)])
    assert len(future.result(PATIENCE_S)) == 100
    assert len(values_written(client)) == 100


def test_serializers_are_used_for_rows(make, client):
    one = make(value_serializer=lambda v: repr(v).encode(), key_serializer=str.encode)
    with one.transaction():
        one.send_batch("topic", [1, None, "x"], ["a", None, "b"], partitions=[0, 0, 0])
    assert [(r.key, r.value) for r in written(client)[0]] == [
        (b"a", b"1"),
        (None, None),
        (b"b", b"'x'"),
    ]


@pytest.mark.parametrize("topic", ["topic", "nowhere"])
def test_no_rows_send_nothing_and_ask_for_nothing(ready, client, topic):
    with ready.transaction() as txn:
        future = ready.send_batch(topic, [], [])
        assert future.done()
        assert len(future.result(0)) == 0
    assert txn.outcome == "committed"
    assert written(client) == {}
    assert not client.sent(ApiKey.END_TXN)


def test_more_rows_than_there_is_memory_wait_for_it_and_all_arrive(make, client):
    one = make(buffer_memory=40_000, batch_size=16_384)
    values = [b"%06d" % n * 100 for n in range(500)]
    with one.transaction() as txn:
        future = one.send_batch("topic", values)
    assert txn.outcome == "committed"
    assert future.result(0)[499].offset >= 0
    assert values_written(client) == sorted(values)


def test_several_threads_send_rows_at_once(make, client):
    one = make(buffer_memory=40_000, batch_size=4_096)
    futures: list[Any] = []

    def work():
        futures.append(one.send_batch("topic", [b"x" * 100] * 500, [b"k", b"l"] * 250))

    with one.transaction() as txn:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert txn.outcome == "committed"
    assert [len(future.result(0)) for future in futures] == [500] * 4
    places = {(row.partition, row.offset) for future in futures for row in future.result(0)}
    assert len(places) == 2_000
