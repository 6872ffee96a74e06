"""The modelled cluster under a producer's I/O thread: real threads, real time, no sockets.

A request arrives, is answered and comes back as soon as the loop polls, unless a test has planned
a fault for it. Connections keep their order, both ways, and answer each request once, or die.
"""

from __future__ import annotations

import heapq
import itertools
import select
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto

from txnproducer._broker import handlers
from txnproducer._broker.cluster import BrokerCluster
from txnproducer._protocol.events import (
    ClientEvent,
    ClientRequest,
    ClientResponse,
    ConnectionEvent,
    ConnectionId,
    ConnectionState,
    ResponseFailure,
)
from txnproducer._protocol.messages import API_KEY_OF, ApiKey, BrokerNode
from txnproducer._protocol.versions import FinalizedFeatures, NodeApiVersions
from txnproducer._wire.platform import SYSTEM
from txnproducer._wire.wakeup import Wakeup
from txnproducer.errors import IllegalStateError

FOR_EVER_MS = 1 << 40
RECONNECT_MS = 2
MAX_IN_FLIGHT = 5
LONGEST_SLEEP_MS = 1 << 20
LONGEST_SETTLING_MS = 20 * 60_000


class RequestFault(Enum):
    """A fault that a test can plan for a request."""

    LOST = auto()  # its connection is cut before it arrives
    ANSWER_LOST = auto()  # its connection is cut when it has been executed
    LATE = auto()  # its connection is cut, and it arrives all the same, later
    SLOW = auto()  # it takes its time to arrive
    ANSWER_SLOW = auto()  # its answer takes its time
    STALLED = auto()  # it never arrives, and nobody says so: it times out


class ModelTime:
    """The real time, counted from 0: the cluster would have to catch up with an older clock."""

    def __init__(self) -> None:
        self._start_ms = SYSTEM.monotonic_ms()

    def now_ms(self) -> int:
        return SYSTEM.monotonic_ms() - self._start_ms

    def of(self, now_ms: int) -> int:
        return now_ms - self._start_ms


@dataclass
class ModelLink:
    """One connection. Its `life` counts up when it dies."""

    life: int = 0
    is_ready: bool = False
    is_connecting: bool = False
    retry_at_ms: int = 0
    arrived_ms: int = 0
    answered_ms: int = 0


