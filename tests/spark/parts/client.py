"""A producer's client, and its loop, on the broker model: no sockets, no threads of its own.

Owns: `PartsClient`, which carries messages to the model, one at a time; `InlineIo`, which runs the
loop of a producer on the thread that waits for it. Must not know: what the requests are about.

Rules:
* A request is handled when its turn comes, after a delay. Before each of them the world may let
  the thread stand still, or kill its process.
* The requests of a connection keep their order; those of others may overtake them.
* An answer that is lost takes its connection with it. A request that is lost with its connection
  may still arrive later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tests.spark.parts.world import Fate, World, present
from txnproducer._protocol.events import (
    ClientEvent,
    ClientRequest,
    ClientResponse,
    ConnectionEvent,
    ConnectionId,
    ConnectionState,
    ResponseFailure,
)
from txnproducer._protocol.messages import BrokerNode
from txnproducer._protocol.versions import FinalizedFeatures, NodeApiVersions
from txnproducer._shell.arguments import seconds
from txnproducer._shell.driven import DrivenCore
from txnproducer._shell.io_thread import IoThread
from txnproducer.config import ProducerConfig

_FOR_EVER_MS = 1 << 40
_RETRY_MS = 20


class PartsClient:
    """The client of one producer. See `ports.KafkaClient` and `driven.PolledClient`.

    Args:
        config: of the producer.
        others: what a real client needs beside it.
    """

    def __init__(self, config: ProducerConfig, *others: object, **more: object) -> None:
        del others, more
        self._world: World = present()
        self._most = config.max_in_flight_requests_per_connection
        self._nodes = {
            -1 - number: BrokerNode(-1 - number, host, port)
            for number, (host, port) in enumerate(config.bootstrap_addresses)
        }
        self._ready: set[ConnectionId] = set()
        self._connecting: list[ConnectionId] = []
        self._retry_ms: dict[ConnectionId, int] = {}
        self._queue: list[ClientRequest] = []
        self._events: list[ClientEvent] = []
        self._offered: dict[int, NodeApiVersions] = {}
        self._features = FinalizedFeatures()

    # --- for the core ---------------------------------------------------------------------------

    def update_nodes(self, nodes: Iterable[BrokerNode]) -> None:
        self._nodes.update({node.node_id: node for node in nodes})

    replace_nodes = update_nodes

    def is_ready(self, connection: ConnectionId, now_ms: int) -> bool:
        if connection in self._ready:
            return self.in_flight_count(connection) < self._most
        if (
            connection not in self._connecting
            and connection.node_id in self._nodes
            and now_ms >= self._retry_ms.get(connection, 0)
        ):
            self._connecting.append(connection)
        return False

    def is_connected(self, connection: ConnectionId) -> bool:
        return connection in self._ready

    def ready_delay_ms(self, connection: ConnectionId, now_ms: int) -> int:
        if connection in self._ready or connection in self._connecting:
            return _FOR_EVER_MS
        return max(0, self._retry_ms.get(connection, 0) - now_ms)

    def throttle_delay_ms(self, connection: ConnectionId, now_ms: int) -> int:
        del connection, now_ms
        return 0

    def send(self, request: ClientRequest, now_ms: int) -> None:
        assert self.is_ready(request.connection, now_ms)
        self._queue.append(request)

    def least_loaded_node(self, now_ms: int) -> int | None:
        def rank(node_id: int) -> tuple[bool, bool, int, int]:
            connection = ConnectionId(node_id)
            is_idle = connection in self._ready
            return not is_idle, node_id < 0, self.in_flight_count(connection), node_id

        usable = [
            node_id
            for node_id in self._nodes
            if ConnectionId(node_id) in self._ready
            or now_ms >= self._retry_ms.get(ConnectionId(node_id), 0)
        ]
        return min(usable, key=rank, default=None)

    def in_flight_count(self, connection: ConnectionId | None = None) -> int:
        if connection is None:
            return len(self._queue)
        return sum(request.connection == connection for request in self._queue)

    def api_versions(self, node_id: int) -> NodeApiVersions | None:
        return self._offered.get(node_id)

    def finalized_features(self) -> FinalizedFeatures:
        return self._features

    # --- for the loop ---------------------------------------------------------------------------

    def wakeup(self) -> None:
        """Do nothing: the thread that would be woken is the one that calls."""

    def hurry(self) -> None:
        """Do nothing: no attempt to connect hangs."""

    def close(self) -> None:
        self._end(self._ready, late=True)
        self._connecting.clear()

    def poll(self, timeout_ms: int, now_ms: int) -> list[ClientEvent]:
        """Move one connection or one request on, or let the time pass."""
        del now_ms
        if not self._events:
            if self._connecting:
                self._connect(self._connecting.pop(0))
            elif self._queue:
                self._deliver(self._next())
            else:
                self._world.rest(timeout_ms / 1000)
        events, self._events = self._events, []
        return events

    def _connect(self, connection: ConnectionId) -> None:
        world = self._world
        world.on_the_way()
        node = self._broker_of(connection)
        self._offered[connection.node_id] = world.cluster.api_versions(node)
        self._features = world.cluster.features
        self._ready.add(connection)
        self._events.append(ConnectionEvent(connection, ConnectionState.READY))

    def _broker_of(self, connection: ConnectionId) -> int:
        return int(self._nodes[connection.node_id].host.partition("-")[2])

    def _next(self) -> ClientRequest:
        """Return a request that is the first one of its connection."""
        first: dict[ConnectionId, ClientRequest] = {}
        for request in self._queue:
            first.setdefault(request.connection, request)
        return self._world.network_rng.choice(list(first.values()))

    def _deliver(self, request: ClientRequest) -> None:
        world = self._world
        node = self._broker_of(request.connection)
        fate = world.fate_of(node, request.body)
        world.on_the_way()
        if fate is Fate.LOST:
            self._end({request.connection}, late=True)
            return
        answer = world.handle(node, request.body)
        if fate is Fate.ANSWER_LOST or world.is_out_of_reach(node):
            self._queue.remove(request)
            self._fail(request)
            self._end({request.connection}, late=True)
            return
        world.on_the_way()
        self._queue.remove(request)
        self._events.append(ClientResponse(request, answer))

    def _end(self, connections: Iterable[ConnectionId], *, late: bool) -> None:
        """End connections. Their requests may still arrive."""
        gone = set(connections)
        lost = [request for request in self._queue if request.connection in gone]
        self._queue = [request for request in self._queue if request.connection not in gone]
        for request in lost:
            if late:
                self._world.maybe_late(self._broker_of(request.connection), request.body)
            self._fail(request)
        for connection in sorted(gone & self._ready):
            self._ready.discard(connection)
            self._retry_ms[connection] = self._world.baton.now_ms + _RETRY_MS
            self._events.append(ConnectionEvent(connection, ConnectionState.DISCONNECTED))

    def _fail(self, request: ClientRequest) -> None:
        self._events.append(ClientResponse(request, None, ResponseFailure.DISCONNECTED))


class InlineIo(IoThread):
    """The loop of a producer without its thread: the thread that waits takes its steps."""

    _due_ms = 0

    def start(self, core: DrivenCore) -> None:
        self._core = core

    @property
    def is_current(self) -> bool:
        return False

    def poke(self) -> None:
        self._due_ms = 0

    def wait_until(self, is_done: Callable[[], bool], timeout_s: float | None) -> bool:
        deadline_s = self.platform.monotonic_s() + seconds(timeout_s)
        while True:
            with self.lock:
                if is_done():
                    return True
            left_s = deadline_s - self.platform.monotonic_s()
            if left_s <= 0 or self._has_stopped:
                return False
            self._step(left_s)

    def _step(self, left_s: float) -> None:
        due = self._turn(self._driven, min(self._due_ms, max(1, round(min(left_s, 1e6) * 1000))))
        if due is None:
            self._end()
        else:
            self._due_ms = due
