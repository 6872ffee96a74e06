"""A producer that is dropped, or still open at the interpreter's exit, ends by itself."""

from __future__ import annotations

import gc
import os
import threading
import warnings
from typing import Any

import pytest

from tests.live_client import commits_sent
from tests.waiting import wait_until
from txnproducer import TransactionalProducer
from txnproducer._shell import base_producer, live_producers
from txnproducer._shell.io_thread import IoThread
from txnproducer._wire.wakeup import Wakeup

PATIENCE_S = 10.0


def test_a_closed_producer_goes_in_silence_when_the_interpreter_ends(make, monkeypatch):
    one = make(None)
    one.close(PATIENCE_S)
    with monkeypatch.context() as patch:
        for name in ("refusals", "warnings"):  # modules lose their names then, one after the other
            patch.setattr(base_producer, name, None)
        one.__del__()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_producer_that_was_dropped_warns_and_ends_by_itself(client):
    made = [TransactionalProducer("boot:9092", None, linger_ms=0)]
    thread = made[0]._io._thread
    with pytest.warns(ResourceWarning, match="unclosed"):
        made.clear()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert client.is_closed


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_producer_that_was_dropped_ends_also_where_warnings_are_errors(client):
    made = [TransactionalProducer("boot:9092", None, linger_ms=0)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        made.clear()
    wait_until(lambda: client.is_closed)


@pytest.mark.parametrize("is_open", [True, False])
def test_a_producer_that_was_dropped_with_a_transaction_open_is_in_the_log(
    client, caplog, is_open
):
    one = TransactionalProducer("boot:9092", "txn", linger_ms=0)
    one.init_transactions()
    if is_open:
        one.begin_transaction()
    with pytest.warns(ResourceWarning, match="unclosed"):
        del one
    told = "was dropped with a transaction open, which is aborted" in caplog.text
    assert told == is_open
    wait_until(lambda: client.is_closed)


def test_a_producer_whose_thread_could_not_start_wakes_no_other_file(monkeypatch):
    """The collector closes the descriptor first, and its number may be another file's then."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def make_in_a_cycle() -> None:
        try:
            TransactionalProducer("boot:9092", "txn")
        except RuntimeError as error:
            kept: Any = error
            kept.itself = kept

    woken: list[Wakeup] = []
    monkeypatch.setattr(Wakeup, "set", lambda wakeup: woken.append(wakeup))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        make_in_a_cycle()
    gc.collect()
    assert woken == []


def test_a_dropped_producer_is_not_kept_to_be_closed_at_exit():
    class Producer:
        pass

    known = len(live_producers._all())
    producer: Any = Producer()
    loop: Any = Producer()
    live_producers.remember(producer, loop)
    assert len(live_producers._all()) == known + 1
    del producer
    gc.collect()
    assert len(live_producers._all()) == known


@pytest.mark.regression("class-9")
def test_open_producers_are_closed_at_exit(ready, client):
    ready.begin_transaction()
    ready.send("topic", b"value").result(PATIENCE_S)
    live_producers._close_all()
    assert commits_sent(client) == [False]
    assert client.is_closed


@pytest.fixture
def dropped(client, monkeypatch):
    """The loop of a producer that was dropped with a transaction open.

    It stands still for a moment, as on a busy machine.
    """
    one = TransactionalProducer("boot:9092", "txn", linger_ms=0)
    one.init_transactions()
    one.begin_transaction()
    one.send("topic", b"value").result(PATIENCE_S)
    io, goes_on, step = one._io, threading.Event(), IoThread._go_on_closing
    monkeypatch.setattr(
        IoThread, "_go_on_closing", lambda *a: goes_on.wait(PATIENCE_S) and step(*a)
    )
    with pytest.warns(ResourceWarning, match="unclosed"):
        del one
    threading.Timer(0.1, goes_on.set).start()
    yield io
    wait_until(lambda: io.has_ended)


def test_the_transaction_of_a_producer_that_was_dropped_is_aborted_before_the_exit(
    client, dropped
):
    live_producers._close_all()
    assert dropped.has_ended
    assert commits_sent(client) == [False]
    assert not live_producers._running_loops()


# Forking beside threads is the point.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_a_forked_child_leaves_the_loop_of_a_dropped_producer_to_its_parent(client, dropped):
    child = os.fork()
    if child == 0:
        os._exit(0 if dropped._must_stop and not live_producers._running_loops() else 1)
    assert os.waitpid(child, 0)[1] == 0
    wait_until(lambda: commits_sent(client) == [False])


def test_a_producer_that_the_collector_is_about_to_finalize_is_known_at_the_exit(ready, client):
    """The collector clears the weak references to an object before it calls `__del__`."""
    ready.begin_transaction()
    ready.send("topic", b"value").result(PATIENCE_S)
    live_producers.forget(ready)
    live_producers._close_all()
    assert commits_sent(client) == [False]
    assert ready._io.has_ended


def test_a_finalizer_on_the_loops_own_thread_closes_in_good_order(ready, client, monkeypatch):
    """The collector may run it there between two turns, where no lock is held."""
    ready.begin_transaction()
    ready.send("topic", b"value").result(PATIENCE_S)
    poll = client.poll

    def collect(*arguments):
        monkeypatch.setattr(client, "poll", poll)
        ready.close()
        return poll(*arguments)

    monkeypatch.setattr(client, "poll", collect)
    client.wakeup()
    wait_until(lambda: ready._io.has_ended)
    assert commits_sent(client) == [False]
