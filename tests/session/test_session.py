"""A session: offsets with their results, the way back after an abort, records that always fail."""

from __future__ import annotations

import math
import signal
import threading
import time
from functools import partial
from typing import Any

import pytest

from tests.live_client import PATIENCE_S, SHORT_MS, commits_sent
from txnproducer._protocol.messages import ApiKey
from txnproducer._shell.refusals import timed_out as timed_out_error
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    IllegalStateError,
    InvalidConfigurationError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
)
from txnproducer.records import ConsumerGroupMetadata, TopicPartition
from txnproducer.session import Batch, Record, TransactSession
from txnproducer.session import session as session_module

INPUT = TopicPartition("in", 0)
METADATA = ConsumerGroupMetadata("group", 3, "member")


class Consumer:
    """Hands out records from its position, and notes where it is set to."""

    def __init__(self, count: int = 6, position: int = 0) -> None:
        self.records = [
            Record("in", 0, n, b"key", b"%d" % n, [("name", b"header")]) for n in range(count)
        ]
        self.position = position
        self.committed = 0
        self.log: list[Any] = []
        self.on_loss: Any = None
        self.loses_in_poll = False
        self.metadata = METADATA
        self.assigned = {INPUT}
        self.polls = 0
        self.leaves_in_s = 0.0

    def check(self):
        self.log.append("check")

    def subscribe(self, topics, on_loss):
        self.log.append(("subscribe", list(topics)))
        self.on_loss = on_loss

    def poll(self, timeout_s, most):
        self.polls += 1
        found = self.records[self.position : self.position + most]
        self.position += len(found)
        if self.loses_in_poll:
            self.loses_in_poll = False
            self.on_loss()
        return found

    def group_metadata(self):
        return self.metadata

    def seek(self, offsets):
        self.log.append(("seek", offsets))
        self.position = offsets[INPUT]
        return True

    def assignment(self):
        return self.assigned

    def rewind(self, first):
        self.log.append("rewind")
        self.position = self.committed
        return True

    def close(self, timeout_s):
        self.log.append(("close", timeout_s))
        time.sleep(self.leaves_in_s)


@pytest.fixture
def consumer():
    return Consumer()


def joined(consumer, producer, **settings):
    """Return a session that has joined its group, which takes two polls."""
    session = TransactSession(consumer, producer, ["in"], **settings)
    assert len(session.poll(max_records=1)) == 0
    assert session._goes_back()
    consumer.log.clear()
    return session


@pytest.fixture
def session(consumer, ready):
    return joined(consumer, ready)


def offsets_sent(client):
    return [
        {place: one.offset for place, one in dict(request.offsets).items()}
        for request in client.sent(ApiKey.TXN_OFFSET_COMMIT)
    ]


def copy(record, transaction):
    transaction.send("topic", record.value)


# --- one batch -----------------------------------------------------------------------------------


def test_a_batch_is_committed_with_the_offset_after_its_last_record(session, consumer, client):
    batch = session.poll(max_records=4)
    assert [record.offset for record in batch] == [0, 1, 2, 3]
    with session.transaction(batch) as transaction:
        for record in batch:
            copy(record, transaction)
    assert transaction.outcome == "committed"
    assert offsets_sent(client) == [{INPUT: 4}]
    (request,) = client.sent(ApiKey.TXN_OFFSET_COMMIT)
    assert (request.generation_id, request.member_id) == (3, "member")
    assert [record.offset for record in session.poll()] == [4, 5]


def test_offsets_of_several_partitions_and_gaps_of_markers_are_right():
    records = [Record("in", place, n, None, b"") for place, n in ((0, 5), (1, 7), (0, 9), (1, 8))]
    batch = Batch(records)
    other = TopicPartition("in", 1)
    assert batch.next_offsets == {INPUT: 10, other: 9}
    assert batch.first_offsets == {INPUT: 5, other: 7}


