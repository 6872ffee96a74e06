"""The last refusal of each request that is repeated, for the texts of time-outs."""

from __future__ import annotations

import logging

import pytest

from tests.core.sending import idempotent, send_each
from tests.core.txn_driver import TxnDriver
from tests.harness import GROUP, TP0, TP1, CoreHarness
from txnproducer._core.failed_tries import FailedTries, Refusal, caused_by
from txnproducer._core.transactions.requests import AddPartitionsToTxnHandler
from txnproducer._protocol.events import Channel, ClientRequest, ClientResponse, ConnectionId
from txnproducer._protocol.messages import (
    AddPartitionsToTxnResponse,
    ApiKey,
    BrokerNode,
    CoordinatorType,
    EndTxnRequest,
    PartitionErrorCode,
)
from txnproducer.errors import (
    ConcurrentTransactionsError,
    DisconnectError,
    ErrorCode,
    KafkaTimeoutError,
    NotEnoughReplicasError,
)
from txnproducer.records import OffsetAndMetadata

INIT = "InitProducerId"
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
FEW_REPLICAS = ErrorCode.NOT_ENOUGH_REPLICAS
OLD_AFTER_MS = 5_000


def refused_start():
    """Return a harness whose coordinator has refused InitProducerId, and answers no other one."""
    harness = CoreHarness()
    harness.core.init_transactions()
    harness.client.prepare_find_coordinator()
    harness.client.prepare_init_producer_id(LOADING)
    harness.run_until_sent(ApiKey.INIT_PRODUCER_ID, 2)
    return harness


def last_refusal(harness, *, of_records=True):
    error = harness.core.last_refusal(harness.now_ms, of_records=of_records)
    return None if error is None else str(error).partition(": ")[0]


@pytest.mark.parametrize(
    ("node_id", "place"),
    [
        (0, "broker 0 (broker-0:9092)"),
        (-1, "a broker (boot:9092)"),
        (7, "broker 7"),
    ],
)
def test_a_refusal_names_the_broker_the_request_and_the_code(node_id, place):
    harness = CoreHarness()
    harness.know_topics()
    tries: FailedTries = harness.core.failed_tries
    error = tries.refusal_error(Refusal(INIT, node_id, ErrorCode.CONCURRENT_TRANSACTIONS, 0))
    assert isinstance(error, ConcurrentTransactionsError)
    assert str(error).startswith(
        f"{place} last answered InitProducerId with CONCURRENT_TRANSACTIONS (51): The transact"
    )


def test_the_latest_refusal_counts_unless_it_is_old():
    tries = CoreHarness().core.failed_tries
    refusals = [Refusal(name, 0, LOADING, ms) for name, ms in (("A", 5), ("B", 9), ("C", 7))]
    assert "answered B with" in str(tries.last_refusal(refusals, 10))
    assert "answered B with" in str(tries.last_refusal(refusals, 9 + OLD_AFTER_MS))
    assert tries.last_refusal(refusals, 10 + OLD_AFTER_MS) is None
    assert tries.last_refusal([], 10) is None


def test_a_refusal_is_the_cause_and_the_last_of_the_causes():
    dead, refusal = DisconnectError("dead"), NotEnoughReplicasError("refused")
    error = caused_by(KafkaTimeoutError("late"), [dead], are_cause=False, refusal=refusal)
    assert (error.causes, error.__cause__) == ((dead, refusal), refusal)


