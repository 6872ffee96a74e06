"""A Kafka with an address refuses the mistakes of a test that one in memory refuses."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from txnproducer import TopicPartition, admin
from txnproducer.admin._sockets import consumer_limits
from txnproducer.errors import KafkaTimeoutError
from txnproducer.testing import ExistingKafka, InMemoryKafka


@pytest.fixture
def memory() -> Iterator[InMemoryKafka]:
    with InMemoryKafka({"orders": 1}) as kafka:
        yield kafka


@pytest.fixture
def cluster(memory: InMemoryKafka) -> ExistingKafka:
    return ExistingKafka(memory.listen())


def test_a_fence_is_for_an_id_that_a_producer_has_used(
    cluster: ExistingKafka, memory: InMemoryKafka
) -> None:
    with pytest.raises(ValueError, match="used the transactional id 'services'"):
        cluster.fence("services")
    assert memory.transactions() == {}
    with cluster.producer("service") as producer:
        producer.init_transactions()
    cluster.fence("service")
    assert memory.transactions()["service"].producer_epoch == 1


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda kafka: kafka.fence(3), "transactional_id is 3"),
        (lambda kafka: kafka.committed(5), "group_id is 5"),
        (lambda kafka: kafka.records(["orders"]), r"topic is \['orders'\]"),
    ],
)
def test_a_name_of_the_wrong_type_is_named(
    cluster: ExistingKafka, call: Callable[[Any], object], text: str
) -> None:
    with pytest.raises(TypeError, match=text):
        call(cluster)


def test_an_isolation_that_does_not_exist_is_named(cluster: ExistingKafka) -> None:
    isolation: Any = "dirty"
    with pytest.raises(ValueError, match="read_committed or read_uncommitted"):
        cluster.records("orders", isolation=isolation)


def test_transactions_are_those_that_a_kafka_in_memory_returns(
    cluster: ExistingKafka, memory: InMemoryKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The model answers no ListTransactions, and an id may expire before it is described.
    monkeypatch.setattr(admin, "transactional_ids", lambda *_, **__: ["expired", "open", "t"])
    with cluster.producer("t") as producer, cluster.producer("open") as other:
        producer.init_transactions()
        other.init_transactions()
        other.begin_transaction()
        other.send("orders", b"x").result(10)
        found = cluster.transactions()
        assert found == memory.transactions()
    assert found["open"].state == "Ongoing"
    assert found["open"].partitions == {TopicPartition("orders", 0)}


def test_records_of_a_cluster_that_is_not_there_end_in_the_time_that_is_given() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    began_s = time.monotonic()
    with pytest.raises(KafkaTimeoutError, match=f"cannot connect to 127.0.0.1:{port}"):
        ExistingKafka(f"127.0.0.1:{port}").records("orders", timeout=1)
    # kafka-python would try for 30 s.
    assert time.monotonic() - began_s < 15


@pytest.mark.parametrize(
    ("timeout", "bootstrap_ms", "request_ms"),
    [(-1, 1_000, 1_000), (0.2, 1_000, 1_000), (5, 5_000, 5_000), (90, 90_000, 30_000)],
)
def test_a_consumer_waits_for_its_broker_and_its_answers_no_longer_than_it_may(
    timeout: float, bootstrap_ms: int, request_ms: int
) -> None:
    assert consumer_limits(timeout) == {
        "bootstrap_timeout_ms": bootstrap_ms,
        "request_timeout_ms": request_ms,
    }