def test_an_exception_aborts_and_the_batch_is_read_again(session, consumer, client):
    batch = session.poll(max_records=4)
    block = session.transaction(batch)
    with pytest.raises(ZeroDivisionError), block as transaction:
        copy(batch[0], transaction) or batch[1 // 0]
    assert block.outcome == "aborted"
    assert [record.offset for record in session.poll(max_records=2)] == [0, 1]
    assert consumer.log[-1] == ("seek", {INPUT: 0})
    assert commits_sent(client) == [False]


@pytest.mark.parametrize("when", ["in the block", "before it"])
def test_lost_partitions_abort_without_an_exception(session, consumer, client, when):
    batch = session.poll(max_records=4)
    if when == "before it":
        consumer.on_loss()
    block = session.transaction(batch)
    with block as transaction:
        copy(batch[0], transaction)
        if when == "in the block":
            consumer.on_loss()
    assert block.outcome == "aborted"
    session.poll()
    assert consumer.log[-1] == "rewind", "another consumer may have gone on"
    assert commits_sent(client) == [False]
    assert offsets_sent(client) == []


def test_records_of_partitions_that_were_lost_in_the_poll_are_not_handed_out(session, consumer):
    consumer.loses_in_poll = True
    assert len(session.poll(max_records=4)) == 0
    assert [record.offset for record in session.poll(max_records=2)] == [0, 1]
    assert consumer.log[-1] == "rewind"


@pytest.mark.parametrize(
    "identity", [("group", 4, "member"), ("group", 3, "another"), ("group", -1, "")]
)
def test_a_changed_identity_sets_all_positions_back_to_the_committed_ones(
    session, consumer, identity
):
    consumer.metadata = ConsumerGroupMetadata(*identity)
    consumer.committed = 2  # by another consumer, which had the partition meanwhile
    assert len(session.poll(max_records=4)) == 0, "a commit could not be fenced"
    consumer.metadata = ConsumerGroupMetadata("group", 5, "member")
    assert len(session.poll(max_records=4)) == 0
    assert [record.offset for record in session.poll(max_records=2)] == [2, 3]
    assert consumer.log.count("rewind") >= 2


@pytest.mark.parametrize(
    "identity", [("group", -1, ""), ("group", 3, ""), ("group", -1, "member")]
)
def test_records_are_not_handed_out_while_the_consumer_is_outside_its_group(
    session, consumer, identity
):
    consumer.metadata = ConsumerGroupMetadata(*identity)
    assert [len(session.poll(max_records=4)) for _ in range(4)] == [0, 0, 0, 0]


def test_a_way_back_that_fails_is_tried_again_before_the_next_poll(session, consumer):
    consumer.on_loss()
    consumer.loses_in_poll = True
    session.poll(max_records=4)
    usual, left = consumer.rewind, [2]

    def rewind(first):
        left[0] -= 1
        if left[0] == 1:
            raise ZeroDivisionError
        return left[0] < 0 and usual(first)

    consumer.rewind = rewind
    with pytest.raises(ZeroDivisionError):
        session.poll(max_records=4)
    assert len(session.poll(max_records=4)) == 0, "the offsets are not known yet"
    assert [record.offset for record in session.poll(max_records=2)] == [0, 1]


def test_the_consumer_is_polled_while_the_way_back_is_not_known_and_its_records_come_again(
    session, consumer
):
    batch = session.poll(max_records=2)
    with session.transaction(batch):
        consumer.on_loss()
    asked: list[Any] = []

    def rewind(first):
        asked.append(first)
        if len(asked) == 3:
            consumer.position = first[INPUT]
        return len(asked) == 3

    consumer.rewind = rewind
    consumer.polls = 0
    assert [len(session.poll(max_records=2)) for _ in range(2)] == [0, 0]
    assert consumer.polls == 2, "a member that does not poll is given up by its group"
    assert [record.offset for record in session.poll(max_records=2)] == [0, 1]
    assert asked == [{INPUT: 0}] * 3


def test_records_that_an_interrupt_takes_away_come_again(session, consumer):
    usual = consumer.group_metadata

    def interrupted():
        consumer.group_metadata = usual
        raise KeyboardInterrupt

    consumer.group_metadata = interrupted
    with pytest.raises(KeyboardInterrupt):
        session.poll(max_records=2)
    assert [record.offset for record in session.poll(max_records=2)] == [0, 1]


def test_committed_offsets_that_stay_unknown_are_logged(session, consumer, caplog):
    with session.transaction(session.poll(max_records=2)):
        consumer.on_loss()
    usual, consumer.rewind = consumer.rewind, lambda first: False
    for _ in range(61):
        session.poll(max_records=2)
    assert caplog.text.count("transaction with offsets of this group") == 2
    consumer.rewind = usual
    assert len(session.poll(max_records=2)) == 2


def test_partitions_that_are_lost_on_the_way_back_are_noticed(session, consumer):
    with session.transaction(session.poll(max_records=2)):
        consumer.on_loss()
    usual, losses = consumer.rewind, [consumer.on_loss]

    def rewind(first):
        done = usual(first)
        while losses:
            losses.pop()()
        return done

    consumer.rewind = rewind
    assert len(session.poll(max_records=2)) == 0
    assert [record.offset for record in session.poll(max_records=2)] == [0, 1]


def test_a_static_member_that_is_fenced_ends_the_run(session, consumer, client):
    client.prepare_txn_offset_commit(error_code=82)  # FENCED_INSTANCE_ID
    with pytest.raises(KafkaError, match="instance"):
        run_until(session, consumer, copy)


def test_a_result_that_is_too_large_is_a_failure_of_its_record(consumer, make, client):
    producer = make(max_request_size=1000)
    producer.init_transactions()
    session = joined(consumer, producer, max_failures=1, dead_letter_topic="topic")

    def fn(record, transaction):
        future = transaction.send("topic", bytes(2000) if record.offset == 1 else b"")
        future.result(10)

    run_until(session, consumer, fn)
    assert [sent for sent in commits_sent(client) if sent] == [True] * 3


@pytest.mark.parametrize("code", [22, 25], ids=["generation", "member"])
def test_a_consumer_that_the_group_has_given_up_on_aborts_and_polls_on(
    session, consumer, client, code
):
    batch = session.poll(max_records=4)
    client.prepare_txn_offset_commit(error_code=code)
    block = session.transaction(batch)
    with block as transaction:
        copy(batch[0], transaction)
    assert block.outcome == "aborted"
    assert len(session.poll()) > 0


def test_a_batch_that_is_left_out_is_noticed_at_the_next_poll(session):
    batch = session.poll(max_records=4)
    with pytest.raises(IllegalStateError, match="would be skipped"):
        session.poll()
    with pytest.raises(IllegalStateError, match="not the open batch"):
        session.transaction(Batch(batch.records))


def test_an_empty_batch_needs_no_transaction(ready):
    session = TransactSession(Consumer(count=0), ready, ["in"])
    assert len(session.poll()) == len(session.poll()) == 0


# --- a commit that does not end in time ----------------------------------------------------------


def step(session):
    """Take a step of a loop by hand. Return the offsets of its batch."""
    batch = session.poll(max_records=2)
    if batch:
        with session.transaction(batch) as transaction:
            for record in batch:
                copy(record, transaction)
    return [record.offset for record in batch]


def timed_out(session, client, ready):
    """Take a step whose commit times out, and return its error."""
    ready._max_block_s = SHORT_MS / 1000
    client.held.add(ApiKey.END_TXN)
    with pytest.raises(KafkaTimeoutError) as caught:
        step(session)
    return caught.value


def test_a_commit_that_has_timed_out_is_awaited_by_the_next_polls(session, client, ready):
    errors = [timed_out(session, client, ready)]
    with pytest.raises(KafkaTimeoutError) as caught:
        session.poll()
    errors.append(caught.value)
    for error in errors:
        assert "the next poll() of the session waits for it" in str(error)
        assert "_transaction() again" not in str(error)
        assert "abort_transaction()" not in str(error)
        assert ".." not in str(error)
    client.release(ApiKey.END_TXN)
    ready._max_block_s = PATIENCE_S
    assert [step(session) for _ in range(3)] == [[2, 3], [4, 5], []]
    assert offsets_sent(client) == [{INPUT: 2}, {INPUT: 4}, {INPUT: 6}]


def test_a_batch_whose_commit_goes_on_is_not_processed_again(session, client, ready):
    timed_out(session, client, ready)
    with pytest.raises(IllegalStateError, match="poll again, which waits"):
        session.transaction(session._open)
    client.release(ApiKey.END_TXN)


def test_a_late_commit_that_fails_is_aborted_and_read_again(session, client, ready):
    timed_out(session, client, ready)
    client.prepare_end_txn(error_code=120)  # TRANSACTION_ABORTABLE
    client.release(ApiKey.END_TXN)
    ready._max_block_s = PATIENCE_S
    assert [record.offset for record in session.poll(max_records=2)] == [0, 1]
    assert commits_sent(client) == [True, False]


@pytest.mark.parametrize(
    ("outcome", "read"), [("committed", [2, 3]), ("aborted", [0, 1]), ("unknown", None)]
)
def test_a_lost_outcome_is_found_out_by_the_next_poll(session, ready, monkeypatch, outcome, read):
    batch = session.poll(max_records=2)
    block = session.transaction(batch)
    lost = CommitOutcomeUnknownError("its answer is lost")

    def commit():
        block._block.outcome = "unknown"
        raise lost

    monkeypatch.setattr(ready, "commit_transaction", commit)
    with pytest.raises(CommitOutcomeUnknownError), block as transaction:
        copy(batch[0], transaction)

    def resolve():
        block._block.outcome = outcome

    monkeypatch.setattr(ready, "resolve_outcome", resolve)
    if read is None:
        for _ in range(2):
            with pytest.raises(CommitOutcomeUnknownError, match="make a new one"):
                session.poll(max_records=2)
    else:
        assert [record.offset for record in session.poll(max_records=2)] == read


def test_a_block_that_failed_is_never_committed_by_a_later_poll(
    session, consumer, client, ready, monkeypatch
):
    batch = session.poll(max_records=2)

    def abort():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ready, "abort_transaction", abort)
        with pytest.raises(KeyboardInterrupt), session.transaction(batch) as transaction:
            copy(batch[0], transaction) or batch[1 // 0]
    assert [record.offset for record in session.poll(max_records=2)] == [0, 1]
    assert True not in commits_sent(client)


def test_a_batch_whose_transaction_cannot_begin_is_read_again(session, ready, monkeypatch):
    batch = session.poll(max_records=2)
    with monkeypatch.context() as patch:
        error = timed_out_error("abort_transaction", 60)
        patch.setattr(ready._core, "begin_transaction", lambda: (_ for _ in ()).throw(error))
        with pytest.raises(
            KafkaTimeoutError, match="next poll\\(\\) of the session reads it again"
        ):
            session.transaction(batch).__enter__()
    assert step(session) == [0, 1]


def test_a_commit_that_a_run_gives_up_names_the_way_out_of_the_session(session, client, ready):
    ready._max_block_s = SHORT_MS / 1000
    client.held.add(ApiKey.END_TXN)
    with pytest.raises(KafkaTimeoutError) as caught:
        session.run(copy, threading.Event(), max_records=2)
    assert "of the session" in str(caught.value)
    assert "_transaction() again" not in str(caught.value)
    client.release(ApiKey.END_TXN)
    ready._max_block_s = PATIENCE_S
    seen = [step(session) for _ in range(4)]
    assert [offset for each in seen for offset in each][-4:] == [2, 3, 4, 5]


# --- many batches --------------------------------------------------------------------------------


def run_until(session, consumer, fn, is_done=None, **settings):
    """Run a session until all records were read and committed, or a condition holds."""
    stop = threading.Event()
    usual = consumer.poll

    def poll(timeout_s, most):
        found = usual(timeout_s, most)
        if not found:
            stop.set()
        return found

    consumer.poll = poll
    session.run(fn, stop, max_records=2, **settings)


def test_all_records_are_processed_in_transactions_of_a_batch_each(session, consumer, client):
    seen = []
    run_until(session, consumer, lambda record, txn: seen.append(record.offset))
    assert seen == [0, 1, 2, 3, 4, 5]
    assert offsets_sent(client) == [{INPUT: 2}, {INPUT: 4}, {INPUT: 6}]


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


# --- settings ------------------------------------------------------------------------------------


def test_at_least_one_call_of_the_function_is_needed(ready):
    with pytest.raises(ValueError, match="max_failures=0"):
        TransactSession(Consumer(), ready, ["in"], max_failures=0)


@pytest.mark.parametrize(
    ("library", "name", "advice"),
    [
        ("kafka", "KafkaConsumer", "KafkaPythonConsumer"),
        ("confluent_kafka", "Consumer", "for_confluent"),
        ("aiokafka", "AIOKafkaConsumer", "member id is private"),
    ],
)
def test_a_consumer_of_a_library_itself_is_refused_with_advice(ready, library, name, advice):
    consumer = getattr(pytest.importorskip(library, reason=f"{library} is missing"), name)
    with pytest.raises(InvalidConfigurationError, match=advice):
        TransactSession(consumer.__new__(consumer), ready, ["in"])


def test_a_closed_session_leaves_the_group_and_closes_the_producer(session, consumer, ready):
    with session:
        pass
    assert consumer.log[-1] == ("close", 5.0)
    with pytest.raises(KafkaError, match="closed"):
        ready.begin_transaction()


@pytest.fixture
def closes(ready, monkeypatch):
    """Return the time-outs with which the producer of a session is closed."""
    found: list[float | None] = []
    monkeypatch.setattr(ready, "close", lambda timeout=None: found.append(timeout))
    yield found
    monkeypatch.undo()


def test_a_time_out_of_close_is_for_the_consumer_and_the_producer_together(
    session, consumer, closes
):
    consumer.leaves_in_s = 0.2
    session.close(timeout=10)
    session.close(timeout=0.1)
    session.close()
    assert [each for each in consumer.log if "close" in each] == [
        ("close", 5.0),
        ("close", 0.1),
        ("close", 5.0),
    ]
    assert 9 < closes[0] <= 9.8
    assert closes[1:] == [0, None]


def test_a_negative_time_out_of_close_is_refused_before_anything_is_closed(
    session, consumer, closes
):
    with pytest.raises(ValueError, match="timeout must not be negative: -1"):
        session.close(timeout=-1)
    assert consumer.log == closes == []


def test_the_end_of_the_block_of_a_session_has_the_limits_of_that_of_a_producer(
    session, ready, closes
):
    with session:
        pass
    with pytest.raises(SystemExit), session:
        raise SystemExit
    usual, after_error = closes
    assert ready._delivery_s - 1 < usual <= ready._delivery_s
    assert 29 < after_error <= 30


@pytest.mark.parametrize(
    ("topics", "error", "text"),
    [
        ("orders", TypeError, r"topics is 'orders': .* as in \['orders'\]"),
        ([b"orders"], TypeError, "topics: a name must be a str, not b'orders'"),
        (None, TypeError, "topics: a name must be a str, not None"),
        ([], ValueError, "topics is empty"),
    ],
)
@pytest.mark.parametrize("how", ["class", "for_kafka_python", "for_confluent"])
def test_topics_that_are_no_list_of_names_are_refused_before_anything_is_made(
    ready, client, topics, error, text, how
):
    consumer = Consumer()
    count = len(client.requests)
    if how == "class":
        make = partial(TransactSession, consumer, ready)
    else:
        named = getattr(TransactSession, how)
        make = partial(
            named, group_id="group", transactional_id="txn", bootstrap_servers="localhost:1"
        )
    with pytest.raises(error, match=text):
        make(topics)
    assert consumer.log == []
    assert len(client.requests) == count, "a producer would have been fenced"
