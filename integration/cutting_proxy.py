"""A TCP proxy between a producer and a broker that cuts connections at random moments.

Why it exists: networks, load balancers and brokers that stop cut connections in the midst of
anything, also of a handshake, and now and then accept one and say nothing. No broker does so by
itself.
Owns: `CuttingProxy`. It knows nothing of the protocol.
"""

from __future__ import annotations

import contextlib
import random
import select
import socket
import sys
import time
from collections import Counter

from integration.listening_proxy import PATIENCE_S, ListeningProxy

_PART_BYTES = 65_536

CARRIED, CUT_EARLY = "carried, then cut", "cut in the handshake"
SILENT, GREETED = "accepted, then silent", "a TLS greeting without an answer"
_GREETING = b"\x16"


class CuttingProxy(ListeningProxy):
    """A proxy that cuts connections at random moments. It is used as a context manager.

    Args:
        address: of the broker.
        seed: decides when connections are cut, and which are silent.
        longest_s: how long a connection lives at most.
        early: the share of connections that are cut within 20 ms. The first one is cut at once: a
            client has not heard from that address before, and asks it why.
        silent: the share that is accepted and never answered. There are never two in a row: a load
            balancer that has found a dead broker out takes another one. A TLS greeting, by which
            a client finds out why it was cut, is never answered.
        most_bytes: how many bytes a connection carries at most, both ways; None for no limit. The
            cut then comes in the midst of a frame.
        tls: whether the broker speaks TLS, so that a TLS greeting is carried like all else.

    Attributes:
        port: see `ListeningProxy`.
        counts: how many connections met with each fate.
    """

    def __init__(
        self,
        address: tuple[str, int],
        seed: int,
        longest_s: float = 0.4,
        early: float = 0.2,
        silent: float = 0.0,
        most_bytes: int | None = None,
        *,
        tls: bool = False,
    ) -> None:
        super().__init__(address)
        self._rng = random.Random(seed)
        self._longest_s = longest_s
        self._early = early
        self._silent = silent
        self._most_bytes = most_bytes
        self._tls = tls
        self._was_silent = False
        self.counts: Counter[str] = Counter()

    def accepted(self, client: socket.socket) -> None:
        """Draw the fate of a connection, and serve it."""
        fate, life_s = self._draw()
        self.counts[fate] += 1
        if fate == SILENT:
            self._run(self._keep_silent, client)
        else:
            self._run(self._carry, client, life_s)

    def _draw(self) -> tuple[str, float]:
        if not self.counts:
            return CUT_EARLY, 0.0
        number, life = self._rng.random(), self._rng.random()
        is_silent = number < self._silent and not self._was_silent
        self._was_silent = is_silent
        if is_silent:
            return SILENT, 0.0
        if number < self._silent + self._early:
            return CUT_EARLY, life * 0.02
        return CARRIED, life * self._longest_s

    def _keep_silent(self, client: socket.socket) -> None:
        with client:
            client.settimeout(0.1)
            while not self._is_closed.is_set():
                with contextlib.suppress(TimeoutError):
                    if not _received(client):
                        return

    def _carry(self, client: socket.socket, life_s: float) -> None:
        end = time.monotonic() + life_s
        left = sys.maxsize if self._most_bytes is None else self._rng.randrange(self._most_bytes)
        with client, socket.create_connection(self._address, PATIENCE_S) as upstream:
            other = {client: upstream, upstream: client}
            while not self._is_closed.is_set() and left and (left_s := end - time.monotonic()) > 0:
                for source in select.select([client, upstream], [], [], min(left_s, 0.1))[0]:
                    part = _received(source)[:left]
                    if not part:
                        return
                    left -= len(part)
                    if source is client and not self._tls and part.startswith(_GREETING):
                        self.counts[GREETED] += 1
                        self._keep_silent(client)
                        return
                    with contextlib.suppress(OSError):
                        other[source].sendall(part)


def _received(source: socket.socket) -> bytes:
    """Return a part, nothing at the end of the connection."""
    try:
        return source.recv(_PART_BYTES)
    except TimeoutError:
        raise
    except OSError:
        return b""
