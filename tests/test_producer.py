"""The producer's calls over the real core, loop and lock. Only the brokers are a script."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tests.live_client import SHORT_MS, commits_sent, impatient, wait_for_topic
from tests.waiting import wait_until
from txnproducer import TransactionalProducer
from txnproducer._protocol.events import ResponseFailure
from txnproducer._protocol.messages import ApiKey
from txnproducer._shell import waiting
from txnproducer._wire.platform import SYSTEM, Platform
from txnproducer.admin import _producer_questions
from txnproducer.config import ProducerConfig
from txnproducer.errors import (
    AuthorizationError,
    BufferExhaustedError,
    ClaimRefusedError,
    CommitOutcomeUnknownError,
    ErrorCode,
    ForkedProducerError,
    IllegalStateError,
    InvalidTxnTimeoutError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    RecordTooLargeError,
    SerializationError,
    TopicAuthorizationError,
    TransactionAbortableError,
    UnknownConfigError,
)
from txnproducer.records import ConsumerGroupMetadata, TopicPartition

PATIENCE_S = 10.0
OFFSETS = ({TopicPartition("in", 0): 5}, ConsumerGroupMetadata("group"))


# --- transactions --------------------------------------------------------------------------------


def test_a_transaction_is_committed(ready, client):
    ready.begin_transaction()
    future = ready.send("topic", b"value", key=b"key", headers=[("h", b"1")])
    ready.commit_transaction()
    assert future.done()
    assert future.result(0).topic == "topic"
    assert commits_sent(client) == [True]
    assert ready.transaction_state == "READY"


def test_a_transaction_is_aborted(ready, client):
    ready.begin_transaction()
    ready.send("topic", b"value").result(PATIENCE_S)
    ready.abort_transaction()
    assert commits_sent(client) == [False]


def test_a_block_commits_and_offsets_go_with_it(ready, client):
    with ready.transaction() as txn:
        txn.send("topic", b"value")
        txn.send_offsets({TopicPartition("in", 0): 5}, ConsumerGroupMetadata("group"))
    assert txn.outcome == "committed"
    [request] = client.sent(ApiKey.TXN_OFFSET_COMMIT)
    assert request.group_id == "group"


def test_an_exception_in_the_block_aborts(ready, client):
    txn = ready.transaction()

    def body():
        ready.send("topic", b"value").result(PATIENCE_S)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        with txn:
            body()
    assert txn.outcome == "aborted"
    assert commits_sent(client) == [False]


def test_transactions_follow_each_other(ready, client):
    for number in range(5):
        with ready.transaction():
            ready.send("topic", b"%d" % number)
    assert commits_sent(client) == [True] * 5


def test_calls_before_init_are_refused_with_the_method_to_call(make):
    one = make()
    with pytest.raises(IllegalStateError, match="init_transactions"):
        one.begin_transaction()
    with pytest.raises(IllegalStateError):
        one.send("topic", b"value")


@pytest.mark.conformance("2.18")
@pytest.mark.parametrize(
    ("transactional_id", "is_idempotent", "is_closed", "reason"),
    [
        (None, True, False, "transactional_id"),
        (None, False, False, "transactional_id"),
        ("txn", True, True, "closed"),
    ],
)
def test_transactional_calls_need_a_transactional_id_and_an_open_producer(
    make, transactional_id, is_idempotent, is_closed, reason
):
    one = make(transactional_id, enable_idempotence=is_idempotent)
    if is_closed:
        one.close()
    offsets = ({TopicPartition("in", 0): 5}, ConsumerGroupMetadata("group"))
    for call, arguments in (
        (one.init_transactions, ()),
        (one.begin_transaction, ()),
        (one.commit_transaction, ()),
        (one.abort_transaction, ()),
        (one.send_offsets_to_transaction, offsets),
    ):
        with pytest.raises(IllegalStateError, match=reason):
            call(*arguments)


@pytest.mark.conformance("2.16")
def test_malformed_offsets_are_refused_first(ready, make):
    with pytest.raises(ValueError, match="group_metadata"):
        make(None).send_offsets_to_transaction({}, None)
    with pytest.raises(ValueError, match="group_metadata"):
        ready.send_offsets_to_transaction({}, None)
    with pytest.raises(ValueError, match="offsets"):
        ready.send_offsets_to_transaction({"topic": 1}, ConsumerGroupMetadata("g"))


@pytest.mark.conformance("2.15")
def test_no_offsets_are_no_request_and_need_no_transaction(ready, client):
    ready.send_offsets_to_transaction({}, ConsumerGroupMetadata("g"))
    assert client.sent(ApiKey.TXN_OFFSET_COMMIT) == []


# --- time-outs, and going on after them ----------------------------------------------------------


@pytest.mark.regression("class-10")
@pytest.mark.conformance("2.02")
@pytest.mark.parametrize(
    ("call", "held", "hint"),
    [
        ("init_transactions", ApiKey.INIT_PRODUCER_ID, "replication"),
        ("commit_transaction", ApiKey.END_TXN, "partitions without a leader"),
        ("abort_transaction", ApiKey.END_TXN, "brokers that cannot be reached"),
        ("send_offsets_to_transaction", ApiKey.TXN_OFFSET_COMMIT, "__consumer_offsets"),
    ],
)
def test_a_time_out_names_the_call_and_the_usual_remedy(make, client, call, held, hint):
    one = make()
    if call != "init_transactions":
        one.init_transactions()
        one.begin_transaction()
        one.send("topic", b"value").result(PATIENCE_S)
    client.held.add(held)
    impatient(one)
    said = rf"{call} did not finish.*goes on in the background.*{hint}"
    with pytest.raises(KafkaTimeoutError, match=said):
        getattr(one, call)(*(OFFSETS if call == "send_offsets_to_transaction" else ()))


@pytest.mark.conformance("2.02")
@pytest.mark.parametrize("call", ["commit_transaction", "abort_transaction"])
def test_a_call_that_timed_out_goes_on_in_the_background(ready, client, call):
    ready.begin_transaction()
    ready.send("topic", b"value").result(PATIENCE_S)
    client.held.add(ApiKey.END_TXN)
    impatient(ready)
    with pytest.raises(KafkaTimeoutError):
        getattr(ready, call)()
    client.release(ApiKey.END_TXN)
    assert ready._io.wait_until(lambda: ready.transaction_state == "READY", PATIENCE_S)
    ready._max_block_s = PATIENCE_S
    getattr(ready, call)()  # and this one only sees how that ended
    assert commits_sent(client) == [call == "commit_transaction"]


@pytest.mark.conformance("2.01")
def test_begin_waits_for_nothing_and_every_other_call_up_to_max_block_ms(make, monkeypatch):
    def wait(is_done, timeout_s):
        waits.append(timeout_s)
        return wait_until(is_done, timeout_s)

    def note_poke():
        pokes.append("poke")
        poke()

    one = make(max_block_ms=7_000)
    waits: list[float] = []
    pokes: list[str] = []
    wait_until, poke = one._io.wait_until, one._io.poke
    monkeypatch.setattr(one._io, "wait_until", wait)
    monkeypatch.setattr(one._io, "poke", note_poke)
    one.init_transactions()
    assert waits == [7.0]
    for end in (one.commit_transaction, one.abort_transaction):
        waits.clear()
        pokes.clear()
        one.begin_transaction()
        assert (waits, pokes) == ([], [])
        one.send_offsets_to_transaction(*OFFSETS)
        assert waits == [7.0]
        end()
        assert waits == [7.0, 7.0]


@pytest.mark.conformance("2.09")
def test_a_call_raises_the_very_error_of_its_operation_and_has_seen_its_end_then(ready, client):
    ready.begin_transaction()
    ready.send("topic", b"value").result(PATIENCE_S)
    client.prepare_end_txn(ErrorCode.TRANSACTION_ABORTABLE)
    with pytest.raises(TransactionAbortableError) as caught:
        ready.commit_transaction()
    assert caught.value is ready._commit.error
    assert ready._commit.is_acked


@pytest.mark.conformance("2.03")
def test_init_that_timed_out_is_waited_for_again(make, client):
    client.held.add(ApiKey.INIT_PRODUCER_ID)
    one = impatient(make())
    with pytest.raises(
        KafkaTimeoutError, match=r"init_transactions.*again.*replication"
    ) as caught:
        one.init_transactions()
    assert caught.value.recovery == "resume"
    client.release(ApiKey.INIT_PRODUCER_ID)
    one._max_block_s = PATIENCE_S
    one.init_transactions()
    assert len(client.sent(ApiKey.INIT_PRODUCER_ID)) == 1


@pytest.mark.conformance("2.06")
def test_a_commit_that_timed_out_is_waited_for_again_and_its_outcome_kept(ready, client):
    client.held.add(ApiKey.END_TXN)
    impatient(ready)
    txn = ready.transaction()
    with pytest.raises(KafkaTimeoutError, match="commit_transaction"):
        with txn:
            ready.send("topic", b"value")
    assert txn.outcome == "open"
    with pytest.raises(IllegalStateError, match="commit_transaction"):
        ready.begin_transaction()
    client.release(ApiKey.END_TXN)
    ready._max_block_s = PATIENCE_S
    ready.commit_transaction()
    assert txn.outcome == "committed"
    assert commits_sent(client) == [True]


@pytest.mark.conformance("2.08")
@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_wait_that_ended_too_early_has_not_seen_the_end(
    ready, client, monkeypatch, is_interrupted
):
    def interrupt(is_done, timeout_s):
        raise KeyboardInterrupt

    ready.begin_transaction()
    ready.send("topic", b"value").result(PATIENCE_S)
    client.held.add(ApiKey.END_TXN)
    with monkeypatch.context() as patch:
        if is_interrupted:
            patch.setattr(ready._io, "wait_until", interrupt)
        else:
            patch.setattr(ready, "_max_block_s", 0.01)
        with pytest.raises(KeyboardInterrupt if is_interrupted else KafkaTimeoutError):
            ready.commit_transaction()
    client.release(ApiKey.END_TXN)
    assert ready._io.wait_until(lambda: ready.transaction_state == "READY", PATIENCE_S)
    with pytest.raises(IllegalStateError, match=r"call commit_transaction\(\)"):
        ready.begin_transaction()
    ready.commit_transaction()
    ready.begin_transaction()
    assert commits_sent(client) == [True]


def test_a_commit_that_timed_out_before_it_was_sent_can_be_aborted(ready, client):
    client.held.add(ApiKey.PRODUCE)
    impatient(ready)
    txn = ready.transaction()
    with pytest.raises(KafkaTimeoutError):
        with txn:
            ready.send("topic", b"value")
    client.release(ApiKey.PRODUCE)
    ready._max_block_s = PATIENCE_S
    ready.abort_transaction()
    assert txn.outcome == "aborted"
    assert commits_sent(client) == [False]


def test_a_commit_whose_answer_is_lost_with_the_producer_is_unknown_not_failed(ready, client):
    client.prepare_failure(ApiKey.END_TXN, ResponseFailure.DISCONNECTED)
    client.prepare_refused_end(ErrorCode.PRODUCER_FENCED)
    txn = ready.transaction()
    with pytest.raises(CommitOutcomeUnknownError) as caught:
        with txn:
            ready.send("topic", b"value")
    assert caught.value.recovery == "unknown"
    assert txn.outcome == "unknown"


def test_an_abort_does_not_hide_that_the_commit_before_it_may_have_taken_effect(ready, client):
    client.prepare_failure(ApiKey.END_TXN, ResponseFailure.DISCONNECTED)
    client.prepare_refused_end(ErrorCode.PRODUCER_FENCED, delay_ms=2 * SHORT_MS)
    impatient(ready)
    txn = ready.transaction()
    with pytest.raises(KafkaTimeoutError):
        with txn:
            ready.send("topic", b"value")
    assert ready._io.wait_until(lambda: ready.transaction_state == "FATAL_ERROR", PATIENCE_S)
    with pytest.raises(CommitOutcomeUnknownError):
        ready.abort_transaction()
    assert txn.outcome == "unknown"


def test_a_producer_that_failed_before_the_commit_has_committed_nothing(ready, client):
    client.prepare_refused_end(ErrorCode.PRODUCER_FENCED)
    txn = ready.transaction()
    with pytest.raises(ProducerFencedError) as caught:
        with txn:
            ready.send("topic", b"value")
    assert caught.value.recovery == "restart"
    assert txn.outcome == "aborted"


def test_a_failed_record_fails_the_commit_and_the_block_aborts(ready, client):
    client.prepare_produce(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    txn = ready.transaction()
    with pytest.raises(KafkaError) as caught:
        with txn:
            future = ready.send("topic", b"value")
    assert caught.value.recovery == "abort"
    assert isinstance(future.exception(0), TopicAuthorizationError)
    assert txn.outcome == "aborted"
    with ready.transaction():
        ready.send("topic", b"value")


def test_an_interrupt_while_waiting_gets_through_and_the_call_can_be_made_again(
    ready, client, monkeypatch
):
    def interrupt(is_done, timeout_s):
        raise KeyboardInterrupt

    ready.begin_transaction()
    ready.send("topic", b"value")
    with monkeypatch.context() as patch:
        patch.setattr(ready._io, "wait_until", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ready.commit_transaction()
    ready.commit_transaction()
    assert commits_sent(client) == [True]


# --- send ----------------------------------------------------------------------------------------


def test_callbacks_run_on_the_io_thread_before_the_commit_returns(ready):
    seen = []
    with ready.transaction():
        ready.send(
            "topic",
            b"value",
            on_delivery=lambda metadata, error: seen.append(
                (metadata.offset, error, threading.current_thread().name)
            ),
        )
    assert seen == [(0, None, "txnproducer-producer-txn")]


def test_serializers_make_bytes_of_keys_and_values(make, client):
    one = make(None, key_serializer=str.encode, value_serializer=lambda v: repr(v).encode())
    future = one.send("topic", [1], key="k")
    assert future.result(PATIENCE_S).serialized_value_size == 3


@pytest.mark.conformance("2.24")
def test_a_wrong_argument_raises_and_leaves_the_transaction_as_it_was(make, client):
    one = make(value_serializer=lambda v: 1 / 0 if v == b"bad" else v)
    one.init_transactions()
    with one.transaction() as txn:
        with pytest.raises(TypeError, match="topic must be a str"):
            one.send(b"topic", b"v")
        with pytest.raises(ValueError, match="topic must not be empty"):
            one.send("", b"v")
        with pytest.raises(TypeError, match=r"key\.encode"):
            one.send("topic", b"v", key="text")
        with pytest.raises(TypeError, match=r"headers\[0\]"):
            one.send("topic", b"v", headers=[("h", 1)])
        with pytest.raises(ValueError, match="partition must not be negative"):
            one.send("topic", b"v", partition=-1)
        with pytest.raises(ValueError, match="timestamp_ms"):
            one.send("topic", b"v", timestamp_ms=2**63)
        with pytest.raises(SerializationError, match="ZeroDivisionError"):
            one.send("topic", b"bad")
        one.send("topic", b"good")
    assert txn.outcome == "committed"


def test_an_argument_of_a_wait_or_a_lease_that_is_no_number_is_refused_by_name(ready, client):
    ready.begin_transaction()
    with pytest.raises(TypeError, match=r"claims must be an int, not '1' \(str\)"):
        ready.lease("1")
    with ready._lock:
        client.held.add(ApiKey.PRODUCE)
    future, rows = ready.send("topic", b"v"), ready.send_batch("topic", [b"v"])
    for call in (ready.flush, ready.close, future.result, future.exception, rows.result):
        with pytest.raises(TypeError, match=r"timeout must be a number .*, not 'x' \(str\)"):
            call("x")
    with ready._lock:
        client.release(ApiKey.PRODUCE)
    ready.commit_transaction()
    assert commits_sent(client) == [True]


@pytest.mark.conformance("5.43")
def test_a_negative_partition_is_refused_by_send(ready, client):
    with pytest.raises(ValueError, match="partition must not be negative: -1"):
        ready.send("topic", b"value", partition=-1)
    assert client.sent(ApiKey.PRODUCE) == []


@pytest.mark.conformance("2.21")
def test_a_record_too_large_fails_its_future_and_its_callback(make):
    one = make(None, max_request_size=1000)
    seen = []
    future = one.send("topic", b"x" * 2000, on_delivery=lambda m, e: seen.append((m, e)))
    assert isinstance(future.exception(0), RecordTooLargeError)
    one.flush(PATIENCE_S)
    assert one._io.wait_until(lambda: bool(seen), PATIENCE_S)
    [(metadata, error)] = seen
    assert metadata.offset == -1
    assert isinstance(error, RecordTooLargeError)


@pytest.mark.parametrize("told", ["900000", None, KafkaTimeoutError(), AuthorizationError()])
def test_a_transaction_timeout_that_is_too_long_names_both_limits(make, client, monkeypatch, told):
    def broker_setting(servers, name, timeout, **security):
        assert (servers, name, timeout) == ("boot:9092", "transaction.max.timeout.ms", 2.0)
        if isinstance(told, KafkaError):
            raise told
        return told

    monkeypatch.setattr(_producer_questions, "broker_setting", broker_setting)
    client.prepare_init_producer_id(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    one = make(transaction_timeout_ms=900_001)
    with pytest.raises(InvalidTxnTimeoutError, match="transaction_timeout_ms=900001 is") as caught:
        one.init_transactions()
    assert caught.value.recovery == "fix"
    limit = "limit is 900000" if told == "900000" else "needs DescribeConfigs"
    assert limit in str(caught.value)
    with pytest.raises(InvalidTxnTimeoutError, match="transaction_timeout_ms=900001 is") as again:
        one.init_transactions()
    assert again.value.recovery == "fix"
    assert limit in str(again.value)


def test_a_block_with_a_record_too_large_aborts_and_the_record_is_to_be_fixed(make):
    one = make(max_request_size=1000)
    one.init_transactions()
    txn = one.transaction()
    with pytest.raises(KafkaError, match="max_request_size=1000") as caught, txn:
        future = one.send("topic", b"x" * 2000)
    assert (caught.value.recovery, txn.outcome) == ("abort", "aborted")
    assert caught.value.__cause__ is future.exception(0)
    assert future.exception(0).recovery == "fix"
    with one.transaction():
        one.send("topic", b"x")


@pytest.mark.conformance("2.21")
@pytest.mark.parametrize(
    ("topic", "kind"), [("missing", KafkaTimeoutError), ("topic", BufferExhaustedError)]
)
def test_a_record_that_timed_out_waiting_fails_its_future_and_its_callback(
    make, client, topic, kind
):
    one = make(None, buffer_memory=40_000, batch_size=16_384, max_block_ms=SHORT_MS)
    client.held.add(ApiKey.PRODUCE)
    wait_for_topic(one, "topic")
    for _ in range(2):
        one.send("topic", b"x" * 16_000, partition=0)
    seen = []
    future = one.send(
        topic, b"x" * 16_000, partition=0, on_delivery=lambda m, e: seen.append((m.offset, e))
    )
    assert type(future.exception(0)) is kind
    assert one._io.wait_until(lambda: bool(seen), PATIENCE_S)
    assert seen == [(-1, future.exception(0))]


@pytest.mark.conformance("2.22")
def test_an_unknown_topic_fails_the_future_after_max_block_ms_and_then_the_commit(make):
    one = make(max_block_ms=SHORT_MS)
    one._max_block_s = PATIENCE_S
    one.init_transactions()
    txn = one.transaction()
    with pytest.raises(KafkaError) as caught:
        with txn:
            future = one.send("no-such-topic", b"v")
    assert isinstance(future.exception(0), KafkaTimeoutError)
    assert "no-such-topic" in str(future.exception(0))
    assert caught.value.recovery == "abort"
    assert txn.outcome == "aborted"


def test_a_full_buffer_makes_send_wait_and_goes_on_when_there_is_room(make, client):
    one = make(None, buffer_memory=40_000, batch_size=16_384)
    client.held.add(ApiKey.PRODUCE)
    for _ in range(2):
        one.send("topic", b"x" * 16_000, partition=0)
    waiter = threading.Thread(target=one.send, args=("topic", b"x" * 16_000, None, None, 0))
    waiter.start()
    assert one._io.wait_until(lambda: one._core.metrics()["waiting-threads"] == 1, PATIENCE_S)
    with one._lock:
        client.release(ApiKey.PRODUCE)
    waiter.join(PATIENCE_S)
    assert not waiter.is_alive()


def test_a_buffer_that_stays_full_fails_the_future(make, client):
    one = make(None, buffer_memory=40_000, batch_size=16_384, max_block_ms=SHORT_MS)
    client.held.update((ApiKey.PRODUCE, ApiKey.INIT_PRODUCER_ID))
    wait_for_topic(one, "topic")
    futures = [one.send("topic", b"x" * 16_000, partition=0) for _ in range(3)]
    assert isinstance(futures[-1].exception(0), BufferExhaustedError)
    assert one.metrics()["waiting-threads"] == 0


@pytest.mark.conformance("2.20")
def test_metadata_and_memory_are_waited_for_out_of_one_budget(make, client, monkeypatch):
    def wait_four_seconds(io, core, blocked, deadline_ms):
        waits.append((blocked.reason.name, round((deadline_ms - clock()) / 1000)))
        proceeds = wait(io, core, blocked, deadline_ms) if blocked.ticket is None else False
        clock.jump_ms += 4_000
        return proceeds or clock() < deadline_ms

    clock = SkippingClock()
    monkeypatch.setattr(Platform, "monotonic_ms", lambda _: clock())
    client.topics["other"] = 1
    one = make(None, buffer_memory=40_000, batch_size=16_384, max_block_ms=10_000)
    client.held.add(ApiKey.PRODUCE)
    for _ in range(2):
        one.send("topic", b"x" * 16_000, partition=0)
    waits: list[tuple[str, int]] = []
    wait = waiting._wait
    monkeypatch.setattr(waiting, "_wait", wait_four_seconds)
    future = one.send("other", b"x" * 16_000)
    assert isinstance(future.exception(0), BufferExhaustedError)
    assert waits == [("METADATA", 10), ("MEMORY", 6), ("MEMORY", 2)]


class SkippingClock:
    """The producer's clock, moved on by a test."""

    def __init__(self) -> None:
        self.jump_ms = 0

    def __call__(self) -> int:
        return SYSTEM.monotonic_ns() // 1_000_000 + self.jump_ms


