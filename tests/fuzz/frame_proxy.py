"""A proxy on a real socket that changes, cuts, delays and doubles answers, as the simulator does.

Why it exists: the simulator of the whole stack has these faults on virtual sockets, in Python.
Here the compiled parts and TLS read the same changed bytes.
Owns: `FrameProxy`. With a certificate it ends TLS itself, so that it
can change an answer within. Must not know: which faults a round has (`ByteFaults`).
"""

from __future__ import annotations

import contextlib
import random
import select
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from typing import Final

from integration.listening_proxy import PATIENCE_S, ListeningProxy
from txnproducer.sim.stack.faults import ByteFault, ByteFaults, ConnectionFaults, Ending
from txnproducer.sim.stack.requests_in_flight import HANDSHAKE_KEYS, HEAD
from txnproducer.testing._memory_tls import ServerTls

TLS_CUT: Final = "cut in the TLS handshake"
REAL: Final[tuple[ByteFault, ...]] = tuple(
    kind
    for kind in ByteFault
    # Names are looked up by the system, which has no faults of ours. It also accepts at once for
    # a listener, so that no connect hangs.
    if kind
    not in (
        ByteFault.LOOK_UP_FAILS,
        ByteFault.LOOK_UP_HANGS,
        ByteFault.DEAD_ADDRESS,
        ByteFault.NO_CONNECT,
    )
)
# For the same reason these faults come after the connect, and are counted by other names.
_NAMES: Final = {
    ByteFault.REFUSED: "reset as soon as accepted",
    ByteFault.SLOW_CONNECT: "accepted, and carried late",
    ByteFault.SLOW: "connection with slow answers",
}
ANSWER_FAULTS: Final = (
    ByteFault.TRUNCATED,
    ByteFault.WRONG_SIZE,
    ByteFault.WRONG_NUMBER,
    ByteFault.GARBAGE,
    ByteFault.TWICE,
)
_PART_BYTES: Final = 65_536
_LOOK_S: Final = 0.1
# In which a client reads an answer, on a busy machine as well.
_READS_S: Final = 1.0
# Virtual time costs nothing, and a process here lives for two seconds.
_SHORTER: Final = 10
# Fewer bytes than both sides of a handshake have.
_TLS_BYTES: Final = 1_500


