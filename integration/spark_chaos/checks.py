"""The rows that readers see, and the check that they are right.

Owns: the rows of a run, a reader that polls all the while, the count after a run. Must not know:
Spark, faults, who has written.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import confluent_kafka

from integration.readers import Read, end_offset, read_with_confluent
from integration.waiting import wait_until

_READ_S = 30.0
_SETTLED_S = 120.0
_PAUSE_S = 0.5
# Between a row and an end that differs each time the frame is evaluated.
OTHER_END = "|"


def value_of(batch: int, number: int, size_bytes: int) -> str:
    """Return a row: its batch and number, filled up to the length of the others."""
    return f"{batch:03}-{number:05}-".ljust(size_bytes, "x")


def batch_of(read: Read) -> int:
    """Return the batch that a row belongs to."""
    return int((read.value or b"")[:3])


@dataclass(frozen=True)
class Count:
    """The count of the rows in the topic, against the rows that should be there.

    Attributes:
        rows: that should be there, each once.
        lost: how many of them are not.
        doubled: how many are there too often, each time counted.
        foreign: how many are there that should not be.
    """

    rows: int
    lost: int
    doubled: int
    foreign: int = 0

    @property
    def is_exact(self) -> bool:
        """Whether each row is there once."""
        return not (self.lost or self.doubled or self.foreign)

    def __str__(self) -> str:
        if self.is_exact:
            return f"each of {self.rows} rows once"
        others = f", {self.foreign} foreign" if self.foreign else ""
        return f"of {self.rows} rows {self.lost} lost, {self.doubled} doubled{others}"


def count(expected: Sequence[str], reads: Sequence[Read]) -> Count:
    """Count rows."""
    seen = Counter((read.value or b"").decode() for read in reads)
    wanted = set(expected)
    return Count(
        rows=len(wanted),
        lost=sum(value not in seen for value in wanted),
        doubled=sum(times - 1 for value, times in seen.items() if value in wanted),
        foreign=sum(times for value, times in seen.items() if value not in wanted),
    )


def settled_reads(servers: str, topic: str, partitions: int) -> list[Read]:
    """Read all that is committed, once no transaction is open any more.

    After an open one there might be rows that no reader sees yet.
    """
    for partition in range(partitions):
        wait_until(
            lambda partition=partition: (  # type: ignore[misc]
                last_stable_offset(servers, topic, partition)
                == end_offset(servers, topic, partition)
            ),
            f"a transaction on {topic}-{partition} has no end",
            _SETTLED_S,
        )
    return read_with_confluent(servers, topic, timeout=_READ_S)


def last_stable_offset(servers: str, topic: str, partition: int) -> int:
    """Return where a partition ends for readers at read_committed."""
    settings = {"group.id": "nobody", "isolation.level": "read_committed"}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, **settings})
    try:
        place = confluent_kafka.TopicPartition(topic, partition)
        return int(consumer.get_watermark_offsets(place, timeout=10)[1])
    finally:
        consumer.close()


class Poller:
    """Reads a topic from its beginning, again and again, at read_committed.

    Args:
        servers: of Kafka.
        topic: which.

    Attributes:
        passes: how often it came to the end of all partitions.
    """

    def __init__(self, servers: str, topic: str) -> None:
        self.passes = 0
        self._servers = servers
        self._topic = topic
        self._seen: dict[tuple[int, int], set[int]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="poller", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the pass under way."""
        self._stop.set()
        self._thread.join(2 * _READ_S)

    def torn(self, reads: Sequence[Read]) -> list[str]:
        """Return where a part of a batch was seen.

        A partition is read to its end, which is a moment of it: of a batch it holds all or nothing
        then. Partitions get the end of a transaction one after the other.

        Args:
            reads: what there is in the end.
        """
        whole = Counter((read.partition, batch_of(read)) for read in reads)
        return [
            f"partition {partition}, batch {batch}: {seen} of {whole[partition, batch]} rows"
            for (partition, batch), counts in sorted(self._seen.items())
            for seen in sorted(counts)
            if seen != whole[partition, batch]
        ]

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                reads = read_with_confluent(self._servers, self._topic, timeout=_READ_S)
            except (TimeoutError, confluent_kafka.KafkaException):
                # A broker is down. The rows that were read so far are no whole pass.
                self._stop.wait(_PAUSE_S)
                continue
            self.saw(reads)
            self._stop.wait(_PAUSE_S)

    def saw(self, reads: Sequence[Read]) -> None:
        """Note the batches that a read of all partitions has found."""
        self.passes += 1
        for place, seen in Counter((read.partition, batch_of(read)) for read in reads).items():
            self._seen.setdefault(place, set()).add(seen)
