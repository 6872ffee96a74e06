"""A transaction block has an owner: no other thread can end it, or begin one in its place."""

from __future__ import annotations

import _thread
import sys
import threading

import pytest

from tests.waiting import wait_until
from txnproducer import TransactionalProducer
from txnproducer._protocol.messages import ApiKey
from txnproducer.errors import IllegalStateError, KafkaTimeoutError
from txnproducer.records import ConsumerGroupMetadata, TopicPartition

PATIENCE_S = 10.0
CALLS = {
    "init_transactions": lambda one: one.init_transactions(),
    "begin_transaction": lambda one: one.begin_transaction(),
    "transaction": lambda one: one.transaction().__enter__(),
    "commit_transaction": lambda one: one.commit_transaction(),
    "abort_transaction": lambda one: one.abort_transaction(),
}
ENDS = ["commit_transaction", "abort_transaction"]


@pytest.fixture
def one(client):
    with TransactionalProducer("boot:9092", "txn", linger_ms=0) as producer:
        producer.init_transactions()
        yield producer
        client.release(ApiKey.END_TXN)


def elsewhere(call, *arguments):
    """Make a call on a thread that ends with it, and return the error that it raised."""
    raised: list[BaseException | None] = []

    def run():
        try:
            call(*arguments)
            raised.append(None)
        except Exception as error:  # noqa: BLE001 - told to the caller
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(PATIENCE_S)
    return raised[0]


def ends_sent(client):
    return [request.is_commit for request in client.sent(ApiKey.END_TXN)]


def test_another_thread_cannot_lease_a_block(one, client):
    with one.transaction():
        refusal = elsewhere(one.lease, 0)
        assert isinstance(refusal, IllegalStateError)
        assert "cannot call lease(): a transaction block is open" in str(refusal)
        one.send("topic", b"mine")  # nothing was handed over
    assert ends_sent(client) == [True]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_another_thread_is_refused_with_advice_and_changes_nothing(one, client, call):
    with one.transaction() as block:
        first = one.send("topic", b"alice -10")
        refusal = elsewhere(call, one)
        assert isinstance(refusal, IllegalStateError)
        assert "one lock around each block" in str(refusal)
        assert "a producer for each worker" in str(refusal)
        assert one.transaction_state == "IN_TRANSACTION"
        one.send("topic", b"bob +10")
    assert block.outcome == "committed"
    assert first.done()
    assert ends_sent(client) == [True]


@pytest.mark.parametrize("end", ENDS)
def test_the_thread_that_has_entered_it_may_end_it(one, end):
    with one.transaction() as block:
        one.send("topic", b"value")
        getattr(one, end)()
        assert block.outcome == {"commit": "committed", "abort": "aborted"}[end.split("_")[0]]
        # Its transaction is over, so the next one may begin anywhere.
        assert elsewhere(one.begin_transaction) is None
    one.abort_transaction()


@pytest.mark.parametrize("error", [None, ValueError("the user's")])
def test_its_own_end_may_come_on_any_thread(one, client, error):
    block = one.transaction()
    block.__enter__()
    one.send("topic", b"value")
    kind = None if error is None else ValueError
    assert elsewhere(block.__exit__, kind, error, None) is None
    assert block.outcome == ("committed" if error is None else "aborted")
    assert ends_sent(client) == [error is None]


def test_while_it_ends_on_another_thread_that_one_owns_it(one, client):
    block = one.transaction()
    block.__enter__()
    one.send("topic", b"value").result(PATIENCE_S)
    client.held.add(ApiKey.END_TXN)
    leaving = threading.Thread(target=block.__exit__, args=(None, None, None))
    leaving.start()
    assert one._io.wait_until(lambda: bool(client.sent(ApiKey.END_TXN)), PATIENCE_S)
    with pytest.raises(IllegalStateError, match="another thread's"):
        one.abort_transaction()
    client.release(ApiKey.END_TXN)
    leaving.join(PATIENCE_S)
    assert block.outcome == "committed"


@pytest.mark.parametrize("end", ENDS)
def test_any_thread_may_end_it_once_the_thread_that_entered_it_has_ended(one, end):
    block = one.transaction()
    assert elsewhere(block.__enter__) is None
    one.send("topic", b"value")
    getattr(one, end)()
    assert block.outcome != "open"


def test_any_thread_may_go_on_with_a_commit_that_has_timed_out_at_its_end(one, client):
    client.held.add(ApiKey.END_TXN)
    one._max_block_s = 0.05
    block = one.transaction()
    with pytest.raises(KafkaTimeoutError):
        with block:
            one.send("topic", b"value")
    client.release(ApiKey.END_TXN)
    one._max_block_s = PATIENCE_S
    assert elsewhere(one.commit_transaction) is None
    assert block.outcome == "committed"


def test_records_and_offsets_come_from_any_thread_and_any_thread_may_close(one):
    block = one.transaction()
    block.__enter__()
    offsets = ({TopicPartition("in", 0): 5}, ConsumerGroupMetadata("group"))
    assert elsewhere(one.send, "topic", b"value") is None
    assert elsewhere(block.send, "topic", b"value") is None
    assert elsewhere(one.send_offsets_to_transaction, *offsets) is None
    assert elsewhere(one.close) is None
    assert block.outcome == "aborted"


def test_a_transaction_without_a_block_belongs_to_no_thread(one):
    one.begin_transaction()
    one.send("topic", b"value")
    assert elsewhere(one.commit_transaction) is None


def test_ownership_is_one_check_that_can_be_replaced(one, monkeypatch):
    """As for tasks of an event loop, which share a thread."""
    task = ["first"]

    def calling_task():
        owner = task[0]
        return lambda: task[0] == owner

    monkeypatch.setattr(TransactionalProducer, "_block_owner", staticmethod(calling_task))
    with one.transaction():
        one.send("topic", b"value")
        task[0] = "second"
        for call in CALLS.values():
            with pytest.raises(IllegalStateError, match="each block"):
                call(one)
        task[0] = "first"
        one.commit_transaction()


def test_any_thread_may_end_it_once_a_thread_not_started_by_threading_has_ended(one):
    idents: list[int] = []

    def enter():
        block = one.transaction()
        block.__enter__()
        idents.append(_thread.get_ident())

    _thread.start_new_thread(enter, ())
    wait_until(lambda: idents and idents[0] not in sys._current_frames())
    one.abort_transaction()
    assert one.transaction_state == "READY"
