"""The two places of a ledger: a compacted topic, and the offsets of a consumer group.

Owns: keys, groups, the checks of a topic. Must not know: what an entry means, which one follows.

An entry in offsets vanishes `offsets.retention.minutes` after it was written, by default after
seven days. An entry in a topic stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from txnproducer._shell.serialization import as_serialized
from txnproducer.admin import ask, committed_offsets, partition_count
from txnproducer.errors import TopicExistsError
from txnproducer.ledger import compacted_topic
from txnproducer.ledger.errors import LedgerError
from txnproducer.ledger.state import LedgerState
from txnproducer.ledger.topic_log import log_of
from txnproducer.producer import TransactionalProducer
from txnproducer.records import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

_WAYS_OUT: Final = (
    "Nothing was written. Ways out: another topic, which the ledger makes; or change this one, if"
    " nothing else uses it"
)


class Place(Protocol):
    """The place where a ledger keeps its entry.

    Attributes:
        expires: whether an entry vanishes that nothing writes again for a while.
    """

    expires: bool

    def prepare(self, bootstrap_servers: str, security: Mapping[str, Any]) -> None:
        """Make sure that the place is there and can keep an entry.

        Raises:
            LedgerError: it would lose entries.
            KafkaError: the cluster refused, or did not answer.
        """

    def read(
        self, bootstrap_servers: str, security: Mapping[str, Any], timeout_s: float
    ) -> LedgerState | None:
        """Return the last committed entry, or None. Wait for a transaction that has one.

        Raises:
            LedgerError: the entry cannot be read.
            UnstableOffsetCommitError: a transaction with an entry stayed open all that time.
            KafkaError: the cluster refused, or did not answer.
        """

    def write(self, producer: TransactionalProducer, state: LedgerState) -> None:
        """Add an entry to the producer's open transaction."""


class InTopic:
    """A compacted topic. Several ledgers may share it: the key is the ledger's name."""

    expires = False

    def __init__(self, name: str, topic: str) -> None:
        self._key = f"ledger:{name}"
        self._topic = topic

    def __repr__(self) -> str:
        return f"the topic {self._topic!r}"

    def prepare(self, bootstrap_servers: str, security: Mapping[str, Any]) -> None:
        """See `Place`. A topic that is not there is created."""
        count = partition_count(bootstrap_servers, self._topic, **security)
        if count is None:
            try:
                compacted_topic.create(bootstrap_servers, self._topic, security)
            except TopicExistsError:
                count = partition_count(bootstrap_servers, self._topic, **security)
        if count not in (None, 1):
            raise LedgerError(
                f"the topic {self._topic!r} has {count} partitions: the topic of a ledger has one."
                f" {_WAYS_OUT}"
            )
        policy = compacted_topic.losing_policy(bootstrap_servers, self._topic, security)
        if policy is not None:
            raise LedgerError(
                f"the topic {self._topic!r} has cleanup.policy={policy}, so that the entry would"
                " be deleted, and records be written twice. It needs cleanup.policy=compact."
                f" {_WAYS_OUT}"
            )

    def read(
        self, bootstrap_servers: str, security: Mapping[str, Any], timeout_s: float
    ) -> LedgerState | None:
        """See `Place`."""
        log = log_of(bootstrap_servers, self._topic)
        found = log.read([self._key], ask, security, timeout_s, waits_for_undecided=True).found
        one = found.get(self._key)
        if one is None or one.value is None:
            return None
        place = f"partition 0 of the topic {self._topic}, offset {one.offset}, key {self._key!r},"
        return LedgerState.parse(place, one.value)

    def write(self, producer: TransactionalProducer, state: LedgerState) -> None:
        """See `Place`."""
        value, key = as_serialized(state.value()), as_serialized(self._key.encode())
        producer.send(self._topic, value, key, partition=0)


class InOffsets:
    """The committed offset of a group of the ledger's own, for partition 0 of a topic."""

    expires = True

    def __init__(self, name: str, topic: str) -> None:
        self._group = f"__txn.ledger.{name}"
        # Brokers refuse the offset of a partition that does not exist, and each topic has this
        # one.
        self._partition = TopicPartition(topic, 0)

    def __repr__(self) -> str:
        return (
            f"the group {self._group!r}, as an offset of partition 0 of {self._partition.topic!r}"
        )

    def prepare(self, bootstrap_servers: str, security: Mapping[str, Any]) -> None:
        """See `Place`."""
        topic = self._partition.topic
        if partition_count(bootstrap_servers, topic, **security) is None:
            raise LedgerError(
                f"the topic {topic!r} does not exist, and the ledger's entry is an offset of it."
                " Nothing was written. Way out: name a topic that is there, such as that of the"
                " records"
            )

    def read(
        self, bootstrap_servers: str, security: Mapping[str, Any], timeout_s: float
    ) -> LedgerState | None:
        """See `Place`."""
        found = committed_offsets(
            bootstrap_servers,
            [self._group],
            timeout_s,
            # Named, since an undecided offset would count as absent otherwise.
            partitions=[self._partition],
            **dict(security),
        )
        one = found.get(self._group, {}).get(self._partition)
        if one is None:
            return None
        return LedgerState.parse(f"{self!r}", one.metadata, one.offset)

    def write(self, producer: TransactionalProducer, state: LedgerState) -> None:
        """See `Place`."""
        stored = OffsetAndMetadata(state.advances, state.metadata())
        # Without a generation and a member: no consumer is in the group.
        producer.send_offsets_to_transaction(
            {self._partition: stored}, ConsumerGroupMetadata(self._group)
        )
