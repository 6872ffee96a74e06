"""The listeners that ask for a login of clients that have none, for a while.

Why it exists: such a listener sends no error. It answers the first exchange of a connection, and
closes it at the first request. Only a question on another connection shows the reason.
Owns: which listener asks now, and which has asked lately. Must not know: events, the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from txnproducer._server.login import Users

__all__ = ["ASKS", "Listeners"]

ASKS: Final = "listener asks for a login"
_USERS: Final = Users({"somebody": "secret"})
# A client remembers the answer to its question for a minute.
_LATELY_MS: Final = 70_000


class Listeners:
    """The listeners of a run.

    Args:
        count: called for each connection that one closes since it has no login.

    Attributes:
        late_ms: how long one that asks takes for each answer but the first.
    """

    def __init__(self, count: Callable[[str], None]) -> None:
        self._count = count
        # By broker, how many events let it ask now, and when the last one has ended.
        self._asking: dict[int, int] = {}
        self._ended_ms: dict[int, int] = {}
        self.late_ms = 0.0

    def begin(self, nodes: Iterable[int]) -> None:
        """Let brokers ask for a login from now on."""
        for node_id in nodes:
            self._asking[node_id] = self._asking.get(node_id, 0) + 1

    def end(self, nodes: Iterable[int], now_ms: int) -> list[int]:
        """End one event. Return the brokers that take requests without a login again."""
        ended = []
        for node_id in nodes:
            # The end of all faults may have ended it before.
            if not self._asking.get(node_id):
                continue
            self._asking[node_id] -= 1
            self._ended_ms[node_id] = now_ms
            if not self._asking[node_id]:
                ended.append(node_id)
        return ended

    @property
    def asking(self) -> list[int]:
        """The brokers that ask now."""
        return [node_id for node_id, events in self._asking.items() if events]

    def users_at(self, node_id: int) -> Users | None:
        """Return the users of a listener that asks now, or None."""
        return _USERS if self._asking.get(node_id) else None

    def has_asked_lately(self, node_id: int, now_ms: int) -> bool:
        """Return whether a client may still take a broker for one that asks."""
        ended_ms = self._ended_ms.get(node_id)
        has_ended_lately = ended_ms is not None and now_ms < ended_ms + _LATELY_MS
        return bool(self._asking.get(node_id)) or has_ended_lately

    def closes(self) -> None:
        """Note that one has closed a connection at a request without a login."""
        self._count(ASKS)
