"""One application thread that waits until a condition of the core holds.

Owns: its sleep. Must not know: the loop, or the condition.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["WaitingThread"]


class WaitingThread:
    """One waiting thread, which sleeps without the loop's lock and takes it only to look.

    A Condition would take the lock again by itself. An interrupt (Ctrl-C) at that moment leaves
    the thread without it, and `with` would then release a lock that the loop holds.

    Args:
        is_done: the condition to wait for; called with the loop's lock held.
    """

    __slots__ = ("_is_woken", "_sleep", "is_done")

    def __init__(self, is_done: Callable[[], bool]) -> None:
        self.is_done = is_done
        self._is_woken = False
        self._sleep = threading.Lock()
        # Held from the start, so that the first `sleep` waits; `wake` releases it from another
        # thread.
        self._sleep.acquire()

    def wake(self) -> None:
        """End the current sleep, or the next one. Call with the loop's lock held."""
        # A second release of a plain lock raises RuntimeError.
        if not self._is_woken:
            self._is_woken = True
            self._sleep.release()

    def sleep(self, timeout_s: float) -> None:
        """Sleep until `wake` or until the time is up. Call without the loop's lock."""
        if self._sleep.acquire(timeout=timeout_s):
            self._is_woken = False
