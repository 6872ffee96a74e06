"""How batches end: at their deadline, split into parts, by answers that should not be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import lz4.frame
import pytest

from tests.core.sending import PRODUCE, idempotent, memory_taken, send_each
from tests.harness import TP0, TP1, CoreHarness
from tests.scripted_client import NO_BUMP_VERSIONS, produce_response
from txnproducer._core.metadata import NEVER_MS
from txnproducer._core.metrics import Metrics
from txnproducer._core.sending.send_metrics import SendMetrics
from txnproducer._core.transactions.state import Role
from txnproducer._protocol.events import ClientResponse, ResponseFailure
from txnproducer._protocol.messages import (
    ApiKey,
    ProducePartitionResponse,
    ProduceResponse,
    RecordError,
)
from txnproducer._record.format import BATCH_OVERHEAD_BYTES
from txnproducer.errors import (
    ApplicationRecoverableError,
    ErrorCode,
    IllegalStateError,
    InvalidRecordError,
    KafkaError,
    KafkaTimeoutError,
    NotEnoughReplicasError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
    UnknownProducerIdError,
)
from txnproducer.records import TopicPartition

# --- delivery callbacks ---------------------------------------------------------------------


def test_callbacks_that_become_due_after_the_list_is_taken_are_not_in_it():
    # The loop's thread looks with its lock, and runs without: one that came into the very list
    # that it looked at would be run at once, and again in its turn.
    harness = idempotent()
    harness.is_running_callbacks = False
    before = harness.core.take_callbacks()
    harness.client.prepare_produce()
    harness.send(is_watched=True)
    harness.settle()
    assert not before
    (batch,) = harness.core.take_callbacks()
    assert not harness.core.take_callbacks()
    batch.run()
    assert len(harness.deliveries) == 1


# --- expiry --------------------------------------------------------------------------------


@pytest.mark.conformance("4.36")
def test_a_batch_that_expires_unsent_leaves_no_doubt():
    harness = idempotent(delivery_timeout_ms=31_000)
    harness.client.stop_node(0)
    future = harness.send()
    harness.run_until(future.done)
    assert isinstance(future.exception(), KafkaTimeoutError)
    assert "nothing was sent. Send them again" in str(future.exception())
    assert not harness.manager.sequences.has_unresolved_sequence(TP0)
    assert harness.now_ms == 31_000
    assert memory_taken(harness) == 0


@pytest.mark.conformance("4.41")
@pytest.mark.quirk("Q13")
def test_a_batch_that_expires_in_its_first_attempt_leaves_its_partition_in_doubt():
    """Java judges "sent before" by "put back before" and misses the first attempt."""
    harness = idempotent(delivery_timeout_ms=20_000, request_timeout_ms=20_000)
    (future,), (request,) = send_each(harness, 1)
    harness.now_ms = 20_000
    harness.core.run_once(harness.now_ms)
    assert isinstance(future.exception(), KafkaTimeoutError)
    assert "may have the records" in str(future.exception())
    assert harness.manager.identity.producer_id_and_epoch.producer_epoch == 1
    assert memory_taken(harness) > 0  # the bytes are still on the wire
    harness.client.answer_produce(request, base_offset=7)
    harness.settle()
    assert memory_taken(harness) == 0
    assert isinstance(future.exception(), KafkaTimeoutError)  # a reported error is not taken back


@pytest.mark.conformance("4.49")
@pytest.mark.trap(30)
def test_after_an_expiry_in_doubt_new_records_go_under_a_new_epoch_from_zero():
    harness = idempotent(delivery_timeout_ms=20_000, request_timeout_ms=20_000)
    (lost,), _ = send_each(harness, 1)
    harness.run_until(lost.done)
    harness.client.prepare_produce()
    later = harness.send()
    harness.run_until(later.done)
    epochs = [(b.header.producer_epoch, b.header.base_sequence) for b in harness.sent_batches()]
    assert epochs[0] == (0, 0)
    assert epochs[-1] == (1, 0)


@pytest.mark.conformance("4.38")
@pytest.mark.trap(30)
def test_a_later_success_proves_that_the_expired_batch_was_written():
    harness = idempotent(delivery_timeout_ms=20_000, request_timeout_ms=20_000)
    (lost,), _ = send_each(harness, 1)
    harness.now_ms = 10_000
    (kept,), requests = send_each(harness, 1)
    harness.now_ms = 19_999
    harness.core.run_once(harness.now_ms)
    harness.client.is_answering_metadata = False
    harness.now_ms = 20_000
    harness.core.run_once(harness.now_ms)
    assert harness.manager.sequences.has_unresolved_sequence(TP0)
    harness.client.outstanding.pop(requests[0].correlation_id, None)
    harness.client.answer_produce(requests[1])
    harness.settle()
    assert kept.exception() is None
    assert isinstance(lost.exception(), KafkaTimeoutError)
    assert not harness.manager.sequences.has_unresolved_sequence(TP0)
    assert harness.manager.identity.producer_id_and_epoch.producer_epoch == 0


@pytest.mark.conformance("5.24")
@pytest.mark.quirk("Q15")
def test_a_batch_that_is_overdue_is_failed_and_not_sent():
    """Java numbers it, reports it as failed and sends it all the same."""
    harness = idempotent(delivery_timeout_ms=31_000, linger_ms=1_000)
    harness.client.prepare_produce()
    harness.send().result()  # so that its broker could take one at once
    future = harness.send()
    harness.settle()
    harness.now_ms += 31_000
    harness.core.run_once(harness.now_ms)
    assert isinstance(future.exception(), KafkaTimeoutError)
    assert len(harness.client.sent(PRODUCE)) == 1
    assert harness.manager.sequences.partitions.get_or_create(TP0).next_sequence == 1


@pytest.mark.conformance("4.25")
@pytest.mark.quirk("Q14")
def test_a_retriable_answer_at_the_deadline_is_reported_and_leaves_doubt():
    """Java counts it as a certain refusal."""
    harness = idempotent(delivery_timeout_ms=20_000, request_timeout_ms=20_000)
    (future,), (request,) = send_each(harness, 1)
    harness.client.answer_produce(request, ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.now_ms = 20_000
    harness.settle()
    assert isinstance(future.exception(), NotEnoughReplicasError)
    assert len(harness.client.sent(PRODUCE)) == 1
    assert harness.manager.identity.producer_id_and_epoch.producer_epoch == 1


@pytest.mark.conformance("4.25")
@pytest.mark.quirk("Q14")
def test_in_a_transaction_a_retriable_answer_at_the_deadline_takes_no_numbers_back():
    harness, (future, _), (request, _) = two_in_a_transaction(delivery_timeout_ms=20_000)
    body = produce_response(request.body, ErrorCode.NOT_ENOUGH_REPLICAS, None, 0)
    harness.now_ms = 20_000
    harness.core.handle(ClientResponse(request, body), harness.now_ms)
    assert isinstance(future.exception(), NotEnoughReplicasError)
    assert numbers_of(harness) == ([1], 2)


@pytest.mark.conformance("4.24")
@pytest.mark.trap(27)
@pytest.mark.parametrize("how", ["expired", "out of retries", "perhaps written before"])
def test_numbers_are_not_taken_back_for_a_batch_that_may_be_written(how):
    harness, (future, _), (request, _) = two_in_a_transaction(
        delivery_timeout_ms=20_000, retries=1 if how == "out of retries" else 10
    )
    harness.client.prepare_produce(ErrorCode.INVALID_RECORD)
    if how == "expired":
        harness.now_ms = 20_000
        harness.core.run_once(harness.now_ms)
    elif how == "out of retries":
        harness.client.answer_produce(request, ErrorCode.NOT_ENOUGH_REPLICAS)
    else:
        harness.client.answer_produce(request, ErrorCode.REQUEST_TIMED_OUT)
    harness.run_until(future.done)
    assert numbers_of(harness) == ([1], 2)


@pytest.mark.conformance("4.24")
def test_numbers_are_taken_back_for_a_batch_that_is_refused_for_certain():
    harness, (future, _), (request, _) = two_in_a_transaction(delivery_timeout_ms=20_000)
    harness.client.answer_produce(request, ErrorCode.INVALID_RECORD)
    harness.settle()
    assert isinstance(future.exception(), InvalidRecordError)
    assert numbers_of(harness) == ([0], 1)


def two_in_a_transaction(**settings):
    """Send a record, and another five seconds later, and return harness, futures and requests."""
    harness = CoreHarness(request_timeout_ms=20_000, **settings)
    harness.start_transaction()
    harness.know_topics()
    futures, _ = send_each(harness, 1)
    harness.now_ms = 5_000
    later, requests = send_each(harness, 1)
    return harness, futures + later, requests


def numbers_of(harness):
    """Return the numbers of the batches in flight, and the next one."""
    entry = harness.manager.sequences.partitions.get(TP0)
    return [batch.base_sequence for batch in entry.in_flight], entry.next_sequence


@pytest.mark.conformance("4.61")
def test_each_record_of_a_refused_batch_gets_its_own_error():
    harness = idempotent(linger_ms=10)
    good, bad = harness.send(), harness.send()
    harness.client.prepare_produce(
        ErrorCode.INVALID_TIMESTAMP, record_errors=(RecordError(1, "too old"),)
    )
    harness.run_until(good.done)
    assert bad.exception().code == ErrorCode.INVALID_TIMESTAMP
    assert str(bad.exception()) == "too old"
    assert type(good.exception()) is KafkaError
    assert "its batch" in str(good.exception())


@pytest.mark.conformance("4.47")
@pytest.mark.trap(18, 35)
@pytest.mark.quirk("Q4")
@pytest.mark.parametrize("is_first", [False, True])
def test_a_late_success_after_a_reset_of_numbers_frees_its_memory_and_the_others_end(is_first):
    harness = idempotent()
    futures = [harness.send(partition=partition) for partition in (0, 1)]
    harness.settle()
    (request,) = harness.client.waiting(PRODUCE)
    harness.manager.sequences.partitions.remove((TP1, TP0)[is_first])
    harness.client.answer_produce(request, base_offset=7)
    harness.settle()
    assert [future.result().offset for future in futures] == [7, 7]
    assert memory_taken(harness) == 0


@pytest.mark.conformance("4.47")
@pytest.mark.quirk("Q4")
def test_one_partition_of_an_answer_that_cannot_be_handled_does_not_strand_the_others(monkeypatch):
    harness = idempotent()
    futures = [harness.send(partition=partition) for partition in (0, 1)]
    harness.settle()
    (request,) = harness.client.waiting(PRODUCE)
    complete = harness.manager.progress.handle_completed_batch

    def fail_for_the_first(batch, response):
        if batch.topic_partition == TP0:
            raise IllegalStateError("made up")
        complete(batch, response)

    monkeypatch.setattr(harness.manager.progress, "handle_completed_batch", fail_for_the_first)
    harness.client.answer_produce(request, base_offset=7)
    harness.settle()
    assert [future.done() for future in futures] == [False, True]


def test_a_batch_that_was_retried_and_succeeded_is_not_remembered():
    harness = idempotent(delivery_timeout_ms=40_000)
    (future,), (request,) = send_each(harness, 1)
    harness.client.answer_produce(request, ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.client.prepare_produce()
    harness.run_until(future.done)
    harness.run_for(100_000)
    assert future.exception() is None


@pytest.mark.conformance("5.26")
def test_a_callback_of_an_expired_batch_may_send_again():
    harness = idempotent(delivery_timeout_ms=31_000)
    harness.client.stop_node(0)
    again = []
    future = harness.send(on_delivery=lambda _, error: again.append(harness.send()))
    harness.run_until(future.done)
    harness.client.start_node(0)
    harness.client.prepare_produce()
    harness.run_until(lambda: again and again[0].done())
    assert again[0].exception() is None


@pytest.mark.conformance("5.20")
def test_an_expired_batch_keeps_its_partition_muted_until_the_answer_with_one_in_flight():
    harness = CoreHarness(
        transactional_id=None,
        max_in_flight_requests_per_connection=1,
        delivery_timeout_ms=20_000,
        request_timeout_ms=20_000,
        enable_idempotence=False,
        topics={"topic": 1},
    )
    harness.know_topics()
    (first,), (request,) = send_each(harness, 1)
    harness.now_ms = 15_000
    harness.send()
    harness.settle()
    assert len(harness.client.sent(PRODUCE)) == 1
    harness.client.max_in_flight = 5
    harness.client.outstanding.pop(request.correlation_id)  # its answer is late, no time-out
    harness.now_ms = 20_000
    harness.settle()
    assert first.done()
    assert len(harness.client.sent(PRODUCE)) == 1
    harness.client.outstanding[request.correlation_id] = request
    harness.client.answer_produce(request)
    harness.run_for(100)
    assert len(harness.client.sent(PRODUCE)) == 2


@pytest.mark.conformance("4.45")
@pytest.mark.trap(35)
@pytest.mark.parametrize("code", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.NOT_ENOUGH_REPLICAS])
@pytest.mark.parametrize("is_transactional", [False, True])
def test_an_error_answer_for_an_expired_batch_only_frees_its_memory(code, is_transactional):
    settings: dict[str, Any] = {
        "delivery_timeout_ms": 20_001,
        "request_timeout_ms": 20_000,
        "linger_ms": 1,
    }
    if is_transactional:
        harness = CoreHarness(**settings)
        harness.start_transaction(2)
        harness.know_topics()
    else:
        harness = idempotent(**settings)
    futures = [harness.send(), harness.send()]
    harness.run_until(lambda: harness.client.sent(PRODUCE))
    (request,) = harness.client.waiting(PRODUCE)
    harness.now_ms = 20_001
    harness.core.run_once(harness.now_ms)
    before = (harness.manager.machine.state, harness.manager.machine.last_error)
    harness.client.answer_produce(request, code)
    harness.settle()
    assert (harness.manager.machine.state, harness.manager.machine.last_error) == before
    assert all(isinstance(f.exception(), KafkaTimeoutError) for f in futures)
    assert len(harness.client.sent(PRODUCE)) == 1
    assert memory_taken(harness) == 0


@pytest.mark.conformance("4.52")
def test_a_too_large_batch_is_not_split_after_its_delivery_timeout():
    # Without idempotence nothing else keeps its parts from being sent after its error.
    harness = CoreHarness(
        transactional_id=None,
        enable_idempotence=False,
        delivery_timeout_ms=20_001,
        request_timeout_ms=20_000,
        linger_ms=1,
        topics={"topic": 1},
    )
    harness.know_topics()
    futures = [harness.send(), harness.send()]
    harness.run_until(lambda: harness.client.sent(PRODUCE))
    (request,) = harness.client.waiting(PRODUCE)
    harness.now_ms = 20_001
    harness.core.run_once(harness.now_ms)
    harness.client.answer_produce(request, ErrorCode.MESSAGE_TOO_LARGE)
    harness.run_for(1_000)
    assert all(isinstance(f.exception(), KafkaTimeoutError) for f in futures)
    assert len(harness.client.sent(PRODUCE)) == 1
    assert harness.core.metrics()["batch-split-total"] == 0
    assert memory_taken(harness) == 0


# --- split ---------------------------------------------------------------------------------


@pytest.mark.conformance("4.50")
@pytest.mark.trap(34)
def test_a_batch_that_is_too_large_is_split_and_its_parts_go_one_by_one():
    harness = idempotent(linger_ms=10, batch_size=6_000)
    futures = [harness.send(value=b"x" * 900) for _ in range(6)]
    after = harness.send(value=b"y" * 900)
    harness.run_until(lambda: harness.client.sent(PRODUCE))
    harness.client.answer_produce(harness.client.waiting(PRODUCE)[0], ErrorCode.MESSAGE_TOO_LARGE)
    offset = 0
    while not all(future.done() for future in [*futures, after]):
        waiting = harness.client.waiting(PRODUCE)
        if not waiting:
            harness.run_for(1)
            continue
        assert len(waiting) == 1
        count = harness.sent_batches()[-1].header.record_count
        if count > 2:
            harness.client.answer_produce(waiting[0], ErrorCode.MESSAGE_TOO_LARGE)
        else:
            harness.client.answer_produce(waiting[0], base_offset=offset)
            offset += count
        harness.settle()
    assert [f.result().offset for f in futures] == list(range(6))
    accepted = [b for b in harness.sent_batches() if b.header.record_count <= 2]
    assert [b.header.base_sequence for b in accepted] == [0, 2, 4, 6]
    assert memory_taken(harness) == 0
    assert harness.core.metrics()["batch-split-total"] >= 1


def test_a_part_on_the_wire_after_a_later_batch_expires_in_its_time():
    """Java's ends its look at the later one, so the parts that wait expire before the first."""
    harness = idempotent(delivery_timeout_ms=21_000, request_timeout_ms=20_990, linger_ms=10)
    ended = []
    for name in ("first", "second"):
        harness.send(on_delivery=lambda *_, name=name: ended.append(name))
    harness.run_for(10)
    later = harness.send()
    harness.run_for(10)
    first, second = harness.client.waiting(PRODUCE)
    for _ in ("as large again", "in two parts"):
        harness.client.answer_produce(first, ErrorCode.MESSAGE_TOO_LARGE)
        harness.settle()
        first = harness.client.waiting(PRODUCE)[-1]
    assert harness.sent_batches()[-1].header.record_count == 1  # the first part
    harness.now_ms = 21_000
    harness.settle()
    assert ended == ["first", "second"]
    assert not later.done()
    harness.client.answer_produce(second, base_offset=2)
    harness.settle()