@pytest.mark.conformance("2.30")
@pytest.mark.parametrize(
    ("awaited", "topic", "partition"),
    [(["METADATA"], "other", 0), (["MEMORY"], "topic", 1), (["METADATA", "MEMORY"], "other", 0)],
)
def test_an_interrupted_send_raises_and_its_transaction_goes_on_without_the_record(
    make, client, monkeypatch, awaited, topic, partition
):
    one = make(buffer_memory=40_000, batch_size=16_384)
    one.init_transactions()
    one.begin_transaction()
    client.topics["other"] = 1
    client.held.add(ApiKey.PRODUCE)
    sent = [one.send("topic", b"x" * 16_000, partition=0) for _ in range(2)]
    waits: list[str] = []
    wait, wait_until = waiting._wait, one._io.wait_until

    def wait_interrupted(io, core, blocked, deadline_ms):
        waits.append(blocked.reason.name)
        return wait(io, core, blocked, deadline_ms)

    def interrupt(is_done, timeout_s):
        if waits == awaited:
            raise KeyboardInterrupt
        return wait_until(is_done, timeout_s)

    with monkeypatch.context() as patch:
        patch.setattr(waiting, "_wait", wait_interrupted)
        patch.setattr(one._io, "wait_until", interrupt)
        with pytest.raises(KeyboardInterrupt):
            one.send(topic, b"x" * 16_000, partition=partition)
    assert waits == awaited
    assert one.transaction_state == "IN_TRANSACTION"
    assert one.metrics()["waiting-threads"] == 0
    client.release(ApiKey.PRODUCE)
    one.commit_transaction()
    assert [future.error for future in sent] == [None, None]
    requests = client.sent(ApiKey.PRODUCE)
    written = {part.topic_partition for request in requests for part in request.partitions}
    assert written == {TopicPartition("topic", 0)}


