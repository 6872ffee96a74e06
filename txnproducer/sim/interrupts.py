"""Exceptions that come into a call from outside: Ctrl-C, a soft time limit, an alarm.

Why it exists: a signal handler may raise anywhere in the application's thread. Afterwards the call
can be made again, or the transaction aborted; the record is in, or its transaction cannot commit.
Owns: `Interrupted`, `Interrupts`, which raises it before an entry of the core, or behind it. Must
not know: what the entries do.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from txnproducer.sim.faults import FaultKind, Faults

_Result = TypeVar("_Result")


class Interrupted(BaseException):
    """What a signal handler raises.

    Attributes:
        lost: what the call had returned, if it had.
    """

    def __init__(self, lost: object = None) -> None:
        super().__init__()
        self.lost = lost


class Interrupts:
    """See the module.

    Args:
        faults: draws whether one comes, and counts it.
        dice: draws when.
    """

    def __init__(self, faults: Faults, dice: random.Random) -> None:
        self._faults = faults
        self._dice = dice

    def run(self, call: Callable[[], _Result]) -> _Result:
        """Make a call of the core's.

        Raises:
            Interrupted: an exception came into it.
        """
        if not self._faults.happens(FaultKind.INTERRUPTED):
            return call()
        if self._dice.random() < 1 / 2:
            raise Interrupted
        raise Interrupted(call())
