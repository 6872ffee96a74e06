"""The producers of this process, and their treatment at a fork and at the exit.

Why it exists: a child process inherits a producer whose thread and sockets stay with the parent.
At exit, an open transaction would be left to its time-out. No call of the producer runs at these
two moments, so the interpreter's hooks have to reach it.
Owns: the register of open producers, the hooks of the interpreter.
Must not know: what a producer does beyond the calls below.
Rules: a producer is registered weakly until its thread has ended, and the hooks never raise. At
exit all producers begin to close before the first wait, and one deadline holds for all of them.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable
from typing import Protocol
from weakref import ref

from txnproducer._wire.platform import SYSTEM

__all__ = ["AT_EXIT_TIMEOUT_S", "forget", "remember"]

_LOG = logging.getLogger(__name__)

# Shared by all producers: a process should end soon, and a supervisor may kill it after ten.
AT_EXIT_TIMEOUT_S = 5.0


class LiveProducer(Protocol):
    """A producer, as these hooks see it."""

    def initiate_close(self) -> None:
        """Begin to close it, without waiting."""
        ...

    def close_by(self, deadline_ms: int) -> None:
        """Close it before a time of the I/O thread's clock."""
        ...

    def disown(self) -> None:
        """Note that this process is a fork of the one that made the producer. Takes no lock."""
        ...


# By their ids. Not a WeakSet: iterating over one fails while other threads open producers.
_live: dict[int, ref[LiveProducer]] = {}


def remember(producer: LiveProducer) -> None:
    """Register a producer that was opened."""
    key = id(producer)
    # Weak: the register must not keep a dropped producer, and its thread, alive until the exit.
    _live[key] = ref(producer, lambda _: _live.pop(key, None))


def forget(producer: LiveProducer) -> None:
    """Drop a producer whose thread has ended."""
    _live.pop(id(producer), None)


def _all() -> list[LiveProducer]:
    return [producer for each in list(_live.values()) if (producer := each()) is not None]


def _close_all() -> None:
    """Close the producers that the program left open, which aborts their open transactions."""
    producers = _all()
    for producer in producers:
        # All begin before the first is waited for, so that they share the time.
        _try(producer.initiate_close)
    deadline_ms = SYSTEM.monotonic_ms() + round(AT_EXIT_TIMEOUT_S * 1000)
    for producer in producers:
        _try(producer.close_by, deadline_ms)


def _try(step: Callable[..., None], *arguments: int) -> None:
    try:
        step(*arguments)
    except Exception:  # noqa: BLE001 - the others must be closed as well
        _LOG.exception("could not close a producer at exit")


def _disown_all() -> None:
    for producer in _all():
        # Takes no lock: another thread may have held it at the fork, and that thread is not in the
        # child.
        producer.disown()
    _live.clear()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    # Only in the child: the parent's threads and sockets go on.
    os.register_at_fork(after_in_child=_disown_all)
