"""The transaction manager under a test's hand, without a sender: take a request, answer it.

What the sender does around it is done here in its simplest form: a request whose coordinator is
not known goes back and its look-up goes first.
"""

from __future__ import annotations

from typing import Any, cast

from tests.scripted_client import INVALID_TXN_STATE, OTHER_IDENTITY
from txnproducer._core.ports import KafkaClient
from txnproducer._core.transactions.manager import TransactionManager
from txnproducer._core.transactions.operation import TransactionalRequestResult
from txnproducer._core.transactions.requests import FindCoordinatorHandler, TxnRequestHandler
from txnproducer._core.transactions.state import Role, TransactionState
from txnproducer._protocol.events import ResponseFailure
from txnproducer._protocol.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    ApiKey,
    BrokerNode,
    Coordinator,
    EndTxnRequest,
    EndTxnResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    PartitionErrorCode,
    Request,
    Response,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from txnproducer._protocol.versions import ApiVersionRange, FinalizedFeatures, NodeApiVersions
from txnproducer.errors import ErrorCode, KafkaError
from txnproducer.records import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerIdAndEpoch,
    TopicPartition,
)

TP0 = TopicPartition("test", 0)
TP1 = TopicPartition("test", 1)
GROUP = ConsumerGroupMetadata("g")
NODE = BrokerNode(0, "broker", 9092)
PRODUCER = ProducerIdAndEpoch(77, 0)


class FeatureClient:
    """All that the manager asks of a client."""

    def __init__(self, transaction_version: int) -> None:
        self.features = FinalizedFeatures(0, {"transaction.version": transaction_version})

    def finalized_features(self) -> FinalizedFeatures:
        return self.features

    def set_transaction_version(self, version: int) -> None:
        self.features = FinalizedFeatures(
            self.features.epoch + 1, {"transaction.version": version}
        )


