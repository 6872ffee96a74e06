"""The I/O thread, which drives the core and the client.

Why it exists: the core is a state machine without time, and the client is a loop without a thread.
This module supplies both: the only long-lived thread, and the time of every step.
Owns: the loop and its end. The lock that guards every call into the core is that of `waits`.
Must not know: what a transaction is. It moves events, asks the core for its next step, runs
delivery callbacks, and nothing more.

Rules:
* The core is only called with `lock` held. The client's `poll` and users' callbacks are only
  called without it.
* Each turn of the loop takes the lock once: it handles the events, takes one step and wakes the
  threads that can go on. Full batches are compressed after the step, without the lock, since it
  sends those that are compressed already. Each hand-over of the lock or of the interpreter costs
  more than the step itself. So an application thread wakes the loop only while the loop sleeps in
  `poll`, and the loop wakes a waiting thread only when its condition holds.
* An exception in a turn is logged and the loop goes on, since other threads wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

from txnproducer._protocol.events import ClientEvent
from txnproducer._shell import refusals
from txnproducer._shell.compression import compress
from txnproducer._shell.delivery_callbacks import DeliveryCallbacks
from txnproducer._shell.driven import DrivenCore, DueCallbacks, FullBatch, PolledClient
from txnproducer._shell.failed_turns import FailedTurns
from txnproducer._shell.log_thread import watch
from txnproducer._shell.waits import Waits
from txnproducer._sync.core_lock import Priority, new_loop_priority
from txnproducer._sync.held_logs import held_logger
from txnproducer._wire.platform import SYSTEM, Platform
from txnproducer.errors import IllegalStateError

_LOG = held_logger(__name__)

_LONGEST_POLL_MS = 10_000  # the longest sleep in `poll`, however late the core's next step is due
# The wait for a forced close: it only fails what is left, and waits for no broker.
_FORCED_CLOSE_S = 5.0
_ORPHAN_GRACE_MS = 30_000  # how long a producer dropped without `close()` may go on delivering
_LONGEST_CLOSE_S = 1e9  # stands for `timeout=float("inf")`, which has no value in milliseconds
_FORCE_AGAIN_MS = 1_000  # the time between two attempts to force an end


class IoThread(Waits):
    """The loop, its lock, and the wait for it (the core's `Waiter`).

    Attributes:
        priority: by which threads that send without a pause give way to this thread.
        callbacks: runs the delivery callbacks, and notes the sends that are refused in them.

    Args:
        client: carries the requests; this thread closes it when it ends.
        name: the thread's name.
        priority: the one that the client uses, too; None makes a new one.
        platform: likewise.
    """

    def __init__(
        self,
        client: PolledClient,
        name: str,
        priority: Priority | None = None,
        platform: Platform = SYSTEM,
    ) -> None:
        super().__init__(name, platform)
        self.priority = priority or new_loop_priority()
        self.callbacks = DeliveryCallbacks(name, self.lock)
        self._client = client
        self._core: DrivenCore | None = None
        self._leaving = platform.event()
        self._is_polling = self._is_orphaned = False
        self._ends_by_ms: int | None = None  # when the loop forces its end; None while it is open
        self._was_forced = False
        self._must_stop = False
        self._closing: set[int] = set()  # the threads that are in `close`
        self._thread = platform.thread(self._run, name)
        watch(self)

    def start(self, core: DrivenCore) -> None:
        """Begin to drive a core. The core itself was made with this object as its `Waiter`."""
        self._core = core
        self._thread.start()

    # --- for application threads ---------------------------------------------------------------

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread, that is, in a delivery callback."""
        return threading.get_ident() == self._thread.ident

    def refuse_in_callback(self) -> None:
        """Refuse a call that would wait for its own thread.

        Raises:
            WaitInCallbackError: the caller is a delivery callback.
        """
        if self.is_current:
            raise refusals.in_callback()

    def poke(self) -> None:
        """End the loop's sleep, because the core has work. Call with `lock` held."""
        if self._is_polling:
            self._client.wakeup()
            self._is_polling = False  # last: an interrupt before must not lose the wake-up

    def _take_work(self) -> FullBatch | None:
        return self._driven.lend_full_batch(self.platform.monotonic_ms())

    def _note_work(self) -> None:
        if self._driven.awaits_codec:
            self.poke()

    # --- the end -------------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """Whether the loop has ended, and with it all its work.

        `Thread.is_alive` is not reliable: on Python 3.11 an interrupted `join` marks a thread as
        stopped while it still runs (bpo-45274).
        """
        return self._has_stopped

    @property
    def can_wait_for_end(self) -> bool:
        """Whether the caller may wait. It may not in a callback, or if it interrupts `close`."""
        return not self.is_current and threading.get_ident() not in self._closing

    def initiate_close(self) -> None:
        """Begin to end in good order, without waiting."""
        with self.lock:
            self._driven.initiate_close(self.platform.monotonic_ms())
            self.poke()
            self.notify()

    def end_at_once(self) -> None:
        """Begin to end by force, without waiting."""
        self._end_by(self.platform.monotonic_ms())
        self.initiate_close()

    def initiate_close_at_exit(self) -> None:
        """Begin to end in good order within the few seconds of the interpreter's exit."""
        self._client.hurry()  # an attempt to connect that hangs could take all of them
        self.initiate_close()

    def close(self, timeout_s: float, forced_s: float | None = None) -> bool:
        """End in good order within the time-out, and after that by force.

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
            # The deadline goes first: an interrupt after this line leaves an end that is certain.
            self._end_by(self._deadline_ms(timeout_s))
            self.initiate_close()
            if not self.wait_until(lambda: core.is_closed, timeout_s):
                self._force()
            # The core has answered all waiting calls by this line. Only the thread has to return.
            self._await_end(_FORCED_CLOSE_S if forced_s is None else forced_s)
        finally:  # after an interrupt, a later close of this thread has to wait again
            self._closing.discard(caller)
        return not self._was_forced

    async def close_in_loop(self, timeout_s: float) -> bool:
        """End as `close` does, while the running task of an event loop waits."""
        core = self._driven
        self._end_by(self._deadline_ms(timeout_s))
        self.initiate_close()
        if not await self.wait_in_loop(lambda: core.is_closed, timeout_s):
            self._force()
        self._join(await self.wait_in_loop(lambda: self._has_stopped, _FORCED_CLOSE_S), 1)
        return not self._was_forced

    def _deadline_ms(self, timeout_s: float) -> int:
        return self.platform.monotonic_ms() + round(min(timeout_s, _LONGEST_CLOSE_S) * 1000)

    def _end_by(self, time_ms: int) -> None:
        """Make the loop force its end at a time, unless it ends before."""
        with self.lock:
            if self._ends_by_ms is None or time_ms < self._ends_by_ms:
                self._ends_by_ms = time_ms

    def _await_end(self, timeout_s: float) -> None:
        self._join(self.wait_until(lambda: self._has_stopped, timeout_s), timeout_s)

    def _join(self, has_stopped: bool, timeout_s: float) -> None:
        if has_stopped:
            self._thread.join(timeout_s)  # the thread only has to return
            return
        # A core that cannot even be forced must not keep the thread (and the process) alive.
        self._must_stop = True
        self._leaving.set()  # the loop may be in the pause after a failed turn
        with self.lock:
            self.poke()

    def orphan(self) -> None:
        """Let the loop deliver the records that it has and then end, since no caller is left."""
        # No lock is taken: this runs in a finalizer, perhaps on a thread that holds the lock. A
        # loop that must stop ends anyway, or (in a fork) belongs to the parent process. Without a
        # thread the wake-up's descriptor may be closed, and its number be another file's.
        if not self._must_stop and self._thread.ident is not None:
            self._is_orphaned = True
            self._client.wakeup()

    def disown(self) -> None:
        """Note that this process is a fork of the one that made this object. Call it first.

        The thread does not exist here, unless a delivery callback has forked. In that case it must
        not touch the connections, which are the parent's.
        """
        self._must_stop = True
        if not self.lock.is_mine():  # otherwise the call that forked releases it
            self.lock.reset_after_fork()

    def _force(self) -> None:
        with self.lock:
            # A core that is closed has ended in good order, and nothing is left to force.
            self._was_forced = self._was_forced or not self._driven.is_closed
            self._driven.force_close(self.platform.monotonic_ms())
            self.poke()
            self.notify()

    # --- the loop ------------------------------------------------------------------------------

    @property
    def _driven(self) -> DrivenCore:
        if self._core is None:
            raise IllegalStateError("the I/O thread was not started")
        return self._core

    def _run(self) -> None:
        failed_turns = FailedTurns(self._thread.name)
        timeout_ms: int | None = 0
        try:
            core = self._driven
            while timeout_ms is not None and not self._must_stop:
                try:
                    timeout_ms = self._turn(core, timeout_ms)
                except Exception:  # noqa: BLE001 - others wait for this loop
                    timeout_ms = 0
                    self._leaving.wait(failed_turns.note(self.platform.monotonic_ms()))
        finally:
            if not self._is_forked:  # in a fork the connections are the parent's
                self._end()

    def _turn(self, core: DrivenCore, timeout_ms: int) -> int | None:
        """Poll, then let the core work. Return the milliseconds of the next poll, None to end."""
        events = self._client.poll(timeout_ms, self.platform.monotonic_ms())
        now_ms = self.platform.monotonic_ms()
        wake_ms = _LONGEST_POLL_MS
        self.priority.take_first(self.lock)  # not `with`: threads that only send give way to it
        try:
            self._is_polling = False
            for event in events:
                self._handle_event(core, event, now_ms)
            if self._is_orphaned or self._ends_by_ms is not None:
                wake_ms = self._go_on_closing(core, now_ms)
            core.needs_wakeup = False  # the step below sees all work that was asked for
            due_ms = core.run_once(now_ms)
            # Before the callbacks are taken: this may raise for lack of memory.
            full = core.take_full_batches() if core.has_full_batches else ()
            # Due callbacks run first: a flush or a commit is done only after them, and the loop
            # must not end before.
            batches = self._take_callbacks(core)
            if not batches:
                self.notify()
                if core.is_closed:
                    return None
                # From the release of the lock on, `poke` has to end the poll that follows.
                self._is_polling = not full
        finally:
            self.lock.release()
        if batches:
            self.callbacks.run(core, batches, self.notify)
        for batch in full:
            compress(batch, self._thread.name)
        if batches or full:
            return 0  # no sleep: during this work a `poke` did not wake the loop
        return max(0, min(due_ms, wake_ms, _LONGEST_POLL_MS))

    def _take_callbacks(self, core: DrivenCore) -> Sequence[DueCallbacks]:
        callbacks = core.take_callbacks()
        due = self.done_callbacks.take()
        return [*callbacks, *due] if due else callbacks

    def _handle_event(self, core: DrivenCore, event: ClientEvent, now_ms: int) -> None:
        try:
            core.handle(event, now_ms)
        except Exception:  # noqa: BLE001 - logged; the loop goes on
            # Only the rest of this answer is lost, not the other answers of this turn.
            _LOG.exception("%s: could not handle %r", self._thread.name, event)

    def _go_on_closing(self, core: DrivenCore, now_ms: int) -> int:
        """Go on with an end that no thread waits for. Return the milliseconds to the next look."""
        if self._ends_by_ms is None:
            self._ends_by_ms = now_ms + _ORPHAN_GRACE_MS
        # In every turn: the call that closed it may have been interrupted before it did this.
        core.initiate_close(now_ms)
        if now_ms >= self._ends_by_ms:
            self._was_forced = self._was_forced or not core.is_closed
            core.force_close(now_ms)
            self._ends_by_ms = now_ms + _FORCE_AGAIN_MS
        return self._ends_by_ms - now_ms

    def _end(self) -> None:
        # The order matters. Records fail while the client can still be called. Waiting threads are
        # woken last, so that `has_ended` means that records and connections have ended.
        try:
            self._end_records()
        except Exception:  # noqa: BLE001 - the rest must end all the same
            _LOG.exception("%s: could not end what was left", self._thread.name)
        try:
            self._client.close()
            self._handle_last(self._client.poll(0, self.platform.monotonic_ms()))
        except Exception:  # noqa: BLE001 - no caller is left to raise it to
            _LOG.exception("%s: could not close the connections", self._thread.name)
        with self.lock:
            self._has_stopped = True
            self._is_polling = False
            for wait in self._waits:
                wait.wake()
            self.wakeups.wake()

    def _handle_last(self, events: Sequence[ClientEvent]) -> None:
        # The requests that were in flight give back the memory of their batches.
        with self.lock:
            for event in events:
                self._handle_event(self._driven, event, self.platform.monotonic_ms())

    def _end_records(self) -> None:
        """Complete every record, also those that were left when the loop was stopped."""
        core = self._driven
        with self.lock:
            if not core.is_closed:
                core.force_close(self.platform.monotonic_ms())
        self.callbacks.run_all(core, partial(self._take_callbacks, core), self.notify)
