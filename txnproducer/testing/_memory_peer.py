"""A client's connection as the loop of an in-memory Kafka keeps it.

Owns: `Peer`: the socket, the answers that wait for their time, the bytes that wait for the client.
Must not know: the selector, the model.
"""

from __future__ import annotations

import socket
from collections import deque

from txnproducer._server.connection import Answer, ServerConnection

from ._memory_tls import ServerTls


class Peer:
    """The server's end of a client's connection, and the answers that are still to be sent."""

    def __init__(
        self,
        sock: socket.socket,
        node_id: int,
        connection: ServerConnection,
        tls: ServerTls | None,
    ) -> None:
        self.sock = sock
        self.node_id = node_id
        self.connection = connection
        self.tls = tls
        self.waiting: deque[Answer] = deque()
        self.unsent = bytearray()
        # The events that the selector watches for, 0 if it does not watch the socket.
        self.watched = 0

    @property
    def reads(self) -> bool:
        """Whether the server still takes bytes from the client."""
        return not self.connection.is_closed and not (self.tls is not None and self.tls.has_failed)

    @property
    def is_done(self) -> bool:
        """Whether the server has ended the connection, and has sent all answers."""
        return not self.reads and not self.waiting and not self.unsent

    def receive(self, data: bytes, now_ms: int) -> None:
        """Take a client's bytes."""
        if self.tls is not None:
            # The handshake has answers of its own, which go out before any answer of Kafka's.
            data = self.tls.receive(data)
            self.unsent += self.tls.to_send()
        if data:
            self.waiting.extend(self.connection.receive(data, now_ms))

    def take_due(self, now_ms: int) -> None:
        """Make the answers that are due ready to send."""
        if self.tls is not None and self.tls.has_failed:
            self.waiting.clear()  # the client could not read them
        while self.waiting and self.waiting[0].due_ms <= now_ms:
            data = self.waiting.popleft().data
            self.unsent += data if self.tls is None else self.tls.send(data)
