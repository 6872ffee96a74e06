"""One connection over a pair of sockets, with the broker's end in a test's hand."""

from __future__ import annotations

import itertools
import random
import socket
import struct
import threading

from tests.wire import answers
from txnproducer._protocol import messages as m
from txnproducer._protocol.events import ClientEvent, ClientRequest, ConnectionId
from txnproducer._protocol.versions import FinalizedFeatures, NodeApiVersions
from txnproducer._sync.core_lock import new_loop_priority
from txnproducer._wire.codec import WireCodec
from txnproducer._wire.connection import Connection
from txnproducer._wire.connector import Connected
from txnproducer._wire.handshake import BrokerVersions, SaslLogin
from txnproducer._wire.io_calls import io_calls

HERE = ConnectionId(1)
END_TXN = m.EndTxnRequest("x", 1, 1, True, True)
LOGIN = SaslLogin(
    "me", "broker", "PLAIN", {"sasl_plain_username": "u", "sasl_plain_password": "p"}, 2
)


class Wire:
    """A connection, and the broker's end of it."""

    def __init__(self, lifetime_ms: int = 0, max_in_flight: int = 5, login_ms: int = 0) -> None:
        ours, self.broker = socket.socketpair()
        ours.setblocking(False)
        self.broker.settimeout(5)
        self._woken = threading.Event()
        versions = BrokerVersions(NodeApiVersions(), FinalizedFeatures(), 2)
        connected = Connected(ours, versions, itertools.count(10), LOGIN, lifetime_ms, login_ms)
        self.connection = Connection(
            HERE,
            connected,
            WireCodec("me"),
            io_calls(new_loop_priority()),
            max_in_flight,
            0,
            random.Random(1),
            self._woken.set,
        )
        self._tokens = itertools.count()

    def send(
        self, body: m.Request = END_TXN, version: int = 5, now_ms: int = 0, timeout_ms: int = 1000
    ) -> ClientRequest:
        request = ClientRequest(next(self._tokens), HERE, body, now_ms, timeout_ms)
        self.connection.send_request(request, version, now_ms)
        self.connection.flush()
        return request

    def receive(self, now_ms: int = 0) -> list[ClientEvent]:
        events: list[ClientEvent] = []
        self.connection.receive(now_ms, events)
        return events

    def go_on(self, now_ms: int = 0) -> None:
        """Receive a login's answer, and go on when the step that follows has ended."""
        self.receive(now_ms)
        assert self._woken.wait(5)
        self._woken.clear()
        self.connection.continue_login(now_ms)

    def read(self) -> bytes:
        """Read one frame at the broker's end."""
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self.broker.recv(size - len(data))
        return data

    def answer(self, payload: bytes) -> None:
        self.broker.sendall(answers.framed(payload))

    def close(self) -> None:
        self.connection.close(0)
        self.broker.close()
