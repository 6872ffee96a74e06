"""The fast path of `send` does the same as the slow path, or nothing at all."""

from __future__ import annotations

import gc
import threading
from collections import OrderedDict, deque
from functools import partial
from importlib import import_module
from itertools import chain
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.live_client import LiveClient, use_live_clients
from tests.needs import needs_compiled
from txnproducer import TransactionalProducer
from txnproducer._core.batches.partitioner import partition_for_key
from txnproducer._protocol.messages import ApiKey, ProduceRequest
from txnproducer._record import read_batches
from txnproducer._record.implementation import IMPL
from txnproducer._sync.core_lock import new_lock, new_loop_priority
from txnproducer._wire.platform import SYSTEM
from txnproducer.errors import IllegalStateError, KafkaError

compiled: Any
# It is made for the compiled core, and refuses to be imported beside the interpreted one.
compiled = import_module("txnproducer._shell._fast_send") if IMPL == "cython" else None

pytestmark = needs_compiled
PATIENCE_S = 10.0
KEYS = [b"key-%d" % number for number in range(20)]
LONG_KEY = b"k" * 100


class Bytes(bytes):
    """A subclass, which may do anything."""


class Text(str):
    """A subclass, which may do anything."""

    __slots__ = ()


class Number(int):
    """A subclass, which may do anything."""


class Pair(tuple):
    """A subclass, which may do anything."""

    __slots__ = ()


@pytest.fixture
def clients(monkeypatch):
    """Return the clients of the producers that were made, in order."""
    clients: list[LiveClient] = []

    def make_client():
        clients.append(LiveClient(topics={"topic": 3}))
        return clients[-1]

    use_live_clients(monkeypatch, make_client)
    return clients


@pytest.fixture
def make(clients):
    made = []

    def make_producer(**settings: Any):
        settings = {"max_block_ms": 10_000, "linger_ms": 60_000, **settings}
        one = TransactionalProducer("boot:9092", "txn", **settings)
        made.append(one)
        one.init_transactions()
        one.partitions_for("topic")
        one.begin_transaction()
        return one

    yield make_producer
    for one in made:
        one.close(0)


@pytest.fixture
def ready(make):
    """Return a producer with open batches for each partition, and for records without one."""
    one = make(batch_size=16_384)
    open_batches(one)
    return one


def open_batches(one):
    for partition in range(3):
        one.send("topic", b"first", partition=partition)
    one.send("topic", b"first")


def slow_path(one, topic, value=None, key=None, headers=None, partition=None, **more):
    more = {"timestamp_ms": None, "on_delivery": None, **more}
    return one._send_any(topic, value, key, headers, partition, *more.values())


class WatchedSend:
    """A producer's compiled `send`, and whether each record took the fast path.

    Args:
        one: the producer.
        long_way: its method that only the other records reach.
    """

    def __init__(self, one, long_way="_send_any"):
        self.is_fast: list[bool] = []
        self._long_way = getattr(one, long_way)
        setattr(one, long_way, self._note)
        self.send = one.send

    def _note(self, *arguments):
        self.is_fast[-1:] = [False]
        return self._long_way(*arguments)

    def __call__(self, *arguments, **more):
        self.is_fast.append(True)
        return self.send(*arguments, **more)


def written(client):
    """Return all records by partition, without those that opened the batches."""
    records: dict[int, list[Any]] = {}
    for request in client.requests:
        if isinstance(request.body, ProduceRequest):
            for part in request.body.partitions:
                batches = records.setdefault(part.topic_partition.partition, [])
                for batch in read_batches(part.records):
                    batches += [
                        (record.key, record.value, record.headers, record.timestamp_ms)
                        for record in batch
                        if record.value != b"first"
                    ]
    return records


