"""Checks that the APIs of the transaction coordinator share, and adding partitions.

Owns: the checks at the start of each API; adding partitions to a transaction, or verifying them,
also for a partition's leader (KIP-890). Must not know: messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from txnproducer._broker.resources import Resource
from txnproducer._broker.transaction_metadata import TransactionalIdState
from txnproducer._protocol.messages import CoordinatorType
from txnproducer.errors import ErrorCode
from txnproducer.records import ProducerIdAndEpoch, TopicPartition

if TYPE_CHECKING:
    from txnproducer._broker.cluster import BrokerCluster
    from txnproducer._broker.producer_state import ProducerStates
    from txnproducer._broker.transaction_metadata import TransactionMetadata


def check_transactional_id(
    cluster: BrokerCluster, node_id: int, transactional_id: str, now_ms: int
) -> ErrorCode:
    """Return the error if a broker may not answer for a transactional id."""
    # KafkaApis checks access before the coordinator looks at the name.
    return check_access(cluster, transactional_id) or check_id(
        cluster, node_id, transactional_id, now_ms
    )


def check_access(cluster: BrokerCluster, transactional_id: str) -> ErrorCode:
    """Return the error if access to a transactional id is refused."""
    if cluster.is_allowed(Resource.TRANSACTIONAL_ID, transactional_id):
        return ErrorCode.NONE
    return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def check_id(
    cluster: BrokerCluster, node_id: int, transactional_id: str, now_ms: int
) -> ErrorCode:
    """Return the error of a coordinator for a transactional id to which access is allowed."""
    if not transactional_id:
        return ErrorCode.INVALID_REQUEST
    kind = CoordinatorType.TRANSACTION
    return cluster.check_coordinator(node_id, kind, transactional_id, now_ms)


def check_topic(cluster: BrokerCluster, place: TopicPartition) -> ErrorCode:
    """Return the error of a partition that a request names."""
    # First: the existence of a topic must not show to a client without access.
    if not cluster.is_allowed(Resource.TOPIC, place.topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    is_known = place in cluster.logs
    return ErrorCode.NONE if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def check_producer(
    known: TransactionMetadata | None, producer_id: int, producer_epoch: int
) -> ErrorCode:
    """Return the error if the producer is not the present one, or markers are being written."""
    # In the order of `handleVerifyPartitionsInTransaction`: id, epoch, state.
    if known is None or known.producer_id != producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if known.producer_epoch != producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.CONCURRENT_TRANSACTIONS if known.state.is_prepared else ErrorCode.NONE


def has_begun(
    cluster: BrokerCluster, states: ProducerStates, producer_id: int, producer_epoch: int
) -> bool:
    """Return whether a transaction has begun in a partition, so that it need not be verified."""
    # `UnifiedLog.hasOngoingTransaction` compares the epoch only from Kafka 4.0 on.
    epoch = None if cluster.options.is_before_4 else producer_epoch
    return states.has_open_transaction(producer_id, epoch)


def add_partitions(
    cluster: BrokerCluster,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Iterable[TopicPartition],
    now_ms: int,
    *,
    is_v2: bool,
) -> ErrorCode:
    """Add partitions to an id's transaction. The first ones begin the transaction."""
    coordinator = cluster.transaction_coordinator(transactional_id)
    known = coordinator.find(transactional_id)
    refusal = cluster.decide_refusal()
    if refusal:
        return refusal
    if known is not None and known.state.is_prepared and not cluster.options.is_before_4:
        # Before the identities are compared: with v2 a producer may begin under the new producer
        # id, which its transactional id gets only when all markers are written.
        return ErrorCode.CONCURRENT_TRANSACTIONS  # also to a fenced producer (KAFKA-18660)
    code = check_producer(known, producer_id, producer_epoch)
    if code or known is None:
        return code
    added = frozenset(partitions)
    # Kafka answers here without a write. So a repeated request cannot fail in the log.
    if known.state is TransactionalIdState.ONGOING and added <= known.partitions:
        return ErrorCode.NONE
    return coordinator.write(known.with_partitions(added, now_ms, is_v2=is_v2))


def add_for_client(
    cluster: BrokerCluster,
    node_id: int,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    partitions: Iterable[TopicPartition],
    now_ms: int,
) -> ErrorCode:
    """Add partitions for a client with transactions v1, if the broker may answer.

    A broker that does not know yet that it has resigned answers from its memory if nothing has to
    be written.
    """
    added = frozenset(partitions)
    code = check_id(cluster, node_id, transactional_id, now_ms)
    # Where epochs cannot be raised, no client can protect itself.
    if code == ErrorCode.NOT_COORDINATOR and not cluster.options.is_before_2_5:
        coordinator = cluster.transaction_coordinator(transactional_id)
        known = coordinator.remembered_at(transactional_id, node_id, now_ms)
        if known is not None and _has_added(known, producer, added):
            cluster.misled.add(producer)
            return ErrorCode.NONE
    return code or add_partitions(
        cluster,
        transactional_id,
        producer.producer_id,
        producer.producer_epoch,
        added,
        now_ms,
        # With v2 the partition's leader, or the group's coordinator, adds it (KIP-890).
        is_v2=False,
    )


def _has_added(
    known: TransactionMetadata, producer: ProducerIdAndEpoch, added: frozenset[TopicPartition]
) -> bool:
    is_open = known.state is TransactionalIdState.ONGOING
    is_same = ProducerIdAndEpoch(known.producer_id, known.producer_epoch) == producer
    return is_open and is_same and added <= known.partitions


def verify_partitions(
    cluster: BrokerCluster,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Iterable[TopicPartition],
) -> dict[TopicPartition, ErrorCode]:
    """Return for each partition the error if it is not in the transaction."""
    known = cluster.transaction_coordinator(transactional_id).find(transactional_id)
    code = check_producer(known, producer_id, producer_epoch)
    if code or known is None:
        return dict.fromkeys(partitions, code)
    return {
        place: ErrorCode.NONE if place in known.partitions else ErrorCode.TRANSACTION_ABORTABLE
        for place in partitions
    }


def ask_coordinator(
    cluster: BrokerCluster,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: list[TopicPartition],
    now_ms: int,
    *,
    is_v2: bool,
) -> dict[TopicPartition, ErrorCode]:
    """Add (v2) or verify (v1) partitions at the coordinator for a partition's leader."""
    if not partitions:
        return {}
    kind = CoordinatorType.TRANSACTION
    node_id = cluster.coordinator_node(kind, transactional_id)
    if not cluster.is_up(node_id):
        # AddPartitionsToTxnManager answers so if the metadata have no live coordinator.
        return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    # Without access: the leader has checked the client's, and asks in its own name (KIP-890).
    code = check_id(cluster, node_id, transactional_id, now_ms)
    if code:
        return dict.fromkeys(partitions, code)
    if is_v2:
        code = add_partitions(
            cluster, transactional_id, producer_id, producer_epoch, partitions, now_ms, is_v2=True
        )
        codes = dict.fromkeys(partitions, code)
    else:
        codes = verify_partitions(
            cluster, transactional_id, producer_id, producer_epoch, partitions
        )
    # A partition leader answers INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED: the producer
    # may abort and continue (KIP-588).
    return {
        place: ErrorCode.INVALID_PRODUCER_EPOCH if code == ErrorCode.PRODUCER_FENCED else code
        for place, code in codes.items()
    }
