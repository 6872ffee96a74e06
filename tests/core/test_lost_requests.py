"""Requests without an answer: the reason is in the texts of time-outs, and in the log."""

from __future__ import annotations

import pytest

from tests.harness import TP0, CoreHarness
from txnproducer._core.failed_tries import FailedTries, Refusal
from txnproducer._protocol.events import ConnectionEvent, ConnectionId, ConnectionState
from txnproducer._protocol.messages import ApiKey
from txnproducer.errors import (
    DisconnectError,
    ErrorCode,
    KafkaTimeoutError,
    LeaderNotAvailableError,
)
from txnproducer.errors.rare import ThrottlingQuotaExceededError

CLOSED = DisconnectError("broker-0:9092: the broker closed the connection")
LOST = "broker 0 (broker-0:9092) gave no answer to {}: the broker closed the connection"
NEVER_SENT = "nothing was sent; {}. Send them again"


def initializing(failures):
    """Return a harness in which InitProducerId has lost its connection so many times."""
    harness = CoreHarness()
    harness.core.init_transactions()
    for number in range(failures):
        harness.client.prepare_find_coordinator()
        harness.client.prepare_failure(ApiKey.INIT_PRODUCER_ID, error=CLOSED)
        harness.run_until_sent(ApiKey.INIT_PRODUCER_ID, number + 1)
    harness.run_until_sent(ApiKey.FIND_COORDINATOR, failures + 1)
    return harness


def test_a_lost_request_is_reported_with_its_reason():
    harness = initializing(1)
    error = harness.core.last_refusal(harness.now_ms, of_records=False)
    assert str(error) == LOST.format("InitProducerId")
    assert error is not None
    assert error.__cause__ is CLOSED


def test_only_a_request_that_is_lost_again_is_warned_of_and_once(warned):
    initializing(1)
    assert warned() == []
    initializing(4)
    assert warned() == [f"{LOST.format('InitProducerId')}; trying again"]
    # Another request of the kind may be lost in the same way, later.
    initializing(2)
    assert len(warned()) == 2


def test_a_request_that_waits_long_for_its_answer_has_lost_the_last_one_all_the_same():
    tries: FailedTries = CoreHarness().core.failed_tries
    lost = Refusal("EndTxn", 0, ErrorCode.NETWORK_EXCEPTION, 30_000, CLOSED, lasted_ms=30_000)
    assert tries.last_refusal([lost], 65_000) is not None
    assert tries.last_refusal([lost], 65_001) is None


# --- metadata -----------------------------------------------------------------------------------


def topic_error(harness, topic="other"):
    future = harness.send(topic)
    error = future.exception()
    assert isinstance(error, KafkaTimeoutError)
    return error


def test_metadata_that_never_come_say_nothing_of_the_topic(warned):
    harness = CoreHarness(transactional_id=None, max_block_ms=2_000)
    harness.client.is_answering_metadata = False
    for _ in range(50):
        harness.client.prepare_failure(ApiKey.METADATA, error=DisconnectError("closed"))
    error = topic_error(harness)
    lost = "a broker (boot:9092) gave no answer to Metadata: closed"
    assert str(error) == (
        f"nothing is known of topic 'other' after 2000 ms (max_block_ms): {lost}"
    )
    assert error.causes == (error.__cause__,)
    assert warned() == [f"{lost}; trying again"]


def test_an_answer_ends_the_loss_of_metadata():
    harness = CoreHarness(transactional_id=None, max_block_ms=2_000)
    harness.client.prepare_failure(ApiKey.METADATA)
    assert "the cluster does not know topic 'other'" in str(topic_error(harness))
    assert harness.core.failed_tries.lost_metadata is None


def test_a_topic_without_a_leader_is_not_called_unknown():
    harness = CoreHarness(transactional_id=None, max_block_ms=2_000)
    harness.client.topic_errors["other"] = ErrorCode.LEADER_NOT_AVAILABLE
    error = topic_error(harness)
    assert "(max_block_ms): the cluster last answered for it with LEADER_NOT_AVAIL" in str(error)
    assert isinstance(error.__cause__, LeaderNotAvailableError)


def test_without_any_answer_nothing_is_said_of_the_topic():
    harness = CoreHarness(transactional_id=None, max_block_ms=2_000)
    harness.client.is_answering_metadata = False
    assert "(max_block_ms): no broker has named its partitions" in str(topic_error(harness))


# --- records that expire ------------------------------------------------------------------------


def expiring(**settings):
    settings = {"delivery_timeout_ms": 3_000, "request_timeout_ms": 1_000, **settings}
    harness = CoreHarness(
        transactional_id=None, enable_idempotence=False, node_count=2, **settings
    )
    harness.know_topics()
    return harness


def expired(harness):
    future = harness.send(partition=0)
    harness.run_until(future.done)
    error = future.exception()
    assert isinstance(error, KafkaTimeoutError)
    return error


@pytest.mark.parametrize(
    "state", [ConnectionState.DISCONNECTED, ConnectionState.AUTHENTICATION_FAILED]
)
def test_records_name_the_reason_why_their_leader_cannot_be_reached(state):
    harness = expiring()
    harness.client.down.add(0)
    refused = DisconnectError("cannot connect to broker-0:9092")
    harness.core.handle(ConnectionEvent(ConnectionId(0), state, refused), harness.now_ms)
    error = expired(harness)
    assert NEVER_SENT.format(refused) in str(error)
    assert error.causes == (error.__cause__,) == (refused,)


def test_records_say_that_their_partition_has_no_leader():
    harness = expiring()
    harness.client.leaders[TP0] = -1
    harness.core._metadata.request_update()
    harness.run_until_sent(ApiKey.METADATA, 2)
    harness.settle()
    error = expired(harness)
    assert NEVER_SENT.format("no broker of the cluster leads the partition") in str(error)
    assert isinstance(error.__cause__, LeaderNotAvailableError)


def test_records_say_that_their_leader_throttles_the_client():
    harness = expiring()
    harness.client.throttle(ConnectionId(0), 10_000)
    error = expired(harness)
    assert "nothing was sent; broker 0 leads the partition, and takes no requests" in str(error)
    assert "for another 7000 ms" in str(error)
    assert isinstance(error.__cause__, ThrottlingQuotaExceededError)


def test_records_without_an_answer_name_no_other_cause():
    harness = expiring()
    future = harness.send(partition=0)
    harness.run_until_sent(ApiKey.PRODUCE)
    event = ConnectionEvent(ConnectionId(0), ConnectionState.DISCONNECTED, CLOSED)
    for _ in range(2):
        harness.core.handle(event, harness.now_ms)
    harness.now_ms += 3_000
    harness.core.run_once(harness.now_ms)
    error = future.exception()
    assert error is not None
    assert "the broker has not answered yet" in str(error)
    assert error.causes == ()
