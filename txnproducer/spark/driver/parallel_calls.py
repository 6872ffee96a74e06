"""Calls that a driver makes for many ids, some at once.

Owns: the threads, and their end at Ctrl-C. Must not know: the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

MOST_AT_ONCE: Final = 8

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def at_once(call: Callable[[_In], _Out], inputs: Iterable[_In]) -> list[_Out]:
    """Call for all inputs, some at once. No call is under way when this returns or raises.

    Ctrl-C is not kept waiting: calls that have begun go on for a while then, and no other begins.
    """
    pool = ThreadPoolExecutor(MOST_AT_ONCE)
    waits = True
    try:
        # The list reads every result, so that an error in one of the threads is raised here.
        return list(pool.map(call, inputs))
    except KeyboardInterrupt:
        waits = False
        raise
    finally:
        pool.shutdown(wait=waits, cancel_futures=True)
