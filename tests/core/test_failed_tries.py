"""Addresses that can't be reached: one warning for each reason, and their names in a time-out."""

from __future__ import annotations

import pytest

from tests.harness import CoreHarness
from txnproducer._core.batches.append_blocked import AppendBlocked
from txnproducer._core.failed_tries import caused_by, in_words
from txnproducer._protocol.events import (
    Channel,
    ConnectionEvent,
    ConnectionId,
    ConnectionState,
)
from txnproducer._protocol.messages import BrokerNode, MetadataResponse, TopicMetadata
from txnproducer.errors import (
    DisconnectError,
    ErrorCode,
    InvalidConfigurationError,
    KafkaTimeoutError,
    SaslAuthenticationError,
    UnknownHostError,
    UnknownTopicOrPartitionError,
)

REFUSED = "cannot connect to boot:9092 (127.0.0.1: refused)"


@pytest.fixture
def harness():
    return CoreHarness(bootstrap_servers="boot:9092,other:9092")


def fail(
    harness,
    error,
    node_id=-1,
    channel=Channel.DATA,
    at_ms=0,
    state=ConnectionState.DISCONNECTED,
):
    harness.now_ms = max(harness.now_ms, at_ms)
    event = ConnectionEvent(ConnectionId(node_id, channel), state, error)
    harness.core.handle(event, harness.now_ms)


def succeed(harness, node_id=-1):
    event = ConnectionEvent(ConnectionId(node_id), ConnectionState.READY)
    harness.core.handle(event, harness.now_ms)


def test_one_warning_for_each_address_and_reason_and_again_after_a_change(harness, warned):
    for channel in Channel:
        for _ in range(3):
            fail(harness, DisconnectError(REFUSED), channel=channel)
    assert warned() == [f"{REFUSED}; trying again"]
    fail(harness, DisconnectError("boot:9092 is not a Kafka broker"))
    fail(harness, DisconnectError(REFUSED))
    assert len(warned()) == 3
    fail(harness, DisconnectError("cannot connect to other:9092"), node_id=-2)
    assert len(warned()) == 4
    assert [str(error) for error in harness.core.failed_tries.last] == [
        REFUSED,
        "cannot connect to other:9092",
    ]


def test_the_address_of_an_object_is_no_part_of_a_reason(harness, warned):
    for number in (0x7F00, 0x7F10):
        fail(harness, DisconnectError(f"<Connection at 0x{number:x}> is refused"))
    assert warned() == ["<Connection at 0x7f00> is refused; trying again"]


def test_an_address_that_was_reached_is_no_failure(harness, warned):
    fail(harness, DisconnectError(REFUSED))
    succeed(harness)
    assert harness.core.failed_tries.last == ()
    fail(harness, DisconnectError("boot:9092 closed the connection"))  # one that was made
    assert harness.core.failed_tries.last == ()
    fail(harness, DisconnectError(REFUSED))
    assert len(warned()) == 2
    assert len(harness.core.failed_tries.last) == 1


def test_the_warning_of_a_refusal_does_not_say_that_it_is_tried_again(harness, warned):
    refusal = SaslAuthenticationError("boot:9092: the broker refused the PLAIN login")
    fail(harness, refusal, state=ConnectionState.AUTHENTICATION_FAILED)
    assert warned() == [str(refusal)]


def test_an_idle_connection_that_is_closed_says_nothing(harness, warned):
    fail(harness, None)
    assert warned() == []


def test_a_node_is_named_by_its_address(harness):
    tries = harness.core.failed_tries
    harness.core._metadata.nodes = {7: BrokerNode(7, "seven", 9092)}
    assert tries._address(7) == "seven:9092"
    assert tries._address(8) == "broker 8"


def test_a_record_that_waited_for_metadata_names_the_last_tries():
    harness = CoreHarness(transactional_id=None)
    fail(harness, DisconnectError(REFUSED))
    blocked = harness.try_send("unknown")
    assert isinstance(blocked, AppendBlocked)
    future = harness.core.time_out_append(blocked, "unknown", None, None, 60_000, 60_000)
    error = future.exception()
    assert isinstance(error, KafkaTimeoutError)
    assert str(error) == (
        f"nothing is known of topic 'unknown' after 60000 ms (max_block_ms): no connection"
        f" ({REFUSED})"
    )
    assert [str(cause) for cause in error.causes] == [REFUSED]
    assert error.__cause__ is error.causes[-1]


