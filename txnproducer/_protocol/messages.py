"""Requests and responses of the APIs that the producer uses, independent of any version.

Owns: the field names. Must not know: versions, byte layouts, retries. No message can be changed.
Those that each transaction needs are tuples, since a frozen dataclass takes two to four times as
long to make. A plain tuple stands for an array. An error is the protocol's code (an int), never an
exception, since judging it is the core's work.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from txnproducer.config._values import format_address
from txnproducer.records import OffsetAndMetadata, TopicPartition

# Also what the coordinator takes for "none yet", in InitProducerId.
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1


class ApiKey(IntEnum):
    """The APIs that the producer calls, by their number in the protocol."""

    PRODUCE = 0
    METADATA = 3
    FIND_COORDINATOR = 10
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_TRANSACTIONS = 65


class CoordinatorType(IntEnum):
    """The kind of coordinator that FindCoordinator looks up."""

    GROUP = 0
    TRANSACTION = 1


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """A broker's id and address. Bootstrap addresses have negative ids."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> str:
        """The host and the port, as `bootstrap_servers` takes them."""
        return format_address(self.host, self.port)


# --- Metadata (3) ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MetadataRequest:
    """Ask for the brokers and the leaders of some topics (an empty tuple: brokers only)."""

    # An empty tuple is never sent as null, which would ask for all topics of the cluster.
    topics: tuple[str, ...]
    # As in Java: the brokers' auto.create.topics.enable decides.
    allow_auto_topic_creation: bool = True


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """One partition's leader (-1 = none) and leader epoch (-1 = unknown)."""

    partition: int
    leader_id: int
    # Brokers tell it from v7 on (KIP-320).
    leader_epoch: int = -1
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """One topic's id (16 bytes, or None where the broker has none) and partitions."""

    topic: str
    partitions: tuple[PartitionMetadata, ...]
    # Brokers tell it from v10 on (KIP-516).
    topic_id: bytes | None = None
    error_code: int = 0
    is_internal: bool = False


@dataclass(frozen=True, slots=True)
class MetadataResponse:
    """A snapshot of the cluster as one broker sees it."""

    brokers: tuple[BrokerNode, ...]
    topics: tuple[TopicMetadata, ...]
    cluster_id: str | None = None
    controller_id: int = -1
    throttle_time_ms: int = 0


# --- FindCoordinator (10) ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FindCoordinatorRequest:
    """Look up the coordinator of one transactional id or group."""

    key: str
    key_type: CoordinatorType


@dataclass(frozen=True, slots=True)
class Coordinator:
    """A coordinator that was looked up; `node` counts only when `error_code` is 0."""

    key: str
    node: BrokerNode
    # With v4 each of several look-ups can fail by itself (KIP-699).
    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class FindCoordinatorResponse:
    """One coordinator per requested key: for the producer exactly one."""

    # A tuple, since v4 and above look up many keys at once (KIP-699).
    coordinators: tuple[Coordinator, ...]
    throttle_time_ms: int = 0


# --- InitProducerId (22) -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InitProducerIdRequest:
    """Get a producer id and epoch. With the current ones, ask for an epoch bump (KIP-360, v3+)."""

    transactional_id: str | None
    transaction_timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@dataclass(frozen=True, slots=True)
class InitProducerIdResponse:
    """The producer's identity from now on."""

    error_code: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    throttle_time_ms: int = 0


