"""A mistake of a test is refused by the in-memory Kafka, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from txnproducer import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from txnproducer.testing import InMemoryKafka

Call = Callable[[Any], object]


@pytest.fixture
def kafka() -> Iterator[InMemoryKafka]:
    """Return a cluster in which a producer has used an id and a group."""
    with InMemoryKafka({"orders": 1, "in": 1}, nodes=2) as cluster:
        with cluster.producer("service") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send_offsets_to_transaction(
                    {TopicPartition("in", 0): OffsetAndMetadata(1)}, ConsumerGroupMetadata("group")
                )
        yield cluster


@pytest.mark.parametrize("transactional_id", ["services", ""])
@pytest.mark.parametrize(
    "call",
    [
        InMemoryKafka.fence,
        InMemoryKafka.time_out_transaction,
        InMemoryKafka.move_coordinator,
    ],
)
def test_an_id_that_no_producer_has_used_is_refused(
    kafka: InMemoryKafka, call: Callable[[InMemoryKafka, str], None], transactional_id: str
) -> None:
    text = f"used the transactional id '{transactional_id}'.*call init_transactions"
    with pytest.raises(ValueError, match=text):
        call(kafka, transactional_id)
    assert list(kafka.transactions()) == ["service"]


@pytest.mark.parametrize("group", ["groups", ""])
def test_a_group_that_no_producer_has_used_is_refused(kafka: InMemoryKafka, group: str) -> None:
    with pytest.raises(ValueError, match=f"the group '{group}'.*send_offsets_to_transaction"):
        kafka.move_group_coordinator(group)
    kafka.move_group_coordinator("group")


@pytest.mark.parametrize(
    "call",
    [
        lambda kafka: kafka.fence("service"),
        lambda kafka: kafka.time_out_transaction("service"),
        lambda kafka: kafka.move_coordinator("service"),
        lambda kafka: kafka.move_group_coordinator("group"),
        lambda kafka: kafka.move_leader("orders", 0),
    ],
)
def test_a_coordinator_or_a_leader_needs_a_broker(kafka: InMemoryKafka, call: Call) -> None:
    before = kafka.transactions()
    for node in range(2):
        kafka.stop_node(node)
    with pytest.raises(ValueError, match="no broker is up"):
        call(kafka)
    assert kafka.transactions() == before


def test_a_fence_by_a_producer_that_would_be_refused_is_refused(kafka: InMemoryKafka) -> None:
    kafka.deny(transactional_id="service")
    with pytest.raises(ValueError, match="with TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        kafka.fence("service")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda kafka: kafka.fence(3), "transactional_id is 3"),
        (lambda kafka: kafka.time_out_transaction(5), "transactional_id is 5"),
        (lambda kafka: kafka.move_coordinator(b"service"), "transactional_id is b'service'"),
        (lambda kafka: kafka.move_group_coordinator(None), "group_id is None"),
        (lambda kafka: kafka.committed(5), "group_id is 5"),
        (lambda kafka: kafka.records(["orders"]), r"topic is \['orders'\]"),
        (lambda kafka: kafka.move_leader(["orders"], 0), r"topic is \['orders'\]"),
        (lambda kafka: kafka.move_leader("orders", "0"), "partition is '0'"),
        (lambda kafka: kafka.move_leader("orders", False), "partition is False"),
        (lambda kafka: kafka.deny(topic=["orders"]), r"topic is \['orders'\]"),
        (lambda kafka: kafka.allow(group=5), "group is 5"),
        (lambda kafka: kafka.delay(["EndTxn"], 1), r"api is \['EndTxn'\]"),
    ],
)
def test_a_name_of_the_wrong_type_is_named(kafka: InMemoryKafka, call: Call, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        call(kafka)


@pytest.mark.parametrize(
    "call",
    [
        lambda kafka: kafka.producer(),
        lambda kafka: kafka.create_topic("new"),
        lambda kafka: kafka.fence("service"),
        lambda kafka: kafka.time_out_transaction("service"),
        lambda kafka: kafka.move_coordinator("service"),
        lambda kafka: kafka.move_group_coordinator("group"),
        lambda kafka: kafka.move_leader("orders", 0),
        lambda kafka: kafka.stop_node(0),
        lambda kafka: kafka.start_node(0),
        lambda kafka: kafka.deny(topic="orders"),
        lambda kafka: kafka.allow(topic="orders"),
        lambda kafka: kafka.lose_answer("EndTxn"),
        lambda kafka: kafka.clear_faults(),
    ],
)
def test_a_closed_cluster_does_not_change(kafka: InMemoryKafka, call: Call) -> None:
    before = kafka.transactions()
    kafka.close()
    with pytest.raises(RuntimeError, match="this InMemoryKafka is closed"):
        call(kafka)
    assert kafka.transactions() == before
    assert kafka.records("orders") == []
    assert kafka.committed("group") == {TopicPartition("in", 0): OffsetAndMetadata(1)}
    assert kafka.remaining_faults() == {}
