"""Readers of other makes, and our transactions in their view."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import kafka

from txnproducer.admin._sockets import owned_consumer

try:
    import confluent_kafka
except ImportError:  # no wheels for a free-threaded interpreter: a test that needs it fails
    confluent_kafka = None

_GROUPS = itertools.count()
# A marker takes milliseconds, on a busy machine more. A transaction that a test leaves open costs
# this time at each look.
_LONGEST_MARKERS_S = 2.0


@dataclass(frozen=True)
class Read:
    """A record as a reader saw it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def read_with_confluent(
    servers: str,
    topic: str,
    isolation: str = "read_committed",
    timeout: float = 20,
    *,
    awaits_markers: bool = True,
) -> list[Read]:
    """Read a whole topic with confluent-kafka (librdkafka), in order of partition and offset.

    Args:
        awaits_markers: not where a transaction is open that the brokers end after a while.
    """
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"reader-{os.getpid()}-{next(_GROUPS)}",
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,  # a fetch that finds nothing shows the end
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=timeout).topics[topic].partitions
        if awaits_markers and isolation == "read_committed":
            await_markers(servers, topic, partitions)
        consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in partitions])
        return _drain(consumer, set(partitions), time.monotonic() + timeout)
    finally:
        consumer.close()


def _drain(consumer, left: set[int], deadline: float) -> list[Read]:
    found: list[Read] = []
    while left:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no end of partitions {left} in time")
        message = consumer.poll(0.5)
        if message is None:
            continue
        error = message.error()
        if error is None:
            place = message.partition(), message.offset()
            headers = tuple(message.headers() or ())
            found.append(Read(*place, message.key(), message.value(), headers))
        elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
            left.discard(message.partition())
        else:
            raise confluent_kafka.KafkaException(error)
    return sorted(found, key=lambda read: (read.partition, read.offset))


def read_with_kafka_python(servers: str, topic: str, timeout: float = 20) -> list[Read]:
    """Read a whole topic with kafka-python at read_committed."""
    with owned_consumer(servers, isolation_level="read_committed") as consumer:
        numbers = consumer.partitions_for_topic(topic)
        await_markers(servers, topic, numbers)
        places = [kafka.TopicPartition(topic, number) for number in sorted(numbers)]
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        consumer.seek_to_beginning(*places)
        found: list[Read] = []
        deadline = time.monotonic() + timeout
        while any(consumer.position(place) < ends[place] for place in places):
            if time.monotonic() > deadline:
                raise TimeoutError("no end in time")
            for records in consumer.poll(timeout_ms=300).values():
                found += [Read(r.partition, r.offset, r.key, r.value) for r in records]
        return sorted(found, key=lambda read: (read.partition, read.offset))


def values(reads: list[Read]) -> list[bytes | None]:
    return [read.value for read in reads]


def await_markers(servers: str, topic: str, partitions: Iterable[int]) -> None:
    """Wait until the partitions have the markers of the transactions that are ended.

    A commit returns before its markers are written. Until then a reader at read_committed finds
    the end of the partition before the transaction.
    """
    deadline = time.monotonic() + _LONGEST_MARKERS_S
    with _asking(servers, "read_committed") as stable, _asking(servers) as all_records:
        for partition in partitions:
            while _end(stable, topic, partition) < _end(all_records, topic, partition):
                if time.monotonic() > deadline:
                    return  # a transaction is open
                time.sleep(0.01)  # no event tells that a marker is written


def end_offset(servers: str, topic: str, partition: int = 0) -> int:
    """Return the end of a partition, open transactions included."""
    with _asking(servers) as consumer:
        return _end(consumer, topic, partition)


@contextmanager
def _asking(servers: str, isolation: str = "read_uncommitted") -> Iterator[Any]:
    settings = {"group.id": "nobody", "isolation.level": isolation}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, **settings})
    try:
        yield consumer
    finally:
        consumer.close()


def _end(consumer: Any, topic: str, partition: int) -> int:
    """Return a partition's end. At read_committed this is the last stable offset."""
    place = confluent_kafka.TopicPartition(topic, partition)
    return int(consumer.get_watermark_offsets(place, timeout=10)[1])
