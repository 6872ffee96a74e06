"""An answer to Produce decides the next request: a retry, a renumbered batch, a later batch."""

from __future__ import annotations

import pytest

from tests.core.sending import PRODUCE, idempotent, in_transaction, memory_taken, send_each
from tests.harness import TP0
from txnproducer._core.transactions.state import TransactionState
from txnproducer._protocol.messages import ApiKey
from txnproducer.errors import (
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    NotEnoughReplicasError,
    OutOfOrderSequenceError,
    TransactionAbortableError,
)


@pytest.mark.conformance("4.17")
@pytest.mark.trap(25, 26)
def test_batches_of_an_old_epoch_are_retried_under_it_while_new_ones_wait():
    harness = idempotent(topics={"topic": 2})
    _, (old,) = send_each(harness, 1, partition=1)
    _, (_, refused) = send_each(harness, 1, partition=0)
    harness.client.answer_produce(refused, ErrorCode.INVALID_RECORD)  # raises the epoch
    harness.settle()
    assert harness.manager.identity.producer_id_and_epoch.producer_epoch == 1
    new = harness.send(partition=1)
    harness.settle()
    harness.client.answer_produce(old, ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.run_for(1_000)
    (again,) = harness.client.waiting(PRODUCE)
    harness.client.answer_produce(again)
    harness.client.prepare_produce()
    harness.run_until(new.done)
    sent = [
        (batch.header.producer_epoch, batch.header.base_sequence)
        for batch in harness.sent_batches(TP0._replace(partition=1))
    ]
    assert sent == [(0, 0), (0, 0), (1, 0)]


@pytest.mark.conformance("4.23")
@pytest.mark.trap(27)
def test_a_batch_after_a_refused_one_in_a_transaction_is_retried_under_its_numbers():
    harness = in_transaction()
    (refused, behind), (first, second) = send_each(harness, 2)
    harness.client.answer_produce(first, ErrorCode.INVALID_RECORD)
    harness.client.answer_produce(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    harness.client.prepare_produce(base_offset=7)
    harness.run_until(behind.done)
    assert refused.exception(0).code == ErrorCode.INVALID_RECORD
    assert behind.result(0).offset == 7
    assert harness.sequences_sent() == [0, 1, 0]
    assert harness.manager.sequences.partitions.get_or_create(TP0).next_sequence == 1


@pytest.mark.conformance("4.26")
def test_a_batch_is_not_repeated_once_its_deadline_has_passed():
    harness = idempotent(delivery_timeout_ms=20_000, request_timeout_ms=20_000)
    (future,), (request,) = send_each(harness, 1)
    harness.client.answer_produce(request, ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.now_ms = 20_000
    harness.settle()
    assert isinstance(future.exception(0), NotEnoughReplicasError)
    assert len(harness.client.sent(PRODUCE)) == 1


@pytest.mark.conformance("4.26")
@pytest.mark.parametrize("retries", [1, 3])
def test_a_batch_is_repeated_as_often_as_retries_allows(retries):
    harness = idempotent(retries=retries)
    for _ in range(retries + 1):
        harness.client.prepare_produce(ErrorCode.NOT_ENOUGH_REPLICAS)
    future = harness.send()
    harness.run_until(future.done)
    assert isinstance(future.exception(0), NotEnoughReplicasError)
    assert len(harness.client.sent(PRODUCE)) == retries + 1


@pytest.mark.conformance("4.28")
def test_a_gap_makes_a_transaction_abortable():
    harness = in_transaction()
    (future,), (request,) = send_each(harness, 1)
    harness.client.answer_produce(request, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    harness.settle()
    assert isinstance(future.exception(0), OutOfOrderSequenceError)
    assert harness.state is TransactionState.ABORTABLE_ERROR
    assert harness.manager.machine.last_error is future.exception(0)
    assert len(harness.client.sent(PRODUCE)) == 1


@pytest.mark.conformance("4.28")
def test_a_gap_makes_an_idempotent_producer_raise_its_epoch_and_repeat_the_batch():
    harness = idempotent()
    (future,), (request,) = send_each(harness, 1)
    harness.client.answer_produce(request, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    harness.client.prepare_produce(base_offset=3)
    harness.run_until(future.done)
    assert future.result(0).offset == 3
    assert [b.header.producer_epoch for b in harness.sent_batches()] == [0, 1]


@pytest.mark.conformance("4.37")
@pytest.mark.trap(30)
@pytest.mark.parametrize("is_repeated", [False, True])
def test_records_wait_while_the_outcome_of_an_expired_batch_is_in_doubt(is_repeated):
    harness = idempotent(delivery_timeout_ms=20_000, request_timeout_ms=15_000)
    (lost,), (request,) = send_each(harness, 1)
    if is_repeated:
        harness.client.answer_produce(request, ErrorCode.NOT_ENOUGH_REPLICAS)
        harness.run_until_sent(PRODUCE, 2)
    harness.run_until(lambda: harness.now_ms >= 14_000, until_ms=14_000)
    (later,), requests = send_each(harness, 1)
    harness.client.outstanding.pop(requests[0].correlation_id)  # neither answer nor time-out
    harness.now_ms = 20_000
    harness.settle()
    assert isinstance(lost.exception(0), KafkaTimeoutError)
    assert harness.manager.sequences.has_unresolved_sequence(TP0)
    new = harness.send()
    harness.settle()
    assert len(harness.sequences_sent()) == 2 + is_repeated  # the new one waits
    harness.client.answer_produce(requests[1])  # so the lost one was written
    harness.client.prepare_produce()
    harness.run_until(new.done)
    assert later.exception(0) is None
    assert harness.sequences_sent()[-1] == 2


@pytest.mark.conformance("4.57")
@pytest.mark.trap(32)
def test_a_record_whose_retries_ran_out_makes_its_transaction_abortable():
    harness = in_transaction(retries=1)
    harness.client.prepare_produce(ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.client.prepare_produce(ErrorCode.NOT_ENOUGH_REPLICAS)
    future = harness.send()
    harness.run_until(future.done)
    assert isinstance(future.exception(0), NotEnoughReplicasError)
    with pytest.raises(KafkaError) as told:
        harness.core.begin_commit()
    assert type(told.value.__cause__) is TransactionAbortableError
    assert told.value.__cause__.__cause__ is future.exception(0)


@pytest.mark.conformance("4.58")
def test_a_cluster_denied_in_a_produce_answer_is_fatal_in_a_transaction_too():
    harness = in_transaction()
    (future,), (request,) = send_each(harness, 1)
    harness.client.answer_produce(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    harness.settle()
    assert future.exception(0).code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert harness.state is TransactionState.FATAL_ERROR
    with pytest.raises(KafkaError):
        harness.core.begin_abort()
    assert harness.client.sent(ApiKey.END_TXN) == []


@pytest.mark.conformance("4.46")
@pytest.mark.trap(35)
def test_a_success_after_its_batch_expired_is_noted_and_the_user_keeps_the_time_out():
    harness = idempotent(delivery_timeout_ms=20_000, request_timeout_ms=20_000)
    (lost,), (request,) = send_each(harness, 1, is_watched=True)
    harness.now_ms = 10_000
    send_each(harness, 1)
    harness.now_ms = 20_000
    harness.core.run_once(harness.now_ms)
    harness.run_callbacks()
    assert lost.done()
    harness.client.answer_produce(request, base_offset=40)
    harness.settle()
    assert isinstance(lost.exception(0), KafkaTimeoutError)  # asked only now
    assert [error for _, error in harness.deliveries] == [lost.exception(0)]
    sequences = harness.manager.sequences
    assert (sequences.last_acked_sequence(TP0), sequences.last_acked_offset(TP0)) == (0, 40)


@pytest.mark.conformance("5.33")
@pytest.mark.trap(35)
@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.INVALID_RECORD])
def test_the_memory_of_a_batch_comes_back_with_the_answer_that_ends_it(code):
    harness = idempotent()
    _, (request,) = send_each(harness, 1)
    assert memory_taken(harness) > 0
    harness.client.answer_produce(request, code)
    harness.settle()
    assert memory_taken(harness) == 0


@pytest.mark.conformance("5.33")
@pytest.mark.trap(35)
def test_the_memory_of_a_batch_that_expired_on_the_wire_comes_back_with_its_answer():
    harness = idempotent(delivery_timeout_ms=20_000, request_timeout_ms=20_000)
    (lost,), (request,) = send_each(harness, 1)
    taken = memory_taken(harness)
    harness.now_ms = 20_000
    harness.core.run_once(harness.now_ms)
    assert lost.done()
    assert memory_taken(harness) == taken
    harness.client.answer_produce(request)
    harness.settle()
    assert memory_taken(harness) == 0


@pytest.mark.conformance("5.34")
def test_the_memory_of_a_batch_comes_back_when_its_answer_splits_it():
    harness = idempotent(linger_ms=10)
    futures = [harness.send(value=b"x" * 100) for _ in range(2)]
    harness.run_until(lambda: harness.client.waiting(PRODUCE))
    (request,) = harness.client.waiting(PRODUCE)
    harness.client.answer_produce(request, ErrorCode.MESSAGE_TOO_LARGE)
    harness.settle()
    assert harness.client.waiting(PRODUCE)  # the parts, or the first of them
    assert memory_taken(harness) == 0
    assert not any(future.done() for future in futures)


@pytest.mark.conformance("4.54")
@pytest.mark.trap(34)
def test_too_large_parts_are_halved_down_to_single_records_and_none_is_lost():
    harness = idempotent(linger_ms=10)
    values = [b"%d" % number * 500 for number in range(6)]
    futures = [harness.send(value=value) for value in values]
    written: list[bytes | None] = []
    for _ in range(3 * len(values)):  # more than there are parts of parts
        if all(future.done() for future in futures):
            break
        harness.run_until(lambda: harness.client.waiting(PRODUCE))
        batch = harness.sent_batches()[-1]
        (request,) = harness.client.waiting(PRODUCE)
        if batch.header.record_count > 1:
            harness.client.answer_produce(request, ErrorCode.MESSAGE_TOO_LARGE)
        else:
            harness.client.answer_produce(request, base_offset=len(written))
            written += batch.values
        harness.settle()
    assert written == values
    assert [future.result(0).offset for future in futures] == list(range(6))
    assert harness.now_ms < 1_000
    sizes = {batch.header.record_count for batch in harness.sent_batches()}
    assert sizes > {1, 6}