def test_several_threads_send_at_once(ready, client):
    def work():
        futures.extend([ready.send("topic", b"value", partition=0) for _ in range(200)])

    futures: list[Any] = []
    with ready.transaction():
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert len(futures) == 800
    assert all(future.done() and future.error is None for future in futures)


def test_a_callback_may_send_but_not_wait(ready):
    seen: list[Any] = []

    def callback(metadata, error):
        if len(seen) < 1:
            seen.append(ready.send("topic", b"from the callback"))
            for call in (ready.flush, ready.commit_transaction, seen[0].result):
                with pytest.raises(IllegalStateError, match="delivery callback"):
                    call()
            seen.append("done")

    ready.begin_transaction()
    ready.send("topic", b"value", on_delivery=callback)
    assert ready._io.wait_until(lambda: "done" in seen, PATIENCE_S)


# --- flush, partitions, metrics ------------------------------------------------------------------


def test_flush_waits_for_the_records_sent(make):
    one = make(None, linger_ms=60_000, delivery_timeout_ms=200_000)
    futures = [one.send("topic", b"value") for _ in range(10)]
    one.flush()
    assert all(future.done() for future in futures)


def test_a_flush_that_times_out_says_so_and_leaves_no_state(make, client):
    one = make(None)
    client.held.add(ApiKey.PRODUCE)
    future = one.send("topic", b"value")
    with pytest.raises(KafkaTimeoutError, match=r"flush did not finish within 0\.01 s"):
        one.flush(0.01)
    assert not one._core._accumulator.is_flush_in_progress
    with one._lock:
        client.release(ApiKey.PRODUCE)
    assert future.result(PATIENCE_S).offset == 0


