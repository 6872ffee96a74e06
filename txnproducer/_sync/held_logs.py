"""The loggers of code that must not wait for a handler.

Why it exists: `logging` calls a handler under a lock of the handler's own, and a handler may send
records to Kafka itself. There it takes a core's lock, or waits for a loop. A thread of ours that
waited for that handler, or for its lock, would stand against it.
Owns: the decision about a level, the way of a record. Must not know: threads, the core.
Rules:
* Code that may run with a core's lock, or on a thread that a loop needs, makes its logger by
  `held_logger`. A `Taker` gets its records before the handlers (`_shell/log_thread`).
* No lock of `logging` is taken before: neither a handler's nor the module's, which `dictConfig`
  holds while it makes handlers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

__all__ = ["Taker", "held_logger", "set_taker"]

# Returns whether it has taken a record. Otherwise handlers get it at once.
Taker: TypeAlias = Callable[[logging.LogRecord], bool]
_takers: list[Taker] = []


class _HeldLogger(logging.Logger):
    """A logger that decides about a level without the lock of `logging`."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name of `logging`
        # The usual one fills a cache under that lock.
        if self.disabled or self.manager.disable >= level:
            return False
        return level >= self.getEffectiveLevel()


def held_logger(name: str) -> logging.Logger:
    """Return the logger of code that must not wait for a handler."""
    logger = logging.getLogger(name)
    kind = type(logger)  # a program may have set a class of its own
    if kind.isEnabledFor is logging.Logger.isEnabledFor:
        logger.__class__ = type(kind.__name__, (_HeldLogger, kind), {})
    # Before the filters of a program: they are handlers' work.
    if _is_for_handlers not in logger.filters:
        logger.filters.insert(0, _is_for_handlers)
    return logger


def set_taker(taker: Taker) -> None:
    """Let a function see each record first."""
    _takers[:] = [taker]


def _is_for_handlers(record: logging.LogRecord) -> bool:
    return not any(take(record) for take in _takers)
