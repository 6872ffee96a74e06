"""The logins that brokers refuse for a while, on new connections and on living ones.

Owns: which broker refuses logins now, and the count of refusals. Must not know: when an event
begins and ends, the bytes of a login.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from txnproducer._server.login import Users

__all__ = ["ConnectionPasswords", "LoginRefusals"]


class LoginRefusals:
    """The brokers that refuse logins now.

    Args:
        count: called with the name of the event for each refusal that a broker sends.

    Attributes:
        renewals: how many of the refused logins renew one.
    """

    def __init__(self, count: Callable[[str], None]) -> None:
        self._count = count
        # By broker, the events that are under way.
        self._events: dict[int, list[str]] = {}
        self.renewals = 0

    def begin(self, event: str, nodes: Iterable[int]) -> None:
        """Let brokers refuse each login from now on."""
        for node_id in nodes:
            self._events.setdefault(node_id, []).append(event)

    def end(self, event: str, nodes: Iterable[int]) -> None:
        """End one refusal. A broker that has no other one accepts logins again."""
        for node_id in nodes:
            # The end of all faults may have ended it before.
            if event in self._events.get(node_id, ()):
                self._events[node_id].remove(event)

    def clear(self) -> None:
        """Let all brokers accept logins."""
        self._events.clear()

    def at(self, node_id: int) -> str | None:
        """Return the event that lets a broker refuse logins now, or None."""
        events = self._events.get(node_id)
        return events[-1] if events else None

    def sent(self, event: str, *, is_renewal: bool) -> None:
        """Note that a broker has sent a refusal."""
        self._count(event)
        self.renewals += is_renewal


class ConnectionPasswords(Mapping[str, str]):
    """The passwords as the broker of one connection knows them: wrong while it refuses logins.

    Args:
        passwords: the right ones.
        event: returns the event that lets the broker refuse logins now, or None.

    Attributes:
        refused_by: that of the last login; None if it had the right password.
        asks_on: whether the broker does not end the last login.
    """

    asks_on = False

    def __init__(self, passwords: Mapping[str, str], event: Callable[[], str | None]) -> None:
        self._passwords = passwords
        self._event = event
        self.refused_by: str | None = None

    def __getitem__(self, name: str) -> str:
        password = self._passwords[name]
        self.refused_by = self._event()
        return password if self.refused_by is None else f"not {password}"

    def __iter__(self) -> Iterator[str]:
        return iter(self._passwords)

    def __len__(self) -> int:
        return len(self._passwords)

    def of(self, users: Users) -> Users:
        """Return users that have these passwords."""
        return replace(users, passwords=self)
