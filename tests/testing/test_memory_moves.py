"""A move on the only broker is met by a client once, and its transaction commits all the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from txnproducer import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    TopicPartition,
    TransactionalProducer,
)
from txnproducer._broker.handlers import handle
from txnproducer.testing import InMemoryKafka

GROUP = ConsumerGroupMetadata("group")
OFFSETS = {TopicPartition("in", 0): OffsetAndMetadata(1)}
ERRORS = ("NOT_COORDINATOR", "NOT_LEADER_OR_FOLLOWER")


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def kafka(request: pytest.FixtureRequest) -> Iterator[InMemoryKafka]:
    topics = {"orders": 2, "in": 1}
    with InMemoryKafka(topics, transaction_version=request.param) as cluster:
        yield cluster


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return the refused requests of all clients, with the error."""
    found: list[tuple[str, str]] = []

    def noted(cluster, node_id, request, now_ms):
        answer = handle(cluster, node_id, request, now_ms)
        name = type(request).__name__.removesuffix("Request")
        found.extend((name, error) for error in ERRORS if error in repr(answer))
        return answer

    monkeypatch.setattr("txnproducer._server.connection.handle", noted)
    return found


@pytest.fixture
def producer(kafka: InMemoryKafka) -> Iterator[TransactionalProducer]:
    with kafka.producer("t", retry_backoff_ms=1, linger_ms=0) as made:
        made.init_transactions()
        yield made


def write(producer: TransactionalProducer, value: bytes) -> None:
    producer.send("orders", value, partition=0).result(5)


def values(kafka: InMemoryKafka) -> list[bytes | None]:
    return [record.value for record in kafka.records("orders")]


def test_the_commit_finds_that_its_coordinator_has_moved(kafka, producer, refused):
    with producer.transaction():
        write(producer, b"one")
        kafka.move_coordinator("t")
        kafka.move_coordinator("t")
    assert refused == [("EndTxn", "NOT_COORDINATOR")]
    with producer.transaction():
        write(producer, b"two")
    assert len(refused) == 1
    assert values(kafka) == [b"one", b"two"]


def test_a_leader_that_asks_the_coordinator_does_not_meet_its_move(kafka, producer, refused):
    kafka.move_coordinator("t")
    with producer.transaction():
        write(producer, b"one")
    # With v2 the leader adds the partition, and the first request of the client is the commit.
    [(request, error)] = refused
    assert error == "NOT_COORDINATOR"
    assert request in ("AddPartitionsToTxn", "EndTxn")
    assert values(kafka) == [b"one"]


def test_another_id_does_not_meet_the_move(kafka, producer, refused):
    kafka.move_coordinator("t")
    with kafka.producer("u") as other:
        other.init_transactions()
        with other.transaction():
            write(other, b"other")
    assert refused == []
    kafka.fence("t")
    assert refused == []
    with kafka.producer("t") as newest:
        newest.init_transactions()
    assert refused == [("InitProducerId", "NOT_COORDINATOR")]


def test_the_next_batch_finds_that_its_leader_has_moved(kafka, producer, refused):
    with producer.transaction():
        write(producer, b"one")
        kafka.move_leader("orders", 0)
        kafka.move_leader("orders", 0)
    # The marker of the commit was no batch of the client.
    assert refused == []
    with producer.transaction():
        producer.send("orders", b"elsewhere", partition=1).result(5)
        assert refused == []
        write(producer, b"two")
        write(producer, b"three")
    assert refused == [("Produce", "NOT_LEADER_OR_FOLLOWER")]
    assert values(kafka) == [b"one", b"two", b"three", b"elsewhere"]


def test_offsets_find_that_their_coordinator_has_moved(kafka, producer, refused):
    for _ in range(2):
        with producer.transaction():
            producer.send_offsets_to_transaction(OFFSETS, GROUP)
            if not refused:
                kafka.move_group_coordinator("group")
                producer.send_offsets_to_transaction(OFFSETS, GROUP)
    assert refused == [("TxnOffsetCommit", "NOT_COORDINATOR")]
    assert kafka.committed("group") == OFFSETS