def test_each_record_on_the_wire_expires_in_its_own_time():
    # With sequence numbers the end of one batch would renumber the others, and fail them.
    harness = CoreHarness(
        transactional_id=None,
        enable_idempotence=False,
        delivery_timeout_ms=20_000,
        request_timeout_ms=20_000,
        linger_ms=0,
    )
    futures = []
    for partition in (0, 1):
        futures.append(harness.send(partition=partition))
        harness.run_for(5_000)
    harness.run_for(10_000)
    assert [future.done() for future in futures] == [True, False]
    futures.append(harness.send(partition=0))
    harness.run_for(5_000)
    assert [future.done() for future in futures] == [True, True, False]
    harness.run_for(14_999)
    assert not futures[2].done()
    harness.run_for(1)
    assert futures[2].done()


def test_the_size_of_lz4s_blocks_reaches_the_batches():
    harness = idempotent(compression_type="lz4", compression_lz4_block_bytes=262_144)
    harness.send(value=b"large" * 100_000)
    harness.settle()
    (request,) = harness.client.waiting(PRODUCE)
    (partition,) = request.body.partitions
    info = lz4.frame.get_frame_info(bytes(partition.records)[BATCH_OVERHEAD_BYTES:])
    assert info["block_size"] == 262_144


@pytest.mark.conformance("4.51")
def test_a_single_record_that_is_too_large_fails():
    harness = idempotent()
    (future,), (request,) = send_each(harness, 1)
    harness.client.answer_produce(request, ErrorCode.MESSAGE_TOO_LARGE)
    harness.settle()
    assert isinstance(future.exception(), RecordTooLargeError)


