"""The requests that a client has sent on one connection, as the network reads them.

Owns: the requests that wait for their answers, and which of them belong to a handshake or a login.
Must not know: the brokers, faults.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Final

__all__ = ["HANDSHAKE_KEYS", "HEAD", "RequestsInFlight"]

HEAD: Final = struct.Struct(">ih")  # the size of a frame, the API of its request
_SASL_HANDSHAKE: Final = 17
_SASL_AUTHENTICATE: Final = 36
# SaslHandshake, ApiVersions, SaslAuthenticate.
HANDSHAKE_KEYS: Final = frozenset({_SASL_HANDSHAKE, 18, _SASL_AUTHENTICATE})


class RequestsInFlight:
    """The requests that a client has sent on one connection and that wait for their answers.

    Attributes:
        login_messages: the messages of the last login.
    """

    def __init__(self) -> None:
        self.login_messages = 0
        self._received = bytearray()
        # Of each: its API, and when it was sent.
        self._waiting: deque[tuple[int, int]] = deque()
        self._answered = 0
        self._renewals: set[int] = set()
        self._has_served = False

    def sent(self, data: bytes, now_ms: int) -> None:
        """Note bytes of the client."""
        received = self._received
        received += data
        while len(received) >= HEAD.size:
            size, key = HEAD.unpack_from(received)
            if len(received) < 4 + size:
                return
            del received[: 4 + size]
            is_handshake = key in HANDSHAKE_KEYS
            # A handshake after a request of the core renews the login.
            if is_handshake and self._has_served:
                # Answers come in the order of the requests, so this is the number of its answer.
                self._renewals.add(self._answered + len(self._waiting))
            self._has_served |= not is_handshake
            if key == _SASL_HANDSHAKE:
                self.login_messages = 0
            self.login_messages += key == _SASL_AUTHENTICATE
            self._waiting.append((key, now_ms))

    def answered(self) -> int | None:
        """Note an answer. Return the API of its request; None if there was none."""
        self._answered += 1
        return self._waiting.popleft()[0] if self._waiting else None

    def is_of_renewal(self, number: int) -> bool:
        """Return whether the answer with a number belongs to a renewed login."""
        return number in self._renewals

    def waited_ms(self, now_ms: int) -> int | None:
        """Return how long the oldest request of the core waits, or None if there is none."""
        waiting = (now_ms - at for key, at in self._waiting if key not in HANDSHAKE_KEYS)
        return next(waiting, None)
