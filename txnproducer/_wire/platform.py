"""The part of the outside that a test can replace under a whole producer.

Why it exists: a test's cluster in memory (`txnproducer.testing.InMemoryKafka`) has no ports. The
producer that ships reaches it through sockets that are connected without a network.
Owns: `Platform`, and the one that ships. Must not know: who replaces it.

Users never see it: the record writer passes it to the client, and the client to each attempt to
connect.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from .tcp import BufferSizes, open_tcp


class OpenSocket(Protocol):
    """Connects to a broker, as `open_tcp` does."""

    def __call__(
        self,
        host: str,
        port: int,
        buffers: BufferSizes,
        remaining_s: Callable[[], float],
        on_socket: Callable[[socket.socket], None],
    ) -> socket.socket:
        """Return a connected stream socket, which was given to `on_socket` before."""
        ...


@dataclass(frozen=True, slots=True)
class Platform:
    """See the module.

    Attributes:
        open_socket: connects to a broker.
    """

    open_socket: OpenSocket = open_tcp


SYSTEM: Final = Platform()
"""The platform that ships: TCP."""
