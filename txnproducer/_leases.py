"""The values that processes hand each other to share one transaction: leases and receipts.

Why it exists: a transaction belongs to a producer id and epoch, not to a connection. One process
holds it and ends it; others write into it. What they have to know of each other is here, small,
frozen and picklable.
Owns: the fields, and the names of claims. Must not know: how a claim is taken, the state machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from txnproducer.records import ProducerIdAndEpoch, TopicPartition

__all__ = ["PartitionReceipt", "TransactionLease", "TransactionReceipt"]


@dataclass(frozen=True, slots=True)
class TransactionLease:
    """The identity of an open transaction, for the processes that write into it or end it.

    Whoever has it can write into the transaction: it is no secret, but it is not for everybody.

    Attributes:
        transactional_id: of the producer that holds the transaction.
        producer: its producer id and epoch.
        is_transaction_v2: which version of transactions it is written with (KIP-890).
        claims: what the broker has to answer, by its number, to the one that may use the claim.
        is_started: whether something has been written into it already.
        cluster_id: of the cluster that it lives in; None if it is not known.
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
    """How many records a participant has written to a partition."""

    topic_partition: TopicPartition
    record_count: int


@dataclass(frozen=True, slots=True)
class TransactionReceipt:
    """What a participant has written: all of it is acknowledged, and nothing can follow.

    Attributes:
        transactional_id: of the transaction.
        producer: its producer id and epoch.
        claim: the number of the participant's claim.
        claimed: what the broker answered when it was taken.
        partitions: where the participant wrote, in order; empty if it had no records.
    """

    transactional_id: str
    producer: ProducerIdAndEpoch
    claim: int
    claimed: ProducerIdAndEpoch
    partitions: tuple[PartitionReceipt, ...]

    @property
    def record_count(self) -> int:
        """How many records there are in all."""
        return sum(each.record_count for each in self.partitions)


def claim_id(transactional_id: str, claim: int) -> str:
    """Return the transactional id that stands for a claim: nothing is ever written under it."""
    return f"{transactional_id}.claim-{claim}"
