"""Waits for effects that another thread or process reaches in its own time."""

from __future__ import annotations

import time
from collections.abc import Callable

_POLL_S = 0.001
_LONGEST_S = 30.0


def becomes_true(is_so: Callable[[], object], longest_s: float = _LONGEST_S) -> bool:
    """Return whether a condition holds before the time is up."""
    end_s = time.monotonic() + longest_s
    while not is_so():
        if time.monotonic() > end_s:
            return False
        # No event tells of it. The other side gets the processor meanwhile.
        time.sleep(_POLL_S)
    return True


def wait_until(
    is_so: Callable[[], object], otherwise: object = None, longest_s: float = _LONGEST_S
) -> None:
    """Wait until a condition holds, or fail.

    Args:
        is_so: the condition; asked again and again.
        otherwise: the place where the test fails, or what is wrong there.
        longest_s: the test fails after so many seconds.
    """
    assert becomes_true(is_so, longest_s), otherwise or f"not within {longest_s:g} s"
