"""A session runs over many batches: aborts, records that always fail, pauses."""

from __future__ import annotations

import math
import signal
import threading

import pytest

from tests.live_client import SHORT_MS, commits_sent
from tests.session.consumers import (
    INPUT,
    copy,
    joined,
    offsets_sent,
    run_until,
)
from txnproducer._protocol.messages import ApiKey
from txnproducer.errors import KafkaError, ProducerFencedError
from txnproducer.session import Record
from txnproducer.session import session as session_module


def test_all_records_are_processed_in_transactions_of_a_batch_each(session, consumer, client):
    seen = []
    run_until(session, consumer, lambda record, txn: seen.append(record.offset))
    assert seen == [0, 1, 2, 3, 4, 5]
    assert offsets_sent(client) == [{INPUT: 2}, {INPUT: 4}, {INPUT: 6}]


def test_a_coroutine_function_is_refused_before_the_first_poll(session, consumer):
    async def fn(record, transaction):
        raise NotImplementedError

    polls = consumer.polls
    with pytest.raises(TypeError, match=r"is a coroutine function.*A session needs a plain"):
        session.run(fn, threading.Event())
    assert consumer.polls == polls


@pytest.mark.parametrize("topic", [None, "dead"])
def test_a_function_that_has_only_begun_commits_nothing_and_buries_no_record(
    consumer, ready, client, topic
):
    async def copy_later(record, transaction):
        copy(record, transaction)

    def generate(record, transaction):
        yield copy(record, transaction)

    session = joined(consumer, ready, dead_letter_topic=topic)
    for fn in (lambda *args: copy_later(*args), generate):
        with pytest.raises(TypeError, match="has not run to its end"):
            run_until(session, consumer, fn, retry_on=Exception)
    assert offsets_sent(client) == []
    assert True not in commits_sent(client)


def test_a_dead_letter_that_is_too_large_is_named_with_the_way_out(consumer, make, client):
    client.topics["dead"] = 1
    ready = make(max_request_size=2048)
    consumer.records = [Record("in", 0, 0, None, b"x" * 1990)]

    def fail(record, transaction):
        raise ValueError

    ready.init_transactions()
    session = joined(consumer, ready, dead_letter_topic="dead", max_failures=1)
    with pytest.raises(KafkaError) as found:
        run_until(session, consumer, fail)
    assert "The record of in-0, offset 0 " in found.value.__notes__[-1]
    assert "max_request_size" in found.value.__notes__[-1]


def test_a_run_goes_on_after_aborts_of_all_kinds(session, consumer, client):
    seen: list[int] = []
    client.prepare_txn_offset_commit(error_code=22)  # ILLEGAL_GENERATION

    def fn(record, transaction):
        seen.append(record.offset)
        copy(record, transaction)
        if len(seen) == 5:
            consumer.on_loss()

    consumer.committed = 2
    run_until(session, consumer, fn)
    assert seen[:4] == [0, 1, 0, 1]
    assert sorted(set(seen)) == [0, 1, 2, 3, 4, 5]
    assert [sent for sent in commits_sent(client) if sent] == [True] * 3


def test_a_commit_that_times_out_is_awaited_again(session, consumer, client, ready):
    ready._max_block_s = SHORT_MS / 1000
    client.held.add(ApiKey.END_TXN)
    seen: list[int] = []
    waits: list[int] = []
    usual = ready.commit_transaction

    def commit():
        waits.append(1)
        if len(waits) == 3:
            client.release(ApiKey.END_TXN)
        usual()

    ready.commit_transaction = commit
    run_until(session, consumer, lambda record, txn: seen.append(record.offset))
    assert seen == [0, 1, 2, 3, 4, 5], "each record once"
    assert commits_sent(client) == [True] * 3


@pytest.mark.parametrize("retry_on", [(), ValueError])
def test_a_run_goes_on_when_an_abort_that_has_timed_out_is_done(
    session, consumer, client, ready, retry_on
):
    ready._max_block_s = SHORT_MS / 1000
    client.held.add(ApiKey.END_TXN)
    calls: list[int] = []
    usual, begun = ready.transaction, []

    def transaction():
        begun.append(1)
        if len(begun) == 4:
            client.release(ApiKey.END_TXN)
            ready._max_block_s = 10
        return usual()

    def fn(record, transaction):
        calls.append(record.offset)
        copy(record, transaction)
        if len(calls) == 1:
            transaction.send("topic", b"").result(10)
            raise ValueError("of the record")

    ready.transaction = transaction
    run_until(session, consumer, fn, retry_on=retry_on)
    assert calls == [0, 0, 1, 2, 3, 4, 5], "not called while the abort goes on"
    assert offsets_sent(client) == [{INPUT: 2}, {INPUT: 4}, {INPUT: 6}]


def test_a_record_that_always_fails_goes_to_the_dead_letter_topic_with_its_batch(
    consumer, ready, client
):
    client.topics["dead"] = 1
    session = joined(consumer, ready, max_failures=2, dead_letter_topic="dead")
    seen: list[int] = []

    def fn(record, transaction):
        seen.append(record.offset)
        if record.offset == 1:
            raise ValueError("of the record")

    run_until(session, consumer, fn)
    assert seen == [0, 1, 0, 1, 0, 2, 3, 4, 5]
    assert [sent for sent in commits_sent(client) if sent] == [True] * 3
    assert len(session._failures) == 0


