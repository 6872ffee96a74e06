"""Locks, conditions and events of threads that pass a baton.

Owns: who holds a lock, who waits. Must not know: the threads' work.

Rule: each taking and each release is a place where another thread may go on.
"""

from __future__ import annotations

import threading

from txnproducer.sim.stack.baton import Baton

__all__ = ["VirtualCondition", "VirtualCoreLock", "VirtualEvent", "VirtualLock"]


class VirtualLock:
    """A `threading.Lock`.

    Args:
        baton: passed on by waits.
    """

    def __init__(self, baton: Baton) -> None:
        self._baton = baton
        self._owner: threading.Thread | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock. Return whether it was taken."""
        self._baton.may_switch()
        if self._owner is not None and not (
            blocking and self._baton.wait(lambda: self._owner is None, timeout)
        ):
            return False
        # Nothing has run since the wait ended, so no other thread can have taken it.
        self._owner = self._baton.current
        return True

    def release(self) -> None:
        """Release the lock, perhaps on another thread than the one that took it."""
        # A killed thread may leave a block whose lock it had given away in a wait.
        self._baton.raise_if_killed()
        if self._owner is None:
            raise RuntimeError("release unlocked lock")
        self._owner = None
        # After the release, so that a thread that waits for the lock may go on here.
        self._baton.may_switch()

    def locked(self) -> bool:
        """Return whether any thread holds the lock."""
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class VirtualCoreLock(VirtualLock):
    """A lock that knows its owner, as the core's."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock. Return whether it was taken."""
        # A killed thread may have kept it, since its release raises.
        self._baton.raise_if_killed()
        if self.is_mine():
            # The compiled lock would wait for its own thread without end.
            raise AssertionError("the core's lock is taken by a thread that has it")
        return super().acquire(blocking, timeout)

    def release(self) -> None:
        """Release the lock."""
        if not self.is_mine():
            raise RuntimeError("cannot release a lock of another thread")
        super().release()

    def is_mine(self) -> bool:
        """Return whether the calling thread holds the lock."""
        return self._owner is self._baton.current

    def reset_after_fork(self) -> None:
        """Free the lock."""
        self._owner = None


class VirtualCondition(VirtualLock):
    """A `threading.Condition` with a lock of its own."""

    def __init__(self, baton: Baton) -> None:
        super().__init__(baton)
        self._waiting: list[list[bool]] = []

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock, sleep until notified, and take it again."""
        is_notified: list[bool] = []
        # Before the release: a notification that follows it at once has to reach this thread.
        self._waiting.append(is_notified)
        self.release()
        try:
            self._baton.wait(lambda: bool(is_notified), timeout)
        finally:
            # By identity, since the lists of all threads that still wait are equal.
            self._waiting = [each for each in self._waiting if each is not is_notified]
            # Also after an interrupt, as the real one does: the block around the call releases it.
            self.acquire()
        return bool(is_notified)

    def notify(self, n: int = 1) -> None:
        """Wake threads that wait, the oldest first."""
        # A thread that was notified before and has not run since uses up no notification.
        for each in [each for each in self._waiting if not each][:n]:
            each.append(True)

    def notify_all(self) -> None:
        """Wake all threads that wait."""
        self.notify(len(self._waiting))


class VirtualEvent:
    """A `threading.Event`.

    Args:
        baton: passed on by waits.
    """

    def __init__(self, baton: Baton) -> None:
        self._baton = baton
        self._is_set = False

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def set(self) -> None:
        """End all waits."""
        self._is_set = True
        # After the event is set, so that a thread that waits for it may go on here.
        self._baton.may_switch()

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until the event is set. Return whether it is."""
        return self._baton.wait(self.is_set, timeout)
