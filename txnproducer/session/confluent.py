"""confluent-kafka's consumer in a session.

Owns: its settings, its records, its callbacks of rebalances, the form of its group metadata. Must
not know: transactions.
Rules:
* A consumer of librdkafka does not show its settings. So it is made here, of settings that are
  checked.
* With `read_committed` it asks for stable offsets (KIP-447).
* It gives its identity as bytes that are opaque, for the same library's producer. `read_metadata`
  alone reads them, and refuses a form that it does not know. (librdkafka,
  `rd_kafka_consumer_group_metadata_write`.)
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import confluent_kafka
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ConfluentPartition

from txnproducer.errors import InvalidConfigurationError
from txnproducer.records import ConsumerGroupMetadata, TopicPartition
from txnproducer.session.batch import Record, UnreadableHeaders

__all__ = ["REQUIRED", "ConfluentConsumer", "read_metadata"]

_LOG = logging.getLogger(__name__)
# With "latest" the records that a consumer has read before its first commit would be left out
# after a rebalance.
REQUIRED: Final[Mapping[str, object]] = {
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "earliest",
}
# Of one question. The session polls between two attempts, so that the consumer stays in its group.
_COMMITTED_S = 1.0
_MAGIC: Final = b"CGMDv2:"
_GENERATION_BYTES: Final = 4
_NO_INSTANCE: Final = 1
# By the library's names. The consumer goes on by itself after these; any other is raised.
_PASSING: Final = frozenset(
    {
        "_ALL_BROKERS_DOWN",
        "_MAX_POLL_EXCEEDED",
        "_PARTITION_EOF",
        "_RESOLVE",
        "_TRANSPORT",
        "_UNKNOWN_PARTITION",
        "_UNKNOWN_TOPIC",
        "UNKNOWN_TOPIC_OR_PART",
    }
)
# Committed offsets are not known yet, the coordinator is away for a moment, or a partition is not
# read yet, or no longer, and has no position.
_NOT_YET: Final = frozenset(
    {
        "_ALL_BROKERS_DOWN",
        "_PREV_IN_PROGRESS",
        "_STATE",
        "_TIMED_OUT",
        "_TIMED_OUT_QUEUE",
        "_TRANSPORT",
        "_UNKNOWN_PARTITION",
        "_WAIT_CACHE",
        "_WAIT_COORD",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "ILLEGAL_GENERATION",
        "NOT_COORDINATOR",
        "REBALANCE_IN_PROGRESS",
        "REQUEST_TIMED_OUT",
        "STALE_MEMBER_EPOCH",
        "UNKNOWN_MEMBER_ID",
        "UNSTABLE_OFFSET_COMMIT",
    }
)


def read_metadata(given: object) -> ConsumerGroupMetadata:
    """Return the identity in the group that a consumer gives as bytes.

    Args:
        given: by `consumer_group_metadata`.

    Raises:
        InvalidConfigurationError: the bytes have another form than the known one.
    """
    if isinstance(given, bytes) and given.startswith(_MAGIC):
        begin = len(_MAGIC) + _GENERATION_BYTES
        # As the processor has it in memory: the bytes are made for the same process.
        generation = int.from_bytes(given[len(_MAGIC) : begin], sys.byteorder, signed=True)
        group, *rest = given[begin:].split(b"\0", 2)
        if len(rest) == 2:
            member, instance = rest
            if instance == bytes([_NO_INSTANCE]):
                return ConsumerGroupMetadata(group.decode(), generation, member.decode())
            if instance[:1] == b"\0" and instance.find(b"\0", 1) == len(instance) - 1:
                name = instance[1:-1].decode()
                return ConsumerGroupMetadata(group.decode(), generation, member.decode(), name)
    raise InvalidConfigurationError(
        "consumer_group_metadata: its form in confluent-kafka"
        f" {confluent_kafka.version()} is not the known one, CGMDv2, so that a consumer which its"
        " group has given up on could not be fenced. Install an older confluent-kafka (2.16 has"
        " the known form), or use kafka-python's consumer: TransactSession.for_kafka_python"
    )


def _checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a consumer, or refuse those that a session cannot have."""
    for name, wanted in REQUIRED.items():
        found = settings.get(name, wanted)
        if str(found).lower() != str(wanted).lower():
            raise InvalidConfigurationError(
                f"{name}={found!r}: a session needs a consumer with {name}={wanted!r}."
                " Otherwise records could be lost or doubled (see the page on sessions)"
            )
    if "default.topic.config" in settings:
        raise InvalidConfigurationError(
            "default.topic.config: give its settings directly, since they are not checked there"
        )
    if not settings.get("group.id"):
        raise InvalidConfigurationError(
            "group.id: a session commits the offsets of a group, and this consumer has none"
        )
    return {**settings, **REQUIRED}


