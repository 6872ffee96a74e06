"""The end of a producer that several ask for: two threads, a callback, a handler, the exit."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading

import pytest

from tests.live_client import LiveClient, use_live_clients
from tests.waiting import wait_until
from txnproducer import TransactionalProducer
from txnproducer._protocol.messages import ApiKey
from txnproducer._shell import live_producers
from txnproducer._shell.io_thread import IoThread
from txnproducer._wire.platform import Platform
from txnproducer.errors import KafkaError

PATIENCE_S = 10.0
MOMENT_S = 0.1  # in which a call that should wait would have returned


@pytest.fixture
def clients(monkeypatch):
    made: list[LiveClient] = []

    def make_client() -> LiveClient:
        made.append(LiveClient())
        return made[-1]

    use_live_clients(monkeypatch, make_client)
    return made


@pytest.fixture
def open_one(clients):
    """Make producers with an open transaction whose end the cluster does not answer."""
    made: list[TransactionalProducer] = []

    def make():
        one = TransactionalProducer("boot:9092", f"txn-{len(made)}", linger_ms=0)
        made.append(one)
        one.init_transactions()
        one.begin_transaction()
        one.send("topic", b"value").result(PATIENCE_S)
        clients[-1].held.add(ApiKey.END_TXN)
        return one

    yield make
    for one in made:
        one.close(0)


def start(call, *arguments):
    thread = threading.Thread(target=call, args=arguments, daemon=True)
    thread.start()
    return thread


def test_a_second_close_waits_for_the_same_end(open_one, clients):
    one = open_one()
    first = start(one.close)
    wait_until(lambda: clients[0].sent(ApiKey.END_TXN))
    second = start(one.close)
    second.join(MOMENT_S)
    assert second.is_alive()
    clients[0].release(ApiKey.END_TXN)
    second.join(PATIENCE_S)
    assert not second.is_alive()
    assert clients[0].is_closed
    assert one.transaction_state == "READY"  # in good order
    first.join(PATIENCE_S)


def test_a_second_close_is_bounded_by_its_own_time_out_which_forces_the_end(open_one, clients):
    one = open_one()
    first = start(one.close)
    wait_until(lambda: clients[0].sent(ApiKey.END_TXN))
    one.close(0.01)
    assert not one._io._thread.is_alive()
    first.join(PATIENCE_S)
    assert not first.is_alive()


def test_a_second_close_in_a_callback_waits_for_nothing(open_one, clients):
    one = open_one()
    clients[0].held.add(ApiKey.PRODUCE)
    ended = []

    def close_again(_metadata, _error):
        one.close()
        ended.append(one._io.has_ended)

    one.send("topic", b"value", on_delivery=close_again)
    wait_until(lambda: clients[0].waiting(ApiKey.PRODUCE))
    first = start(one.close)
    wait_until(lambda: one._refusal is not None)
    clients[0].release(ApiKey.PRODUCE)
    wait_until(lambda: ended)
    clients[0].release(ApiKey.END_TXN)
    first.join(PATIENCE_S)
    assert not first.is_alive()
    assert ended == [False]
    assert one.transaction_state == "READY"  # the first one's end was not forced


def test_a_signal_handler_that_interrupts_a_close_waits_for_nothing(open_one, clients):
    one = open_one()
    returned = []

    def close_again(*_):
        one.close()
        returned.append(clients[0].is_closed)
        clients[0].release(ApiKey.END_TXN)

    before = signal.signal(signal.SIGALRM, close_again)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        one.close(PATIENCE_S)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert returned == [False]
    assert one.transaction_state == "READY"


def test_closing_after_the_end_does_nothing(open_one):
    one = open_one()
    one.close(0)
    one.close()
    assert one._io.has_ended


def test_a_producer_is_known_to_the_hooks_until_its_thread_has_ended(open_one, clients):
    one = open_one()
    first = start(one.close)
    wait_until(lambda: clients[0].sent(ApiKey.END_TXN))
    assert one in live_producers._all()
    clients[0].release(ApiKey.END_TXN)
    first.join(PATIENCE_S)
    assert one not in live_producers._all()


# --- the interpreter's exit -------------------------------------------------------------------


def test_at_exit_all_begin_to_close_before_one_is_waited_for(open_one, clients, monkeypatch):
    monkeypatch.setattr(live_producers, "AT_EXIT_TIMEOUT_S", PATIENCE_S)
    producers = [open_one() for _ in range(3)]
    monkeypatch.setattr(live_producers, "_all", lambda: producers)
    leaving = start(live_producers._close_all)
    wait_until(lambda: all(client.sent(ApiKey.END_TXN) for client in clients))
    for client in clients:
        client.release(ApiKey.END_TXN)
    leaving.join(PATIENCE_S)
    assert [one.transaction_state for one in producers] == ["READY"] * 3


class Leaving:
    """A producer that takes its time to close."""

    def __init__(self, clock, log):
        self.clock, self.log = clock, log

    def initiate_close(self):
        self.log.append("begun")

    def close_by(self, deadline_ms):
        self.clock[0] += 3000
        self.log.append(deadline_ms)
        raise KafkaError("the others are closed all the same")


def test_one_deadline_holds_for_all_producers_at_exit(monkeypatch):
    clock, log = [100], list[object]()
    monkeypatch.setattr(Platform, "monotonic_ms", lambda _: clock[0])
    producers = [Leaving(clock, log), Leaving(clock, log)]
    monkeypatch.setattr(live_producers, "_all", lambda: producers)
    live_producers._close_all()
    assert log == ["begun", "begun", 5100, 5100]


@pytest.mark.parametrize(("left_ms", "limits"), [(3000, (3.0, 1.0)), (-2000, (0.0, 0.05))])
def test_the_rest_of_the_deadline_bounds_each_wait(open_one, monkeypatch, left_ms, limits):
    one = open_one()
    seen = []
    with monkeypatch.context() as patch:
        patch.setattr(Platform, "monotonic_ms", lambda _: 10_000)
        patch.setattr(one._io, "close", lambda *given: seen.append(given))
        one.close_by(10_000 + left_ms)
    assert seen == [limits]


class InterruptError(Exception):
    """An exception that a signal handler raises."""


def test_an_interrupt_while_the_thread_is_waited_for_does_not_pass_for_its_end(open_one):
    """Python 3.11 marks a thread as stopped whose `join` was interrupted (bpo-45274)."""
    one = open_one()
    may_end = threading.Event()
    is_called = threading.Event()

    def block(*_):
        is_called.set()
        may_end.wait(PATIENCE_S)

    def raise_it(*_):
        raise InterruptError

    one.send("topic", b"value", on_delivery=block)
    assert is_called.wait(PATIENCE_S)
    before = signal.signal(signal.SIGALRM, raise_it)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(InterruptError):
            one.close(0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert one._io._thread.ident in sys._current_frames()
    assert not one._io.has_ended
    assert id(one) in live_producers._live
    second = start(one.close)
    second.join(MOMENT_S)
    assert second.is_alive()
    may_end.set()
    second.join(PATIENCE_S)
    assert not second.is_alive()
    assert one._io.has_ended
    assert id(one) not in live_producers._live


def test_an_interrupted_close_sends_its_abort_and_can_be_waited_for(open_one, clients):
    one = open_one()

    def raise_it(*_):
        raise InterruptError

    before = signal.signal(signal.SIGALRM, raise_it)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(InterruptError):
            one.close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert clients[0].sent(ApiKey.END_TXN)
    assert not one._io.has_ended
    second = start(one.close)
    second.join(MOMENT_S)
    assert second.is_alive()
    clients[0].release(ApiKey.END_TXN)
    second.join(PATIENCE_S)
    assert one.transaction_state == "READY"  # in good order


def test_the_exit_waits_for_a_close_that_was_interrupted(open_one, clients, monkeypatch):
    one = open_one()
    hurried = []
    monkeypatch.setattr(clients[0], "hurry", lambda: hurried.append(True))
    monkeypatch.setattr(live_producers, "_all", lambda: [one])
    with monkeypatch.context() as patch:
        patch.setattr(one._io, "wait_until", interrupt)
        with pytest.raises(InterruptError):
            one.close()
    leaving = start(live_producers._close_all)
    wait_until(lambda: hurried)
    wait_until(lambda: clients[0].sent(ApiKey.END_TXN))
    clients[0].release(ApiKey.END_TXN)
    leaving.join(PATIENCE_S)
    assert one._io.has_ended
    assert one.transaction_state == "READY"


def interrupt(*_):
    raise InterruptError


def test_a_producer_whose_close_did_nothing_ends_when_it_is_dropped(open_one, clients):
    one = TransactionalProducer("boot:9092", "txn", linger_ms=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one._io, "close", interrupt)
        with contextlib.suppress(InterruptError):
            one.close()
    thread = one._io._thread
    assert thread.is_alive()
    del one
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_constructor_that_is_interrupted_leaves_no_thread(clients, monkeypatch):
    start_thread = IoThread.start

    def start_and_interrupt(*arguments):
        start_thread(*arguments)
        raise InterruptError

    with monkeypatch.context() as patch:
        patch.setattr(IoThread, "start", start_and_interrupt)
        with contextlib.suppress(InterruptError):
            TransactionalProducer("boot:9092", "txn", linger_ms=0)
    wait_until(lambda: clients[0].is_closed)


def test_a_close_that_was_interrupted_twice_can_be_waited_for(open_one, monkeypatch):
    one = open_one()
    may_end = threading.Event()
    one.send("topic", b"value", on_delivery=lambda *_: may_end.wait(PATIENCE_S))

    def raise_it(*_):
        raise InterruptError

    with monkeypatch.context() as patched:
        patched.setattr(one._io, "wait_until", raise_it)
        patched.setattr(one._io, "_force", raise_it)
        with pytest.raises(InterruptError):
            one.close(PATIENCE_S)
    may_end.set()
    one.close(MOMENT_S)  # nobody answers the record, so the end is forced
    assert one._io.has_ended


def test_an_interrupted_close_with_less_time_brings_the_end_forward(open_one, monkeypatch):
    one = open_one()
    first = start(one.close, 60)
    wait_until(lambda: one._io._ends_by_ms is not None)

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(IoThread, "wait_until", interrupt)
        with pytest.raises(KeyboardInterrupt):
            one.close(MOMENT_S)
    first.join(PATIENCE_S)
    assert not first.is_alive()


def test_an_interrupted_close_with_more_time_does_not_put_the_end_off(open_one, monkeypatch):
    one = open_one()
    first = start(one.close, 3 * MOMENT_S)
    wait_until(lambda: one._io._ends_by_ms is not None)
    ends_by_ms = one._io._ends_by_ms
    one._io._end_by(ends_by_ms + 60_000)
    assert one._io._ends_by_ms <= ends_by_ms
    first.join(PATIENCE_S)
    assert not first.is_alive()
