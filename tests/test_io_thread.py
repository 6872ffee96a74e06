"""The loop that drives the core: its lock, the threads that it wakes, its errors and its end."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from typing import Any

import pytest

from tests.waiting import becomes_true
from txnproducer._shell import failed_turns, io_thread
from txnproducer._shell.io_thread import IoThread
from txnproducer._shell.waiting_thread import WaitingThread
from txnproducer._wire.platform import SYSTEM, Platform
from txnproducer.errors import IllegalStateError

PATIENCE_S = 10.0


class FakeClient:
    """A client that sleeps in `poll` until it is woken, and hands out given events."""

    def __init__(self):
        self.woken = threading.Event()
        self.asleep = threading.Event()
        self.events = []
        self.wakeups = 0
        self.is_closed = False

    def poll(self, timeout_ms, now_ms):
        if timeout_ms:
            self.asleep.set()
            self.woken.wait(min(PATIENCE_S, timeout_ms / 1000))
            self.asleep.clear()
        self.woken.clear()
        events, self.events = self.events, []
        return events

    def wakeup(self):
        self.wakeups += 1
        self.woken.set()

    def hurry(self):
        """Do nothing."""

    def close(self):
        self.is_closed = True

    def deliver(self, *events):
        self.events.extend(events)
        self.woken.set()


class FakeCore:
    """A core that remembers each call, with the thread that made it."""

    def __init__(self):
        self.needs_wakeup = False
        self.is_closed = False
        self.closes_when_asked = True
        self.handled = []
        self.steps = 0
        self.callbacks = []
        self.full = []
        self.lent = []
        self.awaits_codec = False
        self.forced = False
        self.on_step = lambda: None
        self.threads = set()

    def run_once(self, now_ms):
        self.threads.add(threading.get_ident())
        self.steps += 1
        self.on_step()
        return 60_000

    def handle(self, event, now_ms):
        if isinstance(event, Exception):
            raise event
        self.handled.append(event)

    @property
    def has_full_batches(self):
        return bool(self.full)

    def take_full_batches(self):
        batches, self.full = self.full, []
        return batches

    def lend_full_batch(self, now_ms):
        return self.lent.pop() if self.lent else None

    def take_callbacks(self):
        batches, self.callbacks = self.callbacks, []
        return batches

    def initiate_close(self, now_ms):
        self.is_closed = self.closes_when_asked

    def force_close(self, now_ms):
        self.forced = True
        self.is_closed = True


class Callback:
    """Callbacks that are due, and whether they count as finished."""

    raised = ()

    def __init__(self, call):
        self.run = call
        self.is_finished = False

    def on_finished(self):
        self.is_finished = True


@pytest.fixture
def client():
    return FakeClient()


@pytest.fixture
def core():
    return FakeCore()


@pytest.fixture
def io(client, core):
    io = IoThread(client, "test-io")
    io.start(core)
    assert client.asleep.wait(PATIENCE_S)
    yield io
    io.close(0)
    assert client.is_closed


def poke(io):
    with io.lock:
        io.poke()


def test_the_core_is_driven_by_one_other_thread(io, core):
    assert core.threads == {io._thread.ident}
    assert not io.is_current


def test_a_poke_ends_the_sleep_and_only_the_first_one_costs_anything(io, client, core):
    with io.lock:
        steps = core.steps
        io.poke()
        io.poke()
    assert io.wait_until(lambda: core.steps > steps, PATIENCE_S)
    assert client.wakeups == 1


def test_a_waiting_thread_is_woken_by_an_event_of_the_loop(io, client, core):
    client.deliver("answer")
    assert io.wait_until(lambda: "answer" in core.handled, PATIENCE_S)


@pytest.fixture
def only_wakeups(monkeypatch):
    """Let no waiting thread look for itself, as it otherwise does twice a second."""
    monkeypatch.setattr(Platform, "wait_slice_s", 10 * PATIENCE_S)


def waiting(io, is_done, count=3):
    """Return the results of threads that wait, and a function that waits for these threads."""
    told: list[bool] = []
    threads = [
        threading.Thread(
            target=lambda: told.append(io.wait_until(is_done, 10 * PATIENCE_S)), daemon=True
        )
        for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    becomes_true(lambda: len(io._waits) >= count)

    def join():
        for thread in threads:
            thread.join(PATIENCE_S)
        return told

    return join


@pytest.mark.usefixtures("only_wakeups")
def test_all_threads_that_wait_for_something_are_woken_by_it(io, client, core):
    join = waiting(io, lambda: "answer" in core.handled)
    client.deliver("answer")
    assert join() == [True, True, True]


@pytest.mark.usefixtures("only_wakeups")
def test_all_threads_that_wait_are_woken_when_the_loop_ends(io, core):
    join = waiting(io, lambda: False)
    io.close(0)
    assert join() == [False, False, False]


class FakeFullBatch:
    """A batch that notes the thread that compressed it, and whether the lock was held."""

    def __init__(self, io, error=None):
        self._io, self._error = io, error
        self.seen = []

    def compress(self):
        self.seen.append((self._io.is_current, self._io.lock.locked()))
        if self._error is not None:
            raise self._error


def test_full_batches_are_compressed_after_the_step_without_the_lock_and_the_next_follows(
    io, core
):
    batch = FakeFullBatch(io)
    seen_by_step = []
    with io.lock:
        core.full = [batch]
        core.on_step = lambda: seen_by_step.append(list(batch.seen))
        io.poke()

    assert io.wait_until(lambda: len(seen_by_step) > 1, PATIENCE_S)
    assert seen_by_step == [[], [(True, False)]]


def test_full_batches_are_compressed_in_a_turn_with_callbacks_too(io, core):
    batch, seen_before = FakeFullBatch(io), []
    due = Callback(lambda: seen_before.append(list(batch.seen)))
    with io.lock:
        core.full, core.callbacks = [batch], [due]
        io.poke()

    assert io.wait_until(lambda: bool(batch.seen), PATIENCE_S)
    assert seen_before == [[]]


def test_callbacks_run_where_the_full_batches_cannot_be_taken(io, core, monkeypatch):
    due = Callback(lambda: None)

    def fail():
        core.full = []
        raise MemoryError

    monkeypatch.setattr(core, "take_full_batches", fail)
    with io.lock:
        core.full, core.callbacks = [FakeFullBatch(io)], [due]
        io.poke()

    assert io.wait_until(lambda: due.is_finished, PATIENCE_S)


def test_a_batch_that_can_not_be_compressed_ahead_keeps_nothing_from_its_step(io, core):
    broken, next_one = FakeFullBatch(io, MemoryError()), FakeFullBatch(io)
    with io.lock:
        steps = core.steps
        core.full = [broken, next_one]
        io.poke()

    assert io.wait_until(lambda: core.steps > steps, PATIENCE_S)
    assert broken.seen
    assert next_one.seen


def test_a_thread_that_waits_compresses_meanwhile_without_the_lock(io, core):
    broken, batch = FakeFullBatch(io, MemoryError()), FakeFullBatch(io)
    core.lent = [batch, broken]

    assert io.wait_until(lambda: bool(batch.seen), PATIENCE_S)
    assert batch.seen == broken.seen == [(False, False)]


@pytest.mark.parametrize("is_awaited", [True, False])
def test_a_thread_that_has_compressed_a_batch_wakes_the_loop_if_that_waits_for_it(
    io, client, core, is_awaited
):
    core.lent = [batch := FakeFullBatch(io)]
    core.awaits_codec = is_awaited

    assert io.wait_until(lambda: bool(batch.seen), PATIENCE_S)
    assert client.wakeups == is_awaited


def test_a_thread_whose_time_is_up_compresses_no_more(io, core):
    core.lent = [batch := FakeFullBatch(io)]

    assert not io.wait_until(lambda: False, 0)
    assert not batch.seen


def test_a_wait_that_is_over_at_once_does_not_wait(io):
    assert io.wait_until(lambda: True, 0)
    assert not io.wait_until(lambda: False, 0)


def test_a_wait_ends_with_its_time(io):
    assert not io.wait_until(lambda: False, 0.01)
    assert io._waits == []


def test_an_interrupt_while_the_loop_works_leaves_it_its_lock(io, core, monkeypatch):
    # Waiting on a Condition, the interrupted thread would release the lock that the loop holds.
    monkeypatch.setattr(Platform, "wait_slice_s", 0.01)
    is_held = []

    def work():
        core.on_step = lambda: None
        time.sleep(0.1)  # the waiting thread now wants the lock to look
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)  # the interrupted thread could release the lock meanwhile
        is_held.append(io.lock.locked())

    core.on_step = work
    # When the other thread is in its wait: before it, no loop could take a lock from it.
    later = threading.Timer(0.05, poke, [io])
    later.start()
    with pytest.raises(KeyboardInterrupt):
        io.wait_until(lambda: False, PATIENCE_S)
    later.join()
    assert is_held == [True]
    assert io._waits == []


def test_an_answer_that_cannot_be_handled_costs_no_other_answer(io, client, core, caplog):
    with caplog.at_level(logging.CRITICAL, "txnproducer._shell.io_thread"):
        client.deliver(ValueError("bad"), "good")
        assert io.wait_until(lambda: core.handled == ["good"], PATIENCE_S)


@pytest.mark.conformance("6.17")
def test_an_exception_in_a_turn_is_logged_and_the_loop_goes_on(io, core, monkeypatch, caplog):
    monkeypatch.setattr(failed_turns, "_FIRST_PAUSE_MS", 0)
    failures = iter([RuntimeError("once"), RuntimeError("twice")])

    def fail_twice():
        for error in failures:
            raise error

    core.on_step = fail_twice
    poke(io)
    assert io.wait_until(lambda: core.steps >= 4, PATIENCE_S)
    assert [r.exc_info[1].args for r in caplog.records] == [("once",), ("twice",)]


def test_a_loop_that_always_fails_slows_down_and_logs_ever_less(caplog):
    failures = failed_turns.FailedTurns("test-io")
    pauses = [failures.note(now_ms) for now_ms in range(64)]
    assert pauses[0] == pytest.approx(0.02)
    assert pauses == sorted(pauses)
    assert pauses[-1] == 2.0
    assert len(caplog.records) == 8  # failures 1, 2, 3, 4, 8, 16, 32 and 64


def test_an_occasional_successful_turn_does_not_make_a_failing_loop_fast(io, core, monkeypatch):
    pauses: list[float] = []
    monkeypatch.setattr(io._leaving, "wait", pauses.append)
    turns = iter(range(1, 9))

    def fail_every_second_time():
        turn = next(turns, 0)
        if turn:
            core.needs_wakeup = True
            io._is_polling = True
            io.poke()
        if turn % 2:
            raise RuntimeError(turn)

    core.on_step = fail_every_second_time
    poke(io)
    assert io.wait_until(lambda: len(pauses) == 4, PATIENCE_S)
    assert pauses == pytest.approx([0.02, 0.04, 0.08, 0.16])


def test_a_forced_end_waits_for_a_slow_callback_and_gives_every_record_its_own(
    client, core, monkeypatch
):
    monkeypatch.setattr(io_thread, "_FORCED_CLOSE_S", 0.05)
    io = IoThread(client, "test-io")
    io.start(core)
    assert client.asleep.wait(PATIENCE_S)
    has_begun = threading.Event()
    second = Callback(lambda: None)

    def slow():
        has_begun.set()
        time.sleep(0.3)  # longer than the forced end waits

    with io.lock:
        core.callbacks.append(Callback(slow))
        io.poke()
    assert has_begun.wait(PATIENCE_S)
    with io.lock:
        core.callbacks.append(second)
    io.close(0)
    io._thread.join(PATIENCE_S)
    assert second.is_finished


def test_callbacks_run_without_the_lock_and_finish_with_it(io, client, core):
    seen = []

    def callback():
        seen.append((io.lock.locked(), io.is_current))

    batch = Callback(callback)
    with io.lock:
        core.callbacks.append(batch)
        io.poke()
    assert io.wait_until(lambda: batch.is_finished, PATIENCE_S)
    assert seen == [(False, True)]


def test_a_callback_that_exits_ends_neither_the_thread_nor_the_other_callbacks(io, core, caplog):
    def leave():
        raise SystemExit(3)

    batches = [Callback(leave), Callback(lambda: None)]
    with io.lock:
        core.callbacks.extend(batches)
        io.poke()
    assert io.wait_until(lambda: all(batch.is_finished for batch in batches), PATIENCE_S)
    assert "a delivery callback raised SystemExit(3), which does not end this" in caplog.text


def test_a_callback_cannot_wait_for_the_thread_it_runs_on(io, core):
    errors = []

    def callback():
        try:
            io.wait_until(lambda: False, None)
        except IllegalStateError as error:
            errors.append(error)

    batch = Callback(callback)
    with io.lock:
        core.callbacks.append(batch)
        io.poke()
    assert io.wait_until(lambda: batch.is_finished, PATIENCE_S)
    assert "cannot wait" in str(errors[0])


def test_closing_in_good_order_uses_no_force(io, core, client):
    assert io.close(PATIENCE_S)
    assert not core.forced
    assert not io._thread.is_alive()
    assert client.is_closed


def test_closing_turns_to_force_when_the_time_is_up(io, core):
    core.closes_when_asked = False
    assert not io.close(0.01)
    assert core.forced
    assert not io._thread.is_alive()


def test_a_core_that_cannot_even_be_forced_does_not_keep_the_thread(io, core, client, monkeypatch):
    monkeypatch.setattr(io_thread, "_FORCED_CLOSE_S", 0.01)
    monkeypatch.setattr(core, "initiate_close", lambda now_ms: None)
    monkeypatch.setattr(core, "force_close", lambda now_ms: None)
    assert not io.close(0.01)
    client.wakeup()
    io._thread.join(PATIENCE_S)
    assert not io._thread.is_alive()


def test_an_interrupted_close_ends_in_good_order_all_the_same(io, core, monkeypatch):
    interrupt_a_close(io, monkeypatch, PATIENCE_S)
    io._thread.join(PATIENCE_S)
    assert not io._thread.is_alive()
    assert not core.forced
    assert io.close(PATIENCE_S)


@pytest.mark.conformance("2.36")
def test_an_interrupted_close_is_forced_when_its_time_is_up(io, core, monkeypatch):
    core.closes_when_asked = False
    interrupt_a_close(io, monkeypatch, 0.05)
    assert not core.forced
    io._thread.join(PATIENCE_S)
    assert not io._thread.is_alive()
    assert core.forced
    assert not io.close(PATIENCE_S)


def test_a_later_close_does_not_lengthen_the_first(io, core, monkeypatch):
    core.closes_when_asked = False
    interrupt_a_close(io, monkeypatch, 0.05)
    interrupt_a_close(io, monkeypatch, float("inf"))
    io._thread.join(PATIENCE_S)
    assert not io._thread.is_alive()


def test_an_interrupt_before_the_core_begins_to_close_does_not_lose_the_close(
    io, core, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(io, "initiate_close", interrupt)
        with pytest.raises(KeyboardInterrupt):
            io.close(PATIENCE_S)
    poke(io)  # the loop sleeps ten seconds at most
    io._thread.join(PATIENCE_S)
    assert not io._thread.is_alive()
    assert not core.forced


def test_an_end_that_cannot_be_forced_is_not_tried_in_every_turn(io, core, monkeypatch):
    forced = list[int]()
    core.closes_when_asked = False
    with monkeypatch.context() as patch:
        patch.setattr(core, "force_close", forced.append)
        interrupt_a_close(io, monkeypatch, 0)
        io.wait_until(lambda: False, 0.1)
        assert len(forced) == 1


def interrupt(*_):
    raise KeyboardInterrupt


def interrupt_a_close(io, monkeypatch, timeout_s):
    with monkeypatch.context() as patch:
        patch.setattr(io, "wait_until", interrupt)
        with pytest.raises(KeyboardInterrupt):
            io.close(timeout_s)


@pytest.mark.conformance("2.35")
def test_closing_in_a_callback_forces_the_end_and_does_not_wait_for_itself(io, core):
    core.closes_when_asked = False
    results = []
    with io.lock:
        core.callbacks.append(Callback(lambda: results.append(io.close(PATIENCE_S))))
        io.poke()
    io._thread.join(PATIENCE_S)
    assert results == [False]
    assert core.forced


def test_a_wait_ends_when_the_thread_has_ended(io):
    waiting = []
    thread = threading.Thread(target=lambda: waiting.append(io.wait_until(lambda: False, None)))
    thread.start()
    io.close(PATIENCE_S)
    thread.join(PATIENCE_S)
    assert waiting == [False]


def test_an_orphaned_loop_ends_in_good_order(io, core, client):
    io.orphan()
    io._thread.join(PATIENCE_S)
    assert not io._thread.is_alive()
    assert not core.forced


def test_an_orphaned_loop_that_cannot_end_is_forced_after_its_grace(io, core, monkeypatch):
    monkeypatch.setattr(io_thread, "_ORPHAN_GRACE_MS", -1)
    core.closes_when_asked = False
    io.orphan()
    assert io.wait_until(lambda: core.steps > 1, PATIENCE_S)
    poke(io)
    io._thread.join(PATIENCE_S)
    assert core.forced


def test_the_clocks_count_in_milliseconds():
    assert SYSTEM.wall_clock_ms() > 1_600_000_000_000
    assert 0 <= SYSTEM.monotonic_ms() - SYSTEM.monotonic_ms() + 1 <= 1


def test_a_thread_that_was_woken_too_early_is_woken_again():
    class PatientPlatform(Platform):
        wait_slice_s = PATIENCE_S  # otherwise the thread looks up by itself soon

    wait = WaitingThread(lambda: False, PatientPlatform())
    began_s = time.monotonic()
    for _ in range(2):
        wait.wake()
        wait.sleep(PATIENCE_S)
    assert time.monotonic() - began_s < PATIENCE_S / 2


# --- listeners of futures ------------------------------------------------------------------------


class Ended:
    """A future that has ended."""

    def pending_end(self):
        return None


def test_listeners_are_called_before_the_loop_ends(client, core):
    io = IoThread(client, "test-io")
    io.start(core)
    assert client.asleep.wait(PATIENCE_S)
    calls: list[object] = []
    future: Any = Ended()

    def fail_records(now_ms):
        if not core.forced:  # the loop and the caller both force it
            io.done_callbacks.hand_over([(future, calls.append)])
        core.forced = core.is_closed = True

    core.force_close = fail_records
    core.closes_when_asked = False
    io.close(0)
    assert len(calls) == 1
