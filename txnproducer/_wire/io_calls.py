"""The system calls of the loop's thread: wait, send, receive.

Why it exists: a thread that releases the interpreter for a call has to request it again, and waits
up to `sys.getswitchinterval()` (5 ms) while another thread computes. Python code cannot avoid
that. The compiled twin (`_io_calls`, where epoll exists) keeps the interpreter for the calls that
do not wait, and announces that the loop's thread is awake (`_sync.core_lock`).

Owns: these calls. Must not know: the owners of the sockets, the meaning of the bytes.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterable
from itertools import islice
from typing import Protocol

from txnproducer._record.implementation import IMPL, chosen
from txnproducer._sync.core_lock import Priority

_MAX_BUFFERS_PER_CALL = 64  # far below IOV_MAX


class Calls(Protocol):
    """The calls of the loop on plain sockets and its selector."""

    def wait(
        self, selector: selectors.BaseSelector, timeout_ms: int
    ) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the ready sockets, after `timeout_ms` at the latest, as `BaseSelector.select`."""
        ...

    def send_parts(self, sock: socket.socket, parts: Iterable[memoryview]) -> int:
        """Send the first parts without waiting. Return the number of bytes taken.

        Raises:
            OSError: a `BlockingIOError` if no byte was taken.
        """
        ...

    def receive(self, sock: socket.socket, size: int) -> bytes:
        """Return up to `size` received bytes, none at the end of the stream.

        Raises:
            OSError: a `BlockingIOError` if nothing has arrived.
        """
        ...


class IoCalls:
    """The calls in pure Python."""

    def wait(
        self, selector: selectors.BaseSelector, timeout_ms: int
    ) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the sockets that are ready, after `timeout_ms` at the latest."""
        # A selector counts in seconds.
        return selector.select(timeout_ms / 1000)

    def send_parts(self, sock: socket.socket, parts: Iterable[memoryview]) -> int:
        """Send the first parts without waiting. Return the number of bytes taken."""
        # Gathered by the kernel, so that header and batches leave without being joined in a copy.
        return sock.sendmsg(islice(parts, _MAX_BUFFERS_PER_CALL))

    def receive(self, sock: socket.socket, size: int) -> bytes:
        """Return up to `size` received bytes, none at the end of the stream."""
        return sock.recv(size)


def io_calls(priority: Priority) -> Calls:
    """Return the calls for one loop, compiled if that is the implementation in use."""
    # The compiled calls are written for epoll, which only Linux has.
    if IMPL != "cython" or not hasattr(selectors, "EpollSelector"):
        return IoCalls()
    compiled = chosen("txnproducer._wire.io_calls", "txnproducer._wire._io_calls", "IoCalls")
    calls: Calls = compiled(priority)
    return calls
