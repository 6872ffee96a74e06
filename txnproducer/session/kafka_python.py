"""kafka-python's consumer in a session.

Owns: its settings, its records, its listener of rebalances. Must not know: transactions.
Rules:
* With `read_committed` it asks for stable offsets (KIP-447), so that offsets of a transaction that
  is being committed are not taken for old ones.
* It keeps the position of a partition that it has before and after a rebalance, also if another
  consumer had the partition meanwhile. So the session sets it back whenever its identity changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer
from kafka import TopicPartition as KafkaPartition
from kafka.errors import CorruptRecordError, KafkaConnectionError, KafkaTimeoutError
from kafka.structs import MemberState

from txnproducer.errors import InvalidConfigurationError
from txnproducer.records import TopicPartition
from txnproducer.session.batch import Record

__all__ = ["KafkaPythonConsumer", "check_settings"]

_LOG = logging.getLogger(__name__)

# With "latest" the records that a consumer has read before its first commit would be left out
# after a rebalance. The function decodes: a record that cannot be decoded would never reach it.
REQUIRED = {
    "isolation_level": "read_committed",
    "enable_auto_commit": False,
    "auto_offset_reset": "earliest",
    "key_deserializer": None,
    "value_deserializer": None,
}
# Of one question. The session polls between two attempts, so that the consumer stays in its group.
_COMMITTED_S = 1.0


def check_settings(config: Mapping[str, Any]) -> None:
    """Check all settings of a consumer.

    Raises:
        InvalidConfigurationError: with them records would be lost or doubled.
    """
    for name, wanted in REQUIRED.items():
        if config[name] != wanted:
            raise InvalidConfigurationError(
                f"{name}={config[name]!r}: a session needs a consumer with {name}={wanted!r}."
                " Otherwise records could be lost or doubled (see the page on sessions)"
            )
    if not config["group_id"]:
        raise InvalidConfigurationError(
            "group_id: a session commits the offsets of a group, and this consumer has none"
        )


class KafkaPythonConsumer:
    """A consumer of kafka-python, as a session uses it.

    Args:
        consumer: not subscribed yet, or without a listener of its own.
    """

    def __init__(self, consumer: KafkaConsumer) -> None:
        self._consumer = consumer

    def check(self) -> None:
        """See `SessionConsumer`."""
        check_settings(self._consumer.config)

    def subscribe(self, topics: Sequence[str], on_loss: Callable[[], None]) -> None:
        """See `SessionConsumer`."""
        self._consumer.subscribe(list(topics), listener=_Listener(on_loss))

    def poll(self, timeout_s: float, most: int) -> list[Record]:
        """See `SessionConsumer`."""
        try:
            found = self._consumer.poll(timeout_ms=round(timeout_s * 1000), max_records=most)
        except CorruptRecordError as error:
            self._name_place(error)
            raise
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

    def _name_place(self, error: CorruptRecordError) -> None:
        """Name the place of a record that the library cannot read, and the way past it."""
        places = [
            f"{one.topic}-{one.partition}, {self._position(one)}"
            for one in self._consumer.assignment()
        ]
        error.add_note(
            "kafka-python cannot read a record, such as one with a header whose name is not UTF-8,"
            f" and stops before it. It is the first one from here on: {'; or '.join(places)}. Ways"
            " out: TransactSession.for_confluent reads such records; or stop the group's members"
            " and set its offset after the record (kafka-consumer-groups.sh --reset-offsets)"
        )

    def _position(self, partition: KafkaPartition) -> str:
        try:
            return f"offset {self._consumer.position(partition, timeout_ms=0)}"
        except KafkaTimeoutError:
            return "whose offset is not known yet"

    def group_metadata(self) -> Any:
        """See `SessionConsumer`."""
        return self._consumer.group_metadata()

    def assignment(self) -> set[TopicPartition]:
        """See `SessionConsumer`."""
        return {TopicPartition(one.topic, one.partition) for one in self._consumer.assignment()}

    def seek(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """See `SessionConsumer`."""
        assigned = self._consumer.assignment()
        for place, offset in offsets.items():
            partition = KafkaPartition(*place)
            if partition in assigned:
                self._consumer.seek(partition, offset)
        return True

    def rewind(self, first: Mapping[TopicPartition, int]) -> bool:
        """See `SessionConsumer`."""
        # While it joins, its connection to the coordinator is busy with that until all members
        # have joined, and the assignment is about to change.
        if self._consumer.group_metadata().state != MemberState.STABLE:
            return False
        offsets: dict[KafkaPartition, int | None] = {}
        try:
            for partition in self._consumer.assignment():
                # Twice: the consumer may hand out an answer from before the last rebalance once.
                self._committed(partition)
                offset = self._committed(partition)
                if offset is None:
                    offset = first.get(TopicPartition(partition.topic, partition.partition))
                offsets[partition] = offset
        except (KafkaTimeoutError, KafkaConnectionError) as error:
            _LOG.info("the committed offsets are not known yet: %s", error)
            return False
        for partition, offset in offsets.items():
            if offset is None:
                self._consumer.seek_to_beginning(partition)
            else:
                self._consumer.seek(partition, offset)
        return True

    def _committed(self, partition: KafkaPartition) -> int | None:
        offset: int | None
        offset = self._consumer.committed(partition, timeout_ms=round(_COMMITTED_S * 1000))
        return offset

    def close(self, timeout_s: float) -> None:
        """See `SessionConsumer`."""
        self._consumer.close(autocommit=False, timeout_ms=round(timeout_s * 1000))


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