class ConfluentConsumer:
    """A consumer of confluent-kafka, as a session uses it.

    Args:
        settings: for `confluent_kafka.Consumer`. Those that a session needs are set.

    Raises:
        InvalidConfigurationError: with these settings records would be lost or doubled; the error
            names the setting.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._consumer = confluent_kafka.Consumer(_checked(settings))
        self._error: KafkaException | None = None

    def check(self) -> None:
        """See `SessionConsumer`. The settings were checked before; the metadata is here."""
        read_metadata(self._consumer.consumer_group_metadata())

    def subscribe(self, topics: Sequence[str], on_loss: Callable[[], None]) -> None:
        """See `SessionConsumer`."""

        def note(_: object, partitions: Sequence[object]) -> None:
            # A cooperative rebalance that takes nothing away is none.
            if partitions:
                on_loss()

        # Without a callback of assignments: the consumer itself looks up where to read on.
        self._consumer.subscribe(list(topics), on_revoke=note, on_lost=note)

    def poll(self, timeout_s: float, most: int) -> list[Record]:
        """See `SessionConsumer`."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        # `consume` alone would wait until there are as many as are asked for.
        first = self._consumer.poll(timeout_s)
        if first is None:
            return []
        found = []
        for message in [first, *self._consumer.consume(most - 1, 0)]:
            if message.error() is None:
                found.append(_record(message))
            elif message.error().name() not in _PASSING:
                self._error = KafkaException(message.error())
        if self._error is not None and not found:
            return self.poll(0, most)  # raises it; not before the records have been handed out
        return found

    def group_metadata(self) -> ConsumerGroupMetadata:
        """See `SessionConsumer`."""
        return read_metadata(self._consumer.consumer_group_metadata())

    def assignment(self) -> set[TopicPartition]:
        """See `SessionConsumer`."""
        return {TopicPartition(one.topic, one.partition) for one in self._consumer.assignment()}

    def seek(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """See `SessionConsumer`."""
        assigned = self.assignment()
        try:
            for place, offset in offsets.items():
                if place in assigned:
                    self._consumer.seek(ConfluentPartition(*place, offset))
        except KafkaException as error:
            return _is_later(error)
        return True

    def rewind(self, first: Mapping[TopicPartition, int]) -> bool:
        """See `SessionConsumer`."""
        assigned = self._consumer.assignment()
        if not assigned:
            return True
        try:
            for one in self._consumer.committed(assigned, timeout=_COMMITTED_S):
                if one.error is not None:
                    raise KafkaException(one.error)
                place = TopicPartition(one.topic, one.partition)
                start = first.get(place, confluent_kafka.OFFSET_BEGINNING)
                offset = one.offset if one.offset >= 0 else start
                self._consumer.seek(ConfluentPartition(*place, offset))
        except KafkaException as error:
            return _is_later(error)
        return True

    def close(self, timeout_s: float) -> None:  # noqa: ARG002 - the library has its own, 5 s
        """See `SessionConsumer`."""
        self._consumer.close()


def _is_later(error: KafkaException) -> bool:
    """Return False after an error that passes, and raise any other."""
    if error.args[0].name() not in _NOT_YET:
        raise error
    _LOG.info("the committed offsets are not known yet: %s", error)
    return False


def _headers(message: Any) -> Sequence[tuple[str, bytes | None]]:
    try:
        return tuple(message.headers() or ())
    # The library raises the first, and its C code lets Python raise the second in its place.
    except (UnicodeDecodeError, SystemError) as error:
        place = f"{message.topic()}-{message.partition()}, offset {message.offset()}"
        return UnreadableHeaders(place, error)


def _record(message: Any) -> Record:
    kind, timestamp_ms = message.timestamp()
    return Record(
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        _headers(message),
        -1 if kind == confluent_kafka.TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
    )
