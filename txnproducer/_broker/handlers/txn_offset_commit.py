"""TxnOffsetCommit (key 28), v0-v5.

Behavior:
* Writes a group's offsets in the transaction. They are pending until it is committed.
* The group's partition must be in the transaction (v1: added before, and verified; v2: added by
  this request). The producer and the group's member must be the present ones.
* If the write fails, the answer is an error of the coordinator that lets the client look it up
  again, or wait. If the log keeps the offsets in spite of its error, they are pending from 4.0 on.
  Before 4.0, a failed write also drops pending offsets of the same partitions.

Version notes: v3 adds the member (KIP-447), v5 transactions v2 (KIP-890).
Simplifications: a single partition is refused only for an unknown topic or for metadata longer
than 4 KiB. Offsets that the log of a broker before 4.0 kept in spite of its error are lost when
the group moves.
"""

from __future__ import annotations

from txnproducer._broker.cluster import BrokerCluster
from txnproducer._broker.coordination import ask_coordinator, check_topic, has_begun
from txnproducer._broker.group_offsets import MAX_METADATA_BYTES
from txnproducer._broker.resources import Resource
from txnproducer._protocol.messages import (
    CoordinatorType,
    PartitionErrorCode,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from txnproducer.errors import ErrorCode
from txnproducer.records import OffsetAndMetadata, TopicPartition

# Errors of its own log, which a real broker translates for the client.
_TRANSLATED = {
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
_TRANSLATED_SINCE_4 = _TRANSLATED | {
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
_TRANSLATED_BEFORE_4 = _TRANSLATED | {
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}


def handle(
    cluster: BrokerCluster, node_id: int, request: TxnOffsetCommitRequest, now_ms: int
) -> TxnOffsetCommitResponse:
    """Answer a TxnOffsetCommit request."""
    code = _check_access(cluster, request)
    if code:
        return _respond(dict.fromkeys((place for place, _ in request.offsets), code))
    # Unlike partitions of AddPartitionsToTxn, the others of the request are written nevertheless.
    codes = {place: check_topic(cluster, place) for place, _ in request.offsets}
    valid = {place: offset for place, offset in request.offsets if not codes[place]}
    if valid:
        is_before_4 = cluster.options.is_before_4
        translated = _TRANSLATED_BEFORE_4 if is_before_4 else _TRANSLATED_SINCE_4
        code = _write(cluster, node_id, request, valid, now_ms)
        codes.update(dict.fromkeys(valid, translated.get(code, code)))
        for place, offset in valid.items():
            # After a failed write, its error is the answer for every partition.
            if not code and len(offset.metadata or "") > MAX_METADATA_BYTES:
                codes[place] = ErrorCode.OFFSET_METADATA_TOO_LARGE
    return _respond(codes)


def _check_access(cluster: BrokerCluster, request: TxnOffsetCommitRequest) -> ErrorCode:
    if not cluster.is_allowed(Resource.TRANSACTIONAL_ID, request.transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    is_allowed = cluster.is_allowed(Resource.GROUP, request.group_id)
    return ErrorCode.NONE if is_allowed else ErrorCode.GROUP_AUTHORIZATION_FAILED


def _write(
    cluster: BrokerCluster,
    node_id: int,
    request: TxnOffsetCommitRequest,
    valid: dict[TopicPartition, OffsetAndMetadata],
    now_ms: int,
) -> ErrorCode:
    kind = CoordinatorType.GROUP
    code = cluster.check_coordinator(node_id, kind, request.group_id, now_ms)
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if code:
        return code
    offsets = cluster.group_offsets(request.group_id)
    if cluster.options.is_before_4:
        # Before the checks, as in Kafka 3.9: its coordinator creates the group as soon as it is
        # named.
        offsets.group(request.group_id)
    code = (
        cluster.decide_refusal()
        or _verify(cluster, request, now_ms)
        or offsets.check_member(request)
    )
    # Kafka 3.9 keeps pending offsets by producer id alone: the refusal of an old epoch removes
    # those of the present one.
    if cluster.options.is_before_4 and code == ErrorCode.INVALID_PRODUCER_EPOCH:
        offsets.forget_pending(request.producer_id, request.group_id, valid)
    if code:
        return code
    written = {
        place: offset
        for place, offset in valid.items()
        if len(offset.metadata or "") <= MAX_METADATA_BYTES
    }
    return _append(cluster, request, written) if written else ErrorCode.NONE


def _append(
    cluster: BrokerCluster,
    request: TxnOffsetCommitRequest,
    written: dict[TopicPartition, OffsetAndMetadata],
) -> ErrorCode:
    offsets = cluster.group_offsets(request.group_id)
    producer_id, group_id = request.producer_id, request.group_id
    code, is_appended = cluster.decide_offsets_append()
    # Some errors come after the write: the offsets are in the log, and a commit makes them count.
    if is_appended or not code:
        offsets.append(producer_id, request.producer_epoch, group_id, written)
    # `GroupMetadata.failPendingTxnOffsetCommit` drops them even if the log kept them.
    if code and cluster.options.is_before_4:
        offsets.forget_pending(producer_id, group_id, written)
    return code


def _verify(cluster: BrokerCluster, request: TxnOffsetCommitRequest, now_ms: int) -> ErrorCode:
    states = cluster.group_offsets(request.group_id).states
    producer_id, epoch = request.producer_id, request.producer_epoch
    state = states.producers.get(producer_id)
    if state is not None and epoch < state.epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    # One question for each transaction is enough: an open one vouches for later requests.
    if has_begun(cluster, states, producer_id, epoch):
        return ErrorCode.NONE
    place = cluster.offsets_partition(request.group_id)
    is_v2 = request.is_transaction_v2_enabled
    codes = ask_coordinator(
        cluster, request.transactional_id, producer_id, epoch, [place], now_ms, is_v2=is_v2
    )
    return codes[place]


def _respond(codes: dict[TopicPartition, ErrorCode]) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        tuple(PartitionErrorCode(place, code) for place, code in codes.items())
    )
