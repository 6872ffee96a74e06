"""Calls that interrupt another one of the same producer: a signal handler's, a finalizer's.

They run in the midst of whatever their thread does, perhaps while it has the core's lock. To wait
for that would be to wait for ever.
"""

from __future__ import annotations

import signal
import threading

import pytest

from tests.live_client import use_live_clients
from txnproducer import TransactionalProducer
from txnproducer.errors import IllegalStateError, KafkaError
from txnproducer.records import ConsumerGroupMetadata, TopicPartition

PATIENCE_S = 10.0
CALLS = {
    "send": lambda one: one.send("topic", b"value"),
    "send of a bytearray": lambda one: one.send("topic", bytearray(b"value")),
    "send_batch": lambda one: one.send_batch("topic", [b"value"]),
    "flush": lambda one: one.flush(),
    "commit": lambda one: one.commit_transaction(),
    "abort": lambda one: one.abort_transaction(),
    "partitions_for": lambda one: one.partitions_for("topic"),
    "metrics": lambda one: one.metrics(),
    "init": lambda one: one.init_transactions(),
    "begin": lambda one: one.begin_transaction(),
    "offsets": lambda one: one.send_offsets_to_transaction(
        {TopicPartition("in", 0): 5}, ConsumerGroupMetadata("group")
    ),
    "lease": lambda one: one.lease(1),
    "adopt": lambda one: one.adopt([]),
    "resolve_outcome": lambda one: one.resolve_outcome(),
}


@pytest.fixture
def one(monkeypatch):
    use_live_clients(monkeypatch)
    with TransactionalProducer("boot:9092", "txn", linger_ms=10_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        yield producer


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_that_interrupts_another_one_is_refused(one, call):
    one.send("topic", b"before")
    with one._lock, pytest.raises(IllegalStateError, match="interrupts another call"):
        call(one)

    one.commit_transaction()


def test_waiting_for_a_record_there_is_refused_as_well(one):
    future = one.send("topic", b"value")
    with one._lock, pytest.raises(IllegalStateError, match="interrupts another call"):
        future.result(timeout=PATIENCE_S)


def test_another_thread_waits_as_ever(one):
    sent = []
    thread = threading.Thread(target=lambda: sent.append(one.send("topic", b"value")))
    with one._lock:
        thread.start()
        thread.join(0.05)  # in which a call that need not wait would have returned
        assert not sent
    thread.join(PATIENCE_S)
    assert len(sent) == 1


def test_a_signal_handler_closes_a_producer_in_the_midst_of_its_calls(one):
    future = one.send("topic", b"value")
    before = signal.signal(signal.SIGTERM, lambda *_: one.close())
    try:
        with one._lock:  # as the call has it that is interrupted
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)

    with pytest.raises(IllegalStateError, match="closed"):
        one.send("topic", b"too late")
    one.close()  # what the end of a `with` does, or of the process: this time it waits
    assert not one._io._thread.is_alive()
    assert future.done()
    assert one.transaction_state == "READY"  # the transaction was aborted, not left to time out


def test_a_call_that_was_interrupted_by_the_close_says_so(one):
    def interrupt(*_arguments):
        one.close()
        return False

    one._core.check_can_append = interrupt
    one.send_batch("topic", [])
    with pytest.raises(KafkaError, match="closed"):
        one.commit_transaction()
    one.close()
    assert not one._io._thread.is_alive()
