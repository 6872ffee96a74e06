"""Tokens that are fetched: kept until they are due, and waited for within a limit.

Why it exists: each connection of each task asks for a token, and an identity provider counts such
requests, or limits them. What hangs there must not hold a task for ever.

Owns: the tokens of the process, the limit. Must not know: where a token comes from.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from txnproducer._wire.kafka_python import AbstractTokenProvider

# A new token is fetched when this part of the life of the old one is over, as in Java
# (sasl.login.refresh.window.factor). A broker ends a session with its token.
_FRESH: Final = 0.8
LIMIT_S: Final = 10.0


@dataclass(frozen=True)
class Token:
    """A token.

    Attributes:
        text: as the broker gets it.
        life_s: how long it is valid, in seconds; 0 if that is not known.
    """

    text: str
    life_s: float

    def __repr__(self) -> str:
        return f"Token(life_s={self.life_s})"


@dataclass(frozen=True)
class FetchedTokens(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """A provider of tokens that are fetched. Equal providers share their tokens."""

    def fetch(self) -> Token:
        """Return a new token. Called without a limit."""
        raise NotImplementedError

    def token(self) -> str:
        """Return a token that is valid for some time.

        Raises:
            TimeoutError: it did not come within `LIMIT_S`.
            Exception: raised by `fetch`.
        """
        # One after the other: connections that are made at the same time need one token.
        with _LOCK:
            kept = _KEPT.get(self)
            if kept is None or time.monotonic() >= kept[1]:
                began_s = time.monotonic()
                found = within_limit(self.fetch)
                kept = _KEPT[self] = (found.text, began_s + found.life_s * _FRESH)
            return kept[0]


_LOCK: Final = threading.Lock()
# By provider: the token, and the time (of `monotonic`) from which another one is needed.
_KEPT: Final[dict[FetchedTokens, tuple[str, float]]] = {}


def within_limit(fetch: Callable[[], Token], limit_s: float = LIMIT_S) -> Token:
    """Return the result of a function, or raise its error.

    Raises:
        TimeoutError: neither came within the limit.
    """
    answer: queue.SimpleQueue[Token | BaseException] = queue.SimpleQueue()

    def run() -> None:
        try:
            answer.put(fetch())
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            answer.put(error)

    # A thread, since no time-out of a socket bounds the look-up of a name, nor an answer that
    # comes byte by byte.
    threading.Thread(target=run, name="txnproducer-token", daemon=True).start()
    try:
        found = answer.get(timeout=limit_s)
    except queue.Empty:
        raise TimeoutError(f"no token came within {limit_s:g} s") from None
    if isinstance(found, BaseException):
        raise found
    return found
