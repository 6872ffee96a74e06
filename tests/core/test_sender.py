"""The sender's step, from outside: the order of requests on the wire, and the effects of answers.

Idempotent producers here; transactions in `test_sender_transactions.py`.
"""

from __future__ import annotations

import pytest

from tests.core.sending import PRODUCE, idempotent, memory_taken, send_each
from tests.harness import TP0, TP1, CoreHarness
from txnproducer._core.metadata import NEVER_MS
from txnproducer._protocol.events import ConnectionId, ResponseFailure
from txnproducer._protocol.messages import (
    ApiKey,
    BrokerNode,
    LeaderIdAndEpoch,
    ProduceResponse,
)
from txnproducer.errors import (
    ClusterAuthorizationError,
    ErrorCode,
    KafkaError,
    UnsupportedVersionError,
)
from txnproducer.records import ProducerIdAndEpoch

# --- the first steps -----------------------------------------------------------------------


@pytest.mark.conformance("6.10")
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


@pytest.mark.conformance("6.11")
def test_with_nothing_to_do_the_step_asks_for_the_next_metadata_refresh_only():
    harness = idempotent()
    harness.settle()
    delay_ms = harness.step()
    assert delay_ms > 10_000
    assert delay_ms <= harness.config.metadata_max_age_ms


@pytest.mark.conformance("5.25")
def test_with_a_record_on_the_wire_the_step_asks_for_its_expiry():
    harness = idempotent(delivery_timeout_ms=40_000)
    send_each(harness, 1)
    assert harness.step() == 40_000
    harness.now_ms += 15_000
    assert harness.step() == 25_000


@pytest.mark.conformance("5.25")
def test_with_a_record_that_waits_the_step_asks_for_its_expiry():
    harness = idempotent(
        delivery_timeout_ms=40_000, retry_backoff_ms=90_000, retry_backoff_max_ms=90_000
    )
    _, (request,) = send_each(harness, 1)
    harness.client.answer_produce(request, ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.settle()
    assert harness.step() == 40_000
    harness.now_ms += 15_000
    assert harness.step() == 25_000


@pytest.mark.conformance("6.12")
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
    assert len(requests) == 2


@pytest.mark.conformance("6.12")
def test_a_partitions_second_batch_goes_in_a_request_of_its_own():
    harness = idempotent(batch_size=0)
    for _ in range(3):
        harness.send(partition=0)
    harness.settle()
    requests = harness.client.sent(PRODUCE)
    assert [len(request.partitions) for request in requests] == [1, 1, 1]
    assert harness.sequences_sent() == [0, 1, 2]


@pytest.mark.conformance("6.11")
def test_with_a_record_that_lingers_the_step_asks_for_the_end_of_its_linger():
    harness = idempotent(linger_ms=500)
    harness.send()
    harness.settle()
    assert harness.step() == 500
    harness.now_ms += 200
    assert harness.step() == 300


@pytest.mark.conformance("6.11")
def test_a_batch_that_is_left_lingers_from_its_own_start():
    harness = idempotent(linger_ms=100, batch_size=300, topics={"topic": 3})
    harness.client.prepare_produce()
    harness.send(partition=0).result()  # so that the broker takes records at once
    for partition, later_ms in ((0, 0), (1, 20)):
        harness.now_ms += later_ms
        harness.send(partition=partition, value=b"x" * 200)
        harness.send(partition=partition, value=b"x" * 200)
    harness.send(partition=2, value=b"x" * 300)  # nothing of it is left
    # The others have a batch that is closed, and one that lingers.
    assert harness.step() == 80
    sent = len(harness.client.sent(PRODUCE))
    harness.run_for(79)
    assert len(harness.client.sent(PRODUCE)) == sent
    harness.run_for(1)
    assert len(harness.client.sent(PRODUCE)) == sent + 1


@pytest.mark.conformance("6.11")
@pytest.mark.parametrize("is_flushed", [False, True])
def test_one_step_sends_all_that_may_go(is_flushed):
    harness = idempotent(linger_ms=100, batch_size=300)
    harness.client.prepare_produce()
    harness.send(partition=0).result()
    for _ in range(3):  # each is in a batch of its own, and none of these is full
        harness.send(partition=0, value=b"x" * 200)
    if is_flushed:
        harness.core.begin_flush(harness.now_ms)
    before = len(harness.client.sent(PRODUCE))
    harness.step()
    assert len(harness.client.sent(PRODUCE)) - before == (3 if is_flushed else 2)


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
    harness.client.max_in_flight = 10  # the connection would take more
    futures, requests = send_each(harness, 6)
    assert harness.sequences_sent() == [0, 1, 2, 3, 4], "five, and the sixth waits"
    sequences = harness.manager.sequences
    for number, request in enumerate(requests):
        harness.client.answer_produce(request, base_offset=100 + number)
        harness.settle()
        assert sequences.last_acked_sequence(TP0) == number
        assert sequences.last_acked_offset(TP0) == 100 + number
    assert [f.result().offset for f in futures[:5]] == [100, 101, 102, 103, 104]
    assert harness.sequences_sent() == [0, 1, 2, 3, 4, 5]


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
def test_retries_go_one_by_one_in_sequence_order_before_new_records():
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


@pytest.mark.conformance("4.09")
def test_the_last_acknowledged_sequence_never_goes_back():
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


@pytest.mark.conformance("4.10")
def test_a_duplicate_is_a_success_with_an_unknown_offset():
    harness = idempotent()
    futures, requests = send_each(harness, 2)
    harness.client.answer_produce(requests[0], base_offset=7)
    harness.client.answer_produce(requests[1], ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    harness.settle()
    assert [future.result(0).offset for future in futures] == [7, -1]
    sequences = harness.manager.sequences
    assert (sequences.last_acked_sequence(TP0), sequences.last_acked_offset(TP0)) == (1, 7)


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


@pytest.mark.conformance("6.13")
@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (ResponseFailure.DISCONNECTED, ErrorCode.NETWORK_EXCEPTION),
        (ResponseFailure.TIMED_OUT, ErrorCode.REQUEST_TIMED_OUT),
        (ResponseFailure.UNSUPPORTED_VERSION, ErrorCode.UNSUPPORTED_VERSION),
    ],
    ids=lambda value: value.name,
)
def test_every_record_of_a_lost_request_fails_with_the_error_that_it_counts_as(failure, code):
    harness = idempotent(retries=1)
    futures = [harness.send(partition=partition) for partition in (0, 1)]
    while not all(future.done() for future in futures):
        harness.run_until(lambda: harness.client.waiting(PRODUCE))
        harness.client.fail(harness.client.waiting(PRODUCE)[0], failure)
        harness.settle()
    assert [future.exception(0).code for future in futures] == [code, code]


