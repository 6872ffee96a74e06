"""A `KafkaClient` on a simulated network: requests arrive after a delay, late, or never.

Why it exists: it stands between one producer's core and the modelled cluster, and adds the faults
of real networks.
Owns: `SimNetwork`, one for each producer process: its connections, and the requests and answers in
flight. Must not know: the meaning of requests.

Rules:
* A connection keeps the order of requests and of answers. It answers each request once, or dies.
* When a connection dies, its requests may have arrived or not. Some arrive later in their order,
  as if the broker had buffered them.
* A request without an answer after its time-out closes its connection, as in the real client.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from txnproducer._protocol.events import (
    Channel,
    ClientEvent,
    ClientRequest,
    ClientResponse,
    ConnectionEvent,
    ConnectionId,
    ConnectionState,
    ResponseFailure,
)
from txnproducer._protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    ApiKey,
    BrokerNode,
    DescribeTransactionsRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    MetadataRequest,
    ProduceResponse,
    Response,
    TxnOffsetCommitRequest,
)
from txnproducer._protocol.versions import FinalizedFeatures, NodeApiVersions
from txnproducer.config import ProducerConfig
from txnproducer.errors import AuthenticationError, IllegalStateError, UnsupportedVersionError
from txnproducer.records import ConsumerGroupMetadata, ProducerIdAndEpoch
from txnproducer.sim.world.faults import FaultKind
from txnproducer.sim.world.options import LATEST_MS
from txnproducer.sim.world.trace import show_message
from txnproducer.sim.world.wire_rules import WireRules
from txnproducer.sim.world.world import World

_FOR_EVER_MS = 1 << 40
_RECONNECT_MS = 20
_LATE_MS = (10, 1000, LATEST_MS)  # from the same transaction to long after several later ones
_SOON_MS = (30, 200, 1000)  # during the next transaction
_FIRST_WITH_GROUP_METADATA = 3
_OPENING = (AddPartitionsToTxnRequest, AddOffsetsToTxnRequest)  # begin a transaction of v1
_HARMLESS_WHEN_LATE = (MetadataRequest, FindCoordinatorRequest, DescribeTransactionsRequest)


class Link:
    """One connection through all its lives.

    Attributes:
        life: the number of its life. Requests and answers of an earlier life are ignored.
        in_flight: the requests without an answer, in order.
    """

    __slots__ = (
        "answered_ms",
        "arrived_ms",
        "in_flight",
        "is_connecting",
        "is_ready",
        "is_stalled",
        "late_ms",
        "life",
        "muted_until_ms",
        "retry_at_ms",
    )

    def __init__(self) -> None:
        self.life = 0
        self.is_ready = False
        self.is_connecting = False
        self.is_stalled = False
        self.retry_at_ms = 0
        self.muted_until_ms = 0
        self.arrived_ms = 0
        self.answered_ms = 0
        self.late_ms = 0
        self.in_flight: dict[int, ClientRequest] = {}


class SimNetwork:
    """The network of one producer process.

    Args:
        world: the clock, the cluster, the faults.
        name: the name of the producer process, for the trace.
        incarnation: the number of the producer under its id.
        rng: the randomness of this network alone.
        config: the settings of the producer.

    Attributes:
        inbox: the events that the core has not taken yet.
        on_event: called after an event is added to the inbox; set by the client.
        unreachable: the brokers that this process cannot reach.
        is_login_refused: whether all brokers refuse the login.
        refusing: single brokers that refuse the login.
        is_needed_login_refused: whether a broker that no other one can replace has refused the
            login.
    """

    def __init__(
        self,
        world: World,
        name: str,
        incarnation: int,
        rng: random.Random,
        config: ProducerConfig,
    ) -> None:
        self._world = world
        self._name = name
        self._incarnation = incarnation
        self._rng = rng
        self._max_in_flight = config.max_in_flight_requests_per_connection
        self._way_ms = world.options.network_ms
        self._nodes: dict[int, BrokerNode] = {}
        self._named: set[int] = set()  # the nodes that have not left the cluster
        self._links: dict[ConnectionId, Link] = {}
        self._offered: dict[int, NodeApiVersions] = {}
        self._features = FinalizedFeatures()
        self._is_closed = False
        self.inbox: list[ClientEvent] = []
        self.on_event: Callable[[], None] = _nothing
        self.unreachable: set[int] = set()
        self.is_login_refused = False
        self.refusing: set[int] = set()
        self.is_needed_login_refused = False
        # The brokers that a connection did not reach, or that refused one.
        self._missed: set[int] = set()
        self._rules = WireRules(name, world, config)

    @property
    def commits_in_doubt(self) -> int:
        """How many sent commits may have been executed without a clear answer."""
        return self._rules.commits_in_doubt

    def expect_member(self, metadata: ConsumerGroupMetadata) -> None:
        """Set the member of the group as which the application sends offsets."""
        self._rules.member = metadata

    @property
    def claims_asked(self) -> int:
        """How often its producer has asked for a claim."""
        return self._rules.claims_asked

    def take_over(self, producer: ProducerIdAndEpoch) -> None:
        """Set the identity under which the producer continues a transaction."""
        self._rules.take_over(producer)

    # --- KafkaClient ----------------------------------------------------------------------------

    def update_nodes(self, nodes: Iterable[BrokerNode]) -> None:
        """Note the addresses of some brokers."""
        for node in nodes:
            self._nodes[node.node_id] = node
            self._named.add(node.node_id)

    def replace_nodes(self, nodes: Iterable[BrokerNode]) -> None:
        """Note the addresses of all brokers. No new connection is made to others."""
        self._named = {node_id for node_id in self._named if node_id < 0}  # bootstrap addresses
        self.update_nodes(nodes)

    def _link(self, connection: ConnectionId) -> Link:
        link = self._links.get(connection)
        if link is None:
            link = self._links[connection] = Link()
        return link

    def is_ready(self, connection: ConnectionId, now_ms: int) -> bool:
        """Return whether a request can be sent now. Begin to connect if there is no connection."""
        link = self._link(connection)
        if link.is_ready:
            return len(link.in_flight) < self._max_in_flight and now_ms >= link.muted_until_ms
        is_possible = connection.node_id in self._named and not self._is_closed
        if is_possible and not link.is_connecting and now_ms >= link.retry_at_ms:
            self._connect(connection, link, now_ms)
        return False

    def is_connected(self, connection: ConnectionId) -> bool:
        """Return whether a connection is established."""
        link = self._links.get(connection)
        return link is not None and link.is_ready

    def ready_delay_ms(self, connection: ConnectionId, now_ms: int) -> int:
        """Return the time until a request may be possible."""
        link = self._link(connection)
        if link.is_ready:
            return max(0, link.muted_until_ms - now_ms) or _FOR_EVER_MS
        if link.is_connecting or connection.node_id not in self._named:
            return _FOR_EVER_MS
        return max(0, link.retry_at_ms - now_ms)

    def throttle_delay_ms(self, connection: ConnectionId, now_ms: int) -> int:
        """Return how long the broker throttles this client."""
        return max(0, self._link(connection).muted_until_ms - now_ms)

    def send(self, request: ClientRequest, now_ms: int) -> None:
        """Send a request, and draw its fault."""
        connection = request.connection
        if not self.is_ready(connection, now_ms):
            raise IllegalStateError(f"{connection} is not ready")
        if not self._world.faults.is_sent():
            # The sender cannot know whether a part of it was sent.
            self._rules.sent(request.body)
            self._rules.lost(request.body)
            raise OSError(f"{connection} does not take it")
        link = self._links[connection]
        if not self._can_carry(request):  # refused by the client: nothing goes over the wire
            error = UnsupportedVersionError("group metadata need TxnOffsetCommit v3")
            self._tell(ClientResponse(request, None, ResponseFailure.UNSUPPORTED_VERSION, error))
            return
        link.in_flight[request.correlation_id] = request
        world = self._world
        world.request_count += 1
        self._rules.sent(request.body)
        fate = world.faults.network_fate()
        delay_ms = 1 + self._rng.randrange(self._way_ms)
        if fate is not None:
            delay_ms = self._misdirect(link, fate, delay_ms)
        link.arrived_ms = max(link.arrived_ms, now_ms + delay_ms)  # TCP keeps the order
        life = link.life
        world.call_at(
            link.arrived_ms, lambda at_ms: self._arrive(request, link, life, fate, at_ms)
        )
        if link.is_stalled or fate is not None:  # any other request ends in time
            world.call_at(
                request.created_ms + request.timeout_ms,
                lambda at_ms: self._time_out(request, link, life, at_ms),
            )
        if world.trace.is_on:
            trouble = "" if fate is None else f"  ({fate.value})"
            world.trace.add(now_ms, self._name, f"-> {_show(request)}{trouble}")

    def _can_carry(self, request: ClientRequest) -> bool:
        """Return whether the broker offers a version that can carry a request."""
        body = request.body
        if not isinstance(body, TxnOffsetCommitRequest) or not body.has_group_metadata:
            return True
        newest = self._offered[request.connection.node_id].max_version(ApiKey.TXN_OFFSET_COMMIT)
        return newest is not None and newest >= _FIRST_WITH_GROUP_METADATA

    def _misdirect(self, link: Link, fate: FaultKind, delay_ms: int) -> int:
        if fate is FaultKind.STALLED:
            link.is_stalled = True
        elif fate is FaultKind.REQUEST_SLOW:
            self._world.faults.counts[fate] += 1
            return delay_ms + self._rng.randrange(3000)
        return delay_ms

    def least_loaded_node(self, now_ms: int) -> int | None:
        """Return the best broker for a request that any broker can answer."""
        best: tuple[bool, bool, int, float] | None = None
        best_id = None
        for node_id in self._nodes:
            if node_id not in self._named:
                continue
            link = self._link(ConnectionId(node_id))
            if link.is_ready:
                if now_ms < link.muted_until_ms or len(link.in_flight) >= self._max_in_flight:
                    continue
            elif now_ms < link.retry_at_ms:
                continue
            # As Java's `leastLoadedNode`: an open connection first, then the fewest requests.
            rank = (not link.is_ready, node_id < 0, len(link.in_flight), self._rng.random())
            if best is None or rank < best:
                best, best_id = rank, node_id
        return best_id

    def in_flight_count(self, connection: ConnectionId | None = None) -> int:
        """Return how many requests are without an answer."""
        if connection is not None:
            return len(self._link(connection).in_flight)
        return sum(len(link.in_flight) for link in self._links.values())

    def api_versions(self, node_id: int) -> NodeApiVersions | None:
        """Return the API versions that a broker offered."""
        return self._offered.get(node_id)

    def finalized_features(self) -> FinalizedFeatures:
        """Return the newest known features of the cluster."""
        return self._features

    @property
    def has_opening_on_its_way(self) -> bool:
        """Whether a request that can begin a transaction (v1) has no answer yet."""
        return any(
            isinstance(request.body, _OPENING)
            for link in self._links.values()
            for request in link.in_flight.values()
        )

    # --- connections ----------------------------------------------------------------------------

    def _connect(self, connection: ConnectionId, link: Link, now_ms: int) -> None:
        link.is_connecting = True
        delay_ms = 1 + self._rng.randrange(self._way_ms)
        life = link.life
        self._world.call_at(
            now_ms + delay_ms, lambda at_ms: self._connected(connection, link, life, at_ms)
        )

    def _connected(self, connection: ConnectionId, link: Link, life: int, now_ms: int) -> None:
        if self._is_closed or link.life != life:
            return
        link.is_connecting = False
        node_id, world = self._broker_of(connection), self._world
        if self.is_login_refused or node_id in self.refusing:
            is_one = not self.is_login_refused
            kind = FaultKind.LOGIN_REFUSED_BY_ONE if is_one else FaultKind.LOGIN_REFUSED
            world.faults.counts[kind] += 1
            is_coordinator = connection.channel is Channel.COORDINATOR
            # Only a broker that this producer can reach is one that it could ask instead.
            is_any_left = not self.is_login_refused and any(
                self._can_reach(other) and other not in self.refusing | self._missed
                for other in world.cluster.nodes
            )
            self.is_needed_login_refused |= is_coordinator or not is_any_left  # it has no stand-in
            self._die(connection, link, now_ms, state=ConnectionState.AUTHENTICATION_FAILED)
            return
        if connection.node_id not in self._named:  # the broker left the cluster meanwhile
            self._die(connection, link, now_ms)
            return
        if not self._can_reach(node_id):
            if node_id in self.unreachable:
                self._world.faults.counts[FaultKind.UNREACHABLE] += 1
            self._die(connection, link, now_ms)
            return
        link.is_ready = True
        link.is_stalled = False
        link.arrived_ms = link.answered_ms = now_ms  # the order of the last life is over
        cluster = self._world.cluster
        self._offered[connection.node_id] = cluster.api_versions(node_id)
        if cluster.features.epoch > self._features.epoch:  # older news must not undo it
            self._features = cluster.features
        self._tell(ConnectionEvent(connection, ConnectionState.READY))

    def _broker_of(self, connection: ConnectionId) -> int:
        """Return the broker at an address. A bootstrap address has a node id of its own."""
        return int(self._nodes[connection.node_id].host.partition("-")[2])

    def _can_reach(self, node_id: int) -> bool:
        return self._world.cluster.is_up(node_id) and node_id not in self.unreachable

    def _die(
        self,
        connection: ConnectionId,
        link: Link,
        now_ms: int,
        late: ClientRequest | None = None,
        state: ConnectionState = ConnectionState.DISCONNECTED,
    ) -> None:
        """Close a connection. Every request on it ends without an answer."""
        if not link.is_ready:
            # A producer excludes a broker that it did not reach, although it may be up again.
            self._missed.add(self._broker_of(connection))
        link.life += 1
        link.is_ready = link.is_connecting = False
        link.retry_at_ms = now_ms + _RECONNECT_MS + self._rng.randrange(_RECONNECT_MS)
        requests, link.in_flight = link.in_flight, {}
        if requests:  # an idle connection leaves no doubt
            self._world.history.shaken.add((self._name, self._incarnation))
        if self._world.trace.is_on:
            self._world.trace.add(now_ms, self._name, f"xx {_place(connection)} is gone")
        for request in requests.values():
            # Requests of one deadline time out together. The others only lose their connection.
            is_late = late is not None and (
                now_ms >= request.created_ms + request.timeout_ms or request is late
            )
            failure = ResponseFailure.TIMED_OUT if is_late else ResponseFailure.DISCONNECTED
            self._rules.lost(request.body)
            self._tell(ClientResponse(request, None, failure))
        error = None if state is ConnectionState.DISCONNECTED else AuthenticationError("refused")
        self._tell(ConnectionEvent(connection, state, error))

    def lose_node(self, node_id: int, now_ms: int) -> None:
        """Close every connection to a broker."""
        for connection, link in list(self._links.items()):
            if (link.is_ready or link.is_connecting) and self._broker_of(connection) == node_id:
                self._die(connection, link, now_ms)

    def close(self) -> list[ClientEvent]:
        """Close all connections. Requests in flight may still arrive, but no answer does.

        Returns:
            The failure of each request that was in flight, for a core that ends in good order.
        """
        self._is_closed = True
        ends: list[ClientEvent] = []
        for link in self._links.values():
            # Answers on their way belong to the old life, and are dropped when they come.
            link.life += 1
            link.is_ready = False
            failure = ResponseFailure.DISCONNECTED
            for request in link.in_flight.values():
                self._rules.lost(request.body)
                ends.append(ClientResponse(request, None, failure))
            link.in_flight.clear()
        return ends

    def _tell(self, event: ClientEvent) -> None:
        if not self._is_closed:
            self.inbox.append(event)
            self.on_event()

    # --- requests on their way ------------------------------------------------------------------

    def _arrive(
        self,
        request: ClientRequest,
        link: Link,
        life: int,
        fate: FaultKind | None,
        now_ms: int,
    ) -> None:
        if link.life != life:
            self._maybe_deliver_late(request, link, now_ms)
            return
        connection = request.connection
        node_id = self._broker_of(connection)
        faults = self._world.faults
        if fate is FaultKind.REQUEST_LOST or not self._can_reach(node_id):
            if fate is FaultKind.REQUEST_LOST:
                faults.counts[fate] += 1
            self._die(connection, link, now_ms)
            self._maybe_deliver_late(request, link, now_ms)
            return
        body = self._world.handle(node_id, request, self._name, now_ms)
        if link.is_stalled:  # handled, but never answered
            return
        delay_ms = 1 + self._rng.randrange(self._way_ms)
        if fate is FaultKind.ANSWER_SLOW:
            faults.counts[fate] += 1
            delay_ms += self._rng.randrange(3000)
        link.answered_ms = max(link.answered_ms, now_ms + delay_ms)
        self._world.call_at(
            link.answered_ms,
            lambda at_ms: self._answer(request, body, link, life, fate, at_ms),
        )

    def _answer(
        self,
        request: ClientRequest,
        body: Response,
        link: Link,
        life: int,
        fate: FaultKind | None,
        now_ms: int,
    ) -> None:
        if link.life != life:
            return
        # With its connection: TCP loses no single answer.
        if fate is FaultKind.ANSWER_LOST:
            self._world.faults.counts[fate] += 1
            self._die(request.connection, link, now_ms)
            return
        del link.in_flight[request.correlation_id]
        if fate is FaultKind.THROTTLED:
            self._world.faults.counts[fate] += 1
            link.muted_until_ms = now_ms + 1 + self._rng.randrange(500)
        if self._world.trace.is_on:
            self._world.trace.add(now_ms, self._name, f"<- {show_message(body)}")
        if fate is FaultKind.LEFT_OUT and isinstance(body, ProduceResponse) and body.partitions:
            self._world.faults.counts[fate] += 1
            body = body._replace(partitions=body.partitions[1:])
        self._rules.answered(request.body, body, request.connection.node_id)
        self._tell(ClientResponse(request, body))

    def _time_out(self, request: ClientRequest, link: Link, life: int, now_ms: int) -> None:
        if link.life == life and request.correlation_id in link.in_flight:
            self._world.faults.counts[FaultKind.STALLED] += link.is_stalled
            self._die(request.connection, link, now_ms, late=request)

    def _maybe_deliver_late(self, request: ClientRequest, link: Link, now_ms: int) -> None:
        """Let a request of a dead connection arrive after a delay, or never."""
        world = self._world
        options = world.options
        if not options.is_late_delivery_on or world.faults.is_healed:  # no fault after the healing
            return
        if not options.is_late_delivery_frequent and self._rng.random() < 0.5:
            return
        longest_ms = self._rng.choice(_SOON_MS if options.is_late_delivery_frequent else _LATE_MS)
        link.late_ms = max(link.late_ms, now_ms + 1 + self._rng.randrange(longest_ms))
        world.call_at(link.late_ms, lambda at_ms: self._arrive_late(request, at_ms))

    def _arrive_late(self, request: ClientRequest, now_ms: int) -> None:
        node_id = self._broker_of(request.connection)
        world = self._world
        if world.faults.is_healed or not world.cluster.is_up(node_id):
            return
        if not isinstance(request.body, _HARMLESS_WHEN_LATE):
            world.faults.counts[FaultKind.REQUEST_LATE] += 1
        if isinstance(request.body, _OPENING):
            world.history.late[request.body.transactional_id] += 1
        if isinstance(request.body, EndTxnRequest) and request.body.is_commit:
            world.history.late_commits[request.body.transactional_id] += 1
        if world.trace.is_on:
            world.trace.add(now_ms, self._name, f"~> {_show(request)}  (late)")
        world.handle(node_id, request, self._name, now_ms)  # nobody gets the answer


def _nothing() -> None:
    """Do nothing: the client is not connected yet."""


def _place(connection: ConnectionId) -> str:
    return f"{connection.node_id}/{connection.channel.name.lower()}"


def _show(request: ClientRequest) -> str:
    return f"{_place(request.connection)} #{request.correlation_id} {show_message(request.body)}"
