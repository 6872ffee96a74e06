"""Drive the core and the client from one thread, and let application threads wait for them.

Why it exists: the core is a state machine without time, and the client a loop that somebody has
to turn. This module is that somebody: the only long-lived thread, the only clock, the only lock.
Owns: the lock that guards every call into the core, the loop, waiting, the end of both.
Must not know: what a transaction is. It moves events, asks the core for its next step, runs
delivery callbacks, and nothing else.

Rules:
* The core is only called with `lock` held, the client's `poll` and users' callbacks only without.
* One hold of the lock per turn of the loop: handle what came, take one step, look who waits (and
  one more where there are batches to compress, which is done between the two). Each
  hand-over of the lock or of the interpreter costs more than the step itself, so an application
  thread pokes the loop only while it sleeps in `poll`, and the loop wakes a waiting thread only
  when what it waits for has happened.
* An exception in a turn is logged and the loop goes on (a lost turn must not strand everybody who
  waits), ever slower while it repeats, so that a permanent fault neither spins nor floods the log.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from txnproducer._core.batches.results import CallbackBatch
from txnproducer._protocol.backoff import doubled
from txnproducer._protocol.events import ClientEvent
from txnproducer._shell import refusals
from txnproducer._shell.refused_sends import RefusedSends
from txnproducer._sync.core_lock import PassedBy, new_lock, new_turnstile, refuse_reentry
from txnproducer.errors import IllegalStateError, KafkaError

_LOG = logging.getLogger(__name__)

# A waiting thread looks up this often even if nobody calls it: on platforms where a lock's
# acquire cannot be interrupted this is what lets Ctrl-C in.
_WAIT_SLICE_S = 0.5
# The longest sleep in `poll`, whatever the core says.
_LONGEST_POLL_MS = 10_000
_FIRST_PAUSE_MS = 10
_LONGEST_PAUSE_MS = 2_000
# How long a forced close may take: it only fails what is left, and waits for no broker.
_FORCED_CLOSE_S = 5.0
# After so long without a failed turn the next one is the first again.
_RECOVERED_MS = 60_000
# How long a producer that was dropped without `close()` may go on delivering.
_ORPHAN_GRACE_MS = 30_000
# What `timeout=float("inf")` comes to.
_LONGEST_CLOSE_S = 1e9
# Between two attempts to force an end.
_FORCE_AGAIN_MS = 1_000


def monotonic_ms() -> int:
    """Return the time that the core counts in: monotonic, from an arbitrary start."""
    return time.monotonic_ns() // 1_000_000


def monotonic_ns() -> int:
    """Return the same time in nanoseconds, to measure how long something took."""
    return time.monotonic_ns()


def wall_clock_ms() -> int:
    """Return the time for records' timestamps: milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class DrivenCore(Protocol):
    """What the loop needs of a core."""

    needs_wakeup: bool

    @property
    def is_closed(self) -> bool:
        """Tell whether nothing is left to do and everything waiting has been answered."""
        ...

    def run_once(self, now_ms: int) -> int:
        """Take one step; return after how many milliseconds the next is due."""
        ...

    def handle(self, event: ClientEvent, now_ms: int) -> None:
        """Take in an answer or news of a connection."""
        ...

    @property
    def has_full_batches(self) -> bool:
        """Tell whether there are batches to compress; asked without the lock."""
        ...

    def take_full_batches(self) -> Sequence[FullBatch]:
        """Return what to compress, without the lock."""
        ...

    def take_newest_full_batch(self) -> FullBatch | None:
        """Return one to compress likewise, for another thread than the loop's."""
        ...

    def take_callbacks(self) -> Sequence[CallbackBatch]:
        """Return the batches of callbacks that became due, and forget them.

        Not the list that others come into: what came behind the lock would be run twice.
        """
        ...

    def lose_record(self, error: KafkaError) -> None:
        """Take in that a record of the open transaction is lost."""
        ...

    def finish_callbacks(self, batch: CallbackBatch) -> None:
        """Complete what waited for these callbacks."""
        ...

    def initiate_close(self, now_ms: int) -> None:
        """Begin to end in good order."""
        ...

    def force_close(self, now_ms: int) -> None:
        """Fail all that is left, at once."""
        ...


class FullBatch(Protocol):
    """What the loop needs of the records of a batch that takes no more."""

    def compress(self) -> None:
        """Compress it, ahead of the step that sends it."""
        ...


class PolledClient(Protocol):
    """What the loop needs of a client."""

    def poll(self, timeout_ms: int, now_ms: int) -> Sequence[ClientEvent]:
        """Move bytes until something happens or the time is up; return what happened."""
        ...

    def wakeup(self) -> None:
        """End a `poll` that is under way, from another thread."""
        ...

    def hurry(self) -> None:
        """Give up attempts to connect that take more than a second, from now on."""
        ...

    def close(self) -> None:
        """Close every connection."""
        ...