@pytest.mark.conformance("4.59")
def test_a_version_that_the_broker_lacks_is_fatal():
    harness = idempotent()
    (future,), (request,) = send_each(harness, 1)
    harness.client.fail(request, ResponseFailure.UNSUPPORTED_VERSION)
    harness.settle()
    assert isinstance(future.exception(), UnsupportedVersionError)
    assert harness.manager.machine.has_fatal_error


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
@pytest.mark.parametrize("retries", [1, 3])
def test_retries_count_the_times_a_batch_is_put_back(retries):
    harness = idempotent(retries=retries)
    (future,), (request,) = send_each(harness, 1)
    harness.client.answer_produce(request, ErrorCode.NOT_ENOUGH_REPLICAS)
    for _ in range(retries):
        harness.client.prepare_produce(ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.run_until(future.done)
    assert future.exception().code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert len(harness.client.sent(PRODUCE)) == retries + 1


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


def test_a_leader_that_no_metadata_named_is_reached_at_the_address_in_the_refusal():
    harness = idempotent(node_count=1)
    (future,), (request,) = send_each(harness, 1)
    new = BrokerNode(7, "broker-7", 9092)
    assert 7 not in harness.client.known
    harness.client.is_answering_metadata = False
    harness.client.answer_produce(
        request,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        current_leader=LeaderIdAndEpoch(7, 9),
        nodes=(new,),
    )
    harness.client.prepare_produce(base_offset=4)
    harness.run_until(future.done)
    assert harness.client.known[7] == new
    assert [b.node_id for b in harness.sent_batches()] == [0, 7]


def test_a_leader_named_that_is_known_already_changes_nothing():
    harness = idempotent(node_count=2)
    (future,), (request,) = send_each(harness, 1)
    known = harness.core._metadata.leader_of(TP0)
    harness.client.answer_produce(
        request,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        current_leader=LeaderIdAndEpoch(*known),
        nodes=(BrokerNode(1, "broker-1", 9092),),
    )
    harness.client.prepare_produce(base_offset=4)
    harness.run_until(future.done)
    assert [b.node_id for b in harness.sent_batches()] == [0, 0]


def test_a_request_that_cannot_even_be_written_is_sent_again(monkeypatch):
    harness = idempotent()
    refused = []

    def refuse(request, now_ms):
        refused.append(request)
        monkeypatch.undo()
        raise UnsupportedVersionError("the broker was exchanged for an old one")

    monkeypatch.setattr(harness.client, "send", refuse)
    future = harness.send()
    harness.settle()
    assert len(refused) == 1
    assert not future.done()
    harness.client.prepare_produce(base_offset=4)
    harness.run_until(future.done)
    assert future.result().offset == 4
    assert harness.core._sender._producing.requests_in_flight == 0
    assert memory_taken(harness) == 0


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


@pytest.mark.conformance("4.18")
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
def test_a_refused_producer_id_fails_waiting_records_and_is_asked_for_again():
    harness = CoreHarness(transactional_id=None)
    harness.know_topics()
    future = harness.send()
    harness.client.prepare_init_producer_id(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    harness.run_until(future.done)
    assert isinstance(future.exception(), ClusterAuthorizationError)
    harness.client.prepare_init_producer_id(producer_id=9, producer_epoch=0)
    harness.client.prepare_produce()
    harness.run_until(lambda: harness.manager.identity.has_producer_id)
    future = harness.send()
    harness.run_until(future.done)
    assert future.exception() is None


# --- metadata ------------------------------------------------------------------------------


@pytest.mark.conformance("6.18")
def test_a_topic_that_expired_from_metadata_is_wanted_again_when_data_wait_for_it():
    harness = idempotent(metadata_max_idle_ms=5_000, linger_ms=10_000)
    future = harness.send()
    harness.settle()
    harness.now_ms = 6_000
    asked_before = len(harness.client.sent(ApiKey.METADATA))
    harness.core._metadata.request_update()
    harness.run_for(200)
    assert "topic" in harness.core._metadata.topics
    asked = harness.client.sent(ApiKey.METADATA)[asked_before:]
    assert any("topic" in (request.topics or ()) for request in asked)
    harness.client.prepare_produce()
    harness.run_until(future.done)
    assert future.exception() is None


@pytest.mark.conformance("6.18")
def test_a_topic_that_is_written_to_does_not_expire_from_metadata():
    harness = idempotent(metadata_max_idle_ms=5_000)
    harness.now_ms = 4_000
    harness.client.prepare_produce()
    future = harness.send()
    harness.run_until(future.done)
    harness.now_ms = 8_000
    harness.core._metadata.request_update()
    harness.settle()
    assert harness.client.sent(ApiKey.METADATA)[-1].topics == ("topic",)
    harness.now_ms = 20_000
    harness.core._metadata.request_update()
    harness.settle()
    assert harness.client.sent(ApiKey.METADATA)[-1].topics == ()


def test_metadata_for_waiting_batches_are_asked_for_at_once():
    # Nothing else would wake the loop: the batch went when its time was up. (Java's polls behind.)
    harness = idempotent(metadata_max_idle_ms=5_000)
    (future,), (request,) = send_each(harness, 1)
    harness.now_ms += 6_000
    harness.client.disconnect(request.connection)
    harness.client.prepare_produce()
    harness.run_until(future.done)
    assert future.exception() is None
    assert harness.now_ms < 7_000


@pytest.mark.conformance("5.11")
@pytest.mark.parametrize("leader_id", [-1, 9], ids=["none", "of no known broker"])
def test_records_wait_for_a_leader_and_go_when_there_is_one(leader_id):
    harness = idempotent()
    harness.client.leaders[TP0] = leader_id
    harness.client.leader_epochs[TP0] = 1
    harness.core._metadata.request_update()
    harness.run_for(500)
    future = harness.send(partition=0)
    harness.run_for(500)
    assert harness.client.sent(PRODUCE) == []
    harness.client.leaders[TP0] = 0
    harness.client.prepare_produce()
    since_ms = harness.now_ms
    harness.run_until(future.done)
    assert future.exception() is None
    assert harness.now_ms - since_ms <= harness.config.retry_backoff_max_ms


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
    assert harness.manager.identity.producer_id_and_epoch == ProducerIdAndEpoch(13131, 0)


def test_a_recreated_topic_gets_one_batch_first():
    """A broker takes any first number of a producer it does not know. Java's sends on."""
    harness = idempotent()
    send_each(harness, 1)
    harness.client.topic_ids["topic"] = b"another-topic-id"
    harness.core._metadata.request_update()
    harness.run_for(500)
    assert harness.manager.sequences._known_as == {}


def test_the_sender_is_not_woken_for_a_batch_that_has_to_wait_for_an_answer():
    """Five batches of a partition are on their way: an answer wakes the sender first."""
    harness = idempotent(batch_size=0)
    for _ in range(5):
        harness.send(partition=0)
        assert harness.core.needs_wakeup
        harness.settle()
        harness.core.needs_wakeup = False
    assert len(harness.client.waiting(PRODUCE)) == 5
    harness.send(partition=0)
    assert not harness.core.needs_wakeup
    harness.send(partition=1)
    assert harness.core.needs_wakeup


def test_a_step_sends_no_more_than_a_few_requests_to_a_broker_that_answers_none():
    harness = CoreHarness(
        transactional_id=None,
        acks=0,
        enable_idempotence=False,
        batch_size=0,
        max_in_flight_requests_per_connection=100,
    )
    harness.know_topics()
    harness.send(partition=0)
    harness.settle()
    for _ in range(20):
        harness.send(partition=0)
    harness.step()
    assert len(harness.client.sent(PRODUCE)) == 1 + 5
    harness.settle()
    assert len(harness.client.sent(PRODUCE)) == 1 + 20


def send_behind_a_lingering_batch(partition=1, **settings):
    """Let a batch linger, and send a record 10 ms later. Return the harness."""
    harness = idempotent(linger_ms=100, **settings)
    harness.send(partition=0)
    assert harness.core.needs_wakeup
    harness.run_for(10)
    harness.send(partition=partition)
    return harness


def test_the_sender_is_not_woken_for_a_batch_that_lingers_until_it_looks():
    harness = send_behind_a_lingering_batch()
    assert not harness.core.needs_wakeup
    harness.run_for(89)
    assert harness.client.sent(PRODUCE) == []
    harness.run_for(1)
    (request,) = harness.client.sent(PRODUCE)
    assert len(request.partitions) == 2


def test_the_sender_is_woken_for_a_batch_that_is_full():
    harness = send_behind_a_lingering_batch(batch_size=200)
    harness.send(partition=1, value=b"x" * 200)
    assert harness.core.needs_wakeup


def test_the_sender_is_woken_to_look_for_a_leader():
    harness = idempotent(linger_ms=100)
    harness.send(partition=0)
    harness.run_for(10)
    del harness.core._metadata.nodes[0]
    harness.send(partition=1)
    assert harness.core.needs_wakeup


def make_busy(harness):
    """Send to partitions 0 and 1 as much as one connection takes, and one batch more."""
    for partition in (0, 1, 0):
        harness.send(partition=partition)
        harness.settle()
    assert len(harness.client.waiting(PRODUCE)) == 2
    harness.core.needs_wakeup = False


def test_the_sender_is_not_woken_for_a_broker_with_all_requests_in_flight():
    harness = idempotent(batch_size=0, max_in_flight_requests_per_connection=2)
    make_busy(harness)
    futures = [harness.send(partition=partition) for partition in (1, 0, 1)]
    assert not harness.core.needs_wakeup
    while harness.client.waiting(PRODUCE):
        harness.client.answer_produce(harness.client.waiting(PRODUCE)[0])
        harness.settle()
    assert all(future.error is None for future in futures if future.done())
    assert all(future.done() for future in futures)
    harness.core.needs_wakeup = False
    harness.send(partition=0)
    assert harness.core.needs_wakeup


def test_a_busy_broker_does_not_keep_another_one_waiting():
    harness = idempotent(
        batch_size=0,
        max_in_flight_requests_per_connection=2,
        node_count=2,
        topics={"topic": 4},
    )
    for partition in (0, 2, 0):
        harness.send(partition=partition)
        harness.settle()
    harness.core.needs_wakeup = False
    harness.send(partition=2)
    assert not harness.core.needs_wakeup
    harness.send(partition=1)
    assert harness.core.needs_wakeup


def test_the_sender_is_woken_to_compress_though_the_broker_takes_no_more():
    harness = idempotent(
        batch_size=0, max_in_flight_requests_per_connection=2, compression_type="gzip"
    )
    make_busy(harness)
    harness.send(partition=1)
    assert harness.core.needs_wakeup
