"""The event loops with tasks that wait for a producer, and how they are woken.

Why it exists: a task cannot sleep on a lock as a thread does, and to wake its loop costs a system
call. So all tasks of a loop that can go on are woken by one call.
Owns: the tasks to wake, the wait of one task. Must not know: a task's condition.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # at run time it is loaded by those who have a loop
    import asyncio

__all__ = ["LoopWakeups", "WaitingTask", "warn_of_blocked_loop"]

from txnproducer._sync.held_logs import held_logger

_LOG = held_logger(__name__)
_PACKAGE: Final = "txnproducer."


class LoopWakeups:
    """The tasks of event loops that can go on. Every call needs the core's lock."""

    def __init__(self) -> None:
        self._due: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}

    def add(self, waiting: asyncio.Future[None]) -> None:
        """Note that a task can go on.

        Args:
            waiting: the future that the task awaits.
        """
        self._due.setdefault(waiting.get_loop(), []).append(waiting)

    def wake(self) -> None:
        """Wake the tasks that were noted, each loop once."""
        if not self._due:
            return
        due, self._due = self._due, {}
        for loop, waits in due.items():
            try:
                loop.call_soon_threadsafe(_end, waits)
            except Exception as error:  # noqa: BLE001 - the other loops must be woken
                # A loop that is closed has no tasks any more.
                _LOG.debug("could not wake %d tasks: %s", len(waits), error)


class WaitingTask:
    """One waiting task, beside the `WaitingThread`s.

    Args:
        is_done: the condition to wait for; called with the core's lock held.
        waiting: the future that the task awaits.
        wakeups: wakes its loop.
    """

    __slots__ = ("_is_woken", "_wakeups", "is_done", "waiting")

    def __init__(
        self, is_done: Callable[[], bool], waiting: asyncio.Future[None], wakeups: LoopWakeups
    ) -> None:
        self.is_done = is_done
        self.waiting = waiting
        self._wakeups = wakeups
        self._is_woken = False

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody can be woken any more, because the loop is closed."""
        return self.waiting.get_loop().is_closed()

    def wake(self) -> None:
        """Let the task look again. Call with the core's lock held."""
        if not self._is_woken:
            self._is_woken = True
            self._wakeups.add(self.waiting)


def warn_of_blocked_loop() -> None:
    """Warn if the calling thread is about to wait, and runs an event loop."""
    asyncio = sys.modules.get("asyncio")
    # Notebooks run their cells in a loop that has nothing else to do.
    if asyncio is None or "ipykernel" in sys.modules:
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    warnings.warn(
        "this call of a TransactionalProducer blocks the event loop, and all of its tasks: use"
        " txnproducer.aio.AsyncTransactionalProducer, or await asyncio.to_thread(...)",
        RuntimeWarning,
        _frames_of_package() + 1,
    )


def _frames_of_package() -> int:
    """Return how many of the innermost frames are this package's, from the caller's on."""
    frame, count = sys._getframe(1), 1  # noqa: SLF001 - as `warnings` does
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        frame, count = frame.f_back, count + 1
    return count - 1


def _end(waits: Iterable[asyncio.Future[None]]) -> None:
    for waiting in waits:
        if not waiting.done():  # its task may have been cancelled
            waiting.set_result(None)
