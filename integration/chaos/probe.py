"""Fresh producers beside a row: when could the cluster have taken a transaction?

Why it exists: a writer that stands still may wait for the cluster, or for a time-out of its own. A
producer that knows nothing yet has no connection, no leader and no transaction to be wrong about.
If no such producer commits, the wait is most probably the cluster's. A weakness that all fresh
producers of one client share would look the same, so another client has a probe as well.

`python -m integration.chaos.probe JOB` begins an attempt each half a second with fresh producers
of the job's client, and notes commits.
Owns: the attempts, and their transactional ids, which have the coordinator of the row's first
writer. Must not know: faults, checks.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from integration.chaos.history import Notes
from integration.chaos.job import Job
from integration.chaos.plan import COPY, NEUTRAL, OURS
from txnproducer import ConsumerGroupMetadata, TopicPartition, TransactionalProducer, admin
from txnproducer.errors import KafkaError
from txnproducer.testing import EmbeddedKafka

# A fresh transaction takes 3 to 4 s over a slow link, and its records have one limit.
EVERY_S, LIMIT_S = 0.5, 8.0
# Attempts in which one call hangs must not keep the next ones from beginning.
_IDS = round(LIMIT_S / EVERY_S) + 2
_TRANSACTIONS, _OFFSETS = "__transaction_state", "__consumer_offsets"
_LOOK_S = 0.2
_WARM, _WARM_PARTITIONS, _WARM_COMMITS, _WARM_LIMIT_S = "warm-up", 4, 40, 30.0


class Probe:
    """The probe's process, beside the writers of a row.

    Args:
        job: of the row's first writer.
        client: whose fresh producers make the attempts.
        topics: the probe's own.
        folder: for the history and the output.
    """

    def __init__(self, job: Job, client: str, topics: list[str], folder: Path) -> None:
        name = f"probe-{client}"
        history = str(folder / f"{name}.jsonl")
        job = replace(job, client=client, topics=topics, writer=name, history=history)
        with (folder / f"{name}.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "integration.chaos.probe", job.to_json()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """End the process. Attempts under way are left to the brokers."""
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)


class Attempts:
    """The attempts of one process.

    Args:
        job: has the client, the topics and the end.
        transactional_ids: of the producers, each in its turn.
        group: for the client's `commit`.
    """

    def __init__(self, job: Job, transactional_ids: list[str], group: Any) -> None:
        self._job, self._ids, self._group = job, transactional_ids, group
        self._commit = COMMIT[job.client]
        self._notes = Notes(Path(job.history))
        self._lock = threading.Lock()

    def run(self) -> None:
        threads = [
            threading.Thread(target=self._repeat, args=place, daemon=True)
            for place in enumerate(self._ids)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._notes.close()

    def _repeat(self, place: int, transactional_id: str) -> None:
        """Make an attempt in each turn of this id, until the job's end."""
        turn_s = len(self._ids) * EVERY_S
        due = time.monotonic() + place * EVERY_S
        while due < self._job.until:
            time.sleep(max(0.0, due - time.monotonic()))  # the pace of the probe
            began = time.monotonic()
            with contextlib.suppress(KafkaError):
                self._commit(self._job, transactional_id, self._group, LIMIT_S)
                took = round(time.monotonic() - began, 2)
                with self._lock:
                    self._notes.note(probe=self._job.client, took=took)
            due = max(due + turn_s, time.monotonic())


def warm_up(kafka: EmbeddedKafka) -> None:
    """Write transactions to a new cluster.

    Its first ones take ten times as long, and the client whose row comes first would pay for it.
    """
    kafka.create_topic(_WARM, _WARM_PARTITIONS)
    job = Job(
        client=OURS,
        servers=kafka.bootstrap_servers,
        transactional_id=_WARM,
        writer=_WARM,
        workload=COPY,
        topics=[_WARM],
        partitions=_WARM_PARTITIONS,
        until=0.0,
        history="",
        source=_WARM,
        group=_WARM,
    )
    group = ConsumerGroupMetadata(job.group)
    for number in range(_WARM_COMMITS):
        commit(job, f"{_WARM}-{number % _IDS}", group, _WARM_LIMIT_S)


