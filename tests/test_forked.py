"""A forked child that uses its parent's producer is refused at once, at any moment of the parent.

At the fork another thread has the core's lock. In the child it would never be released.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from typing import Any

import pytest

from tests.live_client import use_live_clients
from tests.waiting import wait_until
from txnproducer import TransactionalProducer, TransactionParticipant
from txnproducer._protocol.messages import ApiKey
from txnproducer.errors import KafkaError
from txnproducer.records import ConsumerGroupMetadata, TopicPartition

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork"),
    # Forking beside threads is the point.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

PATIENCE_S = 10.0
# All calls that a child may make of an inherited producer, its block, and what it has handed out.
CALLS = {
    "send": lambda x: x.one.send("topic", b"value"),
    "send of what is not usual": lambda x: x.one.send("topic", bytearray(b"value")),
    "send_batch": lambda x: x.one.send_batch("topic", [b"value"]),
    "flush": lambda x: x.one.flush(),
    "partitions_for": lambda x: x.one.partitions_for("topic"),
    "metrics": lambda x: x.one.metrics(),
    "init_transactions": lambda x: x.one.init_transactions(),
    "begin_transaction": lambda x: x.one.begin_transaction(),
    "transaction": lambda x: x.one.transaction().__enter__(),
    "send_offsets": lambda x: x.one.send_offsets_to_transaction(
        {TopicPartition("in", 0): 5}, ConsumerGroupMetadata("group")
    ),
    "commit_transaction": lambda x: x.one.commit_transaction(),
    "abort_transaction": lambda x: x.one.abort_transaction(),
    "resolve_outcome": lambda x: x.one.resolve_outcome(),
    "lease": lambda x: x.one.lease(1),
    "adopt": lambda x: x.one.adopt([]),
    "with": lambda x: x.one.__enter__(),
    "the block's send": lambda x: x.block.send("topic", b"value"),
    "the block's end": lambda x: x.block.__exit__(None, None, None),
    "future.result": lambda x: x.future.result(),
    "future.exception": lambda x: x.future.exception(),
    "future.done": lambda x: x.future.done(),
    "future.add_done_callback": lambda x: x.future.add_done_callback(print),
    "future.as_concurrent_future": lambda x: x.future.as_concurrent_future(),
    "await future": lambda x: x.future.__await__().send(None),
    "future of send_batch": lambda x: x.rows.result(),
    "done of send_batch": lambda x: x.rows.done(),
    "errors of send_batch": lambda x: x.rows.errors(),
    "transaction_state": lambda x: x.one.transaction_state,
    "participant.send": lambda x: x.participant.send("topic", b"value"),
    "participant.receipt": lambda x: x.participant.receipt(),
    "participant.transaction_state": lambda x: x.participant.transaction_state,
    "participant.metrics": lambda x: x.participant.metrics(),
}


class Inherited:
    """A producer with a block open and records on their way, and a participant."""

    def __init__(self, one, participant):
        self.one = one
        self.participant = participant
        self.block = one.transaction()
        self.block.__enter__()
        self.done = one.send("topic", b"value")
        self.done.result(PATIENCE_S)
        one._io._client.held.add(ApiKey.PRODUCE)
        self.future = one.send("topic", b"value")
        self.rows = one.send_batch("topic", [b"value"])


def make(kind=TransactionalProducer):
    return kind("boot:9092", "txn", linger_ms=0)


@pytest.fixture
def inherited(monkeypatch):
    use_live_clients(monkeypatch)
    one, participant = make(), TransactionParticipant.__new__(TransactionParticipant)
    participant._open(one._config)  # its claim is not what is asked here
    one.init_transactions()
    inherited = Inherited(one, participant)
    yield inherited
    participant.close(0)
    one.close(0)


def hold(lock, until):
    """Have a lock on another thread until an event."""
    has_it = threading.Event()

    def have():
        with lock:
            has_it.set()
            until.wait(PATIENCE_S)

    thread = threading.Thread(target=have)
    thread.start()
    assert has_it.wait(PATIENCE_S)
    return thread


def in_child(call, *arguments):
    """Run a call in a fork, and return its result, or "hangs" if it does not end."""
    context: Any = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=lambda: there.send(call(*arguments)))
    process.start()
    found = here.recv() if here.poll(PATIENCE_S) else "hangs"
    if found == "hangs":
        process.kill()
    process.join(PATIENCE_S)
    return found


def try_all(inherited):
    found = {}
    for name, call in CALLS.items():
        try:
            call(inherited)
            found[name] = "returned"
        except KafkaError as error:
            found[name] = type(error).__name__
    inherited.one.close()
    inherited.participant.close()
    return found


def test_a_block_in_a_child_is_refused_by_the_name_of_its_first_call(inherited):
    def enter(inherited):
        try:
            inherited.one.transaction().__enter__()
        except KafkaError as error:
            return str(error)

    assert in_child(enter, inherited).startswith(
        "cannot call begin_transaction(): the producer was made"
    )


def test_every_call_is_refused_while_another_thread_had_the_lock(inherited):
    over = threading.Event()
    threads = [hold(each._lock, over) for each in (inherited.one, inherited.participant)]
    try:
        found = in_child(try_all, inherited)
    finally:
        over.set()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert found == dict.fromkeys(CALLS, "ForkedProducerError")
    assert isinstance(inherited.one.metrics(), dict)  # the parent goes on


def test_a_future_that_was_done_keeps_its_result(inherited):
    assert in_child(lambda: inherited.done.result(0).topic) == "topic"
    assert in_child(inherited.done.done)


def test_a_repr_of_an_inherited_object_is_not_refused(inherited):
    told = in_child(lambda: [repr(x) for x in (inherited.one, inherited.future, inherited.rows)])
    assert told[0] == "<TransactionalProducer 'txn' forked>"
    assert "pending" in told[1]
    assert "pending" in told[2]


def test_an_exception_in_a_block_goes_on_with_a_note(inherited):
    def leave():
        try:
            with_error = ValueError("the user's")
            inherited.block.__exit__(ValueError, with_error, None)
        except KafkaError as error:
            return type(error).__name__
        return with_error.__notes__[0]

    assert "ForkedProducerError" in in_child(leave)


def test_a_future_whose_producer_is_being_closed_is_refused_as_well(inherited):
    closing = threading.Thread(target=inherited.one.close)
    closing.start()
    wait_until(lambda: inherited.one._refusal is not None)
    try:
        assert in_child(refusal, inherited.future.result) == "ForkedProducerError"
    finally:
        inherited.one._io._client.release(ApiKey.PRODUCE)
        closing.join(PATIENCE_S)
    assert inherited.future.done()


def fork_bounded():
    """Fork. A child that hangs is ended by its alarm."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(round(PATIENCE_S))
    return child


