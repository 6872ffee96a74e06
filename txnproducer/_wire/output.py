"""The bytes of one connection that wait for its socket, and the requests that end with them.

Why it exists: batches go from the core's buffers to the kernel without a copy, and the broker does
not answer a request with acks=0, which ends once the socket has taken it.
Owns: the queue of bytes, the requests without an answer. Must not know: answers, deadlines.
"""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from txnproducer.errors import DisconnectError

from .connector import AnySocket
from .io_calls import Calls
from .produce_codec import Buffer

WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

_MAX_RECORD_BYTES = 16_384  # the size of a TLS record: smaller parts are joined to share one


R = TypeVar("R")


class Output(Generic[R]):
    """The queue of bytes, and the requests `R` that have no answer.

    Args:
        sock: the connection's socket, which does not block.
        calls: the loop's calls; sockets with TLS have their own.

    Attributes:
        parts: the bytes that wait.
        unanswered: the requests without an answer that are not written, each after the place of
            its last byte among all that are written.
        written: those that were written.
    """

    __slots__ = ("_calls", "_count", "_sock", "parts", "unanswered", "written")

    def __init__(self, sock: AnySocket, calls: Calls) -> None:
        self._sock = sock
        self._calls = calls
        self._count = 0
        self.parts: deque[memoryview] = deque()
        self.unanswered: deque[tuple[int, R]] = deque()
        self.written: list[R] = []

    def put(self, parts: Sequence[Buffer]) -> None:
        """Add bytes at the end of the queue."""
        if not isinstance(self._sock, ssl.SSLSocket):
            self.parts.extend(map(memoryview, parts))
            return
        joined = bytearray()
        for part in parts:
            if joined and len(joined) + len(part) > _MAX_RECORD_BYTES:
                self.parts.append(memoryview(joined))
                joined = bytearray()
            if len(part) > _MAX_RECORD_BYTES:
                self.parts.append(memoryview(part))
            else:
                joined += part
        if joined:
            self.parts.append(memoryview(joined))

    def end_when_written(self, request: R) -> None:
        """Let a request end once the socket has taken all bytes that wait now."""
        self.unanswered.append((self._count + sum(map(len, self.parts)), request))

    def flush(self) -> None:
        """Write as much as the socket takes.

        Raises:
            DisconnectError: the connection is broken.
        """
        parts, sock = self.parts, self._sock
        try:
            while parts:
                if isinstance(sock, ssl.SSLSocket):
                    # OpenSSL requires the very same buffer again after "want write".
                    self._drop(sock.send(parts[0]))
                else:
                    self._drop(self._calls.send_parts(sock, parts))
        except WOULD_BLOCK:
            return
        except OSError as error:
            raise DisconnectError(f"cannot write to the broker: {error}") from error

    def _drop(self, sent: int) -> None:
        parts, unanswered = self.parts, self.unanswered
        self._count += sent
        while unanswered and unanswered[0][0] <= self._count:
            self.written.append(unanswered.popleft()[1])
        while sent:
            first = parts[0]
            if sent < len(first):
                parts[0] = first[sent:]
                return
            sent -= len(first)
            parts.popleft()