def test_without_a_dead_letter_topic_the_last_exception_is_raised(consumer, ready):
    session = joined(consumer, ready, max_failures=2)
    calls: list[int] = []

    def fn(record, transaction):
        calls.append(record.offset)
        raise ValueError("of the record")

    with pytest.raises(ValueError, match="of the record"):
        run_until(session, consumer, fn)
    assert calls == [0, 0]
    assert session._goes_back()
    assert consumer.position == 0, "it would be read again"


def test_an_outage_of_the_program_sends_no_record_to_the_dead_letter_topic(
    consumer, ready, client
):
    client.topics["dead"] = 1
    session = joined(consumer, ready, max_failures=1, dead_letter_topic="dead")
    calls: list[int] = []

    def fn(record, transaction):
        calls.append(record.offset)
        copy(record, transaction)
        if len(calls) < 5:
            raise ConnectionError("the database is down")

    run_until(session, consumer, fn, retry_on=ConnectionError)
    assert calls == [0] * 4 + [0, 1, 2, 3, 4, 5]
    assert [sent for sent in commits_sent(client) if sent] == [True] * 3
    assert len(client.sent(ApiKey.TXN_OFFSET_COMMIT)) == 3


def test_failures_of_records_that_went_elsewhere_are_forgotten(consumer, ready, client):
    session = joined(consumer, ready, max_failures=9)
    calls: list[int] = []

    def fn(record, transaction):
        calls.append(record.offset)
        if len(calls) == 1:
            raise ValueError("of the record")
        if len(calls) == 2:
            assert len(session._failures) == 1
            consumer.on_loss()
            consumer.assigned, consumer.position, consumer.committed = set(), 6, 6

    run_until(session, consumer, fn)
    assert calls == [0, 0, 1]
    assert len(session._failures) == 0


def test_a_failure_before_the_committed_offset_is_forgotten_with_the_next_batch(consumer, ready):
    session = joined(consumer, ready, max_failures=9)
    calls: list[int] = []

    def fn(record, transaction):
        calls.append(record.offset)
        if len(calls) == 1:
            consumer.committed = 2  # by another consumer, which had the partition meanwhile
            consumer.on_loss()
            raise ValueError("of the record")

    run_until(session, consumer, fn)
    assert calls == [0, 2, 3, 4, 5]
    assert len(session._failures) == 0


def test_a_producer_that_has_failed_ends_the_run(session, consumer, client):
    client.prepare_produce(error_code=90)  # PRODUCER_FENCED

    with pytest.raises(ProducerFencedError):
        run_until(session, consumer, copy)


@pytest.fixture
def pauses(monkeypatch):
    """Return the seconds of a session's pauses, which take none."""
    found: list[float] = []
    monkeypatch.setattr(session_module, "pause", lambda stop, seconds: found.append(seconds))
    return found


def steps(seconds):
    """Return of pauses how often the first one was doubled: their jitter is a fifth."""
    return [round(math.log2(each / 0.05)) for each in seconds if each]


def test_pauses_grow_while_a_failure_lasts(session, client, pauses, monkeypatch):
    stop = threading.Event()

    def note(given, seconds):
        assert given is stop
        pauses.append(seconds)
        if len(pauses) == 9:
            stop.set()

    monkeypatch.setattr(session_module, "pause", note)
    for _ in range(20):
        client.prepare_txn_offset_commit(error_code=22)
    session.run(copy, stop)
    assert steps(pauses[:6]) == [0, 1, 2, 3, 4, 5]
    assert 4.0 <= pauses[-1] <= 6.0, "5 s at most, and their jitter"


def test_pauses_are_short_again_after_a_commit(session, consumer, client, pauses):
    for code in (22, 22, 22, 0, 22, 22):
        client.prepare_txn_offset_commit(error_code=code)
    run_until(session, consumer, copy)
    assert steps(pauses) == [0, 1, 2, 0, 1]


def test_each_record_that_fails_is_waited_for_by_its_own_failures(consumer, ready, client, pauses):
    client.topics["dead"] = 1
    session = joined(consumer, ready, dead_letter_topic="dead")

    def fn(record, transaction):
        raise ValueError("of the record")

    run_until(session, consumer, fn)
    assert steps(pauses) == [0, 1, 2] * 6, "six records, two in a batch"


def test_a_handler_of_a_signal_may_set_the_event_during_a_pause(session, consumer):
    class Trap(threading.Event):
        """An event as it is for a handler that has come in the midst of `wait`."""

        def wait(self, timeout=None):
            pytest.fail("a handler that sets the event now would wait for its lock for ever")

    calls: list[int] = []
    stop = Trap()

    def fn(record, transaction):
        calls.append(1)
        if len(calls) == 3:
            signal.setitimer(signal.ITIMER_REAL, 0.05)  # in the pause of 0.16 s at least
        raise ConnectionError

    before = signal.signal(signal.SIGALRM, lambda *_: stop.set())
    try:
        session.run(fn, stop, retry_on=ConnectionError)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(calls) == 3
