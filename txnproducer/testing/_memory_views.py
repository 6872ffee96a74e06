"""The records and transactions of a modelled cluster, as a test reads them.

Owns: `MemoryRecord`, `MemoryTransaction`, `MemoryQuestions`, and their reading from the model.
Must not know: threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from txnproducer._broker.cluster import BrokerCluster
from txnproducer.errors import UnstableOffsetCommitError
from txnproducer.records import OffsetAndMetadata, TopicPartition

from ._memory_arguments import unknown_topic


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """A record as a consumer gets it.

    Attributes:
        timestamp_ms: milliseconds since the epoch.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = field(default=(), repr=False)
    timestamp_ms: int = field(default=-1, repr=False)


@dataclass(frozen=True, slots=True)
class MemoryTransaction:
    """A transactional id as its coordinator knows it.

    Attributes:
        state: by Kafka's names, as `Ongoing` or `CompleteCommit`.
        partitions: in the transaction that is open or being ended.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    partitions: frozenset[TopicPartition]


class MemoryQuestions:
    """The answers to a producer's questions for which the server of the cluster has no API.

    Args:
        ask: asks the cluster.
    """

    def __init__(self, ask: Callable[[Callable[[BrokerCluster, int], Any]], Any]) -> None:
        self._ask = ask

    def ask_entries(
        self, group: str, place: TopicPartition | None, *, waits: bool
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group. An open transaction is not waited for."""

        def look(
            cluster: BrokerCluster, _: int
        ) -> tuple[dict[TopicPartition, OffsetAndMetadata], set[TopicPartition]]:
            offsets = cluster.group_offsets(group)
            return offsets.committed(group), offsets.pending_partitions(group)

        committed, pending = self._ask(look)
        if waits and place in pending:
            raise UnstableOffsetCommitError(f"{place} of the group {group} is undecided")
        return dict(committed)

    def ask_setting(self, name: str) -> str | None:
        """Return a setting of the brokers, or None if the model has none of the name."""
        if name != "transaction.max.timeout.ms":
            return None
        return str(self._ask(lambda cluster, _: cluster.options.max_transaction_timeout_ms))


def records_of(cluster: BrokerCluster, topic: str, *, is_committed: bool) -> list[MemoryRecord]:
    """Return the records of a topic that a consumer gets, by partition and offset.

    Raises:
        KeyError: there is no such topic.
    """
    if topic not in cluster.topics:
        raise unknown_topic(topic, cluster.topics)
    places = [TopicPartition(topic, n) for n in range(cluster.topics[topic])]
    return [
        record
        for place in places
        for record in visible_records(cluster, place, is_committed=is_committed)
    ]


def visible_records(
    cluster: BrokerCluster, place: TopicPartition, *, is_committed: bool
) -> Iterator[MemoryRecord]:
    """Yield the records of a partition that a consumer gets."""
    for entry in cluster.logs[place].visible_entries(read_committed=is_committed):
        # The marker of a transaction's end is an entry without a batch.
        for record in entry.batch or ():
            yield MemoryRecord(
                place.topic,
                place.partition,
                entry.base_offset + record.offset_delta,
                record.key,
                record.value,
                tuple(record.headers),
                record.timestamp_ms,
            )


def described(cluster: BrokerCluster, name: str) -> MemoryTransaction:
    """Return an id as its coordinator knows it."""
    # Each id has one coordinator, and only that one knows its state.
    known = cluster.transaction_coordinator(name).find(name)
    if known is None:  # the caller has the names of ids that exist
        raise KeyError(name)
    return MemoryTransaction(
        name, known.producer_id, known.producer_epoch, known.state.value, known.partitions
    )