FAST: list[dict[str, Any]] = [
    {"value": b"v"},
    {"value": None},
    {"value": b""},
    {"value": b"v", "key": b""},
    *({"value": b"v", "key": key} for key in KEYS),
    {"value": b"v", "key": LONG_KEY},
    {"value": b"v", "key": b"k", "partition": 1},
    {"value": b"v", "partition": 0},
    {"value": b"v", "timestamp_ms": 0},
    {"value": b"v", "timestamp_ms": 2**62 - 1},
    {"value": b"v", "headers": [("a", b"1"), ("b", None)]},
    {"value": b"v", "headers": (("a", b"1"), ("b", b""))},
    {"value": b"v", "headers": []},
    {"value": b"v", "headers": ()},
    {"value": b"v", "headers": {}},
    {"value": b"v", "headers": {"a": b"1", "b": None}},
    {"value": b"v", "headers": {"a": "1", "b": b"2", "c": ""}},
    {"value": b"v", "headers": [("a", b"1"), ("b", "2"), ("b", "3")]},
    {"value": b"x" * 5_000, "key": b"k", "headers": [("n", b"2")], "timestamp_ms": 7},
]


def test_fast_records_come_out_as_on_the_slow_path(make, clients):
    seen: list[Any] = []
    for is_compiled in (True, False):
        one = make()
        one._core._accumulator._rng.seed(1)  # for the choice of a partition by load
        open_batches(one)
        send: Any = WatchedSend(one) if is_compiled else partial(slow_path, one)
        told: list[Any] = []

        def tell(metadata, error, told=told):
            told.append((metadata, error))

        futures = [
            send("topic", **{"timestamp_ms": 1_000, **more}, on_delivery=tell) for more in FAST
        ]
        assert not is_compiled or send.is_fast == [True] * len(FAST)
        one.commit_transaction()
        results = [future.result(0) for future in futures]
        assert sorted(told) == sorted((result, None) for result in results)
        seen.append((written(clients[-1]), results, [type(future) for future in futures]))
    assert seen[0] == seen[1]
    for result, more in zip(seen[0][1], FAST, strict=True):
        if "key" in more and "partition" not in more:
            assert result.partition == partition_for_key(more["key"], 3)


def test_a_producers_send_is_the_compiled_one():
    assert TransactionalProducer.send is compiled.send


def test_arguments_go_by_position_and_by_name(ready, clients):
    noted = WatchedSend(ready)
    noted("topic", b"v", b"k", [("a", b"1")], 0, 5, None)
    noted(topic="topic", timestamp_ms=5, partition=0, headers=[("a", b"1")], key=b"k", value=b"v")
    assert noted.is_fast == [True, True]
    ready.commit_transaction()
    assert written(clients[0])[0] == [(b"k", b"v", (("a", b"1"),), 5)] * 2


def test_a_record_without_time_gets_the_clocks(ready):
    before = SYSTEM.wall_clock_ms()
    noted = WatchedSend(ready)
    future = noted("topic", b"v")
    after = SYSTEM.wall_clock_ms()
    assert noted.is_fast == [True]
    assert before <= future.metadata().timestamp_ms <= after


def test_ignored_keys_decide_nothing(make):
    one = make(partitioner_ignore_keys=True)
    open_batches(one)
    noted = WatchedSend(one)
    futures = [noted("topic", b"v", key=key) for key in KEYS]
    assert noted.is_fast == [True] * 20
    assert len({future.metadata().partition for future in futures}) == 1


@pytest.mark.parametrize("value", [b"1", "1"])
def test_headers_are_copied(ready, clients, value):
    pairs, mapping = [("a", value)], {"a": value}
    ready.send("topic", b"v", headers=pairs, partition=0)
    ready.send("topic", b"v", headers=mapping, partition=0)
    assert pairs == [("a", value)]
    pairs.append(("b", b"2"))
    mapping["b"] = b"2"
    ready.commit_transaction()
    assert [record[2] for record in written(clients[0])[0]] == [(("a", b"1"),)] * 2


def test_a_dict_of_headers_that_grows_meanwhile_is_sent_as_it_was(ready, clients):
    headers = {f"h{number}": b"1" for number in range(50)}

    def grow(phase, info):
        headers[f"new {len(headers)}"] = b"2"

    usual = gc.get_threshold()
    gc.callbacks.append(grow)  # stands for another thread
    try:
        gc.set_threshold(1)
        ready.send("topic", b"v", headers=headers, partition=0)
    finally:
        gc.set_threshold(*usual)
        gc.callbacks.remove(grow)
    assert len(headers) > 50
    ready.commit_transaction()
    assert len(written(clients[0])[0][0][2]) >= 50


