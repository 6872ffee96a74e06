"""The small values that a producer takes and returns: partitions, offsets, results, groups.

Why it exists: these names stand in users' signatures, so they are few, fixed and plain.
Owns: their fields, their order, and the checks of values of other libraries.
Must not know: connections, transactions, the wire.
Rules: named tuples with kafka-python's fields in its order, so that values of its consumer compare
and hash equal to these and can be passed as they are; -1 stands for "not known".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

__all__ = [
    "ConsumerGroupMetadata",
    "OffsetAndMetadata",
    "PartitionReceipt",
    "ProducerIdAndEpoch",
    "RecordMetadata",
    "TopicPartition",
    "TransactionLease",
    "TransactionReceipt",
    "as_consumer_group_metadata",
    "as_offsets",
]

# The limits of the protocol's fields: larger numbers would fail only when they are encoded.
_INT16_MAX = 2**15 - 1
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int


class OffsetAndMetadata(NamedTuple):
    """The offset from which a consumer group goes on: the last one read, plus one.

    Attributes:
        offset: the next offset to read.
        metadata: a text of the application, stored with the offset.
        leader_epoch: the partition's leader epoch when the last record was read; -1 if not known.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class RecordMetadata(NamedTuple):
    """The place of a written record.

    Attributes:
        topic: the topic's name.
        partition: the partition; -1 if the record failed before one was chosen.
        offset: the record's offset; -1 if it is not known (`acks=0`, or a duplicate whose offset
            the broker no longer remembers) or if the record failed.
        timestamp_ms: the record's stored timestamp; -1 if it is not known.
        serialized_key_size: bytes of the key; -1 for a record without one.
        serialized_value_size: bytes of the value; -1 for a record without one.
    """

    topic: str
    partition: int
    offset: int = -1
    timestamp_ms: int = -1
    serialized_key_size: int = -1
    serialized_value_size: int = -1

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition as one value."""
        return TopicPartition(self.topic, self.partition)

    @property
    def timestamp(self) -> int:
        """The same as `timestamp_ms`, under kafka-python's name."""
        return self.timestamp_ms

    @property
    def has_offset(self) -> bool:
        """Whether the offset is known."""
        return self.offset >= 0


class ConsumerGroupMetadata(NamedTuple):
    """The identity of a consumer group's member, so that a stale member's offsets are refused.

    Source: KIP-447. A consumer returns it; kafka-python's own value is accepted as well.

    Attributes:
        group_id: the consumer group.
        generation_id: the group's generation; -1 if the consumer has not joined one.
        member_id: the member's id; empty if the consumer has not joined.
        group_instance_id: the id of a static member, or None.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class ProducerIdAndEpoch:
    """The identity of a producer at the brokers. The epoch distinguishes newer from older ones."""

    NONE: ClassVar[ProducerIdAndEpoch]

    producer_id: int
    producer_epoch: int

    @property
    def is_valid(self) -> bool:
        """Whether an id was assigned."""
        # Coordinators give ids from 0 on, and -1 means that there is none.
        return self.producer_id >= 0

    def __str__(self) -> str:
        return f"producer id {self.producer_id}, epoch {self.producer_epoch}"


# A class cannot make an instance of itself in its own body.
ProducerIdAndEpoch.NONE = ProducerIdAndEpoch(-1, -1)


def as_consumer_group_metadata(value: object) -> ConsumerGroupMetadata:
    """Check a consumer's group metadata, of this or another library.

    Args:
        value: anything with the attributes `group_id`, `generation_id`, `member_id` and
            `group_instance_id`; only the first is required.

    Returns:
        The same identity as a `ConsumerGroupMetadata`.

    Raises:
        ValueError: the value is None, or has no group id, or a generation without a member (a
            consumer that has joined has both); the error names the field.
    """
    # None, and a text, which may be meant as the group's id.
    if not hasattr(value, "group_id"):
        if isinstance(value, bytes):
            raise ValueError(
                "group_metadata is bytes, as confluent-kafka's consumers give it for their own"
                " producer alone. Use txnproducer.session.TransactSession.for_confluent, which"
                " reads them, or a consumer of kafka-python"
            )
        given = "None" if value is None else f"a {type(value).__name__}"
        raise ValueError(
            f"group_metadata is {given}: pass consumer.group_metadata() of the consumer that read"
            " the offsets, or ConsumerGroupMetadata('my-group') for one that assigns partitions"
            " itself"
        )
    group_id = value.group_id
    # The coordinator would refuse an empty one with INVALID_GROUP_ID, and only when it is asked.
    if not isinstance(group_id, str) or not group_id:
        raise ValueError(
            f"group_metadata.group_id must be a text that is not empty, not {group_id!r} "
            f"(group_metadata is a {type(value).__name__})"
        )
    _check_text("group_metadata.group_id", group_id)
    generation_id = _int32("group_metadata.generation_id", getattr(value, "generation_id", -1))
    member_id = _check_text("group_metadata.member_id", getattr(value, "member_id", ""))
    # Above 0, as in Java's `throwIfInvalidGroupMetadata`.
    if generation_id > 0 and not member_id:
        raise ValueError(
            f"group_metadata.member_id is empty, but generation_id is {generation_id}: take both "
            "from the same consumer.group_metadata()"
        )
    instance_id = getattr(value, "group_instance_id", None)
    if instance_id is not None:
        _check_text("group_metadata.group_instance_id", instance_id)
    return ConsumerGroupMetadata(group_id, generation_id, member_id, instance_id)


def as_offsets(offsets: Mapping[object, object]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Check the offsets to commit, of this or another library.

    Args:
        offsets: maps anything with `topic` and `partition` (or a pair of them) to an offset, or
            to anything with `offset` and optional `metadata` and `leader_epoch`.

    Returns:
        The same offsets in this package's types.

    Raises:
        ValueError: a value does not fit; the error names the partition and the field.
    """
    if not isinstance(offsets, Mapping):
        raise ValueError(
            f"offsets must map TopicPartition to OffsetAndMetadata, not be a "
            f"{type(offsets).__name__}"
        )
    return {
        (partition := _topic_partition(key)): _offset_and_metadata(partition, value)
        for key, value in offsets.items()
    }


