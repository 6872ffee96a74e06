"""The sender's step, from outside: what goes on the wire in which order, and what comes of it.

Idempotent producers here; transactions in `test_sender_transactions.py`.
"""

from __future__ import annotations

import math

import pytest

from tests.harness import TP0, TP1, CoreHarness
from txnproducer._core.metadata import NEVER_MS
from txnproducer._core.metrics import Metrics
from txnproducer._protocol.events import ClientResponse, ConnectionId, ResponseFailure
from txnproducer._protocol.messages import (
    ApiKey,
    BrokerNode,
    LeaderIdAndEpoch,
    ProducePartitionResponse,
    ProduceResponse,
)
from txnproducer.errors import (
    ClusterAuthorizationError,
    ErrorCode,
    IllegalStateError,
    InvalidRecordError,
    KafkaError,
    KafkaTimeoutError,
    NotEnoughReplicasError,
    RecordTooLargeError,
    UnsupportedVersionError,
)
from txnproducer.records import ProducerIdAndEpoch, TopicPartition

PRODUCE = ApiKey.PRODUCE


def idempotent(**settings):
    """Return a harness whose idempotent producer has its id and knows its topics."""
    harness = CoreHarness(transactional_id=None, **settings)
    harness.start_idempotent()
    return harness


def send_each(harness, count, **more):
    """Send records, each a request of its own, none answered; return futures, requests."""
    futures = []
    for _ in range(count):
        futures.append(harness.send(**more))
        harness.settle()
    return futures, harness.client.waiting(PRODUCE)


def memory_taken(harness):
    metrics = harness.core.metrics()
    return metrics["buffer-total-bytes"] - metrics["buffer-available-bytes"]


# --- the first steps -----------------------------------------------------------------------


@pytest.mark.conformance("3.31", "6.10")
def test_an_idempotent_producer_gets_its_id_from_any_broker_before_any_data_goes():
    harness = CoreHarness(transactional_id=None)
    harness.know_topics()
    future = harness.send()
    harness.settle()
    (request,) = harness.client.sent(ApiKey.INIT_PRODUCER_ID)
    assert request.transactional_id is None
    assert request.transaction_timeout_ms == 2**31 - 1
    assert harness.client.sent(PRODUCE) == []
    harness.client.answer(
        harness.client.waiting(ApiKey.INIT_PRODUCER_ID)[0],
        type(harness.client).init_response(7, 0),
    )
    harness.client.prepare_produce(base_offset=5)
    harness.run_until(future.done)
    assert future.result().offset == 5
    (batch,) = harness.sent_batches()
    assert (batch.header.producer_id, batch.header.producer_epoch) == (7, 0)


@pytest.mark.conformance("6.11", "5.25")
def test_with_nothing_to_do_the_step_asks_for_the_next_metadata_refresh_only():
    harness = idempotent()
    harness.settle()
    delay_ms = harness.step()
    assert delay_ms > 10_000
    assert delay_ms <= harness.config.metadata_max_age_ms


@pytest.mark.conformance("5.25", "6.11")
def test_with_a_record_on_the_wire_the_step_asks_for_its_expiry():
    harness = idempotent(delivery_timeout_ms=40_000)
    send_each(harness, 1)
    assert harness.step() == 40_000
    harness.now_ms += 15_000
    assert harness.step() == 25_000


@pytest.mark.conformance("6.12", "6.11")
def test_one_request_per_broker_with_one_batch_per_partition():
    harness = idempotent(node_count=2, topics={"topic": 4})
    for partition in (0, 1, 2, 3):
        harness.send(partition=partition)
    harness.settle()
    requests = [r for r in harness.client.requests if type(r.body).__name__ == "ProduceRequest"]
    by_node = {
        r.connection.node_id: [p.topic_partition.partition for p in r.body.partitions]
        for r in requests
    }
    assert by_node == {0: [0, 2], 1: [1, 3]}


@pytest.mark.conformance("6.11")
def test_a_broker_that_cannot_be_reached_does_not_hold_up_another():
    harness = idempotent(node_count=2)
    harness.client.stop_node(0)
    harness.send(partition=0)
    future = harness.send(partition=1)
    harness.client.prepare_produce()
    harness.run_until(future.done)
    assert [b.topic_partition for b in harness.sent_batches()] == [TP1]