def commit(job: Job, transactional_id: str, group: Any, limit_s: float) -> None:
    """Write a transaction with a fresh producer of ours.

    Args:
        job: has the servers and the topics.
        transactional_id: of the producer.
        group: the metadata of the group whose offsets are sent, if the job has a source.
        limit_s: for each call.

    Raises:
        KafkaError: it was not committed in time.
    """
    limit_ms = round(limit_s * 1000)
    producer = TransactionalProducer(
        job.servers,
        transactional_id,
        linger_ms=0,
        request_timeout_ms=limit_ms,
        delivery_timeout_ms=limit_ms,
        max_block_ms=limit_ms,
        transaction_timeout_ms=2 * limit_ms,
    )
    try:
        producer.init_transactions()
        producer.begin_transaction()
        for topic, partition in itertools.product(job.topics, range(job.partitions)):
            producer.send(topic, b"", partition=partition)
        if job.source:
            offsets = {TopicPartition(job.source, 0): 0}
            producer.send_offsets_to_transaction(offsets, group)
        producer.commit_transaction()
    finally:
        producer.close(timeout=0)


def commit_confluent(job: Job, transactional_id: str, group: Any, limit_s: float) -> None:
    """Write a transaction with a fresh producer of confluent-kafka, as `commit` does."""
    import confluent_kafka

    limit_ms = round(limit_s * 1000)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": job.servers,
            "transactional.id": transactional_id,
            "linger.ms": 0,
            "socket.timeout.ms": limit_ms,
            "message.timeout.ms": limit_ms,
            "transaction.timeout.ms": 2 * limit_ms,
            "log_level": 0,
        }
    )
    try:
        producer.init_transactions(limit_s)
        producer.begin_transaction()
        for topic, partition in itertools.product(job.topics, range(job.partitions)):
            producer.produce(topic, b"", partition=partition)
        if job.source:
            offsets = [confluent_kafka.TopicPartition(job.source, 0, 0)]
            producer.send_offsets_to_transaction(offsets, group, limit_s)
        producer.commit_transaction(limit_s)
    except confluent_kafka.KafkaException as error:
        raise KafkaError(str(error)) from error
    # With its last reference goes the producer: it drops what is left, and ends its threads.


COMMIT: dict[str, Callable[[Job, str, Any, float], None]] = {
    OURS: commit,
    NEUTRAL: commit_confluent,
}


def group_metadata(client: str, servers: str, group: str) -> Any:
    """Return a group's metadata, of no member, in the form of a client."""
    if client == OURS:
        return ConsumerGroupMetadata(group)
    import confluent_kafka

    settings = {"bootstrap.servers": servers, "group.id": group, "log_level": 0}
    consumer = confluent_kafka.Consumer(settings)  # nothing else makes such an object
    try:
        return consumer.consumer_group_metadata()
    finally:
        consumer.close()


def alike(key: str, label: str, count: int, partitions: int) -> list[str]:
    """Return so many names, with a label in them, that have the same coordinator as `key`."""
    names = (f"{key}-{label}-{number}" for number in itertools.count())
    same = (name for name in names if _bucket(name, partitions) == _bucket(key, partitions))
    return list(itertools.islice(same, count))


def _bucket(key: str, partitions: int) -> int:
    return (admin.java_hash(key) & 0x7FFFFFFF) % partitions


def _partitions(job: Job, topic: str) -> int:
    """Wait until there is a coordinators' topic, and return the number of its partitions."""
    while time.monotonic() < job.until:
        with contextlib.suppress(KafkaError):
            if count := admin.partition_count(job.servers, topic):
                return count
        time.sleep(_LOOK_S)  # the first writer makes the topic
    raise SystemExit(f"no {topic}")


def main() -> None:
    job = Job.from_json(sys.argv[1])
    ids = alike(job.transactional_id, job.writer, _IDS, _partitions(job, _TRANSACTIONS))
    group = None
    if job.source:
        name = alike(job.group, job.writer, 1, _partitions(job, _OFFSETS))[0]
        group = group_metadata(job.client, job.servers, name)
    Attempts(job, ids, group).run()


if __name__ == "__main__":
    main()
