"""The input of a copier: a consumer of a group, by kafka-python or by confluent-kafka.

txnproducer has no consumer, and that of aiokafka needs an event loop: both read with kafka-python.
Owns: the consumers and their positions. Must not know: producers, histories.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

MOST = 12
SESSION_MS, HEARTBEAT_MS = 6000, 1000
_POLL_MS = 300
_PATIENCE_S = 10.0

Place = tuple[str, int]


class Input(Protocol):
    """A consumer.

    Attributes:
        consumer: what the producer takes the group's metadata from.
    """

    consumer: Any

    def poll(self) -> list[tuple[Place, int]]: ...
    def has_partitions(self) -> bool: ...
    def rewind(self) -> None: ...
    def close(self) -> None: ...


class KafkaPythonInput:
    """Read with kafka-python."""

    def __init__(self, servers: str, topic: str, group: str) -> None:
        import kafka

        self.consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=servers.split(","),
            group_id=group,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_poll_records=MOST,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )

    def poll(self) -> list[tuple[Place, int]]:
        batches = self.consumer.poll(timeout_ms=_POLL_MS)
        return [
            (tuple(place), record.offset) for place, all_ in batches.items() for record in all_
        ]

    def has_partitions(self) -> bool:
        return bool(self.consumer.assignment())

    def rewind(self) -> None:
        """Go back to the committed offsets, or to 0 where there is none."""
        for place in self.consumer.assignment():
            self.consumer.seek(place, self.consumer.committed(place) or 0)

    def close(self) -> None:
        self.consumer.close()


class ConfluentInput:
    """Read with confluent-kafka."""

    def __init__(self, servers: str, topic: str, group: str) -> None:
        import confluent_kafka

        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "socket.timeout.ms": 5000,
                "log_level": 0,
            }
        )
        self.consumer.subscribe([topic])

    def poll(self) -> list[tuple[Place, int]]:
        messages = self.consumer.consume(MOST, _POLL_MS / 1000)
        return [
            ((message.topic(), message.partition()), message.offset())
            for message in messages
            if message.error() is None
        ]

    def has_partitions(self) -> bool:
        return bool(self.consumer.assignment())

    def rewind(self) -> None:
        """Go back to the committed offsets, or to 0 where there is none.

        Raises:
            Exception: of the client, if it could not go back within the time limit. The caller
                then begins again with a new consumer.
        """
        end = time.monotonic() + _PATIENCE_S
        places = self.consumer.committed(self.consumer.assignment(), timeout=_PATIENCE_S)
        for place in places:
            place.offset = max(place.offset, 0)
        while True:
            try:
                for place in places:
                    self.consumer.seek(place)
                return
            except Exception:  # librdkafka has one class for all
                # To read on from a wrong place would lose or double records.
                if time.monotonic() >= end:
                    raise
                # A partition whose fetch has not begun yet can't be sought. The poll may take a
                # record of a partition that was sought before, so all of them are sought again.
                self.consumer.poll(0)

    def close(self) -> None:
        self.consumer.close()


def open_input(client: str, servers: str, topic: str, group: str) -> Input:
    """Return the input for a client."""
    if client == "confluent-kafka":
        return ConfluentInput(servers, topic, group)
    return KafkaPythonInput(servers, topic, group)


def next_offsets(batch: list[tuple[Place, int]]) -> dict[Place, int]:
    """Return the offsets to commit: of each partition, the one after its last record."""
    return {place: offset + 1 for place, offset in batch}
