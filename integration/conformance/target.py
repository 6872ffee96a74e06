"""The calls of a case on a broker, real or modelled.

Owns: `Target`, the few values it answers with, where requests belong. Must not know: transcripts,
cases.
Rules: an answer with an error code is an answer; a target raises only when the test itself is
broken (no answer at all, a wait without end).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from txnproducer._broker.resources import Resource
from txnproducer._protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    CoordinatorType,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    Request,
    Response,
    TxnOffsetCommitRequest,
)
from txnproducer.errors import ErrorCode
from txnproducer.records import TopicPartition


class RecordSeen(NamedTuple):
    """A record as a consumer gets it."""

    offset: int
    key: bytes | None
    value: bytes | None


class ProducerSeen(NamedTuple):
    """The memory that a partition's leader has of a producer (DescribeProducers, KIP-664)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int


class Member(NamedTuple):
    """A member of a consumer group, or by default nobody."""

    member_id: str = ""
    generation_id: int = -1
    instance_id: str | None = None


def coordinated_by(request: Request) -> tuple[CoordinatorType, str] | None:
    """Return the coordinator's type and key for a request, or None if it needs none."""
    match request:
        case TxnOffsetCommitRequest():
            return CoordinatorType.GROUP, request.group_id
        case DescribeTransactionsRequest():
            return CoordinatorType.TRANSACTION, request.transactional_ids[0]
        case InitProducerIdRequest(transactional_id=None):
            return None
        case (
            InitProducerIdRequest(transactional_id=str(name))
            | AddPartitionsToTxnRequest(transactional_id=name)
            | AddOffsetsToTxnRequest(transactional_id=name)
            | EndTxnRequest(transactional_id=name)
        ):
            return CoordinatorType.TRANSACTION, name
        case _:
            return None


class Target(Protocol):
    """A cluster. Most cases want one of one broker, that leads and coordinates everything.

    Attributes:
        transaction_version: the finalized feature.
    """

    transaction_version: int

    def ask(self, request: Request) -> Response:
        """Put a request to the broker that it is for, and return its answer."""
        ...

    def init_often(self, request: InitProducerIdRequest, times: int) -> None:
        """Initialize a producer again and again, without a look at the answers."""
        ...

    def ask_elsewhere(self, request: Request) -> Response:
        """Put a request to a broker that it is not for."""
        ...

    def wait_ms(self, time_ms: int) -> None:
        """Let time go by."""
        ...

    def settle(self, transactional_id: str) -> None:
        """Wait until any party has ended an id's transaction, markers included."""
        ...

    def create_topic(self, name: str, partition_count: int, *, is_compacted: bool) -> None:
        """Create a topic."""
        ...

    def create_topic_at(self, name: str, transactional_id: str, *, is_far: bool) -> None:
        """Create a topic of one partition, led by an id's coordinator, or far from it."""
        ...

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until nobody knows it."""
        ...

    def add_partitions(self, name: str, partition_count: int) -> None:
        """Give a topic more partitions: so many in all."""
        ...

    def hold_markers(self, place: TopicPartition) -> AbstractContextManager[None]:
        """Keep markers from a partition that is led far from the coordinator."""
        ...

    def deny(self, resource: Resource, name: str) -> AbstractContextManager[None]:
        """Refuse access to a resource.

        Args:
            resource: its kind; of the cluster only what an idempotent producer needs.
            name: its name; "" for the cluster.
        """
        ...

    def topic_id(self, name: str) -> bytes | None:
        """Return a topic's id, if this broker's Produce takes one."""
        ...

    def read(self, place: TopicPartition, *, read_committed: bool) -> Sequence[RecordSeen]:
        """Return all that a consumer gets."""
        ...

    def last_stable_offset(self, place: TopicPartition) -> int:
        """Return up to where a read_committed consumer gets."""
        ...

    def log_end_offset(self, place: TopicPartition) -> int:
        """Return the next record's offset."""
        ...

    def producers(self, place: TopicPartition) -> Sequence[ProducerSeen]:
        """Return the producers that a partition remembers."""
        ...

    def committed_offset(
        self, group_id: str, place: TopicPartition, *, require_stable: bool
    ) -> int | ErrorCode:
        """Return the committed offset of a group (-1 for none), or the error of the broker."""
        ...

    def join_group(self, group_id: str, instance_id: str | None) -> Member:
        """Become the one member of a consumer group, a static one if it has an instance id."""
        ...
