"""The loop of an in-memory Kafka: its clock, interrupts, hung-up connections, failures."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import random
import signal
import socket
import ssl
import threading
import time

import pytest

from tests.server.bench import Bench, init_request
from tests.waiting import wait_until
from txnproducer._broker.cluster import BrokerCluster, ClusterOptions
from txnproducer._broker.transaction_coordinator import TransactionCoordinator
from txnproducer._protocol.messages import ApiKey
from txnproducer._server import connection
from txnproducer._server.script import Fault, ScriptedFault
from txnproducer.testing._cluster_call import ClusterCall
from txnproducer.testing._memory_peer import Peer
from txnproducer.testing._memory_server import MemoryServer

DAYS_30_NS = 30 * 86_400 * 10**9


@pytest.fixture
def server():
    made = MemoryServer(BrokerCluster(ClusterOptions(), random.Random(1)))
    yield made
    made.close()


# --- time ------------------------------------------------------------------------------------


def test_the_models_time_begins_with_the_server(monkeypatch):
    """The model has a check for every 200 ms: 30 days of them would take minutes."""
    checks: list[int] = []

    def check(self, now_ms):
        checks.append(now_ms)
        return []

    monkeypatch.setattr(TransactionCoordinator, "abort_timed_out", check)
    cluster = BrokerCluster(ClusterOptions(), random.Random(1))
    server = MemoryServer(cluster, clock_ns=lambda: DAYS_30_NS + time.monotonic_ns())
    try:
        now_ms = server.call(lambda _, now_ms: now_ms)
    finally:
        server.close()
    assert now_ms < 10_000
    assert len(checks) <= 4 * (now_ms // 200 + 1)


# --- interrupts ------------------------------------------------------------------------------


class Interrupt(BaseException):
    """As Ctrl-C, or the signal of a time-out of pytest."""


def test_an_interrupted_call_takes_effect_wholly_and_the_cluster_goes_on(server, monkeypatch):
    has_begun, may_go_on = threading.Event(), threading.Event()

    def slow(cluster, _):
        has_begun.set()
        may_go_on.wait(10)
        cluster.create_topic("t", 1)

    def interrupted(self):
        has_begun.wait(10)
        self._is_given_up = True
        raise Interrupt

    with monkeypatch.context() as patch:
        patch.setattr(ClusterCall, "wait", interrupted)
        with pytest.raises(Interrupt):
            server.call(slow)
    may_go_on.set()
    assert server.call(lambda cluster, _: list(cluster.topics)) == ["t"]


def test_a_call_that_is_interrupted_before_it_begins_has_no_effect(server, monkeypatch):
    has_begun, may_go_on = threading.Event(), threading.Event()
    calls: list[int] = []
    wait = ClusterCall.wait

    def interrupted(self):
        if threading.current_thread() is threading.main_thread():
            self._is_given_up = True
            raise Interrupt
        return wait(self)

    def block(*_):
        has_begun.set()
        may_go_on.wait(10)

    monkeypatch.setattr(ClusterCall, "wait", interrupted)
    other = threading.Thread(target=server.call, args=(block,))
    other.start()
    has_begun.wait(10)
    with pytest.raises(Interrupt):
        server.call(lambda *_: calls.append(1))
    may_go_on.set()
    other.join(10)
    monkeypatch.undo()
    server.call(lambda *_: None)
    assert calls == []


def test_the_models_timers_survive_an_error_of_a_call(server):
    def fail(cluster, _):
        raise LookupError("of the test")

    with pytest.raises(LookupError, match="of the test"):
        server.call(fail)
    assert server.call(lambda cluster, now_ms: cluster.next_event_ms() > now_ms)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this platform has no timer signals")
def test_a_signal_at_any_moment_of_a_call_leaves_the_cluster_whole(server):
    """As a time-out of pytest: its exception is raised in the wait for the loop's thread."""

    def interrupt(*_):
        raise Interrupt

    def call_until_interrupted(delay_s):
        signal.setitimer(signal.ITIMER_REAL, delay_s)
        while True:  # a timer may be later than a call takes
            server.call(lambda *_: None)

    before = signal.signal(signal.SIGALRM, interrupt)
    rng = random.Random(1)
    try:
        for _ in range(1_000):
            with pytest.raises(Interrupt):
                call_until_interrupted(rng.uniform(0.00002, 0.0005))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert server.call(lambda cluster, now_ms: cluster.next_event_ms() > now_ms)


# --- connections -----------------------------------------------------------------------------


def test_a_connection_that_the_server_has_ended_keeps_no_loop_busy(server, monkeypatch):
    bench = Bench()
    server.script.add(ApiKey.INIT_PRODUCER_ID, Fault(ScriptedFault.SLOW, delay_ms=300))
    client = server.connect(0)
    rounds: list[int] = []
    send_due = server._send_due

    def count_and_send():
        rounds.append(1)
        send_due()

    monkeypatch.setattr(server, "_send_due", count_and_send)
    with client:
        client.sendall(bench.bytes_of(init_request(), 5) + b"\xff" * 64)
        wait_until(lambda: rounds)
        client.sendall(b"more that is never read")
        client.settimeout(5)
        assert client.recv(4096)
        with contextlib.suppress(ConnectionResetError):  # Linux says so of unread bytes
            assert client.recv(4096) == b""
    assert len(rounds) < 20