class ModelClient:
    """The modelled cluster as a `KafkaClient`.

    Args:
        cluster: the model.
        clock: the cluster's.
        lock: guards the cluster, which other clients and the test use as well.

    Attributes:
        happened: how often each fault took effect.
        is_closed: whether the I/O thread has closed it.
    """

    def __init__(self, cluster: BrokerCluster, clock: ModelTime, lock: threading.RLock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._lock = lock
        self._nodes: dict[int, BrokerNode] = {}
        self._named: set[int] = set()  # those of them that have not left the cluster
        self._links: dict[ConnectionId, ModelLink] = {}
        self._offered: dict[int, NodeApiVersions] = {}
        self._features = FinalizedFeatures()
        self._in_flight: dict[int, ClientRequest] = {}
        self._planned: list[tuple[ApiKey | None, RequestFault, int]] = []
        self._due: list[tuple[int, int, Callable[[int], None]]] = []
        self._order = itertools.count()
        self._events: list[ClientEvent] = []
        # The real one: of a `threading.Event` an interrupt could leave the lock held.
        self._wakeup = Wakeup()
        self.happened: Counter[RequestFault] = Counter()
        self.is_closed = False

    # --- faults, from any thread ----------------------------------------------------------------

    def plan(self, fault: RequestFault, kind: ApiKey | None = None, delay_ms: int = 20) -> None:
        """Let the next request (of a kind) meet with a fault."""
        with self._lock:
            self._planned.append((kind, fault, delay_ms))

    def cut(self, node_id: int) -> None:
        """Cut every connection to a broker."""
        with self._lock:
            now_ms = SYSTEM.monotonic_ms()
            for connection, link in self._links.items():
                if link.is_ready and self._broker_of(connection) == node_id:
                    self._die(connection, link, now_ms)
        self.wakeup()

    def heal(self) -> None:
        """Forget the faults that nothing has met yet."""
        with self._lock:
            self._planned.clear()

    # --- the loop's calls -----------------------------------------------------------------------

    def poll(self, timeout_ms: int, now_ms: int) -> list[ClientEvent]:
        with self._lock:
            if not self._events:
                timeout_ms = min(timeout_ms, self._next_due_ms() - now_ms)
        if timeout_ms > 0 and not self._events:
            select.select([self._wakeup], [], [], min(timeout_ms, LONGEST_SLEEP_MS) / 1000)
        self._wakeup.clear()
        with self._lock:
            self._run_due(SYSTEM.monotonic_ms())
            events, self._events = self._events, []
            return events

    def _next_due_ms(self) -> int:
        return self._due[0][0] if self._due else FOR_EVER_MS

    def _run_due(self, now_ms: int) -> None:
        self._cluster.advance(self._clock.of(now_ms))
        # Calls put off while this runs wait for the next turn, even if they are due at once.
        end = next(self._order)
        while self._due and self._due[0][:2] <= (now_ms, end):
            heapq.heappop(self._due)[2](now_ms)

    def wakeup(self) -> None:
        self._wakeup.set()

    def hurry(self) -> None:
        """Do nothing: its connections are made at once, or not at all."""

    def close(self) -> None:
        with self._lock:
            self.is_closed = True
            for connection, link in self._links.items():
                self._die(connection, link, SYSTEM.monotonic_ms())
            self._events.clear()

    def _at(self, due_ms: int, action: Callable[[int], None]) -> None:
        heapq.heappush(self._due, (due_ms, next(self._order), action))

    def settle(self) -> None:
        """Deliver all that is on its way, and end every transaction. Close the client before.

        The time is not waited for: it passes in the cluster alone.
        """
        with self._lock:
            now_ms = SYSTEM.monotonic_ms()
            last_ms = now_ms + LONGEST_SETTLING_MS
            while self._due:
                now_ms = max(now_ms, self._due[0][0])
                assert now_ms <= last_ms, "requests go on for ever"
                self._run_due(now_ms)
            last_ms = self._clock.of(last_ms)
            while self._cluster.open_transactions:
                now_ms = self._cluster.next_event_ms()
                assert now_ms <= last_ms, f"{self._cluster.open_transactions} stay open"
                self._cluster.advance(now_ms)

    # --- KafkaClient ----------------------------------------------------------------------------

    def update_nodes(self, nodes: Iterable[BrokerNode]) -> None:
        with self._lock:
            for node in nodes:
                self._nodes[node.node_id] = node
                self._named.add(node.node_id)

    def replace_nodes(self, nodes: Iterable[BrokerNode]) -> None:
        with self._lock:
            self._named = {node_id for node_id in self._named if node_id < 0}
            self.update_nodes(nodes)

    def is_ready(self, connection: ConnectionId, now_ms: int) -> bool:
        with self._lock:
            link = self._link(connection)
            if link.is_ready:
                return self.in_flight_count(connection) < MAX_IN_FLIGHT
            is_named = connection.node_id in self._named
            if is_named and not link.is_connecting and now_ms >= link.retry_at_ms:
                link.is_connecting = True
                self._at(now_ms, lambda at_ms: self._connect(connection, link, at_ms))
            return False

    def is_connected(self, connection: ConnectionId) -> bool:
        with self._lock:
            return self._link(connection).is_ready

    def ready_delay_ms(self, connection: ConnectionId, now_ms: int) -> int:
        with self._lock:
            link = self._link(connection)
            if link.is_ready or link.is_connecting or connection.node_id not in self._named:
                return FOR_EVER_MS
            return max(0, link.retry_at_ms - now_ms)

    def throttle_delay_ms(self, connection: ConnectionId, now_ms: int) -> int:
        return 0

    def send(self, request: ClientRequest, now_ms: int) -> None:
        with self._lock:
            if not self.is_ready(request.connection, now_ms):
                raise IllegalStateError(f"{request.connection} is not ready")
            self._in_flight[request.correlation_id] = request
            link = self._link(request.connection)
            fault, delay_ms = self._fault_for(API_KEY_OF[type(request.body)])
            is_slow = fault in (RequestFault.SLOW, RequestFault.LATE)
            link.arrived_ms = max(link.arrived_ms, now_ms + (delay_ms if is_slow else 0))
            life = link.life
            if fault is RequestFault.STALLED:
                self._at(
                    now_ms + request.timeout_ms,
                    lambda at_ms: self._time_out(request, link, life, at_ms),
                )
            elif fault is RequestFault.LATE:
                self._die(request.connection, link, now_ms)
                self._at(now_ms + delay_ms, lambda at_ms: self._arrive_late(request, at_ms))
            else:
                self._at(
                    link.arrived_ms,
                    lambda at_ms: self._arrive(request, link, life, fault, delay_ms, at_ms),
                )

    def _fault_for(self, kind: ApiKey) -> tuple[RequestFault | None, int]:
        for number, (wanted, fault, delay_ms) in enumerate(self._planned):
            if wanted in (None, kind):
                del self._planned[number]
                self.happened[fault] += 1
                return fault, delay_ms
        return None, 0

    def least_loaded_node(self, now_ms: int) -> int | None:
        with self._lock:
            usable: list[tuple[bool, bool, int, int]] = []
            for node_id in sorted(self._named):
                connection = ConnectionId(node_id)
                link, count = self._link(connection), self.in_flight_count(connection)
                if count < MAX_IN_FLIGHT if link.is_ready else now_ms >= link.retry_at_ms:
                    usable.append((not link.is_ready, node_id < 0, count, node_id))
            return min(usable)[-1] if usable else None

    def in_flight_count(self, connection: ConnectionId | None = None) -> int:
        with self._lock:
            requests = self._in_flight.values()
            return sum(connection in (None, request.connection) for request in requests)

    def api_versions(self, node_id: int) -> NodeApiVersions | None:
        with self._lock:
            return self._offered.get(node_id)

    def finalized_features(self) -> FinalizedFeatures:
        with self._lock:
            return self._features

    # --- connections ----------------------------------------------------------------------------

    def _link(self, connection: ConnectionId) -> ModelLink:
        return self._links.setdefault(connection, ModelLink())

    def _broker_of(self, connection: ConnectionId) -> int:
        """Return the broker at an address: a bootstrap address has an id of its own."""
        return int(self._nodes[connection.node_id].host.partition("-")[2])

    def _connect(self, connection: ConnectionId, link: ModelLink, now_ms: int) -> None:
        node_id = self._broker_of(connection)
        if self.is_closed or not self._cluster.is_up(node_id):
            self._die(connection, link, now_ms)
            return
        link.is_connecting, link.is_ready = False, True
        self._offered[connection.node_id] = self._cluster.api_versions(node_id)
        if self._cluster.features.epoch > self._features.epoch:
            self._features = self._cluster.features
        self._events.append(ConnectionEvent(connection, ConnectionState.READY))

    def _die(
        self,
        connection: ConnectionId,
        link: ModelLink,
        now_ms: int,
        failure: ResponseFailure = ResponseFailure.DISCONNECTED,
    ) -> None:
        link.life += 1
        link.is_ready = link.is_connecting = False
        link.retry_at_ms = now_ms + RECONNECT_MS
        for request in list(self._in_flight.values()):
            if request.connection == connection:
                del self._in_flight[request.correlation_id]
                self._events.append(ClientResponse(request, None, failure))
        self._events.append(ConnectionEvent(connection, ConnectionState.DISCONNECTED))

    # --- requests on their way ------------------------------------------------------------------

    def _arrive(
        self,
        request: ClientRequest,
        link: ModelLink,
        life: int,
        fault: RequestFault | None,
        delay_ms: int,
        now_ms: int,
    ) -> None:
        if link.life != life:
            return
        node_id = self._broker_of(request.connection)
        if fault is RequestFault.LOST or not self._cluster.is_up(node_id):
            self._die(request.connection, link, now_ms)
            return
        body = handlers.handle(self._cluster, node_id, request.body, self._clock.of(now_ms))
        if fault is RequestFault.ANSWER_LOST:
            self._die(request.connection, link, now_ms)
            return

        def answer(_: int) -> None:
            if link.life == life:
                del self._in_flight[request.correlation_id]
                self._events.append(ClientResponse(request, body))

        is_slow = fault is RequestFault.ANSWER_SLOW
        link.answered_ms = max(link.answered_ms, now_ms + (delay_ms if is_slow else 0))
        self._at(link.answered_ms, answer)

    def _time_out(self, request: ClientRequest, link: ModelLink, life: int, now_ms: int) -> None:
        if link.life == life:
            self._die(request.connection, link, now_ms, ResponseFailure.TIMED_OUT)

    def _arrive_late(self, request: ClientRequest, now_ms: int) -> None:
        node_id = self._broker_of(request.connection)
        if self._cluster.is_up(node_id):
            handlers.handle(self._cluster, node_id, request.body, self._clock.of(now_ms))
