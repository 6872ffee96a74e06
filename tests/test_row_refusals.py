"""`send_batch` and `send_arrow` refuse or lose rows; the transaction goes on or is aborted."""

from __future__ import annotations

import multiprocessing
import os
import threading
from typing import Any

import pytest

from tests import sent_rows
from tests.live_client import SHORT_MS, commits_sent, wait_for_topic
from tests.sent_rows import PATIENCE_S, assert_can_only_be_aborted, values_written, written
from txnproducer._protocol.messages import ApiKey
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

# Fixtures of these tests. Other tests have their own under these names.
client, make, ready = sent_rows.client, sent_rows.make, sent_rows.ready

# --- refusals that change nothing ----------------------------------------------------------------


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


# --- errors after which the transaction can only be aborted --------------------------------------


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
    # The topic is learned within this time, too.
    one = make(max_block_ms=SHORT_MS if is_known else 5 * SHORT_MS)
    values = pa.chunked_array([[b"0", b"1"], [b"2", b"3"]])
    for partitions in ([0, 7, 1, None], [0, 1, None, 7], [0, None, 1, 7]):
        if is_known:
            wait_for_topic(one, "topic")
        one.begin_transaction()
        with pytest.raises(KafkaTimeoutError, match="topic 'topic' has no partition 7"):
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
    one = make(linger_ms=1_000, compression_type="gzip")
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
    wait_for_topic(one, "topic")
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
    wait_for_topic(one, "topic")
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


def rows_that_wait_for_memory(one):
    """Return a thread whose rows wait for memory, and the list that its error goes to."""
    errors = []

    def work():
        try:
            one.send_batch("topic", [b"x" * 1_000] * 100)
        except KafkaError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert one._io.wait_until(lambda: one._core.metrics()["waiting-threads"] == 1, PATIENCE_S)
    return thread, errors


def test_rows_whose_transaction_another_thread_ends_meanwhile_harm_no_later_one(make, client):
    one = make(buffer_memory=40_000, batch_size=16_384)
    wait_for_topic(one, "topic")
    client.held.add(ApiKey.PRODUCE)
    one.begin_transaction()
    thread, errors = rows_that_wait_for_memory(one)
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
    wait_for_topic(one, "topic")
    client.held.add(ApiKey.PRODUCE)
    one.begin_transaction()
    thread, errors = rows_that_wait_for_memory(one)
    one.close(0)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert len(errors) == 1
