"""InitProducerId (key 22), v0-v5.

Behavior:
* Without a transactional id: any broker returns a new producer id with epoch 0.
* With a transactional id: the coordinator returns the next epoch. It first aborts an open
  transaction and fences its producer. Until the abort is complete, every request gets
  CONCURRENT_TRANSACTIONS and has to be repeated, also one from a fenced producer.
* With the present producer id and epoch (v3): the producer that has them gets the next epoch, and
  others get PRODUCER_FENCED. If the request is repeated after a lost answer, the answer is the
  same.
* When the epochs are used up: a request with the last epoch, or without any, gets a new producer
  id. All others get UNKNOWN_SERVER_ERROR, whether they are fenced or repeat the request for the
  last epoch.
* A time-out of 0 or less, or above the cluster's limit: any broker answers
  INVALID_TRANSACTION_TIMEOUT.

Version notes: v3 adds the present id and epoch (KIP-360), v4 the code PRODUCER_FENCED.
Simplifications: no two-phase commit (KIP-939).
"""

from __future__ import annotations

from txnproducer._broker.cluster import BrokerCluster
from txnproducer._broker.coordination import check_access, check_id
from txnproducer._broker.resources import Resource
from txnproducer._broker.transaction_metadata import (
    LAST_CLIENT_EPOCH,
    TransactionalIdState,
    TransactionMetadata,
)
from txnproducer._protocol.messages import InitProducerIdRequest, InitProducerIdResponse
from txnproducer.errors import ErrorCode


def handle(
    cluster: BrokerCluster, node_id: int, request: InitProducerIdRequest, now_ms: int
) -> InitProducerIdResponse:
    """Answer an InitProducerId request."""
    code = _check_access(cluster, request.transactional_id)
    if code:
        return InitProducerIdResponse(code)
    # KafkaApis takes both or neither: half of an identity cannot be compared.
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        return InitProducerIdResponse(ErrorCode.INVALID_REQUEST)
    # Without a transactional id there is nothing to coordinate, and no time-out that counts.
    if request.transactional_id is None:
        return InitProducerIdResponse(ErrorCode.NONE, cluster.new_producer_id(), 0)
    # Before the coordinator is looked up: `handleInitProducerId` lets any broker refuse it.
    if not 0 < request.transaction_timeout_ms <= cluster.options.max_transaction_timeout_ms:
        return InitProducerIdResponse(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    name = request.transactional_id
    code = check_id(cluster, node_id, name, now_ms) or cluster.decide_refusal()
    if code:
        return InitProducerIdResponse(code)
    return _init(cluster, name, request, now_ms)


def _check_access(cluster: BrokerCluster, name: str | None) -> ErrorCode:
    if name is not None:
        # An empty id is refused here, too: `handleInitProducerId` does so before the time-out.
        empty = ErrorCode.NONE if name else ErrorCode.INVALID_REQUEST
        return check_access(cluster, name) or empty
    is_allowed = cluster.is_allowed(Resource.CLUSTER, "")
    return ErrorCode.NONE if is_allowed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def _init(
    cluster: BrokerCluster, name: str, request: InitProducerIdRequest, now_ms: int
) -> InitProducerIdResponse:
    coordinator = cluster.transaction_coordinator(name)
    known = coordinator.find(name)
    if known is None:
        known = coordinator.create(name, request.transaction_timeout_ms, now_ms)
    # `prepareInitProducerIdTransit` checks for a pending transition before it compares the
    # identities.
    if known.state.is_prepared:
        return InitProducerIdResponse(ErrorCode.CONCURRENT_TRANSACTIONS)
    # As `isValidProducerId`, this compares the producer id alone: the epoch counts when it is
    # raised.
    if request.producer_id != -1 and not _is_expected(known, request):
        return InitProducerIdResponse(ErrorCode.PRODUCER_FENCED)
    # No producer gets the epoch of this fence. The client repeats its request, which raises it
    # again.
    if known.state is TransactionalIdState.ONGOING:
        code = coordinator.fence(known, now_ms)
        return InitProducerIdResponse(code or ErrorCode.CONCURRENT_TRANSACTIONS)
    changed = _next(cluster, known, request, now_ms)
    if isinstance(changed, ErrorCode):
        return InitProducerIdResponse(changed)
    code = coordinator.write(changed)
    if code:
        return InitProducerIdResponse(code)
    return InitProducerIdResponse(code, changed.producer_id, changed.producer_epoch)


def _is_expected(known: TransactionMetadata, request: InitProducerIdRequest) -> bool:
    # -1: the id was created for this request, so there is nobody to fence (`isValidProducerId`).
    if known.producer_epoch == -1 or request.producer_id == known.producer_id:
        return True
    # The first answer to this repeated request gave a new producer id.
    is_previous = request.producer_id == known.previous_producer_id
    return is_previous and request.producer_epoch >= LAST_CLIENT_EPOCH


def _next(
    cluster: BrokerCluster,
    known: TransactionMetadata,
    request: InitProducerIdRequest,
    now_ms: int,
) -> TransactionMetadata | ErrorCode:
    expected = None if request.producer_id == -1 else request.producer_epoch
    timeout_ms = request.transaction_timeout_ms
    # The last epoch but one is the end for clients: one has to remain for a fence.
    if not known.is_epoch_exhausted:
        return known.incremented(timeout_ms, expected, now_ms) or ErrorCode.PRODUCER_FENCED
    if expected not in (None, known.producer_epoch):
        # Kafka throws an IllegalStateException before it compares the epochs. The epoch may be
        # that of a fenced producer, or of the present one after a lost answer.
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return known.rotated(
        cluster.new_producer_id(), timeout_ms, now_ms, keeps_last_epoch=expected is not None
    )
