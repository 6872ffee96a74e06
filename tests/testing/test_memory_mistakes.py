"""A mistake of a test is refused by the in-memory Kafka, and changes nothing."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from txnproducer import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from txnproducer._protocol.messages import ApiKey
from txnproducer.errors import KafkaError
from txnproducer.testing import InMemoryKafka
from txnproducer.testing._memory_faults import AskedFaults

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


V2_TEXT = r"\(AddPartitionsToTxn: 2\): with transactions v2 no producer sends AddPartitionsToTxn"
OTHER_TEXT = r"\(EndTxn: 1\): the code under test has sent no such request.*clear_faults"


@pytest.mark.parametrize("ends", ["close", "block"])
@pytest.mark.parametrize(
    ("api", "times", "text"), [("AddPartitionsToTxn", 2, V2_TEXT), ("EndTxn", 1, OTHER_TEXT)]
)
def test_a_fault_that_meets_no_request_is_warned_about_at_the_end(
    ends: str, api: str, times: int, text: str
) -> None:
    kafka = InMemoryKafka()
    kafka.fail_next(api, error="NOT_COORDINATOR", times=times)
    with pytest.warns(UserWarning, match=text) as found:
        kafka.close() if ends == "close" else kafka.__exit__(None, None, None)
    assert found[0].filename == __file__
    kafka.close()  # a second one gives no second warning


def test_with_transactions_v1_the_warning_names_no_version() -> None:
    kafka = InMemoryKafka(transaction_version=1)
    kafka.lose_answer("AddPartitionsToTxn")
    with pytest.warns(UserWarning, match="has sent no such request"):
        kafka.close()


def test_faults_that_were_forgotten_or_that_an_error_may_have_kept_give_no_warning() -> None:
    with InMemoryKafka() as kafka:
        kafka.delay("EndTxn", 1)
        kafka.clear_faults()
    with contextlib.suppress(LookupError), InMemoryKafka() as kafka:
        kafka.delay("EndTxn", 1)
        raise LookupError("of the test")


def test_a_fault_for_all_requests_gives_no_warning() -> None:
    with InMemoryKafka() as kafka, kafka.producer("t", max_block_ms=500) as producer:
        kafka.fail_next("FindCoordinator", error="COORDINATOR_NOT_AVAILABLE", times=10_000)
        with pytest.raises(KafkaError):
            producer.init_transactions()


def test_each_call_for_faults_of_an_api_counts_by_itself() -> None:
    asked = AskedFaults()
    for times in (1, 10, 2):
        asked.add(ApiKey.END_TXN, times)
    assert [asked.unmet({ApiKey.END_TXN: left}) for left in (13, 12, 11, 2, 1)] == [
        {"EndTxn": 13},
        {"EndTxn": 12},
        {"EndTxn": 2},
        {"EndTxn": 2},
        {},
    ]


def test_a_fault_may_be_asked_for_more_often_than_memory_has_room_for(
    kafka: InMemoryKafka,
) -> None:
    kafka.fail_next("EndTxn", error="NOT_COORDINATOR", times=2)
    kafka.delay("EndTxn", 0.001, times=sys.maxsize)
    kafka.lose_answer("EndTxn", times=10**9)
    asked = 2 + sys.maxsize + 10**9
    assert kafka.remaining_faults() == {"EndTxn": asked}
    with kafka.producer("service") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("orders", b"1").result(5)
    assert kafka.remaining_faults() == {"EndTxn": asked - 3}
    kafka.clear_faults()
    assert kafka.remaining_faults() == {}


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("NOT_COORD", "^error is 'NOT_COORD', which is not .*: did you mean NOT_COORDINATOR"),
        ("not_coordinator", "did you mean NOT_COORDINATOR"),
        ("xyz", "^error is 'xyz', which .*: names are as NOT_COORDINATOR"),
        (12345, "^error is 12345, which .*: names are as NOT_COORDINATOR"),
    ],
)
def test_an_unknown_error_is_named_with_those_that_are_near(
    kafka: InMemoryKafka, error: str | int, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        kafka.fail_next("EndTxn", error=error)


@pytest.mark.parametrize(
    "call", [lambda kafka: kafka.records("order"), lambda kafka: kafka.move_leader("order", 0)]
)
def test_an_unknown_topic_is_refused_with_those_that_exist(
    kafka: InMemoryKafka, call: Call
) -> None:
    text = r"no topic 'order': the topics are \['in', 'orders'\]\..*create_topic\(\) or topics="
    with pytest.raises(KeyError, match=text):
        call(kafka)


def test_the_refusal_of_an_unknown_topic_is_short() -> None:
    with InMemoryKafka() as kafka:
        with pytest.raises(KeyError, match="the cluster has none"):
            kafka.records("orders")
        for number in range(100):
            kafka.create_topic(f"{number}".rjust(249, "t"))
        with pytest.raises(KeyError) as refused:
            kafka.records("x" * 10_000)
    assert len(str(refused.value)) < 1_000


@pytest.mark.parametrize(
    ("topic", "number", "text"),
    [("orders", 7, "it has only 0"), ("many", 3, "it has 3, numbered from 0")],
)
def test_an_unknown_partition_is_refused_with_their_number(
    kafka: InMemoryKafka, topic: str, number: int, text: str
) -> None:
    kafka.create_topic("many", 3)
    with pytest.raises(KeyError, match=f"no partition {number} of '{topic}': {text}"):
        kafka.move_leader(topic, number)


def test_a_wrong_number_of_partitions_names_the_topic(kafka: InMemoryKafka) -> None:
    for call in (lambda: InMemoryKafka({"new": 0}), lambda: kafka.create_topic("new", 0)):
        with pytest.raises(ValueError, match="partitions of 'new' is 0: it must be at least one"):
            call()


@pytest.mark.parametrize("version", [1, 2])
def test_a_fence_succeeds_with_a_topic_that_was_made_while_a_broker_was_down(version: int) -> None:
    with InMemoryKafka(nodes=2, transaction_version=version) as kafka:
        kafka.stop_node(1)
        kafka.create_topic("late", 2)
        with kafka.producer("service") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for partition in range(2):
                producer.send("late", b"1", partition=partition).result(5)
            kafka.fence("service")
            with pytest.raises(KafkaError):
                producer.commit_transaction()
        assert kafka.records("late") == []


def test_a_topic_that_was_made_without_a_broker_gets_leaders_later() -> None:
    with InMemoryKafka(nodes=2) as kafka:
        for node in range(2):
            kafka.stop_node(node)
        kafka.create_topic("late", 2)
        kafka.start_node(1)
        with kafka.producer() as producer:
            for partition in range(2):
                producer.send("late", b"1", partition=partition).result(5)


def test_a_fence_of_an_id_without_a_transaction_raises_its_epoch_once(
    kafka: InMemoryKafka,
) -> None:
    before = kafka.transactions()["service"].producer_epoch
    kafka.fence("service")
    assert kafka.transactions()["service"].producer_epoch == before + 1


def test_a_closed_cluster_is_not_entered_again() -> None:
    with InMemoryKafka() as kafka:
        pass
    with pytest.raises(RuntimeError, match="is closed: make a new one"):
        kafka.__enter__()


def test_a_block_in_the_block_of_a_cluster_is_refused_and_ends_nothing() -> None:
    with InMemoryKafka() as kafka:
        with pytest.raises(RuntimeError, match="leave the inner block out"):
            with kafka:
                pass
        kafka.create_topic("orders")


def test_a_right_is_denied_for_a_topic_that_exists(kafka: InMemoryKafka) -> None:
    with pytest.raises(KeyError, match=r"topic is 'order': there is none.*create_topic"):
        kafka.deny(topic="order", group="group")
    # Nothing was denied: the refusal of the topic comes first.
    with pytest.raises(ValueError, match="group is 'group', to which access is not denied"):
        kafka.allow(group="group")


def test_a_right_is_granted_again_if_it_was_denied(kafka: InMemoryKafka) -> None:
    kafka.deny(topic="orders", transactional_id="new")
    with pytest.raises(ValueError, match=r"transactional_id is 'now', to which .*: deny"):
        kafka.allow(topic="orders", transactional_id="now")
    kafka.allow(topic="orders", transactional_id="new")


def test_a_broker_is_stopped_if_it_is_up_and_started_if_it_is_not(kafka: InMemoryKafka) -> None:
    with pytest.raises(ValueError, match=r"broker 1 is up already: stop_node\(1\) first"):
        kafka.start_node(1)
    kafka.stop_node(1)
    with pytest.raises(ValueError, match=r"broker 1 is stopped already: start_node\(1\) first"):
        kafka.stop_node(1)
    kafka.start_node(1)
    with kafka.stopped(1):
        kafka.start_node(1)


def test_a_cluster_with_logins_has_a_user() -> None:
    with pytest.raises(ValueError, match=r"users is empty.*leave it out"):
        InMemoryKafka(users={})


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
