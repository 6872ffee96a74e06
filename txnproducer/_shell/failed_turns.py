"""The turns of the loop that failed: how each is logged, and the pause that follows it.

Why it exists: the loop goes on after an unexpected exception, since other threads wait for it.
Owns: the count of failures. Must not know: the loop.
Rules: while the exception repeats, the pauses become longer and the log entries fewer, so that a
permanent fault neither takes a whole CPU nor floods the log.
"""

from __future__ import annotations

from txnproducer._protocol.backoff import doubled
from txnproducer._sync.held_logs import held_logger

__all__ = ["FailedTurns"]

_LOG = held_logger(__name__)

# The pause after a failed turn; it doubles with each further one.
_FIRST_PAUSE_MS = 20
_LONGEST_PAUSE_MS = 2_000
# A failed turn this long after the one before counts as the first again.
_RECOVERED_MS = 60_000


class FailedTurns:
    """The count of one loop's failed turns.

    Args:
        name: the thread's name, for the log.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0
        self._last_ms = 0

    def note(self, now_ms: int) -> float:
        """Log the exception that is being handled. Return the seconds to pause after it."""
        # Good turns in between do not reset the count: a fault can come and go.
        self._count = self._count + 1 if now_ms - self._last_ms < _RECOVERED_MS else 1
        self._last_ms = now_ms
        # The first three failures are logged with their traces, then only the 4th, 8th, 16th ...
        if self._count <= 3 or self._count & (self._count - 1) == 0:
            _LOG.exception(
                "%s: an unexpected error (number %d); going on", self._name, self._count
            )
        return doubled(_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS, self._count - 1) / 1000