def test_a_dead_bootstrap_server_is_not_the_cause_where_the_cluster_has_answered():
    harness = CoreHarness(transactional_id=None, bootstrap_servers="dead:9092,boot:9092")
    dead = DisconnectError("cannot connect to dead:9092")
    fail(harness, dead)
    unknown_topic = TopicMetadata("typo", (), error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    blocked = harness.try_send("typo")
    metadata = harness.core._metadata
    answer = MetadataResponse((BrokerNode(1, "one", 9092),), (unknown_topic,))
    metadata.handle_response(metadata.build_request(0), answer, 0)
    assert isinstance(blocked, AppendBlocked)
    future = harness.core.time_out_append(blocked, "typo", None, None, 60_000, 60_000)
    error = future.exception()
    assert error is not None
    assert str(error) == (
        "the cluster does not know topic 'typo' after 60000 ms (max_block_ms): create it, or"
        " check its name; also: no connection (cannot connect to dead:9092)"
    )
    assert isinstance(error.__cause__, UnknownTopicOrPartitionError)
    assert error.causes == (dead,)


def test_a_time_out_says_once_that_there_is_no_connection():
    tries = [DisconnectError("no connection to a:1: the login hangs"), DisconnectError(REFUSED)]
    assert in_words(tries) == f"no connection (to a:1: the login hangs; {REFUSED})"


def test_the_address_of_an_ipv6_host_has_brackets():
    harness = CoreHarness(bootstrap_servers="[::1]:9092")
    fail(harness, UnknownHostError("no such host"))
    fail(harness, UnknownHostError("no such host"), at_ms=1_000)
    assert harness.core.failed_tries.has_no_host
    assert "exists: [::1]:9092." in str(harness.core.failed_tries.no_host_error())


def test_connection_failures_are_the_cause_if_no_broker_was_reached(harness):
    tries = harness.core.failed_tries
    fail(harness, DisconnectError(REFUSED))
    assert tries.are_cause(0)  # no answer yet
    harness.core._metadata.answered_ms = 1000
    assert not tries.are_cause(1000)
    assert tries.are_cause(1001)  # all of the cluster may have gone since
    succeed(harness, -2)
    assert not tries.are_cause(1001)


def test_a_broker_that_has_left_the_cluster_is_not_named(harness):
    metadata = harness.core._metadata
    metadata.nodes = {7: BrokerNode(7, "seven", 9092)}
    gone = DisconnectError("cannot connect to seven:9092")
    fail(harness, gone, 7)
    assert harness.core.failed_tries.last == (gone,)
    metadata.nodes = {}
    assert harness.core.failed_tries.last == ()


def test_the_failures_of_brokers_that_left_are_forgotten_with_the_next_metadata(harness, warned):
    tries = harness.core.failed_tries
    harness.settle()
    seven = BrokerNode(7, "seven", 9092)
    for _ in range(2):
        harness.client.nodes[7] = seven
        refresh(harness)
        assert harness.client.known[7] == seven
        for node_id, text in ((7, "cannot connect to seven:9092"), (-1, REFUSED)):
            fail(harness, DisconnectError(text), node_id)
        assert len(tries._last) == 2
        del harness.client.nodes[7]
        refresh(harness)
        assert list(tries._last) == ["boot:9092"]
        assert 7 not in harness.client.known
    assert warned().count("cannot connect to seven:9092; trying again") == 2
    assert warned().count(f"{REFUSED}; trying again") == 1


def test_an_answer_without_brokers_forgets_none(harness):
    harness.settle()
    fail(harness, DisconnectError("cannot connect to broker-0:9092"), 0)
    known, nodes = dict(harness.client.known), dict(harness.client.nodes)
    harness.client.nodes.clear()
    refresh(harness)
    assert harness.client.known == known
    harness.client.nodes.update(nodes)
    refresh(harness)
    assert len(harness.core.failed_tries.last) == 1


def refresh(harness):
    harness.core._metadata.request_update()
    before = harness.core._metadata.version
    harness.run_until(lambda: harness.core._metadata.version != before)


# --- hosts that do not exist --------------------------------------------------------------------


def unknown(harness, at_ms, node_id=-1):
    host = {-1: "boot", -2: "other"}[node_id]
    fail(harness, UnknownHostError(f"no {host}"), node_id, at_ms=at_ms)


def test_two_answers_a_second_apart_from_each_name_are_certain(harness):
    tries = harness.core.failed_tries
    for at_ms in (0, 999):
        unknown(harness, at_ms)
        unknown(harness, at_ms, -2)
        assert not tries.has_no_host
    unknown(harness, 1000)
    assert not tries.has_no_host  # one name is left
    unknown(harness, 1000, -2)
    assert tries.has_no_host
    error = tries.no_host_error()
    assert isinstance(error, InvalidConfigurationError)
    assert error.recovery == "fix"
    assert "boot:9092, other:9092" in str(error)
    assert len(error.causes) == 2


@pytest.mark.parametrize("between", ["try again later", "reached"])
def test_another_outcome_between_begins_the_count_again(harness, between):
    unknown(harness, 0, -2)
    unknown(harness, 1000, -2)
    unknown(harness, 0)
    if between == "reached":
        succeed(harness)
        fail(harness, DisconnectError("lost"))
    else:
        fail(harness, DisconnectError("temporary failure in name resolution"))
    unknown(harness, 1000)
    assert not harness.core.failed_tries.has_no_host
    unknown(harness, 2000)
    assert harness.core.failed_tries.has_no_host


def test_a_producer_that_knows_the_cluster_goes_on_without_bootstrap_hosts(harness):
    harness.core._metadata.last_success_ms = 0
    for node_id in (-1, -2):
        unknown(harness, 0, node_id)
        unknown(harness, 5000, node_id)
    assert not harness.core.failed_tries.has_no_host


def test_the_cause_of_a_time_out_is_the_failure_that_came_last(harness):
    first, second, again = (DisconnectError(text) for text in ("first", "second", "again"))
    fail(harness, first)
    fail(harness, second, -2)
    fail(harness, again)
    tries = harness.core.failed_tries.last
    assert tries == (second, again)
    assert caused_by(KafkaTimeoutError("late"), tries).__cause__ is again


def test_without_failed_tries_an_error_has_no_causes():
    error = caused_by(KafkaTimeoutError("late"), ())
    assert error.causes == ()
    assert error.__cause__ is None
