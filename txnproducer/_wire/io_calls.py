"""The system calls of the loop's thread: wait, send, receive.

Why it exists: a thread that lets go of the interpreter for a call has to ask for it again, and
waits up to `sys.getswitchinterval()` (5 ms) while another one computes. In Python that cannot be
helped; the compiled twin (`_io_calls`, where there is epoll) keeps the interpreter for the calls
that do not wait, and says so when it is awake (`_sync.core_lock`).

Owns: these calls. Must not know: whose sockets these are, what the bytes mean.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterable
from itertools import islice
from typing import Protocol

from txnproducer._record.implementation import IMPL, chosen
from txnproducer._sync.core_lock import PassedBy

_MAX_BUFFERS_PER_CALL = 64  # far below IOV_MAX


class Calls(Protocol):
    """What the loop does with plain sockets and its selector."""

    def wait(
        self, selector: selectors.BaseSelector, timeout_ms: int
    ) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready, after `timeout_ms` at the latest; as `BaseSelector.select`."""
        ...

    def send(self, sock: socket.socket, parts: Iterable[memoryview]) -> int:
        """Send the first parts without waiting; return how many bytes were taken.

        Raises:
            OSError: `BlockingIOError` if none were.
        """
        ...

    def receive(self, sock: socket.socket, size: int) -> bytes:
        """Return up to `size` bytes that have come, none at the end of the stream.

        Raises:
            OSError: `BlockingIOError` if nothing has come.
        """
        ...


class IoCalls:
    """The calls as Python has them."""

    def wait(
        self, selector: selectors.BaseSelector, timeout_ms: int
    ) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready, after `timeout_ms` at the latest."""
        return selector.select(timeout_ms / 1000)

    def send(self, sock: socket.socket, parts: Iterable[memoryview]) -> int:
        """Send the first parts without waiting; return how many bytes were taken."""
        return sock.sendmsg(islice(parts, _MAX_BUFFERS_PER_CALL))

    def receive(self, sock: socket.socket, size: int) -> bytes:
        """Return up to `size` bytes that have come, none at the end of the stream."""
        return sock.recv(size)


def io_calls(turnstile: PassedBy) -> Calls:
    """Return the calls for one loop: compiled, if that is the implementation in use."""
    if IMPL != "cython" or not hasattr(selectors, "EpollSelector"):
        return IoCalls()
    compiled = chosen("txnproducer._wire.io_calls", "txnproducer._wire._io_calls", "IoCalls")
    calls: Calls = compiled(turnstile)
    return calls
