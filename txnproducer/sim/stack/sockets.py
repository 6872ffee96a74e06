"""Sockets, the selector and the wake-up of threads that pass a baton.

Owns: the client's end of a connection, as the calls of the system show it. Must not know: the
network (it gives and takes the bytes), the protocol.

Rules:
* A call fails as the system's does: the kinds of `OSError`, and `BlockingIOError` where a blocking
  socket would wait.
* Every call is a place where another thread may go on.
"""

from __future__ import annotations

import itertools
import selectors
import socket
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from txnproducer.sim.stack.baton import Baton

__all__ = ["CarriesBytes", "VirtualSelector", "VirtualSocket", "VirtualWakeup", "WatchesSockets"]

_numbers = itertools.count(1_000)


class CarriesBytes(Protocol):
    """The network's end of a socket."""

    @property
    def room(self) -> int:
        """How many bytes it takes now."""
        ...

    def take(self, data: bytes) -> None:
        """Carry bytes to the peer."""
        ...

    def close(self) -> None:
        """Note that the client has closed its end."""
        ...


class WatchesSockets(Protocol):
    """The judge of one producer's connections."""

    def asks(self) -> None:
        """Note that a broker reads bytes of the producer."""
        ...

    def answered(self, node_id: int, key: int) -> None:
        """Note the answer to a request that is no part of a handshake, and the API of both."""
        ...

    def login_refused(self, node_id: int) -> None:
        """Note that a broker refuses a login."""
        ...

    def logs_in(self, node_id: int, messages: int) -> None:
        """Judge the number of messages of the last login on a connection."""
        ...

    def sends_after_nonsense(self, node_id: int) -> None:
        """Judge bytes that follow an answer without sense, which the client has read."""
        ...

    def closes(self, node_id: int, waited_ms: int | None) -> None:
        """Judge the end of a connection that works."""
        ...

    def is_connected(self, node_id: int) -> None:
        """Judge a new connection."""
        ...

    def is_ended(self, node_id: int) -> None:
        """Judge the end of a connection by the broker."""
        ...


class VirtualSocket:
    """A stream socket.

    Args:
        baton: passed on by calls that wait.
        connect: asks the network for a connection to an address; it later calls `connected` or
            `failed`.
        piece: how many of so many bytes one call moves.

    Attributes:
        process: the process that has made it.
        closed_ms: the time of `close`; None before.
        watch: judges the connections of the producer that has made it; None for no judge.
    """

    def __init__(
        self,
        baton: Baton,
        connect: Callable[[VirtualSocket, Any], None],
        piece: Callable[[int], int] = lambda size: size,
    ) -> None:
        self._baton = baton
        self._connect = connect
        self._piece = piece
        self._number = next(_numbers)
        self._timeout: float | None = None
        self._link: CarriesBytes | None = None
        self._inbox = bytearray()
        self._error: OSError | None = None
        self._has_ended = False  # the peer, or a shutdown, has ended the stream
        # A kill closes the sockets of a process, whichever of its threads has made them.
        self.process = baton.process
        self.closed_ms: int | None = None
        self.watch: WatchesSockets | None = None

    # --- for the network ------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self.closed_ms is not None

    @property
    def has_unread(self) -> bool:
        """Whether bytes have arrived that the client has not read."""
        return bool(self._inbox)

    def connected(self, link: CarriesBytes) -> None:
        """Note that the peer has accepted."""
        self._link = link

    def failed(self, error: OSError) -> None:
        """Note that the connection could not be made, or is broken."""
        self._error = error

    def arrived(self, data: bytes) -> None:
        """Note bytes of the peer."""
        self._inbox += data

    def ended(self) -> None:
        """Note that the peer has closed its end."""
        self._has_ended = True

    # --- as a socket ----------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return a number, which is -1 once the socket is closed."""
        return -1 if self.is_closed else self._number

    def settimeout(self, seconds: float | None) -> None:
        """Bound each blocking call; 0 makes the socket non-blocking."""
        self._check_open()
        self._timeout = seconds

    def setblocking(self, is_blocking: bool) -> None:
        """Let calls wait, or not."""
        self.settimeout(None if is_blocking else 0.0)

    def setsockopt(self, *_: object) -> None:
        """Take an option, which means nothing here."""
        self._check_open()

    def connect(self, address: Any) -> None:
        """Connect, and wait for it."""
        self._check_open()
        self._connect(self, address)
        self._wait(lambda: self._link is not None)

    def recv(self, size: int) -> bytes:
        """Return received bytes, none at the end of the stream."""
        self._wait(lambda: bool(self._inbox) or self._has_ended)
        data = bytes(self._inbox[: self._piece(min(size, len(self._inbox)))])
        del self._inbox[: len(data)]
        return data

    def send(self, data: bytes | memoryview) -> int:
        """Send some bytes. Return how many."""
        if self._has_ended:
            raise BrokenPipeError(32, "Broken pipe")
        link = self._connected
        self._wait(lambda: link.room > 0)
        # A copy, as the system makes one: the bytes arrive later, when the client may have changed
        # its own.
        taken = bytes(data[: self._piece(min(len(data), link.room))])
        link.take(taken)
        return len(taken)

    def sendmsg(self, parts: Iterable[bytes | memoryview]) -> int:
        """Send some bytes of several parts. Return how many."""
        return self.send(b"".join(parts))

    def sendall(self, data: bytes) -> None:
        """Send all bytes."""
        while data:
            data = data[self.send(data) :]

    def shutdown(self, _: int) -> None:
        """End the stream, and every wait for it."""
        if self._link is None:
            raise OSError(107, "Transport endpoint is not connected")
        self._has_ended = True
        self._inbox.clear()

    def close(self) -> None:
        """Close the socket."""
        if not self.is_closed:
            self.closed_ms = self._baton.now_ms
            if self._link is not None:
                self._link.close()

    def is_readable(self) -> bool:
        """Return whether `recv` would not wait."""
        return bool(self._inbox) or self._has_ended or self._error is not None

    def is_writable(self) -> bool:
        """Return whether `send` would not wait."""
        # A connect that has failed shows as writable, and the next call raises its error.
        return self._error is not None or (self._link is not None and self._link.room > 0)

    @property
    def _connected(self) -> CarriesBytes:
        if self._link is None:
            raise OSError(107, "Transport endpoint is not connected")
        return self._link

    def _check_open(self) -> None:
        if self.is_closed:
            raise OSError(9, "Bad file descriptor")

    def _wait(self, is_done: Callable[[], bool]) -> None:
        self._check_open()
        self._baton.may_switch()

        def is_over() -> bool:
            return is_done() or self._error is not None or self._has_ended or self.is_closed

        if not is_over():
            if self._timeout == 0:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            if not self._baton.wait(is_over, self._timeout):
                raise TimeoutError("timed out")
        # Another thread may have closed it during the wait.
        self._check_open()
        # Bytes that have arrived are read before the error that followed them.
        if self._error is not None and not self._inbox:
            raise self._error


