"""kafka-python's consumer in a session: its settings and its positions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition as KafkaPartition
from kafka.errors import CorruptRecordError, KafkaTimeoutError
from kafka.structs import MemberState

from txnproducer.errors import InvalidConfigurationError
from txnproducer.records import TopicPartition
from txnproducer.session.kafka_python import REQUIRED, KafkaPythonConsumer

INPUT = TopicPartition("in", 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("isolation_level", "read_uncommitted"),
        ("enable_auto_commit", True),
        ("auto_offset_reset", "latest"),
        ("value_deserializer", bytes.decode),
        ("group_id", None),
    ],
)
def test_settings_that_would_lose_or_double_records_are_refused(name, value):
    given = SimpleNamespace(config={**REQUIRED, "group_id": "g", name: value})
    with pytest.raises(InvalidConfigurationError, match=name):
        KafkaPythonConsumer(given).check()


class Library:
    """kafka-python's consumer, as far as the way back needs it."""

    def __init__(self, answers, state=MemberState.STABLE):
        self.answers = answers
        self.state = state
        self.sought: list[Any] = []

    def group_metadata(self):
        return SimpleNamespace(state=self.state)

    def assignment(self):
        return set(self.answers)

    def committed(self, partition, timeout_ms):
        answers = self.answers[partition]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def seek(self, partition, offset):
        self.sought.append((partition.partition, offset))

    def seek_to_beginning(self, partition):
        self.sought.append((partition.partition, "beginning"))


def test_a_record_that_cannot_be_read_is_named_with_the_way_out():
    class Stuck(Library):
        def poll(self, timeout_ms, max_records):
            raise CorruptRecordError("Found invalid record structure")

        def position(self, partition, timeout_ms):
            if partition.partition == 1:
                raise KafkaTimeoutError
            return 7

    library = Stuck({KafkaPartition("in", 0): [7], KafkaPartition("in", 1): [7]})
    with pytest.raises(CorruptRecordError) as found:
        KafkaPythonConsumer(library).poll(0, 1)
    (note,) = found.value.__notes__
    assert "in-0, offset 7" in note
    assert "in-1, whose offset is not known yet" in note
    assert "TransactSession.for_confluent reads such records" in note


def test_the_way_back_goes_to_committed_offsets_and_without_one_to_the_first_of_the_batch():
    library = Library(
        {
            KafkaPartition("in", 0): [7],
            KafkaPartition("in", 1): [4, 9],  # the first answer is from before the rebalance
            KafkaPartition("in", 2): [None],
            KafkaPartition("in", 3): [None],
        }
    )
    assert KafkaPythonConsumer(library).rewind({TopicPartition("in", 2): 5, INPUT: 1})
    assert sorted(library.sought) == [(0, 7), (1, 9), (2, 5), (3, "beginning")]


def test_no_position_is_changed_while_committed_offsets_are_not_known():
    library = Library(
        {KafkaPartition("in", 0): [7], KafkaPartition("in", 1): [KafkaTimeoutError()]}
    )
    assert not KafkaPythonConsumer(library).rewind({})
    assert library.sought == []


def test_committed_offsets_are_not_asked_for_while_the_consumer_joins():
    library = Library({KafkaPartition("in", 0): [7]}, MemberState.REBALANCING)
    assert not KafkaPythonConsumer(library).rewind({})
    library.state = MemberState.STABLE
    assert KafkaPythonConsumer(library).rewind({})
    assert library.sought == [(0, 7)]


def test_positions_are_set_in_partitions_that_the_consumer_still_has():
    library = Library({KafkaPartition("in", 0): [7]})
    consumer = KafkaPythonConsumer(library)
    assert consumer.assignment() == {INPUT}
    assert consumer.seek({INPUT: 3, TopicPartition("in", 1): 5})
    assert library.sought == [(0, 3)]


def test_a_consumer_leaves_its_group_within_the_time_that_is_given():
    asked: list[dict[str, Any]] = []
    KafkaPythonConsumer(SimpleNamespace(close=lambda **given: asked.append(given))).close(2.5)
    assert asked == [{"autocommit": False, "timeout_ms": 2500}]
