"""Readers at `read_committed` that note every record: one beside the writers, one at the end."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from integration.chaos.checks import FINAL
from integration.chaos.history import COMMITTED, History, Notes, Reading

BESIDE = "beside"
# From a commit to the reader's sight of it, with a cluster that has just recovered.
_LATE_S = 5.0


def _consumer(servers: str, topics: list[str], partitions: int) -> Any:
    import confluent_kafka

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "sight",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            "socket.timeout.ms": 5000,
            "log_level": 0,
        }
    )
    consumer.assign(
        [
            confluent_kafka.TopicPartition(topic, partition, 0)
            for topic in topics
            for partition in range(partitions)
        ]
    )
    return consumer


def _note(notes: Notes, name: str, message: Any) -> tuple[str, int] | None:
    """Note a message, and return the partition if it is the end of one."""
    import confluent_kafka

    place = {"reader": name, "topic": message.topic(), "partition": message.partition()}
    error = message.error()
    if error is None:
        notes.note(**place, offset=message.offset(), value=message.value().decode())
    elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
        notes.note(**place, end=True)
        return message.topic(), message.partition()
    else:
        notes.note(**place, error=str(error)[:200])
    return None


def blind_spot(history: History) -> str:
    """Return the words for a partition that the reader beside the writers did not see, or nothing.

    It has to reach the end of each partition after the last commits there, and to have seen by
    then all that had been committed some time before. A record that the final reader does not see
    either is a finding, and no weakness of this reader.
    """
    places, final = history.readers.get(BESIDE, {}), history.readers.get(FINAL, {})
    for txn in history.txns.values():
        if txn.told != COMMITTED or txn.told_at is None:
            continue
        for topic, partition, value in txn.records:
            if value not in final.get((topic, partition), Reading()).values:
                continue
            reading = places.get((topic, partition), Reading())
            if reading.last_end < txn.told_at - _LATE_S:
                return f"{topic}-{partition} was not read to its end after {value} was committed"
            is_due = reading.last_end > txn.told_at + _LATE_S
            if is_due and value not in reading.values:
                return f"{topic}-{partition} was read to its end without {value}"
    return ""


class Beside:
    """A reader that reads while the writers write.

    Attributes:
        path: of its notes.
        failure: the error that ended it early, or nothing.
    """

    def __init__(self, servers: str, topics: list[str], partitions: int, path: Path) -> None:
        self._arguments = servers, topics, partitions
        self.path = path
        self.failure = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="beside", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(20)

    def _run(self) -> None:
        consumer, notes = _consumer(*self._arguments), Notes(self.path)
        try:
            while not self._stop.is_set():
                message = consumer.poll(0.2)
                if message is not None:
                    _note(notes, BESIDE, message)
        except Exception as error:  # noqa: BLE001 - the row says so: it was not read beside
            self.failure = f"{type(error).__name__}: {error}"[:200]
        finally:
            consumer.close()
            notes.close()


def fill(servers: str, topic: str, partitions: int, count: int) -> None:
    """Write a number of records into each partition, without a transaction."""
    import confluent_kafka

    settings = {"bootstrap.servers": servers, "linger.ms": 20, "enable.idempotence": True}
    producer = confluent_kafka.Producer(settings)
    for number in range(count):
        for partition in range(partitions):
            producer.produce(topic, b"%d" % number, partition=partition)
        producer.poll(0)
    if producer.flush(20):
        raise TimeoutError(f"{topic} could not be filled")


def wait_until_settled(
    servers: str, topics: list[str], partitions: int, limit_s: float
) -> list[str]:
    """Wait until no transaction is open, and return the partitions in which one still is.

    A reader would miss the records after an open transaction.
    """
    import confluent_kafka

    base = {"bootstrap.servers": servers, "group.id": "sight", "log_level": 0}
    stable = confluent_kafka.Consumer({**base, "isolation.level": "read_committed"})
    every = confluent_kafka.Consumer({**base, "isolation.level": "read_uncommitted"})
    left = [(topic, partition) for topic in topics for partition in range(partitions)]
    deadline = time.monotonic() + limit_s
    try:
        while left and time.monotonic() < deadline:
            left = [place for place in left if _is_open(stable, every, place)]
            if left:
                time.sleep(0.5)  # a transaction of a dead client stays open until its time-out
    finally:
        stable.close()
        every.close()
    return [f"{topic}-{partition}" for topic, partition in left]


def _is_open(stable: Any, every: Any, where: tuple[str, int]) -> bool:
    import confluent_kafka

    place = confluent_kafka.TopicPartition(*where)
    try:
        end = every.get_watermark_offsets(place, timeout=5)[1]
        return bool(stable.get_watermark_offsets(place, timeout=5)[1] < end)
    except confluent_kafka.KafkaException:
        return True


def read_all(
    servers: str, topics: list[str], partitions: int, path: Path, limit_s: float
) -> list[str]:
    """Read all committed records. Return the partitions that were not read to their end."""
    consumer, notes = _consumer(servers, topics, partitions), Notes(path)
    left = {(topic, partition) for topic in topics for partition in range(partitions)}
    deadline = time.monotonic() + limit_s
    try:
        while left and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None:
                left.discard(_note(notes, FINAL, message) or ("", 0))
    finally:
        consumer.close()
        notes.close()
    return [f"{topic}-{partition}" for topic, partition in sorted(left)]
