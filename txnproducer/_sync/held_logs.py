"""Log records made with a core's lock, which handlers get without it.

Why it exists: `logging` calls a handler under a lock of the handler's own. A handler that sends
records to Kafka takes the core's lock there. A thread that logged with the core's lock would wait
for that handler, and the handler for that thread.
Owns: the records that wait. Must not know: the core, the loop.
Rules:
* Code that may run with the lock makes its logger by `held_logger`.
* The loop's thread hands the records out after it has released the lock. Another thread's record
  wakes it. Once a loop has ended, records go to the handlers at once.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from typing import Protocol
from weakref import ref

__all__ = ["LoopWithLock", "hand_out", "held", "held_logger", "watch"]


class LoopWithLock(Protocol):
    """A loop. Its thread hands out the log records that are made with its lock."""

    def must_hold_logs(self) -> bool:
        """Return whether the calling thread has the lock, and the loop will take another turn."""
        ...

    def poke(self) -> None:
        """End the loop's sleep. Called with the lock held."""
        ...


held: deque[logging.LogRecord] = deque()
_loops: dict[int, ref[LoopWithLock]] = {}


def watch(loop: LoopWithLock) -> None:
    """Hold the records that are made with this loop's lock from now on."""
    key = id(loop)
    _loops[key] = ref(loop, lambda _: _loops.pop(key, None))


def held_logger(name: str) -> logging.Logger:
    """Return the logger of code that may run with a core's lock."""
    logger = logging.getLogger(name)
    logger.addFilter(_is_for_handlers)
    return logger


def hand_out() -> None:
    """Give the records that wait to their handlers. Call without a core's lock."""
    while held and _loop_of_this_thread() is None:
        try:
            record = held.popleft()
        except IndexError:  # another thread was quicker
            return
        logging.getLogger(record.name).handle(record)


def _is_for_handlers(record: logging.LogRecord) -> bool:
    """Return whether handlers may have a record now. Otherwise hold it."""
    loop = _loop_of_this_thread()
    if loop is None:
        return True
    held.append(record)
    loop.poke()
    return False


def _loop_of_this_thread() -> LoopWithLock | None:
    """Return the loop of the lock that this thread holds, or None."""
    # A copy: other threads make producers meanwhile.
    for watched in tuple(_loops.values()):
        loop = watched()
        if loop is not None and loop.must_hold_logs():
            return loop
    return None


if hasattr(os, "register_at_fork"):
    # The parent hands its records out itself.
    os.register_at_fork(after_in_child=held.clear)
