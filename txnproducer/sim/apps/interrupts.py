"""Exceptions that come into a call from outside: Ctrl-C, a soft time limit, an alarm.

Why it exists: a signal handler may raise anywhere in the application's thread. Afterwards the call
can be made again, or the transaction aborted; the record is in, or its transaction cannot commit.
Owns: `Interrupted`, `Interrupts`, which raises it before an entry of the core, after it, or at an
inner call. Must not know: what the entries do.

Inner calls are counted by the interpreter's profiling hook, and only those of functions in modules
that are never compiled for users: so a seed means the same with and without compiled parts. Code
that mypyc compiles calls no such hook. Therefore the exception comes at inner calls only in runs
of the kind `interrupted`, which no seed draws by itself: a compiled campaign never has one.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Final, TypeVar

from txnproducer.sim.world.faults import FaultKind, Faults

_Result = TypeVar("_Result")
# Of the core; none of them is in setup.py's AS_THEY_ARE, which a test looks after.
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
        "txnproducer._core.transactions.request_queue",
        "txnproducer._core.transactions.requests",
        "txnproducer._core.transactions.result",
        "txnproducer._core.transactions.share",
        "txnproducer._core.transactions.state",
    }
)
# Most entries make fewer; then the exception comes after the entry.
_MOST_INNER_CALLS = 30


class Interrupted(BaseException):
    """What a signal handler raises.

    Attributes:
        lost: what the call had returned, if it had.
        is_inside: whether it came at an inner call.
    """

    def __init__(self, lost: object = None, *, is_inside: bool = False) -> None:
        super().__init__()
        self.lost = lost
        self.is_inside = is_inside


class Interrupts:
    """See the module.

    Args:
        faults: draws whether one comes, and counts it.
        rng: draws when.
        is_inside: whether it comes at inner calls.
    """

    def __init__(self, faults: Faults, rng: random.Random, *, is_inside: bool) -> None:
        self._faults = faults
        self._rng = rng
        self._is_inside = is_inside

    def run(self, call: Callable[[], _Result]) -> _Result:
        """Make a call of the core's.

        Raises:
            Interrupted: an exception came into it.
        """
        if not self._faults.happens(FaultKind.INTERRUPTED):
            return call()
        if self._is_inside:
            raise Interrupted(run_until(self._rng.randrange(_MOST_INNER_CALLS), call))
        if self._rng.random() < 1 / 2:
            raise Interrupted
        raise Interrupted(call())


def run_until(call_count: int, call: Callable[[], _Result]) -> _Result:
    """Make a call, but raise once it has made so many inner calls.

    Raises:
        Interrupted: it makes more.
    """
    left = call_count

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        if event != "call" or not _is_counted(frame):
            return
        left -= 1
        if left < 0:
            raise Interrupted(is_inside=True)

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        return call()
    finally:
        sys.setprofile(before)


def _is_counted(frame: FrameType) -> bool:
    # Comprehensions are calls in some versions of Python only.
    is_function = not frame.f_code.co_name.startswith("<")
    return is_function and frame.f_globals.get("__name__") in COUNTED_MODULES
