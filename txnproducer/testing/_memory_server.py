"""The thread that moves bytes between clients and a modelled cluster.

Owns: the loop, its sockets, the clock of the model. Must not know: the protocol (`_server` does).

Rules:
* Only the loop's thread touches the model, until it has ended. A test's call is handed to it, so
  an interrupt in the test's thread (Ctrl-C, a time-out of pytest) leaves no half change: the call
  takes effect wholly, or not at all.
* The loop never waits longer than until the next answer or timer of the model is due.
* The model's time begins with the server. It runs a check for every 200 ms that pass, so a clock
  that counted from the machine's start would run millions at once.
* An error of the model's timers ends the server: its sockets are closed, and the next call raises
  the error. One at a client's request is logged and ends that connection, and the server goes on.
* Nothing stays: `close` ends the thread, and closes every socket that it made.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakSet

from txnproducer._broker.cluster import BrokerCluster
from txnproducer._server.connection import ServerConnection
from txnproducer._server.login import Users
from txnproducer._server.script import Script

from ._cluster_call import ClusterCall
from ._memory_listeners import Listener, Listeners
from ._memory_peer import Peer
from ._memory_tls import ServerTls
from ._own_process import OwnProcess

if TYPE_CHECKING:
    from ._memory_producer import ClosedWithCluster

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

_READ_BYTES: Final = 256 * 1024


class MemoryServer:
    """The modelled cluster on a thread of its own, for clients with real sockets.

    Args:
        cluster: the model.
        users: the users that may log in; None for listeners without a login.
        clock_ns: a monotonic clock.

    Attributes:
        script: the faults to come.
    """

    def __init__(
        self,
        cluster: BrokerCluster,
        users: Users | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.script = Script()
        self._cluster = cluster
        self._users = users
        self._clock_ns = clock_ns
        # The model's time begins at 0; see the rules above.
        self._begun_ns = clock_ns()
        self._process = OwnProcess(
            "its thread: make a new InMemoryKafka in the child, or give the child the addresses of"
            " listen()"
        )
        self._selector = selectors.DefaultSelector()
        self._peers: set[Peer] = set()
        self._listeners = Listeners(cluster, self._selector, self._accepted, self._now_ms)
        self._must_end = False
        self._is_abandoned = False
        # Guards all that follow. A call is either queued before the end, or made after it. A
        # producer is either among those that `close` closes, or closed at once.
        self._lock = threading.Lock()
        self._is_closing = False
        self._producers: WeakSet[ClosedWithCluster] = WeakSet()
        self._calls: deque[ClusterCall] = deque()
        self._has_ended = False
        self._failure: Exception | None = None
        self._wake, self._woken = socket.socketpair()
        # A thread that wakes the loop must not wait for it, and the loop not for a byte.
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._drain_wakeups)
        self._thread = threading.Thread(
            target=self._run, name="txnproducer-in-memory-kafka", daemon=True
        )
        self._thread.start()

    # --- for the test's thread ------------------------------------------------------------------

    def call(self, action: Callable[[BrokerCluster, int], _T]) -> _T:
        """Do something with the model, at the present time.

        Raises:
            RuntimeError: this process is a fork, or the model has failed.
        """
        self.check_caller()
        call = ClusterCall(action)
        with self._lock:
            # Without the loop there is no other thread, so the caller may look by itself.
            if self._has_ended:
                if self._failure is not None:
                    raise self._error(self._failure)
                return action(self._cluster, self._now_ms())
            self._calls.append(call)
        self._wake_up()
        result: _T = call.wait()
        return result

    def check_caller(self) -> None:
        """Refuse a caller that cannot use the cluster.

        Raises:
            RuntimeError: this process was forked after the server was made.
        """
        self._process.refuse_fork()

    def adopt(self, producer: ClosedWithCluster) -> None:
        """Take a producer that is closed with the cluster, which may be now."""
        with self._lock:
            is_late = self._is_closing
            if not is_late:
                self._producers.add(producer)
        # Another thread has closed the cluster while this one made the producer.
        if is_late:
            producer.close_with_cluster()

    def connect(self, node_id: int) -> socket.socket:
        """Return a client's socket to a broker, connected without any port.

        Raises:
            ConnectionRefusedError: the broker is down, or the server has ended.
        """
        try:
            return self.call(lambda cluster, _: self._connect(cluster, node_id))
        # A producer that is still open sees a broker that is down, and not the test's mistake.
        except RuntimeError as error:
            raise ConnectionRefusedError(str(error)) from error

    def listen(self, context: ssl.SSLContext | None = None) -> list[tuple[str, int]]:
        """Open a port on the loopback address for each broker, once. Return their addresses.

        Args:
            context: the certificate of ports that speak TLS; None for ports that do not.

        Raises:
            RuntimeError: the server has ended.
        """
        return self.call(lambda _, __: self._listen(context))

    def stop_node(self, node_id: int) -> None:
        """Stop a broker, and end its connections."""

        def stop(cluster: BrokerCluster, now_ms: int) -> None:
            cluster.stop_node(node_id, now_ms)
            # Here: the broker may be up again before the loop looks for it.
            for peer in [each for each in self._peers if each.node_id == node_id]:
                self._drop(peer)

        self.call(stop)

    def close(self) -> None:
        """Close the producers, end the thread and every connection. In a forked child: nothing."""
        if self.is_forked:
            return
        with self._lock:
            self._is_closing = True
            # A copy: another thread may have a producer made or collected meanwhile.
            producers = list(self._producers)
        try:
            # While the loop still reads: none of them logs that it has lost its brokers.
            for producer in producers:
                producer.close_with_cluster()
        finally:
            # Also after an interrupt: the finalizer takes the cluster for closed.
            self._must_end = True
            self._wake_up()
        self._thread.join()
        # Last: until its end the thread may be woken by another thread's call.
        self._wake.close()

    def abandon(self) -> None:
        """End the thread soon. Unlike `close` it waits for nothing, and takes no lock.

        Nothing may be called after it.
        """
        self._is_abandoned = self._is_closing = self._must_end = True
        self._wake_up()

    @property
    def is_closing(self) -> bool:
        """Whether the server was closed."""
        return self._is_closing

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked after the server was made."""
        return self._process.is_forked

    def _error(self, failure: Exception) -> RuntimeError:
        error = RuntimeError(
            f"the in-memory cluster has failed: {failure!r}. This is a defect of"
            " txnproducer.testing; please report it with the traceback"
        )
        error.__cause__ = failure
        return error

    def _now_ms(self) -> int:
        return (self._clock_ns() - self._begun_ns) // 1_000_000

    def _wake_up(self) -> None:
        # Full: the loop will wake up anyway. Closed: the model is still there to be looked at.
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")

    # --- the loop -------------------------------------------------------------------------------

    def _run(self) -> None:
        failure: Exception | None = None
        try:
            while not self._must_end:
                events = self._selector.select(self._pause_s())
                # The timers that are due come before the requests that arrive after them.
                self._cluster.advance(self._now_ms())
                for key, _ in events:
                    key.data()
                self._make_calls()
                self._send_due()
        except Exception as error:  # noqa: BLE001 - the next call raises it
            _LOG.exception("The in-memory cluster has failed")
            failure = error
        finally:
            self._end(failure)

    def _pause_s(self) -> float:
        due = [peer.waiting[0].due_ms for peer in self._peers if peer.waiting]
        next_ms = min([self._cluster.next_event_ms(), *due])
        return max(0, next_ms - self._now_ms()) / 1000

    def _end(self, failure: Exception | None) -> None:
        for peer in list(self._peers):
            self._drop(peer)
        self._listeners.close()
        self._woken.close()
        self._selector.close()
        # In one hold of the lock: a call is in this list, or finds that the loop has ended.
        with self._lock:
            self._failure = failure
            self._has_ended = True
            calls = list(self._calls)
        for call in calls:
            if failure is None:
                # Its caller waits, and may have asked before the end.
                call.make(self._cluster, self._now_ms())
            else:
                call.refuse(self._error(failure))
        # No `close` will come for an abandoned server, which closes this end otherwise.
        if self._is_abandoned:
            self._wake.close()

    def _make_calls(self) -> None:
        while self._calls:
            now_ms = self._now_ms()
            self._cluster.advance(now_ms)
            self._calls.popleft().make(self._cluster, now_ms)

    def _drain_wakeups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass

    # --- connections ----------------------------------------------------------------------------

    def _connect(self, cluster: BrokerCluster, node_id: int) -> socket.socket:
        # While producers are being closed, they still find their brokers.
        if self._must_end:
            raise ConnectionRefusedError("this InMemoryKafka is closed")
        if not cluster.is_up(node_id):
            raise ConnectionRefusedError(f"broker {node_id} is down")
        theirs, ours = socket.socketpair()
        self._add(ours, node_id, {}, None)
        return theirs

    def _listen(self, context: ssl.SSLContext | None) -> list[tuple[str, int]]:
        if self._is_closing:
            raise RuntimeError("this InMemoryKafka is closed: it opens no more ports")
        return self._listeners.listen(context)

    def _accepted(self, sock: socket.socket, listener: Listener) -> None:
        tls = None if listener.context is None else ServerTls(listener.context)
        self._add(sock, listener.node_id, listener.advertised, tls)

    def _add(
        self,
        sock: socket.socket,
        node_id: int,
        advertised: dict[int, tuple[str, int]],
        tls: ServerTls | None,
    ) -> None:
        sock.setblocking(False)
        connection = ServerConnection(self._cluster, node_id, self.script, self._users, advertised)
        peer = Peer(sock, node_id, connection, tls)
        self._peers.add(peer)
        self._watch(peer)

    def _watch(self, peer: Peer) -> None:
        # Nothing more is read from a connection that the server has ended. Watched for reads, its
        # unread bytes would keep the loop busy until the last answer is due.
        wanted = (selectors.EVENT_READ if peer.reads else 0) | (
            selectors.EVENT_WRITE if peer.unsent else 0
        )
        if wanted == peer.watched:
            return
        serve = partial(self._serve, peer)
        if not wanted:
            self._selector.unregister(peer.sock)
        elif peer.watched:
            self._selector.modify(peer.sock, wanted, serve)
        else:
            self._selector.register(peer.sock, wanted, serve)
        peer.watched = wanted

    def _drop(self, peer: Peer) -> None:
        self._peers.discard(peer)
        if peer.watched:
            self._selector.unregister(peer.sock)
            peer.watched = 0
        with contextlib.suppress(OSError):
            # A forked child has a copy of the socket: without this the client would see no end.
            peer.sock.shutdown(socket.SHUT_RDWR)
        peer.sock.close()

    def _serve(self, peer: Peer) -> None:
        # It may have been dropped by an event before it in the same round.
        if peer not in self._peers or not peer.reads:
            return
        try:
            data = peer.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(peer)
            return
        self._guard(peer, lambda: peer.receive(data, self._now_ms()))

    def _send_due(self) -> None:
        now_ms = self._now_ms()
        for peer in list(self._peers):
            self._guard(peer, partial(self._send, peer, now_ms))

    def _send(self, peer: Peer, now_ms: int) -> None:
        peer.take_due(now_ms)
        self._flush(peer)

    def _guard(self, peer: Peer, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:  # noqa: BLE001 - of one client: the others, and the test, go on
            _LOG.exception("The in-memory cluster has failed at the bytes of a client")
            self._drop(peer)

    def _flush(self, peer: Peer) -> None:
        try:
            while peer.unsent:
                del peer.unsent[: peer.sock.send(peer.unsent)]
        except BlockingIOError:
            pass  # the client is slow to read: the rest goes when it has read
        except OSError:
            self._drop(peer)
            return
        if peer.is_done:
            self._drop(peer)
        else:
            self._watch(peer)
