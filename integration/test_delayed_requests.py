"""Requests of dead connections that arrive later, and answers that are lost, on real brokers.

A proxy holds a request back, cuts its connection, and delivers it in the midst of the next
transaction (KAFKA-17754, KAFKA-14402; Jepsen's report on Bufstream). With transactions v1 such a
request bears the epoch of all transactions; without the guard it ends the wrong one.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from integration.delaying_proxy import HOST, DelayingProxy
from integration.readers import read_with_confluent, values
from txnproducer import admin, errors
from txnproducer import producer as producer_module
from txnproducer._core.transaction_manager import TransactionManager
from txnproducer._protocol.messages import ApiKey
from txnproducer._wire.network_client import NetworkClient
from txnproducer.errors import ErrorCode

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

# The header of an answer from EndTxn v3 on: correlation id, no tagged fields, throttle time.
_CODE_AT = 4 + 1 + 4


@pytest.fixture
def proxy(broker):
    host, _, port = broker.servers.partition(":")
    with DelayingProxy((host, int(port))) as one:
        yield one


@pytest.fixture
def ready(broker, proxy, monkeypatch, transactional_id):
    """Make a producer whose every connection goes through the proxy."""

    class ThroughProxy(NetworkClient):
        def update_nodes(self, nodes):
            super().update_nodes(replace(node, host=HOST, port=proxy.port) for node in nodes)

    monkeypatch.setattr(producer_module, "NetworkClient", ThroughProxy)
    made = []

    def make(**settings):
        made.append(broker.ready(transactional_id, reconnect_backoff_ms=20, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close(0)


def code_of(answer):
    return ErrorCode(int.from_bytes(answer[_CODE_AT : _CODE_AT + 2], "big", signed=True))


@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_commit_that_comes_late_leaves_the_next_transaction_alone(
    broker, proxy, ready, monkeypatch, is_guarded
):
    if not is_guarded:
        monkeypatch.setattr(TransactionManager, "request_lost", lambda *_, **__: None)
    topic = broker.topic()
    producer = ready()
    proxy.hold_next(ApiKey.END_TXN)
    with producer.transaction():
        producer.send(topic, b"first")
    producer.begin_transaction()
    producer.send(topic, b"half")
    producer.flush()
    (late,) = proxy.held
    code = code_of(late.deliver())
    producer.send(topic, b"other half")
    aborts = producer.abort_transaction
    if is_guarded or broker.mode.transaction_version == 2:
        aborts()
        assert code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
        expected = [b"first"]
    else:
        # Why there is a guard: half of a transaction that was aborted is visible.
        assert code is ErrorCode.NONE
        with pytest.raises(errors.KafkaError):
            aborts()
        expected = [b"first", b"half"]
    producer.close(5)
    assert values(read_with_confluent(broker.servers, topic)) == expected


def test_an_abort_that_comes_late_leaves_the_next_transaction_alone(broker, proxy, ready):
    topic = broker.topic()
    producer = ready()
    proxy.hold_next(ApiKey.END_TXN)
    producer.begin_transaction()
    producer.send(topic, b"aborted")
    producer.flush()
    producer.abort_transaction()
    with producer.transaction():
        producer.send(topic, b"half")
        producer.flush()
        (late,) = proxy.held
        assert code_of(late.deliver()) is not ErrorCode.NONE
        producer.send(topic, b"other half")
    assert values(read_with_confluent(broker.servers, topic)) == [b"half", b"other half"]


def test_a_partition_that_is_added_late_begins_no_transaction(
    broker, proxy, ready, transactional_id
):
    topic = broker.topic()
    producer = ready()
    proxy.hold_next(ApiKey.ADD_PARTITIONS_TO_TXN)
    with producer.transaction():
        producer.send(topic, b"value")
    if broker.mode.transaction_version == 2:
        assert proxy.held == []  # v2 adds a partition with its first batch
        return
    (late,) = proxy.held
    late.deliver()
    told = admin.describe_transaction(broker.servers, transactional_id)
    assert told is not None
    assert told.state == "Empty"  # the state of an epoch that was just taken
    assert values(read_with_confluent(broker.servers, topic)) == [b"value"]


def test_records_that_come_late_are_not_written_twice(broker, proxy, ready):
    topic = broker.topic()
    producer = ready()
    proxy.hold_next(ApiKey.PRODUCE)
    with producer.transaction():
        producer.send(topic, b"first")
    producer.begin_transaction()
    producer.send(topic, b"second")
    producer.flush()
    (late,) = proxy.held
    late.deliver()
    producer.commit_transaction()
    everything = read_with_confluent(broker.servers, topic, "read_uncommitted")
    assert values(everything) == [b"first", b"second"]


def lose_commit(proxy, producer, topic, *, arrives):
    """Commit so that the answer is lost and nobody can be asked again; return the transaction."""
    txn = producer.transaction()
    txn.__enter__()
    producer.send(topic, b"value")
    producer.flush()
    (proxy.drop_next_answer if arrives else proxy.hold_next)(ApiKey.END_TXN)
    proxy.is_open = False
    with pytest.raises(errors.KafkaTimeoutError):
        txn.__exit__(None, None, None)
    assert txn.outcome == "open"
    return txn


@pytest.mark.parametrize("arrives", [True, False])
def test_an_abort_after_a_lost_commit_finds_out_what_became_of_it(broker, proxy, ready, arrives):
    topic = broker.topic()
    producer = ready(max_block_ms=2_000)
    txn = lose_commit(proxy, producer, topic, arrives=arrives)
    proxy.is_open = True
    producer._max_block_s = 60.0
    if arrives:
        with pytest.raises(errors.IllegalStateError, match="was carried out"):
            producer.abort_transaction()
    else:
        producer.abort_transaction()
    assert txn.outcome == ("committed" if arrives else "aborted")
    with producer.transaction():
        producer.send(topic, b"next")
    expected = [b"value", b"next"] if arrives else [b"next"]
    assert values(read_with_confluent(broker.servers, topic)) == expected


def test_a_lost_commit_is_resolved_after_the_producer_was_closed_by_force(broker, proxy, ready):
    topic = broker.topic()
    producer = ready(max_block_ms=2_000)
    txn = lose_commit(proxy, producer, topic, arrives=True)
    producer.close(0)
    assert txn.outcome == "unknown"
    assert producer.resolve_outcome() == "committed"
    assert txn.outcome == "committed"
    assert values(read_with_confluent(broker.servers, topic)) == [b"value"]


def test_a_lost_commit_cannot_be_resolved_once_another_producer_has_begun(
    broker, proxy, ready, monkeypatch, transactional_id
):
    topic = broker.topic()
    producer = ready(max_block_ms=2_000)
    lose_commit(proxy, producer, topic, arrives=True)
    producer.close(0)
    monkeypatch.setattr(producer_module, "NetworkClient", NetworkClient)
    with broker.ready(transactional_id):
        assert producer.resolve_outcome() == "unknown"


def test_a_commit_that_never_arrived_is_resolved_once_the_coordinator_has_aborted(
    broker, proxy, ready
):
    topic = broker.topic()
    producer = ready(max_block_ms=2_000, transaction_timeout_ms=3_000)
    lose_commit(proxy, producer, topic, arrives=False)
    producer.close(0)
    assert producer.resolve_outcome() == "unknown"  # it is open, and the commit on its way
    # With v1 the abort at the time-out looks like a fence, which proves nothing.
    expected = "aborted" if broker.mode.transaction_version == 2 else "unknown"
    deadline = time.monotonic() + 15
    while producer.resolve_outcome() != expected and time.monotonic() < deadline:
        time.sleep(0.2)
    assert producer.resolve_outcome() == expected