# --- records that are serialized first


SERIALIZED: list[dict[str, Any]] = [
    {"value": "text", "key": "key"},
    {"value": None, "key": "key"},
    {"value": "", "headers": {"a": "1"}},
    {"value": "text", "headers": [("a", b"1")], "timestamp_ms": 5},
    {"value": "text", "partition": 1, "key": None},
]


def test_serialized_records_are_appended_as_fast(make, clients):
    one = make(value_serializer=str.encode, key_serializer=str.encode)
    for partition in range(3):
        one.send("topic", "first", partition=partition)
    one.send("topic", "first")
    send = WatchedSend(one, "_append")
    for more in SERIALIZED:
        send("topic", **{"timestamp_ms": 1_000, **more})
    assert send.is_fast == [True] * len(SERIALIZED)
    one.commit_transaction()
    found = sorted(chain(*written(clients[0]).values()), key=repr)
    assert found == sorted(
        (
            (
                more.get("key") and more["key"].encode(),
                None if more["value"] is None else more["value"].encode(),
                (("a", b"1"),) if more.get("headers") else (),
                more.get("timestamp_ms", 1_000),
            )
            for more in SERIALIZED
        ),
        key=repr,
    )


def test_a_serialized_record_without_an_open_batch_goes_the_long_way_once(make, clients):
    made: list[str] = []

    def noted(value):
        made.append(value)
        return value.encode()

    one = make(value_serializer=noted)
    send = WatchedSend(one, "_append")
    send("topic", "v", partition=2)
    assert send.is_fast == [False]
    one.commit_transaction()
    assert made == ["v"]
    assert [record[1] for record in written(clients[0])[2]] == [b"v"]


# --- records for the slow path


@pytest.mark.parametrize(
    "more",
    [
        {"value": bytearray(b"v")},
        {"value": memoryview(b"v")},
        {"value": Bytes(b"v")},
        {"value": b"v", "key": bytearray(b"k")},
        {"value": b"v", "key": Bytes(b"k")},
        {"value": b"v", "headers": [["a", b"1"]]},
        {"value": b"v", "headers": [("a", bytearray(b"1"))]},
        {"value": b"v", "headers": [("a", Bytes(b"1"))]},
        {"value": b"v", "headers": [("a", Text("1"))]},
        {"value": b"v", "headers": MappingProxyType({"a": b"1"})},
        {"value": b"v", "headers": OrderedDict(a="1")},
        {"value": b"v", "headers": [(Text("a"), b"1")]},
        {"value": b"v", "headers": [Pair(("a", b"1"))]},
        {"value": b"v", "headers": deque([("a", b"1")])},
        {"value": b"v", "headers": (header for header in [("a", b"1")])},
        {"value": b"v", "partition": Number(1)},
        {"value": b"v", "timestamp_ms": Number(5)},
        {"value": b"v", "partition": np.int32(1), "timestamp_ms": np.int64(5)},
        {"value": b"v", "timestamp_ms": 2**62},
        {"topic": Text("topic"), "value": b"v"},
        {"value": b"x" * 20_000},
        {"topic": "other", "value": b"v"},
    ],
)
def test_any_other_record_takes_the_slow_path_and_arrives(ready, clients, more):
    with ready._lock:
        clients[0].topics["other"] = 1
    noted = WatchedSend(ready)
    arguments = {"topic": "topic", **more}
    future = noted(**arguments)
    assert noted.is_fast == [False]
    ready.commit_transaction()
    assert future.result(0).serialized_value_size == len(more["value"])
    [record] = chain(*written(clients[0]).values())
    assert record[1] == bytes(more["value"])
    assert record[0] == (bytes(more["key"]) if "key" in more else None)
    assert record[2] == ((("a", b"1"),) if "headers" in more else ())


