"""The core's lock, and how threads that send give way to the loop's thread.

Why it exists: the loop's thread sleeps until there is something to do, and then wants the
interpreter and the core's lock. A thread that computes lets it have the interpreter after
`sys.getswitchinterval()` (5 ms); one that sends without a pause has the lock again before the
other is awake. So batches would lie ready while nothing goes on the wire.

Owns: who wants to go on, and the wait for that. Must not know: what is done there. It speeds
things up and nothing else: whoever gives way goes on after a few milliseconds in any case. The
twin in Python does nothing, since a look at each record would cost more than it brings.

The lock knows whose it is. A signal handler, or a finalizer, runs in the midst of whatever its
thread does; a call that it makes then would wait for its own thread, for ever. So it is refused.

A `with` statement of CPython 3.14 looks for signals between the return of `__enter__` and its
block (gh-148874, mended in 3.15). If a handler raises there, a lock whose `__enter__` is written
in C stays taken. There `new_lock` returns one whose `__enter__` is Python code: the interpreter
looks for signals where that calls `acquire`, within its `try`, and nowhere after that.
"""

from __future__ import annotations

import sys
import threading
from functools import cache
from typing import Any, Protocol

from txnproducer._record.implementation import chosen
from txnproducer.errors import IllegalStateError


class PassedBy(Protocol):
    """What threads do there."""

    def take_first(self, lock: CoreLock) -> None:
        """Take a lock; those who send give way."""
        ...

    def give_way(self) -> None:
        """Let the loop's thread go on, if it wants to. Call without the lock."""
        ...


class CoreLock(Protocol):
    """The lock of a core: `threading.Lock`'s, and whose it is."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; return whether that came about."""
        ...

    def release(self) -> None:
        """Release the lock."""
        ...

    def locked(self) -> bool:
        """Return whether somebody has it."""
        ...

    def is_mine(self) -> bool:
        """Return whether the calling thread has it."""
        ...

    def reset_after_fork(self) -> None:
        """Make the lock free, in a child process where the thread that had it does not exist."""
        ...

    def __enter__(self) -> bool:
        """Take the lock."""
        ...

    def __exit__(self, *_: object) -> None:
        """Release the lock."""
        ...


_IS_WITH_TORN: bool = sys.version_info[:2] == (3, 14)
_RLock: Any = type(threading.RLock())


class Lock(_RLock):  # type: ignore[misc]
    """The twin in Python: it knows its owner.

    Taken and released by the interpreter's own code, where no signal comes in between. That its
    owner could take it again is of no use: whoever calls has to look first (`refuse_reentry`).
    """

    is_mine = _RLock._is_owned  # noqa: SLF001 - as `threading.Condition` asks it
    reset_after_fork = _RLock._at_fork_reinit  # noqa: SLF001 - as `threading` does with its own

    def locked(self) -> bool:
        """Return whether somebody has it."""
        if self.is_mine():
            return True
        if self.acquire(blocking=False):
            self.release()
            return False
        return True


def reentered(call: str) -> IllegalStateError:
    """Return the error of a call that has interrupted another one in its own thread."""
    return IllegalStateError(
        f"{call} later, or on another thread: here it interrupts another call of this producer, as"
        " a signal handler or a finalizer does. Of all calls close() alone can be made then"
    )


def refuse_reentry(lock: CoreLock, call: str) -> None:
    """Refuse a call that would wait for its own thread.

    Raises:
        IllegalStateError: the thread has the lock.
    """
    if lock.is_mine():
        raise reentered(f"call {call}()")


class Turnstile:
    """The twin in Python."""

    def take_first(self, lock: CoreLock) -> None:
        """Take a lock."""
        lock.acquire()

    def give_way(self) -> None:
        """Do nothing."""


def new_turnstile() -> PassedBy:
    """Return one for a loop."""
    turnstile: PassedBy = chosen(
        "txnproducer._sync.core_lock", "txnproducer._sync._core_lock", "Turnstile"
    )()
    return turnstile


def new_lock() -> CoreLock:
    """Return a lock for the core."""
    lock: CoreLock = _kind_of_lock()()
    return lock


@cache
def _kind_of_lock() -> type:
    kind: type = chosen("txnproducer._sync.core_lock", "txnproducer._sync._core_lock", "Lock")
    if not _IS_WITH_TORN:
        return kind
    return type("Lock", (kind,), {"__slots__": (), "__enter__": enter})


def enter(lock: CoreLock) -> bool:
    """Take a lock; where a signal handler raises meanwhile, leave it free."""
    try:
        lock.acquire()
    except BaseException:
        if lock.is_mine():
            lock.release()
        raise
    return True