def test_a_batch_that_lost_its_place_among_the_numbers_fails_instead_of_being_split():
    harness = CoreHarness(transaction_version=1, linger_ms=5)
    harness.start_transaction()
    harness.client.prepare_add_partitions()
    harness.client.prepare_produce(base_offset=5)
    harness.run_until(harness.send().done)
    unknown = harness.send()
    harness.run_for(6)
    too_large = [harness.send() for _ in range(2)]
    harness.run_for(6)
    requests = harness.client.waiting(PRODUCE)
    answer = ProducePartitionResponse(TP0, ErrorCode.UNKNOWN_PRODUCER_ID, log_start_offset=0)
    harness.client.answer(requests[0], ProduceResponse((answer,)))
    harness.settle()
    assert isinstance(unknown.exception(), UnknownProducerIdError)
    harness.client.answer_produce(requests[1], ErrorCode.MESSAGE_TOO_LARGE)
    harness.settle()
    assert all(isinstance(f.exception(), RecordTooLargeError) for f in too_large)
    assert memory_taken(harness) == 0
    harness.core.begin_abort()
    harness.run_until_sent(ApiKey.END_TXN)  # nothing that was sent keeps it waiting


def forget_the_producer(harness):
    """Write a record, send two more, and have the broker know nothing of the first of them."""
    harness.client.default_versions = dict(NO_BUMP_VERSIONS)
    harness.start_transaction()
    harness.know_topics()
    harness.client.prepare_add_partitions()
    harness.client.prepare_produce(base_offset=5)
    harness.run_until(harness.send().done)
    futures, requests = send_each(harness, 2)
    return (
        futures,
        requests,
        ProducePartitionResponse(TP0, ErrorCode.UNKNOWN_PRODUCER_ID, log_start_offset=0),
    )


