"""The check whether a call may end the transaction of an open block.

Why it exists: a producer has one transaction for all its threads. A thread that finds one open
must not end it: it may be half of another thread's work.
Owns: the check. `TransactionalProducer` can replace it, for example by one for tasks of an event
loop. Must not know: transactions.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TypeAlias

IsOwner: TypeAlias = Callable[[], bool]


def calling_thread() -> IsOwner:
    """Return a check that is true on the calling thread, and on every thread after its end."""
    # The object, not its ident: the system may give the ident of an ended thread to another one.
    owner = threading.current_thread()
    return lambda: threading.current_thread() is owner or _has_ended(owner)


def _has_ended(thread: threading.Thread) -> bool:
    """Return whether a thread has ended, including one that `threading` did not start.

    For such a thread `is_alive` is always true, or raises `RuntimeError` if its end is known.
    """
    try:
        if not thread.is_alive():
            return True
    except RuntimeError:
        return True
    return thread.ident not in sys._current_frames()  # noqa: SLF001 - the documented way
