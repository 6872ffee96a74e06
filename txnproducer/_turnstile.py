"""How threads that send give way to the loop's thread.

Why it exists: the loop's thread sleeps until there is something to do, and then wants the
interpreter and the core's lock. A thread that computes lets it have the interpreter after
`sys.getswitchinterval()` (5 ms); one that sends without a pause has the lock again before the
other is awake. So batches would lie ready while nothing goes on the wire.

Owns: who wants to go on, and the wait for that. Must not know: what is done there. It speeds
things up and nothing else: whoever gives way goes on after a few milliseconds in any case.

This twin, in Python, does nothing: a look at each record would cost more than it brings.
"""

from __future__ import annotations

import threading
from typing import Protocol

from txnproducer._record.implementation import chosen


class PassedBy(Protocol):
    """What threads do there."""

    def take_first(self, lock: threading.Lock) -> None:
        """Take a lock; those who send give way."""
        ...

    def give_way(self) -> None:
        """Let the loop's thread go on, if it wants to. Call without the lock."""
        ...


class Turnstile:
    """The twin in Python."""

    def take_first(self, lock: threading.Lock) -> None:
        """Take a lock."""
        lock.acquire()

    def give_way(self) -> None:
        """Do nothing."""


def new_turnstile() -> PassedBy:
    """Return one for a loop."""
    turnstile: PassedBy = chosen("txnproducer._turnstile", "txnproducer._io_lock", "Turnstile")()
    return turnstile


def new_lock() -> threading.Lock:
    """Return a lock for the core."""
    lock: threading.Lock = chosen("threading", "txnproducer._io_lock", "Lock")()
    return lock