@pytest.mark.conformance("4.05")
def test_batches_in_flight_are_acknowledged_in_order():
    harness = idempotent()
    futures, requests = send_each(harness, 3)
    assert harness.sequences_sent() == [0, 1, 2]
    for number, request in enumerate(requests):
        harness.client.answer_produce(request, base_offset=100 + number)
    harness.settle()
    assert [f.result().offset for f in futures] == [100, 101, 102]
    sequences = harness.manager.sequences
    assert sequences.last_acked_sequence(TP0) == 2
    assert sequences.last_acked_offset(TP0) == 102


def test_no_more_requests_are_in_flight_than_allowed():
    harness = idempotent(max_in_flight_requests_per_connection=2)
    _, requests = send_each(harness, 4)
    assert len(requests) == 2
    harness.client.answer_produce(requests[0])
    harness.settle()
    assert len(harness.client.sent(PRODUCE)) == 3


# --- retries -------------------------------------------------------------------------------


@pytest.mark.conformance("4.07")
@pytest.mark.trap(21, 22)
def test_retries_go_one_by_one_in_sequence_order_and_new_records_stay_behind():
    harness = idempotent()
    _, requests = send_each(harness, 3)
    harness.client.answer_produce(requests[0], ErrorCode.NOT_LEADER_OR_FOLLOWER)
    for request in requests[1:]:
        harness.client.answer_produce(request, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    harness.settle()
    harness.send()
    expected = [0, 1, 2]
    for sequence in (0, 1):
        harness.run_for(2_000)
        expected.append(sequence)
        assert harness.sequences_sent() == expected
        harness.client.answer_produce(harness.client.waiting(PRODUCE)[0])
    harness.run_for(2_000)
    assert harness.sequences_sent() == [*expected, 2, 3]  # the last retry is not answered yet


@pytest.mark.conformance("4.08")
@pytest.mark.trap(23)
def test_answers_out_of_order_still_put_the_retries_in_order():
    harness = idempotent()
    _, requests = send_each(harness, 2)
    harness.client.answer_produce(requests[1], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    harness.settle()
    harness.client.answer_produce(requests[0], ErrorCode.NOT_LEADER_OR_FOLLOWER)
    harness.run_for(2_000)
    assert harness.sequences_sent() == [0, 1, 0]


@pytest.mark.conformance("4.09", "4.10")
def test_what_was_acknowledged_never_goes_back():
    harness = idempotent()
    futures, requests = send_each(harness, 2)
    harness.client.answer_produce(requests[1], base_offset=1_000)
    harness.client.answer_produce(requests[0], ErrorCode.REQUEST_TIMED_OUT)
    harness.settle()
    assert harness.manager.sequences.last_acked_sequence(TP0) == 1
    harness.client.prepare_produce(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    harness.run_until(futures[0].done)
    assert futures[0].result().offset == -1
    assert harness.manager.sequences.last_acked_sequence(TP0) == 1
    assert harness.manager.sequences.last_acked_offset(TP0) == 1_000


@pytest.mark.conformance("6.13")
@pytest.mark.parametrize(
    "failure", [ResponseFailure.DISCONNECTED, ResponseFailure.TIMED_OUT], ids=lambda f: f.name
)
def test_a_lost_request_is_sent_again_under_the_same_sequence(failure):
    harness = idempotent()
    (future,), (request,) = send_each(harness, 1)
    harness.client.fail(request, failure)
    harness.client.prepare_produce(base_offset=3)
    harness.run_until(future.done)
    assert future.result().offset == 3
    assert harness.sequences_sent() == [0, 0]


@pytest.mark.conformance("6.13", "4.59")
def test_a_version_that_the_broker_lacks_is_fatal():
    harness = idempotent()
    (future,), (request,) = send_each(harness, 1)
    harness.client.fail(request, ResponseFailure.UNSUPPORTED_VERSION)
    harness.settle()
    assert isinstance(future.exception(), UnsupportedVersionError)
    assert harness.manager.has_fatal_error


@pytest.mark.conformance("6.13")
def test_without_acks_a_record_succeeds_with_an_unknown_offset():
    harness = CoreHarness(transactional_id=None, enable_idempotence=False, acks="0")
    harness.know_topics()
    future = harness.send()
    harness.settle()
    (request,) = harness.client.waiting(PRODUCE)
    harness.client.answer(request, ProduceResponse(()))
    harness.settle()
    assert future.result().offset == -1
    assert memory_taken(harness) == 0


@pytest.mark.conformance("6.14")
@pytest.mark.trap(27)
def test_retries_count_the_times_a_batch_is_put_back():
    harness = idempotent(retries=1)
    (future,), (request,) = send_each(harness, 1)
    harness.client.answer_produce(request, ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.client.prepare_produce(ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.run_until(future.done)
    assert future.exception().code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert len(harness.client.sent(PRODUCE)) == 2


@pytest.mark.conformance("5.12")
def test_a_retry_waits_for_its_backoff():
    harness = idempotent()
    _, (request,) = send_each(harness, 1)
    harness.client.answer_produce(request, ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.run_for(79)
    assert len(harness.client.sent(PRODUCE)) == 1
    harness.run_for(42)
    assert len(harness.client.sent(PRODUCE)) == 2


@pytest.mark.conformance("6.15")
@pytest.mark.trap(39)
def test_a_leader_named_in_the_refusal_is_used_at_once():
    harness = idempotent(node_count=2)
    _, (request,) = send_each(harness, 1)
    asked = len(harness.client.sent(ApiKey.METADATA))
    harness.client.answer_produce(
        request,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        current_leader=LeaderIdAndEpoch(1, 9),
        nodes=(BrokerNode(1, "broker-1", 9092),),
    )
    harness.settle()
    assert [b.node_id for b in harness.sent_batches()] == [0, 1]
    assert harness.now_ms == 0
    assert len(harness.client.sent(ApiKey.METADATA)) <= asked + 1


@pytest.mark.conformance("6.15")
def test_without_a_named_leader_metadata_are_asked_for_and_the_backoff_holds():
    harness = idempotent(node_count=2)
    _, (request,) = send_each(harness, 1)
    harness.now_ms += 1_000
    asked = len(harness.client.sent(ApiKey.METADATA))
    harness.client.leaders[TP0] = 1
    harness.client.leader_epochs[TP0] = 0
    harness.client.answer_produce(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    harness.settle()
    assert len(harness.client.sent(ApiKey.METADATA)) == asked + 1
    assert len(harness.client.sent(PRODUCE)) == 1
    harness.run_for(121)
    assert [b.node_id for b in harness.sent_batches()] == [0, 1]


# --- epochs --------------------------------------------------------------------------------


@pytest.mark.conformance("4.18", "4.28")
def test_a_gap_that_cannot_close_raises_the_epoch_locally_and_renumbers_from_zero():
    harness = idempotent()
    futures, requests = send_each(harness, 1)
    harness.client.answer_produce(requests[0])
    harness.settle()
    more, (request,) = send_each(harness, 1)
    harness.client.answer_produce(request, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    harness.client.prepare_produce()
    harness.run_until(more[0].done)
    headers = [b.header for b in harness.sent_batches()]
    assert [(h.producer_epoch, h.base_sequence) for h in headers] == [(0, 0), (0, 1), (1, 0)]
    assert len(harness.client.sent(ApiKey.INIT_PRODUCER_ID)) == 1
    assert futures[0].done()


@pytest.mark.conformance("4.58")
def test_cluster_authorization_failure_from_produce_is_fatal():
    harness = idempotent()
    (future,), (request,) = send_each(harness, 1)
    harness.client.answer_produce(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    harness.settle()
    assert isinstance(future.exception(), ClusterAuthorizationError)
    with pytest.raises(KafkaError):
        harness.send()


@pytest.mark.conformance("4.60")
def test_a_refused_id_fails_what_waits_and_is_asked_for_again():
    harness = CoreHarness(transactional_id=None)
    harness.know_topics()
    future = harness.send()
    harness.client.prepare_init_producer_id(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    harness.run_until(future.done)
    assert isinstance(future.exception(), ClusterAuthorizationError)
    harness.client.prepare_init_producer_id(producer_id=9, producer_epoch=0)
    harness.client.prepare_produce()
    harness.run_until(lambda: harness.manager.has_producer_id)
    future = harness.send()
    harness.run_until(future.done)
    assert future.exception() is None


# --- expiry --------------------------------------------------------------------------------


@pytest.mark.conformance("4.36")
def test_a_batch_that_expires_unsent_leaves_no_doubt_behind():
    harness = idempotent(delivery_timeout_ms=31_000)
    harness.client.stop_node(0)
    future = harness.send()
    harness.run_until(future.done)
    assert isinstance(future.exception(), KafkaTimeoutError)
    assert "nothing was sent" in str(future.exception())
    assert not harness.manager.sequences.has_unresolved_sequence(TP0)
    assert harness.now_ms == 31_000
    assert memory_taken(harness) == 0


@pytest.mark.conformance("5.23", "4.41", "4.49", "4.24")
def test_a_batch_that_expires_at_its_first_attempt_on_the_wire_leaves_its_partition_in_doubt():
    """Java judges "sent before" by "put back before" and misses the first attempt."""
    harness = idempotent(delivery_timeout_ms=20_000, request_timeout_ms=20_000)
    (future,), (request,) = send_each(harness, 1)
    harness.now_ms = 20_000
    harness.core.run_once(harness.now_ms)
    assert isinstance(future.exception(), KafkaTimeoutError)
    assert "may have the records" in str(future.exception())
    assert harness.manager.producer_id_and_epoch.producer_epoch == 1
    assert memory_taken(harness) > 0  # the bytes are still on the wire
    harness.client.answer_produce(request, base_offset=7)
    harness.settle()
    assert memory_taken(harness) == 0
    assert isinstance(future.exception(), KafkaTimeoutError)  # what was told is not taken back


@pytest.mark.conformance("4.37", "4.39", "4.49")
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
    assert harness.manager.producer_id_and_epoch.producer_epoch == 0


@pytest.mark.conformance("5.24")
def test_a_batch_that_is_overdue_is_failed_and_not_sent():
    """Java numbers it, reports it as failed and sends it all the same."""
    harness = idempotent(delivery_timeout_ms=31_000, linger_ms=1_000)
    future = harness.send()
    harness.settle()
    harness.now_ms = 31_000
    harness.settle()
    assert isinstance(future.exception(), KafkaTimeoutError)
    assert harness.client.sent(PRODUCE) == []


@pytest.mark.conformance("4.25", "4.26")
def test_a_retriable_answer_at_the_deadline_is_told_and_leaves_doubt():
    """Java counts it as a certain refusal."""
    harness = idempotent(delivery_timeout_ms=20_000, request_timeout_ms=20_000)
    (future,), (request,) = send_each(harness, 1)
    harness.client.answer_produce(request, ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.now_ms = 20_000
    harness.settle()
    assert isinstance(future.exception(), NotEnoughReplicasError)
    assert len(harness.client.sent(PRODUCE)) == 1
    assert harness.manager.producer_id_and_epoch.producer_epoch == 1


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


@pytest.mark.conformance("5.20", "5.19")
def test_with_one_in_flight_an_expired_batch_keeps_its_partition_muted_until_the_answer():
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


@pytest.mark.conformance("4.45", "5.33", "4.52")
@pytest.mark.trap(35)
@pytest.mark.parametrize("code", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.NOT_ENOUGH_REPLICAS])
def test_an_error_answer_for_an_expired_batch_only_frees_its_memory(code):
    harness = idempotent(delivery_timeout_ms=20_001, request_timeout_ms=20_000, linger_ms=1)
    futures = [harness.send(), harness.send()]
    harness.run_until(lambda: harness.client.sent(PRODUCE))
    (request,) = harness.client.waiting(PRODUCE)
    harness.now_ms = 20_001
    harness.core.run_once(harness.now_ms)
    harness.client.answer_produce(request, code)
    harness.settle()
    assert all(isinstance(f.exception(), KafkaTimeoutError) for f in futures)
    assert len(harness.client.sent(PRODUCE)) == 1
    assert memory_taken(harness) == 0


# --- split ---------------------------------------------------------------------------------


@pytest.mark.conformance("4.50", "4.53")
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


@pytest.mark.conformance("4.51")
def test_a_single_record_that_is_too_large_fails():
    harness = idempotent()
    (future,), (request,) = send_each(harness, 1)
    harness.client.answer_produce(request, ErrorCode.MESSAGE_TOO_LARGE)
    harness.settle()
    assert isinstance(future.exception(), RecordTooLargeError)


# --- answers that should not be ------------------------------------------------------------


@pytest.mark.conformance("6.16", "6.17", "4.47")
def test_one_partitions_trouble_in_an_answer_does_not_strand_the_others():
    """In Java an exception loses the rest of the answer, with its futures and its memory."""
    harness = idempotent(topics={"topic": 3})
    futures = [harness.send(partition=p) for p in range(3)]
    harness.settle()
    (request,) = harness.client.waiting(PRODUCE)
    stranger = ProducePartitionResponse(TopicPartition("topic", 99), 0, 5)
    good = ProducePartitionResponse(TopicPartition("topic", 1), 0, 6)
    harness.client.answer(request, ProduceResponse((stranger, good)))
    harness.settle()
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


# --- metadata ------------------------------------------------------------------------------


@pytest.mark.conformance("6.18", "5.11")
def test_a_topic_that_expired_from_metadata_is_wanted_again_when_data_wait_for_it():
    harness = idempotent(metadata_max_idle_ms=5_000, linger_ms=10_000)
    future = harness.send()
    harness.settle()
    harness.now_ms = 6_000
    harness.core._metadata.request_update()
    harness.run_for(200)
    assert "topic" not in harness.core._metadata.topics or harness.client.sent(ApiKey.METADATA)
    harness.client.prepare_produce()
    harness.run_until(future.done)
    assert future.exception() is None


@pytest.mark.conformance("5.11")
def test_records_wait_for_a_leader_and_go_when_there_is_one():
    harness = idempotent()
    harness.client.leaders[TP0] = -1
    harness.client.leader_epochs[TP0] = 1
    harness.core._metadata.request_update()
    harness.run_for(500)
    future = harness.send(partition=0)
    harness.run_for(500)
    assert harness.client.sent(PRODUCE) == []
    harness.client.leaders[TP0] = 0
    harness.client.prepare_produce()
    harness.run_until(future.done)
    assert future.exception() is None


def test_when_every_known_broker_is_gone_the_bootstrap_addresses_are_tried_again():
    harness = idempotent()
    harness.client.known.pop(-1, None)  # as a client that forgets what it was not told
    harness.client.stop_node(0)
    harness.core._metadata.request_update()
    harness.run_for(2_000)
    assert -1 in harness.client.known
    harness.client.nodes = {7: BrokerNode(7, "broker-7", 9092)}
    harness.client.leader_epochs[TP0] = 3
    future = harness.send()
    harness.client.prepare_produce()
    harness.run_until(future.done)
    assert future.exception() is None
    assert harness.sent_batches()[-1].node_id == 7


# --- throttling ----------------------------------------------------------------------------


@pytest.mark.conformance("6.09")
def test_a_throttled_broker_is_sent_to_when_it_allows_it():
    harness = idempotent()
    harness.settle()
    harness.client.throttle(ConnectionId(0), 500)
    future = harness.send()
    harness.client.prepare_produce()
    harness.run_until(future.done)
    assert harness.now_ms == 500


# --- the account ---------------------------------------------------------------------------


def test_metrics_count_under_the_java_clients_names():
    harness = idempotent()
    futures, (request, *_) = send_each(harness, 2)
    harness.client.answer_produce(request, ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.client.prepare_produce()
    for other in harness.client.waiting(PRODUCE)[1:]:
        harness.client.answer_produce(other, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    harness.client.prepare_produce()
    harness.run_until(lambda: all(f.done() for f in futures))
    metrics = harness.core.metrics()
    assert metrics["record-retry-total"] == 2
    assert metrics["record-error-total"] == 0
    assert metrics["record-send-total"] == 4
    assert metrics["requests-in-flight"] == 0
    assert metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"]
    assert metrics["request-latency-avg"] >= 0


def test_a_step_with_nothing_left_never_spins():
    harness = idempotent()
    for delay in (harness.step() for _ in range(3)):
        assert delay > 0
    assert harness.step() < NEVER_MS


def test_the_identity_is_one_value():
    harness = idempotent()
    assert harness.manager.producer_id_and_epoch == ProducerIdAndEpoch(13131, 0)


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


def test_an_end_that_nobody_awaits_is_dropped():
    harness = idempotent()
    _, (request,) = send_each(harness, 1)
    harness.core.handle(ClientResponse(request, ProduceResponse(())), 0)
    harness.core.handle(ClientResponse(request, ProduceResponse(())), 0)


def test_a_batch_whose_answer_cannot_be_handled_still_ends_at_its_deadline():
    harness = idempotent(delivery_timeout_ms=20_000, request_timeout_ms=20_000)
    (future,), (request,) = send_each(harness, 1)
    manager = harness.manager
    completed, manager.handle_completed_batch = manager.handle_completed_batch, refuse
    harness.client.answer_produce(request)
    harness.settle()
    manager.handle_completed_batch = completed
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


def test_rates_and_averages_forget_what_is_long_ago():
    metrics = Metrics(0)
    metrics.count("record-send", 30, 0)
    metrics.observe("request-latency", 8, 0)
    assert metrics.snapshot(10_000)["record-send-rate"] == 3
    metrics.observe("request-latency", 2, 31_000)
    now = metrics.snapshot(31_000)
    assert (now["request-latency-avg"], now["request-latency-max"]) == (5, 8)
    later = metrics.snapshot(95_000)
    assert later["record-send-rate"] == 0
    assert later["record-send-total"] == 30
    assert math.isnan(later["request-latency-avg"])


def test_a_plain_producer_has_no_transactions():
    for harness in (idempotent(), CoreHarness(transactional_id=None, enable_idempotence=False)):
        with pytest.raises(IllegalStateError, match="transactional_id"):
            harness.core.init_transactions()