class VirtualWakeup:
    """A descriptor by which another thread ends a `select`."""

    def __init__(self, baton: Baton) -> None:
        self._baton = baton
        self._number = next(_numbers)
        self._is_set = False

    def fileno(self) -> int:
        """Return a number."""
        return self._number

    def set(self) -> None:
        """End the current or next `select`."""
        # Before the switch: a loop that goes on there has to find it.
        self._is_set = True
        self._baton.may_switch()

    def clear(self) -> None:
        """Make `select` wait again."""
        # The system reads it by a call: another thread may set it just before it is emptied.
        self._baton.may_switch()
        self._is_set = False

    def is_readable(self) -> bool:
        """Return whether it was set."""
        return self._is_set

    def is_writable(self) -> bool:
        """Return False."""
        return False


class VirtualSelector(selectors.BaseSelector):
    """A selector of these sockets.

    Args:
        baton: passed on by `select`.

    Attributes:
        finalizers: of objects that the garbage collector takes on the thread that selects.
    """

    def __init__(self, baton: Baton) -> None:
        self._baton = baton
        self._keys: dict[int, selectors.SelectorKey] = {}
        self.is_closed = False
        self.finalizers: list[Callable[[], None]] = []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Watch a socket."""
        number = fileobj.fileno()
        if number < 0:
            raise ValueError(f"invalid file descriptor: {number}")
        if number in self._keys:
            raise KeyError(f"{fileobj!r} is already registered")
        key = self._keys[number] = selectors.SelectorKey(fileobj, number, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Watch a socket no more."""
        return self._keys.pop(self._number_of(fileobj))

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Watch a socket for other events."""
        number = self._number_of(fileobj)
        key = self._keys[number] = selectors.SelectorKey(fileobj, number, events, data)
        return key

    def _number_of(self, fileobj: Any) -> int:
        number: int = fileobj.fileno()
        if self._keys.get(number) is None:
            raise KeyError(f"{fileobj!r} is not registered")
        return number

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the sockets that are ready, after the time-out at the latest."""
        self._baton.may_switch()
        self._baton.wait(lambda: any(map(_events_of, self._keys.values())), timeout)
        # Here the thread holds no lock, as in most places where the collector may run.
        while self.finalizers:
            self.finalizers.pop()()
        return [(key, mask) for key in self._keys.values() if (mask := _events_of(key))]

    def close(self) -> None:
        """Watch nothing any more."""
        self._keys.clear()
        self.is_closed = True

    def get_map(self) -> Any:
        """Return the sockets that are watched, by their numbers."""
        return self._keys


def _events_of(key: selectors.SelectorKey) -> int:
    sock: Any = key.fileobj
    mask = 0
    if key.events & selectors.EVENT_READ and sock.is_readable():
        mask |= selectors.EVENT_READ
    if key.events & selectors.EVENT_WRITE and sock.is_writable():
        mask |= selectors.EVENT_WRITE
    return mask


def no_such_host() -> OSError:
    """Return the error of a look-up that may succeed later."""
    return socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
