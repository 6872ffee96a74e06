"""`send_batch` and `send_arrow` over the real core, loop and lock. The brokers are a script."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import multiprocessing
import os
import sys
import threading
from typing import Any

import pytest

from tests.live_client import LiveClient, use_live_clients
from txnproducer import TransactionalProducer
from txnproducer._core.batches.partitioner import partition_for_key
from txnproducer._protocol.messages import ApiKey, ProduceRequest
from txnproducer._record import read_batches
from txnproducer._shell import waiting
from txnproducer.errors import (
    BufferExhaustedError,
    ErrorCode,
    ForkedProducerError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    RecordTooLargeError,
    SerializationError,
    TopicAuthorizationError,
    TransactionAbortedError,
)

PATIENCE_S = 10.0
SHORT_MS = 60


@pytest.fixture
def client(monkeypatch):
    client = LiveClient(topics={"topic": 3})
    use_live_clients(monkeypatch, lambda: client)
    return client


@pytest.fixture
def make(client):
    made = []

    def make_producer(transactional_id: str | None = "txn", **settings: Any):
        settings = {"max_block_ms": 10_000, "linger_ms": 0, **settings}
        made.append(TransactionalProducer("boot:9092", transactional_id, **settings))
        if transactional_id is not None:
            made[-1].init_transactions()
        return made[-1]

    yield make_producer
    for one in made:
        one.close(0)


@pytest.fixture
def ready(make):
    return make()


def commits_sent(client):
    return [request.is_commit for request in client.sent(ApiKey.END_TXN)]


def written(client):
    """Return every record that was sent, by partition, in order."""
    records: dict[int, list[Any]] = {}
    for request in client.requests:
        if isinstance(request.body, ProduceRequest):
            for part in request.body.partitions:
                batches = records.setdefault(part.topic_partition.partition, [])
                batches += [record for batch in read_batches(part.records) for record in batch]
    return records


def values_written(client):
    return sorted(record.value for part in written(client).values() for record in part)


def assert_can_only_be_aborted(one, reason=None):
    """Show that a commit is refused and an abort works, and the next transaction commits."""
    one._max_block_s = PATIENCE_S
    with pytest.raises(KafkaError, match=reason) as caught:
        one.commit_transaction()
    assert caught.value.recovery == "abort"
    one.abort_transaction()
    with one.transaction():
        one.send("topic", b"the next one", partition=0)


def interrupt(*arguments, **more):
    raise KeyboardInterrupt


# --- records that arrive


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


# --- refusals that change nothing


def test_a_row_too_large_is_named_and_none_is_sent(make, client):
    one = make(max_request_size=10_000)
    with one.transaction() as txn:
        with pytest.raises(RecordTooLargeError, match=r"row 2 is 20\d+ bytes .*max_request_size="):
            one.send_batch("topic", [b"small", None, b"x" * 20_000, b"small"])
        assert one.transaction_state == "IN_TRANSACTION"
        one.send("topic", b"good", partition=0)
    assert txn.outcome == "committed"
    assert values_written(client) == [b"good"]


def test_a_row_too_large_for_the_memory_is_named_by_its_place_among_all_chunks(make, client):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")
    one = make(buffer_memory=20_000, batch_size=1_000)
    with one.transaction():
        with pytest.raises(RecordTooLargeError, match=r"row 3 is .* buffer_memory=20000"):
            one.send_batch("topic", pa.chunked_array([[b"0", b"1"], [b"2", b"x" * 30_000]]))
    assert written(client) == {}


def test_a_wrong_column_raises_and_leaves_the_transaction_as_it_was(make, client):
    one = make(value_serializer=lambda v: 1 / 0 if v == b"bad" else v)
    with one.transaction() as txn:
        with pytest.raises(TypeError, match="topic must be a str"):
            one.send_batch(b"topic", [b"v"])
        with pytest.raises(ValueError, match="topic must not be empty"):
            one.send_batch("", [b"v"])
        with pytest.raises(TypeError, match=r"keys\[0\].*key\.encode"):
            one.send_batch("topic", [b"v"], ["text"])
        with pytest.raises(ValueError, match="partitions has 2 rows"):
            one.send_batch("topic", [b"v"], partitions=[0, 1])
        with pytest.raises(ValueError, match="there is no partition"):
            one.send_batch("topic", [b"v"], partitions=[1 << 30])
        with pytest.raises(ValueError, match="milliseconds since the epoch"):
            one.send_batch("topic", [b"v"], timestamps_ms=2**63 - 1)
        with pytest.raises(SerializationError, match="ZeroDivisionError"):
            one.send_batch("topic", [b"good", b"bad"])
        with pytest.raises(TypeError, match="send_arrow takes a pyarrow Table"):
            one.send_arrow("topic", [b"v"])
        one.send("topic", b"good", partition=0)
    assert txn.outcome == "committed"
    assert values_written(client) == [b"good"]


@pytest.mark.parametrize("values", [[b"v"], []])
def test_rows_outside_of_a_transaction_are_refused_though_there_are_none(ready, client, values):
    with pytest.raises(IllegalStateError, match="begin_transaction"):
        ready.send_batch("topic", values)
    with pytest.raises(IllegalStateError, match="begin_transaction"):
        ready.send_batch("topic", values, partitions=[7] * len(values))
    with ready.transaction():
        ready.send("topic", b"good", partition=0)
    assert values_written(client) == [b"good"]


@pytest.mark.parametrize("keys", [None, [b"k"]])
def test_rows_sent_while_the_commit_is_under_way_are_refused_and_it_goes_on(ready, client, keys):
    ready.partitions_for("topic")
    client.held.add(ApiKey.PRODUCE)
    ready._max_block_s = SHORT_MS / 1000
    txn = ready.transaction()
    with pytest.raises(KafkaTimeoutError):
        with txn:
            ready.send("topic", b"value", partition=0)
    with pytest.raises(IllegalStateError):
        ready.send_batch("topic", [b"too late"], keys)
    assert ready.transaction_state == "COMMITTING_TRANSACTION"
    with ready._lock:
        client.release(ApiKey.PRODUCE)
    ready._max_block_s = PATIENCE_S
    ready.commit_transaction()
    assert txn.outcome == "committed"
    assert values_written(client) == [b"value"]


def test_a_closed_producer_refuses_rows(ready):
    ready.close()
    for call in (ready.send_batch, ready.send_arrow):
        with pytest.raises(IllegalStateError, match=f"{call.__name__}.*the producer is closed"):
            call("topic", [b"v"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking beside threads is the point
def test_a_forked_producer_refuses_rows(ready):
    def child(pipe):
        answers = []
        for call in (ready.send_batch, ready.send_arrow):
            try:
                call("topic", [b"v"])
            except ForkedProducerError as error:
                answers.append(str(error))
        pipe.send(answers)

    context: Any = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=child, args=(there,))
    process.start()
    assert here.poll(PATIENCE_S)
    answers = here.recv()
    process.join(PATIENCE_S)
    assert len(answers) == 2
    assert "Make a producer in this process" in answers[0]


# --- errors after which the transaction can only be aborted


@pytest.mark.parametrize("keys", [None, [b"k", b"l"]])
@pytest.mark.parametrize("partitions", [None, [0, 1]])
def test_an_unknown_topic_times_out_and_the_transaction_can_only_be_aborted(
    make, client, keys, partitions
):
    one = make(max_block_ms=SHORT_MS)
    one.begin_transaction()
    with pytest.raises(KafkaTimeoutError, match="does not know topic 'nowhere'"):
        one.send_batch("nowhere", [b"0", b"1"], keys, None, partitions)
    assert_can_only_be_aborted(one)


@pytest.mark.parametrize("is_known", [False, True])
def test_a_partition_that_does_not_exist_times_out_and_no_row_is_sent(make, client, is_known):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")
    one = make(max_block_ms=SHORT_MS)
    values = pa.chunked_array([[b"0", b"1"], [b"2", b"3"]])
    for partitions in ([0, 7, 1, None], [0, 1, None, 7], [0, None, 1, 7]):
        if is_known:
            one.partitions_for("topic")
        one.begin_transaction()
        with pytest.raises(KafkaTimeoutError, match="partition 7 of topic 'topic' does not exist"):
            one.send_batch("topic", values, partitions=partitions)
        assert values_written(client) == []
        assert_can_only_be_aborted(one)
        client.requests.clear()


def test_rows_for_a_partition_that_is_new_wait_until_it_is_known(make, client):
    one = make()
    one.partitions_for("topic")
    with one._lock:
        client.topics["topic"] = 8
    with one.transaction():
        future = one.send_batch("topic", [b"0", b"1"], partitions=[0, 7])
    assert list(future.result(0).partitions) == [0, 7]


def test_rows_that_wait_for_their_partition_belong_to_no_later_transaction(make):
    one = make()
    one.partitions_for("topic")
    one.begin_transaction()
    wait_until = one._io.wait_until

    def end_meanwhile(is_done, timeout_s):
        one._io.wait_until = wait_until
        one.abort_transaction()
        one.begin_transaction()
        return True

    one._io.wait_until = end_meanwhile
    with pytest.raises(TransactionAbortedError, match="was not sent"):
        one.send_batch("topic", [b"0", b"1"], partitions=[0, 7])
    assert one.transaction_state == "IN_TRANSACTION"


def test_a_row_in_a_batch_that_is_not_found_again_is_not_committed(make, monkeypatch):
    # It cannot happen. Else an error of this kind is a caller's mistake, which changes nothing.
    one = make(linger_ms=1_000)
    one.partitions_for("topic")
    one.begin_transaction()
    with monkeypatch.context() as patch:
        patch.setattr(one._core.rows, "_topics", {})
        with pytest.raises(IllegalStateError, match="taken by no batch"):
            one.send_batch("topic", [b"0", b"1"])
    assert_can_only_be_aborted(one)


def test_a_refused_topic_raises_the_refusal_and_the_transaction_can_only_be_aborted(make, client):
    client.topic_errors["secret"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    one = make()
    for keys in (None, [b"k"]):
        one.begin_transaction()
        with pytest.raises(TopicAuthorizationError):
            one.send_batch("secret", [b"v"], keys)
        assert_can_only_be_aborted(one)


def test_without_memory_rows_time_out_and_the_transaction_can_only_be_aborted(make, client):
    one = make(max_block_ms=SHORT_MS, buffer_memory=40_000, batch_size=16_384)
    one.partitions_for("topic")
    client.held.add(ApiKey.PRODUCE)
    one.begin_transaction()
    with pytest.raises(BufferExhaustedError, match="no buffer memory"):
        one.send_batch("topic", [b"x" * 1_000] * 100)
    assert one.metrics()["waiting-threads"] == 0
    one._max_block_s = PATIENCE_S
    with pytest.raises(KafkaError) as caught:
        one.commit_transaction()
    assert caught.value.recovery == "abort"
    with one._lock:
        client.release(ApiKey.PRODUCE)
    one.abort_transaction()
    with one.transaction():
        future = one.send_batch("topic", [b"x" * 1_000] * 100)
    assert len(future.result(0)) == 100
    assert commits_sent(client) == [False, True]


def test_each_wait_has_its_own_budget_when_rows_were_taken_meanwhile(make, client, monkeypatch):
    one = make(max_block_ms=10_000, buffer_memory=40_000, batch_size=16_384)
    one.partitions_for("topic")
    budgets = []
    wait_until = one._io.wait_until

    def note(is_done, timeout_s):
        budgets.append(round(timeout_s))
        with one._lock:
            client.release(ApiKey.PRODUCE)
        return wait_until(is_done, timeout_s)

    with one.transaction():
        # Without it the brokers may be quick enough that no row has to wait.
        client.held.add(ApiKey.PRODUCE)
        monkeypatch.setattr(one._io, "wait_until", note)
        one.send_batch("topic", [b"x" * 1_000] * 300)
        monkeypatch.undo()
    assert budgets
    assert set(budgets) == {10}


def test_an_error_of_a_batch_is_the_futures_and_the_transactions(ready, client):
    client.prepare_produce(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    ready.begin_transaction()
    future = ready.send_batch("topic", [b"0", b"1"], partitions=[0, 0])
    with pytest.raises(TopicAuthorizationError):
        future.result(PATIENCE_S)
    assert sorted(future.errors()) == [0, 1]
    with pytest.raises(KafkaError):
        ready.send_batch("topic", [b"2"])
    assert_can_only_be_aborted(ready)


def test_rows_whose_transaction_another_thread_ends_meanwhile_harm_no_later_one(make, client):
    one = make(buffer_memory=40_000, batch_size=16_384)
    one.partitions_for("topic")
    client.held.add(ApiKey.PRODUCE)
    one.begin_transaction()
    errors = []

    def work():
        try:
            one.send_batch("topic", [b"x" * 1_000] * 100)
        except KafkaError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert one._io.wait_until(lambda: one._core.metrics()["waiting-threads"] == 1, PATIENCE_S)
    began = threading.Event()
    append_can_proceed = one._core.append_can_proceed

    def not_before_the_next_one(blocked):
        return began.is_set() and append_can_proceed(blocked)

    one._core.append_can_proceed = not_before_the_next_one
    with one._lock:
        client.release(ApiKey.PRODUCE)
    one.abort_transaction()
    one.begin_transaction()
    began.set()
    thread.join(PATIENCE_S)
    assert [type(error) for error in errors] == [TransactionAbortedError]
    assert errors[0].recovery == "resume"
    future = one.send("topic", b"of the next one", partition=0)
    one.commit_transaction()
    assert future.error is None
    assert commits_sent(client)[-1] is True


def test_a_producer_that_is_closed_meanwhile_lets_the_rows_go(make, client):
    one = make(buffer_memory=40_000, batch_size=16_384)
    one.partitions_for("topic")
    client.held.add(ApiKey.PRODUCE)
    one.begin_transaction()
    errors = []

    def work():
        try:
            one.send_batch("topic", [b"x" * 1_000] * 100)
        except KafkaError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert one._io.wait_until(lambda: one._core.metrics()["waiting-threads"] == 1, PATIENCE_S)
    one.close(0)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert len(errors) == 1


# --- interrupts


def test_an_interrupt_in_the_midst_leaves_a_transaction_that_can_only_be_aborted(
    make, client, monkeypatch
):
    one = make(buffer_memory=40_000, batch_size=16_384)
    one.partitions_for("topic")
    client.held.add(ApiKey.PRODUCE)
    one.begin_transaction()
    with monkeypatch.context() as patch:
        patch.setattr(one._io, "wait_until", interrupt)
        with pytest.raises(KeyboardInterrupt):
            one.send_batch("topic", [b"x" * 1_000] * 100)
    assert one.metrics()["waiting-threads"] == 0
    with one._lock:
        client.release(ApiKey.PRODUCE)
    assert_can_only_be_aborted(one, r"\d\d of 100 rows .*KeyboardInterrupt")


def test_an_interrupt_before_any_row_was_sent_changes_nothing(make, client, monkeypatch):
    one = make(buffer_memory=40_000, batch_size=16_384)
    client.held.add(ApiKey.PRODUCE)
    one.begin_transaction()
    sent = [one.send("topic", b"x" * 16_000, partition=0) for _ in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(one._io, "wait_until", interrupt)
        for partitions in (None, [1]):
            with pytest.raises(KeyboardInterrupt):
                one.send_batch("topic", [b"x" * 16_000], None, None, partitions)
    assert one.transaction_state == "IN_TRANSACTION"
    assert one.metrics()["waiting-threads"] == 0
    with one._lock:
        client.release(ApiKey.PRODUCE)
    one.commit_transaction()
    assert [future.error for future in sent] == [None, None]
    assert len(values_written(client)) == 2


def test_an_interrupt_behind_the_first_rows_leaves_no_part_of_them_to_be_committed(
    make, client, monkeypatch
):
    # The rows are in their batch, and no caller knows it yet.
    one = make(linger_ms=1_000)
    one.partitions_for("topic")
    one.begin_transaction()
    with monkeypatch.context() as patch:
        # The first call looks around.
        patch.setattr(waiting, "_wake_sender", InterruptOnce(calls_before=1))
        with pytest.raises(KeyboardInterrupt):
            one.send_batch("topic", [b"0", b"1"], partitions=[0, 1])
    assert_can_only_be_aborted(one)
    assert commits_sent(client) == [False, True]


class InterruptOnce:
    """A function that raises as Ctrl-C does, once."""

    def __init__(self, calls_before):
        self.calls_before = calls_before

    def __call__(self, *_):
        self.calls_before -= 1
        if self.calls_before == -1:
            raise KeyboardInterrupt


def interrupted_at(number, call):
    """Make a call, and let Ctrl-C come at the so manieth function of the package that it enters.

    Returns:
        Which function that was, or None if the call enters fewer.
    """
    entered = []

    def trace(frame, event, _):
        if event == "call" and "txnproducer" in frame.f_code.co_filename:
            entered.append(frame.f_code.co_name)
            if len(entered) == number:
                sys.settrace(before)
                raise KeyboardInterrupt

    before = sys.gettrace()
    # No finaliser of a producer that an earlier test left may run in here: Python swallows what
    # is raised in one, so that it would be counted for an interrupt that the call never saw.
    gc.disable()
    sys.settrace(trace)
    try:
        with contextlib.suppress(KeyboardInterrupt, KafkaError):
            failed = getattr(call(), "error", None)
            assert failed is None or isinstance(failed, BufferExhaustedError)
    finally:
        sys.settrace(before)
        gc.enable()
    return entered[-1] if len(entered) == number else None


@pytest.mark.parametrize("is_by_row", [False, True])
@pytest.mark.parametrize("partition", [0, None])
@pytest.mark.parametrize("batches_before", [0, 2])
def test_an_interrupt_wherever_it_comes_leaves_nobody_waiting_and_no_memory_taken(
    make, client, is_by_row, partition, batches_before
):
    one = make(buffer_memory=40_000, batch_size=16_384)
    one.partitions_for("topic")
    one._config = dataclasses.replace(one._config, max_block_ms=1)
    one._rows._max_block_ms = 1
    calls = {
        False: lambda: one.send("topic", b"x" * 16_000, partition=partition),
        True: lambda: one.send_batch("topic", [b"x" * 16_000], partitions=[partition]),
    }
    entered = set()
    wanted = {"time_out_append", "fail_append"} if batches_before == 2 else set()
    pool = one._core._accumulator.pool

    def interrupt_everywhere():
        for number in itertools.count(1):
            one.begin_transaction()
            with one._lock:
                client.held.add(ApiKey.PRODUCE)
            for _ in range(batches_before):
                one.send("topic", b"x" * 16_000, partition=0)
            name = interrupted_at(number, calls[is_by_row])
            assert not pool.waiting, name
            with one._lock:
                client.release(ApiKey.PRODUCE)
            one.abort_transaction()
            assert pool.available_bytes == 40_000, name
            if name is None:
                return
            entered.add(name)

    # How many functions are entered while it waits, nobody knows: one may be passed over.
    for _ in range(5):
        interrupt_everywhere()
        if not wanted or entered & wanted:
            break
    # It comes at the next function or the one after that, as the loop's thread goes about.
    assert entered & {"append_any", "_append_record", "_append_to"}
    assert bool(entered & {"time_out_append", "fail_append"}) is bool(wanted)
