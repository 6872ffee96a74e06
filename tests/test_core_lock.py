"""The core's lock, and how threads that send give way to the loop's: both implementations."""

from __future__ import annotations

import _thread
import ctypes
import gc
import os
import re
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs_compiled
from tests.waiting import becomes_true
from txnproducer._sync import core_lock
from txnproducer.errors import IllegalStateError

PATIENCE_S = 10.0
ROOT = Path(__file__).parent.parent
compiled: Any
try:
    compiled = import_module("txnproducer._sync._core_lock")
except ImportError:
    compiled = None

LOCKS = [
    pytest.param(core_lock.Lock, id="python"),
    pytest.param(lambda: compiled.Lock(), id="cython", marks=needs_compiled),
]
each_lock = pytest.mark.parametrize("new_lock", LOCKS)


def run(target, *arguments):
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


@contextmanager
def held_elsewhere(lock, seconds=PATIENCE_S):
    """Have another thread hold a lock, until the end of the block or so many seconds."""
    is_taken, is_over = threading.Event(), threading.Event()

    def hold():
        with lock:
            is_taken.set()
            is_over.wait(seconds)

    holder = run(hold)
    assert is_taken.wait(PATIENCE_S)
    yield
    is_over.set()
    holder.join(PATIENCE_S)


@each_lock
def test_a_lock_is_taken_once(new_lock):
    lock = new_lock()

    assert not lock.locked()
    assert lock.acquire()
    assert lock.locked()
    assert lock.is_mine()
    lock.release()
    assert not lock.locked()
    assert not lock.is_mine()
    with held_elsewhere(lock):
        assert lock.locked()
        assert not lock.is_mine()
        assert not lock.acquire(blocking=False)
    with lock:
        assert lock.locked()
    assert not lock.locked()


@needs_compiled
def test_the_collector_takes_no_bell_from_a_lock_in_a_cycle():
    for made in (compiled.Lock(), compiled.LoopPriority()):
        assert not gc.is_tracked(made)


@each_lock
def test_a_lock_is_released_when_the_block_fails(new_lock):
    lock = new_lock()

    with pytest.raises(ZeroDivisionError):
        with lock:
            _ = 1 // 0

    assert not lock.locked()


@each_lock
def test_a_lock_that_is_not_held_cannot_be_released(new_lock):
    lock = new_lock()
    with pytest.raises(RuntimeError):
        lock.release()
    assert lock.acquire(blocking=False)


@each_lock
def test_a_wait_with_a_time_out_ends(new_lock):
    lock = new_lock()
    with held_elsewhere(lock):
        began = time.monotonic()

        assert not lock.acquire(timeout=0.05)

        assert 0.04 <= time.monotonic() - began < PATIENCE_S
    assert lock.acquire(timeout=0.05)


@each_lock
def test_a_wait_ends_when_the_other_thread_lets_go(new_lock):
    lock = new_lock()
    with held_elsewhere(lock, seconds=0.05):
        assert lock.acquire(timeout=PATIENCE_S)
        assert lock.is_mine()
        lock.release()


@needs_compiled
def test_the_compiled_lock_does_not_wait_for_its_own_thread():
    lock = compiled.Lock()
    with lock, pytest.raises(IllegalStateError, match="interrupts another call"):
        lock.acquire()
    assert not lock.locked()


@needs_compiled
def test_a_block_that_is_refused_leaves_the_lock_to_the_outer_one():
    lock = compiled.Lock()
    with lock:
        with pytest.raises(IllegalStateError):
            core_lock.enter(lock)
        assert lock.is_mine()


@each_lock
def test_no_two_threads_are_inside(new_lock):
    lock = new_lock()
    inside: list[None] = []
    most: list[int] = []

    def enter():
        for _ in range(300):
            with lock:
                inside.append(None)
                most.append(len(inside))
                time.sleep(0)  # lets another thread run, which must not come in
                inside.pop()

    for thread in [run(enter) for _ in range(4)]:
        thread.join(PATIENCE_S)

    assert len(most) == 4 * 300
    assert set(most) == {1}


@each_lock
def test_no_wait_is_forgotten_where_others_give_up(new_lock):
    lock = new_lock()
    taken: list[int] = []

    def enter(number):
        for turn in range(2_000):
            # Two of three waits are so short that they mostly end while the lock is given up.
            if lock.acquire(timeout=1e-5 if (turn + number) % 3 else -1):
                taken.append(number)
                lock.release()

    threads = [run(enter, number) for number in range(6)]
    for thread in threads:
        thread.join(PATIENCE_S)

    assert not any(thread.is_alive() for thread in threads)
    assert len(taken) >= 6 * 2_000 // 3
    assert not lock.locked()


def take_until_a_signal(lock, seconds):
    """Take and release a lock again and again, until a signal interrupts it."""

    def take():
        # Once more after a second: the first exception is lost if a finalizer runs at that moment.
        signal.setitimer(signal.ITIMER_REAL, seconds, 1)
        try:
            while True:
                lock.acquire()
                lock.release()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    with pytest.raises(ZeroDivisionError):
        take()
    if lock.is_mine():
        lock.release()


@each_lock
def test_no_wait_is_forgotten_where_signals_end_others(new_lock):
    lock, is_over, turns = new_lock(), threading.Event(), [0, 0]

    def enter(number):
        while not is_over.is_set():
            with lock:
                turns[number] += 1
                time.sleep(0)

    before = signal.signal(signal.SIGALRM, lambda *_: 1 // 0)
    try:
        threads = [run(enter, number) for number in range(2)]
        for turn in range(300):
            take_until_a_signal(lock, 1e-4 * (turn % 7 + 1))
    finally:
        signal.signal(signal.SIGALRM, before)
    seen = list(turns)
    assert becomes_true(lambda: turns[0] > seen[0] and turns[1] > seen[1])
    is_over.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)


