"""Waits that an event ends, also if a signal's handler sets it.

Owns: the wait. Must not know: whose it is.

`Event.wait` holds the event's lock for a moment. A handler that runs in that moment, on the same
thread, and calls `set()` would wait for that lock for ever.
"""

from __future__ import annotations

import threading
import time
from typing import Final

_LOOK_S: Final = 0.05


def pause(stop: threading.Event, seconds: float) -> None:
    """Wait, or return early if the event is set."""
    # Seconds of the process, in steps: a suspended machine may wait longer.
    left_s = seconds
    while left_s > 0 and not stop.is_set():
        time.sleep(min(left_s, _LOOK_S))  # noqa: TID251 - a wait above the core
        left_s -= _LOOK_S