def test_partitions_of_a_topic_are_asked_for(make):
    one = make(None)
    assert [info.partition for info in one.partitions_for("topic")] == [0, 1]


def test_partitions_of_an_unknown_topic_time_out_with_advice(make):
    one = make(None, max_block_ms=SHORT_MS)
    with pytest.raises(KafkaTimeoutError, match="does not know topic 'nowhere'"):
        one.partitions_for("nowhere")


def test_partitions_that_may_not_be_seen_raise_the_refusal(make, client):
    client.topic_errors["secret"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    one = make(None)
    with pytest.raises(TopicAuthorizationError):
        one.partitions_for("secret")
    one.send("topic", b"still alive").result(PATIENCE_S)


def test_the_time_of_each_kind_of_call_is_counted(ready):
    with ready.transaction():
        ready.send("topic", b"value")
    ready.flush()
    metrics = ready.metrics()
    for name in ("txn-init", "txn-commit", "flush"):
        assert metrics[f"{name}-time-ns-total"] > 0


# --- the end -------------------------------------------------------------------------------------


@pytest.mark.regression("class-9")
def test_closing_aborts_the_open_transaction_and_settles_its_outcome(ready, client):
    txn = ready.transaction()
    txn.__enter__()
    ready.send("topic", b"value").result(PATIENCE_S)
    ready.close()
    assert commits_sent(client) == [False]
    assert txn.outcome == "aborted"
    assert client.is_closed


def test_closing_finishes_a_commit_under_way(ready, client):
    client.held.add(ApiKey.END_TXN)
    impatient(ready)
    txn = ready.transaction()
    with pytest.raises(KafkaTimeoutError):
        with txn:
            ready.send("topic", b"value")
    with ready._lock:
        client.release(ApiKey.END_TXN)
    ready.close(PATIENCE_S)
    assert txn.outcome == "committed"


def test_closing_by_force_under_a_commit_leaves_its_outcome_unknown(ready, client):
    client.held.add(ApiKey.END_TXN)
    impatient(ready)
    txn = ready.transaction()
    with pytest.raises(KafkaTimeoutError):
        with txn:
            ready.send("topic", b"value")
    ready.close(0)
    assert txn.outcome == "unknown"


@pytest.mark.conformance("2.35")
def test_closing_again_does_nothing_and_a_negative_time_out_is_refused(ready, monkeypatch):
    with pytest.raises(ValueError, match="negative"):
        ready.close(-1)
    ready.close()
    monkeypatch.setattr(ready._io, "close", lambda timeout_s: pytest.fail("closed again"))
    ready.close()


def test_a_closed_producer_refuses_every_call(ready):
    ready.close()
    calls = [
        ready.init_transactions,
        ready.begin_transaction,
        ready.commit_transaction,
        ready.abort_transaction,
        ready.flush,
        lambda: ready.send("topic", b"v"),
        lambda: ready.partitions_for("topic"),
    ]
    for call in calls:
        with pytest.raises(IllegalStateError, match="the producer is closed"):
            call()


@pytest.mark.parametrize(
    "call",
    [
        lambda one: one.begin_transaction(),
        lambda one: one.transaction().__enter__(),
        lambda one: one.partitions_for("never seen"),
        lambda one: one.abort_transaction(),
    ],
)
def test_a_call_that_a_close_overtakes_on_another_thread_is_refused(
    ready, client, call, monkeypatch
):
    # Between the look at what is closed and the lock. It would begin what it may not end.
    client.is_answering_metadata = False
    look, is_over = ready._check_usable, threading.Event()
    monkeypatch.setattr(ready._io, "close", lambda timeout_s: is_over.wait(PATIENCE_S))
    closing = threading.Thread(target=ready.close)

    def look_and_be_overtaken(name):
        look(name)
        closing.start()
        wait_until(lambda: ready._refusal is not None)

    ready._check_usable = look_and_be_overtaken
    with pytest.raises(IllegalStateError, match="the producer is closed"):
        call(ready)
    assert ready.transaction_state == "READY"
    is_over.set()
    closing.join(PATIENCE_S)
    monkeypatch.undo()
    ready._io.close(0)


def test_an_outcome_is_the_one_of_its_transaction_however_soon_another_one_begins(
    ready, monkeypatch
):
    # As soon as the commit is acknowledged, another thread may begin.
    began, look = [], ready._outcome

    def begin():
        with contextlib.suppress(IllegalStateError):
            began.append(ready.transaction().__enter__())

    def look_while_another_begins():
        found = look()
        other = threading.Thread(target=begin)
        other.start()
        other.join(SHORT_MS / 1000)
        return found

    with ready.transaction() as transaction:
        ready.send("topic", b"value")
        monkeypatch.setattr(ready, "_outcome", look_while_another_begins)
    monkeypatch.undo()
    assert transaction.outcome == "committed"
    wait_until(lambda: bool(began))
    assert began[0].outcome == "open"


def test_an_outcome_that_another_thread_has_found_out_is_not_overwritten(
    ready, client, monkeypatch
):
    client.held.add(ApiKey.END_TXN)
    transaction = impatient(ready).transaction()
    transaction.__enter__()
    ready.send("topic", b"value")
    look, closing = ready._outcome, threading.Thread(target=ready.close)

    def look_and_be_overtaken():
        found = look()
        if not closing.ident:
            client.release(ApiKey.END_TXN)
            closing.start()
            closing.join(SHORT_MS / 1000)
        return found

    monkeypatch.setattr(ready, "_outcome", look_and_be_overtaken)
    with pytest.raises(KafkaTimeoutError):
        ready.abort_transaction()
    closing.join(PATIENCE_S)
    assert transaction.outcome == "aborted"


@pytest.mark.conformance("6.24")
def test_closing_wakes_a_thread_that_waits_for_init(make, client):
    client.held.add(ApiKey.FIND_COORDINATOR)
    one = make()
    errors = []

    def wait():
        try:
            one.init_transactions()
        except KafkaError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert one._io.wait_until(lambda: bool(client.sent(ApiKey.FIND_COORDINATOR)), PATIENCE_S)
    one.close(0)
    thread.join(PATIENCE_S)
    assert len(errors) == 1


@pytest.mark.conformance("2.34")
def test_closing_wakes_a_thread_that_waits_to_send(make, client):
    client.is_answering_metadata = False
    one = make(None)
    errors = []

    def wait():
        try:
            one.send("topic", b"v")
        except KafkaError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert one._io.wait_until(lambda: bool(client.sent(ApiKey.METADATA)), PATIENCE_S)
    one.close(0)
    thread.join(PATIENCE_S)
    assert len(errors) == 1
    assert "closed" in str(errors[0])


def test_a_with_block_closes_the_producer(make, client):
    with make() as one:
        one.init_transactions()
    assert client.is_closed
    with pytest.raises(IllegalStateError, match="closed"):
        one.__enter__()


def test_a_client_that_always_fails_does_not_hang_the_close(make, client):
    one = make()
    client.failure = OSError("broken")
    client.wakeup()
    began = time.monotonic()
    one.close(0.05)
    assert time.monotonic() - began < PATIENCE_S


def test_the_cluster_is_looked_up_under_the_lock(ready, monkeypatch):
    # Its name is replaced with each answer of metadata.
    def cluster_id(core):
        assert ready._io.lock.locked()
        return "another"

    monkeypatch.setattr(type(ready._core), "cluster_id", property(cluster_id))
    with pytest.raises(ClaimRefusedError, match="lead to 'another'"):
        ready._check_cluster(SimpleNamespace(cluster_id="one"), "join")


# --- processes, settings -------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking beside threads is the point
def test_a_forked_process_gets_the_advice_to_make_its_own_producer(ready):
    def child(pipe):
        answers = []
        for call in (ready.begin_transaction, lambda: ready.send("topic", b"v"), ready.flush):
            try:
                call()
            except ForkedProducerError as error:
                answers.append(str(error))
        ready.close()
        pipe.send(answers)

    context: Any = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=child, args=(there,))
    process.start()
    assert here.poll(PATIENCE_S)
    answers = here.recv()
    process.join(PATIENCE_S)
    assert len(answers) == 3
    assert "Make a producer in this process" in answers[0]
    with ready.transaction():
        ready.send("topic", b"the parent goes on")


