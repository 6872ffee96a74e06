"""The producers of this process, and their treatment at a fork and at the exit.

Why it exists: a child process inherits a producer whose thread and sockets stay with the parent.
At exit, an open transaction would be left to its time-out. No call of the producer runs at these
two moments, so the interpreter's hooks have to reach it.
Owns: the register of open producers, the hooks of the interpreter.
Must not know: what a producer does beyond the calls below.
Rules:
* A producer and its loop are registered weakly until they have ended. The loop outlives a producer
  that is dropped, as its thread keeps it, and may have a transaction to abort.
* The hooks raise no `Exception`.
* At exit all begin to close before the first wait, and one deadline holds for all of them.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from functools import partial
from typing import Protocol
from weakref import ref

from txnproducer._sync.held_logs import held_logger
from txnproducer._wire.platform import SYSTEM

__all__ = ["AT_EXIT_TIMEOUT_S", "exit_limits", "forget", "remember"]

_LOG = held_logger(__name__)

# Shared by all producers: a process should end soon, and a supervisor may kill it after 10 s.
AT_EXIT_TIMEOUT_S = 5.0
# The time for the forced ends after that, shared by all, and at least `_SHORT_S` for each. Such an
# end takes milliseconds, unless a callback blocks.
_EXIT_MOMENT_S = 1.0
_SHORT_S = 0.05


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


class Loop(Protocol):
    """The loop of a producer, as these hooks see it if the producer was dropped."""

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, and with it all its work."""
        ...

    def initiate_close_at_exit(self) -> None:
        """Begin to end, without waiting."""
        ...

    def close(self, timeout_s: float, forced_s: float | None = None) -> bool:
        """End in good order within a time, and then by force."""
        ...

    def disown(self) -> None:
        """Note that this process is a fork of the one that made the loop. Takes no lock."""
        ...


# By their ids. Not a WeakSet: iterating over one fails while other threads open producers.
_live: dict[int, ref[LiveProducer]] = {}
_loops: dict[int, ref[Loop]] = {}


def remember(producer: LiveProducer, loop: Loop) -> None:
    """Register a producer that was opened."""
    # Weak: the register must not keep a dropped producer, and its thread, alive until the exit.
    key, loop_key = id(producer), id(loop)
    _live[key] = ref(producer, lambda _: _live.pop(key, None))
    # From the begin: the collector clears the weak references to a producer before it calls
    # `__del__`, and the interpreter may exit in between.
    _loops[loop_key] = ref(loop, lambda _: _loops.pop(loop_key, None))


def forget(producer: LiveProducer) -> None:
    """Drop a producer whose thread has ended."""
    _live.pop(id(producer), None)


def exit_limits(deadline_ms: int) -> tuple[float, float]:
    """Return the seconds for an end in good order, and for a forced one after it."""
    left_s = (deadline_ms - SYSTEM.monotonic_ms()) / 1000
    # The time left goes to the end in good order. The forced end has only the moment after it.
    return max(0.0, left_s), max(_SHORT_S, min(left_s, 0.0) + _EXIT_MOMENT_S)


def _all() -> list[LiveProducer]:
    return [producer for each in list(_live.values()) if (producer := each()) is not None]


def _running_loops() -> list[Loop]:
    loops = [loop for each in list(_loops.values()) if (loop := each()) is not None]
    return [loop for loop in loops if not loop.has_ended]


def _close_all() -> None:
    """Close the producers that the program left open, which aborts their open transactions."""
    producers, loops = _all(), _running_loops()
    # All begin before the first is waited for, so that they share the time.
    for producer in producers:
        _try(producer.initiate_close)
    for loop in loops:
        _try(loop.initiate_close_at_exit)
    deadline_ms = SYSTEM.monotonic_ms() + round(AT_EXIT_TIMEOUT_S * 1000)
    for producer in producers:
        _try(partial(producer.close_by, deadline_ms))
    for loop in _running_loops():
        _try(partial(loop.close, *exit_limits(deadline_ms)))


def _try(step: Callable[[], object]) -> None:
    try:
        step()
    except Exception:  # noqa: BLE001 - the others must be closed as well
        _LOG.exception("could not close a producer at exit")


def _disown_all() -> None:
    for producer in _all():
        # Takes no lock: another thread may have held it at the fork, and that thread is not in the
        # child.
        producer.disown()
    for loop in _running_loops():
        loop.disown()
    _live.clear()
    _loops.clear()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    # Only in the child: the parent's threads and sockets go on.
    os.register_at_fork(after_in_child=_disown_all)