@pytest.mark.parametrize("header", [("\u00e4", b"1"), ("a", "\u00e4"), ("a", "\u4e2d")])
def test_a_header_that_is_not_ascii_goes_the_long_way_and_arrives(ready, clients, header):
    noted = WatchedSend(ready)
    noted("topic", b"v", headers=[("first", "1"), header], partition=0)
    assert noted.is_fast == [False]
    ready.commit_transaction()
    name, value = header
    value = value.encode() if isinstance(value, str) else value
    assert written(clients[0])[0][0][2] == (("first", b"1"), (name, value))


def test_a_generator_of_headers_is_not_used_up_before_the_long_way(ready, clients):
    ready.send("topic", b"v", headers=(pair for pair in [("a", b"1")]), partition=0)
    ready.commit_transaction()
    assert written(clients[0])[0][0][2] == (("a", b"1"),)


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"value": "text"}, TypeError, r"value must be bytes, not str: pass value\.encode\(\)"),
        ({"value": 5}, TypeError, "value must be bytes, not int"),
        ({"value": b"v", "key": "text"}, TypeError, r"key\.encode\(\).*key_serializer="),
        ({"value": b"v", "headers": {"a": 1}}, TypeError, r"headers\[0\] \('a'\).*not int"),
        ({"value": b"v", "headers": "text"}, TypeError, "headers must be a mapping"),
        ({"value": b"v", "headers": [("a",)]}, TypeError, r"headers\[0\] must be a pair"),
        ({"value": b"v", "headers": [("a", b"1", 2)]}, TypeError, r"headers\[0\] must be a pair"),
        ({"value": b"v", "headers": [("a", 1)]}, TypeError, r"headers\[0\] \('a'\).*not int"),
        ({"value": b"v", "headers": {"a": "\ud83d"}}, ValueError, r"headers\[0\] \('a'\).*surrog"),
        ({"value": b"v", "headers": [("a", b"1"), (b"b", b"2")]}, TypeError, r"headers\[1\]"),
        ({"value": b"v", "partition": True}, TypeError, "partition must be an int"),
        ({"value": b"v", "partition": "0"}, TypeError, "partition must be an int"),
        ({"value": b"v", "partition": 0.0}, TypeError, "partition must be an int"),
        ({"value": b"v", "partition": -1}, ValueError, "partition must not be negative: -1"),
        ({"value": b"v", "timestamp_ms": True}, TypeError, "timestamp_ms must be an int"),
        ({"value": b"v", "timestamp_ms": 1.5}, TypeError, "timestamp_ms must be an int"),
        ({"value": b"v", "timestamp_ms": -1}, ValueError, "timestamp_ms must not be negative"),
        ({"value": b"v", "timestamp_ms": 2**63 - 1}, ValueError, "since the epoch"),
        ({"value": b"v", "timestamp_ms": 2**70}, ValueError, "since the epoch"),
        ({"value": b"v", "topic": b"topic"}, TypeError, "topic must be a str, not bytes"),
        ({"value": b"v", "topic": None}, TypeError, "topic must be a str, not NoneType"),
        ({"value": b"v", "topic": ""}, ValueError, "topic must not be empty"),
        ({"value": b"v", "headers": [("\ud83d", b"1")]}, ValueError, r"headers\[0\].*surrogates"),
        ({"value": b"v", "headers": 0}, TypeError, "headers must be a mapping"),
    ],
)
def test_a_wrong_argument_is_refused_as_on_the_long_way_and_changes_nothing(
    ready, clients, more, error, message
):
    with pytest.raises(error, match=message):
        ready.send(**{"topic": "topic", "partition": 0, **more})
    assert ready.transaction_state == "IN_TRANSACTION"
    ready.send("topic", b"good", partition=0)
    ready.commit_transaction()
    assert [record[1] for record in written(clients[0])[0]] == [b"good"]


def test_a_partition_that_no_number_is_too_large_for_is_none_that_is_open(make):
    one = make(max_block_ms=50)
    open_batches(one)
    noted = WatchedSend(one)
    future = noted("topic", b"v", partition=2**70)
    assert noted.is_fast == [False]
    assert isinstance(future.exception(0), KafkaError)


