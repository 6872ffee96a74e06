"""A login that one broker refuses: requests to it fail, others go to other brokers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness import CoreHarness
from txnproducer._core.transactions.operation import TransactionalRequestResult
from txnproducer._core.transactions.state import TransactionState as S
from txnproducer._protocol.events import (
    Channel,
    ConnectionEvent,
    ConnectionId,
    ConnectionState,
)
from txnproducer._protocol.messages import ApiKey
from txnproducer.errors import AuthenticationError, SaslAuthenticationError

EXPIRED = SaslAuthenticationError("the certificate has expired")
TWO: dict[str, Any] = {"bootstrap_servers": "one:9092,two:9092"}


def initialize(harness: CoreHarness, coordinator: int = 0) -> None:
    harness.client.prepare_find_coordinator(node_id=coordinator)
    harness.client.prepare_init_producer_id()
    harness.complete(harness.core.init_transactions())


def refuse(harness: CoreHarness, node_id: int, channel: Channel = Channel.DATA) -> None:
    """Let a broker refuse a connection, now."""
    state = ConnectionState.AUTHENTICATION_FAILED
    event = ConnectionEvent(ConnectionId(node_id, channel), state, EXPIRED)
    harness.core.handle(event, harness.now_ms)


def with_end_txn_in_hand(version: int) -> tuple[CoreHarness, TransactionalRequestResult]:
    """Return a producer whose commit waits until its coordinator, broker 0, is ready for it."""
    harness = CoreHarness(node_count=2, transaction_version=version)
    initialize(harness)
    harness.begin_transaction()
    if version == 1:
        harness.client.prepare_add_partitions()
    harness.client.prepare_produce()
    harness.run_until(harness.send(partition=0).done)
    harness.client.throttle(ConnectionId(0, Channel.COORDINATOR), 1_000)
    commit = harness.core.begin_commit()
    harness.settle()
    coordinators = harness.core._coordinators
    assert coordinators is not None
    assert coordinators._in_hand is not None
    return harness, commit


# --- requests to one broker ---------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    "refusing",
    [(1, Channel.DATA), (1, Channel.COORDINATOR), (0, Channel.DATA)],
    ids=["another broker", "another's coordinator connection", "the connection for data"],
)
def test_a_refusal_does_not_end_a_request_that_goes_on_another_connection(version, refusing):
    harness, commit = with_end_txn_in_hand(version)
    refuse(harness, *refusing)
    harness.client.prepare_end_txn()
    harness.complete(commit)
    assert harness.state is S.READY


@pytest.mark.parametrize("version", [1, 2])
def test_a_refusal_by_the_broker_that_a_request_goes_to_ends_it(version):
    harness, commit = with_end_txn_in_hand(version)
    refuse(harness, 0, Channel.COORDINATOR)
    with pytest.raises(AuthenticationError, match="expired"):
        harness.complete(commit)
    assert harness.state is S.FATAL_ERROR


def test_a_request_that_is_queued_is_refused_by_its_own_broker_alone():
    """None is in hand while another one awaits its answer."""
    harness = CoreHarness(node_count=2)
    initialize(harness)
    harness.begin_transaction()
    harness.send_offsets()
    harness.run_until_sent(ApiKey.FIND_COORDINATOR, 2)
    commit = harness.core.begin_commit()
    refuse(harness, 1)
    refuse(harness, 1, Channel.COORDINATOR)
    harness.settle()
    assert harness.state is S.COMMITTING_TRANSACTION
    assert not commit.is_completed


# --- requests to any broker ---------------------------------------------------------------------


@pytest.mark.parametrize("refusing", [-1, -2])
def test_a_request_for_any_broker_goes_to_one_that_does_not_refuse(refusing):
    harness = CoreHarness(**TWO)
    harness.client.refusing_logins[refusing] = EXPIRED
    initialize(harness)
    assert harness.state is S.READY


def test_a_request_for_any_broker_fails_once_all_refuse():
    harness = CoreHarness(**TWO)
    harness.client.refusing_logins.update({-1: EXPIRED, -2: EXPIRED})
    with pytest.raises(AuthenticationError, match="expired"):
        harness.complete(harness.core.init_transactions())
    assert harness.now_ms < 1_000


def test_a_broker_that_could_never_be_reached_is_no_hope():
    harness = CoreHarness(**TWO)
    harness.client.down.add(-1)
    harness.client.refusing_logins[-2] = EXPIRED
    with pytest.raises(AuthenticationError, match="expired"):
        harness.complete(harness.core.init_transactions())
    assert harness.now_ms < 1_000


def test_a_broker_that_was_reached_before_may_be_back_in_a_moment():
    harness = CoreHarness(transactional_id=None)
    harness.know_topics()
    harness.client.down.add(0)
    harness.client.disconnect(ConnectionId(-1))
    harness.settle()
    refuse(harness, 0)
    assert harness.core.partitions_for("topic", harness.now_ms)
    assert harness.core.partitions_for("new", harness.now_ms) is None


# --- records that wait for metadata -------------------------------------------------------------


@pytest.mark.parametrize("refusing", [-1, -2])
def test_a_record_that_waits_for_metadata_does_not_fail_by_one_brokers_refusal(refusing):
    harness = CoreHarness(transactional_id=None, enable_idempotence=False, **TWO)
    harness.client.refusing_logins[refusing] = EXPIRED
    harness.client.prepare_produce()
    future = harness.send()
    harness.run_until(future.done)
    assert future.exception() is None


def test_a_refusal_by_all_is_forgotten_with_the_next_metadata():
    harness = CoreHarness(transactional_id=None, enable_idempotence=False, topics={"a": 1, "b": 1})
    harness.client.refusing_logins[-1] = EXPIRED
    assert harness.send("a").exception() is EXPIRED
    with pytest.raises(AuthenticationError):
        harness.core.partitions_for("b", harness.now_ms)
    harness.client.refusing_logins.clear()
    harness.run_for(2_000)
    # Of a topic that was not in that answer, so that it is asked for again.
    assert harness.core.partitions_for("b", harness.now_ms) is None
    harness.client.prepare_produce()
    future = harness.send("b")
    harness.run_until(future.done)
    assert future.exception() is None
