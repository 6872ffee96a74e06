"""The thread that hands the log records of this package to the handlers.

Why it exists: no thread of ours may wait for a handler (`_sync/held_logs`).
Owns: the records that wait, the thread. Must not know: the core, the work of a loop.
Rules:
* While a loop lives, handlers get the records on this thread, in order.
* The records that a handler's own calls make there are dropped: they would come back to it.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import traceback
from collections import deque
from collections.abc import Mapping
from queue import Empty, SimpleQueue
from typing import Final, Protocol
from weakref import ref

from txnproducer._sync.held_logs import set_taker

__all__ = ["THREAD_NAME", "LoggingLoop", "hand_out", "watch"]

THREAD_NAME: Final = "txnproducer-logs"
# The thread ends after so long without a record.
_IDLE_S: Final = 2.0
# At exit a handler that hangs is not waited for any longer.
_EXIT_S: Final = 5.0
_UNCHANGING: Final = (str, int, float, type(None), BaseException)


class LoggingLoop(Protocol):
    """A loop whose log records are held."""

    @property
    def has_ended(self) -> bool:
        """Whether no handler can stand against it any more."""
        ...


class _Courier:
    """The state that threads share. The child of a fork makes another."""

    def __init__(self) -> None:
        self.wakeups: SimpleQueue[None] = SimpleQueue()  # may be used in a signal's handler
        self.giving = threading.RLock()
        self.giver: int | None = None
        self.record: logging.LogRecord | None = None
        # Held while the thread runs. Nobody waits for it.
        self.running = threading.Lock()


class _Told:
    """An argument as it was: the object itself may change before a handler formats it."""

    __slots__ = ("_shown", "_text")

    def __init__(self, argument: object) -> None:
        self._text, self._shown = str(argument), repr(argument)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return self._shown


_held: deque[logging.LogRecord] = deque()
_loops: dict[int, ref[LoggingLoop]] = {}
_courier = _Courier()


def watch(loop: LoggingLoop) -> None:
    """Hold records until this loop has ended."""
    key = id(loop)
    _loops[key] = ref(loop, lambda _: _loops.pop(key, None))


def hand_out(timeout_s: float = -1) -> None:
    """Give the records that wait to their handlers. Return when all have been given.

    Args:
        timeout_s: seconds to wait for another thread that does so; -1 for no limit.
    """
    courier = _courier
    if not courier.giving.acquire(timeout=timeout_s):
        return
    try:
        courier.giver = threading.get_ident()
        while _held:
            courier.record = _held.popleft()
            try:
                logging.getLogger(courier.record.name).handle(courier.record)
            except Exception:  # noqa: BLE001 - of a handler or a filter, for no caller of ours
                if logging.raiseExceptions:
                    traceback.print_exc()
    finally:
        courier.record = courier.giver = None
        courier.giving.release()


def _take(record: logging.LogRecord) -> bool:
    """Hold a record, or drop it. Return False if handlers may have it at once."""
    courier = _courier
    if record is courier.record:
        return False
    if courier.giver == threading.get_ident():
        return True
    if not _is_loop_alive():
        return False
    if isinstance(record.args, tuple):
        record.args = tuple(_told(each) for each in record.args)
    elif isinstance(record.args, Mapping):
        record.args = {name: _told(each) for name, each in record.args.items()}
    _held.append(record)
    courier.wakeups.put(None)
    _start(courier)
    return True


def _told(argument: object) -> object:
    return argument if isinstance(argument, _UNCHANGING) else _Told(argument)


def _is_loop_alive() -> bool:
    # A copy: other threads make producers meanwhile. Not a tuple, whose making may start a
    # garbage collection, and so change the dict, in its midst.
    for watched in list(_loops.values()):
        loop = watched()
        if loop is not None and not loop.has_ended:
            return True
    return False


def _start(courier: _Courier) -> None:
    if not courier.running.acquire(blocking=False):
        return
    try:
        threading.Thread(target=_run, args=(courier,), name=THREAD_NAME, daemon=True).start()
    except RuntimeError:  # no thread starts at the interpreter's end, where `atexit` hands out
        courier.running.release()


def _run(courier: _Courier) -> None:
    while True:
        try:
            courier.wakeups.get(timeout=_IDLE_S)
        except Empty:
            courier.running.release()
            # A record that came before this line has found the thread running.
            if not _held or not courier.running.acquire(blocking=False):
                return
        hand_out()


def _begin_again_in_child() -> None:
    global _courier
    _held.clear()  # the parent hands them out itself, and has these locks and this thread
    _courier = _Courier()


set_taker(_take)
atexit.register(hand_out, _EXIT_S)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_again_in_child)
