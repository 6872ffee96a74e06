"""The baton: real threads, of which one runs at a time, and a time that only waiting moves.

Why it exists: the shell has threads and locks, and their order decides whether a wake-up is lost.
Here a seed decides it, so that a run can be repeated.
Owns: the threads of a run, the time, the events that are due. Must not know: the threads' work.

Rules:
* A thread gives the baton away only in a call of the platform: where it waits, and where it might.
* Time stands still while any thread can go on. Then it moves to the next event or time limit.
* A thread that is killed, as by the end of its process, raises at its next call of the platform.
"""

from __future__ import annotations

import heapq
import math
import random
import threading
from collections.abc import Callable
from typing import Protocol

__all__ = ["Baton", "KilledError", "StuckError", "VirtualThread"]

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
# 2026-01-01: where the wall clock begins.
_BEGAN_MS = 1_767_225_600_000
# A run with so many hand-overs at one moment does nothing in them.
_SPINNING = 50_000
# Of the hand-overs, those after which a thread stands still.
_PREEMPTED = 0.1


class KilledError(BaseException):
    """The process of the thread was killed."""


class StuckError(BaseException):
    """No thread can ever go on, or none lets time pass."""


class Timers(Protocol):
    """The model's own timers."""

    def next_event_ms(self) -> int:
        """Return when the next one is due."""
        ...

    def advance(self, now_ms: int) -> None:
        """Run those that are due."""
        ...


