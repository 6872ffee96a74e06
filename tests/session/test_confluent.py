"""confluent-kafka's consumer in a session: its settings, its identity, its positions."""

from __future__ import annotations

import sys
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ConfluentPartition

from txnproducer.errors import InvalidConfigurationError
from txnproducer.records import ConsumerGroupMetadata, TopicPartition
from txnproducer.session import TransactSession
from txnproducer.session.confluent import REQUIRED, ConfluentConsumer, read_metadata

INPUT = TopicPartition("in", 0)
OTHER = TopicPartition("in", 1)
SETTINGS = {"bootstrap.servers": "127.0.0.1:1", "group.id": "group", "log_level": 0}


def written(generation: int, *texts: bytes, instance: bytes = b"\1") -> bytes:
    number = generation.to_bytes(4, sys.byteorder, signed=True)
    return b"CGMDv2:" + number + b"".join(text + b"\0" for text in texts) + instance


# --- the identity --------------------------------------------------------------------------------


@pytest.mark.parametrize("instance", [None, "instance"])
def test_the_installed_version_gives_the_identity_in_the_known_form(instance):
    settings = {**SETTINGS, "group.id": "a group"}
    if instance is not None:
        settings["group.instance.id"] = instance
    consumer = confluent_kafka.Consumer(settings)
    try:
        found = read_metadata(consumer.consumer_group_metadata())
    finally:
        consumer.close()
    assert found == ConsumerGroupMetadata("a group", -1, "", instance)


def test_a_member_of_a_generation_is_read():
    assert read_metadata(written(7, b"group", b"member")) == ("group", 7, "member", None)
    static = written(2**31 - 1, b"group", b"m", instance=b"\0name\0")
    assert read_metadata(static) == ("group", 2**31 - 1, "m", "name")


@pytest.mark.parametrize(
    "given",
    [
        b"CGMDv3:" + written(7, b"group", b"member")[7:],
        written(7, b"group"),
        written(7, b"group", b"member", instance=b""),
        written(7, b"group", b"member", instance=b"\2"),
        written(7, b"group", b"member", instance=b"\1more"),
        written(7, b"group", b"member", instance=b"\0name"),
        written(7, b"group", b"member", instance=b"\0name\0more\0"),
        b"",
        None,
        "CGMDv2:",
    ],
)
def test_an_unknown_form_is_refused_with_the_way_out(given):
    with pytest.raises(InvalidConfigurationError, match="for_kafka_python"):
        read_metadata(given)


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("isolation.level", "read_uncommitted"),
        ("enable.auto.commit", True),
        ("enable.auto.commit", "true"),
        ("enable.auto.offset.store", True),
        ("auto.offset.reset", "latest"),
        ("default.topic.config", {"auto.offset.reset": "latest"}),
        ("group.id", ""),
    ],
)
def test_settings_that_would_lose_or_double_records_are_refused(name, value):
    with pytest.raises(InvalidConfigurationError, match=name):
        ConfluentConsumer({**SETTINGS, name: value})


def test_the_settings_that_a_session_needs_are_set_and_may_be_given():
    for given in ({}, REQUIRED, {"enable.auto.commit": "False"}):
        consumer = ConfluentConsumer({**SETTINGS, **given})
        consumer.check()
        consumer.close(5)


def test_a_missing_library_is_named_with_its_extra(monkeypatch, make):
    monkeypatch.delitem(sys.modules, "txnproducer.session.confluent")
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    monkeypatch.setattr("txnproducer.session.clients.TransactionalProducer", lambda *_: make())
    with pytest.raises(InvalidConfigurationError, match=r"txnproducer\[confluent\]"):
        TransactSession.for_confluent(["in"], "group", "id", bootstrap_servers="127.0.0.1:1")


# --- polls and positions -------------------------------------------------------------------------


class Message:
    def __init__(self, offset: int, error: Any = None, kind: int = 1) -> None:
        self._offset, self._error, self._kind = offset, error, kind

    def error(self):
        return self._error

    def topic(self):
        return "in"

    def partition(self):
        return 0

    def offset(self):
        return self._offset

    def key(self):
        return b"key"

    def value(self):
        return b"value"

    def headers(self):
        return None

    def timestamp(self):
        return self._kind, 5


