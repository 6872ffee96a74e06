"""The waits of application threads, and of tasks of event loops, for a condition of the core.

Why it exists: the I/O thread drives the core, and any number of others wait for it.
Owns: the core's lock, the list of the waits, the sleep of each. Must not know: the loop, or the
meaning of a condition.
Rules:
* A condition is asked with the lock held. It may be asked on several threads.
* A waiting thread sleeps without the lock, and meanwhile compresses batches that are full. A task
  does not: its event loop has other work.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from math import inf

from txnproducer._shell import refusals
from txnproducer._shell.arguments import seconds
from txnproducer._shell.compression import compress
from txnproducer._shell.done_callbacks import DoneCallbacks
from txnproducer._shell.driven import FullBatch
from txnproducer._shell.event_loops import LoopWakeups, WaitingTask, warn_of_blocked_loop
from txnproducer._shell.waiting_thread import WaitingThread
from txnproducer._sync.core_lock import refuse_reentry
from txnproducer._wire.platform import Platform

__all__ = ["Waits"]


class Waits:
    """The base of the I/O thread, by which other threads wait (the core's `Waiter`).

    Args:
        name: the I/O thread's name.
        platform: has the clock and the locks.

    Attributes:
        lock: guards the core; hold it around every call into it.
        platform: has the clock, the threads and the locks.
        wakeups: wakes the event loops with tasks that wait.
        done_callbacks: tells others of the ends of futures.
    """

    def __init__(self, name: str, platform: Platform) -> None:
        self.platform = platform
        self.lock = platform.core_lock()
        self.wakeups = LoopWakeups()
        self.done_callbacks = DoneCallbacks(self.lock, self.wakeups)
        self._name = name
        self._waits: list[WaitingThread | WaitingTask] = []
        self._has_stopped = False
        self._pid = os.getpid()

    def refuse_in_callback(self) -> None:
        """Refuse a call that would wait for its own thread."""
        raise NotImplementedError

    def _take_work(self) -> FullBatch | None:
        """Return a full batch that the calling thread may compress. Call with `lock` held."""
        raise NotImplementedError

    def _note_work(self) -> None:
        """Wake the loop if it waits for the batch that was compressed. Call with `lock` held."""
        raise NotImplementedError

    def notify(self) -> None:
        """Wake each waiting thread if its condition holds. Call with `lock` held."""
        is_any_abandoned = False
        for wait in self._waits:
            is_any_abandoned |= wait.is_abandoned
            if wait.is_done():
                wait.wake()
        if is_any_abandoned:
            # Otherwise their tasks, and so the producer, would be kept for ever.
            self._waits = [wait for wait in self._waits if not wait.is_abandoned]
        self.wakeups.wake()

    def refuse_in_fork(self) -> None:
        """Refuse to wait, or to close, in a process where the loop's thread does not exist.

        Raises:
            ForkedProducerError: this process is a fork of the one that made this object.
        """
        if self._is_forked:
            raise refusals.forked("wait for a result")

    def wait_until(self, is_done: Callable[[], bool], timeout_s: float | None) -> bool:
        """Block until `is_done()`, the time-out, or the end of the thread.

        Args:
            is_done: cheap and without side effects; called with `lock` held, on several threads.
            timeout_s: seconds, or None to wait as long as the loop lives.

        Returns:
            The last result of `is_done()`.

        Raises:
            WaitInCallbackError: called in a delivery callback, which would wait for itself.
            ForkedProducerError: called in a fork, where the loop's thread does not exist.
        """
        self.refuse_in_fork()
        refuse_reentry(self.lock, "result")
        deadline = self.platform.monotonic_s() + seconds(timeout_s)
        wait = WaitingThread(is_done, self.platform)
        with self.lock:
            # Asked before the refusal below: a callback may read a result that is already there.
            if is_done():
                return True
            self.refuse_in_callback()
        warn_of_blocked_loop()
        try:
            with self.lock:
                self._waits.append(wait)  # inside the `try`, which removes it after an interrupt
            return self._wait(wait, deadline)
        finally:
            with self.lock:
                if wait in self._waits:  # an interrupt may have come before it was added
                    self._waits.remove(wait)

    def _wait(self, wait: WaitingThread, deadline: float) -> bool:
        batch: FullBatch | None = None
        while True:
            self.refuse_in_fork()  # a signal handler may have forked during the sleep
            with self.lock:
                if batch is not None:
                    self._note_work()
                if wait.is_done():
                    return True
                left = deadline - self.platform.monotonic_s()
                if left <= 0 or self._has_stopped:
                    return False
                batch = self._take_work()
            if batch is None:
                wait.sleep(left)
            else:
                compress(batch, self._name)

    async def wait_in_loop(self, is_done: Callable[[], bool], timeout_s: float | None) -> bool:
        """Let the running task wait as `wait_until` does. Its event loop goes on."""
        import asyncio  # late: a program without an event loop does not pay for it

        refuse_reentry(self.lock, "await")
        deadline = self.platform.monotonic_s() + seconds(timeout_s)
        while True:
            self.refuse_in_fork()
            with self.lock:
                if is_done():
                    return True
                left = deadline - self.platform.monotonic_s()
                if left <= 0 or self._has_stopped:
                    return False
                waiting = asyncio.get_running_loop().create_future()
                wait = WaitingTask(is_done, waiting, self.wakeups)
                self._waits.append(wait)
            try:
                await asyncio.wait((waiting,), timeout=None if left == inf else left)
            finally:
                with self.lock:
                    if wait in self._waits:
                        self._waits.remove(wait)

    @property
    def _is_forked(self) -> bool:
        return os.getpid() != self._pid