class VirtualThread(threading.Thread):
    """A thread that runs while it has the baton.

    Args:
        baton: passed on at each wait.
        target: the thread's work.
        name: its name.

    Attributes:
        process: the name of the process that it belongs to; a new thread inherits its starter's.
    """

    def __init__(self, baton: Baton, target: Callable[[], object], name: str) -> None:
        # A daemon: a thread that never gets the baton must not keep the process alive.
        super().__init__(name=name, daemon=True)
        self._baton = baton
        self._work = target
        self.turn = Turn(self, baton.process)

    def start(self) -> None:
        """Let the thread run, some time from now on."""
        # By its starter: if it enrolled itself, the order of the turns would be up to the system.
        self._baton.enroll(self.turn)
        super().start()

    def run(self) -> None:
        """Wait for the baton, work, and pass it on."""
        self.turn.go.acquire()
        try:
            self.turn.raise_if_killed()
            self._work()
        # The end of its process is no failure of the thread.
        except KilledError:
            pass
        except BaseException as error:  # noqa: BLE001 - no thread's end may be missed
            self._baton.failures.append((self.name, error))
        finally:
            self._baton.leave(self.turn)

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the thread."""
        self._baton.wait(lambda: self.turn.is_over, timeout)

    def is_alive(self) -> bool:
        """Return whether the thread has started and not ended."""
        return self.turn.is_enrolled and not self.turn.is_over


class Turn:
    """One thread's place in the order.

    Attributes:
        thread: the thread.
        process: the name of its process.
        go: released when it gets the baton.
        is_ready: whether it can go on.
        until_ns: when it goes on in any case.
        error: raised when it next goes on.
        is_over: whether it has ended.
        is_preempted: whether it stands still although it could go on.
    """

    def __init__(self, thread: threading.Thread, process: str) -> None:
        self.thread = thread
        self.process = process
        # A semaphore, since the baton may be passed to a thread before it waits for it.
        self.go = threading.Semaphore(0)
        self.is_ready: Callable[[], bool] = _always
        self.until_ns: float = math.inf
        self.error: BaseException | None = None
        self.is_killed = self.is_over = self.is_enrolled = self.is_preempted = False

    def raise_if_killed(self) -> None:
        """Raise at each call of the platform once the process has ended."""
        if self.is_killed:
            raise KilledError


def _always() -> bool:
    return True


def _never() -> bool:
    return False


class Baton:
    """Let one thread of a run go on at a time. The thread that makes the baton has it first.

    Args:
        rng: chooses the next thread.
        timers: of the model.
        switch_rate: the probability of a hand-over where a thread could go on.

    Attributes:
        now_ns: the time.
        tick_ns: added to the time by each look at the clock.
        wall_ahead_ms: how far the wall clock is ahead of the time.
        longest_stall_s: the longest time for which a thread stands still where it could go on.
        failures: the threads that ended with an exception, and it.
        is_passing: whether the baton is being passed on, which stands for no code of the thread.
    """

    def __init__(self, rng: random.Random, timers: Timers, switch_rate: float = 0.1) -> None:
        self.now_ns = NS_PER_S
        self.tick_ns = 0
        self.wall_ahead_ms = _BEGAN_MS
        self.longest_stall_s = 0.01
        self.failures: list[tuple[str, BaseException]] = []
        self.is_passing = False
        self._rng = rng
        self._timers = timers
        self._switch_rate = switch_rate
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._stalled = 0
        self._first = self._running = Turn(threading.current_thread(), "")
        self._first.is_enrolled = True
        self._turns = [self._first]

    # --- time and events ------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        """The time in milliseconds, as the model counts it."""
        return self.now_ns // NS_PER_MS

    def read_clock(self) -> int:
        """Return the time in nanoseconds, for a thread that asks for it."""
        self.now_ns += self.tick_ns
        return self.now_ns

    def call_after(self, delay_ms: float, action: Callable[[], None]) -> None:
        """Schedule an event. It runs on the thread that lets time pass."""
        # Events of one moment run in the order of their planning. Functions cannot be compared.
        self._order += 1
        due_ns = self.now_ns + round(delay_ms * NS_PER_MS)
        heapq.heappush(self._events, (due_ns, self._order, action))

    # --- threads --------------------------------------------------------------------------------

    @property
    def process(self) -> str:
        """The process of the thread that runs."""
        return self._running.process

    @process.setter
    def process(self, name: str) -> None:
        self._running.process = name

    @property
    def current(self) -> threading.Thread:
        """The thread that runs."""
        return self._running.thread

    @property
    def others(self) -> list[threading.Thread]:
        """The threads that have started and not ended, but for the first."""
        return [turn.thread for turn in self._turns if turn is not self._first]

    def enroll(self, turn: Turn) -> None:
        """Let a new thread take part."""
        turn.is_enrolled = True
        turn.process = self.process
        self._turns.append(turn)

    def leave(self, turn: Turn) -> None:
        """End a thread's part, and pass the baton on without waiting for it again."""
        turn.is_over = True
        # Before the next one is chosen: otherwise it could be this thread, which never goes on.
        self._turns.remove(turn)
        self._give(self._following())

    def kill(self, process: str) -> None:
        """End all threads of a process, each at its next call of the platform."""
        for turn in self._turns:
            if turn.process == process:
                turn.is_killed = True
                # It may wait without a limit, and has to go on in order to raise.
                turn.is_ready = _always

    def interrupt(self, thread: threading.Thread, error: BaseException) -> bool:
        """Raise an exception in a thread that waits, as a signal handler does.

        Returns:
            Whether it waits.
        """
        for turn in self._turns:
            if turn.thread is thread and turn is not self._running:
                turn.error = error
                turn.is_ready = _always
                return True
        return False

    # --- waiting --------------------------------------------------------------------------------

    def wait(self, is_ready: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Give the baton away until a condition holds or the time is up. Return whether it holds.

        Args:
            is_ready: cheap and without side effects.
            timeout_s: in seconds; None or a negative number for no limit.
        """
        # A thread from outside has no turn: it would wait in the place of the one that runs.
        self.check_thread()
        turn = self._running
        turn.raise_if_killed()
        turn.is_ready = is_ready
        turn.until_ns = math.inf
        # A lock that is taken without a limit has the time-out -1.
        if timeout_s is not None and timeout_s >= 0:
            turn.until_ns = self.now_ns + timeout_s * NS_PER_S
        following = self._following()
        if following is not turn:
            self._give(following)
            turn.go.acquire()
        turn.is_ready, turn.until_ns = _always, math.inf
        error, turn.error = turn.error, None
        if error is not None:
            raise error
        turn.raise_if_killed()
        # Asked again, since the time may have ended the wait.
        return is_ready()

    def check_thread(self) -> None:
        """Refuse a thread that takes no part.

        Raises:
            RuntimeError: the caller has not got the baton.
        """
        if threading.current_thread() is not self._running.thread:
            raise RuntimeError(
                "virtual time belongs to the thread that has made the cluster: a test with threads"
                ' of its own needs clock="real"'
            )

    def raise_if_killed(self) -> None:
        """Raise if the process of the thread that runs has ended."""
        self._running.raise_if_killed()

    def may_switch(self) -> None:
        """Give the baton away, perhaps, although the thread can go on."""
        # Also without a switch: a killed process makes no further call of the system.
        self._running.raise_if_killed()
        if self._rng.random() >= self._switch_rate:
            return
        if self._rng.random() < _PREEMPTED:
            # Meanwhile bytes arrive, and what waits for them goes on.
            turn = self._running
            turn.is_preempted = True
            try:
                self.wait(_never, self.longest_stall_s * 10 ** self._rng.uniform(-3, 0))
            finally:
                turn.is_preempted = False
        else:
            self.wait(_always)

    def _give(self, turn: Turn) -> None:
        self._running = turn
        turn.go.release()

    def _following(self) -> Turn:
        """Return the thread that goes on. If none can, the first one gets the error."""
        self.is_passing = True
        try:
            return self._next()
        except StuckError as error:
            # Whichever thread finds it, the error has to end the run, and the first one runs that.
            self._first.error = error
            return self._first
        finally:
            self.is_passing = False

    def _next(self) -> Turn:
        """Return the thread that goes on. Let time pass until there is one."""
        while True:
            self._run_due()
            ready = [t for t in self._turns if t.until_ns <= self.now_ns or t.is_ready()]
            if ready:
                self._stalled += 1
                if self._stalled > _SPINNING:
                    # From zero again, since the end of the run's threads takes hand-overs too.
                    self._stalled = 0
                    raise StuckError(f"{[t.thread.name for t in ready]} go on without a pause")
                return ready[0] if len(ready) == 1 else self._rng.choice(ready)
            # A thread that spins does so in spite of the pauses that it is made to take.
            if not any(turn.is_preempted for turn in self._turns):
                self._stalled = 0
            # Only what ends a wait: the model's own timers never end.
            due = min(t.until_ns for t in self._turns)
            if self._events:
                due = min(due, self._events[0][0])
            if due == math.inf:
                waiting = [t.thread.name for t in self._turns]
                raise StuckError(f"{waiting} wait without a limit, and nothing can wake them")
            timer_ns = self._timers.next_event_ms() * NS_PER_MS
            # Rounded up: before the end of a wait no thread can go on, and time would stand.
            self.now_ns = max(self.now_ns, math.ceil(min(due, timer_ns)))

    def _run_due(self) -> None:
        while self._events and self._events[0][0] <= self.now_ns:
            heapq.heappop(self._events)[2]()
        if self._timers.next_event_ms() <= self.now_ms:
            self._timers.advance(self.now_ms)
