"""What happened, one aligned line per event; the same lines for the same seed.

Owns: `Trace`. Formatting costs more than the event itself, so that callers ask `is_on` first.
"""

from __future__ import annotations

from collections.abc import Callable


class Trace:
    """The lines of one run.

    Args:
        emit: takes each line; None for no trace.

    Attributes:
        is_on: whether lines are wanted.
    """

    __slots__ = ("_emit", "is_on")

    def __init__(self, emit: Callable[[str], None] | None) -> None:
        self._emit = emit
        self.is_on = emit is not None

    def add(self, now_ms: int, who: str, what: str) -> None:
        """Add a line."""
        if self._emit is not None:
            self._emit(f"{now_ms:>9}  {who:<12} {what}")