def test_a_client_that_goes_away_before_a_late_answer_is_forgotten(server):
    bench = Bench()
    server.script.add(ApiKey.INIT_PRODUCER_ID, Fault(ScriptedFault.SLOW, delay_ms=100))
    with server.connect(0) as client:
        client.sendall(bench.bytes_of(init_request(), 5))
    wait_until(lambda: not server._peers)
    assert server.call(lambda cluster, _: cluster.transactional_ids) == ["a"]


@pytest.fixture
def client_at_port(server):
    """Return a call that connects a client to the port of the broker."""
    [address] = server.listen()
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(socket.create_connection(address, 5))


def test_a_client_that_cannot_be_accepted_waits_and_keeps_no_loop_busy(
    client_at_port, monkeypatch, caplog
):
    attempts: list[int] = []

    def fail(_):
        attempts.append(1)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "accept", fail)
        client = client_at_port()
        wait_until(lambda: len(attempts) > 1)
        time.sleep(0.5)
    assert len(attempts) < 20
    assert "cannot accept a connection to broker 0" in caplog.text
    client.sendall(Bench().bytes_of(init_request(), 5))
    assert client.recv(100)


def test_a_port_that_waits_at_the_end_is_closed(server, client_at_port, monkeypatch, caplog):
    def fail(_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket.socket, "accept", fail)
    client_at_port()
    wait_until(lambda: "cannot accept" in caplog.text)
    server.close()
    with pytest.raises(ConnectionRefusedError):
        client_at_port()
    # The model's time goes on for a caller that looks at it.
    server.call(lambda cluster, now_ms: cluster.advance(now_ms + 1_000))


def test_an_error_at_a_new_connection_ends_it_alone(server, client_at_port, monkeypatch, caplog):
    def fail(*_):
        raise ssl.SSLError("no record of TLS")

    with monkeypatch.context() as patch:
        patch.setattr(server, "_add", fail)
        assert client_at_port().recv(100) == b""
    assert "no record of TLS" in caplog.text
    client = client_at_port()
    client.sendall(Bench().bytes_of(init_request(), 5))
    assert client.recv(100)


# --- failures --------------------------------------------------------------------------------


def test_an_error_of_the_model_is_logged_and_ends_the_connection(server, monkeypatch, caplog):
    def fail(*_):
        raise LookupError("a defect of the model")

    monkeypatch.setattr(connection, "handle", fail)
    with caplog.at_level(logging.ERROR), server.connect(0) as client:
        client.settimeout(5)
        client.sendall(Bench().bytes_of(init_request(), 5))
        assert client.recv(100) == b""
    assert "A request cannot be answered" in caplog.text
    assert "a defect of the model" in caplog.text
    server.call(lambda *_: None)


def test_an_error_at_the_bytes_of_a_client_ends_its_connection_alone(server, monkeypatch, caplog):
    def fail(*_):
        raise LookupError("a defect of the server")

    with server.connect(0) as client, server.connect(0) as other:
        client.settimeout(5)
        other.settimeout(5)
        with monkeypatch.context() as patch:
            patch.setattr(connection.ServerConnection, "receive", fail)
            client.sendall(b"any")
            assert client.recv(100) == b""
        assert "a defect of the server" in caplog.text
        other.sendall(Bench().bytes_of(init_request(), 5))
        assert other.recv(100)


def test_an_error_at_an_answer_ends_its_connection_alone(server, monkeypatch, caplog):
    take_due = Peer.take_due

    def fail(peer, now_ms):
        if peer.waiting:
            raise ssl.SSLError("no record of TLS")
        take_due(peer, now_ms)

    with server.connect(0) as client, server.connect(0) as other:
        client.settimeout(5)
        other.settimeout(5)
        with monkeypatch.context() as patch:
            patch.setattr(Peer, "take_due", fail)
            client.sendall(Bench().bytes_of(init_request(), 5))
            assert client.recv(100) == b""
        assert "no record of TLS" in caplog.text
        other.sendall(Bench().bytes_of(init_request(), 5))
        assert other.recv(100)


def test_a_loop_that_fails_closes_its_sockets_and_says_so_at_the_next_call(caplog):
    server = MemoryServer(BrokerCluster(ClusterOptions(), random.Random(1)))

    def fail(_):
        raise LookupError("a defect of the model")

    client = server.connect(0)
    server.call(lambda cluster, now_ms: cluster.call_at(now_ms, fail))
    with client:
        client.settimeout(5)
        assert client.recv(100) == b""
    for _ in range(2):
        with pytest.raises(RuntimeError, match="a defect of the model"):
            server.call(lambda *_: None)
    with pytest.raises(ConnectionRefusedError):
        server.connect(0)
    server.close()
    assert "The in-memory cluster has failed" in caplog.text