class FrameProxy(ListeningProxy):
    """A proxy that carries frames.

    Args:
        address: of the broker, without TLS.
        rates: the probability of each fault, for each connection.
        seed: decides the rest.
        context: the certificate, if clients speak TLS.
        tls_cut: the share of connections that are cut in the TLS handshake.
        has_sessions: whether logins are renewed.

    Attributes:
        port: see `ListeningProxy`.
        counts: how often each fault took effect.
        wrong: requests on connections that had made no sense for a while: a client trusts them.
    """

    def __init__(
        self,
        address: tuple[str, int],
        rates: dict[ByteFault, float],
        seed: int,
        context: ssl.SSLContext | None = None,
        tls_cut: float = 0.0,
        *,
        has_sessions: bool = False,
    ) -> None:
        super().__init__(address)
        self._faults = ByteFaults(rates, random.Random(seed))
        self._context = context
        self._tls_cut = tls_cut if context is not None else 0.0
        self._has_sessions = has_sessions
        self._lock = threading.Lock()  # guards the faults and the counts
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    def accepted(self, client: socket.socket) -> None:
        """Serve a connection."""
        self._run(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with self._lock:
            fate = self.draw()
            rng = random.Random(self._faults.rng.random())
        with client, contextlib.suppress(OSError):
            if fate.kind is ByteFault.REFUSED:
                self.struck(fate)
                _end(client, Ending.RESET)
                return
            if fate.kind is ByteFault.SILENT:
                self.struck(fate)
                self.keep_silent(client)
                return
            if fate.kind is ByteFault.SLOW_CONNECT:
                self.struck(fate)
                self._is_closed.wait(fate.delay_ms / 1000 / _SHORTER)
            with socket.create_connection(self._address, PATIENCE_S) as upstream:
                self._carry(client, upstream, fate, rng)

    def draw(self) -> ConnectionFaults:
        """Draw the fate of a new connection."""
        return self._faults.draw(has_sessions=self._has_sessions)

    def _carry(
        self,
        client: socket.socket,
        upstream: socket.socket,
        fate: ConnectionFaults,
        rng: random.Random,
    ) -> None:
        for sock in (client, upstream):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = _Link(self, client, upstream, fate, rng)
        if self._context is not None:
            link.tls = ServerTls(self._context)
            if rng.random() < self._tls_cut:
                link.tls_left = rng.randrange(_TLS_BYTES)
        while not self._is_closed.is_set():
            for source in select.select([client, upstream], [], [], _LOOK_S)[0]:
                part = source.recv(_PART_BYTES)
                goes_on = link.of_client(part) if source is client else link.of_broker(part)
                if not part or not goes_on:
                    return

    def keep_silent(self, client: socket.socket) -> None:
        """Hold a connection open until the client or this proxy ends it."""
        client.settimeout(_LOOK_S)
        while not self._is_closed.is_set():
            with contextlib.suppress(TimeoutError):
                if not client.recv(_PART_BYTES):
                    return

    def wait(self, seconds: float) -> None:
        """Wait, but not beyond the end of this proxy."""
        self._is_closed.wait(seconds)

    def piece(self, size: int) -> int:
        """Return how many of so many bytes are sent in one piece."""
        with self._lock:
            piece = self._faults.piece(size)
            self.counts[ByteFault.PIECES.value] += piece < size
        return piece

    def count(self, name: str) -> None:
        """Note that a fault took effect."""
        with self._lock:
            self.counts[name] += 1

    def struck(self, fate: ConnectionFaults) -> None:
        """Note that a connection met its fault."""
        assert fate.kind is not None
        self.count(_NAMES.get(fate.kind, fate.kind.value))


class _Link:
    """One connection: the bytes of both ways, and its fate."""

    def __init__(
        self,
        proxy: FrameProxy,
        client: socket.socket,
        upstream: socket.socket,
        fate: ConnectionFaults,
        rng: random.Random,
    ) -> None:
        self._proxy, self._client, self._upstream = proxy, client, upstream
        self._fate, self._rng = fate, rng
        self._requests, self._answers = bytearray(), bytearray()
        self._asked = self._answered = 0
        self._read = self._written = 0
        self._has_served = False
        self._renewals: set[int] = set()
        self._nonsense_at = 0.0
        self._is_slow = False
        self.tls: ServerTls | None = None
        self.tls_left: int | None = None

    def of_client(self, data: bytes) -> bool:
        """Carry bytes to the broker. Return whether the connection goes on."""
        if self.tls is not None:
            if self._is_cut_in_tls(data):
                return self._cut(TLS_CUT)
            data = self.tls.receive(data)
            if not self._send_raw(self.tls.to_send()):
                return False
        fate = self._fate
        is_cut = fate.kind is ByteFault.REQUEST_CUT and self._read + len(data) >= fate.cut_at
        if is_cut:
            data = data[: max(0, fate.cut_at - self._read)]
        self._read += len(data)
        self._note_requests(data)
        self._upstream.sendall(data)
        return not is_cut or self._cut(ByteFault.REQUEST_CUT)

    def of_broker(self, data: bytes) -> bool:
        """Carry whole answers to the client. Return whether the connection goes on."""
        self._answers += data
        while len(self._answers) >= 4:
            size = 4 + int.from_bytes(self._answers[:4], "big")
            if len(self._answers) < size:
                return True
            frame = bytes(self._answers[:size])
            del self._answers[:size]
            if not self._answer(frame):
                return False
        return True

    def _answer(self, frame: bytes) -> bool:
        fate, number = self._fate, self._answered
        self._answered += 1
        if fate.kind is ByteFault.SLOW:
            if not self._is_slow:
                self._proxy.struck(fate)
            self._is_slow = True
            self._proxy.wait(fate.delay_ms / 1000 / _SHORTER)
        is_of_renewal = number in self._renewals
        changed = fate.changed(number, frame, self._rng, is_of_renewal=is_of_renewal)
        if changed != frame and fate.kind is not None:
            self._nonsense_at = self._nonsense_at or time.monotonic()
            self._proxy.count(fate.kind.value + (", of a renewed login" if is_of_renewal else ""))
        is_cut = fate.kind is ByteFault.ANSWER_CUT and self._written + len(changed) >= fate.cut_at
        if is_cut:
            changed = changed[: max(0, fate.cut_at - self._written)]
        self._written += len(changed)
        if changed and not self._send(changed):
            return False
        return not is_cut or self._cut(ByteFault.ANSWER_CUT)

    def _send(self, data: bytes) -> bool:
        return self._send_raw(data if self.tls is None else self.tls.send(data))

    def _send_raw(self, data: bytes) -> bool:
        if self._is_cut_in_tls(data):
            assert self.tls_left is not None
            self._client.sendall(data[: len(data) + self.tls_left])
            return self._cut(TLS_CUT)
        while data:
            size = self._proxy.piece(len(data))
            self._client.sendall(data[:size])
            data = data[size:]
        return True

    def _is_cut_in_tls(self, data: bytes) -> bool:
        """Return whether the cut is due within these bytes of the handshake."""
        # A version is agreed on once the client's last message of the handshake is in.
        if self.tls_left is None or self.tls is None or self.tls._tls.version() is not None:
            return False
        self.tls_left -= len(data)
        return self.tls_left <= 0

    def _cut(self, name: str) -> bool:
        self._proxy.count(f"{name}, {self._fate.ending}")
        self._upstream.close()
        if self._fate.ending is Ending.HALF_OPEN:
            # Only the time-out of a request ends it for the client.
            self._proxy.keep_silent(self._client)
        else:
            _end(self._client, self._fate.ending)
        return False

    def _note_requests(self, data: bytes) -> None:
        self._requests += data
        while len(self._requests) >= HEAD.size:
            size, key = HEAD.unpack_from(self._requests)
            if len(self._requests) < 4 + size:
                return
            del self._requests[: 4 + size]
            # A handshake after a request of the core renews the login.
            if key in HANDSHAKE_KEYS and self._has_served:
                self._renewals.add(self._asked)
            self._has_served |= key not in HANDSHAKE_KEYS
            late_s = time.monotonic() - self._nonsense_at
            if self._nonsense_at and late_s > _READS_S:
                self._proxy.wrong.append(f"a request {late_s:.1f} s after an answer without sense")
            self._asked += 1


def _end(client: socket.socket, ending: Ending) -> None:
    if ending is Ending.RESET:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