def _topic_partition(key: object) -> TopicPartition:
    topic, partition = getattr(key, "topic", None), getattr(key, "partition", None)
    # Only a plain tuple: a named one of another library may have other fields in front.
    if type(key) is tuple and len(key) == 2:
        topic, partition = key
    if not isinstance(topic, str) or not topic:
        raise ValueError(f"offsets: {key!r} is not a TopicPartition (no topic)")
    _check_text("offsets: topic", topic)
    number = _integer(f"offsets: partition of {topic!r}", partition)
    if not 0 <= number <= _INT32_MAX:
        raise ValueError(f"offsets: partition {number} of {topic!r} is out of range")
    return TopicPartition(topic, number)


def _offset_and_metadata(partition: TopicPartition, value: object) -> OffsetAndMetadata:
    where = f"offsets[{partition.topic}-{partition.partition}]"
    # A plain int has no attribute of this name, and is the offset itself.
    offset = _integer(f"{where}.offset", getattr(value, "offset", value))
    # As in Java's `OffsetAndMetadata`, no offset is negative: there is none for "not known".
    if not 0 <= offset <= _INT64_MAX:
        raise ValueError(f"{where}.offset is {offset}: it must be 0 to {_INT64_MAX}")
    metadata = getattr(value, "metadata", "")
    # Other libraries have None for "no text" and "not known".
    if metadata is None:
        metadata = ""
    _check_text(f"{where}.metadata", metadata)
    leader_epoch = getattr(value, "leader_epoch", -1)
    if leader_epoch is None:
        leader_epoch = -1
    return OffsetAndMetadata(offset, metadata, _int32(f"{where}.leader_epoch", leader_epoch))


def _check_text(field: str, value: object) -> str:
    """Return a text if a request can carry it."""
    if not isinstance(value, str):
        raise ValueError(f"{field} must be a text, not {value!r}")
    try:
        size = len(value.encode())
    # A lone surrogate is a `str`, and cannot be sent.
    except UnicodeEncodeError as error:
        raise ValueError(f"{field} is {value!r}: {error}") from None
    # The protocol writes the length of such a text as an int16.
    if size > _INT16_MAX:
        raise ValueError(f"{field} has {size} bytes, more than {_INT16_MAX}")
    return value


def _int32(field: str, value: object) -> int:
    number = _integer(field, value)
    if not -1 <= number <= _INT32_MAX:
        raise ValueError(f"{field} is {number}: it must be -1 (none) to {_INT32_MAX}")
    return number


def _integer(field: str, value: object) -> int:
    # True is an int for Python, and no offset.
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{field} must be an integer, not {value!r}")
    return value


# --- one transaction that several processes write ----------------------------------------------


@dataclass(frozen=True, slots=True)
class TransactionLease:
    """The identity of an open transaction, for the processes that write into it or end it.

    Every process that has it can write into the transaction: it is no secret, but treat it with
    care.

    Attributes:
        transactional_id: the id of the producer that holds the transaction.
        producer: its producer id and epoch.
        is_transaction_v2: the version of the transaction protocol (KIP-890).
        claims: for each claim, the broker's answer that proves a participant to be its first.
        is_started: whether the transaction has records or offsets already.
        cluster_id: the id of its cluster; None if it is not known.
    """

    transactional_id: str
    producer: ProducerIdAndEpoch
    is_transaction_v2: bool
    claims: tuple[ProducerIdAndEpoch, ...] = ()
    is_started: bool = False
    cluster_id: str | None = None

    def __str__(self) -> str:
        return (
            f"lease of transactional id {self.transactional_id!r} ({self.producer}),"
            f" {len(self.claims)} claims"
        )


class PartitionReceipt(NamedTuple):
    """The number of records that a participant has written to a partition."""

    topic_partition: TopicPartition
    record_count: int


@dataclass(frozen=True, slots=True)
class TransactionReceipt:
    """The writes of a participant: all of them are acknowledged, and none can follow.

    Attributes:
        transactional_id: the id of the transaction's holder.
        producer: its producer id and epoch.
        claim: the number of the participant's claim.
        claimed: the broker's answer when the claim was taken.
        partitions: the partitions that the participant wrote to, in order; empty without records.
    """

    transactional_id: str
    producer: ProducerIdAndEpoch
    claim: int
    claimed: ProducerIdAndEpoch
    partitions: tuple[PartitionReceipt, ...]

    @property
    def record_count(self) -> int:
        """The number of records in all partitions."""
        return sum(each.record_count for each in self.partitions)


def claim_id(transactional_id: str, claim: int) -> str:
    """Return the transactional id that stands for a claim. Nothing is ever written under it."""
    # It begins with the id, so that rights to both can be granted by one prefix.
    return f"{transactional_id}.claim-{claim}"
