"""The core's lock, and how threads that send give way to the loop's thread.

Why it exists: the loop's thread sleeps until there is something to do, and then wants the
interpreter and the core's lock. A thread that computes gives up the interpreter after
`sys.getswitchinterval()` (5 ms). A thread that sends without a pause would have the lock again
before the loop's thread is awake, so batches would lie ready while nothing goes on the wire.

Owns: the lock, the loop's wish to go on, and the wait for that. Must not know: the work that is
done under the lock. Giving way is only a matter of speed: a thread that gives way goes on after a
few milliseconds in any case. The Python twin does nothing, since a look at each record would cost
more than it brings.

The lock knows its owner. A signal handler or a finalizer can interrupt any line of its thread. If
it then calls the producer, it would wait for its own thread without end, so the call is refused.

A `with` statement of CPython 3.14 looks for signals between the return of `__enter__` and its
block (gh-148874, fixed in 3.15). If a handler raises there, a lock whose `__enter__` is written
in C stays taken. On 3.14 `new_lock` returns a lock whose `__enter__` is Python code: the
interpreter looks for signals where that calls `acquire`, within its `try`, and not after that.
"""

from __future__ import annotations

import sys
import threading
from functools import cache
from typing import Any, Protocol

from txnproducer._record.implementation import chosen
from txnproducer.errors import IllegalStateError


class Priority(Protocol):
    """The priority of a loop: threads that send give way to its thread."""

    def take_first(self, lock: CoreLock) -> None:
        """Take a lock. Threads that send give way."""
        ...

    def give_way(self) -> None:
        """Let the loop's thread go on, if it wants to. Call without the lock."""
        ...


class CoreLock(Protocol):
    """A `threading.Lock` that knows which thread holds it."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock. Return whether it was taken."""
        ...

    def release(self) -> None:
        """Release the lock."""
        ...

    def locked(self) -> bool:
        """Return whether any thread holds the lock."""
        ...

    def is_mine(self) -> bool:
        """Return whether the calling thread holds the lock."""
        ...

    def reset_after_fork(self) -> None:
        """Free the lock in a forked child, where the thread that held it does not exist."""
        ...

    def __enter__(self) -> bool:
        """Take the lock."""
        ...

    def __exit__(self, *_: object) -> None:
        """Release the lock."""
        ...


# Earlier versions do not look for signals there, and 3.15 has the fix.
_IS_WITH_TORN: bool = sys.version_info[:2] == (3, 14)
# `threading.RLock` is a function, and nothing can be derived from it.
_RLock: Any = type(threading.RLock())


class Lock(_RLock):  # type: ignore[misc]
    """The Python twin: a lock that knows its owner.

    It is taken and released by the interpreter's own code, which no signal interrupts. A reentrant
    lock would let its owner take it twice, so callers check first (`refuse_reentry`).
    """

    is_mine = _RLock._is_owned  # noqa: SLF001 - as `threading.Condition` asks it
    reset_after_fork = _RLock._at_fork_reinit  # noqa: SLF001 - as `threading` does with its own

    def locked(self) -> bool:
        """Return whether any thread holds the lock."""
        # Asked first, since the owner could take its lock once more, and would find it free. (An
        # RLock has its own `locked` since Python 3.14.)
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
        " a signal handler or a finalizer does. Only close() can be called here"
    )


def refuse_reentry(lock: CoreLock, call: str) -> None:
    """Refuse a call that would wait for its own thread.

    Raises:
        IllegalStateError: the thread has the lock.
    """
    # The lock is reentrant, and would let the call into the middle of the other one.
    if lock.is_mine():
        raise reentered(f"call {call}()")


class LoopPriority:
    """The Python twin, in which no thread gives way."""

    def take_first(self, lock: CoreLock) -> None:
        """Take a lock."""
        lock.acquire()

    # A look at each record would cost more in Python than it brings.
    def give_way(self) -> None:
        """Do nothing."""


def new_loop_priority() -> Priority:
    """Return the priority of one loop."""
    priority: Priority = chosen(
        "txnproducer._sync.core_lock", "txnproducer._sync._core_lock", "LoopPriority"
    )()
    return priority


def new_lock() -> CoreLock:
    """Return a lock for the core."""
    lock: CoreLock = _kind_of_lock()()
    return lock


# One class for all locks, since on 3.14 it is made here.
@cache
def _kind_of_lock() -> type:
    kind: type = chosen("txnproducer._sync.core_lock", "txnproducer._sync._core_lock", "Lock")
    if not _IS_WITH_TORN:
        return kind
    return type("Lock", (kind,), {"__slots__": (), "__enter__": enter})


def enter(lock: CoreLock) -> bool:
    """Take a lock. If a signal handler raises meanwhile, leave the lock free."""
    # An outer block of this thread has it, and the compiled lock refuses to be taken twice.
    was_mine = lock.is_mine()
    try:
        lock.acquire()
    # `__exit__` does not run if `__enter__` raises, so a lock that was
    # taken is released here. The signal may have come before that.
    except BaseException:
        if lock.is_mine() and not was_mine:
            lock.release()
        raise
    return True
