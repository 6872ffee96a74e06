"""Exceptions that interrupt a call from outside: Ctrl-C, a soft time limit, an alarm.

Why it exists: a signal handler can raise anywhere in the application's thread. Afterwards the
application can repeat the call or abort the transaction. Either the record was taken, or its
transaction cannot commit.
Owns: `Interrupted`, and `Interrupts`, which raises it before an entry of the core, after it, or at
an inner call. Must not know: the work of the entries.

The interpreter's profiling hook counts inner calls. Only functions in modules that are never
compiled for users count, so that a seed means the same with and without compiled parts. Code
compiled by mypyc calls no such hook. Therefore the exception is raised at inner calls only in runs
of the kind `interrupted`. No seed draws this kind, so a compiled campaign never has one.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Final, TypeVar

from txnproducer.sim.world.faults import FaultKind, Faults

_Result = TypeVar("_Result")
# Modules of the core. A test checks that setup.py's AS_THEY_ARE has none of them.
COUNTED_MODULES: Final = frozenset(
    {
        "txnproducer._core.append.appender",
        "txnproducer._core.producer_core",
        "txnproducer._core.transactions.claims",
        "txnproducer._core.transactions.coordinator_requests",
        "txnproducer._core.transactions.end_line",
        "txnproducer._core.transactions.end_txn",
        "txnproducer._core.transactions.handler",
        "txnproducer._core.transactions.identity",
        "txnproducer._core.transactions.leasing",
        "txnproducer._core.transactions.manager",
        "txnproducer._core.transactions.open_transaction",
        "txnproducer._core.transactions.operation",
        "txnproducer._core.transactions.progress",
        "txnproducer._core.transactions.requests",
        "txnproducer._core.transactions.share",
    }
)
# If an entry makes fewer inner calls, as most do, the exception is raised after it.
_MOST_INNER_CALLS = 30


class Interrupted(BaseException):
    """The exception that a signal handler raises.

    Attributes:
        lost: the value that the call had returned, if it had returned.
        is_inside: whether it was raised at an inner call.
    """

    def __init__(self, lost: object = None, *, is_inside: bool = False) -> None:
        super().__init__()
        self.lost = lost
        self.is_inside = is_inside


class Interrupts:
    """Raises exceptions in calls of the core.

    Args:
        faults: draws whether an exception is raised, and counts it.
        rng: draws the moment.
        is_inside: whether it is raised at inner calls.
    """

    def __init__(self, faults: Faults, rng: random.Random, *, is_inside: bool) -> None:
        self._faults = faults
        self._rng = rng
        self._is_inside = is_inside

    def run(self, call: Callable[[], _Result]) -> _Result:
        """Call an entry of the core, and interrupt it if a fault is drawn.

        Raises:
            Interrupted: an exception interrupted the call.
        """
        if not self._faults.happens(FaultKind.INTERRUPTED):
            return call()
        if self._is_inside:
            # The entry ended before the exception was due: its value is lost all the same.
            raise Interrupted(run_until(self._rng.randrange(_MOST_INNER_CALLS), call))
        if self._rng.random() < 1 / 2:
            raise Interrupted
        # After the call: all is done, and the application knows nothing of it.
        raise Interrupted(call())


def run_until(call_count: int, call: Callable[[], _Result]) -> _Result:
    """Make a call, and interrupt it after a number of inner calls.

    Raises:
        Interrupted: the call makes more inner calls.
    """
    left = call_count

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        if event != "call" or not _is_counted(frame):
            return
        left -= 1
        if left < 0:
            raise Interrupted(is_inside=True)

    # A profiler of the whole run may have a hook of its own.
    before = sys.getprofile()
    sys.setprofile(look)
    try:
        return call()
    finally:
        sys.setprofile(before)


def _is_counted(frame: FrameType) -> bool:
    # Only some versions of Python execute a comprehension as a call.
    is_function = not frame.f_code.co_name.startswith("<")
    return is_function and frame.f_globals.get("__name__") in COUNTED_MODULES
