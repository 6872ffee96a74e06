"""A batch whose answer was lost can still arrive: then it must not be there under two numbers.

No epoch keeps such a copy out before the first batch of the next one is written, nor does a new
producer id. So after any answer to a later attempt the batch keeps its number, or it fails. Java's
producer sends it again under the next number.
"""

from __future__ import annotations

import pytest

from tests.core.on_cluster import Holding, committed, make_cluster, started
from tests.core.sending import PRODUCE, idempotent, memory_taken, send_each
from tests.harness import TP0, CoreHarness
from txnproducer._core.sequences.sequence_manager import MAX_PRODUCER_EPOCH
from txnproducer._protocol.events import ResponseFailure
from txnproducer._protocol.messages import ApiKey
from txnproducer.errors import (
    ErrorCode,
    KafkaTimeoutError,
    OutOfOrderSequenceError,
    UnknownProducerIdError,
)


def test_late_copies_of_two_batches_are_not_written_besides_under_the_old_epoch():
    cluster = make_cluster()
    harness = Holding(
        cluster, transactional_id=None, request_timeout_ms=1000, delivery_timeout_ms=3000
    )
    harness.write(b"zero")
    harness.held = []
    first = harness.send("topic", b"one")
    harness.run_for(200)
    second = harness.send("topic", b"two")
    harness.run_for(2700)
    harness.lose_the_connection()
    harness.run_until(first.done)
    # Without the first, whose time is up, the second is out of order.
    harness.run_until(lambda: second.done() or harness.identity.producer_epoch > 0)
    harness.arrive_late()
    harness.run_until(second.done)
    assert isinstance(first.exception(), KafkaTimeoutError)
    assert isinstance(second.exception(), OutOfOrderSequenceError)
    assert "may have them" in str(second.exception())
    values = [record.value for record in cluster.read(TP0, read_committed=False)]
    assert values == [b"zero", b"one", b"two"]


def send_and_lose(harness, then):
    """Lose a record's first attempt, have the second refused with a code. Return its future."""
    (future,), requests = send_each(harness, 1)
    harness.client.fail(requests[0], ResponseFailure.DISCONNECTED)
    harness.settle()
    harness.run_until(lambda: len(harness.client.waiting(PRODUCE)) == 1)
    (again,) = harness.client.waiting(PRODUCE)
    harness.client.answer_produce(again, then)
    harness.run_until(future.done)
    return future


@pytest.mark.parametrize("producer_epoch", [0, MAX_PRODUCER_EPOCH])
def test_a_batch_that_was_lost_once_is_given_no_other_number(producer_epoch):
    harness = CoreHarness(transactional_id=None)
    harness.start_idempotent(producer_epoch=producer_epoch)
    future = send_and_lose(harness, then=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert isinstance(future.exception(), OutOfOrderSequenceError)
    assert len(harness.sent_batches(TP0)) == 2
    assert memory_taken(harness) == 0


@pytest.mark.parametrize("is_lost", [True, False])
def test_before_2_5_a_transaction_goes_on_from_0_only_if_nothing_of_it_can_come_late(is_lost):
    cluster = make_cluster(1, init_producer_id_version=2, producer_id_expiration_ms=60_000)
    harness = started(cluster)
    harness.transact(b"first")
    harness.run_for(200_000)
    log = cluster.logs[TP0]
    log.log_start_offset = log.log_end_offset  # retention; the producer is forgotten, too
    harness.begin()
    if is_lost:
        harness.delayed.append(ApiKey.PRODUCE)
    second = harness.send("topic", b"second")
    harness.run_until(second.done)
    harness.arrive_late()
    harness.end(is_commit=not is_lost)
    if is_lost:
        assert isinstance(second.exception(), UnknownProducerIdError)
    assert committed(cluster) == ([b"first"] if is_lost else [b"first", b"second"])


def test_after_an_unknown_producer_nothing_is_numbered_from_0_in_the_same_epoch():
    # A late copy could take the number after it. The next batch with that number would be taken
    # for a duplicate, acknowledged, and lost. Java's producer begins at 0 in the same epoch.
    harness = idempotent(retries=1)
    future = send_and_lose(harness, then=ErrorCode.UNKNOWN_PRODUCER_ID)
    assert isinstance(future.exception(), UnknownProducerIdError)
    harness.client.prepare_produce(base_offset=7)
    harness.run_until(harness.send().done)
    last = harness.sent_batches(TP0)[-1].header
    assert (last.producer_epoch, last.base_sequence) == (1, 0)
