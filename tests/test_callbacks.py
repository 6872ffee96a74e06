"""In a delivery callback a call that would have to wait is refused, and no error is silent."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest

from tests.live_client import LiveClient, use_live_clients
from tests.waiting import wait_until
from txnproducer import TransactionalProducer
from txnproducer._protocol.messages import ApiKey
from txnproducer.errors import IllegalStateError, KafkaError
from txnproducer.records import ConsumerGroupMetadata, TopicPartition

PATIENCE_S = 10.0
CALLS = {
    "init_transactions": lambda one: one.init_transactions(),
    "commit_transaction": lambda one: one.commit_transaction(),
    "abort_transaction": lambda one: one.abort_transaction(),
    "send_offsets_to_transaction": lambda one: one.send_offsets_to_transaction(
        {TopicPartition("in", 0): 5}, ConsumerGroupMetadata("group")
    ),
    "lease": lambda one: one.lease(1),
    "hand over": lambda one: one.lease(0),
    "flush": lambda one: one.flush(),
    "partitions_for": lambda one: one.partitions_for("other"),
    "resolve_outcome": lambda one: one.resolve_outcome(),
}


@pytest.fixture
def client(monkeypatch):
    client = LiveClient(topics={"topic": 1, "other": 1})
    use_live_clients(monkeypatch, lambda: client)
    return client


@pytest.fixture
def one(client):
    with TransactionalProducer("boot:9092", "txn", linger_ms=0, max_block_ms=10_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        yield producer


def test_a_callback_that_cannot_be_called_is_refused_and_nothing_is_sent(one):
    future = one.send("topic", b"makes a batch, so that the next may take the fast path")
    for _ in range(2):
        with pytest.raises(TypeError, match="on_delivery must be a function"):
            one.send("topic", b"value", on_delivery=5)
        future = one.send("topic", b"value")
    assert future.result(PATIENCE_S).offset == 2


def in_callback(one, call):
    """Make a call in a delivery callback, and return the error that it raised, or None."""
    raised: list[Any] = []
    has_run = threading.Event()

    def callback(*_):
        try:
            call(one)
        except KafkaError as error:
            raised.append(error)
        else:
            raised.append(None)
        has_run.set()

    one.send("topic", b"first", on_delivery=callback).result(PATIENCE_S)
    assert has_run.wait(PATIENCE_S)
    return raised[0]


def state_of(one, client):
    with one._lock:
        core, manager = one._core, one._core.transaction_manager
        return (
            one.transaction_state,
            manager._pending.unseen(),
            len(manager.requests.queue),
            manager.share.part,
            manager.share.is_leasing,
            manager.last_commit,
            sorted(core._metadata._wanted),
            core._accumulator.is_flush_in_progress,
            [kind for kind in client.sent_kinds() if kind is not ApiKey.PRODUCE],
        )


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_that_would_wait_in_a_callback_changes_nothing(one, client, call):
    seen: list[Any] = []

    def look_and_call(producer):
        seen.append(state_of(producer, client))
        try:
            call(producer)
        finally:
            seen.append(state_of(producer, client))

    assert isinstance(in_callback(one, look_and_call), IllegalStateError)
    before, after = seen
    assert before == after
    one.send("topic", b"second")
    one.commit_transaction()
    assert [request.is_commit for request in client.sent(ApiKey.END_TXN)] == [True]


def test_a_block_in_which_a_callback_tries_to_commit_is_committed_whole_or_not_at_all(one, client):
    one.abort_transaction()
    with contextlib.suppress(ValueError), one.transaction() as transaction:
        assert in_callback(one, lambda producer: producer.commit_transaction()) is not None
        raise ValueError("the second half")
    assert transaction.outcome == "aborted"
    assert not any(request.is_commit for request in client.sent(ApiKey.END_TXN))


def test_known_partitions_are_returned_in_a_callback(one):
    one.partitions_for("other")
    assert in_callback(one, lambda producer: producer.partitions_for("other")) is None


# --- records that a callback cannot send


def test_a_question_for_a_new_topic_that_leaves_a_callback_fails_the_transaction(one, client):
    has_run = threading.Event()

    def ask_and_send(*_):
        try:
            one.send("dead letters", b"value", partition=len(one.partitions_for("other")) - 1)
        finally:
            has_run.set()

    one.send("topic", b"first", on_delivery=ask_and_send).result(PATIENCE_S)
    assert has_run.wait(PATIENCE_S)
    assert_is_not_committed(one, client, "other")


def test_a_question_for_a_new_topic_that_a_callback_catches_leaves_the_transaction_alone(
    one, client
):
    assert in_callback(one, lambda producer: producer.partitions_for("other")) is not None
    one.commit_transaction()
    assert [request.is_commit for request in client.sent(ApiKey.END_TXN)] == [True]


ROWS = {
    "send": lambda one, topic: one.send(topic, b"x" * 16_000),
    "send_batch": lambda one, topic: one.send_batch(topic, [b"x" * 16_000]),
    "send_batch by key": lambda one, topic: one.send_batch(topic, [b"x" * 16_000], [b"key"]),
    "send_batch by partition": lambda one, topic: one.send_batch(
        topic, [b"x" * 16_000], None, None, [0]
    ),
}


def assert_is_not_committed(one, client, topic):
    with pytest.raises(KafkaError, match=f"callback could not send to '{topic}'") as raised:
        one.commit_transaction()
    assert raised.value.recovery == "abort"
    one.abort_transaction()
    assert not any(request.is_commit for request in client.sent(ApiKey.END_TXN))
    with one.transaction():
        one.send(topic, b"next").result(PATIENCE_S)


@pytest.mark.parametrize("send", ROWS.values(), ids=ROWS)
def test_a_record_that_would_wait_for_its_topic_in_a_callback_fails_the_transaction(
    one, client, send
):
    raised = in_callback(one, lambda producer: send(producer, "other"))
    assert isinstance(raised, IllegalStateError)
    assert_is_not_committed(one, client, "other")


@pytest.mark.parametrize(
    ("send", "reason"),
    [
        (lambda one: one.send("a b", b"v"), "'a b' is not a valid topic name"),
        (lambda one: one.send_batch("a b", [b"v"]), "'a b' is not a valid topic name"),
        (
            lambda one: one.send("topic", b"v", partition=9),
            "has no partition 9: its highest partition number is 0",
        ),
        (
            lambda one: one.send_batch("topic", [b"v"], None, None, [9]),
            "has no partition 9: its highest partition number is 0",
        ),
        (lambda one: one.send("other", b"v", partition=9), "had to wait for metadata"),
    ],
)
def test_a_record_that_has_no_place_is_refused_in_a_callback_with_this_reason(one, send, reason):
    raised = in_callback(one, send)
    assert isinstance(raised, IllegalStateError)
    assert reason in str(raised) or "wait" in reason
    with pytest.raises(KafkaError, match="could not send to") as told:
        one.commit_transaction()
    assert reason in str(told.value)
    assert told.value.recovery == "abort"
    one.abort_transaction()


@pytest.mark.parametrize("send", ROWS.values(), ids=ROWS)
def test_a_record_that_would_wait_for_memory_in_a_callback_fails_the_transaction(client, send):
    with TransactionalProducer(
        "boot:9092", "txn", linger_ms=0, buffer_memory=40_000, max_block_ms=10_000
    ) as one:
        one.init_transactions()
        one.partitions_for("other")
        one.begin_transaction()

        def fill_and_send(producer):
            with producer._lock:
                client.held.add(ApiKey.PRODUCE)
            for _ in range(2):
                producer.send("topic", b"x" * 16_000, partition=0)
            send(producer, "other")

        raised = in_callback(one, fill_and_send)
        assert isinstance(raised, IllegalStateError)
        assert one.metrics()["waiting-threads"] == 0
        with one._lock:
            client.release(ApiKey.PRODUCE)
        assert_is_not_committed(one, client, "other")


@pytest.mark.parametrize("send", ROWS.values(), ids=ROWS)
def test_a_record_sent_in_a_callback_during_the_commit_fails_it_or_comes_too_late(
    one, client, send
):
    one.partitions_for("other")
    raised: list[BaseException] = []
    ends_before: list[int] = []

    def callback(*_):
        ends_before.append(len(client.sent(ApiKey.END_TXN)))
        try:
            send(one, "other")
        except IllegalStateError as error:
            raised.append(error)
            raise

    client.held.add(ApiKey.PRODUCE)
    one.send("topic", b"value", on_delivery=callback)
    committing = threading.Timer(0.1, client.release, (ApiKey.PRODUCE,))
    committing.start()
    with pytest.raises(KafkaError, match="callback could not send to 'other'") as told:
        one.commit_transaction()
    assert told.value.recovery == "abort"
    assert "commit" in str(told.value)
    assert "commit_transaction() is under way" in str(raised[0])
    assert ends_before == [0]
    one.abort_transaction()
    assert not any(request.is_commit for request in client.sent(ApiKey.END_TXN))


# --- refusals that say what the caller did wrong


REFUSED = {
    "a value of a wrong type": lambda one: one.send("other", 5),
    "a key of a wrong type": lambda one: one.send("other", b"value", key="key"),
    "a header": lambda one: one.send("other", b"value", headers=[("name", 5)]),
    "no topic": lambda one: one.send("", b"value"),
    "a negative partition": lambda one: one.send("other", b"value", partition=-1),
    "a column of a wrong type": lambda one: one.send_batch("other", [5]),
    "a row that is too large": lambda one: one.send_batch("other", [b"x" * 2_000_000]),
    "a negative partition of rows": lambda one: one.send_arrow("other", None, partition=-1),
}
refusals = pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)


def running(one, call):
    """Run a call in a delivery callback, and wait until the callback has ended."""
    one.send("topic", b"first", on_delivery=lambda *_: call(one))
    one.flush(PATIENCE_S)


@refusals
def test_a_refusal_that_a_callback_catches_changes_nothing(one, client, call):
    def catching(producer):
        with pytest.raises((TypeError, ValueError, KafkaError)):
            call(producer)

    running(one, catching)
    assert one.transaction_state == "IN_TRANSACTION"
    one.commit_transaction()
    assert [request.is_commit for request in client.sent(ApiKey.END_TXN)] == [True]


@refusals
def test_a_refusal_that_leaves_a_callback_fails_the_transaction(one, client, call):
    running(one, call)
    with pytest.raises(KafkaError, match="callback could not send to") as raised:
        one.commit_transaction()
    assert raised.value.recovery == "abort"
    assert isinstance(raised.value.__cause__, TypeError | ValueError | KafkaError)
    one.abort_transaction()
    assert not any(request.is_commit for request in client.sent(ApiKey.END_TXN))


def test_offsets_that_a_callback_cannot_send_fail_the_transaction(one, client):
    running(one, CALLS["send_offsets_to_transaction"])
    with pytest.raises(KafkaError, match="the offsets are not in this transaction") as raised:
        one.commit_transaction()
    assert raised.value.recovery == "abort"
    one.abort_transaction()
    assert not any(request.is_commit for request in client.sent(ApiKey.END_TXN))


def test_a_send_that_a_close_overtakes_in_a_callback_fails_the_commit_under_way(one, client):
    closers: list[threading.Thread] = []

    def callback(*_):
        # As its first step `close` refuses every further call; then it waits for the commit.
        closers.append(threading.Thread(target=one.close))
        closers[0].start()
        wait_until(lambda: one._refusal is not None)
        one.send("topic", b"value")

    client.held.add(ApiKey.PRODUCE)
    one.send("topic", b"value", on_delivery=callback)
    threading.Timer(0.1, client.release, (ApiKey.PRODUCE,)).start()
    with pytest.raises(KafkaError, match=r"could not send to 'topic'.*is closed"):
        one.commit_transaction()
    closers[0].join(PATIENCE_S)
    assert not any(request.is_commit for request in client.sent(ApiKey.END_TXN))


def _instead(one):
    try:
        one.send("other", 5)
    except TypeError:
        raise LookupError("what the callback makes of it") from None


def _in_a_group(one):
    errors: list[Exception] = []
    for value in (5, 6):
        try:
            one.send("other", value)
        except TypeError as error:
            errors.append(error)
    raise ExceptionGroup("all that were refused", errors)


@pytest.mark.parametrize("call", [_instead, _in_a_group])
def test_a_refusal_that_leaves_a_callback_in_another_error_fails_the_transaction(
    one, client, call
):
    running(one, call)
    assert_is_not_committed(one, client, "other")


def test_a_callback_that_fails_for_reasons_of_its_own_fails_no_transaction(one, client):
    def call(producer):
        with contextlib.suppress(TypeError):
            producer.send("other", 5)
        raise LookupError("has nothing to do with it")

    running(one, call)
    one.commit_transaction()
    assert [request.is_commit for request in client.sent(ApiKey.END_TXN)] == [True]


def test_a_refusal_during_the_commit_that_a_callback_catches_leaves_the_commit_alone(one, client):
    one.partitions_for("other")
    raised: list[BaseException] = []

    def callback(*_):
        try:
            one.send("other", b"value")
        except IllegalStateError as error:
            raised.append(error)

    client.held.add(ApiKey.PRODUCE)
    one.send("topic", b"value", on_delivery=callback)
    threading.Timer(0.1, client.release, (ApiKey.PRODUCE,)).start()
    one.commit_transaction()
    assert "commit_transaction() is under way" in str(raised[0])