def test_a_waiting_batch_is_not_sent_once_its_partitions_numbers_are_void():
    harness = CoreHarness(transaction_version=1)
    futures, requests, unknown = forget_the_producer(harness)
    harness.client.answer_produce(requests[1], ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.settle()
    harness.client.answer(requests[0], ProduceResponse((unknown,)))
    harness.settle()
    assert isinstance(futures[0].exception(), UnknownProducerIdError)
    assert isinstance(futures[1].exception(), OutOfOrderSequenceError)
    assert len(harness.sequences_sent()) == 3
    harness.abort()
    harness.begin_transaction()


def test_no_transaction_begins_after_a_batch_written_under_a_void_number():
    # The next transaction begins at 0 under the same epoch: the broker may have that number.
    harness = CoreHarness(transaction_version=1)
    futures, requests, unknown = forget_the_producer(harness)
    harness.client.answer(requests[0], ProduceResponse((unknown,)))
    harness.settle()
    harness.client.answer_produce(requests[1], base_offset=9)
    harness.settle()
    assert futures[1].result().offset == 9
    harness.abort()
    with pytest.raises(ApplicationRecoverableError, match="go on with a new one"):
        harness.begin_transaction()


@pytest.mark.conformance("5.28")
def test_batches_that_end_in_one_turn_are_called_back_as_they_were_answered():
    harness = idempotent()
    called = []
    for name in ("first", "second", "third"):
        harness.send(on_delivery=lambda metadata, error, name=name: called.append(name))
        harness.settle()
    requests = harness.client.waiting(PRODUCE)
    for offset, request in enumerate(requests):
        harness.client.answer_produce(request, base_offset=offset)
    harness.settle()
    assert called == ["first", "second", "third"]


# --- answers that should not be ------------------------------------------------------------


@pytest.mark.conformance("6.16")
@pytest.mark.quirk("Q4")
def test_one_partitions_trouble_in_an_answer_does_not_strand_the_others(caplog):
    """In Java an exception loses the rest of the answer, with its futures and its memory."""
    harness = idempotent(topics={"topic": 3})
    futures = [harness.send(partition=p) for p in range(3)]
    harness.settle()
    (request,) = harness.client.waiting(PRODUCE)
    stranger = ProducePartitionResponse(TopicPartition("topic", 99), 0, 5)
    good = ProducePartitionResponse(TopicPartition("topic", 1), 0, 6)
    harness.client.answer(request, ProduceResponse((stranger, good)))
    harness.settle()
    assert "TopicPartition(topic='topic', partition=99), which was not in the re" in caplog.text
    assert futures[1].result().offset == 6
    assert not futures[0].done()  # left out of the answer: sent again
    for _ in range(2):
        harness.client.prepare_produce(base_offset=8)
    harness.run_until(lambda: futures[0].done() and futures[2].done())
    assert futures[0].result().offset == 8


def test_an_answer_to_nothing_is_dropped():
    harness = idempotent()
    (future,), (request,) = send_each(harness, 1)
    harness.client.answer_produce(request)
    harness.client.answer_produce(request)
    harness.settle()
    assert future.exception() is None


# --- edges ---------------------------------------------------------------------------------


def test_metadata_that_are_not_answered_are_asked_for_again():
    harness = CoreHarness(transactional_id=None)
    harness.client.prepare_failure(ApiKey.METADATA)
    harness.client.prepare_failure(ApiKey.METADATA, ResponseFailure.TIMED_OUT, delay_ms=500)
    harness.know_topics()
    assert len(harness.client.sent(ApiKey.METADATA)) >= 3


def test_only_one_metadata_request_is_under_way():
    harness = idempotent()
    harness.settle()
    harness.client.is_answering_metadata = False
    asked = len(harness.client.sent(ApiKey.METADATA))
    harness.core.partitions_for("other", harness.now_ms)
    harness.run_for(5_000)
    harness.core.partitions_for("another", harness.now_ms)
    harness.run_for(5_000)
    assert len(harness.client.sent(ApiKey.METADATA)) == asked + 1


def test_a_request_that_cannot_be_put_on_the_wire_is_tried_again():
    harness = idempotent()
    harness.settle()
    send, harness.client.send = harness.client.send, refuse
    future = harness.send()
    harness.step()
    harness.client.send = send
    harness.client.prepare_produce()
    harness.run_until(future.done)
    assert future.exception() is None
    assert harness.sequences_sent() == [0]


def refuse(request, now_ms):
    raise IllegalStateError("not ready")


def test_a_completion_without_a_request_is_dropped():
    harness = idempotent()
    _, (request,) = send_each(harness, 1)
    harness.core.handle(ClientResponse(request, ProduceResponse(())), 0)
    harness.core.handle(ClientResponse(request, ProduceResponse(())), 0)


def test_a_batch_whose_answer_cannot_be_handled_still_ends_at_its_deadline():
    harness = idempotent(delivery_timeout_ms=20_000, request_timeout_ms=20_000)
    (future,), (request,) = send_each(harness, 1)
    manager = harness.manager
    completed, manager.progress.handle_completed_batch = (
        manager.progress.handle_completed_batch,
        refuse,
    )
    harness.client.answer_produce(request)
    harness.settle()
    manager.progress.handle_completed_batch = completed
    assert not future.done()
    harness.run_until(future.done)
    assert harness.now_ms == 20_000
    assert memory_taken(harness) == 0


def test_without_idempotence_retriable_errors_are_retried_and_others_fail():
    harness = CoreHarness(transactional_id=None, enable_idempotence=False)
    harness.know_topics()
    harness.client.prepare_produce(ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.client.prepare_produce(base_offset=4)
    future = harness.send()
    harness.run_until(future.done)
    assert future.result().offset == 4
    harness.client.prepare_produce(ErrorCode.INVALID_RECORD)
    future = harness.send()
    harness.run_until(future.done)
    assert isinstance(future.exception(), InvalidRecordError)
    harness.client.prepare_produce(ErrorCode.MESSAGE_TOO_LARGE)
    for offset in range(3):
        harness.client.prepare_produce(base_offset=offset)
    ticket = harness.core.begin_flush(harness.now_ms)
    assert ticket.is_done()
    harness.core.end_flush(ticket)
    harness.core.initiate_close(harness.now_ms)
    harness.run_until(lambda: harness.core.is_closed)
    assert harness.step() == NEVER_MS
    harness.core.initiate_close(harness.now_ms)


def test_a_producer_without_idempotence_is_closed_by_force():
    harness = CoreHarness(transactional_id=None, enable_idempotence=False)
    harness.know_topics()
    future = harness.send()
    harness.core.force_close(harness.now_ms)
    assert harness.core.is_closed
    assert "closed by force" in str(future.exception())


def test_after_a_close_by_force_the_application_acts():
    harness = idempotent()
    harness.core.force_close(harness.now_ms)
    assert harness.manager.machine.role is Role.APPLICATION


def test_a_split_without_idempotence_keeps_the_order():
    harness = CoreHarness(transactional_id=None, enable_idempotence=False, linger_ms=5)
    harness.know_topics()
    futures = [harness.send(value=b"%d" % n) for n in range(4)]
    for _ in range(2):
        harness.client.prepare_produce(ErrorCode.MESSAGE_TOO_LARGE)
    harness.run_until(lambda: len(harness.client.sent(PRODUCE)) >= 3)
    for _ in range(4):
        harness.settle()
        for request in harness.client.waiting(PRODUCE):
            harness.client.answer_produce(request)
    harness.settle()
    assert all(future.done() for future in futures)
    sent = [v for b in harness.sent_batches()[2:] for v in b.values]
    assert sent == [b"0", b"1", b"2", b"3"]


def test_time_spent_waiting_is_added_up():
    harness = idempotent()
    harness.core.add_time("flush", 5)
    harness.core.add_time("flush", 6)
    assert harness.core.metrics()["flush-time-ns-total"] == 11


def test_rates_and_averages_forget_old_samples():
    metrics = Metrics(0)
    metrics.count("record-send", 30, 0)
    metrics.stat("request-latency").record(8, 0)
    assert metrics.snapshot(10_000)["record-send-rate"] == 3
    metrics.stat("request-latency").record(2, 31_000)
    now = metrics.snapshot(31_000)
    assert (now["request-latency-avg"], now["request-latency-max"]) == (5, 8)
    later = metrics.snapshot(95_000)
    assert later["record-send-rate"] == 0
    assert later["record-send-total"] == 30
    assert later["request-latency-avg"] == 0.0


@pytest.mark.parametrize(
    ("at_ms", "average", "highest"),
    [(29_999, 5, 8), (30_000, 5, 8), (59_999, 5, 8), (60_000, 2, 2)],
)
def test_a_sample_begins_a_new_window_after_30_s(at_ms, average, highest):
    metrics = Metrics(0)
    metrics.stat("batch-size").record(8, 0)
    metrics.stat("batch-size").record(2, at_ms)
    now = metrics.snapshot(at_ms)
    assert (now["batch-size-avg"], now["batch-size-max"]) == (average, highest)
    # The older one is forgotten a window after the one in which it was made.
    later = metrics.snapshot(60_000)
    assert later["batch-size-avg"] == (2 if at_ms >= 30_000 else 0)


@pytest.mark.parametrize(
    "name", ["batch-size", "record-queue-time", "compression-rate", "records-per-request"]
)
def test_values_of_requests_are_noted_for_the_window_in_which_they_came(name):
    metrics = Metrics(0)
    sent = SendMetrics(metrics)
    for value, now_ms in ((8, 0), (8, 10), (2, 61_000), (4, 61_050)):
        builder = SimpleNamespace(actual_compression_ratio=value)
        times = {"created_ms": 0, "drained_ms": value}
        sizes = {"record_count": value, "estimated_size_bytes": value}
        batch: Any = SimpleNamespace(builder=builder, **times, **sizes)
        sent.sent([batch], now_ms)
    now = metrics.snapshot(61_060)
    assert now[f"{name}-avg"] == 3
    assert now["record-send-rate"] == 100  # six in the 60 ms of the window


@pytest.mark.parametrize("name", ["request-latency", "produce-throttle-time"])
def test_values_of_answers_are_noted_for_the_window_in_which_they_came(name):
    metrics = Metrics(0)
    sent = SendMetrics(metrics)
    for value, now_ms in ((8, 0), (8, 10), (2, 61_000), (4, 61_050)):
        sent.answered(value, value, now_ms)
    now = metrics.snapshot(61_060)
    assert (now[f"{name}-avg"], now[f"{name}-max"]) == (3, 4)


def test_a_noted_value_counts_at_once():
    metrics = Metrics(0)
    metrics.rate("record-send").note(3)
    assert metrics.snapshot(1)["record-send-total"] == 3
    metrics.rate("record-send").note(4)
    now = metrics.snapshot(1_000)
    assert (now["record-send-total"], now["record-send-rate"]) == (7, 7)


def test_an_older_batch_in_the_rear_of_a_queue_expires_at_its_time():
    # Without numbers a retry goes to the front: the younger one comes back last.
    harness = CoreHarness(
        transactional_id=None,
        enable_idempotence=False,
        delivery_timeout_ms=31_000,
        request_timeout_ms=30_000,
        retry_backoff_ms=1_000,
        retry_backoff_max_ms=1_000,
    )
    harness.know_topics()
    harness.run_for(10_000)
    older = harness.send(partition=0)
    harness.run_for(20_000)
    younger = harness.send(partition=0)
    harness.run_for(700)
    for request in harness.client.waiting(PRODUCE):
        harness.client.answer_produce(request, ErrorCode.NOT_ENOUGH_REPLICAS)
        harness.settle()
    begun_ms = 10_000
    harness.run_for(begun_ms + 30_999 - harness.now_ms)
    assert not older.done()
    harness.run_for(1)
    assert isinstance(older.exception(), KafkaTimeoutError)
    assert not younger.done()


def test_a_producer_without_records_is_not_woken_to_look_for_expired_ones():
    harness = idempotent(delivery_timeout_ms=20_000, request_timeout_ms=20_000)
    assert harness.step() > 20_000
    harness.client.prepare_produce()
    harness.send().result()
    assert harness.step() > 20_000


def test_a_batch_that_is_begun_later_expires_at_its_time():
    harness = idempotent(delivery_timeout_ms=31_000, linger_ms=1_000)
    harness.client.stop_node(0)
    first = harness.send()
    harness.run_for(5_000)
    later = harness.send(partition=1)
    harness.run_for(25_999)
    assert not first.done()
    harness.run_for(1)
    assert isinstance(first.exception(), KafkaTimeoutError)
    harness.run_for(4_999)
    assert not later.done()
    harness.run_for(1)
    assert isinstance(later.exception(), KafkaTimeoutError)


def test_a_plain_producer_has_no_transactions():
    for harness in (idempotent(), CoreHarness(transactional_id=None, enable_idempotence=False)):
        with pytest.raises(IllegalStateError, match="transactional_id"):
            harness.core.init_transactions()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            ErrorCode.NOT_ENOUGH_REPLICAS,
            "they were not written when it was last sent; its last attempt ended with: NOT",
        ),
        (ErrorCode.REQUEST_TIMED_OUT, "the broker may have the records; its last attempt ended"),
    ],
)
def test_a_batch_that_expires_before_a_retry_reports_the_error_of_its_last_attempt(code, words):
    harness = idempotent(
        delivery_timeout_ms=20_000,
        request_timeout_ms=10_000,
        retry_backoff_ms=60_000,
        retry_backoff_max_ms=60_000,
    )
    (future,), (request,) = send_each(harness, 1)
    harness.client.answer_produce(request, code)
    harness.run_until(future.done)
    assert isinstance(future.exception(), KafkaTimeoutError)
    assert words in str(future.exception())
    assert "Check whether they are there" in str(future.exception())
    assert harness.client.waiting(PRODUCE) == []
