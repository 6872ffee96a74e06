"""A `KafkaClient` that follows a script: no sockets, a clock moved by hand, prepared answers.

Why it exists: the core is tested whole, against exact answers and exact troubles (an error code, a
lost connection, no answer at all, a late one), one step at a time.

How it behaves where nothing is prepared:
* connections come up at once (their READY event arrives before anything else happens);
* Metadata is answered from `topics` and `nodes`, which a test may change at any time;
* any other request stays unanswered: it is in `outstanding` until the test answers it, or it times
  out.

`prepare_*` queues one answer each, first prepared, first used, per kind of request.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

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
    API_KEY_OF,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    ApiKey,
    BrokerNode,
    Coordinator,
    CoordinatorType,
    DescribeTransactionsResponse,
    EndTxnResponse,
    FindCoordinatorResponse,
    InitProducerIdResponse,
    MetadataRequest,
    MetadataResponse,
    PartitionErrorCode,
    PartitionMetadata,
    ProducePartitionResponse,
    ProduceResponse,
    Request,
    Response,
    TopicMetadata,
    TransactionDescription,
    TxnOffsetCommitResponse,
)
from txnproducer._protocol.versions import (
    TRANSACTION_VERSION_FEATURE,
    ApiVersionRange,
    FinalizedFeatures,
    NodeApiVersions,
)
from txnproducer.errors import ErrorCode, IllegalStateError, KafkaError
from txnproducer.records import TopicPartition

PRODUCER_ID = 13131
PRODUCER_EPOCH = 1
INVALID_TXN_STATE = ErrorCode.INVALID_TXN_STATE
# The answers to a producer whose transactional id may have another identity.
OTHER_IDENTITY = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING)

Answer = Callable[[Any], Response]

# The versions that Apache Kafka 4.3 offers, as far as a producer cares.
MODERN_VERSIONS: dict[ApiKey, ApiVersionRange] = {
    ApiKey.PRODUCE: ApiVersionRange(3, 13),
    ApiKey.METADATA: ApiVersionRange(0, 13),
    ApiKey.FIND_COORDINATOR: ApiVersionRange(0, 6),
    ApiKey.API_VERSIONS: ApiVersionRange(0, 4),
    ApiKey.INIT_PRODUCER_ID: ApiVersionRange(0, 5),
    ApiKey.ADD_PARTITIONS_TO_TXN: ApiVersionRange(0, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: ApiVersionRange(0, 4),
    ApiKey.END_TXN: ApiVersionRange(0, 5),
    ApiKey.TXN_OFFSET_COMMIT: ApiVersionRange(0, 5),
}
# With this one the producer asks whether a transaction is complete before it goes on; most tests
# count requests, and want to do without.
DESCRIBE_VERSIONS = MODERN_VERSIONS | {ApiKey.DESCRIBE_TRANSACTIONS: ApiVersionRange(0, 0)}
# An InitProducerId below v3 can't bump an epoch (before KIP-360).
NO_BUMP_VERSIONS = MODERN_VERSIONS | {ApiKey.INIT_PRODUCER_ID: ApiVersionRange(0, 1)}


@dataclass(slots=True)
class Prepared:
    """One prepared end of a request."""

    answer: Answer | None
    failure: ResponseFailure | None
    error: KafkaError | None
    delay_ms: int


class ScriptedClient:
    """A `KafkaClient` that gives prepared answers at a clock moved by hand.

    Attributes:
        nodes: the cluster's brokers by id.
        topics: partition counts by topic; a topic not in it does not exist.
        topic_errors: error codes that Metadata gives for topics.
        leaders: where partitions are led, if not by partition number modulo brokers; -1 for
            nobody.
        leader_epochs: of partitions, if not 0.
        topic_ids: of topics, if not made up from the name.
        api_versions_of: what each broker offers, if not `default_versions`.
        down: nodes that refuse connections.
        requests: everything that was sent, in order.
        outstanding: what has not been answered, by correlation id, in the order of sending.
    """

    def __init__(self, *, node_count: int = 1, topics: dict[str, int] | None = None) -> None:
        self.now_ms = 0
        self.nodes = {n: BrokerNode(n, f"broker-{n}", 9092) for n in range(node_count)}
        self.topics = {"topic": 2} if topics is None else topics
        self.topic_errors: dict[str, int] = {}
        self.leaders: dict[TopicPartition, int] = {}
        self.leader_epochs: dict[TopicPartition, int] = {}
        self.topic_ids: dict[str, bytes] = {}
        self.default_versions = dict(MODERN_VERSIONS)
        self.api_versions_of: dict[int, dict[ApiKey, ApiVersionRange]] = {}
        self.features = FinalizedFeatures()
        self.down: set[int] = set()
        self.refusing_logins: dict[int, KafkaError] = {}
        self.reconnect_backoff_ms = 50
        self.max_in_flight = 5
        self.is_answering_metadata = True
        self.requests: list[ClientRequest] = []
        self.outstanding: dict[int, ClientRequest] = {}
        self.known: dict[int, BrokerNode] = {}
        self._prepared: dict[ApiKey, deque[Prepared]] = defaultdict(deque)
        self._ready: set[ConnectionId] = set()
        self._connecting: set[ConnectionId] = set()
        self._retry_at_ms: dict[ConnectionId, int] = {}
        self._throttled_until_ms: dict[ConnectionId, int] = {}
        self._offered: dict[int, NodeApiVersions] = {}
        self._due: list[tuple[int, int, ClientEvent]] = []
        self._order = itertools.count()

    # --- KafkaClient ----------------------------------------------------------------------------

    def update_nodes(self, nodes: Iterable[BrokerNode]) -> None:
        for node in nodes:
            self.known[node.node_id] = node

    def replace_nodes(self, nodes: Iterable[BrokerNode]) -> None:
        self.known = {node_id: node for node_id, node in self.known.items() if node_id < 0}
        self.update_nodes(nodes)

    def is_ready(self, connection: ConnectionId, now_ms: int) -> bool:
        if connection in self._ready:
            has_room = self.in_flight_count(connection) < self.max_in_flight
            return has_room and not self.throttle_delay_ms(connection, now_ms)
        if connection.node_id not in self.known:
            raise IllegalStateError(f"node {connection.node_id} was never announced")
        if connection not in self._connecting and now_ms >= self._retry_at_ms.get(connection, 0):
            self._connect(connection)
        return False

    def _connect(self, connection: ConnectionId) -> None:
        node_id = connection.node_id
        if node_id in self.refusing_logins:
            self._retry_at_ms[connection] = self.now_ms + self.reconnect_backoff_ms
            state, error = ConnectionState.AUTHENTICATION_FAILED, self.refusing_logins[node_id]
            self._schedule(ConnectionEvent(connection, state, error), 0)
        elif node_id in self.down:
            self._retry_at_ms[connection] = self.now_ms + self.reconnect_backoff_ms
            self._schedule(ConnectionEvent(connection, ConnectionState.DISCONNECTED), 0)
        else:
            self._connecting.add(connection)
            self._schedule(ConnectionEvent(connection, ConnectionState.READY), 0)

    def is_connected(self, connection: ConnectionId) -> bool:
        return connection in self._ready

    def ready_delay_ms(self, connection: ConnectionId, now_ms: int) -> int:
        if connection in self._ready:
            return self.throttle_delay_ms(connection, now_ms) or 1 << 31
        if connection in self._connecting:
            return 1 << 31
        return max(0, self._retry_at_ms.get(connection, 0) - now_ms)

    def throttle_delay_ms(self, connection: ConnectionId, now_ms: int) -> int:
        return max(0, self._throttled_until_ms.get(connection, 0) - now_ms)

    def send(self, request: ClientRequest, now_ms: int) -> None:
        if not self.is_ready(request.connection, now_ms):
            raise IllegalStateError(f"{request.connection} is not ready")
        self.requests.append(request)
        self.outstanding[request.correlation_id] = request
        queue = self._prepared[API_KEY_OF[type(request.body)]]
        if queue:
            self._end(request, queue.popleft())
        elif isinstance(request.body, MetadataRequest) and self.is_answering_metadata:
            self._end(request, Prepared(self.metadata_response, None, None, 0))

    def least_loaded_node(self, now_ms: int) -> int | None:
        def rank(node_id: int) -> tuple[bool, bool, int, int]:
            connection = ConnectionId(node_id)
            is_up = connection in self._ready
            load = self.in_flight_count(connection)
            return not is_up, node_id < 0, load, node_id

        usable = [n for n in self.known if now_ms >= self._retry_at_ms.get(ConnectionId(n), 0)]
        return min(usable, key=rank, default=None)

    def in_flight_count(self, connection: ConnectionId | None = None) -> int:
        return sum(
            connection is None or request.connection == connection
            for request in self.outstanding.values()
        )

    def api_versions(self, node_id: int) -> NodeApiVersions | None:
        return self._offered.get(node_id)

    def finalized_features(self) -> FinalizedFeatures:
        return self.features

    # --- what the harness needs -----------------------------------------------------------------

    def take_due_events(self) -> list[ClientEvent]:
        """Return the events whose time has come, time-outs included."""
        for request in list(self.outstanding.values()):
            if self.now_ms >= request.created_ms + request.timeout_ms:
                self.disconnect(request.connection, ResponseFailure.TIMED_OUT)
        events: list[ClientEvent] = []
        while self._due and self._due[0][0] <= self.now_ms:
            event = heapq.heappop(self._due)[2]
            if self._take_effect(event):
                events.append(event)
        return events

    def _take_effect(self, event: ClientEvent) -> bool:
        if isinstance(event, ClientResponse):
            return self.outstanding.pop(event.request.correlation_id, None) is not None
        if event.state is ConnectionState.READY:
            if event.connection not in self._connecting:
                return False
            self._connecting.discard(event.connection)
            self._ready.add(event.connection)
            node_id = event.connection.node_id
            versions = self.api_versions_of.get(node_id, self.default_versions)
            self._offered[node_id] = NodeApiVersions(dict(versions))
        return True

    def next_event_ms(self) -> int | None:
        """Return when the next event is due, time-outs included, or None if there is none."""
        times = [self._due[0][0]] if self._due else []
        times += [r.created_ms + r.timeout_ms for r in self.outstanding.values()]
        return min(times, default=None)

    def _schedule(self, event: ClientEvent, delay_ms: int) -> None:
        heapq.heappush(self._due, (self.now_ms + delay_ms, next(self._order), event))

    def _end(self, request: ClientRequest, prepared: Prepared) -> None:
        if prepared.failure is not None and prepared.failure is ResponseFailure.DISCONNECTED:
            self._schedule(
                ConnectionEvent(request.connection, ConnectionState.DISCONNECTED),
                prepared.delay_ms,
            )
            self._ready.discard(request.connection)
        body = None if prepared.answer is None else prepared.answer(request.body)
        response = ClientResponse(request, body, prepared.failure, prepared.error)
        self._schedule(response, prepared.delay_ms)

    # --- verbs of a test: troubles --------------------------------------------------------------

    def set_transaction_version(self, version: int | None, epoch: int | None = None) -> None:
        """Finalize `transaction.version` (None: not at all) under a new epoch of the features."""
        levels = {} if version is None else {TRANSACTION_VERSION_FEATURE: version}
        self.features = FinalizedFeatures(
            self.features.epoch + 1 if epoch is None else epoch, levels
        )

    def disconnect(
        self,
        connection: ConnectionId,
        failure: ResponseFailure = ResponseFailure.DISCONNECTED,
    ) -> None:
        """Lose a connection: every request on it ends without an answer, now."""
        self._ready.discard(connection)
        self._connecting.discard(connection)
        self._retry_at_ms[connection] = self.now_ms + self.reconnect_backoff_ms
        for request in list(self.outstanding.values()):
            if request.connection == connection:
                self._schedule(ClientResponse(request, None, failure), 0)
        self._schedule(ConnectionEvent(connection, ConnectionState.DISCONNECTED), 0)

    def stop_node(self, node_id: int) -> None:
        """Stop a broker. Its connections are lost and new ones refused. Metadata still name it."""
        self.down.add(node_id)
        for channel in Channel:
            connection = ConnectionId(node_id, channel)
            if connection in self._ready or connection in self._connecting:
                self.disconnect(connection)

    def start_node(self, node_id: int) -> None:
        """Start a stopped broker again."""
        self.down.discard(node_id)

    def throttle(self, connection: ConnectionId, duration_ms: int) -> None:
        """Let a broker ask not to be sent to for a while (KIP-219)."""
        self._throttled_until_ms[connection] = self.now_ms + duration_ms

    # --- verbs of a test: answers ---------------------------------------------------------------

    def prepare(
        self,
        api_key: ApiKey,
        answer: Answer | None = None,
        *,
        failure: ResponseFailure | None = None,
        error: KafkaError | None = None,
        delay_ms: int = 0,
    ) -> None:
        """Prepare the end of the next request of a kind that has none prepared yet."""
        self._prepared[api_key].append(Prepared(answer, failure, error, delay_ms))

    def prepare_failure(
        self,
        api_key: ApiKey,
        failure: ResponseFailure = ResponseFailure.DISCONNECTED,
        delay_ms: int = 0,
        error: KafkaError | None = None,
    ) -> None:
        """Prepare an end without an answer."""
        self.prepare(api_key, failure=failure, error=error, delay_ms=delay_ms)

    def prepare_find_coordinator(
        self, error_code: int = 0, *, node_id: int = 0, delay_ms: int = 0
    ) -> None:
        self.prepare(
            ApiKey.FIND_COORDINATOR,
            lambda request: self.find_coordinator_response(request, error_code, node_id),
            delay_ms=delay_ms,
        )

    def prepare_init_producer_id(
        self,
        error_code: int = 0,
        *,
        producer_id: int = PRODUCER_ID,
        producer_epoch: int = PRODUCER_EPOCH,
        delay_ms: int = 0,
    ) -> None:
        response = InitProducerIdResponse(error_code, producer_id, producer_epoch)
        if error_code:
            response = InitProducerIdResponse(error_code)
        self.prepare(ApiKey.INIT_PRODUCER_ID, lambda _: response, delay_ms=delay_ms)

    def prepare_add_partitions(
        self,
        error_code: int = 0,
        *,
        errors: dict[TopicPartition, int] | None = None,
        delay_ms: int = 0,
    ) -> None:
        codes = errors or {}
        self.prepare(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            lambda request: AddPartitionsToTxnResponse(
                tuple(
                    PartitionErrorCode(tp, codes.get(tp, error_code)) for tp in request.partitions
                )
            ),
            delay_ms=delay_ms,
        )

    def prepare_add_offsets(self, error_code: int = 0, *, delay_ms: int = 0) -> None:
        response = AddOffsetsToTxnResponse(error_code)
        self.prepare(ApiKey.ADD_OFFSETS_TO_TXN, lambda _: response, delay_ms=delay_ms)

    def prepare_txn_offset_commit(
        self,
        error_code: int = 0,
        *,
        errors: dict[TopicPartition, int] | None = None,
        delay_ms: int = 0,
    ) -> None:
        codes = errors or {}
        self.prepare(
            ApiKey.TXN_OFFSET_COMMIT,
            lambda request: TxnOffsetCommitResponse(
                tuple(
                    PartitionErrorCode(tp, codes.get(tp, error_code)) for tp, _ in request.offsets
                )
            ),
            delay_ms=delay_ms,
        )

    def prepare_refused_end(
        self, error_code: int, *, is_commit: bool = True, delay_ms: int = 0
    ) -> None:
        """Prepare the refusal of EndTxn v5. One from memory counts when it is repeated."""
        self.prepare_end_txn(error_code, delay_ms=delay_ms)
        if error_code in OTHER_IDENTITY or (is_commit and error_code == INVALID_TXN_STATE):
            self.prepare_find_coordinator()
            self.prepare_end_txn(error_code)

    def prepare_end_txn(
        self,
        error_code: int = 0,
        *,
        producer_id: int | None = None,
        producer_epoch: int | None = None,
        delay_ms: int = 0,
    ) -> None:
        """Prepare EndTxn. In v5 (transactions v2) it answers with the next epoch by itself."""
        self.prepare(
            ApiKey.END_TXN,
            lambda request: end_txn_response(request, error_code, producer_id, producer_epoch),
            delay_ms=delay_ms,
        )

    def prepare_produce(
        self,
        error_code: int = 0,
        *,
        errors: dict[TopicPartition, int] | None = None,
        base_offset: int = 0,
        delay_ms: int = 0,
        **fields: Any,
    ) -> None:
        """Prepare Produce: one error code for all partitions, or one for each, and `fields`."""
        self.prepare(
            ApiKey.PRODUCE,
            lambda request: produce_response(request, error_code, errors, base_offset, **fields),
            delay_ms=delay_ms,
        )

    def prepare_describe_transactions(
        self, state: str = "CompleteCommit", error_code: int = 0, *, delay_ms: int = 0
    ) -> None:
        self.prepare(
            ApiKey.DESCRIBE_TRANSACTIONS,
            lambda request: describe_response(request, state, error_code),
            delay_ms=delay_ms,
        )

    @staticmethod
    def described(request: ClientRequest, state: str) -> DescribeTransactionsResponse:
        """Return an answer to DescribeTransactions."""
        return describe_response(request.body, state, 0)

    def answer(self, request: ClientRequest, body: Response) -> None:
        """Answer an outstanding request now, in the order that the test likes."""
        self._schedule(ClientResponse(request, body), 0)

    @staticmethod
    def init_response(
        producer_id: int, producer_epoch: int, error_code: int = 0
    ) -> InitProducerIdResponse:
        """Return an answer to InitProducerId."""
        return InitProducerIdResponse(error_code, producer_id, producer_epoch)

    def answer_produce(
        self, request: ClientRequest, error_code: int = 0, base_offset: int = 0, **fields: Any
    ) -> None:
        """Answer an outstanding Produce request now."""
        self.answer(
            request, produce_response(request.body, error_code, None, base_offset, **fields)
        )

    def fail(
        self,
        request: ClientRequest,
        failure: ResponseFailure = ResponseFailure.DISCONNECTED,
    ) -> None:
        """End an outstanding request without an answer, now."""
        self._schedule(ClientResponse(request, None, failure), 0)

    # --- what was sent --------------------------------------------------------------------------

    def sent(self, api_key: ApiKey) -> list[Any]:
        """Return the bodies of all requests of a kind that were sent, in order."""
        return [r.body for r in self.requests if API_KEY_OF[type(r.body)] is api_key]

    def sent_kinds(self) -> list[ApiKey]:
        """Return the kinds of all requests but Metadata, in order."""
        kinds = [API_KEY_OF[type(r.body)] for r in self.requests]
        return [kind for kind in kinds if kind is not ApiKey.METADATA]

    def waiting(self, api_key: ApiKey) -> list[ClientRequest]:
        """Return the unanswered requests of a kind, in order."""
        return [r for r in self.outstanding.values() if API_KEY_OF[type(r.body)] is api_key]

    # --- answers --------------------------------------------------------------------------------

    def metadata_response(self, request: Request) -> MetadataResponse:
        """Describe the cluster as it is now, for the topics asked for."""
        assert isinstance(request, MetadataRequest)
        topics = tuple(self._topic_metadata(topic) for topic in request.topics)
        return MetadataResponse(tuple(self.nodes.values()), topics)

    def _topic_metadata(self, topic: str) -> TopicMetadata:
        if topic in self.topic_errors:
            return TopicMetadata(topic, (), error_code=self.topic_errors[topic])
        if topic not in self.topics:
            return TopicMetadata(topic, (), error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partitions = (
            self._partition_metadata(TopicPartition(topic, number))
            for number in range(self.topics[topic])
        )
        topic_id = self.topic_ids.get(topic, topic.encode().ljust(16, b".")[:16])
        return TopicMetadata(topic, tuple(partitions), topic_id)

    def _partition_metadata(self, place: TopicPartition) -> PartitionMetadata:
        node_ids = sorted(self.nodes)
        leader = self.leaders.get(place, node_ids[place.partition % len(node_ids)])
        error = ErrorCode.LEADER_NOT_AVAILABLE if leader == -1 else ErrorCode.NONE
        epoch = self.leader_epochs.get(place, 0)
        return PartitionMetadata(place.partition, leader, epoch, error)

    def find_coordinator_response(
        self, request: Any, error_code: int, node_id: int
    ) -> FindCoordinatorResponse:
        node = self.nodes[node_id] if not error_code else BrokerNode(-1, "", -1)
        return FindCoordinatorResponse((Coordinator(request.key, node, error_code),))


def end_txn_response(
    request: Any, error_code: int, producer_id: int | None, producer_epoch: int | None
) -> EndTxnResponse:
    """Answer EndTxn as a broker of the request's transaction version does."""
    if error_code or not request.is_transaction_v2_enabled:
        return EndTxnResponse(error_code)
    return EndTxnResponse(
        0,
        request.producer_id if producer_id is None else producer_id,
        request.producer_epoch + 1 if producer_epoch is None else producer_epoch,
    )


def describe_response(request: Any, state: str, error_code: int) -> DescribeTransactionsResponse:
    """Describe the one transaction asked for."""
    (transactional_id,) = request.transactional_ids
    return DescribeTransactionsResponse(
        (TransactionDescription(error_code, transactional_id, state),)
    )


def produce_response(
    request: Any,
    error_code: int,
    errors: dict[TopicPartition, int] | None,
    base_offset: int,
    **fields: Any,
) -> ProduceResponse:
    """Answer Produce for each partition asked."""
    nodes = fields.pop("nodes", ())
    partitions = []
    for partition in request.partitions:
        place = partition.topic_partition
        code = (errors or {}).get(place, error_code)
        offset = -1 if code else base_offset
        partitions.append(ProducePartitionResponse(place, code, offset, **fields))
    return ProduceResponse(tuple(partitions), nodes)


def group_or_transaction(request: Any) -> CoordinatorType:
    """Return the id or group that a FindCoordinator request asks about."""
    kind: CoordinatorType = request.key_type
    return kind