class TxnDriver:
    """A transaction manager whose requests a test takes and answers.

    Args:
        transactional_id: None for an idempotent producer.
        version: the finalized `transaction.version`.
        can_bump: whether the coordinator's InitProducerId raises epochs.
    """

    def __init__(
        self, transactional_id: str | None = "t", *, version: int = 2, can_bump: bool = True
    ) -> None:
        self.client = FeatureClient(version)
        self.can_bump = can_bump
        self.manager = TransactionManager(
            transactional_id=transactional_id,
            transaction_timeout_ms=60_000,
            retry_backoff_ms=100,
            client=cast("KafkaClient", self.client),
        )
        self.sent: list[Request] = []
        self.handler: TxnRequestHandler | None = None

    @property
    def state(self) -> TransactionState:
        return self.manager.machine.state

    def as_sender(self, action: Any, *arguments: Any) -> Any:
        self.manager.machine.act_for(Role.SENDER)
        try:
            return action(*arguments)
        finally:
            self.manager.machine.act_for(Role.APPLICATION)

    def take(self, *, has_incomplete_batches: bool = False) -> Request | None:
        """Send the next request, the look-up of a coordinator first, and return that request."""
        self.handler = self.as_sender(self._take, has_incomplete_batches)
        if self.handler is None:
            return None
        request = self.handler.build_request()
        self.manager.requests.set_in_flight(self.handler, len(self.sent))
        self.sent.append(request)
        return request

    def _take(self, has_incomplete_batches: bool) -> TxnRequestHandler | None:
        manager = self.manager
        while (handler := manager.progress.next_request(has_incomplete_batches)) is not None:
            needed = handler.needs_coordinator
            if needed is None or manager.requests.coordinator(needed) is not None:
                return handler
            manager.requests.lookup_coordinator(handler)
            manager.requests.retry(handler)
        return None

    def answer(self, response: Response) -> None:
        """Answer the request that is out."""
        handler = self._end()
        self.as_sender(handler.on_response, response)

    def fail(
        self,
        failure: ResponseFailure = ResponseFailure.DISCONNECTED,
        error: KafkaError | None = None,
    ) -> None:
        """End the request that is out without an answer."""
        handler = self._end()
        self.as_sender(handler.on_failure, failure, error)

    def _end(self) -> TxnRequestHandler:
        handler, self.handler = self.handler, None
        assert handler is not None, "no request is out"
        self.manager.requests.clear_in_flight()
        return handler

    def reply(self, code: int = 0, producer: ProducerIdAndEpoch | None = None) -> None:
        """Answer the request that is out with a code, for each of its partitions."""
        assert self.handler is not None, "no request is out"
        self.answer(response_to(self.sent[-1], code, producer))

    def expect(self, kind: type, code: int = 0, producer: ProducerIdAndEpoch | None = None) -> Any:
        """Take the next request, which must be of a kind, and answer it."""
        request = self.take()
        assert type(request) is kind, f"{request} was sent, not {kind.__name__}"
        if isinstance(self.handler, FindCoordinatorHandler) and not code:
            self.as_sender(self.manager.identity.learn_coordinator, versions(self.can_bump))
        self.reply(code, producer)
        return request

    def refuse_end(self, code: int) -> EndTxnRequest:
        """Refuse the next EndTxn for good, and return its last attempt.

        An answer that a broker may give from its memory counts only when it is repeated.
        """
        ended: EndTxnRequest = self.expect(EndTxnRequest, code)
        is_v1 = not ended.is_transaction_v2_enabled
        if (
            code in OTHER_IDENTITY
            or (code == INVALID_TXN_STATE and (is_v1 or ended.is_commit))
            or (code == ErrorCode.INVALID_PRODUCER_EPOCH and is_v1)
        ):
            self.expect(FindCoordinatorRequest)
            ended = self.expect(EndTxnRequest, code)
        return ended

    # --- whole operations -----------------------------------------------------------------------

    def initialize(self) -> None:
        result = self.manager.initialize_transactions()
        self.expect(FindCoordinatorRequest)
        self.expect(InitProducerIdRequest, producer=PRODUCER)
        assert result.is_successful
        result.acknowledge()

    def begin(self) -> None:
        """Initialize, and begin a transaction."""
        self.initialize()
        self.manager.begin_transaction()

    def add_partition(self, place: TopicPartition = TP0) -> None:
        """Bring a partition into the transaction."""
        self.manager.maybe_add_partition(place)
        if not self.manager.identity.is_transaction_v2_enabled:
            self.expect(AddPartitionsToTxnRequest)

    def send_offsets(self, *places: TopicPartition, offset: int = 5) -> Any:
        offsets = {place: OffsetAndMetadata(offset) for place in places or (TP0,)}
        return self.manager.send_offsets_to_transaction(offsets, GROUP)

    def kinds(self) -> list[str]:
        """Return the kinds of all requests sent."""
        return [type(request).__name__.removesuffix("Request") for request in self.sent]


def versions(can_bump: bool) -> NodeApiVersions:
    """Return the API versions of a broker that can raise epochs, or can't."""
    return NodeApiVersions({ApiKey.INIT_PRODUCER_ID: ApiVersionRange(0, 5 if can_bump else 2)})


def response_to(
    request: Request, code: int = 0, producer: ProducerIdAndEpoch | None = None
) -> Response:
    """Answer any request with a code."""
    if isinstance(request, FindCoordinatorRequest):
        return FindCoordinatorResponse((Coordinator(request.key, NODE, code),))
    if isinstance(request, AddPartitionsToTxnRequest):
        results = (PartitionErrorCode(place, code) for place in request.partitions)
        return AddPartitionsToTxnResponse(tuple(results))
    if isinstance(request, TxnOffsetCommitRequest):
        results = (PartitionErrorCode(place, code) for place, _ in request.offsets)
        return TxnOffsetCommitResponse(tuple(results))
    if isinstance(request, AddOffsetsToTxnRequest):
        return AddOffsetsToTxnResponse(code)
    identity = producer or ProducerIdAndEpoch.NONE
    is_end = isinstance(request, EndTxnRequest)
    kind = EndTxnResponse if is_end else InitProducerIdResponse
    return kind(code, identity.producer_id, identity.producer_epoch)


def begun(**options):
    """Return a driver with a transaction that was begun."""
    driver = TxnDriver(**options)
    driver.begin()
    return driver


def with_partition(**options):
    """Return one with a partition in its transaction besides."""
    driver = begun(**options)
    driver.add_partition()
    return driver


def finish(result: TransactionalRequestResult) -> None:
    """See an operation's end, as a blocking call does."""
    assert result.is_completed
    result.acknowledge()
    if result.error is not None:
        raise result.error
