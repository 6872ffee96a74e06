"""The faults at the bytes: the fate of each connection, and the rates.

Owns: `ConnectionFaults` (the fate of one connection, drawn when it is made), `ByteFaults` (the
rates). Must not know: sockets, the protocol beyond its frames.

Rule: no mutated answer can be read as another valid answer. A broker that lies is no fault that a
client could find.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

__all__ = ["ByteFault", "ByteFaults", "ConnectionFaults", "Ending"]


class ByteFault(StrEnum):
    """The kinds of faults."""

    LOOK_UP_FAILS = "look-up fails"
    LOOK_UP_HANGS = "look-up hangs"
    DEAD_ADDRESS = "the name has a dead address too"
    REFUSED = "connection refused"
    SLOW_CONNECT = "slow connect"
    NO_CONNECT = "connect hangs"
    SILENT = "peer accepts and stays silent"
    REQUEST_CUT = "cut in a request"
    ANSWER_CUT = "cut in an answer"
    SLOW = "slow answers"
    TRUNCATED = "truncated answer"
    WRONG_SIZE = "answer with a wrong size"
    WRONG_NUMBER = "answer with a wrong number"
    GARBAGE = "garbage for an answer"
    TWICE = "answer sent twice"
    PIECES = "bytes in small pieces"


class Ending(StrEnum):
    """How a cut connection ends for the client."""

    CLOSED = "closed"
    RESET = "reset"
    HALF_OPEN = "half-open"


_ANSWER_FAULTS: Final = (
    ByteFault.TRUNCATED,
    ByteFault.WRONG_SIZE,
    ByteFault.WRONG_NUMBER,
    ByteFault.GARBAGE,
    ByteFault.TWICE,
)
_MOST_CUT_AT: Final = 2_500
_MOST_ANSWERS: Final = 25


@dataclass(slots=True)
class ConnectionFaults:
    """The fate of one connection.

    Attributes:
        kind: the fault, or None.
        ending: how a cut ends it.
        cut_at: the number of bytes after which it is cut.
        answer: the number of the answer that meets a fault.
        is_at_login: whether the first answer of a renewed login meets it instead, if there is one.
        delay_ms: of the connect, or of each answer.
    """

    kind: ByteFault | None = None
    ending: Ending = Ending.CLOSED
    cut_at: int = 0
    answer: int = 0
    is_at_login: bool = False
    delay_ms: float = 0.0

    def changed(
        self, number: int, frame: bytes, rng: random.Random, *, is_of_renewal: bool = False
    ) -> bytes:
        """Return an answer as the client gets it.

        Args:
            number: of the answer on its connection.
            frame: with its size and correlation id.
            rng: draws the change.
            is_of_renewal: whether it is part of a renewed login.
        """
        if self.kind not in _ANSWER_FAULTS:
            return frame
        if not (is_of_renewal if self.is_at_login else number == self.answer):
            return frame
        return _CHANGES[self.kind](frame, rng)


def _truncated(frame: bytes, rng: random.Random) -> bytes:
    # With its number, so that the client takes it for its answer and begins to decode.
    body = frame[4 : 8 + rng.randrange(max(1, len(frame) - 8))]
    return len(body).to_bytes(4, "big") + body


def _wrong_size(frame: bytes, rng: random.Random) -> bytes:
    # Impossible or too large. Any size between could make a valid answer of other bytes.
    return (
        rng.choice((-1, 0, 3, 2**31 - 1, 200 * 2**20)).to_bytes(4, "big", signed=True) + frame[4:]
    )


def _wrong_number(frame: bytes, rng: random.Random) -> bytes:
    # One more is the number of the next request, which may be in flight as well.
    number = int.from_bytes(frame[4:8], "big") + rng.choice((1, 7, 2**30))
    return frame[:4] + number.to_bytes(4, "big") + frame[8:]


def _garbage(frame: bytes, rng: random.Random) -> bytes:
    # Never a small size followed by this request's number.
    return b"HTTP/1.1 400 Bad Request\r\n" + rng.randbytes(len(frame))


_CHANGES: Final[Mapping[ByteFault, Callable[[bytes, random.Random], bytes]]] = {
    ByteFault.TRUNCATED: _truncated,
    ByteFault.WRONG_SIZE: _wrong_size,
    ByteFault.WRONG_NUMBER: _wrong_number,
    ByteFault.GARBAGE: _garbage,
    ByteFault.TWICE: lambda frame, _: frame + frame,
}


@dataclass(slots=True)
class ByteFaults:
    """The faults of a run.

    Attributes:
        rates: the probability of each kind, for each connection (or look-up).
        rng: draws them.
        counts: how often each kind took effect.
        are_over: whether none is drawn any more.
    """

    rates: Mapping[ByteFault, float]
    rng: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    are_over: bool = False

    def strikes(self, kind: ByteFault) -> bool:
        """Return whether a fault of a kind happens here, at once."""
        if not self._is_drawn(kind):
            return False
        self.takes_effect(kind)
        return True

    def takes_effect(self, kind: ByteFault) -> None:
        """Note that a fault takes effect that was drawn before."""
        self.counts[kind.value] += 1

    def _is_drawn(self, kind: ByteFault) -> bool:
        rate = self.rates.get(kind, 0.0)
        return not self.are_over and bool(rate) and self.rng.random() < rate

    def draw(self, *, has_sessions: bool = False) -> ConnectionFaults:
        """Draw the fate of a new connection.

        Args:
            has_sessions: whether its login is renewed.
        """
        kind = next((each for each in _OF_A_CONNECTION if self._is_drawn(each)), None)
        rng = self.rng
        return ConnectionFaults(
            kind,
            rng.choice(tuple(Ending)),
            # As often in the handshake as later.
            int(_MOST_CUT_AT ** rng.random()),
            # The first answers are those of the handshake.
            rng.randrange(_MOST_ANSWERS) if rng.random() < 0.7 else rng.randrange(3),
            has_sessions and rng.random() < 0.3,
            rng.uniform(50, 20_000) if kind is ByteFault.SLOW_CONNECT else rng.uniform(5, 3_000),
        )

    def piece(self, size: int) -> int:
        """Return how many of so many bytes one call of a socket moves."""
        # At the end of a stream there are no bytes to divide.
        if not size or not self._is_drawn(ByteFault.PIECES):
            return size
        moved = self.rng.randint(1, size)
        if moved < size:
            self.takes_effect(ByteFault.PIECES)
        return moved


_OF_A_CONNECTION: Final = tuple(
    kind
    for kind in ByteFault
    # These are drawn at each look-up, and at each call of a socket.
    if kind
    not in (
        ByteFault.LOOK_UP_FAILS,
        ByteFault.LOOK_UP_HANGS,
        ByteFault.DEAD_ADDRESS,
        ByteFault.PIECES,
    )
)
