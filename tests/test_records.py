"""The values equal kafka-python's, and values from outside are checked by name."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import kafka.structs
import pytest

from txnproducer.records import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerIdAndEpoch,
    RecordMetadata,
    TopicPartition,
    as_consumer_group_metadata,
    as_offsets,
)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (TopicPartition("t", 3), kafka.structs.TopicPartition("t", 3)),
        (OffsetAndMetadata(5), kafka.structs.OffsetAndMetadata(5)),
        (OffsetAndMetadata(5, "m", 2), kafka.structs.OffsetAndMetadata(5, "m", 2)),
    ],
)
def test_values_of_kafka_python_are_the_same_keys(ours, theirs) -> None:
    assert ours == theirs
    assert hash(ours) == hash(theirs)
    assert ours._fields == theirs._fields
    assert {ours: 1}[theirs] == 1


def test_group_metadata_has_kafka_pythons_fields_without_the_live_state() -> None:
    assert kafka.structs.ConsumerGroupMetadata._fields[:4] == ConsumerGroupMetadata._fields
    assert ConsumerGroupMetadata("g") == ("g", -1, "", None)


def test_an_unknown_offset_is_minus_one() -> None:
    metadata = RecordMetadata("t", 0)
    assert (metadata.offset, metadata.timestamp_ms, metadata.has_offset) == (-1, -1, False)
    assert RecordMetadata("t", 0, 7).has_offset


def test_record_metadata_answers_to_kafka_pythons_names() -> None:
    metadata = RecordMetadata("t", 1, 2, 3, 4, 5)
    assert metadata.timestamp == metadata.timestamp_ms == 3
    assert metadata.topic_partition == TopicPartition("t", 1)
    assert (metadata.serialized_key_size, metadata.serialized_value_size) == (4, 5)


def test_a_producer_id_is_valid_once_it_was_assigned() -> None:
    assert not ProducerIdAndEpoch.NONE.is_valid
    assert ProducerIdAndEpoch(0, 0).is_valid
    assert str(ProducerIdAndEpoch(9, 1)) == "producer id 9, epoch 1"


@pytest.mark.parametrize(
    "value",
    [
        TopicPartition("t", 1),
        OffsetAndMetadata(1),
        RecordMetadata("t", 1),
        ConsumerGroupMetadata("g"),
        ProducerIdAndEpoch(1, 2),
    ],
)
def test_values_cross_processes(value) -> None:
    assert pickle.loads(pickle.dumps(value)) == value


@pytest.mark.conformance("2.16")
class TestGroupMetadata:
    def test_of_kafka_python_is_accepted_as_it_is(self) -> None:
        theirs = kafka.structs.ConsumerGroupMetadata("g", 4, "m", "i", "stable")
        assert as_consumer_group_metadata(theirs) == ConsumerGroupMetadata("g", 4, "m", "i")

    def test_of_a_consumer_that_assigns_partitions_itself_needs_the_group_only(self) -> None:
        assert as_consumer_group_metadata(SimpleNamespace(group_id="g")) == ("g", -1, "", None)

    def test_none_is_refused_with_the_way_out(self) -> None:
        with pytest.raises(
            ValueError, match=r"group_metadata is None.*consumer.group_metadata\(\)"
        ):
            as_consumer_group_metadata(None)

    def test_a_generation_without_a_member_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"member_id is empty, but generation_id is 2"):
            as_consumer_group_metadata(ConsumerGroupMetadata("g", 2))

    def test_generation_zero_and_below_need_no_member(self) -> None:
        assert as_consumer_group_metadata(ConsumerGroupMetadata("g", 0)).generation_id == 0

    @pytest.mark.parametrize(
        ("value", "field"),
        [
            (ConsumerGroupMetadata(""), "group_id"),
            (SimpleNamespace(group_id=None), "group_id"),
            (SimpleNamespace(group_id="g", generation_id="4"), "generation_id"),
            (SimpleNamespace(group_id="g", generation_id=True), "generation_id"),
            (SimpleNamespace(group_id="g", member_id=None), "member_id"),
            (SimpleNamespace(group_id="g", group_instance_id=3), "group_instance_id"),
            (ConsumerGroupMetadata("g\udcff"), "group_id"),
            (ConsumerGroupMetadata("g", 2**31, "m"), "generation_id"),
            (ConsumerGroupMetadata("g" * 40_000), "group_id"),
        ],
    )
    def test_a_wrong_field_is_named(self, value, field: str) -> None:
        with pytest.raises(ValueError, match=rf"group_metadata\.{field}"):
            as_consumer_group_metadata(value)

    @pytest.mark.parametrize(("value", "given"), [(None, "None"), ("g", "a str"), (5, "a int")])
    def test_a_value_that_is_no_group_metadata_is_refused_with_the_way_to_get_it(
        self, value, given
    ) -> None:
        advice = rf"group_metadata is {given}: pass consumer\.group_metadata\(\)"
        with pytest.raises(ValueError, match=advice):
            as_consumer_group_metadata(value)

    def test_the_bytes_of_confluent_kafka_are_refused_with_the_session_that_reads_them(
        self,
    ) -> None:
        with pytest.raises(ValueError, match=r"confluent-kafka.*TransactSession\.for_confluent"):
            as_consumer_group_metadata(b"CGMDv2:")


class TestOffsets:
    def test_of_kafka_python_are_accepted_as_they_are(self) -> None:
        theirs = {kafka.structs.TopicPartition("t", 0): kafka.structs.OffsetAndMetadata(7, "x", 1)}
        assert as_offsets(theirs) == {TopicPartition("t", 0): OffsetAndMetadata(7, "x", 1)}
        assert type(next(iter(as_offsets(theirs)))) is TopicPartition

    def test_of_other_clients_need_topic_partition_and_offset_only(self) -> None:
        value = SimpleNamespace(offset=3, metadata=None, leader_epoch=None)
        assert as_offsets({("t", 1): 9, ("t", 2): value}) == {
            ("t", 1): OffsetAndMetadata(9),
            ("t", 2): OffsetAndMetadata(3),
        }

    def test_may_be_empty(self) -> None:
        assert as_offsets({}) == {}

    @pytest.mark.parametrize(
        ("offsets", "said"),
        [
            ([], "offsets must map"),
            ({"t": 1}, "'t' is not a TopicPartition"),
            ({("t", "1"): 1}, "partition of 't' must be an integer"),
            ({("t", -1): 1}, "partition -1 of 't' is out of range"),
            ({("t", 1): -1}, r"offsets\[t-1\].offset is -1"),
            ({("t", 1): None}, r"offsets\[t-1\].offset must be an integer"),
            (
                {("t", 1): SimpleNamespace(offset=1, metadata=b"m")},
                r"offsets\[t-1\].metadata must be a text",
            ),
            ({("t\udcff", 1): 1}, "topic is 't.udcff'"),
            ({("t", 1): OffsetAndMetadata(1, "x" * 40_000)}, r"\[t-1\].metadata has 40000 bytes"),
            ({("t", 1): OffsetAndMetadata(1, "", 2**31)}, r"\[t-1\].leader_epoch is 2147483648"),
        ],
    )
    def test_a_wrong_entry_is_named(self, offsets, said: str) -> None:
        with pytest.raises(ValueError, match=said):
            as_offsets(offsets)
