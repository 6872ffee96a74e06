"""Requests about many transactional ids at once, each to its coordinator.

Why it exists: a driver takes and ends hundreds of ids. One after the other, each of them costs a
round trip, and a producer for each of them costs a thread and two connections.

Owns: the requests on their way, the coordinators' addresses, retries. Must not know: threads,
sockets, the use of an id.

Rules:
* A broker answers the requests of one connection one after the other. So a coordinator gets up to
  eight connections, as many as its requests need.
* Coordinators are found by the leaders of the topics that hold their state, with one request for
  all ids and groups. That is a guess. If it is wrong, or a topic may not be seen, FindCoordinator
  decides.
* Every request may be repeated. A lost InitProducerId only costs an epoch, and a repeated EndTxn
  under the same identity is answered like the first (KIP-98, KIP-890). (An offset with
  transactions v1 is the exception, see `OffsetRequest`.)
* A broker may refuse EndTxn from its memory alone. Such a refusal counts when the same broker
  repeats it (see `EndTxnHandler`).
* The deadline is the caller's. A request that was given up is not repeated, and its answer is
  dropped.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from txnproducer._core.metadata import NEVER_MS
from txnproducer._core.ports import first_try_delay_ms
from txnproducer._protocol.events import (
    ClientEvent,
    ClientResponse,
    ConnectionEvent,
    ConnectionId,
    ConnectionState,
    ResponseFailure,
    data_connection,
)
from txnproducer._protocol.messages import (
    BrokerNode,
    CoordinatorType,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
    Request,
)
from txnproducer._shell.asking_core import AskingCore
from txnproducer._shell.refusals import of_another_cluster
from txnproducer._wire.network_client import NetworkClient
from txnproducer._wire.platform import Platform
from txnproducer.admin import GROUP_TOPIC, TRANSACTION_TOPIC, java_hash
from txnproducer.config import ProducerConfig
from txnproducer.errors import (
    AuthenticationError,
    DisconnectError,
    ErrorCode,
    KafkaError,
    RetriableError,
    error_for_code,
)
from txnproducer.spark.ledger.broker_lanes import BrokerLanes, Waiting, node_of
from txnproducer.spark.ledger.id_requests import Answer, IdRequest, Next, Place

_LOG = logging.getLogger(__name__)
_TOPICS: Final = {
    CoordinatorType.TRANSACTION: TRANSACTION_TOPIC,
    CoordinatorType.GROUP: GROUP_TOPIC,
}


class CoordinatorSteps(AskingCore):
    """The steps of all requests, which an I/O thread drives like a core.

    Args:
        config: of the producers of the ids.
        client: carries the requests.
        platform: has the source of the jitter.

    Attributes:
        cluster_id: the cluster's; None until it is known.
        is_closed: whether the loop may end.
    """

    def __init__(self, config: ProducerConfig, client: NetworkClient, platform: Platform) -> None:
        super().__init__(config, client, platform)
        self.cluster_id: str | None = None
        self._brokers: dict[int, BrokerLanes] = {}
        self._coordinators: dict[Place, int] = {}
        # By partition of the topic; empty until it was asked for, and where it may not be seen.
        self._leaders: dict[CoordinatorType, list[int]] = {}
        self._is_asking = self._has_asked = False
        self._lost: Waiting = deque()  # their coordinators are not known
        self._resting: list[tuple[int, IdRequest]] = []  # with the time of the next attempt

    @property
    def last_failures(self) -> Sequence[KafkaError]:
        """The last failure of each address that cannot be reached, for the text of a time-out."""
        return self._tries.last

    def add(self, requests: Iterable[IdRequest]) -> None:
        """Queue requests."""
        for request in requests:
            if request.place not in self._coordinators:
                self._guess(request.place)
            self._place(request)

    def _place(self, request: IdRequest) -> None:
        lease, own_id = request.lease, self.cluster_id
        # Nothing is sent before the cluster's id has come, unless the cluster has none.
        if own_id and lease is not None and lease.cluster_id not in (None, own_id):
            request.fail(of_another_cluster(lease, own_id))
            return
        node_id = self._coordinators.get(request.place)
        if node_id is None:
            self._lost.append(request)
        else:
            self._brokers[node_id].waiting.append(request)

    # --- the steps ------------------------------------------------------------------------------

    def run_once(self, now_ms: int) -> int:
        """Send all requests that have a connection. Return the milliseconds to the next step."""
        self._requests.end_unsent(now_ms)
        self._wake(now_ms)
        due_ms = self._find(now_ms) if self._lost else NEVER_MS
        for broker in self._brokers.values():
            if broker.waiting:
                due_ms = min(due_ms, self._send_waiting(broker, now_ms))
        if self._resting:
            due_ms = min(due_ms, min(at_ms for at_ms, _ in self._resting) - now_ms)
        return 0 if self._requests.unsent else max(0, due_ms)

    def _wake(self, now_ms: int) -> None:
        resting, self._resting = self._resting, []
        for at_ms, request in resting:
            if request.is_over:
                continue
            if now_ms >= at_ms:
                self._place(request)
            else:
                self._resting.append((at_ms, request))

    def _find(self, now_ms: int) -> int:
        """Look coordinators up. Return the milliseconds until it is worth going on."""
        if not self._has_asked:
            return NEVER_MS if self._is_asking else self._ask_for_leaders(now_ms)
        self._open_lanes(len(self._lost), now_ms)
        while self._lost:
            request = self._lost[0]
            if request.is_over:
                self._lost.popleft()
                continue
            connection = self._any_connection(now_ms)
            if connection is None:
                return first_try_delay_ms(self._client, self._metadata.node_ids, now_ms)
            if not self._client.is_ready(connection, now_ms):
                return max(1, self._client.ready_delay_ms(connection, now_ms))
            self._lost.popleft()
            find = FindCoordinatorRequest(request.place.key, request.place.kind)
            self._send(connection, find, request, now_ms)
        return NEVER_MS

    def _ask_for_leaders(self, now_ms: int) -> int:
        connection = self._any_connection(now_ms)
        if connection is None:
            return first_try_delay_ms(self._client, self._metadata.node_ids, now_ms)
        if not self._client.is_ready(connection, now_ms):
            return max(1, self._client.ready_delay_ms(connection, now_ms))
        self._is_asking = True
        # Brokers create these topics by themselves, with as many partitions as they are set to.
        ask = MetadataRequest(tuple(_TOPICS.values()), allow_auto_topic_creation=False)
        self._requests.send(connection, ask, self._on_leaders, now_ms)
        return NEVER_MS

    def _any_connection(self, now_ms: int) -> ConnectionId | None:
        node_id = self._client.least_loaded_node(now_ms)
        return None if node_id is None else data_connection(node_id)

    def _open_lanes(self, count: int, now_ms: int) -> None:
        """Begin to connect, so that look-ups are spread over the brokers."""
        for broker in self._brokers.values():
            self._widen(broker, -(-count // len(self._brokers)))
            for connection in broker.connections:
                self._client.is_ready(connection, now_ms)

    def _widen(self, broker: BrokerLanes, count: int) -> None:
        """Let a broker have the connections that a number of requests needs."""
        for node in broker.widen(count):
            self._announce(node)

    def _send_waiting(self, broker: BrokerLanes, now_ms: int) -> int:
        """Send a broker's requests, one for each connection in turn."""
        client, waiting = self._client, broker.waiting
        self._widen(broker, len(waiting))
        lanes = broker.connections
        # Every lane is asked once: that begins to connect those that are not.
        while ready := [lane for lane in lanes if client.is_ready(lane, now_ms)]:
            for connection in ready:
                while waiting and waiting[0].is_over:
                    waiting.popleft()
                if not waiting:
                    return NEVER_MS
                request = waiting.popleft()
                self._send(connection, request.begin_attempt(broker.node.node_id), request, now_ms)
            lanes = ready
        return max(1, min(client.ready_delay_ms(lane, now_ms) for lane in lanes))

    def _send(
        self, connection: ConnectionId, body: Request, request: IdRequest, now_ms: int
    ) -> None:
        def on_end(response: ClientResponse, now_ms: int) -> None:
            self._on_end(request, response, now_ms)

        self._requests.send(connection, body, on_end, now_ms)

    def _know(self, node: BrokerNode) -> None:
        """Note a broker's address, for all of its connections."""
        broker = self._brokers.setdefault(node.node_id, BrokerLanes(node))
        broker.node = node
        for each in broker.nodes:
            self._announce(each)

    # --- answers --------------------------------------------------------------------------------

    def handle(self, event: ClientEvent, now_ms: int) -> None:
        """Take in an answer, or news of a connection."""
        if isinstance(event, ClientResponse):
            self._requests.handle(event, now_ms)
        elif not self.is_closed:  # the end of the client is no failed try
            self._handle_connection_event(event, now_ms)

    def _on_leaders(self, response: ClientResponse, now_ms: int) -> None:  # noqa: ARG002
        self._is_asking = False
        body = response.body
        if not isinstance(body, MetadataResponse):
            return  # the connection was lost, and the next step asks again
        self._has_asked = True
        self.cluster_id = body.cluster_id
        for node in body.brokers:
            self._know(node)
        partitions = {topic.topic: topic.partitions for topic in body.topics}
        for kind, topic in _TOPICS.items():
            leaders = {each.partition: each.leader_id for each in partitions.get(topic, ())}
            # With a gap the partitions could not be counted, and their number decides.
            if leaders.keys() == set(range(len(leaders))):
                self._leaders[kind] = [leaders[number] for number in range(len(leaders))]
        lost, self._lost = self._lost, deque()
        for request in lost:
            self._guess(request.place)
            self._place(request)

    def _guess(self, place: Place) -> None:
        """Assume the leader of an id's, or a group's, partition to be its coordinator."""
        leaders = self._leaders.get(place.kind)
        if not leaders:
            return
        leader = leaders[(java_hash(place.key) & 0x7FFFFFFF) % len(leaders)]
        if leader in self._brokers:
            self._coordinators[place] = leader

    def _on_end(self, request: IdRequest, response: ClientResponse, now_ms: int) -> None:
        body = response.body
        if isinstance(body, FindCoordinatorResponse):
            self._on_found(request, body, now_ms)
        elif isinstance(body, Answer):
            self._act(request, request.take(body, self._retry_backoff_ms), now_ms)
        else:
            self._on_failure(request, response, now_ms)

    def _on_found(self, request: IdRequest, body: FindCoordinatorResponse, now_ms: int) -> None:
        # One id was asked about, and to pick an answer would be a guess.
        found = body.coordinators[0] if len(body.coordinators) == 1 else None
        code = ErrorCode.UNKNOWN_SERVER_ERROR if found is None else found.error_code
        if found is not None and code == ErrorCode.NONE:
            self._know(found.node)
            self._coordinators[request.place] = found.node.node_id
            self._place(request)
            return
        error = error_for_code(code)
        if isinstance(error, RetriableError):
            self._retry(request, error, now_ms)
        else:
            request.fail(error)

    def _on_failure(self, request: IdRequest, response: ClientResponse, now_ms: int) -> None:
        failure = response.failure or ResponseFailure.DISCONNECTED
        error = response.error or DisconnectError(failure.name)
        if failure.was_sent:
            request.note_lost(response.request.body)
            self._retry(request, error, now_ms)
        else:
            request.fail(error)

    def _act(self, request: IdRequest, then: Next, now_ms: int) -> None:
        """Take the step after an answer. There is none if the request has ended with it."""
        if then.goes_on:
            self.add([request])
        if then.error is None:
            return
        if not then.looks_up:
            self._rest(request, then.error, then.wait_ms, now_ms)
        else:
            self._retry(request, then.error, now_ms)

    def _retry(self, request: IdRequest, error: KafkaError, now_ms: int) -> None:
        """Try again after a while, at the coordinator that is looked up then."""
        self._coordinators.pop(request.place, None)
        self._rest(request, error, self._backoff.draw_ms(request.failures), now_ms)

    def _rest(self, request: IdRequest, error: KafkaError, wait_ms: int, now_ms: int) -> None:
        _LOG.debug("asking again about %r: %s", request.transactional_id, error)
        request.note_failure(error)
        self._resting.append((now_ms + wait_ms, request))

    # --- connections ----------------------------------------------------------------------------

    def _handle_connection_event(self, event: ConnectionEvent, now_ms: int) -> None:
        self._refusals.handle_connection_event(event)
        self._tries.handle_connection_event(event, now_ms)
        if event.state is ConnectionState.READY:
            return
        is_refused = event.state is ConnectionState.AUTHENTICATION_FAILED
        error = event.error or (AuthenticationError() if is_refused else DisconnectError())
        if self._tries.has_no_host and not self._brokers:
            self._fail(self._lost, self._tries.no_host_error())
        elif is_refused and self._refusals.leave_none:
            self._fail(self._lost, error)
        broker = self._brokers.get(node_of(event.connection))
        if broker is None:
            return
        if is_refused:
            self._fail(broker.waiting, error)
        elif not any(map(self._client.is_connected, broker.connections)):
            # Another broker may be the coordinator since.
            waiting, broker.waiting = broker.waiting, deque()
            for request in waiting:
                self._retry(request, error, now_ms)

    def _fail(self, waiting: Waiting, error: KafkaError) -> None:
        for request in waiting:
            request.fail(error)
        waiting.clear()