def test_a_producer_cannot_be_pickled_and_the_error_names_a_picklable_alternative(ready):
    with pytest.raises(TypeError, match="Send its settings instead"):
        pickle.dumps(ready)


def test_a_wrong_setting_is_refused_before_a_thread_is_started(client):
    threads = threading.active_count()
    with pytest.raises(UnknownConfigError, match="linger_ms"):
        TransactionalProducer("boot:9092", "txn", linger_m=5)
    assert threading.active_count() == threads


def test_a_configuration_made_before_is_taken_as_it_is(client):
    config = ProducerConfig.build(bootstrap_servers="boot:9092", transactional_id="mine")
    with TransactionalProducer.from_config(config) as one:
        assert repr(one) == "<TransactionalProducer 'mine' UNINITIALIZED>"
    assert repr(one) == "<TransactionalProducer 'mine' closed>"


def test_a_closed_producer_names_the_call_that_it_refuses(ready):
    ready.begin_transaction()
    ready.close()
    with pytest.raises(IllegalStateError, match=r"^cannot call send\(\): the producer is closed"):
        ready.send("topic", b"v")
    with pytest.raises(IllegalStateError, match=r"^cannot enter a `with` block: the producer"):
        ready.__enter__()
    ready.disown()
    with pytest.raises(ForkedProducerError, match=r"^cannot call metrics\(\): the producer was"):
        ready.metrics()
    with pytest.raises(ForkedProducerError, match=r"^cannot read transaction_state: the producer"):
        _ = ready.transaction_state


