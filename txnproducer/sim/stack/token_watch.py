"""The calls of one producer's token provider, judged.

Owns: the calls that are under way. Must not know: what a call returns, the run.

    provider  while a call hangs, the provider is not called again for the same connection for half
              a minute
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

__all__ = ["TokenWatch"]

# The client waits for 30 seconds, which begin a moment before the call.
_WAITS_MS: Final = 29_000


class TokenWatch:
    """Judge the calls of one producer's token provider.

    Args:
        violate: takes the check and the text of a violation.

    Attributes:
        connections: returns how many connections the producer has, or tries to make; 0 if that is
            not known.
    """

    def __init__(self, violate: Callable[[str, str], None]) -> None:
        self._violate = violate
        self._began_ms: dict[threading.Thread, int] = {}
        self._ended_ms = 0
        self.connections: Callable[[], int] = lambda: 0

    def call_begins(self, thread: threading.Thread, now_ms: int) -> None:
        """Note and judge a call."""
        began = [at_ms for at_ms in self._began_ms.values() if now_ms - at_ms < _WAITS_MS]
        most = self.connections()
        # Each connection may have one: the others' logins do not wait for one that hangs.
        if len(began) >= most > 0:
            self._violate(
                "provider",
                f"the token provider is called for {most} connections, and {len(began)} calls have"
                f" not returned, of which the first began {now_ms - min(began)} ms ago",
            )
        self._began_ms[thread] = now_ms

    def call_ends(self, thread: threading.Thread, now_ms: int) -> None:
        """Note the end of a call."""
        del self._began_ms[thread]
        self._ended_ms = now_ms

    def held_until_ms(self, now_ms: int) -> int:
        """Return until when a call may have kept the client from connecting, 0 for no call."""
        return now_ms if self._began_ms else self._ended_ms
