"""The ports of an in-memory Kafka, for clients that make their own connection.

Owns: the listening sockets, their addresses, the accepting. Must not know: connections' bytes.

Rules:
* An error of one accept ends no other connection, and does not keep the loop busy.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from txnproducer._broker.cluster import BrokerCluster

_LOG = logging.getLogger(__name__)

_HOST: Final = "127.0.0.1"
# Until a connection is accepted after an error. A client's time-out for a connection is longer.
_PAUSE_MS: Final = 200


class Listener(NamedTuple):
    """A broker's port.

    Attributes:
        sock: the listening socket.
        node_id: the broker.
        advertised: the addresses that its clients are given, by broker.
        context: the certificate of a port that speaks TLS; None for one that does not.
    """

    sock: socket.socket
    node_id: int
    advertised: dict[int, tuple[str, int]]
    context: ssl.SSLContext | None


class Listeners:
    """The ports. Only the loop's thread may use them.

    Args:
        cluster: the model, whose timers end a pause.
        selector: of the loop.
        add: takes the socket of a client that was accepted.
        now_ms: the time of the model.

    Attributes:
        advertised: the addresses by broker, for ports without TLS (False) and with it (True).
    """

    def __init__(
        self,
        cluster: BrokerCluster,
        selector: selectors.BaseSelector,
        add: Callable[[socket.socket, Listener], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._cluster = cluster
        self._selector = selector
        self._add = add
        self._now_ms = now_ms
        self._listeners: list[Listener] = []
        self.advertised: dict[bool, dict[int, tuple[str, int]]] = {}
        self._is_closed = False

    def listen(self, context: ssl.SSLContext | None) -> list[tuple[str, int]]:
        """Open a port for each broker, once. Return their addresses.

        Args:
            context: the certificate of ports that speak TLS; None for ports that do not.
        """
        advertised = self.advertised.setdefault(context is not None, {})
        for node_id in self._cluster.nodes:
            if node_id not in advertised:
                # Port 0: the system chooses one that is free.
                sock = socket.create_server((_HOST, 0))
                sock.setblocking(False)
                listener = Listener(sock, node_id, advertised, context)
                self._listeners.append(listener)
                advertised[node_id] = (_HOST, sock.getsockname()[1])
                self._watch(listener)
        return list(advertised.values())

    def close(self) -> None:
        """Close the ports."""
        self._is_closed = True
        for listener in self._listeners:
            listener.sock.close()

    def _watch(self, listener: Listener) -> None:
        accept = partial(self._accept, listener)
        self._selector.register(listener.sock, selectors.EVENT_READ, accept)

    def _accept(self, listener: Listener) -> None:
        try:
            sock, _ = listener.sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # the client has given up meanwhile
        except OSError as error:
            self._pause(listener, error)
            return
        try:
            self._take(sock, listener)
        except Exception:  # noqa: BLE001 - of one client: the others, and the test, go on
            _LOG.exception("The in-memory cluster has failed at a new connection")
            sock.close()

    def _take(self, sock: socket.socket, listener: Listener) -> None:
        if not self._cluster.is_up(listener.node_id):
            sock.close()
            return
        with contextlib.suppress(OSError):  # the client has given up meanwhile
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._add(sock, listener)

    def _pause(self, listener: Listener, error: OSError) -> None:
        # Without descriptors (EMFILE) the client keeps waiting, and the port stays readable: the
        # loop would try again at once, for ever.
        _LOG.warning("cannot accept a connection to broker %d: %s", listener.node_id, error)
        self._selector.unregister(listener.sock)
        self._cluster.call_at(self._now_ms() + _PAUSE_MS, lambda _: self._resume(listener))

    def _resume(self, listener: Listener) -> None:
        # The model's time goes on when the loop has ended.
        if not self._is_closed:
            self._watch(listener)