def test_a_refused_start_is_known_until_it_succeeds():
    harness = CoreHarness()
    assert last_refusal(harness) is None
    result = harness.core.init_transactions()
    harness.client.prepare_find_coordinator(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    harness.client.prepare_find_coordinator()
    harness.run_until_sent(ApiKey.FIND_COORDINATOR, 2)
    assert "answered FindCoordinator with COORDINATOR_NOT" in last_refusal(
        harness, of_records=False
    )
    harness.client.prepare_init_producer_id(LOADING)
    harness.client.prepare_init_producer_id()
    harness.complete(result)
    assert last_refusal(harness) is None


def test_a_lost_answer_is_reported_like_a_refusal():
    harness = CoreHarness()
    harness.core.init_transactions()
    harness.client.prepare_find_coordinator()
    harness.client.prepare_failure(ApiKey.INIT_PRODUCER_ID)
    harness.run_until_sent(ApiKey.INIT_PRODUCER_ID)
    harness.run_until_sent(ApiKey.FIND_COORDINATOR, 2)
    lost = "broker 0 (broker-0:9092) gave no answer to InitProducerId"
    assert last_refusal(harness) == lost


def test_a_request_without_an_answer_for_seconds_has_no_refusal_any_more():
    harness = refused_start()
    assert "InitProducerId with COORDINATOR_LOAD_IN_PROGRESS" in last_refusal(harness)
    harness.run_for(OLD_AFTER_MS + 1)
    assert last_refusal(harness) is None


def test_the_partition_that_is_refused_is_named_and_not_those_that_are_accepted():
    harness = CoreHarness(topics={"topic": 2})
    harness.start_transaction(transaction_version=2)
    harness.client.prepare_find_coordinator()
    harness.client.prepare_txn_offset_commit(
        errors={TP0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, TP1: ErrorCode.NONE}
    )
    offsets = {TP0: OffsetAndMetadata(1), TP1: OffsetAndMetadata(2)}
    harness.core.send_offsets_to_transaction(offsets, GROUP)
    harness.run_until_sent(ApiKey.TXN_OFFSET_COMMIT, 2)
    assert (
        last_refusal(harness, of_records=False)
        == "broker 0 (broker-0:9092) last answered TxnOffsetCommit for topic-0 with"
        " UNKNOWN_TOPIC_OR_PARTITION (3)"
    )


def test_a_partition_that_is_denied_for_good_is_not_the_one_that_is_tried_again():
    handler = AddPartitionsToTxnHandler(TxnDriver().manager.progress, frozenset({TP0, TP1}))
    codes = {TP0: ErrorCode.COORDINATOR_NOT_AVAILABLE, TP1: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    results = tuple(PartitionErrorCode(place, code) for place, code in codes.items())
    request = ClientRequest(1, ConnectionId(4), EndTxnRequest("txn", 1, 1, True, True), 0, 1_000)
    handler.note_refusal(ClientResponse(request, AddPartitionsToTxnResponse(results)), 9)
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert handler.refusal == Refusal("AddPartitionsToTxn for topic-0", 4, code, 9)


def refused_batch(**settings):
    """Return a harness with a batch that was refused and waits, and its future."""
    harness = idempotent(retry_backoff_ms=OLD_AFTER_MS * 2, **settings)
    (future,), (request,) = send_each(harness, 1)
    harness.client.answer_produce(request, FEW_REPLICAS)
    harness.settle()
    return harness, future


def test_the_refusal_of_a_batch_holds_while_it_waits_and_counts_for_records_alone():
    harness, future = refused_batch(retry_backoff_max_ms=OLD_AFTER_MS * 2)
    harness.run_for(OLD_AFTER_MS + 1)
    assert (
        last_refusal(harness) == "broker 0 (broker-0:9092) last answered Produce for topic-0 with"
        " NOT_ENOUGH_REPLICAS (19)"
    )
    assert last_refusal(harness, of_records=False) is None
    # The next attempt is out, and has no answer for seconds.
    harness.run_until(lambda: harness.client.waiting(ApiKey.PRODUCE))
    assert last_refusal(harness) is None
    [request] = harness.client.waiting(ApiKey.PRODUCE)
    harness.client.answer_produce(request)
    harness.run_until(future.done)
    assert last_refusal(harness) is None


def test_a_lost_connection_takes_the_refusal_of_a_batch_back():
    harness, _ = refused_batch(retry_backoff_max_ms=OLD_AFTER_MS * 2)
    harness.run_until(lambda: harness.client.waiting(ApiKey.PRODUCE))
    harness.client.disconnect(ConnectionId(0))
    harness.settle()
    assert last_refusal(harness) is None


def test_a_plain_producers_refusal_is_known_and_the_cause_of_an_expiry():
    harness = CoreHarness(
        transactional_id=None,
        enable_idempotence=False,
        delivery_timeout_ms=3_000,
        request_timeout_ms=1_000,
        retry_backoff_ms=60_000,
        retry_backoff_max_ms=60_000,
    )
    harness.know_topics()
    harness.client.prepare_produce(FEW_REPLICAS)
    future = harness.send()
    harness.run_until_sent(ApiKey.PRODUCE)
    harness.run_for(1)
    assert "NOT_ENOUGH_REPLICAS (19)" in last_refusal(harness)
    harness.run_until(future.done)
    error = future.exception()
    assert error is not None
    assert isinstance(error.__cause__, NotEnoughReplicasError)
    assert "answered Produce for topic-0 with NOT_ENOUGH_REPLICAS" in str(error.__cause__)
    assert "last answered" not in str(error)  # its text has the code of the last attempt


def test_records_that_expire_unsent_name_the_request_that_held_them_back():
    harness = CoreHarness(
        transactional_id=None, delivery_timeout_ms=3_000, request_timeout_ms=1_000
    )
    harness.know_topics()
    for _ in range(100):
        harness.client.prepare_init_producer_id(LOADING)
    future = harness.send()
    harness.run_until(future.done)
    error = future.exception()
    assert error is not None
    assert (
        "nothing was sent; broker 0 (broker-0:9092) last answered InitProducerId with COORD"
        in str(error)
    )
    assert error.causes == (error.__cause__,)


def test_a_coordinator_is_logged_again_only_when_it_has_moved(caplog):
    caplog.set_level(logging.INFO, "txnproducer._core.transactions.coordinator_requests")
    requests = TxnDriver().manager.requests
    nodes = [BrokerNode(number, f"broker-{number}", 9092) for number in (0, 0, 1, 1, 0)]
    for node in nodes:
        requests.coordinator_found(CoordinatorType.GROUP, "group", node)
    requests.coordinator_found(CoordinatorType.GROUP, "other", nodes[-1])
    requests.coordinator_found(CoordinatorType.GROUP, "group", nodes[-1])
    said = [record.getMessage().partition("the coordinator of ")[2] for record in caplog.records]
    assert [(text.split("'")[1], text.split("node_id=")[1][0]) for text in said] == [
        ("group", "0"),
        ("group", "1"),
        ("group", "0"),
        ("other", "0"),
    ]


def test_a_commit_names_the_coordinator_that_takes_nothing_by_its_quota():
    harness = CoreHarness()
    harness.start_transaction(transaction_version=2)
    harness.client.prepare_produce()
    harness.send(partition=0)
    harness.client.throttle(ConnectionId(0, Channel.COORDINATOR), 9_000)
    harness.core.begin_commit()
    harness.run_for(1_000)
    told = "broker 0 is the coordinator, and takes no requests of this client for another 8000 ms"
    assert told in (last_refusal(harness, of_records=False) or "")
    coordinators = harness.core._coordinators
    assert coordinators is not None
    coordinators.forget_coordinators_not_in(set())
    assert last_refusal(harness, of_records=False) is None


@pytest.mark.parametrize("is_idempotent", [True, False])
def test_a_flush_names_the_leader_that_takes_nothing_by_its_quota(is_idempotent):
    harness = CoreHarness(transactional_id=None, enable_idempotence=is_idempotent)
    harness.know_topics()
    harness.client.prepare_init_producer_id()
    harness.settle()
    harness.client.throttle(ConnectionId(0), 9_000)
    harness.send(partition=0)
    harness.run_for(1_000)
    told = "broker 0 leads topic-0, and takes no requests of this client for another 8000 ms"
    assert told in (last_refusal(harness) or "")
    # `init_transactions` and offsets do not wait for records.
    assert last_refusal(harness, of_records=False) is None


def test_a_refusal_counts_before_a_quota():
    harness = refused_start()
    harness.client.throttle(ConnectionId(0, Channel.COORDINATOR), 9_000)
    assert "InitProducerId with COORDINATOR_LOAD_IN_PROGRESS" in (last_refusal(harness) or "")


def test_no_quota_is_named_before_a_coordinator_is_known():
    harness = CoreHarness()
    harness.core.init_transactions()
    harness.client.throttle(ConnectionId(0), 9_000)
    harness.run_for(1_000)
    assert last_refusal(harness) is None
