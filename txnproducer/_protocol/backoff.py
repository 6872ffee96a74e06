"""How long to wait before a retry: exponential, capped, with jitter (KIP-580).

Owns: the arithmetic. Must not know: what is retried, or when; the caller adds the result to its
own clock. Rule: draw once per attempt and keep the value. The Java client draws again at every
look, so that under frequent polling the effective wait tends to the lower bound.
"""

from __future__ import annotations

from typing import Final

from txnproducer._protocol.rng import Rng

# Java's constant (RETRY_BACKOFF_JITTER).
JITTER: Final = 0.2
# After this many doublings every configuration has reached its cap.
_MOST_DOUBLINGS: Final = 30


def doubled(first_ms: int, longest_ms: int, times: int) -> int:
    """Return the first time doubled `times` times, capped at the longest."""
    return min(first_ms << min(times, _MOST_DOUBLINGS), longest_ms)


class ExponentialBackoff:
    """Waiting times that double with every failed attempt.

    Args:
        initial_ms: before the first retry.
        max_ms: the cap, before jitter.
        rng: the source of the jitter.
    """

    __slots__ = ("_drawn_at_ms", "_factor", "_initial_ms", "_max_ms", "_rng")

    def __init__(self, initial_ms: int, max_ms: int, rng: Rng) -> None:
        self._initial_ms = initial_ms
        self._max_ms = max_ms
        self._rng = rng
        self._factor = 1.0
        self._drawn_at_ms = -1

    def draw_ms(self, attempts: int) -> int:
        """Return the milliseconds to wait after a failure, `attempts` others before it."""
        return self._wait_ms(attempts, self._draw_factor())

    def draw_together_ms(self, attempts: int, now_ms: int) -> int:
        """Return the same as `draw_ms`, with one jitter for all that fail at the same moment."""
        if self._drawn_at_ms != now_ms:
            self._factor = self._draw_factor()
            self._drawn_at_ms = now_ms
        return self._wait_ms(attempts, self._factor)

    def _draw_factor(self) -> float:
        return 1 - JITTER + 2 * JITTER * self._rng.random()

    def _wait_ms(self, attempts: int, factor: float) -> int:
        # On the capped time, or producers that have reached the cap would all retry at the same
        # moment.
        return int(doubled(self._initial_ms, self._max_ms, attempts) * factor)
