"""The only clock: every time below the shell is an argument that was read here."""

from __future__ import annotations

import time

__all__ = ["monotonic_ms", "monotonic_ns", "monotonic_s", "wall_clock_ms"]


def monotonic_ms() -> int:
    """Return the time of the core's clock, which is monotonic and starts anywhere."""
    return time.monotonic_ns() // 1_000_000


def monotonic_ns() -> int:
    """Return the time of the core's clock in nanoseconds, to measure durations."""
    return time.monotonic_ns()


def monotonic_s() -> float:
    """Return the time of the core's clock in seconds, for waits that a lock measures in them."""
    return time.monotonic()


def wall_clock_ms() -> int:
    """Return the time for records' timestamps, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
