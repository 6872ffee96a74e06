"""The calls of a test on a real Kafka that a Kafka in memory has as well.

Why it exists: a test is moved from one to the other by the name of its fixture.
Owns: producers, the reading of records, offsets and transactions, the fence. Must not know: how
brokers run.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any, Literal

from txnproducer import admin
from txnproducer.admin._connection import our_errors
from txnproducer.admin._sockets import consumer_limits, owned_consumer
from txnproducer.errors import UnsupportedVersionError
from txnproducer.producer import TransactionalProducer
from txnproducer.records import OffsetAndMetadata, TopicPartition

from ._arguments import is_committed, text, unused_id
from ._memory_views import MemoryRecord, MemoryTransaction

_POLL_MS = 200


class ClusterVerbs(ABC):
    """The calls, for a cluster with an address."""

    @property
    @abstractmethod
    def bootstrap_servers(self) -> str:
        """Addresses for clients, separated by commas. Each has a host and a port."""

    @abstractmethod
    def security_config(self) -> dict[str, Any]:
        """Return a client's security settings in kafka-python's names."""

    def producer(
        self, transactional_id: str | None = None, **settings: Any
    ) -> TransactionalProducer:
        """Make a producer for this cluster. Its owner closes it.

        Args:
            transactional_id: as of `TransactionalProducer`.
            settings: likewise.
        """
        given = {"bootstrap_servers": self.bootstrap_servers, **self.security_config()}
        if transactional_id is not None:
            given["transactional_id"] = transactional_id
        return TransactionalProducer(**{**given, **settings})

    def records(
        self,
        topic: str,
        *,
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
        timeout: float = 30.0,
    ) -> list[MemoryRecord]:
        """Return the records of a topic that a consumer gets now, by partition and offset.

        Args:
            topic: its name.
            isolation: "read_committed" ends before the first open transaction, and leaves aborted
                records out.
            timeout: seconds.

        Raises:
            KeyError: there is no such topic.
            TimeoutError: the topic could not be read in time.
        """
        text("topic", topic)
        is_committed(isolation)
        from kafka import TopicPartition as Place

        servers, deadline_s = self.bootstrap_servers, time.monotonic() + timeout
        limits = consumer_limits(timeout)
        config = {"isolation_level": isolation, **limits, **self.security_config()}
        with our_errors(servers), owned_consumer(servers, **config) as consumer:
            places = [Place(topic, each) for each in consumer.partitions_for_topic(topic) or ()]
            if not places:
                raise KeyError(f"there is no topic {topic!r}")
            consumer.assign(places)
            consumer.seek_to_beginning(*places)
            return _read(consumer, consumer.end_offsets(places), deadline_s)

    def transactions(self) -> dict[str, MemoryTransaction]:
        """Return each transactional id that is in use, as its coordinator knows it.

        Raises:
            UnsupportedVersionError: the brokers are older than Kafka 3.0.
        """
        servers, security = self.bootstrap_servers, self.security_config()
        names = admin.transactional_ids(servers, **security)
        found = admin.describe_transactions(servers, names, **security)
        return {
            name: MemoryTransaction(
                name,
                known.producer_id,
                known.producer_epoch,
                known.state,
                frozenset(known.partitions),
            )
            for name, known in found.items()
            if known is not None  # it has expired between the two questions
        }

    def committed(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets that were committed for a consumer group."""
        security = self.security_config()
        text("group_id", group_id)
        return admin.committed_offsets(self.bootstrap_servers, [group_id], **security)[group_id]

    def fence(self, transactional_id: str) -> None:
        """Let a newer producer of the id take over, as `init_transactions()` of one does.

        Raises:
            ValueError: no producer has used the id. Before Kafka 3.0 this cannot be known.
        """
        if not self._may_be_used(text("transactional_id", transactional_id)):
            raise unused_id(transactional_id)
        with self.producer(transactional_id) as newer:
            newer.init_transactions()

    def _may_be_used(self, transactional_id: str) -> bool:
        try:
            known = admin.describe_transaction(
                self.bootstrap_servers, transactional_id, **self.security_config()
            )
        except UnsupportedVersionError:
            return True  # only the test's own mistakes stay unnoticed on such a broker
        return known is not None


def _read(consumer: Any, ends: dict[Any, int], deadline_s: float) -> list[MemoryRecord]:
    found: list[MemoryRecord] = []
    # The position passes the markers of transactions, which are no records.
    while any(consumer.position(place) < end for place, end in ends.items()):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not all of {sorted(ends)} could be read")
        for place, records in consumer.poll(timeout_ms=_POLL_MS).items():
            found += [_seen(each) for each in records if each.offset < ends[place]]
    return sorted(found, key=lambda each: (each.partition, each.offset))


def _seen(record: Any) -> MemoryRecord:
    return MemoryRecord(
        record.topic,
        record.partition,
        record.offset,
        record.key,
        record.value,
        tuple(record.headers),
        record.timestamp,
    )
