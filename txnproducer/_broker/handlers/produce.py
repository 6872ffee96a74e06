"""Produce (key 0), v3-v13.

Behavior:
* If any batch is transactional, a missing transactional id, or one to which access is refused,
  refuses every partition.
* Appends one batch to each partition. The refusal of one partition does not affect the others.
  Anything but one whole batch is INVALID_RECORD. The records of a batch are checked last, after
  its partition was added to the transaction.
* A transactional batch must belong to the open transaction: with v1 the leader asks the
  coordinator whether the partition was added, with v2 it asks it to add the partition (KIP-890).
  After a transaction has begun in a partition, the leader does not ask any more.
* If one record is invalid (without a key, in a compacted topic), the whole batch is refused, and
  the answer names the record (KIP-467).
* A broker that does not lead a partition refuses the batch. It names the leader if it knows it,
  and its address if that broker is up (KIP-951; older brokers do not).
* Brokers before 2.5 check at each idempotent request whether the producer may write idempotently.
  They do not refuse a batch because an earlier one is not verified yet (KAFKA-14561).

Version notes: v10 names new leaders, v11 knows TRANSACTION_ABORTABLE, v12 is for transactions v2,
v13 names topics by id.
Simplifications: brokers before 3.6 verify, too; the real ones accepted any batch (KIP-98).
Verification and append are one step, so that no marker can be written between them. While markers
are written the answer is CONCURRENT_TRANSACTIONS at once (a real broker asks again for 100 ms).
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from txnproducer._broker.cluster import BrokerCluster
from txnproducer._broker.coordination import ask_coordinator, has_begun
from txnproducer._broker.resources import Resource
from txnproducer._protocol.messages import (
    BrokerNode,
    LeaderIdAndEpoch,
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    RecordError,
)
from txnproducer._record import BatchHeader, RecordBatch, read_header
from txnproducer.errors import CorruptRecordError, ErrorCode
from txnproducer.records import TopicPartition

# Errors of the coordinator that become a retriable error, because producers do not retry them.
_UNVERIFIED = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class UncheckedBatch(NamedTuple):
    """A complete batch whose records have not been checked yet."""

    header: BatchHeader
    records: bytes


def handle(
    cluster: BrokerCluster, node_id: int, request: ProduceRequest, now_ms: int
) -> ProduceResponse:
    """Answer a Produce request."""
    if _is_idempotence_refused(cluster, request):
        return _all(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    name = request.transactional_id
    is_allowed = name is not None and cluster.is_allowed(Resource.TRANSACTIONAL_ID, name)
    # For the whole request: the id is one field of it, so it is wrong for every batch.
    if not is_allowed and _has_batch(request, attrgetter("is_transactional")):
        return _all(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    batches: dict[TopicPartition, UncheckedBatch] = {}
    answers: dict[TopicPartition, ProducePartitionResponse] = {}
    for partition in request.partitions:
        place = partition.topic_partition
        batch, code = _find(cluster, node_id, partition)
        if batch is None:
            answers[place] = ProducePartitionResponse(place, code)
        else:
            batches[place] = batch
    # Before the verification: a broker that does not lead a partition must not add it to a
    # transaction.
    nodes = _refuse_misdirected(cluster, node_id, batches, answers)
    _refuse_unverified(cluster, request, batches, answers, now_ms)
    # After the verification, as in `ReplicaManager.appendRecords`: the refusals before it stay.
    if request.acks not in (-1, 0, 1):
        code = ErrorCode.INVALID_REQUIRED_ACKS
        answers |= {place: ProducePartitionResponse(place, code) for place in batches}
        batches.clear()
    # Last: Kafka appends only what is verified, and the records are looked at as they are
    # appended.
    for place, batch in batches.items():
        answers[place] = _append(cluster, place, batch, now_ms)
    # In the order of the request, since refusals were collected before the appends.
    ordered = tuple(answers[p.topic_partition] for p in request.partitions)
    return ProduceResponse(ordered, nodes)


def _has_batch(request: ProduceRequest, is_such: Callable[[BatchHeader], bool]) -> bool:
    """Return whether any batch header has a property, those of refused partitions included."""
    for partition in request.partitions:
        try:
            if is_such(read_header(bytes(partition.records))):
                return True
        except CorruptRecordError:
            continue  # refused later, by itself
    return False


def _is_idempotence_refused(cluster: BrokerCluster, request: ProduceRequest) -> bool:
    """Return whether idempotent writes are refused. Brokers checked this until KIP-679."""
    if not cluster.options.is_before_2_5 or cluster.is_allowed(Resource.CLUSTER, ""):
        return False
    return request.transactional_id is None and _has_batch(request, attrgetter("has_producer_id"))


def _find(
    cluster: BrokerCluster, node_id: int, partition: ProducePartition
) -> tuple[UncheckedBatch | None, ErrorCode]:
    place, topic_id = partition.topic_partition, partition.topic_id
    is_named_by_id = topic_id is not None and cluster.takes_topic_ids(node_id)
    # Before access: without a name there is nothing to check it for.
    if is_named_by_id and topic_id not in cluster.topology.ids:
        is_former = topic_id in cluster.topology.former_ids
        unknown = ErrorCode.UNKNOWN_TOPIC_ID
        return None, cluster.decide_wrong_topic_id() if is_former else unknown
    if not cluster.is_allowed(Resource.TOPIC, place.topic):
        return None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if place not in cluster.logs:
        return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    records = bytes(partition.records)
    try:
        header = read_header(records)
    except CorruptRecordError:
        return None, ErrorCode.INVALID_RECORD
    # A second batch after the first: `ProduceRequest.validateRecords` allows one per partition.
    if header.size_bytes != len(records):
        return None, ErrorCode.INVALID_RECORD
    return UncheckedBatch(header, records), ErrorCode.NONE


def _refuse_misdirected(
    cluster: BrokerCluster,
    node_id: int,
    batches: dict[TopicPartition, UncheckedBatch],
    answers: dict[TopicPartition, ProducePartitionResponse],
) -> tuple[BrokerNode, ...]:
    nodes: dict[int, BrokerNode] = {}
    # By the true leader and not by this broker's view: a broker knows at once what it leads
    # itself.
    for place in [p for p in batches if cluster.leaders[p] != node_id]:
        del batches[place]
        leader, epoch = cluster.known_leader(node_id, place)
        answer = ProducePartitionResponse(place, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if leader not in (node_id, -1) and not cluster.options.is_before_2_5:
            answer = answer._replace(current_leader=LeaderIdAndEpoch(leader, epoch))
            # A broker that is down has no address in the metadata.
            if cluster.is_up(leader):
                nodes[leader] = cluster.nodes[leader]
        answers[place] = answer
    return tuple(nodes.values())


def _refuse_unverified(
    cluster: BrokerCluster,
    request: ProduceRequest,
    batches: dict[TopicPartition, UncheckedBatch],
    answers: dict[TopicPartition, ProducePartitionResponse],
    now_ms: int,
) -> None:
    to_verify: list[TopicPartition] = []
    header: BatchHeader | None = None
    for place, batch in list(batches.items()):
        if not batch.header.is_transactional:
            continue
        # Any of them will do: all transactional batches of a request have one producer.
        header = batch.header
        code = _begin_verification(cluster, place, header, request, now_ms)
        if code:
            del batches[place]
            answers[place] = ProducePartitionResponse(place, code)
        elif not has_begun(
            cluster, cluster.logs[place].states, header.producer_id, header.producer_epoch
        ):
            to_verify.append(place)
    if header is None:
        return
    is_v2 = request.is_transaction_v2_enabled
    codes = ask_coordinator(
        cluster,
        request.transactional_id or "",
        header.producer_id,
        header.producer_epoch,
        to_verify,
        now_ms,
        is_v2=is_v2,
    )
    for place, code in codes.items():
        if code:
            del batches[place]
            answers[place] = ProducePartitionResponse(place, _translate(code, is_v2=is_v2))


def _begin_verification(
    cluster: BrokerCluster,
    place: TopicPartition,
    header: BatchHeader,
    request: ProduceRequest,
    now_ms: int,
) -> ErrorCode:
    states = cluster.logs[place].states
    producer_id, epoch = header.producer_id, header.producer_epoch
    state = states.producers.get(producer_id)
    if state is not None and epoch < state.epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    has_tentative_states = not cluster.options.is_before_2_5
    if has_tentative_states and not has_begun(cluster, states, producer_id, epoch):
        is_v2 = request.is_transaction_v2_enabled
        states.begin_verification(producer_id, epoch, header.base_sequence, now_ms, is_v2=is_v2)
    return ErrorCode.NONE


def _translate(code: ErrorCode, *, is_v2: bool) -> ErrorCode:
    # A client sends a batch again after NOT_ENOUGH_REPLICAS, and asks for no metadata first. Only
    # clients of v2 also do so after CONCURRENT_TRANSACTIONS.
    if code in _UNVERIFIED or (code == ErrorCode.CONCURRENT_TRANSACTIONS and not is_v2):
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return code


def _refuse_records(
    cluster: BrokerCluster, place: TopicPartition, batch: RecordBatch
) -> ProducePartitionResponse | None:
    if place.topic not in cluster.compacted:
        return None
    # All of them, so that the client can tell the guilty records from the others (KIP-467).
    blamed = [index for index, record in enumerate(batch) if record.key is None]
    if not blamed:
        return None
    return ProducePartitionResponse(
        place,
        ErrorCode.INVALID_RECORD,
        record_errors=tuple(RecordError(index, "a record without a key") for index in blamed),
        error_message="one or more records have been rejected",
    )


def _append(
    cluster: BrokerCluster, place: TopicPartition, found: UncheckedBatch, now_ms: int
) -> ProducePartitionResponse:
    batch, code = _read(cluster, found)
    if batch is None:
        return ProducePartitionResponse(place, code)
    refused = _refuse_records(cluster, place, batch)
    if refused is not None:
        return refused
    # After the checks of the records: replicas fail only for a batch that could be written.
    code, is_appended = cluster.decide_append()
    if code and not is_appended:
        return ProducePartitionResponse(place, code)
    log = cluster.logs[place]
    appended = log.append(batch, now_ms)
    # The log's own refusal comes first: a batch that it refuses is not replicated.
    code = appended.error_code or code
    if code == ErrorCode.UNKNOWN_PRODUCER_ID:
        return ProducePartitionResponse(place, code, log_start_offset=cluster.told_log_start(log))
    if code:
        return ProducePartitionResponse(place, code)
    return ProducePartitionResponse(
        place,
        code,
        appended.base_offset,
        log_start_offset=log.log_start_offset,
        log_append_time_ms=appended.append_time_ms,
    )


def _read(cluster: BrokerCluster, found: UncheckedBatch) -> tuple[RecordBatch | None, ErrorCode]:
    header = found.header
    # Before the checksum: the broker does not read a batch that it would not keep.
    if len(found.records) > cluster.options.max_message_bytes:
        return None, ErrorCode.MESSAGE_TOO_LARGE
    is_sound = header.record_count == header.last_offset_delta + 1 > 0
    try:
        batch = RecordBatch(found.records)
    except CorruptRecordError:
        return None, ErrorCode.CORRUPT_MESSAGE if is_sound else ErrorCode.INVALID_RECORD
    has_sequence = header.base_sequence >= 0 or not header.has_producer_id
    if is_sound and has_sequence and not header.is_control:
        return batch, ErrorCode.NONE
    return None, ErrorCode.INVALID_RECORD


def _all(request: ProduceRequest, code: ErrorCode) -> ProduceResponse:
    return ProduceResponse(
        tuple(ProducePartitionResponse(p.topic_partition, code) for p in request.partitions)
    )
