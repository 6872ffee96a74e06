"""Waits for effects that a broker reaches in its own time."""

from __future__ import annotations

import time
from collections.abc import Callable

_POLL_S = 0.02


def wait_until(is_so: Callable[[], bool], otherwise: str, longest_s: float = 30.0) -> None:
    """Wait until a condition holds.

    Args:
        is_so: the condition; asked again and again.
        otherwise: what is wrong if it never does.
        longest_s: after so many seconds that is raised.
    """
    end = time.monotonic() + longest_s
    while not is_so():
        assert time.monotonic() < end, f"after {longest_s:g} s: {otherwise}"
        time.sleep(_POLL_S)  # a broker tells nobody when it is done
