"""kafka-python's consumer in a session.

Owns: its settings, its records, its listener of rebalances. Must not know: transactions.
Rule: with `read_committed` it asks for stable offsets (KIP-447), so that offsets of a transaction
that is being committed are not taken for old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer
from kafka import TopicPartition as KafkaPartition

from txnproducer.errors import InvalidConfigurationError
from txnproducer.records import TopicPartition
from txnproducer.session.batch import Record

__all__ = ["KafkaPythonConsumer"]

REQUIRED = {"isolation_level": "read_committed", "enable_auto_commit": False}


class KafkaPythonConsumer:
    """A consumer of kafka-python, as a session uses it.

    Args:
        consumer: not subscribed yet, or without a listener of its own.
    """

    def __init__(self, consumer: KafkaConsumer) -> None:
        self._consumer = consumer

    def check(self) -> None:
        """See `SessionConsumer`."""
        config = self._consumer.config
        for name, wanted in REQUIRED.items():
            if config[name] != wanted:
                raise InvalidConfigurationError(
                    f"{name}={config[name]!r}: a session needs a consumer with {name}={wanted!r}."
                    " Otherwise it would read records of aborted transactions, or commit offsets"
                    " without their results"
                )
        if not config["group_id"]:
            raise InvalidConfigurationError(
                "group_id: a session commits the offsets of a group, and this consumer has none"
            )

    def subscribe(self, topics: Sequence[str], on_loss: Callable[[], None]) -> None:
        """See `SessionConsumer`."""
        self._consumer.subscribe(list(topics), listener=_Listener(on_loss))

    def poll(self, timeout_s: float, most: int) -> list[Record]:
        """See `SessionConsumer`."""
        found = self._consumer.poll(timeout_ms=round(timeout_s * 1000), max_records=most)
        return [
            Record(
                one.topic,
                one.partition,
                one.offset,
                one.key,
                one.value,
                tuple(one.headers or ()),
                one.timestamp,
            )
            for records in found.values()
            for one in records
        ]

    def group_metadata(self) -> Any:
        """See `SessionConsumer`."""
        return self._consumer.group_metadata()

    def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See `SessionConsumer`."""
        assigned = self._consumer.assignment()
        for place, offset in offsets.items():
            partition = KafkaPartition(*place)
            if partition in assigned:
                self._consumer.seek(partition, offset)

    def rewind(self, first: Mapping[TopicPartition, int]) -> None:
        """See `SessionConsumer`."""
        for partition in self._consumer.assignment():
            place = TopicPartition(partition.topic, partition.partition)
            offset = self._consumer.committed(partition)
            if offset is None:
                offset = first.get(place)
            if offset is not None:
                self._consumer.seek(partition, offset)

    def close(self) -> None:
        """See `SessionConsumer`."""
        self._consumer.close(autocommit=False)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python is not typed here
    """Notes the loss of partitions. It runs on the consumer's own thread."""

    def __init__(self, on_loss: Callable[[], None]) -> None:
        self._on_loss = on_loss

    def on_partitions_revoked(self, revoked: Any) -> None:
        # A cooperative rebalance that takes nothing away is none.
        if revoked:
            self._on_loss()

    def on_partitions_lost(self, lost: Any) -> None:
        self.on_partitions_revoked(lost)

    def on_partitions_assigned(self, assigned: Any) -> None:
        """Do nothing: the consumer itself looks up where to read on."""
