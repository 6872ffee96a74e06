"""An idempotent producer's bump renumbers only batches that are certainly not written.

The broker knows a batch that it has by its sequence alone. Sent under another epoch, it would be
written a second time. Java's producer does that: it renumbers all that is in flight.
"""

from __future__ import annotations

import pytest

from tests.core.sending import PRODUCE, idempotent, memory_taken, send_each
from tests.harness import TP0, CoreHarness
from txnproducer._core.sequences.sequence_manager import MAX_PRODUCER_EPOCH
from txnproducer._core.transactions.state import TransactionState
from txnproducer._protocol.events import ResponseFailure
from txnproducer._protocol.messages import ApiKey, EndTxnResponse, InitProducerIdResponse
from txnproducer.errors import (
    ErrorCode,
    NetworkError,
    OutOfOrderSequenceError,
    TopicAuthorizationError,
)

_OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def lose_the_first_of_two(code):
    """Have the first of two batches refused as out of order, and end the second with a code."""
    harness = idempotent()
    futures, requests = send_each(harness, 2)
    harness.client.answer_produce(requests[0], ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.client.answer_produce(requests[1], code)
    harness.settle()
    harness.run_until(lambda: len(harness.client.waiting(PRODUCE)) == 1)
    (first,) = harness.client.waiting(PRODUCE)
    harness.client.answer_produce(first, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    return harness, futures


@pytest.mark.quirk("O8")
def test_a_batch_that_may_be_written_fails_instead_of_being_sent_under_a_new_epoch():
    harness, (first, second) = lose_the_first_of_two(ErrorCode.REQUEST_TIMED_OUT)
    harness.run_until(second.done)
    assert isinstance(second.exception(), OutOfOrderSequenceError)
    harness.client.prepare_produce(base_offset=7)
    harness.run_until(first.done)
    assert first.result().offset == 7
    last = harness.sent_batches(TP0)[-1]
    assert (last.header.producer_epoch, last.header.base_sequence) == (1, 0)
    assert memory_taken(harness) == 0


def test_a_batch_that_was_surely_refused_goes_out_again_under_the_new_epoch():
    harness, (first, second) = lose_the_first_of_two(ErrorCode.NOT_ENOUGH_REPLICAS)
    for offset in (7, 8):
        harness.client.prepare_produce(base_offset=offset)
    harness.run_until(lambda: first.done() and second.done())
    assert [f.result().offset for f in (first, second)] == [7, 8]
    numbers = [(b.header.producer_epoch, b.header.base_sequence) for b in harness.sent_batches()]
    assert numbers[-2:] == [(1, 0), (1, 1)]


def test_a_batch_renumbered_on_the_wire_is_not_sent_again_once_its_answer_is_lost():
    harness = idempotent()
    (first, second), requests = send_each(harness, 2)
    harness.client.answer_produce(requests[0], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    harness.settle()
    harness.client.fail(requests[1], ResponseFailure.DISCONNECTED)
    harness.client.prepare_produce(base_offset=7)
    harness.run_until(lambda: first.done() and second.done())
    assert isinstance(second.exception(), NetworkError)
    assert first.result().offset == 7
    sent = [b for b in harness.sent_batches() if b.header.producer_epoch == 1]
    assert [b.header.base_sequence for b in sent] == [0]


@pytest.mark.parametrize("count", [3])
def test_later_records_follow_under_numbers_without_a_gap(count):
    harness, (first, second) = lose_the_first_of_two(ErrorCode.REQUEST_TIMED_OUT)
    harness.run_until(second.done)
    for offset in range(count + 1):
        harness.client.prepare_produce(base_offset=offset)
    harness.run_until(first.done)
    later = []
    for _ in range(count):
        later.append(harness.send())
        harness.run_until(later[-1].done)
    assert [f.exception() for f in later] == [None] * count
    sequences = [b.header.base_sequence for b in harness.sent_batches() if b.header.producer_epoch]
    assert sequences == sorted(set(sequences))


@pytest.mark.parametrize("are_together", [True, False])
def test_answers_that_come_with_the_new_id_are_handled_before_renumbering(are_together):
    harness = CoreHarness(transactional_id=None)
    harness.start_idempotent(producer_epoch=MAX_PRODUCER_EPOCH)
    (first, second), requests = send_each(harness, 2)
    harness.client.answer_produce(requests[0], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    harness.settle()
    (init,) = harness.client.waiting(ApiKey.INIT_PRODUCER_ID)
    harness.client.answer_produce(requests[1], ErrorCode.REQUEST_TIMED_OUT)
    if not are_together:
        harness.settle()
    harness.client.answer(init, InitProducerIdResponse(0, 2000, 0))
    harness.client.prepare_produce(base_offset=7)
    harness.run_until(lambda: first.done() and second.done())
    assert first.result().offset == 7
    assert isinstance(second.exception(), OutOfOrderSequenceError)
    sent = [b.header for b in harness.sent_batches(TP0) if b.header.producer_id == 2000]
    assert [header.base_sequence for header in sent] == [0]


def let_the_second_get_in_first(harness):
    """Have a broker that does not know the producer refuse its first batch and take the second."""
    futures, requests = send_each(harness, 3)
    harness.client.answer_produce(requests[0], ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.client.answer_produce(requests[1], base_offset=5)
    harness.client.answer_produce(requests[2], ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.settle()
    harness.run_until(lambda: len(harness.client.waiting(PRODUCE)) == 1)
    (first,) = harness.client.waiting(PRODUCE)
    harness.client.answer_produce(first, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    harness.settle()
    return futures


@pytest.mark.quirk("O10")
def test_a_batch_whose_place_was_taken_by_a_later_one_fails_at_once():
    harness = idempotent()
    first, second, third = let_the_second_get_in_first(harness)
    assert isinstance(first.exception(), OutOfOrderSequenceError)
    assert second.result().offset == 5
    harness.client.prepare_produce(base_offset=6)
    harness.run_until(third.done)
    last = harness.sent_batches(TP0)[-1]
    assert third.result().offset == 6
    assert (last.header.producer_epoch, last.header.base_sequence) == (1, 0)
    assert memory_taken(harness) == 0


def test_in_a_transaction_it_leads_to_an_abort_at_once():
    harness = CoreHarness()
    harness.start_transaction()
    harness.know_topics()
    futures = let_the_second_get_in_first(harness)
    assert isinstance(futures[0].exception(), OutOfOrderSequenceError)
    assert harness.state is TransactionState.ABORTABLE_ERROR
    harness.client.prepare_produce(base_offset=6)
    harness.abort()
    sent = harness.sent_batches(TP0)
    assert [b.header.base_sequence for b in sent] == [0, 1, 2, 0, 2, 2]  # none was given again


@pytest.mark.quirk("O11")
def test_a_refusal_after_a_possibly_written_attempt_leaves_doubt_and_raises_the_epoch():
    # Under the same epoch the next transaction's first record would get the number of this one,
    # and the broker, which has it, would acknowledge it as a duplicate.
    harness = CoreHarness(transaction_version=1)
    harness.start_transaction()
    harness.know_topics()
    future = harness.send()
    harness.client.prepare_add_partitions()
    harness.settle()
    harness.client.answer_produce(harness.client.waiting(PRODUCE)[0], ErrorCode.REQUEST_TIMED_OUT)
    commit = harness.core.begin_commit()  # an error of the commit alone would raise no epoch
    harness.client.prepare_produce(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    harness.run_until(lambda: commit.is_completed)
    assert isinstance(future.exception(), TopicAuthorizationError)
    commit.acknowledge()
    epoch = harness.manager.identity.producer_id_and_epoch.producer_epoch
    harness.client.prepare_init_producer_id(producer_epoch=epoch + 1)
    harness.abort()
    assert harness.manager.identity.producer_id_and_epoch.producer_epoch == epoch + 1


def test_all_batches_that_would_follow_the_later_one_fail_with_it():
    harness = idempotent()
    futures, requests = send_each(harness, 3)
    harness.client.answer_produce(requests[0], ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.client.answer_produce(requests[1], ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.client.answer_produce(requests[2], base_offset=5)
    harness.settle()
    harness.client.prepare_produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    harness.run_until(lambda: all(f.done() for f in futures))
    assert isinstance(futures[0].exception(), OutOfOrderSequenceError)
    assert isinstance(futures[1].exception(), OutOfOrderSequenceError)
    assert futures[2].result().offset == 5
    assert [b.header.producer_epoch for b in harness.sent_batches()] == [0] * 4
    assert memory_taken(harness) == 0


def test_one_of_them_on_the_wire_is_not_sent_again_under_its_new_number():
    harness = idempotent()
    futures, requests = send_each(harness, 3)
    harness.client.answer_produce(requests[2], base_offset=5)  # answers may come in any order
    harness.client.answer_produce(requests[0], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    harness.settle()
    assert isinstance(futures[0].exception(), OutOfOrderSequenceError)
    harness.client.answer_produce(requests[1], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    harness.settle()
    assert isinstance(futures[1].exception(), OutOfOrderSequenceError)
    assert [b.header.producer_epoch for b in harness.sent_batches()] == [0] * 3
    assert memory_taken(harness) == 0


# --- renumbered on the wire ------------------------------------------------------------------


def renumber_the_second_on_the_wire():
    """Have the first of two batches refused for good, and a record more waiting."""
    harness = idempotent()
    (first, second), requests = send_each(harness, 2)
    harness.client.answer_produce(requests[0], ErrorCode.INVALID_RECORD)
    harness.settle()
    assert first.exception() is not None
    third = harness.send()
    harness.settle()
    return harness, requests[1], (second, third)


@pytest.mark.quirk("O12")
def test_new_records_wait_for_a_batch_that_was_renumbered_on_the_wire():
    harness, request, (second, third) = renumber_the_second_on_the_wire()
    assert harness.client.waiting(PRODUCE) == [request]
    harness.client.answer_produce(request, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    for offset in (7, 8):
        harness.client.prepare_produce(base_offset=offset)
    harness.run_until(lambda: second.done() and third.done())
    numbers = [(b.header.producer_epoch, b.header.base_sequence) for b in harness.sent_batches()]
    assert numbers == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_batches_after_one_written_under_its_old_number_begin_under_another_epoch():
    harness, request, (second, third) = renumber_the_second_on_the_wire()
    harness.client.answer_produce(request, base_offset=7)
    harness.client.prepare_produce(base_offset=8)
    harness.run_until(third.done)
    assert [f.result().offset for f in (second, third)] == [7, 8]
    numbers = [(b.header.producer_epoch, b.header.base_sequence) for b in harness.sent_batches()]
    assert numbers[:2] == [(0, 0), (0, 1)]
    assert numbers[2:] == [(2, 0)]


def test_batches_after_one_renumbered_on_the_wire_and_lost_begin_under_another_epoch():
    harness = idempotent()
    futures, requests = send_each(harness, 3)
    harness.client.answer_produce(requests[0], ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.run_until(lambda: len(harness.sent_batches()) == 4)
    (again,) = (r for r in harness.client.waiting(PRODUCE) if r not in requests)
    for request in requests[1:]:  # as brokers before 2.5 refuse what follows nothing
        unknown = ErrorCode.UNKNOWN_PRODUCER_ID
        harness.client.answer_produce(request, unknown, log_start_offset=0)
    harness.settle()
    harness.client.fail(again, ResponseFailure.DISCONNECTED)
    for offset in (7, 8):
        harness.client.prepare_produce(base_offset=offset)
    harness.run_until(lambda: all(f.done() for f in futures))
    assert isinstance(futures[0].exception(), NetworkError)
    assert [f.result().offset for f in futures[1:]] == [7, 8]
    numbers = [(b.header.producer_epoch, b.header.base_sequence) for b in harness.sent_batches()]
    assert numbers == [(0, 0), (0, 1), (0, 2), (0, 0), (2, 0), (2, 1)]


def test_an_answer_of_another_kind_leaves_a_batch_in_doubt():
    harness = idempotent(retries=1)
    (future,), (request,) = send_each(harness, 1)
    harness.client.answer(request, EndTxnResponse(0))
    harness.run_until(lambda: harness.client.waiting(PRODUCE))
    assert not future.done()  # it is sent again, as after a lost answer
    harness.client.answer_produce(harness.client.waiting(PRODUCE)[0], ErrorCode.INVALID_RECORD)
    harness.run_until(future.done)
    assert future.exception() is not None
    harness.settle()
    assert harness.manager.identity.producer_id_and_epoch.producer_epoch == 1


def test_no_new_batch_goes_while_one_is_retried_that_has_a_later_one_written():
    # Brokers remember five batches: they could not tell any more that they have the first.
    harness = idempotent()
    (first, _), requests = send_each(harness, 2)
    harness.client.answer_produce(requests[0], ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.client.answer_produce(requests[1], base_offset=5)
    harness.settle()
    new = harness.send()
    harness.run_until(lambda: len(harness.client.waiting(PRODUCE)) == 1)
    harness.run_for(1000)
    assert harness.sequences_sent() == [0, 1, 0]
    harness.client.answer_produce(harness.client.waiting(PRODUCE)[0], base_offset=4)
    harness.client.prepare_produce(base_offset=6)
    harness.run_until(new.done)
    assert first.result().offset == 4
    assert harness.sequences_sent() == [0, 1, 0, 2]


def test_a_gap_is_seen_though_a_later_batch_is_in_doubt_as_well():
    harness = idempotent()
    futures, requests = send_each(harness, 5)
    for request, code in zip(
        requests, (ErrorCode.INVALID_RECORD, *[_OUT_OF_ORDER] * 3), strict=False
    ):
        harness.client.answer_produce(request, code)
        harness.settle()
    # Renumbered on the wire, and lost: its number is open now.
    harness.client.fail(requests[4], ResponseFailure.DISCONNECTED)
    harness.settle()
    for code in (
        ErrorCode.NONE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        _OUT_OF_ORDER,
    ):
        harness.run_until(lambda: harness.client.waiting(PRODUCE))
        harness.client.answer_produce(harness.client.waiting(PRODUCE)[0], code)
        harness.settle()
    harness.client.prepare_produce(base_offset=7)
    harness.run_until(lambda: all(future.done() for future in futures))
    numbers = [(b.header.producer_epoch, b.header.base_sequence) for b in harness.sent_batches()]
    assert numbers[5:] == [(1, 0), (1, 1), (1, 1), (1, 2), (2, 0)]
    assert futures[3].result().offset == 7