def refusal(call):
    try:
        return repr(call())
    except KafkaError as error:
        return type(error).__name__


def test_a_signal_handler_that_forks_during_a_wait_is_no_wait_in_the_child(inherited):
    here, there = os.pipe()
    children = []

    def fork(*_):
        children.append(fork_bounded())

    before = signal.signal(signal.SIGALRM, fork)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        told = refusal(lambda: inherited.future.result(0.3))
    finally:
        signal.signal(signal.SIGALRM, before)
        if children == [0]:
            os.write(there, told.encode())
            os._exit(0)
    os.close(there)
    os.waitpid(children[0], 0)
    assert told == "KafkaTimeoutError"  # in the parent
    assert os.read(here, 100) == b"ForkedProducerError"
    os.close(here)


def test_a_callback_that_forks_leaves_the_parents_connections_alone(inherited):
    """In the child the thread that drives them goes on. It must do nothing more."""
    one, children = inherited.one, []
    client = one._io._client
    here, there = os.pipe()

    def fork(_metadata, _error):
        children.append(os.fork())
        if children[-1] == 0:
            signal.alarm(round(PATIENCE_S))
            client.poll = client.close = lambda *_: os.write(there, b"touched")

    one.send("topic", b"value", on_delivery=fork)
    client.release(ApiKey.PRODUCE)
    wait_until(lambda: children)
    os.close(there)
    os.waitpid(children[0], 0)
    assert os.read(here, 100) == b""
    os.close(here)
    one.commit_transaction()
