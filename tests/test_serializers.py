"""The form of a serializer decides its call, and its failure refuses one record alone."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from typing import Any

import pytest
from kafka.serializer import JsonSerializer

from tests.built_config import refused
from tests.live_client import LiveClient, use_live_clients
from tests.needs import needs_compiled
from txnproducer import TransactionalProducer
from txnproducer._protocol.messages import ApiKey
from txnproducer._shell import refusals, waiting
from txnproducer.errors import (
    ForkedProducerError,
    IllegalStateError,
    KafkaError,
    RecordTooLargeError,
    SerializationError,
    TransactionAbortedError,
)
from txnproducer.serializers import HeaderList
from txnproducer.testing import InMemoryKafka

PATIENCE_S = 10.0
# Two batches fill the memory.
SMALL: dict[str, Any] = {"batch_size": 16_384, "buffer_memory": 32_768, "max_request_size": 32_768}


class Tagged:
    """A serializer that writes the topic, and adds a header."""

    def __init__(self, name: str = "by") -> None:
        self._name = name
        self.seen: list[tuple[str, Any, HeaderList]] = []

    def serialize(self, topic: str, value: Any, headers: HeaderList) -> bytes | None:
        self.seen.append((topic, value, list(headers)))
        headers.append((self._name, type(value).__name__.encode()))
        return f"{topic}:{value}".encode()


class Failing:
    def serialize(self, topic: str, value: Any, headers: HeaderList) -> bytes:
        headers.append(("half", b"done"))
        raise KeyError(value)


@pytest.fixture
def kafka():
    with InMemoryKafka({"orders": 1}) as cluster:
        yield cluster


def open_producer(kafka, **settings):
    producer = kafka.producer("t", **settings)
    producer.init_transactions()
    return producer


def written(kafka, topic="orders"):
    return [(record.key, record.value, record.headers) for record in kafka.records(topic)]


# --- the forms ----------------------------------------------------------------------------------


def test_a_serializer_gets_topic_and_headers_and_may_add_headers(kafka):
    serializer = Tagged()
    given = [("trace", "1")]
    with open_producer(kafka, value_serializer=serializer) as producer:
        with producer.transaction():
            producer.send("orders", 5, headers=given)
            producer.send("orders", 6)
            producer.send("orders", None)
    assert serializer.seen == [("orders", 5, [("trace", b"1")]), ("orders", 6, [])]
    assert written(kafka) == [
        (None, b"orders:5", (("trace", b"1"), ("by", b"int"))),
        (None, b"orders:6", (("by", b"int"),)),
        (None, None, ()),
    ]
    assert given == [("trace", "1")]


def test_the_key_is_serialized_before_the_value_as_in_java(kafka):
    key, value = Tagged("key"), Tagged("value")
    with open_producer(kafka, key_serializer=key, value_serializer=value) as producer:
        with producer.transaction():
            producer.send("orders", "v", key="k")
    assert value.seen == [("orders", "v", [("key", b"str")])]
    assert written(kafka)[0][2] == (("key", b"str"), ("value", b"str"))


def test_a_function_gets_the_value_alone(kafka):
    with open_producer(
        kafka, key_serializer=str.encode, value_serializer=lambda value: json.dumps(value).encode()
    ) as producer:
        with producer.transaction():
            producer.send("orders", {"id": 1}, key="k", headers={"h": "x"})
    assert written(kafka) == [(b"k", b'{"id": 1}', (("h", b"x"),))]


class Callable(Tagged):
    def __call__(self, value: Any) -> bytes:
        return b"other bytes"


class KafkaPythons:
    def serialize(self, topic, headers, data):
        return data


class Coroutine:
    async def serialize(self, topic: str, value: Any, headers: HeaderList) -> bytes:
        return b""


async def awaited(value: Any) -> bytes:
    return b""


class AwaitedCall:
    async def __call__(self, value: Any) -> bytes:
        return b""


@pytest.mark.parametrize(
    ("serializer", "told"),
    [
        (5, "a function from your value to bytes, or an object with a method serialize(topic,"),
        (Tagged, "it is a class; pass an instance, Tagged(...)"),
        (Callable(), "it can be called, and has a method `serialize` as well"),
        (KafkaPythons(), "cannot be called with topic, value and headers"),
        (Coroutine(), "it is asynchronous"),
        (awaited, "it is asynchronous"),
        (AwaitedCall(), "it is asynchronous"),
        ("io.confluent.kafka.serializers.KafkaAvroSerializer", "a Java class name cannot be used"),
    ],
)
def test_an_object_of_no_form_or_of_two_is_refused_before_anything_connects(serializer, told):
    message = refused(value_serializer=serializer)
    assert message.startswith("value_serializer=")
    assert told in message


def test_kafka_pythons_own_serializers_are_refused_and_not_called_in_the_wrong_order():
    assert "name its arguments so" in refused(key_serializer=JsonSerializer())


# --- failures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["key", "value"])
def test_a_serializer_that_raises_refuses_its_record_and_leaves_the_transaction_usable(
    kafka, field
):
    with open_producer(kafka, **{f"{field}_serializer": Failing()}) as producer:
        with producer.transaction() as txn:
            with pytest.raises(SerializationError) as caught:
                producer.send("orders", **{"value": b"v", field: 7})
            producer.send("orders", **{"key": b"good", "value": b"good", field: None})
    assert str(caught.value).startswith(
        f"{field}_serializer failed for topic 'orders' and a int: KeyError(7)"
    )
    assert isinstance(caught.value.__cause__, KeyError)
    assert txn.outcome == "committed"
    assert len(written(kafka)) == 1
    assert written(kafka)[0][2] == ()


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("text", "value_serializer returned a str for topic 'orders': it must return bytes"),
        (5, "returned a int for topic 'orders'"),
    ],
)
def test_a_serializer_that_returns_no_bytes_is_refused(kafka, made, told):
    with open_producer(kafka, value_serializer=lambda _: made) as producer:
        with producer.transaction():
            with pytest.raises(SerializationError, match=told):
                producer.send("orders", 1)
    assert written(kafka) == []


def test_a_function_that_returns_a_coroutine_is_refused_with_the_way_out(kafka):
    with open_producer(kafka, value_serializer=lambda value: awaited(value)) as producer:
        with producer.transaction():
            with pytest.raises(SerializationError, match=r"a coroutine .*: await it in"):
                producer.send("orders", 1)


def test_headers_that_a_serializer_spoils_are_refused_with_the_topic(kafka):
    class Spoils:
        def serialize(self, topic: str, value: Any, headers: Any) -> bytes:
            headers.append(("h", 5))
            return b""

    with open_producer(kafka, value_serializer=Spoils()) as producer:
        with producer.transaction():
            with pytest.raises(SerializationError, match=r"topic 'orders': headers\[0\] \('h'\)"):
                producer.send("orders", 1)


def test_a_serializer_may_raise_an_error_of_this_package(kafka):
    def refuse(value):
        raise RecordTooLargeError("no")

    with open_producer(kafka, value_serializer=refuse) as producer:
        with producer.transaction():
            with pytest.raises(RecordTooLargeError, match="no"):
                producer.send("orders", 1)


@pytest.mark.parametrize("made", [bytearray(b"x"), memoryview(b"x"), b"x"])
def test_bytes_like_results_are_written(kafka, made):
    with open_producer(kafka, value_serializer=lambda _: made) as producer:
        with producer.transaction():
            producer.send("orders", 1)
    assert written(kafka) == [(None, b"x", ())]


def test_a_wrong_topic_is_refused_before_a_serializer_is_called(kafka):
    serializer = Tagged()
    with open_producer(kafka, value_serializer=serializer) as producer:
        with producer.transaction():
            with pytest.raises(TypeError, match="topic must be a str"):
                producer.send(b"orders", 1)
    assert serializer.seen == []


# --- what a serializer may do -------------------------------------------------------------------


def test_ctrl_c_in_a_serializer_refuses_the_record_alone(kafka):
    def interrupted(value):
        if value == "now":
            signal.raise_signal(signal.SIGINT)
        return value.encode()

    with open_producer(kafka, value_serializer=interrupted) as producer:
        with producer.transaction() as txn:
            producer.send("orders", "before")
            with pytest.raises(KeyboardInterrupt):
                producer.send("orders", "now")
            producer.send("orders", "after")
    assert txn.outcome == "committed"
    assert [value for _, value, _ in written(kafka)] == [b"before", b"after"]


def test_a_serializer_may_send_a_record_of_its_own(kafka):
    kafka.create_topic("audit")

    class Audited:
        def serialize(self, topic: str, value: Any, headers: HeaderList) -> bytes:
            if topic != "audit":
                producer.send("audit", value)
            return bytes(value)

    with open_producer(kafka, value_serializer=Audited()) as producer:
        with producer.transaction():
            producer.send("orders", b"order")
    assert len(written(kafka)) == len(written(kafka, "audit")) == 1


def test_a_serializer_that_ends_the_transaction_has_its_record_refused(kafka):
    def ends(value):
        producer.commit_transaction()
        return value

    with open_producer(kafka, value_serializer=ends) as producer:
        producer.begin_transaction()
        with pytest.raises((IllegalStateError, TransactionAbortedError)):
            producer.send("orders", b"late")
    assert written(kafka) == []


@pytest.mark.parametrize("call", ["send", "send_batch"])
@pytest.mark.parametrize("is_batch_open", [False, True])
def test_a_record_does_not_land_in_the_transaction_after_the_one_it_was_serialized_in(
    kafka, call, is_batch_open
):
    def next_one(value):
        if value == b"late":
            producer.abort_transaction()
            producer.begin_transaction()
            if is_batch_open:
                producer.send("orders", b"first")
        return value

    with open_producer(kafka, value_serializer=next_one, linger_ms=60_000) as producer:
        producer.begin_transaction()
        with pytest.raises(TransactionAbortedError, match="or was serialized; it was not sent"):
            getattr(producer, call)("orders", b"late" if call == "send" else [b"late"])
        producer.send("orders", b"of the next one")
        producer.commit_transaction()
    expected = [b"first"] * is_batch_open + [b"of the next one"]
    assert [value for _, value, _ in written(kafka)] == expected


def test_a_record_whose_producer_was_closed_meanwhile_came_before(kafka):
    def closes(value):
        closer = threading.Thread(target=producer.close, args=(0,))
        closer.start()
        closer.join()
        return value

    producer = open_producer(kafka, value_serializer=closes)
    producer.begin_transaction()
    with pytest.raises(KafkaError, match="closed while the record was being serialized") as raised:
        producer.send("orders", b"late")
    assert raised.value.recovery == "restart"
    with pytest.raises(IllegalStateError, match="the producer is closed"):
        producer.send("orders", b"later")


def test_a_fork_in_a_serializer_is_refused_as_elsewhere(kafka):
    def forks(value):
        producer._refuse(refusals.forked)  # as a child finds it
        return value

    with open_producer(kafka, value_serializer=forks) as producer:
        producer.begin_transaction()
        with pytest.raises(ForkedProducerError):
            producer.send("orders", b"of the child")
        producer._refusal = None


def test_a_record_that_a_callback_loses_to_its_serializer_ends_the_transaction(kafka):
    def refuses(value):
        if value == "second":
            raise ValueError(value)
        return value.encode()

    with open_producer(kafka, value_serializer=refuses) as producer:
        producer.begin_transaction()
        producer.send("orders", "first", on_delivery=lambda *_: producer.send("orders", "second"))
        with pytest.raises(KafkaError, match="callback"):
            producer.commit_transaction()
        producer.abort_transaction()
    assert written(kafka) == []


@pytest.mark.parametrize("call", ["send", "send_batch"])
def test_a_record_that_is_refused_leaves_another_threads_place_in_the_queue_for_memory(
    monkeypatch, call
):
    serializing, waits, goes_on = threading.Event(), threading.Event(), threading.Event()

    def hold(value):
        if value == b"late":
            serializing.set()
            waits.wait(PATIENCE_S)
        return value

    client = LiveClient(topics={"topic": 3})
    use_live_clients(monkeypatch, lambda: client)
    outcomes: list[object] = []
    with TransactionalProducer("boot:9092", "txn", **SMALL, value_serializer=hold) as producer:
        producer.init_transactions()
        producer.begin_transaction()

        def send_late():
            with pytest.raises(TransactionAbortedError):
                producer.send("topic", b"late", partition=0)
            goes_on.set()

        late = threading.Thread(target=send_late)
        late.start()
        assert serializing.wait(PATIENCE_S)
        producer.abort_transaction()
        producer.begin_transaction()
        client.held.add(ApiKey.PRODUCE)
        for partition in (0, 1):
            producer.send("topic", b"x" * 16_000, partition=partition)
        wait = waiting._wait

        def wait_first(*arguments):
            if not goes_on.is_set():
                waits.set()
                goes_on.wait(PATIENCE_S)
                outcomes.append(len(producer._core._accumulator.pool.waiting))
                client.release(ApiKey.PRODUCE)
            return wait(*arguments)

        monkeypatch.setattr(waiting, "_wait", wait_first)
        value = b"x" * 16_000
        if call == "send":
            producer.send("topic", value, partition=2)
        else:
            producer.send_batch("topic", [value], partitions=2)
        late.join(PATIENCE_S)
        producer.commit_transaction()
    assert outcomes == [1]


def test_threads_serialize_side_by_side(kafka):
    both = threading.Barrier(2, timeout=10)

    def meet(value):
        both.wait()
        return value

    with open_producer(kafka, value_serializer=meet) as producer:
        with producer.transaction():
            other = threading.Thread(target=producer.send, args=("orders", b"1"))
            other.start()
            producer.send("orders", b"2")
            other.join()
    assert len(written(kafka)) == 2


# --- many records -------------------------------------------------------------------------------


def test_rows_are_serialized_with_their_headers(kafka):
    key, value = Tagged("key"), Tagged("value")
    with open_producer(kafka, key_serializer=key, value_serializer=value) as producer:
        with producer.transaction():
            producer.send_batch("orders", [1, None, 3], ["a", "b", None], [{"h": "x"}, None, None])
    assert written(kafka) == [
        (b"orders:a", b"orders:1", (("h", b"x"), ("key", b"str"), ("value", b"int"))),
        (b"orders:b", None, (("key", b"str"),)),
        (None, b"orders:3", (("value", b"int"),)),
    ]


def test_a_row_that_cannot_be_serialized_is_named_and_no_row_is_sent(kafka):
    with open_producer(kafka, value_serializer=lambda value: value.encode()) as producer:
        with producer.transaction() as txn:
            with pytest.raises(SerializationError, match=r"^row 1: value_serializer failed") as e:
                producer.send_batch("orders", ["a", 5])
            producer.send_batch("orders", ["good"])
    assert isinstance(e.value.__cause__, AttributeError)
    assert txn.outcome == "committed"
    assert [value for _, value, _ in written(kafka)] == [b"good"]


def test_tables_are_not_serialized(kafka):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")
    with open_producer(kafka, value_serializer=Failing()) as producer:
        with producer.transaction():
            producer.send_arrow("orders", pa.table({"value": ["text"]}))
    assert written(kafka) == [(None, b"text", ())]


def test_a_producer_for_asyncio_serializes_each_record_once(kafka):
    serializer = Tagged()

    async def main() -> None:
        async with kafka.async_producer("t", value_serializer=serializer) as producer:
            async with producer.transaction():
                # The topic is not known yet, so the first one waits, and the others behind it.
                await asyncio.gather(*(producer.send("orders", number) for number in range(3)))
                await producer.send_batch("orders", [3])

    asyncio.run(main())
    assert sorted(value for _, value, _ in serializer.seen) == [0, 1, 2, 3]
    assert len(written(kafka)) == 4


# --- the fast path ------------------------------------------------------------------------------


@needs_compiled
def test_bytes_without_serializers_keep_the_compiled_path(make, monkeypatch):
    slow = []
    way = TransactionalProducer._send_any

    def note(*given):
        slow.append(given)
        return way(*given)

    monkeypatch.setattr(TransactionalProducer, "_send_any", note)
    with make(linger_ms=10_000) as one:
        one.init_transactions()
        with one.transaction():
            for _ in range(5):
                one.send("topic", b"bytes")
    assert len(slow) <= 2  # the first ones wait for the topic, and begin the batch
