"""One test runs with a Kafka in memory and with a real one, by the name of its fixture."""

from __future__ import annotations

import itertools

import pytest

from integration.waiting import wait_until
from txnproducer import ConsumerGroupMetadata, KafkaError, OffsetAndMetadata, TopicPartition
from txnproducer.testing import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
_NUMBERS = itertools.count()


@pytest.fixture(params=["kafka_memory", "kafka_cluster"])
def any_kafka(request) -> KafkaCluster:
    cluster: KafkaCluster = request.getfixturevalue(request.param)
    return cluster


@pytest.fixture
def new_topic(any_kafka) -> str:
    name = f"fixtures-{next(_NUMBERS)}"
    any_kafka.create_topic(name, 2, config={"cleanup.policy": "delete"})
    return name


def test_a_topic_shows_what_is_committed_and_nothing_that_is_aborted(any_kafka, new_topic):
    group, place = f"group-{new_topic}", TopicPartition(new_topic, 0)
    with any_kafka.producer(new_topic) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(new_topic, b"first", b"key", [("header", b"1")], 0, 1_234)
            producer.send(new_topic, b"second", partition=1)
            producer.send_offsets_to_transaction(
                {place: OffsetAndMetadata(7, "note")}, ConsumerGroupMetadata(group)
            )
        producer.begin_transaction()
        producer.send(new_topic, b"aborted", partition=0).result(10)
        producer.abort_transaction()
        assert any_kafka.transactions()[new_topic].state.endswith("Abort")
    # A commit returns before its markers are written.
    wait_until(lambda: len(any_kafka.records(new_topic)) == 2, "two records")
    first, second = any_kafka.records(new_topic)
    assert (first.key, first.value, first.partition) == (b"key", b"first", 0)
    assert (first.headers, first.timestamp_ms) == ((("header", b"1"),), 1_234)
    assert (second.key, second.value, second.offset) == (None, b"second", 0)
    everything = any_kafka.records(new_topic, isolation="read_uncommitted")
    assert [record.value for record in everything] == [b"first", b"aborted", b"second"]
    wait_until(lambda: any_kafka.committed(group), "offsets")
    assert any_kafka.committed(group) == {place: OffsetAndMetadata(7, "note")}


def test_a_fenced_producer_commits_nothing(any_kafka, new_topic):
    with any_kafka.producer(new_topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(new_topic, b"lost").result(10)
        known = any_kafka.transactions()[new_topic]
        assert (known.transactional_id, known.state) == (new_topic, "Ongoing")
        assert [place.topic for place in known.partitions] == [new_topic]
        with pytest.raises(ValueError, match="no producer has used"):
            any_kafka.fence(f"{new_topic}-other")
        assert f"{new_topic}-other" not in any_kafka.transactions()
        any_kafka.fence(new_topic)
        with pytest.raises(KafkaError):
            producer.commit_transaction()
    assert any_kafka.records(new_topic) == []


def test_a_topic_that_is_not_there_is_named(any_kafka):
    with pytest.raises(KeyError, match="there is no topic 'no-such-topic'"):
        any_kafka.records("no-such-topic")
