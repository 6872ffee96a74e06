"""EndTxn (key 26), v0-v5.

Behavior:
* Decides the open transaction, and answers before the markers are written.
* Answers CONCURRENT_TRANSACTIONS while markers are written: with v2 to every producer, with v1
  only to the present one.
* v1: the request must have the present epoch. After the end, the same decision gets NONE again,
  and the other one gets INVALID_TXN_STATE. Without a transaction the answer is INVALID_TXN_STATE.
* v2 (KIP-890): every end raises the epoch, and the answer has the next producer id and epoch. A
  request with the previous epoch repeats the last end: the same decision gets NONE, and the other
  one gets INVALID_TXN_STATE. With the present epoch and no open transaction, an abort succeeds and
  raises the epoch, and a commit gets INVALID_TXN_STATE.

* A broker that does not know yet that it has resigned answers from its memory what needs no write.
  With v2 it may refuse the present producer, and a transaction that has begun at the next
  coordinator. With v1 it may repeat the success of the transaction before, which has the same
  epoch.

Version notes: v5 is for transactions v2.
Simplifications: answers in one step (see `transaction_coordinator`). With v1 such a broker refuses
nothing from its memory: it names itself as the coordinator, so that a client would have to believe
it. Before Kafka 2.5 it answers nothing from its memory: no client can tell.
"""

from __future__ import annotations

from txnproducer._broker.cluster import BrokerCluster
from txnproducer._broker.coordination import check_transactional_id
from txnproducer._broker.transaction_metadata import (
    LAST_CLIENT_EPOCH,
    TransactionalIdState,
    TransactionMetadata,
)
from txnproducer._protocol.messages import EndTxnRequest, EndTxnResponse
from txnproducer.errors import ErrorCode
from txnproducer.records import ProducerIdAndEpoch

_S = TransactionalIdState


def handle(
    cluster: BrokerCluster, node_id: int, request: EndTxnRequest, now_ms: int
) -> EndTxnResponse:
    """Answer an EndTxn request."""
    code = check_transactional_id(cluster, node_id, request.transactional_id, now_ms)
    coordinator = cluster.transaction_coordinator(request.transactional_id)
    if code == ErrorCode.NOT_COORDINATOR:
        remembered = coordinator.remembered_at(request.transactional_id, node_id, now_ms)
        is_v1_before_2_5 = cluster.options.is_before_2_5 and not request.is_transaction_v2_enabled
        if remembered is not None and not is_v1_before_2_5:
            return _answer_from_memory(cluster, remembered, request)
    if code:
        return EndTxnResponse(code)
    known = coordinator.find(request.transactional_id)
    if known is None:
        # An id that has expired looks the same as one with another producer id.
        return EndTxnResponse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    is_v2 = request.is_transaction_v2_enabled
    judged = _judge_v2(known, request) if is_v2 else _judge_v1(known, request)
    if judged is not None:
        if judged or not is_v2:
            return EndTxnResponse(judged)
        # The first answer may be lost, so a repeated request has to bring the next identity again.
        return EndTxnResponse(judged, known.producer_id, known.producer_epoch)
    # Only a commit that changes something is refused. A producer treats this answer to an abort as
    # fatal (KAFKA-19250).
    refusal = cluster.decide_refusal() if request.is_commit else ErrorCode.NONE
    if refusal:
        return EndTxnResponse(refusal)
    code, ended = coordinator.end(known, now_ms, is_commit=request.is_commit, is_v2=is_v2)
    if code or not is_v2:
        return EndTxnResponse(code)
    return EndTxnResponse(code, ended.producer_id, ended.producer_epoch)


def _judge_v1(known: TransactionMetadata, request: EndTxnRequest) -> ErrorCode | None:
    """Return the answer to an EndTxn that changes nothing, or None if it ends the transaction."""
    # In the order of `endTransactionWithTV1`: id, epoch, state.
    if known.producer_id != request.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if known.producer_epoch != request.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    if known.state is _S.ONGOING:
        return None
    # While markers are written a transition is pending, which `endTransactionWithTV1` checks
    # before it compares the decisions.
    if known.state.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return _repeated(known, is_commit=request.is_commit)


def _repeated(known: TransactionMetadata, *, is_commit: bool) -> ErrorCode:
    complete = _S.COMPLETE_COMMIT if is_commit else _S.COMPLETE_ABORT
    return ErrorCode.NONE if known.state is complete else ErrorCode.INVALID_TXN_STATE


def _answer_from_memory(
    cluster: BrokerCluster, known: TransactionMetadata, request: EndTxnRequest
) -> EndTxnResponse:
    """Answer for a broker that does not know yet that it has resigned. It cannot write."""
    if not request.is_transaction_v2_enabled:
        if _judge_v1(known, request) != ErrorCode.NONE:
            return EndTxnResponse(ErrorCode.NOT_COORDINATOR)
        cluster.misled.add(ProducerIdAndEpoch(request.producer_id, request.producer_epoch))
        return EndTxnResponse(ErrorCode.NONE)
    judge = _judge_incomplete if known.state.is_prepared else _judge_v2
    judged = judge(known, request)
    if judged is None:
        return EndTxnResponse(ErrorCode.NOT_COORDINATOR)  # the log refuses the write
    if judged:
        return EndTxnResponse(judged)
    return EndTxnResponse(judged, known.producer_id, known.producer_epoch)


def _judge_incomplete(known: TransactionMetadata, request: EndTxnRequest) -> ErrorCode:
    """Return the answer of a broker that could not write a transaction's completion."""
    # `TransactionStateManager.appendTransactionToLog` resets the pending state, so that the
    # identities are compared although the state is a prepared one.
    if known.producer_id != request.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    # A prepared end has raised the epoch already, so only the previous one may repeat the end.
    if known.producer_epoch != request.producer_epoch + 1:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.CONCURRENT_TRANSACTIONS


def _judge_v2(known: TransactionMetadata, request: EndTxnRequest) -> ErrorCode | None:
    """Return the answer to an EndTxn that changes nothing, or None if it ends the transaction."""
    # First: the state already has the raised epoch, and at the last one it has MAX_EPOCH, which no
    # client sends.
    if known.state.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    # `retryOnOverflow` in `endTransaction`: the end of the last epoch gave a new producer id.
    is_after_rotation = (
        known.previous_producer_id == request.producer_id
        and request.producer_epoch == LAST_CLIENT_EPOCH
        and known.producer_epoch == 0
    )
    if known.producer_id != request.producer_id and not is_after_rotation:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    # `retryOnEpochBump`: the end raised the epoch by one, and its answer was lost.
    is_retry = is_after_rotation or known.producer_epoch == request.producer_epoch + 1
    is_present = known.producer_epoch == request.producer_epoch
    # While a transaction is open, the previous epoch is no retry: its end was followed by a new
    # begin.
    if not is_present and not (known.state.is_complete and is_retry):
        return ErrorCode.PRODUCER_FENCED
    # Before the retries: under the present epoch this is the first request for this end.
    if known.state is _S.ONGOING:
        return None
    if known.state.is_complete and is_retry:
        return _repeated(known, is_commit=request.is_commit)
    # No transaction is open, and the epoch is the present one: an abort only raises the epoch.
    return ErrorCode.INVALID_TXN_STATE if request.is_commit else None