class Library:
    """confluent-kafka's consumer, as far as polls and positions need it."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.offsets: dict[TopicPartition, Any] = {}
        self.started = {INPUT, OTHER}
        self.sought: list[Any] = []

    def poll(self, timeout):
        return self.messages.pop(0) if self.messages else None

    def consume(self, count, timeout):
        found, self.messages = self.messages[:count], self.messages[count:]
        return found

    def subscribe(self, topics, **callbacks):
        self.callbacks = callbacks

    def assignment(self):
        return [ConfluentPartition(*place) for place in self.offsets]

    def committed(self, places, timeout):
        if isinstance(self.offsets[INPUT], Exception):
            raise self.offsets[INPUT]
        return [
            ConfluentPartition(
                one.topic, one.partition, self.offsets[TopicPartition(one.topic, one.partition)]
            )
            for one in places
        ]

    def seek(self, place):
        if (place.topic, place.partition) not in self.started:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self.sought.append((place.partition, place.offset))


@pytest.fixture
def library():
    return Library()


@pytest.fixture
def consumer(library):
    consumer = ConfluentConsumer(SETTINGS)
    consumer._consumer.close()
    consumer._consumer = library
    return consumer


def test_a_poll_gives_as_many_records_as_there_are_and_are_asked_for(consumer, library):
    library.messages = [Message(0), Message(1, kind=0), Message(2)]
    first, second = consumer.poll(1, 2)
    assert (first.offset, first.timestamp_ms, first.headers) == (0, 5, ())
    assert (second.offset, second.timestamp_ms) == (1, -1)
    assert [record.offset for record in consumer.poll(1, 1)] == [2]
    assert consumer.poll(1, 2) == []


@pytest.mark.parametrize("error", [UnicodeDecodeError("utf-8", b"x", 0, 1, ""), SystemError()])
def test_headers_that_the_library_cannot_read_are_a_failure_of_their_record(
    consumer, library, error
):
    class Unreadable(Message):
        def headers(self):
            raise error

    library.messages = [Unreadable(7), Message(8)]
    bad, fine = consumer.poll(1, 9)
    assert fine.headers == ()
    with pytest.raises(ValueError, match="headers of in-0, offset 7 cannot be read"):
        dict(bad.headers)


def test_an_error_is_raised_after_the_records_before_it(consumer, library):
    end, bad = KafkaError._PARTITION_EOF, KafkaError._BAD_MSG
    library.messages = [Message(0, KafkaError(end)), Message(1), Message(2, KafkaError(bad))]
    assert [record.offset for record in consumer.poll(1, 9)] == [1]
    with pytest.raises(KafkaException, match="Bad message"):
        consumer.poll(1, 9)
    assert consumer.poll(1, 9) == []
    library.messages = [Message(3, KafkaError(bad))]
    with pytest.raises(KafkaException, match="Bad message"):
        consumer.poll(1, 9)


@pytest.mark.parametrize("code", [KafkaError._PARTITION_EOF, KafkaError._MAX_POLL_EXCEEDED])
def test_errors_after_which_the_consumer_goes_on_are_not_raised(consumer, library, code):
    library.messages = [Message(0, KafkaError(code)), Message(1)]
    assert [record.offset for record in consumer.poll(1, 9)] == [1]
    assert consumer.poll(1, 9) == []


def test_a_rebalance_that_takes_nothing_away_is_none(consumer, library):
    losses: list[int] = []
    consumer.subscribe(["in"], lambda: losses.append(1))
    for name in ("on_revoke", "on_lost"):
        library.callbacks[name](library, [])
        assert losses == []
        library.callbacks[name](library, [ConfluentPartition("in", 0)])
        assert losses == [1]
        losses.clear()


def test_the_way_back_goes_to_committed_offsets_and_without_one_to_the_first_of_the_batch(
    consumer, library
):
    library.offsets = {INPUT: 7, OTHER: confluent_kafka.OFFSET_INVALID}
    assert consumer.rewind({INPUT: 1})
    assert library.sought == [(0, 7), (1, confluent_kafka.OFFSET_BEGINNING)]
    assert consumer.rewind({OTHER: 5})
    assert library.sought[2:] == [(0, 7), (1, 5)]
    library.offsets = {}
    assert consumer.rewind({OTHER: 5})


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError._WAIT_COORD])
def test_the_way_back_is_tried_again_while_committed_offsets_are_not_known(
    consumer, library, code
):
    library.offsets = {INPUT: KafkaException(KafkaError(code))}
    assert not consumer.rewind({})
    library.offsets = {INPUT: KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))}
    with pytest.raises(KafkaException, match="GROUP_AUTHORIZATION_FAILED"):
        consumer.rewind({})


def test_a_partition_that_is_not_read_yet_is_no_error(consumer, library):
    library.offsets, library.started = {INPUT: 7}, set()
    assert not consumer.seek({INPUT: 3})
    assert not consumer.rewind({})
    library.started = {INPUT}
    assert consumer.seek({INPUT: 3, OTHER: 1})
    assert library.sought == [(0, 3)]