@pytest.mark.parametrize("setting", ["value_serializer", "key_serializer"])
def test_serializers_are_used(make, clients, setting):
    one = make(**{setting: lambda data: data + b"!"})
    for _ in range(2):
        one.send("topic", b"v", key=b"k", partition=0)
    one.commit_transaction()
    expected = (b"k", b"v!") if setting == "value_serializer" else (b"k!", b"v")
    assert [record[:2] for record in written(clients[0])[0]] == [expected] * 2


# --- when it is not the time


def test_a_transaction_that_ends_or_has_failed_takes_no_fast_record(ready, clients):
    clients[0].held.add(ApiKey.PRODUCE)
    ready._max_block_s = 0.01
    with pytest.raises(KafkaError):
        ready.commit_transaction()
    noted = WatchedSend(ready)
    with pytest.raises(IllegalStateError, match="commit"):
        noted("topic", b"too late", partition=0)
    assert noted.is_fast == [False]
    with ready._lock:
        clients[0].release(ApiKey.PRODUCE)
    ready._max_block_s = PATIENCE_S
    ready.commit_transaction()
    with pytest.raises(IllegalStateError, match="begin_transaction"):
        ready.send("topic", b"too late", partition=0)
    assert written(clients[0]).get(0, []) == []


@pytest.mark.parametrize("end", ["close", "disown"])
def test_a_producer_that_has_ended_refuses_also_by_a_send_that_was_kept(ready, end):
    kept = ready.send
    kept("topic", b"v", partition=0)
    batch = ready._core._accumulator.topics["topic"].queues[0].open_batch
    count = batch.record_count
    getattr(ready, end)()
    for send in (ready.send, kept):
        with pytest.raises(KafkaError, match="closed" if end == "close" else "Make a producer"):
            send("topic", b"v", partition=0)
    if end == "disown":
        assert batch.record_count == count
        ready._refusal = None


def test_a_core_that_was_closed_has_no_batch_for_a_fast_record(ready):
    noted = WatchedSend(ready)
    ready.close(0)
    compiled.FastSender._enable_fast_path(
        ready, ready._core, ready._lock, ready._io.priority, None
    )
    with pytest.raises(IllegalStateError, match="closed"):
        noted("topic", b"v", partition=0)
    assert noted.is_fast == [False]


def test_a_subclass_that_sends_in_its_own_way_does(clients):
    class Shouting(TransactionalProducer):
        def send(self, topic, value=None, *arguments, **more):
            return super().send(topic, value + b"!", *arguments, **more)

    with Shouting("boot:9092", enable_idempotence=False, acks=1) as one:
        sent = [one.send("topic", b"v", partition=0) for _ in range(2)]
    assert [future.result(0).serialized_value_size for future in sent] == [2, 2]


def test_the_lock_is_held_while_a_record_is_appended_and_free_afterwards(ready):
    ready._lock.acquire()
    sent = threading.Event()

    def work():
        ready.send("topic", b"v", partition=0)
        sent.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert not sent.wait(0.05)  # in which a call that need not wait would have returned
    ready._lock.release()
    thread.join(PATIENCE_S)
    assert sent.is_set()
    with pytest.raises(ValueError, match="since the epoch"):
        ready.send("topic", b"v", None, None, 0, 2**70, None)
    # The loop may have it for a moment. A thread that has it already would be refused.
    assert ready._lock.acquire(timeout=PATIENCE_S)
    ready._lock.release()


def test_the_fast_path_accepts_only_its_own_types(ready):
    lock, priority = new_lock(), new_loop_priority()
    places = [SimpleNamespace(fast_append=other) for other in (None, object())]
    given: list[tuple[Any, ...]] = [(None, lock, priority)]
    given += [(core, lock, priority) for core in places]
    given += [(ready._core, None, priority), (ready._core, lock, object())]
    for arguments in given:
        with pytest.raises(TypeError):
            compiled.FastSender()._enable_fast_path(*arguments, None)