# --- AddPartitionsToTxn (24), AddOffsetsToTxn (25): transactions v1 only -----------------------


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnRequest:
    """Add partitions to the transaction. Clients cap the version at 3 (v4+ is between brokers)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class PartitionErrorCode:
    """One partition's verdict in AddPartitionsToTxn and TxnOffsetCommit answers."""

    topic_partition: TopicPartition
    error_code: int


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnResponse:
    """One verdict per requested partition."""

    results: tuple[PartitionErrorCode, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class AddOffsetsToTxnRequest:
    """Add a consumer group's offsets partition to the ongoing transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    group_id: str


@dataclass(frozen=True, slots=True)
class AddOffsetsToTxnResponse:
    """The verdict of the transaction coordinator."""

    error_code: int
    throttle_time_ms: int = 0


# --- TxnOffsetCommit (28) ----------------------------------------------------------------------


class TxnOffsetCommitRequest(NamedTuple):
    """Write a consumer group's offsets in the transaction. Group metadata needs v3 (KIP-447)."""

    transactional_id: str
    group_id: str
    producer_id: int
    producer_epoch: int
    offsets: tuple[tuple[TopicPartition, OffsetAndMetadata], ...]
    # Without a group's metadata (the defaults) the coordinator cannot fence an old member.
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    # No field of the wire. It chooses the version: with v5 the group's coordinator adds the group
    # to the transaction by itself (KIP-890).
    is_transaction_v2_enabled: bool = False

    @property
    def has_group_metadata(self) -> bool:
        """Whether a version below 3 would drop fencing of an old group member."""
        return self.generation_id > 0 or bool(self.member_id) or self.group_instance_id is not None


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitResponse:
    """One verdict per partition."""

    results: tuple[PartitionErrorCode, ...]
    throttle_time_ms: int = 0


# --- EndTxn (26) -------------------------------------------------------------------------------


class EndTxnRequest(NamedTuple):
    """Commit or abort the transaction. V5 (transactions v2) answers with the next identity."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    # No field of the wire. It chooses the version: with v5 the coordinator also raises the epoch
    # (KIP-890).
    is_transaction_v2_enabled: bool = False


class EndTxnResponse(NamedTuple):
    """The verdict. Producer id and epoch are -1 below v5."""

    error_code: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    throttle_time_ms: int = 0


# --- DescribeTransactions (65) -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DescribeTransactionsRequest:
    """Ask the coordinator for the state of transactional ids (KIP-664)."""

    transactional_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """One transactional id's state at its coordinator (`Ongoing`, `CompleteCommit` ...)."""

    error_code: int
    transactional_id: str
    # A text, since a broker may know states that this version does not.
    state: str
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    timeout_ms: int = -1
    start_time_ms: int = -1
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeTransactionsResponse:
    """One description per requested id."""

    transactions: tuple[TransactionDescription, ...]
    throttle_time_ms: int = 0


# --- Produce (0) -------------------------------------------------------------------------------


class ProducePartition(NamedTuple):
    """One batch for one partition; `records` are the bytes of exactly one v2 batch."""

    topic_partition: TopicPartition
    records: bytes | bytearray | memoryview
    # From v13 on it stands in the place of the topic's name (KIP-516).
    topic_id: bytes | None = None


class ProduceRequest(NamedTuple):
    """One batch per partition for one broker. With transactions v1 the version is capped at 11."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    partitions: tuple[ProducePartition, ...]
    # No field of the wire. From v12 on leaders add partitions to a transaction themselves
    # (KIP-890).
    is_transaction_v2_enabled: bool = False


@dataclass(frozen=True, slots=True)
class RecordError:
    """A record for which the broker refused its batch, by its index in the batch (KIP-467)."""

    batch_index: int
    message: str | None = None


@dataclass(frozen=True, slots=True)
class LeaderIdAndEpoch:
    """The new leader that a refusing broker names (KIP-951)."""

    leader_id: int
    leader_epoch: int


class ProducePartitionResponse(NamedTuple):
    """One partition's verdict. `base_offset` and `log_append_time_ms` are -1 if unknown."""

    topic_partition: TopicPartition
    error_code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    # Tells whether retention has deleted the records of a producer, which the broker then forgets.
    log_start_offset: int = -1
    record_errors: tuple[RecordError, ...] = ()
    error_message: str | None = None
    current_leader: LeaderIdAndEpoch | None = None


class ProduceResponse(NamedTuple):
    """One verdict per partition; `nodes` are the endpoints of new leaders (KIP-951)."""

    partitions: tuple[ProducePartitionResponse, ...]
    nodes: tuple[BrokerNode, ...] = ()
    throttle_time_ms: int = 0


Request: TypeAlias = (
    MetadataRequest
    | FindCoordinatorRequest
    | InitProducerIdRequest
    | AddPartitionsToTxnRequest
    | AddOffsetsToTxnRequest
    | TxnOffsetCommitRequest
    | EndTxnRequest
    | DescribeTransactionsRequest
    | ProduceRequest
)
Response: TypeAlias = (
    MetadataResponse
    | FindCoordinatorResponse
    | InitProducerIdResponse
    | AddPartitionsToTxnResponse
    | AddOffsetsToTxnResponse
    | TxnOffsetCommitResponse
    | EndTxnResponse
    | DescribeTransactionsResponse
    | ProduceResponse
)

API_KEY_OF: dict[type, ApiKey] = {
    MetadataRequest: ApiKey.METADATA,
    FindCoordinatorRequest: ApiKey.FIND_COORDINATOR,
    InitProducerIdRequest: ApiKey.INIT_PRODUCER_ID,
    AddPartitionsToTxnRequest: ApiKey.ADD_PARTITIONS_TO_TXN,
    AddOffsetsToTxnRequest: ApiKey.ADD_OFFSETS_TO_TXN,
    TxnOffsetCommitRequest: ApiKey.TXN_OFFSET_COMMIT,
    EndTxnRequest: ApiKey.END_TXN,
    DescribeTransactionsRequest: ApiKey.DESCRIBE_TRANSACTIONS,
    ProduceRequest: ApiKey.PRODUCE,
}
