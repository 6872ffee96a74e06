"""Questions to a cluster have a time bound, are repeated if it helps, and raise our errors."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
import time
from types import SimpleNamespace
from typing import ClassVar

import pytest
from kafka import errors as wire_errors
from kafka.net.inet import KafkaNetSocket
from kafka.net.selector import NetworkSelector

from txnproducer import admin
from txnproducer.admin import _connection, _sockets
from txnproducer.cli._readback import count_topic
from txnproducer.errors import (
    DisconnectError,
    KafkaError,
    KafkaTimeoutError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)


class FakeClient:
    """A client with scripted answers: values, or errors to raise. The last entry is repeated."""

    script: ClassVar[dict[str, list]] = {}
    calls: ClassVar[list[tuple]] = []

    def __init__(self, **config):
        self._say("connect", config)

    def _say(self, name, *arguments):
        self.calls.append((name, *arguments))
        entries = self.script.get(name, [None])
        answer = entries.pop(0) if len(entries) > 1 else entries[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def describe_cluster(self):
        return {"brokers": self._say("describe_cluster")}

    def describe_topics(self, topics=None):
        return self._say("describe_topics")

    def create_topics(self, topics, timeout_ms):
        return self._say("create_topics", topics)

    def wait_for_topics(self, topics, timeout_ms):
        return self._say("wait_for_topics")

    def list_partition_offsets(self, places, timeout_ms):
        return self._say("list_partition_offsets", places)

    def delete_topics(self, topics, timeout_ms):
        return self._say("delete_topics", topics)

    def list_transactions(self):
        return self._say("list_transactions")

    def close(self):
        self._say("close")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> type[FakeClient]:
    monkeypatch.setattr(FakeClient, "script", {})
    monkeypatch.setattr(FakeClient, "calls", [])
    monkeypatch.setattr(_connection, "KafkaAdminClient", FakeClient)
    monkeypatch.setattr(_connection, "POLL_SECONDS", 0.0)
    return FakeClient


def called(client: type[FakeClient], name: str) -> int:
    return sum(1 for call in client.calls if call[0] == name)


def topic(leaders: dict[int, int], error_code: int = 0, **rest) -> dict:
    partitions = [
        {
            "partition_index": partition,
            "leader_id": leader,
            "replica_nodes": [1, 2, 3],
            "isr_nodes": rest.get("isr", [1, 2, 3]),
        }
        for partition, leader in leaders.items()
    ]
    return {"name": "orders", "error_code": error_code, "partitions": partitions}


def test_a_topic_is_created_with_the_clusters_own_replication_and_waited_for(client):
    admin.create_topic("a:1,b:2", "orders", partitions=3, config={"retention.ms": "1"})
    wanted = {"num_partitions": 3, "replication_factor": -1, "configs": {"retention.ms": "1"}}
    assert ("create_topics", {"orders": wanted}) in client.calls
    assert called(client, "wait_for_topics") == 1
    assert client.calls[0][1]["bootstrap_servers"] == ["a:1", "b:2"]
    assert client.calls[-1] == ("close",)


@pytest.mark.parametrize(
    "not_yet", [wire_errors.NotLeaderForPartitionError, wire_errors.UnknownTopicOrPartitionError]
)
def test_a_topic_is_there_when_its_leaders_say_so(client, not_yet):
    # Metadata know a leader before it does itself; until then it refuses records.
    client.script["list_partition_offsets"] = [not_yet(), not_yet(), None]
    admin.create_topic("a:1", "orders", partitions=2)
    asked = [call[1] for call in client.calls if call[0] == "list_partition_offsets"]
    assert [sorted(place.partition for place in places) for places in asked] == [[0, 1]] * 3
    assert called(client, "create_topics") == 1


def test_security_settings_and_the_time_reach_the_connection(client):
    admin.create_topic("a:1", "orders", timeout=2.5, security_protocol="SSL")
    config = client.calls[0][1]
    assert config["security_protocol"] == "SSL"
    assert config["bootstrap_timeout_ms"] == config["request_timeout_ms"] == 2500


def test_a_refusal_is_ours_and_the_connection_is_closed(client):
    client.script["create_topics"] = [wire_errors.TopicAlreadyExistsError("orders")]
    with pytest.raises(TopicExistsError):
        admin.create_topic("a:1", "orders")
    assert called(client, "create_topics") == 1
    assert called(client, "close") == 1


@pytest.mark.parametrize(
    "error",
    [
        wire_errors.TopicAuthorizationFailedError("orders"),
        wire_errors.IncompatibleBrokerVersion("too old"),
        wire_errors.UnsupportedCodecError("unknown"),
    ],
)
def test_a_refusal_is_named_once(client, error):
    client.script["create_topics"] = [error]
    with pytest.raises(KafkaError) as raised:
        admin.create_topic("a:1", "orders")
    assert str(raised.value).count(type(error).__name__) == 1


def test_a_topic_that_was_agreed_to_is_not_created_twice_when_the_connection_breaks(client):
    client.script["wait_for_topics"] = [wire_errors.KafkaConnectionError("gone"), None]
    admin.create_topic("a:1", "orders")
    assert called(client, "create_topics") == 1
    assert called(client, "wait_for_topics") == 2


@pytest.mark.parametrize(
    "gone",
    [
        wire_errors.KafkaConnectionError("refused"),
        wire_errors.NodeNotReadyError(1),
        # The cluster names its controller before it lists it among its brokers.
        wire_errors.UnknownBrokerIdError(1),
        RuntimeError("Failed to find active controller id!"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_another_broker_is_asked_when_the_first_is_gone(client, gone):
    client.script["describe_cluster"] = [gone, [{"broker_id": 2}, {"broker_id": 1}]]
    assert admin.broker_ids("a:1") == [1, 2]
    assert called(client, "connect") == 2


@pytest.mark.parametrize(
    ("bug", "is_ours"), [(wire_errors.IllegalStateError("x"), True), (RuntimeError("x"), False)]
)
def test_an_error_that_does_not_pass_is_not_retried(client, bug, is_ours):
    client.script["describe_cluster"] = [bug]
    with pytest.raises(KafkaError if is_ours else RuntimeError, match="x"):
        admin.broker_ids("a:1", timeout=30)
    assert called(client, "connect") == 1


def test_a_cluster_that_is_gone_is_given_up_in_time(client):
    client.script["describe_cluster"] = [wire_errors.KafkaConnectionError("refused")]
    with pytest.raises(DisconnectError):
        admin.broker_ids("a:1", timeout=0.02)


def test_a_cluster_that_does_not_answer_is_asked_once(client):
    client.script["connect"] = [wire_errors.KafkaTimeoutError("no broker")]
    with socket.create_server(("127.0.0.1", 0)) as accepts:
        here = f"127.0.0.1:{accepts.getsockname()[1]}"
        with pytest.raises(
            KafkaTimeoutError, match=f"{here} did not answer in time: a wrong pass"
        ):
            admin.broker_ids(f"127.0.0.1:1,{here}", timeout=30)
    assert called(client, "connect") == 1


def test_each_address_that_cannot_be_reached_has_its_reason(client):
    client.script["connect"] = [wire_errors.KafkaTimeoutError("no broker")]
    with pytest.raises(KafkaTimeoutError) as told:
        admin.broker_ids("127.0.0.1:1,[::1]:1", timeout=30)
    text = str(told.value)
    assert "did not answer in time: cannot connect to 127.0.0.1:1 ([Errno" in text
    assert "; cannot connect to [::1]:1 ([Errno" in text
    assert "password" not in text
    client.script["connect"] = [wire_errors.KafkaTimeoutError("no broker")]
    with pytest.raises(KafkaTimeoutError, match="in time: a wrong password"):
        admin.broker_ids("127.0.0.1:1", timeout=30, proxy_url="socks5://proxy")


def test_a_fenced_broker_does_not_count(client):
    client.script["describe_cluster"] = [
        [{"broker_id": 1, "is_fenced": False}, {"broker_id": 2, "is_fenced": True}]
    ]
    assert admin.broker_ids("a:1") == [1]


def test_brokers_are_waited_for_until_they_are_as_expected(client):
    one, two = [{"broker_id": 1}], [{"broker_id": 1}, {"broker_id": 2}]
    client.script["describe_cluster"] = [one, one, two]
    assert admin.wait_for_brokers("a:1", {1, 2}.issubset) == [1, 2]
    assert called(client, "connect") == 1


def test_brokers_that_do_not_come_are_reported_with_those_that_are_there(client):
    client.script["describe_cluster"] = [[{"broker_id": 1}]]
    with pytest.raises(KafkaTimeoutError, match=r"brokers are \[1\]"):
        admin.wait_for_brokers("a:1", {1, 2}.issubset, timeout=0.02)


def test_the_leader_of_a_partition_is_found(client):
    client.script["describe_topics"] = [[topic({0: 2, 1: 3})]]
    assert admin.leader_of("a:1", "orders", 1) == 3


def test_a_topic_not_yet_known_to_one_broker_is_asked_for_again(client):
    client.script["describe_topics"] = [[topic({}, error_code=3)], [topic({0: 2})]]
    assert admin.leader_of("a:1", "orders") == 2


@pytest.mark.parametrize("answer", [topic({}, error_code=3), topic({0: 1})])
def test_a_partition_that_is_not_there_is_refused(client, answer):
    client.script["describe_topics"] = [[answer]]
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.leader_of("a:1", "orders", 5, timeout=0.02)


def test_replicas_are_waited_for_until_all_are_in_sync(client):
    client.script["describe_cluster"] = [[{"broker_id": each} for each in (1, 2, 3)]]
    client.script["describe_topics"] = [[topic({0: 1}, isr=[1, 2])], [topic({0: 1})]]
    admin.wait_for_replicas("a:1", 3)
    assert called(client, "describe_topics") == 2


def test_a_replica_that_stays_out_of_sync_is_named(client):
    client.script["describe_cluster"] = [[{"broker_id": each} for each in (1, 2, 3)]]
    client.script["describe_topics"] = [[topic({0: 1}, isr=[1, 2])]]
    with pytest.raises(KafkaTimeoutError, match="orders-0"):
        admin.wait_for_replicas("a:1", 3, timeout=0.02)


@pytest.mark.parametrize(
    ("text", "value"),
    # Values of Java's String.hashCode, by its definition worked out by hand or well known.
    [("", 0), ("a", 97), ("ab", 97 * 31 + 98), ("polygenelubricants", -(2**31)), ("😀", 1772899)],
)
def test_the_hash_is_javas(text, value):
    assert admin.java_hash(text) == value


def test_the_coordinator_of_an_id_leads_the_partition_that_its_hash_names(client):
    client.script["describe_topics"] = [[topic({0: 1, 1: 2, 2: 3})]]
    assert admin.coordinator_of("a:1", "a") == 97 % 3 + 1
    # The one hash whose absolute value does not fit: Kafka takes 0.
    assert admin.coordinator_of("a:1", "polygenelubricants") == 1


def test_a_refused_connection_leaves_no_socket_to_the_garbage_collector(recwarn):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(KafkaError):
        admin.broker_ids(f"127.0.0.1:{port}", timeout=0.2)
    gc.collect()
    assert [str(each.message) for each in recwarn if each.category is ResourceWarning] == []


def test_a_silent_broker_leaves_no_thread_and_no_socket(recwarn):
    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(KafkaTimeoutError):
            admin.broker_ids(f"127.0.0.1:{port}", timeout=0.2)
    assert set(threading.enumerate()) - before == set()
    gc.collect()
    assert [str(each.message) for each in recwarn if each.category is ResourceWarning] == []


def test_a_consumer_that_finds_no_broker_leaves_no_thread_and_no_socket(recwarn):
    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(KafkaTimeoutError, match="no broker of"):
            count_topic(address, "orders", by="id", timeout=0.2)
    assert set(threading.enumerate()) - before == set()
    gc.collect()
    assert [str(each.message) for each in recwarn if each.category is ResourceWarning] == []


@pytest.mark.parametrize(("begins_s", "runs_s"), [(0.3, 0.0), (0.0, 0.3)])
def test_an_interrupt_in_the_start_of_a_clients_thread_leaves_no_thread(
    monkeypatch, begins_s, runs_s
):
    """The thread begins, or reaches its loop, while its client is being closed."""
    started = []

    def start(loop):
        def run():
            time.sleep(runs_s)
            loop.run_forever()

        loop._io_thread = threading.Thread(target=run, daemon=True)
        started.extend([loop._io_thread, threading.Timer(begins_s, loop._io_thread.start)])
        started[1].start()
        raise KeyboardInterrupt

    monkeypatch.setattr(NetworkSelector, "start", start)
    with pytest.raises(KeyboardInterrupt):
        admin.broker_ids("127.0.0.1:1", timeout=0.2)
    for thread in reversed(started):
        thread.join(5)
    assert not started[0].is_alive()


def test_a_client_whose_thread_hangs_is_not_waited_for(monkeypatch):
    """As while the system looks a name up: the thread ends when that does."""
    real, looked_up, started = NetworkSelector.start, threading.Event(), []

    def start(loop):
        real(loop)
        started.extend([loop, loop._io_thread])
        loop.call_soon_threadsafe(lambda: looked_up.wait(30))
        raise KeyboardInterrupt

    monkeypatch.setattr(NetworkSelector, "start", start)
    monkeypatch.setattr(_sockets, "_LONGEST_START_S", 0.1)
    with pytest.raises(KeyboardInterrupt):
        admin.broker_ids("127.0.0.1:1", timeout=0.2)
    loop, thread = started
    assert thread.is_alive()
    looked_up.set()
    thread.join(5)
    assert not thread.is_alive()
    loop.close()


def test_a_socket_that_its_client_loses_sight_of_is_closed_with_the_question(monkeypatch):
    # As when a connection is made while another thread closes the client.
    class Forgetful(FakeClient):
        def __init__(self, **config):
            way = KafkaNetSocket(config["proxy_url"])
            connecting = way.sock_connect(None, lost, server.getsockname())
            with contextlib.suppress(StopIteration):
                connecting.send(None)

    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as lost:
        monkeypatch.setattr(_connection, "KafkaAdminClient", Forgetful)
        with admin.connect("nowhere:1"):
            assert lost.getpeername() == server.getsockname()
        assert lost.fileno() == -1


def test_the_transactional_ids_of_all_coordinators_are_returned(client):
    listings = {1: [SimpleNamespace(transactional_id="b")], 2: []}
    listings[3] = [SimpleNamespace(transactional_id="a")]
    loading = wire_errors.CoordinatorLoadInProgressError()
    client.script["list_transactions"] = [loading, listings]
    assert admin.transactional_ids("a:1") == ["a", "b"]
