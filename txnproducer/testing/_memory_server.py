"""The thread that moves bytes between clients and a modelled cluster.

Owns: the loop, its sockets, the clock of the model, the lock around it. Must not know: the
protocol (`_server` does).

Rules:
* The model is touched with the lock held, by this thread and by the calls of a test.
* The loop never waits longer than until the next answer or timer of the model is due.
* Nothing is left behind: `close` ends the thread, and closes every socket that it made.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from txnproducer._broker.cluster import BrokerCluster
from txnproducer._server.connection import Answer, ServerConnection
from txnproducer._server.login import Users
from txnproducer._server.script import Script

_T = TypeVar("_T")

_HOST = "127.0.0.1"
_READ_BYTES = 256 * 1024


def now_ms() -> int:
    """Return the time of the model."""
    return time.monotonic_ns() // 1_000_000


class _Peer:
    """The server's end of a client's connection, and the answers that are still to be sent."""

    def __init__(self, sock: socket.socket, node_id: int, connection: ServerConnection) -> None:
        self.sock = sock
        self.node_id = node_id
        self.connection = connection
        self.waiting: deque[Answer] = deque()
        self.unsent = bytearray()


class MemoryServer:
    """See the module.

    Args:
        cluster: the model.
        users: the users that may log in; None for listeners without a login.

    Attributes:
        script: the faults to come.
    """

    def __init__(self, cluster: BrokerCluster, users: Users | None = None) -> None:
        self.script = Script()
        self._cluster = cluster
        self._users = users
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._peers: set[_Peer] = set()
        self._listeners: dict[int, socket.socket] = {}
        self._advertised: dict[int, tuple[str, int]] = {}
        self._is_closed = False
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._drain_wakeups)
        self._thread = threading.Thread(
            target=self._run, name="txnproducer-in-memory-kafka", daemon=True
        )
        self._thread.start()

    # --- for the test's thread ------------------------------------------------------------------

    def call(self, action: Callable[[BrokerCluster, int], _T]) -> _T:
        """Do something with the model, at the present time."""
        with self._lock:
            time_ms = now_ms()
            self._cluster.advance(time_ms)
            result = action(self._cluster, time_ms)
        # It may have made a timer due, or stopped a broker.
        self._wake_up()
        return result

    def connect(self, node_id: int) -> socket.socket:
        """Return a client's socket to a broker, connected without any port.

        Raises:
            ConnectionRefusedError: the broker is down, or the server closed.
        """
        with self._lock:
            if self._is_closed or not self._cluster.is_up(node_id):
                raise ConnectionRefusedError(f"broker {node_id} is down")
            theirs, ours = socket.socketpair()
            self._add(ours, node_id, {})
        self._wake_up()
        return theirs

    def listen(self) -> list[tuple[str, int]]:
        """Open a port on the loopback address for each broker, once. Return their addresses."""
        with self._lock:
            for node_id in self._cluster.nodes:
                if node_id not in self._listeners:
                    listener = socket.create_server((_HOST, 0))
                    listener.setblocking(False)
                    self._listeners[node_id] = listener
                    self._advertised[node_id] = (_HOST, listener.getsockname()[1])
                    accept = partial(self._accept, listener, node_id)
                    self._selector.register(listener, selectors.EVENT_READ, accept)
        self._wake_up()
        return list(self._advertised.values())

    def close(self) -> None:
        """End the thread, and close every connection."""
        with self._lock:
            self._is_closed = True
        self._wake_up()
        self._thread.join()
        # Last: until its end the thread may be woken by another thread's call.
        self._wake.close()

    def _wake_up(self) -> None:
        # Full: the loop will wake up anyway. Closed: the model is still there to be looked at.
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")

    # --- the loop -------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            events = self._selector.select(self._pause_s())
            with self._lock:
                if self._is_closed:
                    break
                time_ms = now_ms()
                self._cluster.advance(time_ms)
                for key, _ in events:
                    key.data()
                self._send_due(time_ms)
        for peer in list(self._peers):
            self._drop(peer)
        for sock in (*self._listeners.values(), self._woken):
            self._selector.unregister(sock)
            sock.close()
        self._selector.close()

    def _pause_s(self) -> float:
        with self._lock:
            due = [peer.waiting[0].due_ms for peer in self._peers if peer.waiting]
            next_ms = min([self._cluster.next_event_ms(), *due])
        return max(0, next_ms - now_ms()) / 1000

    def _drain_wakeups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass

    def _accept(self, listener: socket.socket, node_id: int) -> None:
        with contextlib.suppress(OSError):  # the client has given up meanwhile
            sock, _ = listener.accept()
            if self._cluster.is_up(node_id):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._add(sock, node_id, self._advertised)
            else:
                sock.close()

    def _add(
        self, sock: socket.socket, node_id: int, advertised: dict[int, tuple[str, int]]
    ) -> None:
        sock.setblocking(False)
        connection = ServerConnection(self._cluster, node_id, self.script, self._users, advertised)
        peer = _Peer(sock, node_id, connection)
        self._peers.add(peer)
        self._selector.register(sock, selectors.EVENT_READ, partial(self._serve, peer))

    def _drop(self, peer: _Peer) -> None:
        self._peers.discard(peer)
        self._selector.unregister(peer.sock)
        peer.sock.close()

    def _serve(self, peer: _Peer) -> None:
        if peer not in self._peers or peer.connection.is_closed:
            return
        try:
            data = peer.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            peer.waiting.extend(peer.connection.receive(data, now_ms()))
        else:
            self._drop(peer)

    def _send_due(self, time_ms: int) -> None:
        for peer in list(self._peers):
            if not self._cluster.is_up(peer.node_id):
                self._drop(peer)
                continue
            while peer.waiting and peer.waiting[0].due_ms <= time_ms:
                peer.unsent += peer.waiting.popleft().data
            self._flush(peer)

    def _flush(self, peer: _Peer) -> None:
        try:
            while peer.unsent:
                del peer.unsent[: peer.sock.send(peer.unsent)]
        except BlockingIOError:
            pass  # the client is slow to read: the rest goes when it has read
        except OSError:
            self._drop(peer)
            return
        if peer.connection.is_closed and not peer.waiting and not peer.unsent:
            self._drop(peer)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
        key = self._selector.get_key(peer.sock)
        if key.events != wanted:
            self._selector.modify(peer.sock, wanted, key.data)
