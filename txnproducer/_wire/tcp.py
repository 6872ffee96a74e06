"""Open a TCP connection to a broker's name, directly or through a proxy.

Why it exists: a name has several addresses, of which some may not answer; each gets its share of
the time, and the error names them all.
Owns: look-up, sockets' options, kafka-python's proxies (SOCKS5, HTTP CONNECT).
Must not know: Kafka, TLS.
Rules: blocks; the time left is asked before every address.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from txnproducer.errors import DisconnectError, InvalidConfigurationError

from . import kafka_python as kp


@dataclass(frozen=True, slots=True)
class TcpSettings:
    """How to open sockets: buffer sizes (negative: the system's) and a proxy's address."""

    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    proxy_url: str | None = None

    @classmethod
    def from_security(
        cls, security: Mapping[str, Any], send_buffer_bytes: int, receive_buffer_bytes: int
    ) -> TcpSettings:
        """Take the proxy from where kafka-python's users put it."""
        proxy = security.get("proxy_url") or security.get("socks5_proxy")
        return cls(send_buffer_bytes, receive_buffer_bytes, proxy)


def open_tcp(
    host: str, port: int, settings: TcpSettings, remaining_s: Callable[[], float]
) -> socket.socket:
    """Connect to the first address of a name that takes it.

    Args:
        host: the broker's name or address.
        port: its port.
        settings: options of the socket, and the proxy.
        remaining_s: the time left in seconds; raises when there is none.

    Raises:
        DisconnectError: no address took the connection; all are named.
        KafkaTimeoutError: by `remaining_s`.
        InvalidConfigurationError: the proxy's address cannot be understood.
    """
    failures: list[str] = []
    addresses = _look_up(host, port, settings.proxy_url)
    for number, (family, kind, protocol, _, sockaddr) in enumerate(addresses):
        share_s = remaining_s() / (len(addresses) - number)
        try:
            if settings.proxy_url is None:
                return _connect(socket.socket(family, kind, protocol), sockaddr, settings, share_s)
            return _connect_proxy((family, kind, protocol), sockaddr, settings, share_s)
        except OSError as error:
            failures.append(f"{sockaddr[0]}: {error}")
    remaining_s()  # out of time is an error of its own
    raise DisconnectError(f"cannot connect to {host}:{port} ({'; '.join(failures)})")


def _look_up(host: str, port: int, proxy_url: str | None) -> list[Any]:
    try:
        if proxy_url is None:
            return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        found = list(_proxy(proxy_url).dns_lookup(host, port))
    except (OSError, UnicodeError) as error:
        raise DisconnectError(f"cannot find the host of {host}:{port}: {error}") from error
    if not found:
        raise DisconnectError(f"cannot find the host of {host}:{port}")
    return found


def _connect(
    sock: socket.socket, sockaddr: Any, settings: TcpSettings, timeout_s: float
) -> socket.socket:
    try:
        _prepare(sock, settings, timeout_s)
        sock.connect(sockaddr)
    except BaseException:
        sock.close()
        raise
    return sock


def _connect_proxy(
    kind: tuple[Any, Any, Any], sockaddr: Any, settings: TcpSettings, timeout_s: float
) -> socket.socket:
    url = settings.proxy_url or ""
    proxy = _proxy(url)
    sock: socket.socket = proxy.socket(*kind)
    try:
        _prepare(sock, settings, timeout_s)
        # Written for a non-blocking socket; a blocking one takes it to the end in one call.
        code = proxy.connect_ex(sock, sockaddr)
    except BaseException:
        sock.close()
        raise
    if code:
        sock.close()
        raise OSError(code, f"the proxy {_without_password(url)} did not connect")
    return sock


def _proxy(url: str) -> Any:
    try:
        return kp.KafkaNetSocket(url)
    except ValueError as error:
        raise InvalidConfigurationError(
            f"proxy_url {_without_password(url)!r}: {error} (socks5://, socks5h:// or http://)"
        ) from error
    except Exception as error:  # kafka-python's own errors: the proxy's name is not known
        raise DisconnectError(f"proxy_url {_without_password(url)!r}: {error}") from error


def _prepare(sock: socket.socket, settings: TcpSettings, timeout_s: float) -> None:
    sock.settimeout(timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if settings.send_buffer_bytes >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer_bytes)
    if settings.receive_buffer_bytes >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer_bytes)


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
