"""One application thread that waits until a condition of the core holds.

Owns: its sleep. Must not know: the loop, or the condition.
"""

from __future__ import annotations

from collections.abc import Callable

from txnproducer._wire.platform import Platform

__all__ = ["WaitingThread"]


class WaitingThread:
    """One waiting thread, which sleeps without the loop's lock and takes it only to look.

    A Condition would take the lock again by itself. An interrupt (Ctrl-C) at that moment leaves
    the thread without it, and `with` would then release a lock that the loop holds.

    Args:
        is_done: the condition to wait for; called with the loop's lock held.
        platform: has the locks.
    """

    __slots__ = ("_is_woken", "_sleep", "_slice_s", "is_done")

    def __init__(self, is_done: Callable[[], bool], platform: Platform) -> None:
        self.is_done = is_done
        self._is_woken = False
        self._slice_s = platform.wait_slice_s
        self._sleep = platform.lock()
        # Held from the start, so that the first `sleep` waits; `wake` releases it from another
        # thread.
        self._sleep.acquire()

    is_abandoned = False  # a thread cannot be closed from outside, as an event loop can

    def wake(self) -> None:
        """End the current sleep, or the next one. Call with the loop's lock held."""
        # A second release of a plain lock raises RuntimeError.
        if not self._is_woken:
            self._is_woken = True
            self._sleep.release()

    def sleep(self, timeout_s: float) -> None:
        """Sleep until `wake`, for the platform's slice at most. Call without the loop's lock."""
        if self._sleep.acquire(timeout=min(timeout_s, self._slice_s)):
            self._is_woken = False
