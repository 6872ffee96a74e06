"""A TCP connection to a broker's host name.

Why it exists: a name may have several addresses, of which some do not answer. Each gets its share
of the time, and the error names all of them.
Owns: the look-up, the sockets' options, the address in an error's text. Must not know: Kafka, TLS.
Rules: blocks; the remaining time is checked before every address.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from txnproducer.config._values import format_address
from txnproducer.errors import DisconnectError, KafkaError, UnknownHostError

# These answers are certain, unlike EAI_AGAIN. The second one is not defined on every system.
_NO_SUCH_HOST = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}


@dataclass(frozen=True, slots=True)
class BufferSizes:
    """The sizes of a socket's buffers in bytes. If negative, the system chooses."""

    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1


class Network(Protocol):
    """The part of a platform that connects."""

    def look_up(self, host: str, port: int) -> list[Any]:
        """Return the addresses of a name."""
        ...

    def new_socket(self, family: int, kind: int, protocol: int) -> socket.socket:
        """Return a socket that is not connected."""
        ...


def open_tcp(
    network: Network,
    host: str,
    port: int,
    buffers: BufferSizes,
    remaining_s: Callable[[], float],
    on_socket: Callable[[socket.socket], None],
    first: int = 0,
) -> socket.socket:
    """Connect to the first address of a name that accepts.

    Args:
        network: looks the name up, and makes the sockets.
        host: the broker's name or address.
        port: its port.
        buffers: the sizes of the socket's buffers.
        remaining_s: returns the remaining time in seconds; raises when there is none.
        on_socket: called with each socket before it connects; a shutdown from another thread ends
            its wait.
        first: where to begin in the list of addresses, from its start again past its end.

    Raises:
        DisconnectError: no address accepted the connection; the error names all of them.
        KafkaTimeoutError: raised by `remaining_s`.
        KafkaError: raised by `on_socket`.
    """
    failures: list[str] = []
    addresses = _look_up(network, host, port)
    first %= len(addresses)
    addresses = addresses[first:] + addresses[:first]
    for number, (family, kind, protocol, _, sockaddr) in enumerate(addresses):
        # A share of what is left: an address that fails at once gives its time to the next ones.
        share_s = remaining_s() / (len(addresses) - number)
        try:
            sock = network.new_socket(family, kind, protocol)
            on_socket(sock)
            return _connect(sock, sockaddr, buffers, share_s)
        except OSError as error:
            failures.append(f"{sockaddr[0]}: {error}")
    remaining_s()  # raises its own error if the time is up
    # Sorted: a name server may rotate the addresses, and each new text would be logged.
    address = format_address(host, port)
    raise DisconnectError(f"cannot connect to {address} ({'; '.join(sorted(failures))})")


def _look_up(network: Network, host: str, port: int) -> list[Any]:
    try:
        found = network.look_up(host, port)
    except (OSError, UnicodeError) as error:
        is_unknown = isinstance(error, socket.gaierror) and error.errno in _NO_SUCH_HOST
        kind = UnknownHostError if is_unknown else DisconnectError
        raise kind(f"cannot find the host of {format_address(host, port)}: {error}") from error
    if not found:
        raise DisconnectError(f"cannot find the host of {format_address(host, port)}")
    return found


def _connect(
    sock: socket.socket, sockaddr: Any, buffers: BufferSizes, timeout_s: float
) -> socket.socket:
    try:
        sock.settimeout(timeout_s)
        # Requests are small and wait for answers: Nagle's algorithm would hold them back for an
        # ACK.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if buffers.send_buffer_bytes >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffers.send_buffer_bytes)
        if buffers.receive_buffer_bytes >= 0:
            # Before the connect: TCP agrees on the window's scale in the handshake.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffers.receive_buffer_bytes)
        sock.connect(sockaddr)
    except BaseException:
        sock.close()
        raise
    return sock


def with_address(address: str, error: KafkaError) -> KafkaError:
    """Return an error that has the broker's address in its text: the given one or a copy."""
    if address in str(error):
        return error
    # A copy, since a token provider may raise the same object again. It is made without its
    # constructor, which may take other arguments.
    told = type(error).__new__(type(error))
    told.__dict__.update(error.__dict__)
    told.args, told.__cause__ = (f"{address}: {error}",), error.__cause__
    return told
