"""Attempts to connect use a new thread while that is possible, and a kept one after that."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.waiting import wait_until
from tests.wire.client_driver import Driver, clock_ms
from tests.wire.fake_broker import FakeBroker
from txnproducer._protocol.events import Channel, ConnectionId
from txnproducer._protocol.messages import BrokerNode
from txnproducer._wire import network_client
from txnproducer._wire.kept_threads import KeptThreads
from txnproducer._wire.platform import Platform

PATIENCE_S = 30.0
SECOND = ConnectionId(-1, Channel.COORDINATOR)


@pytest.fixture
def threads() -> Iterator[KeptThreads]:
    kept = KeptThreads()
    yield kept
    kept.close()


def run(threads: KeptThreads, job: Callable[[], object] = lambda: None) -> threading.Thread:
    """Run a job to its end, and return the thread that it ran on."""
    ran_on: list[threading.Thread] = []

    def work() -> None:
        job()
        ran_on.append(threading.current_thread())

    threads.run(work)
    wait_until(lambda: bool(ran_on))
    return ran_on[0]


def forbid_threads(patch: pytest.MonkeyPatch) -> None:
    """Start no thread any more, as the interpreter at its exit from Python 3.12 on."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    patch.setattr(Platform, "thread", refuse)


def test_an_idle_thread_takes_the_next_job(threads: KeptThreads) -> None:
    first = run(threads)
    wait_until(lambda: bool(threads._idle))
    assert run(threads) is first


def test_a_job_does_not_wait_for_one_that_hangs(threads: KeptThreads) -> None:
    hangs = threading.Event()
    threads.run(lambda: hangs.wait(2 * PATIENCE_S))
    run(threads)
    assert not hangs.is_set()
    hangs.set()


def test_a_thread_that_hangs_is_not_idle_though_it_was(threads: KeptThreads) -> None:
    run(threads)
    wait_until(lambda: bool(threads._idle))
    began, hangs = threading.Event(), threading.Event()

    def hang() -> None:
        began.set()
        hangs.wait(2 * PATIENCE_S)

    threads.run(hang)
    assert began.wait(PATIENCE_S)
    run(threads)
    assert not hangs.is_set()
    hangs.set()


def test_a_job_that_was_promised_an_idle_thread_is_not_promised_again(
    threads: KeptThreads,
) -> None:
    """Between its notification and its waking a thread still counts as idle."""
    run(threads)
    wait_until(lambda: bool(threads._idle))
    hangs, ran = threading.Event(), threading.Event()
    with threads._changed:
        threads.run(lambda: hangs.wait(2 * PATIENCE_S))
        threads.run(ran.set)
    assert ran.wait(PATIENCE_S)
    hangs.set()


def test_where_no_thread_can_be_started_a_kept_one_does_all_jobs(
    threads: KeptThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = threading.Event()
    threads.run(lambda: hangs.wait(2 * PATIENCE_S))
    forbid_threads(monkeypatch)
    ran: list[int] = []
    for number in range(3):
        threads.run(partial(ran.append, number))
    assert not ran
    hangs.set()
    wait_until(lambda: len(ran) == 3)
    assert ran == [0, 1, 2]


def test_a_caller_gets_the_error_if_no_thread_can_start(
    threads: KeptThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_threads(monkeypatch)
    has_run = threading.Event()
    with pytest.raises(RuntimeError, match="shutdown"):
        threads.run(has_run.set)
    monkeypatch.undo()
    run(threads)
    wait_until(lambda: bool(threads._idle))
    assert not has_run.is_set()


def test_two_idle_threads_are_kept_and_no_more(threads: KeptThreads) -> None:
    hangs = threading.Event()
    for _ in range(5):
        threads.run(lambda: hangs.wait(2 * PATIENCE_S))
    hangs.set()
    wait_until(lambda: threads._count == 2)
    assert len(threads._idle) == 2


def test_no_thread_is_left_when_they_are_closed(threads: KeptThreads) -> None:
    thread = run(threads)
    wait_until(lambda: bool(threads._idle))
    threads.close()
    assert not thread.is_alive()


def test_a_job_without_a_thread_is_dropped_when_they_are_closed(
    threads: KeptThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = threading.Event()
    threads.run(lambda: hangs.wait(2 * PATIENCE_S))
    forbid_threads(monkeypatch)
    threads.run(lambda: pytest.fail("nobody waits for it"))
    threads.close()
    hangs.set()
    wait_until(lambda: not threads._count)


def test_a_client_connects_without_a_new_thread_once_it_has_connected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with FakeBroker() as broker:
        driver = Driver(broker.address)
        driver.connect()
        forbid_threads(monkeypatch)
        driver.connect(SECOND)
        assert broker.connections == 2
        before = threading.active_count()
        driver.close()
        wait_until(lambda: threading.active_count() < before)


@pytest.mark.parametrize("hangs_in", ["connect", "handshake"])
def test_in_a_hurry_an_attempt_that_hangs_makes_room_for_the_next(
    monkeypatch: pytest.MonkeyPatch, hangs_in: str
) -> None:
    """At the exit with Python 3.12 the threads hang, and a transaction has to be aborted."""
    monkeypatch.setattr(network_client, "_HURRIED_MS", 50)
    hanging = ConnectionId(7)
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as silent,
        socket.create_connection(silent.getsockname()) as first,
        FakeBroker() as broker,
    ):
        if hangs_in == "handshake":
            first.close()
            silent.accept()[0].close()
        driver = Driver(broker.address, socket_connection_setup_timeout_ms=30_000)
        driver.client.update_nodes([BrokerNode(7, *silent.getsockname())])
        assert not driver.client.is_ready(hanging, clock_ms())
        connector = driver.client._links[hanging].connector
        assert connector is not None
        if hangs_in == "handshake":
            wait_until(lambda: "versions" in connector.doing)
        wait_until(lambda: connector._sock is not None)
        forbid_threads(monkeypatch)
        driver.client.hurry()
        driver.until(lambda: driver.client.is_ready(SECOND, clock_ms()))
        assert "is under way" in str(driver.ends(hanging)[0].error)
        assert not driver.client.is_ready(hanging, clock_ms() + 30_000)  # the next one, too
        link = driver.client._links[hanging]
        assert link.connector is not None
        assert link.connector.deadline_ms <= clock_ms() + 30_000 + 50
        driver.close()
    wait_until(lambda: not any(t.name == "txnproducer-connect" for t in threading.enumerate()))
