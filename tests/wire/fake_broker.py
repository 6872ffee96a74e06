"""A broker of a few lines on a loopback socket, for the tests of connectors and the client's loop.

It answers ApiVersions by itself (in what `features` and `offer` say); everything else goes to
`handle`, which returns the answer's payload, None for silence, or `HANG_UP`.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tests.wire import answers

HANG_UP = b"hang up"
LARGEST_REQUEST_BYTES = 100 * 1024 * 1024
Handler = Callable[[int, int, bytes], "bytes | None"]


def silence(api_key: int, correlation_id: int, request: bytes) -> bytes | None:
    return None


class FakeBroker:
    """Serve connections until the `with` block ends.

    Args:
        handle: called with api key, correlation id and the whole request.
        greeting: sent as soon as somebody connects, in place of all Kafka.
        hang_up_after: close each connection after so many requests.
        tls: the context of a TLS listener.
    """

    def __init__(
        self,
        handle: Handler = silence,
        *,
        greeting: bytes | None = None,
        hang_up_after: int | None = None,
        tls: ssl.SSLContext | None = None,
        features: dict[str, int] | None = None,
        epoch: int = -1,
        offer: dict[int, int] | None = None,
    ) -> None:
        self.requests: list[tuple[int, bytes]] = []
        self.connections = 0
        self.handle = handle
        self._greeting = greeting
        self._hang_up_after = hang_up_after
        self._tls = tls
        self._features = features
        self._epoch = epoch
        self._offer = offer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        for thread in self._threads:
            thread.join(5)

    def join_connections(self) -> None:
        """Wait until every connection so far has been served to its end."""
        for thread in self._threads[1:]:
            thread.join(5)

    def hang_up(self) -> None:
        """End every connection."""
        with self._lock:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._is_closed:
                    sock.close()
                    return
                self.connections += 1
                self._open.append(sock)
            self._start(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            if self._tls is None:
                self._talk(sock)
            else:
                with self._tls.wrap_socket(sock, server_side=True) as tls_sock:
                    with self._lock:
                        self._open.append(tls_sock)
                    self._talk(tls_sock)

    def _talk(self, sock: socket.socket) -> None:
        if self._greeting is not None:
            sock.sendall(self._greeting)
            sock.recv(65_536)
            return
        served = 0
        while self._hang_up_after is None or served < self._hang_up_after:
            head = self._read(sock, 4)
            if not head:
                return
            request = self._read(sock, struct.unpack(">i", head)[0])
            if not request:
                return
            api_key, version, correlation_id = struct.unpack_from(">hhi", request)
            with self._lock:
                self.requests.append((api_key, request))
            answer = self._answer(api_key, version, correlation_id, request)
            if answer is HANG_UP:
                return
            if answer is not None:
                sock.sendall(answers.framed(answer))
            served += 1

    def _answer(
        self, api_key: int, version: int, correlation_id: int, request: bytes
    ) -> bytes | None:
        if api_key != 18:
            return self.handle(api_key, correlation_id, request)
        return answers.api_versions(
            correlation_id, version, self._features, self._epoch, self._offer
        )

    @staticmethod
    def _read(sock: socket.socket, size: int) -> bytes:
        if size > LARGEST_REQUEST_BYTES:
            return b""  # as a broker does, to whom a TLS greeting reads like that
        data = bytearray()
        while len(data) < size:
            chunk = sock.recv(min(size - len(data), 1_000_000))
            if not chunk:
                return b""
            data += chunk
        return bytes(data)