class WaitInCallbackError(IllegalStateError):
    """The refusal of a call that would have to wait, in a delivery callback."""


class _Wait:
    """One thread that waits: it sleeps without the loop's lock, and takes it to look.

    A Condition would take the lock again by itself, and an interrupt (Ctrl-C) just there leaves
    without it; `with` would then release it under the loop's hands.

    Args:
        is_done: what it waits for; called with the loop's lock held.
    """

    __slots__ = ("_is_woken", "_sleep", "is_done")

    def __init__(self, is_done: Callable[[], bool]) -> None:
        self.is_done = is_done
        self._is_woken = False
        self._sleep = threading.Lock()
        self._sleep.acquire()

    def wake(self) -> None:
        """End the sleep, or the next one. Call with the loop's lock held."""
        if not self._is_woken:
            self._is_woken = True
            self._sleep.release()

    def sleep(self, timeout_s: float) -> None:
        """Sleep until somebody wakes this, or the time is up. Call without the loop's lock."""
        if self._sleep.acquire(timeout=timeout_s):
            self._is_woken = False


class IoThread:
    """The loop, its lock, and the waiting for it (the core's `Waiter`).

    Attributes:
        lock: guards the core; hold it around every call into it.
        turnstile: where threads that send without a pause give way to this one.
        refused_sends: of the delivery callbacks that run now.

    Args:
        client: carries the requests; closed by this thread when it ends.
        name: the thread's name.
        turnstile: the client's, too; none is one of its own.
    """

    def __init__(self, client: PolledClient, name: str, turnstile: PassedBy | None = None) -> None:
        self.turnstile = turnstile or new_turnstile()
        self.lock = new_lock()
        self.refused_sends = RefusedSends()
        self._client = client
        self._core: DrivenCore | None = None
        self._waits: list[_Wait] = []
        self._leaving = threading.Event()
        self._is_polling = False
        self._is_orphaned = False
        self._ends_by_ms: int | None = None  # when the loop forces its end; None while it is open
        self._was_forced = False
        self._must_stop = False
        self._has_stopped = False
        self._pid = os.getpid()
        self._closing: set[int] = set()  # the threads that are in `close`
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, core: DrivenCore) -> None:
        """Begin to drive a core (which itself needed this object as its `Waiter`)."""
        self._core = core
        self._thread.start()

    # --- for application threads ---------------------------------------------------------------

    @property
    def is_current(self) -> bool:
        """Tell whether the caller runs on this thread, that is, in a delivery callback."""
        return threading.get_ident() == self._thread.ident

    def refuse_in_callback(self) -> None:
        """Refuse a call that would wait for its own thread.

        Raises:
            WaitInCallbackError: the caller is a delivery callback.
        """
        if self.is_current:
            raise WaitInCallbackError(
                "a delivery callback runs on the thread that does the work, and cannot wait"
                " for it: call this on another thread"
            )

    def poke(self) -> None:
        """End the loop's sleep, because the core has work. Call with `lock` held."""
        if self._is_polling:
            self._client.wakeup()
            self._is_polling = False  # last: an interrupt before would lose the wake-up

    def notify(self) -> None:
        """Wake the waiting threads if what one waits for has happened. Call with `lock` held."""
        for wait in self._waits:
            if wait.is_done():
                wait.wake()

    def refuse_in_fork(self) -> None:
        """Refuse to wait, or to be asked for an end, where the loop's thread does not exist.

        Raises:
            ForkedProducerError: this process is a fork of the one that made this.
        """
        if self._is_forked:
            raise refusals.forked("wait for a result")

    def wait_until(self, is_done: Callable[[], bool], timeout_s: float | None) -> bool:
        """Block until `is_done()`, the time-out, or the end of the thread.

        Args:
            is_done: cheap and without side effects; called with `lock` held, on several threads.
            timeout_s: seconds, or None to wait as long as the loop lives.

        Returns:
            What `is_done()` said last.

        Raises:
            WaitInCallbackError: called in a delivery callback, which would wait for itself.
            ForkedProducerError: called in a fork, where the loop's thread does not exist.
        """
        self.refuse_in_fork()
        refuse_reentry(self.lock, "result")
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        wait = _Wait(is_done)
        with self.lock:
            if is_done():
                return True
            self.refuse_in_callback()
        try:
            with self.lock:
                self._waits.append(wait)
            return self._wait(wait, deadline)
        finally:
            with self.lock:
                if wait in self._waits:
                    self._waits.remove(wait)

    def _wait(self, wait: _Wait, deadline: float | None) -> bool:
        while True:
            self.refuse_in_fork()  # a signal handler may have forked during the sleep
            with self.lock:
                if wait.is_done():
                    return True
                left = _WAIT_SLICE_S if deadline is None else deadline - time.monotonic()
                if left <= 0 or self._has_stopped:
                    return False
                # The loop's thread begins with those that are sent first.
                batch = self._driven.take_newest_full_batch()
            if batch is None:
                wait.sleep(min(left, _WAIT_SLICE_S))
            else:
                self._compress_one(batch)

    # --- the end -------------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """Whether the loop has ended, and with it all that it had to do.

        `Thread.is_alive` is no witness: on Python 3.11 an interrupted `join` marks a
        thread as stopped while it still runs (bpo-45274).
        """
        return self._has_stopped

    @property
    def can_wait_for_end(self) -> bool:
        """Whether the caller may wait: not in a callback, nor where it interrupts its `close`."""
        return not self.is_current and threading.get_ident() not in self._closing

    def initiate_close(self) -> None:
        """Begin to end in good order, without waiting."""
        with self.lock:
            self._driven.initiate_close(monotonic_ms())
            self.poke()
            self.notify()

    def initiate_close_at_exit(self) -> None:
        """Begin to end in good order within the few seconds of the interpreter's exit."""
        self._client.hurry()
        self.initiate_close()

    def close(self, timeout_s: float, forced_s: float | None = None) -> bool:
        """End in good order within the time-out, and then by force.

        Several threads may call it: each waits for the same end, and the first whose time is up
        forces it. In a delivery callback it ends by force at once and waits for nothing. An
        interrupt ends only the waiting: the loop goes on to the same end, and forces it itself
        when the time is up.

        Args:
            timeout_s: seconds to end in good order.
            forced_s: seconds to wait for the thread after that; None for a few.

        Returns:
            True if it ended in good order.
        """
        core = self._driven
        if self.is_current:
            self._force()
            return False
        caller = threading.get_ident()
        try:
            self._closing.add(caller)
            self._end_by(monotonic_ms() + round(min(timeout_s, _LONGEST_CLOSE_S) * 1000))
            self.initiate_close()
            if not self.wait_until(lambda: core.is_closed, timeout_s):
                self._force()
            self._await_end(_FORCED_CLOSE_S if forced_s is None else forced_s)
        finally:  # whatever interrupts that, a later close has to wait again
            self._closing.discard(caller)
        return not self._was_forced

    def _end_by(self, time_ms: int) -> None:
        """Have the loop force its end then, if nobody does before."""
        with self.lock:
            if self._ends_by_ms is None or time_ms < self._ends_by_ms:
                self._ends_by_ms = time_ms

    def _await_end(self, timeout_s: float) -> None:
        if self.wait_until(lambda: self._has_stopped, timeout_s):
            self._thread.join(timeout_s)  # it has nothing left to do but to return
            return
        # A core that cannot even be forced must not keep the thread (and the process) alive.
        self._must_stop = True
        self._leaving.set()
        with self.lock:
            self.poke()

    def orphan(self) -> None:
        """Tell the loop that nobody can call any more: deliver what is there, then end.

        Takes no lock, since it runs in a finalizer, perhaps of a thread that holds it.
        """
        if not self._must_stop:  # else it ends anyway, or is the parent's, if this is a fork
            self._is_orphaned = True
            self._client.wakeup()

    def disown(self) -> None:
        """Learn that this process is a fork of the one that made this. Call before anything else.

        The thread does not exist here, unless a delivery callback has forked: then it must not
        touch connections that are the parent's.
        """
        self._must_stop = True
        if not self.lock.is_mine():  # else the call that forked releases it
            self.lock.reset_after_fork()

    @property
    def _is_forked(self) -> bool:
        return os.getpid() != self._pid

    def _force(self) -> None:
        with self.lock:
            self._was_forced = self._was_forced or not self._driven.is_closed
            self._driven.force_close(monotonic_ms())
            self.poke()
            self.notify()

    # --- the loop ------------------------------------------------------------------------------

    @property
    def _driven(self) -> DrivenCore:
        if self._core is None:
            raise IllegalStateError("the I/O thread was not started")
        return self._core

    def _run(self) -> None:
        failures, failed_ms = 0, 0
        timeout_ms: int | None = 0
        try:
            while timeout_ms is not None and not self._must_stop:
                try:
                    timeout_ms = self._turn(timeout_ms)
                except Exception:  # noqa: BLE001 - others wait for this loop
                    # A good turn in between is no sign that it is over.
                    now_ms = monotonic_ms()
                    failures = failures + 1 if now_ms - failed_ms < _RECOVERED_MS else 1
                    failed_ms = now_ms
                    timeout_ms = 0
                    self._pause_after_failure(failures)
        finally:
            if not self._is_forked:
                self._end()

    def _turn(self, timeout_ms: int) -> int | None:
        """Poll, then let the core work; return how long to sleep in the next poll, None to end."""
        core = self._driven
        events = self._client.poll(timeout_ms, monotonic_ms())
        if core.has_full_batches:
            self._compress(core)
        now_ms = monotonic_ms()
        wake_ms = _LONGEST_POLL_MS
        self.turnstile.take_first(self.lock)
        try:
            self._is_polling = False
            for event in events:
                self._handle(core, event, now_ms)
            if self._is_orphaned or self._ends_by_ms is not None:
                wake_ms = self._go_on_closing(core, now_ms)
            core.needs_wakeup = False  # this very step sees whatever asked for it
            due_ms = core.run_once(now_ms)
            batches = core.take_callbacks()
            if not batches:
                self.notify()
                if core.is_closed:
                    return None
                self._is_polling = True
        finally:
            self.lock.release()
        if batches:
            self._run_callbacks(core, batches)
            return 0
        return max(0, min(due_ms, wake_ms, _LONGEST_POLL_MS))

    def _compress(self, core: DrivenCore) -> None:
        with self.lock:
            full = core.take_full_batches()
        for batch in full:
            self._compress_one(batch)

    def _compress_one(self, batch: FullBatch) -> None:
        try:
            batch.compress()
        except Exception:  # noqa: BLE001 - the step that sends it fails likewise, and ends it
            _LOG.debug("%s: could not compress", self._thread.name, exc_info=True)

    def _handle(self, core: DrivenCore, event: ClientEvent, now_ms: int) -> None:
        try:
            core.handle(event, now_ms)
        except Exception:  # noqa: BLE001 - logged; the loop goes on
            # Only the rest of this answer is lost, not the other answers of this turn.
            _LOG.exception("%s: could not handle %r", self._thread.name, event)

    def _run_callbacks(self, core: DrivenCore, batches: Sequence[CallbackBatch]) -> None:
        for batch in batches:
            try:
                batch.run()
            except BaseException:  # noqa: BLE001 - logged; the loop goes on
                # Even sys.exit() in a callback must not end the thread that everybody waits for.
                _LOG.exception("%s: a delivery callback tried to leave", self._thread.name)
            finally:
                with self.lock:
                    if self.refused_sends:
                        self._lose_refused(core, batch.raised)
                    core.finish_callbacks(batch)
                    self.notify()

    def _lose_refused(self, core: DrivenCore, raised: Sequence[BaseException]) -> None:
        lost = self.refused_sends.take_lost(raised)
        if lost is not None:
            core.lose_record(lost)

    def _go_on_closing(self, core: DrivenCore, now_ms: int) -> int:
        """End without anybody who waits for it; return after how many milliseconds to look again.

        The core is told again in every turn: what closes it, or drops it, can be interrupted
        before it has said so.
        """
        if self._ends_by_ms is None:
            self._ends_by_ms = now_ms + _ORPHAN_GRACE_MS
        core.initiate_close(now_ms)
        if now_ms >= self._ends_by_ms:
            self._was_forced = self._was_forced or not core.is_closed
            core.force_close(now_ms)
            self._ends_by_ms = now_ms + _FORCE_AGAIN_MS
        return self._ends_by_ms - now_ms

    def _pause_after_failure(self, failures: int) -> None:
        # The first few with their traces; then only now and then (2, 4, 8 ...).
        if failures <= 3 or failures & (failures - 1) == 0:
            _LOG.exception(
                "%s: an error nobody expected; going on (%d by now)", self._thread.name, failures
            )
        self._leaving.wait(doubled(_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS, failures) / 1000)

    def _end(self) -> None:
        try:
            self._end_records()
        except Exception:  # noqa: BLE001 - the rest has to end all the same
            _LOG.exception("%s: could not end what was left", self._thread.name)
        try:
            self._client.close()
        except Exception:  # noqa: BLE001 - nobody is left to tell
            _LOG.exception("%s: could not close the connections", self._thread.name)
        with self.lock:
            self._has_stopped = True
            self._is_polling = False
            for wait in self._waits:
                wait.wake()

    def _end_records(self) -> None:
        """Give every record its end, though the loop was told to stop before it came to that."""
        core = self._driven
        with self.lock:
            if not core.is_closed:
                core.force_close(monotonic_ms())
            batches = core.take_callbacks()
        while batches:
            self._run_callbacks(core, batches)
            with self.lock:
                batches = core.take_callbacks()
