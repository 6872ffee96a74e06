"""The network in virtual time: connections between sockets and the server of bytes.

Owns: the bytes under way, latency, the faults of a connection. Must not know: the producer, the
meaning of the bytes.

Rules:
* Bytes of one direction arrive in order, some time after they were sent.
* A client that closes its end does not take back the bytes that it has sent: the server may still
  read them, and their answers go nowhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from txnproducer._broker.cluster import BrokerCluster
from txnproducer._server.connection import Answer, ServerConnection
from txnproducer._server.login import Users
from txnproducer._server.script import Script
from txnproducer.sim.stack.baton import NS_PER_MS, Baton
from txnproducer.sim.stack.faults import ByteFault, ByteFaults, ConnectionFaults, Ending
from txnproducer.sim.stack.listeners import Listeners
from txnproducer.sim.stack.logins import LoginRefusals
from txnproducer.sim.stack.requests_in_flight import HANDSHAKE_KEYS, RequestsInFlight
from txnproducer.sim.stack.sockets import VirtualSocket, no_such_host
from txnproducer.sim.stack.tokens import logins_of_connection

__all__ = ["DEAD_ADDRESS", "VirtualNetwork"]

# Of a network that is kept for documentation (RFC 5737), so no broker has it.
DEAD_ADDRESS: Final = ("192.0.2.1", 9092)
_WINDOW_BYTES: Final = 64 * 1024
# Far beyond the limit of an attempt to connect, which the client has to keep by itself.
_HUNG_LOOK_UP_S: Final = 40.0


class VirtualNetwork:
    """The network of one run.

    Args:
        baton: has the time.
        cluster: answers.
        faults: of the bytes.
        rng: draws latencies.
        latency_ms: the longest of one way.
        on_event: told of each connection and fault, for the trace.
        users: may log in; None for listeners without a login.

    Attributes:
        script: the faults at requests to come.
        users: likewise.
        refusals: of logins.
        listeners: of which some ask for a login of clients that have none.
        open_sockets: that were made and not closed.
        is_closed: whether no connection is accepted any more.
        half_open_ms: when the last one ended without a word to the client; 0 if none did.
    """

    def __init__(
        self,
        baton: Baton,
        cluster: BrokerCluster,
        faults: ByteFaults,
        rng: random.Random,
        latency_ms: float = 1.0,
        on_event: Callable[[str], None] = lambda _: None,
        users: Users | None = None,
    ) -> None:
        self.baton = baton
        self.cluster = cluster
        self.faults = faults
        self.rng = rng
        self.script = Script()
        self.users = users
        self.refusals = LoginRefusals(lambda _: None)
        self.listeners = Listeners(lambda _: None)
        self.on_event = on_event
        self.is_closed = False
        self._latency_ms = latency_ms
        # By name and port. At first a name is its own address.
        self._addresses = {(n.host, n.port): (n.host, n.port) for n in cluster.nodes.values()}
        self._nodes = {(node.host, node.port): n for n, node in cluster.nodes.items()}
        self.half_open_ms = 0
        self._links: list[VirtualLink] = []
        self._sockets: list[VirtualSocket] = []

    @property
    def open_sockets(self) -> list[VirtualSocket]:
        """The sockets that were made and not closed."""
        return [sock for sock in self._sockets if not sock.is_closed]

    @property
    def request_count(self) -> int:
        """How many requests the brokers have read."""
        return sum(link.answered for link in self._links)

    def latency_ms(self) -> float:
        """Return the time of one way."""
        return self.rng.uniform(self._latency_ms / 4, self._latency_ms)

    # --- for the platform -----------------------------------------------------------------------

    def new_socket(self) -> VirtualSocket:
        """Return a socket that is not connected."""
        sock = VirtualSocket(self.baton, self._connect, self.faults.piece)
        # Without the closed ones: a look at the open ones must not cost more with each connection.
        self._sockets = [*self.open_sockets, sock]
        return sock

    def look_up(self, host: str, port: int) -> list[tuple[str, int]]:
        """Return the addresses of a name."""
        self.baton.may_switch()
        if self.faults.strikes(ByteFault.LOOK_UP_HANGS):
            self.baton.wait(lambda: False, self.rng.uniform(0.1, _HUNG_LOOK_UP_S))
        if self.faults.strikes(ByteFault.LOOK_UP_FAILS):
            raise no_such_host()
        address = self._addresses.get((host, port), (host, port))
        if self.faults.strikes(ByteFault.DEAD_ADDRESS):
            # The dead one first: a client that tries one address only does not get past it.
            return [DEAD_ADDRESS, address]
        return [address]

    def _connect(self, sock: VirtualSocket, address: Any) -> None:
        users = self.users
        fate = self.faults.draw(has_sessions=users is not None and users.have_sessions)
        if fate.kind in (ByteFault.NO_CONNECT, ByteFault.SLOW_CONNECT):
            self.faults.takes_effect(fate.kind)
        if fate.kind is ByteFault.NO_CONNECT or tuple(address[:2]) == DEAD_ADDRESS:
            return  # nothing answers, so the caller waits for its time-out
        # Both ways: the packet of the client, and the answer to it.
        delay_ms = self.latency_ms() * 2
        if fate.kind is ByteFault.SLOW_CONNECT:
            delay_ms += fate.delay_ms
        node_id = self._nodes.get(tuple(address[:2]))
        self.baton.call_after(delay_ms, partial(self._accept, sock, node_id, fate))

    def _accept(self, sock: VirtualSocket, node_id: int | None, fate: ConnectionFaults) -> None:
        # The client has given the attempt up meanwhile.
        if sock.is_closed:
            return
        is_refused = self.is_closed or fate.kind is ByteFault.REFUSED
        if fate.kind is ByteFault.REFUSED:
            self.faults.takes_effect(fate.kind)
        if node_id is None or is_refused or not self.cluster.is_up(node_id):
            sock.failed(ConnectionRefusedError(111, "Connection refused"))
            return
        if fate.kind is not None:
            self.on_event(f"connection to {node_id}: {fate}")
        link = VirtualLink(self, sock, node_id, fate)
        # Those that have answered stay, since `request_count` adds them up.
        self._links = [each for each in self._links if each.is_alive or each.answered]
        self._links.append(link)
        if sock.watch is not None:
            sock.watch.is_connected(node_id)
        sock.connected(link)

    # --- for the run ----------------------------------------------------------------------------

    def close_sockets(self, process: str) -> None:
        """Close the sockets of a process, as the system does when it ends."""
        for sock in self.open_sockets:
            if sock.process == process:
                sock.watch = None  # it is no choice of the client
                sock.close()

    def cut(self, node_id: int | None = None, ending: Ending = Ending.RESET) -> None:
        """End all connections, or those to one broker."""
        for link in self._links:
            if node_id in (None, link.node_id):
                link.cut(ending)

    def move(self, node_id: int, address: tuple[str, int], ending: Ending) -> None:
        """Give a broker another address. Its name leads there from the next look-up on.

        Args:
            node_id: the broker.
            address: where it is from now on. Nothing accepts at the old one any more.
            ending: of the connections to the old one.
        """
        node = self.cluster.nodes[node_id]
        del self._nodes[self._addresses[node.host, node.port]]
        self._addresses[node.host, node.port] = address
        self._nodes[address] = node_id
        self.cut(node_id, ending)

    def heal(self) -> None:
        """End all faults. Connections that had one are reset."""
        self.faults.are_over = True
        self.script.clear()
        for link in self._links:
            # Only these: a producer has to prove that it goes on with the others as they are.
            if link.fate.kind is not None:
                link.cut(Ending.RESET)


class VirtualLink:
    """One connection.

    Args:
        network: carries it.
        sock: the client's end.
        node_id: the broker.
        fate: its faults.
    """

    def __init__(
        self, network: VirtualNetwork, sock: VirtualSocket, node_id: int, fate: ConnectionFaults
    ) -> None:
        self.node_id = node_id
        self.fate = fate
        self.answered = 0
        self.is_alive = True
        self._network = network
        self._sock = sock
        users = network.users
        self._logins = logins_of_connection(users, partial(network.refusals.at, node_id))
        if users is not None:
            users = self._logins.of(users)
        foreign = network.listeners.users_at(node_id) if users is None else None
        self._is_foreign = foreign is not None
        self._server = ServerConnection(
            network.cluster, node_id, network.script, users if foreign is None else foreign
        )
        self._is_deaf = fate.kind is ByteFault.SILENT  # nothing comes back any more
        self._under_way = 0
        self._read = self._written = 0
        self._there_ns = self._back_ns = 0
        self._asked = RequestsInFlight()
        self._has_sent_nonsense = self._has_taken_effect = False

    @property
    def room(self) -> int:
        """How many bytes it takes now."""
        return _WINDOW_BYTES - self._under_way

    def take(self, data: bytes) -> None:
        """Carry bytes to the server."""
        watch = self._sock.watch
        self._asked.sent(data, self._network.baton.now_ms)
        if watch is not None:
            watch.logs_in(self.node_id, self._asked.login_messages)
        # While bytes are unread, the client may not have seen the nonsense.
        if watch is not None and self._has_sent_nonsense and not self._sock.has_unread:
            watch.sends_after_nonsense(self.node_id)
        self._under_way += len(data)
        self._there_ns = self._later(self._there_ns, 0.0, partial(self._read_by_server, data))

    def close(self) -> None:
        """Note that the client has closed its end. The bytes that it has sent still arrive."""
        watch = self._sock.watch
        # With an answer that is not read, the client does not know what it has.
        works = self.is_alive and not (
            self._is_deaf
            or self._has_sent_nonsense
            or self._server.is_closed
            or self._sock.has_unread
        )
        if watch is not None and works:
            watch.closes(self.node_id, self._asked.waited_ms(self._network.baton.now_ms))
        self.fate.kind = None
        # After the bytes that are under way, which the server still reads.
        self._there_ns = self._later(self._there_ns, 0.0, self._end)

    def cut(self, ending: Ending) -> None:
        """End the connection for both sides, at once."""
        if not self.is_alive:
            return
        self._end()
        self._is_deaf = True
        network, watch = self._network, self._sock.watch
        if watch is not None and not self._sock.is_closed:
            watch.is_ended(self.node_id)
        # A client may take any end for that of a listener which wants a login.
        if network.listeners.has_asked_lately(self.node_id, network.baton.now_ms):
            self._login_is_refused()
        # A half-open one tells the client nothing: only the time-out of a request ends it.
        if ending is Ending.CLOSED:
            self._sock.ended()
        elif ending is Ending.RESET:
            self._sock.failed(ConnectionResetError(104, "Connection reset by peer"))
        else:
            self._network.half_open_ms = self._network.baton.now_ms

    def _end(self) -> None:
        self.is_alive = False

    def _fault_takes_effect(self) -> None:
        # Once for each connection, however many answers it delays.
        if self.fate.kind is not None and not self._has_taken_effect:
            self._has_taken_effect = True
            self._network.faults.takes_effect(self.fate.kind)

    def _later(self, not_before_ns: int, delay_ms: float, action: Callable[[], None]) -> int:
        """Schedule an arrival, after those before it. Return its time."""
        baton = self._network.baton
        at_ns = baton.now_ns + round((self._network.latency_ms() + delay_ms) * NS_PER_MS)
        at_ns = max(at_ns, not_before_ns)
        baton.call_after((at_ns - baton.now_ns) / NS_PER_MS, action)
        return at_ns

    # --- the server's side ----------------------------------------------------------------------

    def _read_by_server(self, data: bytes) -> None:
        if not self.is_alive:
            return  # the bytes vanish, and a half-open connection takes no more after a while
        network = self._network
        # The broker may have stopped while the bytes were under way.
        if not network.cluster.is_up(self.node_id):
            self.cut(Ending.RESET)
            return
        self._under_way -= len(data)
        fate = self.fate
        if fate.kind is ByteFault.SILENT:
            self._fault_takes_effect()
            return
        is_cut = fate.kind is ByteFault.REQUEST_CUT and self._read + len(data) >= fate.cut_at
        if is_cut:
            data = data[: max(0, fate.cut_at - self._read)]
        self._read += len(data)
        now_ms = network.baton.now_ms
        if self._sock.watch is not None:
            self._sock.watch.asks()
        answers = self._server.receive(data, now_ms)
        if answers:
            self._note_refused_login(len(answers))
        self._send(answers, now_ms)
        if self._is_foreign and self._server.is_closed:
            network.listeners.closes()
        # In order: the answers that were given before arrive before the end of the stream.
        if self._server.is_closed:
            self._back_ns = self._later(self._back_ns, 0.0, partial(self.cut, Ending.CLOSED))
        # Last: a request that was whole before the cut takes effect, and its answer is lost.
        if is_cut:
            self._fault_takes_effect()
            self.cut(fate.ending)

    def _note_refused_login(self, answer_count: int) -> None:
        # A refusal is the last answer. A broker that hangs up during a login sends none.
        is_last, refused_by = self._server.is_closed, self._logins.refused_by
        if refused_by is None or not (is_last or self._logins.asks_on):
            return
        if is_last or self._asked.login_messages == 1:
            is_renewal = self._asked.is_of_renewal(self.answered + answer_count - 1)
            self._network.refusals.sent(refused_by, is_renewal=is_renewal)
        # With each message, since the client decides after which one it gives up.
        self._login_is_refused()

    def _send(self, answers: Iterable[Answer], now_ms: int) -> None:
        """Send the broker's answers, changed as the fate of the connection has it."""
        fate = self.fate
        for answer in answers:
            frame = fate.changed(
                self.answered,
                answer.data,
                self._network.rng,
                is_of_renewal=self._asked.is_of_renewal(self.answered),
            )
            self.answered += 1
            slow_ms = fate.delay_ms if fate.kind is ByteFault.SLOW else 0.0
            wait_ms = max(0, answer.due_ms - now_ms) + slow_ms
            if self._is_foreign and self.answered > 1:
                wait_ms += self._network.listeners.late_ms  # of the reason for which it closes
            is_nonsense = frame != answer.data
            if slow_ms or is_nonsense:
                self._fault_takes_effect()
            if is_nonsense:
                self._login_is_refused()  # in a login it may look like that
            arrive = partial(self._arrive, frame, is_nonsense=is_nonsense)
            self._back_ns = self._later(self._back_ns, wait_ms, arrive)

    def _login_is_refused(self) -> None:
        if self._sock.watch is not None:
            self._sock.watch.login_refused(self.node_id)

    def _arrive(self, data: bytes, *, is_nonsense: bool) -> None:
        """Give bytes to the client, unless the connection has ended for it."""
        if self._is_deaf or self._sock.is_closed:
            return
        fate = self.fate
        if fate.kind is ByteFault.ANSWER_CUT and self._written + len(data) >= fate.cut_at:
            data = data[: max(0, fate.cut_at - self._written)]
            self._sock.arrived(data)
            self._fault_takes_effect()
            self.cut(fate.ending)
            return
        self._written += len(data)
        self._has_sent_nonsense |= is_nonsense
        key = self._asked.answered()
        watch = self._sock.watch
        is_of_the_core = not (is_nonsense or key in HANDSHAKE_KEYS)
        if watch is not None and key is not None and is_of_the_core:
            watch.answered(self.node_id, key)
        self._sock.arrived(data)
