"""Batches between their draining and their end: numbers, muting, expiry, epochs, memory."""

from __future__ import annotations

import pytest

from tests.core.sending import PRODUCE, idempotent, memory_taken, send_each
from tests.harness import TP0, TP1, CoreHarness
from tests.scripted_client import produce_response
from txnproducer._core.batches.buffer_pool import BufferPool
from txnproducer._protocol.events import ClientResponse
from txnproducer._protocol.messages import ApiKey
from txnproducer._record import batch_size_upper_bound, read_batches
from txnproducer.errors import (
    ErrorCode,
    KafkaTimeoutError,
    RecordTooLargeError,
    UnsupportedForMessageFormatError,
)

LAST_EPOCH = 2**15 - 1


@pytest.mark.conformance("5.18")
@pytest.mark.trap(20)
def test_a_batch_leaves_its_queue_with_its_number_and_carries_it_on_the_wire():
    harness = idempotent(linger_ms=1_000)
    harness.send()
    harness.settle()
    queue = harness.core._accumulator.topic_queues("topic").queue(0)
    (batch,) = queue.batches
    assert not batch.has_sequence
    harness.run_for(1_000)
    assert not queue.batches
    (request,) = harness.client.waiting(PRODUCE)
    (on_the_wire,) = read_batches(request.body.partitions[0].records)
    assert on_the_wire.header.base_sequence == batch.base_sequence == 0
    assert on_the_wire.header.producer_id == batch.producer_id


@pytest.mark.conformance("5.19")
@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.INVALID_RECORD])
@pytest.mark.parametrize(("in_flight", "sent_at_once"), [(1, 1), (2, 2)])
def test_a_partition_is_muted_only_where_one_request_may_be_in_flight(
    code, in_flight, sent_at_once
):
    harness = idempotent(max_in_flight_requests_per_connection=in_flight)
    harness.client.max_in_flight = 5  # the partition alone is to hold the second batch back
    _, requests = send_each(harness, 2)
    assert len(requests) == sent_at_once
    harness.client.answer_produce(requests[0], code)
    harness.settle()
    assert len(harness.client.sent(PRODUCE)) == 2


@pytest.mark.conformance("5.23")
def test_a_batch_on_the_wire_expires_and_its_request_is_left_alone():
    harness = idempotent(delivery_timeout_ms=20_000, request_timeout_ms=20_000, node_count=2)
    futures = [harness.send(partition=partition) for partition in (0, 1)]
    harness.settle()
    harness.now_ms = 20_000
    harness.core.run_once(harness.now_ms)
    assert all(isinstance(future.exception(), KafkaTimeoutError) for future in futures)
    assert len(harness.client.waiting(PRODUCE)) == 2
    assert len(harness.client.sent(PRODUCE)) == 2
    assert memory_taken(harness) > 0
    for request in harness.client.waiting(PRODUCE):  # and their answers are still awaited
        body = produce_response(request.body, 0, None, 0)
        harness.core.handle(ClientResponse(request, body), harness.now_ms)
    assert memory_taken(harness) == 0


@pytest.mark.conformance("4.59")
def test_a_message_format_that_the_broker_lacks_fails_the_batch_alone():
    harness = idempotent()
    (future,), (request,) = send_each(harness, 1)
    harness.client.answer_produce(request, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
    harness.settle()
    assert isinstance(future.exception(), UnsupportedForMessageFormatError)
    assert not harness.manager.machine.has_fatal_error
    harness.client.prepare_produce(base_offset=1)
    later = harness.send()
    harness.run_until(later.done)
    assert later.result().offset == 1


@pytest.mark.conformance("4.19")
@pytest.mark.parametrize("is_closing", [False, True])
def test_waiting_batches_go_out_under_the_new_id_after_the_last_epoch(is_closing):
    harness = CoreHarness(transactional_id=None, node_count=2)
    harness.start_idempotent(producer_id=7, producer_epoch=LAST_EPOCH)
    (retried,), (request,) = send_each(harness, 1, partition=0)
    # Nothing was acknowledged before: the gap cannot close, and the epoch has to be raised.
    harness.client.answer_produce(request, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    harness.run_until_sent(ApiKey.INIT_PRODUCER_ID, 2)
    queued = harness.send(partition=1)
    if is_closing:
        harness.core.initiate_close(harness.now_ms)
    harness.run_for(500)
    assert len(harness.client.sent(PRODUCE)) == 1
    (init,) = harness.client.waiting(ApiKey.INIT_PRODUCER_ID)
    for _ in range(2):
        harness.client.prepare_produce()
    harness.client.answer(init, type(harness.client).init_response(8, 0))
    harness.run_until(lambda: retried.done() and queued.done())
    assert retried.exception() is None
    assert queued.exception() is None
    for place in (TP0, TP1):
        last = harness.sent_batches(place)[-1].header
        assert (last.producer_id, last.producer_epoch, last.base_sequence) == (8, 0, 0)


@pytest.mark.conformance("5.30")
def test_a_record_larger_than_all_memory_is_refused_and_not_waited_for():
    harness = idempotent(buffer_memory=100_000, batch_size=16_384)
    future = harness.send(value=b"x" * 100_000)
    assert isinstance(future.exception(), RecordTooLargeError)
    assert "buffer_memory=100000" in str(future.exception())
    assert harness.now_ms == 0
    assert memory_taken(harness) == 0
    room = 190_000 - batch_size_upper_bound(None, b"x" * 90_000, ())
    assert not harness.send(value=b"x" * room).done()  # all of it is not too much
    assert memory_taken(harness) == 100_000


@pytest.mark.conformance("5.30")
def test_memory_is_counted_by_the_byte_for_all_sizes():
    pool = BufferPool(2_000)
    for size_bytes in (1_023, 177, 800):
        assert pool.allocate(size_bytes) is None
    assert pool.available_bytes == 0
    for size_bytes in (177, 1_023, 800):
        pool.deallocate(size_bytes)
    assert pool.available_bytes == pool.total_bytes == 2_000
