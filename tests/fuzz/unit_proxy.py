"""A proxy that carries whole messages, and cuts one connection at a message of a handshake.

Why it exists: a cut at a random byte seldom meets the moment between two messages of a handshake.
Owns: `UnitProxy` and `Cut`. A message is a frame of Kafka's protocol, or with TLS a record.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from typing import Final, NamedTuple

from integration.listening_proxy import PATIENCE_S, ListeningProxy
from txnproducer.sim.stack.faults import Ending

BEFORE, WITHIN, AFTER = "before", "within", "after"
_LOOK_S: Final = 0.05
_PART_BYTES: Final = 65_536


class Cut(NamedTuple):
    """The end of a connection.

    Attributes:
        is_of_client: whether the message is the client's.
        number: of the message, from 0, among those of its side.
        place: before, within or after it.
        ending: for the client.
    """

    is_of_client: bool
    number: int
    place: str
    ending: Ending

    def __str__(self) -> str:
        side = "client" if self.is_of_client else "broker"
        return f"{self.ending} {self.place} message {self.number} of the {side}"


class UnitProxy(ListeningProxy):
    """A proxy that cuts its first connection, and no other.

    Args:
        address: of the broker.
        cut: the end of the first connection; None for none.
        is_tls: whether the messages are records of TLS.

    Attributes:
        port: see `ListeningProxy`.
        carried: how many messages the first connection has carried, of the client and the broker.
        has_cut: whether the cut took effect.
        connections: how many there were.
    """

    def __init__(self, address: tuple[str, int], cut: Cut | None, *, is_tls: bool) -> None:
        super().__init__(address)
        self._cut, self._is_tls = cut, is_tls
        self.carried = [0, 0]
        self.has_cut = False
        self.connections = 0

    def accepted(self, client: socket.socket) -> None:
        """Serve a connection. The first one is cut."""
        self._run(self._carry, client, self.connections == 0)
        self.connections += 1

    def _carry(self, client: socket.socket, is_first: bool) -> None:
        with client, contextlib.suppress(OSError):
            with socket.create_connection(self._address, PATIENCE_S) as upstream:
                for sock in (client, upstream):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                is_cut = self._carry_both(client, upstream, is_first)
            if is_cut:
                self._end(client)

    def _carry_both(self, client: socket.socket, upstream: socket.socket, is_first: bool) -> bool:
        """Carry messages until an end. Return whether that is the cut."""
        left = {client: bytearray(), upstream: bytearray()}
        while not self._is_closed.is_set():
            for source in select.select([client, upstream], [], [], _LOOK_S)[0]:
                data = source.recv(_PART_BYTES)
                if not data:
                    return False
                left[source] += data
                is_of_client = source is client
                target = upstream if is_of_client else client
                while unit := self._next(left[source]):
                    if is_first and self._is_cut(target, unit, is_of_client):
                        return True
                    target.sendall(unit)
        return False

    def _next(self, data: bytearray) -> bytes:
        """Take a whole message from the bytes, or nothing."""
        head, at = (5, 3) if self._is_tls else (4, 0)
        if len(data) < head:
            return b""
        size = head + int.from_bytes(data[at:head], "big")
        if len(data) < size:
            return b""
        unit = bytes(data[:size])
        del data[:size]
        return unit

    def _is_cut(self, target: socket.socket, unit: bytes, is_of_client: bool) -> bool:
        side = 0 if is_of_client else 1
        number = self.carried[side]
        self.carried[side] += 1
        cut = self._cut
        if cut is None or (cut.is_of_client, cut.number) != (is_of_client, number):
            return False
        target.sendall({BEFORE: b"", WITHIN: unit[: len(unit) // 2], AFTER: unit}[cut.place])
        self.has_cut = True
        return True

    def _end(self, client: socket.socket) -> None:
        assert self._cut is not None
        if self._cut.ending is Ending.RESET:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if self._cut.ending is Ending.HALF_OPEN:
            client.settimeout(_LOOK_S)
            while not self._is_closed.is_set():
                with contextlib.suppress(TimeoutError):
                    if not client.recv(_PART_BYTES):
                        return
