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
import sys
import threading
import traceback
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, Protocol
from weakref import ref

from txnproducer._sync.held_logs import set_taker

__all__ = ["OF_FINALIZER", "THREAD_NAME", "LoggingLoop", "hand_out", "watch"]

THREAD_NAME: Final = "txnproducer-logs"
# The `extra` of a record that a finalizer makes. It runs on any thread, perhaps within a handler.
OF_FINALIZER: Final = {"is_of_finalizer": True}
# Without a loop the thread ends after so long without a record.
_IDLE_S: Final = 2.0
# At exit, a handler that has had a record for so long hangs.
_EXIT_S: Final = 5.0
# A handler that hangs must not cost all memory.
_MOST: Final = 100_000
_UNCHANGING: Final = (str, int, float, type(None), BaseException)
_DROPPED: Final = "%d log records were dropped, since the handlers were too slow"


class LoggingLoop(Protocol):
    """A loop. Records wait for the thread until it has ended."""

    @property
    def has_ended(self) -> bool:
        """Whether no handler can stand against it any more."""
        ...


class _Courier:
    """The state that threads share. The child of a fork makes another."""

    def __init__(self) -> None:
        self.held: deque[logging.LogRecord] = deque()
        self.dropped = 0
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
        try:
            self._text, self._shown = str(argument), repr(argument)
        except Exception:  # noqa: BLE001 - a log call never raises
            self._text = self._shown = f"<unprintable {type(argument).__name__}>"

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return self._shown


_loops: dict[int, ref[LoggingLoop]] = {}
_courier = _Courier()


def watch(loop: LoggingLoop) -> None:
    """Hold records until this loop has ended."""
    key = id(loop)
    _loops[key] = ref(loop, lambda _: _loops.pop(key, None))


def hand_out() -> None:
    """Give the records that wait to their handlers. Return when all have been given."""
    courier = _courier
    with courier.giving:
        courier.giver = threading.get_ident()
        try:
            # In a child that a handler has forked, the rest is the parent's.
            while courier.held and courier is _courier:
                courier.record = courier.held.popleft()
                _give(courier.record)
            if courier.dropped:
                dropped, courier.dropped = courier.dropped, 0
                logging.getLogger("txnproducer").warning(_DROPPED, dropped)
        finally:
            courier.record = courier.giver = None


def _give(record: logging.LogRecord) -> None:
    try:
        logging.getLogger(record.name).handle(record)
    except Exception:  # noqa: BLE001 - of a handler or a filter, for no caller of ours
        _print_failure()


def _print_failure() -> None:
    if logging.raiseExceptions and sys.stderr is not None:
        with suppress(Exception):  # a daemon's standard error may be closed
            traceback.print_exc()


def _take(record: logging.LogRecord) -> bool:
    """Hold a record, or drop it. Return False if handlers may have it at once."""
    courier = _courier
    if record is courier.record:
        return False
    if courier.giver == threading.get_ident() and not hasattr(record, "is_of_finalizer"):
        return True
    # After the last loop as well, a record does not pass those that are held.
    if not (courier.held or courier.record or _is_loop_alive()):
        return False
    if len(courier.held) >= _MOST:
        courier.dropped += 1
        return True
    if isinstance(record.args, tuple):
        record.args = tuple(_told(each) for each in record.args)
    elif isinstance(record.args, Mapping):
        record.args = {name: _told(each) for name, each in record.args.items()}
    courier.held.append(record)
    courier.wakeups.put(None)
    return _start(courier) or not _take_back(courier, record)


def _take_back(courier: _Courier, record: logging.LogRecord) -> bool:
    """Return whether a record that is held can go to the handlers at once after all."""
    try:
        courier.held.remove(record)
    except ValueError:
        return False
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


def _start(courier: _Courier) -> bool:
    """Return whether the thread runs. It does not start when the interpreter ends."""
    if courier.running.acquire(blocking=False):
        try:
            threading.Thread(target=_run, args=(courier,), name=THREAD_NAME, daemon=True).start()
        except BaseException as error:  # also an interrupt, perhaps after the start
            _stop(courier)
            if not isinstance(error, RuntimeError):
                raise
            return False
    return True


def _stop(courier: _Courier) -> None:
    with suppress(RuntimeError):  # after an interrupt there may be two threads, in turns
        courier.running.release()


def _run(courier: _Courier) -> None:
    while True:
        try:
            courier.wakeups.get(timeout=_IDLE_S)
        except Empty:
            # While a loop lives the thread stays: when the main thread has ended, Python 3.12
            # starts none.
            if _is_loop_alive():
                continue
            _stop(courier)
            # A record that came before this line has found the thread running.
            if not courier.held or not courier.running.acquire(blocking=False):
                return
        try:
            hand_out()
        except BaseException:  # noqa: BLE001 - as `sys.exit()` in a handler; the thread goes on
            _print_failure()


def _hand_out_at_exit() -> None:
    """Hand out all that is left, unless a handler hangs: `logging.shutdown` waits for that."""
    at_hand = _courier.record
    while not _courier.giving.acquire(timeout=_EXIT_S):
        if _courier.record is at_hand:
            return
        at_hand = _courier.record
    try:
        hand_out()
    finally:
        _courier.giving.release()


def _begin_again_in_child() -> None:
    global _courier
    # The parent has these records, locks and loops, and the thread.
    _courier = _Courier()
    _loops.clear()


set_taker(_take)
atexit.register(_hand_out_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_again_in_child)