@needs_compiled
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_that_a_signal_handler_forked_in_a_wait_goes_on():
    lock = compiled.Lock()

    def fork(*_):
        if os.fork():
            raise KeyboardInterrupt  # in the parent
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(2 * round(PATIENCE_S))
        lock.reset_after_fork()

    before = signal.signal(signal.SIGALRM, fork)
    try:
        with held_elsewhere(lock):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with suppress(KeyboardInterrupt):
                lock.acquire()
                os._exit(0 if can_be_waited_for(lock) else 3)  # in the child
    finally:
        signal.signal(signal.SIGALRM, before)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    assert not lock.locked()


def can_be_waited_for(lock):
    """Return whether another thread gets a lock once this one has released it."""
    waiting = run(lock.acquire)
    time.sleep(0.05)  # no event tells that it is in its wait
    lock.release()
    waiting.join(PATIENCE_S)
    return not waiting.is_alive()


@each_lock
def test_ctrl_c_ends_a_wait(new_lock):
    lock = new_lock()
    timer = threading.Timer(0.05, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    with held_elsewhere(lock):
        timer.start()

        with pytest.raises(KeyboardInterrupt):
            with lock:
                pytest.fail("somebody else has the lock")

        timer.join()
        assert lock.locked()  # by its holder; the wait has no effect
    assert not lock.locked()


# --- the loop's priority -------------------------------------------------------------------------


def test_the_first_waits_for_the_holder_of_the_lock():
    priority, lock, has_it = core_lock.new_loop_priority(), core_lock.new_lock(), threading.Event()

    def take():
        priority.take_first(lock)
        has_it.set()

    lock.acquire()
    thread = run(take)
    assert not has_it.wait(0.05)  # in which a thread that need not wait would have it
    lock.release()

    assert has_it.wait(PATIENCE_S)
    thread.join(PATIENCE_S)
    assert lock.locked()


def test_giving_way_does_not_sleep_where_no_thread_wants_to_go_first():
    priority = core_lock.new_loop_priority()
    began = time.monotonic()

    for _ in range(10_000):
        priority.give_way()

    assert time.monotonic() - began < PATIENCE_S  # three milliseconds each would be 30 s


@needs_compiled
def test_a_thread_that_gives_way_goes_on_when_the_other_has_the_lock():
    # Without giving way the lock would still be free: the other thread cannot have taken it while
    # this one never let go of the interpreter.
    seen = [is_taken_after_giving_way() for _ in range(50)]
    assert sum(seen) >= 10  # a busy machine may not wake the other one in three milliseconds


def is_taken_after_giving_way():
    priority, lock = compiled.LoopPriority(), compiled.Lock()
    lock.acquire()
    is_there = _thread.allocate_lock()
    is_there.acquire()

    def take():
        is_there.release()
        priority.take_first(lock)

    thread = run(take)
    is_there.acquire()
    time.sleep(0.002)  # no event tells that it is in its wait for the lock
    lock.release()
    priority.give_way()
    is_taken = lock.locked()
    thread.join(PATIENCE_S)
    return is_taken


@needs_compiled
def test_a_thread_that_gives_way_without_need_goes_on_after_a_moment():
    priority, lock = compiled.LoopPriority(), compiled.Lock()
    lock.acquire()
    thread = run(priority.take_first, lock)
    time.sleep(0.02)  # no event tells that it is in its wait for the lock
    began = time.monotonic()

    priority.give_way()  # without success: this thread still has the lock

    assert time.monotonic() - began < PATIENCE_S
    lock.release()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


@needs_compiled
def test_all_threads_that_give_way_go_on():
    priority, lock, gone_on = compiled.LoopPriority(), compiled.Lock(), []
    lock.acquire()
    first = run(priority.take_first, lock)
    time.sleep(0.02)  # no event tells that it is in its wait for the lock
    others = [run(lambda: gone_on.append(priority.give_way())) for _ in range(8)]
    lock.release()

    for thread in (first, *others):
        thread.join(PATIENCE_S)

    assert len(gone_on) == 8


def method_in_c(priority, name, kind):
    """Return one of its methods that Python does not see, called with the interpreter held."""
    types = (ROOT / "compiled/txnproducer/_sync/_core_lock.pxd").read_text("utf-8")
    names = re.findall(r"cdef \w+ (\w+)\(self", types.partition("class LoopPriority")[2])
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    table = pointer(type(priority).__pyx_vtable__, None)
    methods = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))
    call = kind(None, ctypes.py_object)(methods[names.index(name)])
    return lambda: call(priority)


@needs_compiled
def test_a_wakeup_after_the_end_of_a_sleep_ends_no_other_sleep():
    priority = compiled.LoopPriority()
    want = method_in_c(priority, "want_interpreter", ctypes.PYFUNCTYPE)
    have = method_in_c(priority, "have", ctypes.PYFUNCTYPE)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(PATIENCE_S)
    try:
        want()
        thread = run(priority.give_way)  # which is asleep when this goes on
        woken_at = time.monotonic() + 0.05
        while time.monotonic() < woken_at:
            pass  # it wants to go on, and cannot
        have()
    finally:
        sys.setswitchinterval(interval_s)
    thread.join(PATIENCE_S)

    want()
    began = time.monotonic()
    priority.give_way()
    assert time.monotonic() - began > 0.002


@needs_compiled
def test_only_its_own_lock_can_be_taken():
    for other in (None, threading.Lock()):
        with pytest.raises(TypeError):
            compiled.LoopPriority().take_first(other)