# --- at the limits -------------------------------------------------------------------------------


def test_a_flush_by_default_sees_the_end_of_records_that_expire(make, client):
    one = make(None, delivery_timeout_ms=200, request_timeout_ms=200)
    client.held.add(ApiKey.PRODUCE)
    future = one.send("topic", b"value")
    one.flush()
    assert isinstance(future.exception(0), KafkaTimeoutError)


@pytest.mark.conformance("2.30")
def test_an_interrupt_on_the_way_to_the_wait_for_memory_leaves_no_place_in_the_queue(make, client):
    one = make(None, buffer_memory=70_000, batch_size=65_536, max_request_size=60_000)
    one.send("topic", b"first").result(10)
    client.held.add(ApiKey.PRODUCE)
    taken = one.send("topic", b"has the memory")
    assert one._io.wait_until(lambda: bool(client.outstanding), 10)
    entered = TransactionalProducer._send_later.__code__

    def interrupt(frame, event, argument):
        if frame.f_code is entered:
            sys.settrace(None)
            raise KeyboardInterrupt
        return interrupt

    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            one.send("topic", b"interrupted")
    finally:
        sys.settrace(before)
    client.release(ApiKey.PRODUCE)
    assert taken.result(10)
    assert one.metrics()["waiting-threads"] == 0
    assert one.send("topic", b"next").result(10)
