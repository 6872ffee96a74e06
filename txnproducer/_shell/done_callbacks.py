"""The calls that are made once futures have ended: functions, tasks of event loops, other futures.

Why it exists: a result of a batch ends with the lock held, and users' functions must run without
it. Thousands of futures end with one result, so they are handed over together.
Owns: the listeners that are due. Must not know: batches, the loop that takes the due ones.
Rules:
* A listener is added, and taken, with the lock held. Its function runs without it, on the I/O
  thread.
* An event loop is woken once for all tasks that can go on (`LoopWakeups`).
"""

from __future__ import annotations

import concurrent.futures
import inspect
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from txnproducer._core.ports import DoneListener, EndingFuture
from txnproducer._shell.event_loops import LoopWakeups
from txnproducer._sync.core_lock import CoreLock, refuse_reentry
from txnproducer._sync.held_logs import held_logger

if TYPE_CHECKING:
    import asyncio

__all__ = ["DoneCallbacks", "DueListeners"]

_LOG = held_logger(__name__)


class DoneCallbacks:
    """The listeners of one producer's futures.

    Args:
        lock: guards the core.
        wakeups: wakes event loops.
    """

    def __init__(self, lock: CoreLock, wakeups: LoopWakeups) -> None:
        self._lock = lock
        self._wakeups = wakeups
        self._due: list[DoneListener] = []

    # --- for the futures -----------------------------------------------------------------------

    def call(self, future: EndingFuture, function: Callable[[Any], object]) -> None:
        """Call a function with a future once that has ended; at once if it has.

        Raises:
            TypeError: it cannot be called, or is a coroutine function.
            ForkedProducerError: the future had not ended at the fork that made this process.
        """
        if not callable(function):
            raise TypeError(f"add_done_callback takes a function of one argument: {function!r}")
        if inspect.iscoroutinefunction(function):
            raise TypeError(
                f"add_done_callback cannot await {function!r}: await the future in a task instead"
            )
        if getattr(function, "__module__", None) == "asyncio.tasks":
            # It would run on the I/O thread, where it does not wake its loop.
            raise TypeError(
                "asyncio.wait takes an event loop's own futures alone: give it"
                " asyncio.ensure_future(future), or use asyncio.gather"
            )
        refuse_reentry(self._lock, "add_done_callback")
        if future.done() or not self._listen(future, function):
            # An interrupt is the caller's own here, and goes on to it.
            _call(future, function, Exception)

    def as_concurrent_future(self, future: EndingFuture) -> concurrent.futures.Future[Any]:
        """Return a `concurrent.futures.Future` that ends as a future does."""
        twin: concurrent.futures.Future[Any] = concurrent.futures.Future()
        twin.set_running_or_notify_cancel()  # from now on it refuses to be cancelled
        self.call(future, partial(_end_as, twin))
        return twin

    def wait_in_loop(self, future: EndingFuture) -> Generator[Any, None, None]:
        """Let the running task of an event loop wait for a future's end."""
        # Imported late: a program without an event loop does not pay for it.
        import asyncio

        refuse_reentry(self._lock, "await")
        task_wait = asyncio.get_running_loop().create_future()
        if self._listen(future, _TaskWait(task_wait)):
            yield from task_wait

    def _listen(self, future: EndingFuture, function: Callable[[Any], object]) -> bool:
        with self._lock:
            return _add((future, function))

    # --- for the results and the I/O thread ----------------------------------------------------

    def hand_over(self, listeners: Sequence[DoneListener]) -> None:
        """Take the listeners of a result that has ended. Call with the lock held."""
        # The loop takes them in its next turn. A result ends in a turn, or in an application's
        # call that pokes the loop, as an abort does.
        self._due += listeners

    def take(self) -> tuple[DueListeners, ...]:
        """Return the functions that are due, and wake the tasks. Call with the lock held."""
        if not self._due:
            return ()
        due, self._due = self._due, []
        functions = []
        for listener in due:
            # A part of a split batch, or the next one of many, may still be under way.
            if _add(listener):
                continue
            if isinstance(listener[1], _TaskWait):
                self._wakeups.add(listener[1].waiting)
            else:
                functions.append(listener)
        return (DueListeners(functions),) if functions else ()


class DueListeners:
    """Functions that are due together, for the I/O thread to call without the lock.

    Args:
        listeners: the futures that have ended, with the functions.

    Attributes:
        raised: the exceptions of the functions that have run.
    """

    def __init__(self, listeners: Sequence[DoneListener]) -> None:
        self._listeners = listeners
        self.raised: tuple[BaseException, ...] = ()

    def run(self) -> None:
        """Call each function. An exception in one is logged, and the next one runs."""
        for future, function in self._listeners:
            error = _call(future, function)
            if error is not None:
                self.raised += (error,)

    def on_finished(self) -> None:
        """Do nothing: no call waits for these functions."""


class _TaskWait:
    """The wait of a task of an event loop. It takes the place of a function."""

    __slots__ = ("waiting",)

    def __init__(self, waiting: asyncio.Future[None]) -> None:
        self.waiting = waiting

    def __call__(self, future: EndingFuture) -> None:
        raise NotImplementedError("the task is woken together with others")


def _add(listener: DoneListener) -> bool:
    """Let a listener wait for its future. Return False if that has ended."""
    pending = listener[0].pending_end()
    if pending is None:
        return False
    if pending.listeners is None:
        pending.listeners = []
    pending.listeners.append(listener)
    return True


def _call(
    future: EndingFuture,
    function: Callable[[Any], object],
    logged: type[BaseException] = BaseException,
) -> BaseException | None:
    try:
        told = function(future)
        if inspect.isawaitable(told):
            if inspect.iscoroutine(told):
                told.close()
            _LOG.error(
                "a done-callback of %r returned an awaitable, which nothing awaits: call"
                " loop.call_soon_threadsafe() in it, or await the future in a task",
                future,
            )
    except logged as error:  # users' code may raise anything
        _LOG.exception("a done-callback failed for %r", future)
        return error
    return None


def _end_as(twin: concurrent.futures.Future[Any], future: EndingFuture) -> None:
    try:
        outcome = future.result(0)
    except Exception as error:  # noqa: BLE001 - it is the twin's
        twin.set_exception(error)
        return
    twin.set_result(outcome)
