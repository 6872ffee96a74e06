"""The tokens of a run: those that were issued, and the brokers' opinion of them.

Owns: which token is valid, and until when. Must not know: the token provider, the bytes of a
login, when an event begins and ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from txnproducer._server.login import TokenVerdict, Users
from txnproducer.sim.stack.logins import ConnectionPasswords
from txnproducer.sim.stack.token_options import ENDLESS, REFUSED

__all__ = ["ConnectionTokens", "IssuedTokens", "logins_of_connection"]


class IssuedTokens:
    """The tokens that the identity provider has issued.

    Args:
        now_ms: returns the time.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._end_ms: dict[str, int] = {}

    def issue(self, lifetime_ms: int) -> str:
        """Return a new token, which is valid for a time from now on."""
        token = f"token-{len(self._end_ms)}"
        self._end_ms[token] = self._now_ms() + lifetime_ms
        return token

    def judge(self, token: str) -> TokenVerdict:
        """Return a broker's opinion of a token."""
        left_ms = self._end_ms.get(token, 0) - self._now_ms()
        return TokenVerdict(left_ms > 0, max(0, left_ms))


class ConnectionTokens:
    """The tokens as the broker of one connection sees them, which may refuse each for a while.

    Args:
        judge: returns the right opinion of a token.
        event: returns the event that the broker's logins meet now, or None.

    Attributes:
        refused_by: the reason why the last login is refused; None if it is not.
        asks_on: whether the broker does not end the last login.
    """

    def __init__(
        self, judge: Callable[[str], TokenVerdict], event: Callable[[], str | None]
    ) -> None:
        self._judge = judge
        self._event = event
        self.refused_by: str | None = None
        self.asks_on = False

    def judge(self, token: str) -> TokenVerdict:
        """Return the broker's opinion of a token."""
        verdict, self.refused_by = self._judge(token), self._event()
        self.asks_on = self.refused_by == ENDLESS
        if self.asks_on:
            return replace(verdict, ends_login=False)
        if self.refused_by is None and not verdict.is_valid:
            self.refused_by = REFUSED
        return replace(verdict, is_valid=self.refused_by is None)

    def of(self, users: Users) -> Users:
        """Return users that have these tokens."""
        return replace(users, judge_token=self.judge)


def logins_of_connection(
    users: Users | None, event: Callable[[], str | None]
) -> ConnectionPasswords | ConnectionTokens:
    """Return the users of one connection as its broker knows them."""
    if users is not None and users.judge_token is not None:
        return ConnectionTokens(users.judge_token, event)
    return ConnectionPasswords({} if users is None else users.passwords, event)
