"""The baton of a test in virtual time: an interrupt may end any wait of it.

Why it exists: the simulator knows no signals. In a test, Ctrl-C or a time-out of pytest raises an
exception in the wait of a thread that has passed the baton on, and the test goes on from there.
Owns: the taking back of the baton, the end of the threads. Must not know: the model, producers.

Rule: handlers of signals run on the main thread. What must not end half-way, such as a timer of
the model, runs on another one, and the main thread waits for it.
"""

from __future__ import annotations

import _thread
import contextlib
import random
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from txnproducer.sim.stack.baton import Baton, Timers, Turn

__all__ = ["InterruptibleBaton", "run_whole"]

_T = TypeVar("_T")

# A signal that comes while the main thread waits for the interpreter's lock, right before it waits
# for another lock, ends no wait: CPython asks for signals after that call.
_LOOK_S: Final = 0.05


class _Job:
    """An action that another thread runs, wholly or not at all."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self._action = action
        self._result: Any = None
        self._error: BaseException | None = None
        # Taken by the thread that begins, or by the caller that gives up before.
        self._claim = threading.Lock()
        self._is_over = False
        self._over = threading.Lock()
        self._over.acquire()

    def run(self) -> None:
        """Run the action, unless the caller has given up."""
        if not self._claim.acquire(blocking=False):
            return
        try:
            self._result = self._action()
        except BaseException as error:  # noqa: BLE001 - it is raised to the caller
            self._error = error
        self._is_over = True
        self._over.release()

    def wait(self) -> None:
        """Wait for the end of the action."""
        # An interrupt may come when the lock is taken already: the lock alone would be waited for.
        while not self._is_over:
            self._over.acquire(timeout=_LOOK_S)

    def give_up(self) -> None:
        """Wait for the end of the action if it has begun. Otherwise it never will."""
        if not self._claim.acquire(blocking=False):
            self.wait()

    def result(self) -> Any:
        """Return the result, or raise the error."""
        if self._error is not None:
            raise self._error
        return self._result


def run_whole(action: Callable[[], _T], at_interrupt: Callable[[], None] = lambda: None) -> _T:
    """Return the result of an action that an exception of a signal handler does not end half-way.

    Such an exception is raised after the action's end, or before its begin.

    Args:
        action: what to run.
        at_interrupt: makes the action end soon.
    """
    if threading.current_thread() is not threading.main_thread():
        return action()
    job = _Job(action)
    try:
        _thread.start_new_thread(job.run, ())
        job.wait()
    except BaseException:
        at_interrupt()
        job.give_up()
        raise
    result: _T = job.result()
    return result


class _Go:
    """Stands for the semaphore of a turn. A release too many has no effect.

    Args:
        has_baton: whether the turn has the baton.
    """

    def __init__(self, has_baton: Callable[[], bool]) -> None:
        self._has_baton = has_baton
        self._bell = threading.Lock()
        self._bell.acquire()

    def acquire(self) -> None:
        # Asked again after each release: an interrupted thread releases once more.
        while not self._has_baton():
            self._bell.acquire(timeout=_LOOK_S)

    def release(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is released already
            self._bell.release()


class InterruptibleBaton(Baton):
    """A baton that a thread gets back if an exception ends its wait.

    Args:
        timers: of the model.
    """

    def __init__(self, timers: Timers) -> None:
        # No thread goes on where another one could: a test wants the same order each time.
        super().__init__(random.Random(1), timers, switch_rate=0.0)
        self._can_be_interrupted(self._first)

    def enroll(self, turn: Turn) -> None:
        """Let a new thread take part."""
        self._can_be_interrupted(turn)
        super().enroll(turn)

    def wait(self, is_ready: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """See `Baton.wait`. After an exception this thread has the baton again."""
        self.check_thread()
        turn = self._running
        try:
            return super().wait(is_ready, timeout_s)
        except BaseException:
            self._take_back(turn)
            raise

    def check_can_end(self) -> None:
        """Refuse a thread that cannot end the others.

        Raises:
            RuntimeError: the caller is not the thread that made the baton.
        """
        self.check_thread()
        # A thread of a producer that runs a callback. A call of the first thread waits for it, and
        # would have to return to a cluster that has ended in its midst.
        if self._running is not self._first:
            raise RuntimeError(
                "a delivery callback cannot close an InMemoryKafka in virtual time: call close()"
                " after the call that runs the callback, in the thread that has made the cluster"
            )

    def end_threads(self) -> None:
        """End all threads but the first, each where it waits.

        Raises:
            RuntimeError: the caller is not the thread that made the baton.
        """
        self.check_can_end()
        ended = [turn for turn in self._turns if turn is not self._first]
        for turn in ended:
            turn.is_killed = True
            # It may wait without a limit, and has to go on in order to end.
            turn.is_ready = _always
        self.wait(lambda: all(turn.is_over for turn in ended))
        for turn in ended:
            # Not the thread's own, which returns when it has passed the baton on.
            threading.Thread.join(turn.thread)

    def _following(self) -> Turn:
        """Return the thread that goes on. If none can, the first one gets the error."""
        turn = self._running

        def stay() -> None:
            turn.is_ready = _always

        return run_whole(super()._following, stay)

    def _can_be_interrupted(self, turn: Turn) -> None:
        turn.go = cast(threading.Semaphore, _Go(lambda: self._running is turn))

    def _take_back(self, turn: Turn) -> None:
        # The error may be the wait's own, and then the thread has the baton.
        turn.is_ready = _always
        while self._running is not turn:
            # The interrupt may have come between the choice of the next thread and its release.
            self._running.go.release()
            turn.go.acquire()


def _always() -> bool:
    return True
