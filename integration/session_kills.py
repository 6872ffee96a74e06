"""Workers of a session that are killed at random, and an account of their results.

Why it exists: a kill between any two steps of a worker must neither lose, double nor reorder a
record. Only many kills at random places show it.
Owns: the workers' processes, the kills, the account. Must not know: how a session works.

Three workers copy a keyed topic into another one, while a feeder writes. `--kills 200` kills them
with SIGKILL at random, and starts each of them again. The end reads the output at read_committed:
each record once, in the order of its key.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self

import confluent_kafka
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor

from integration.readers import Read, read_with_confluent
from txnproducer import TransactionalProducer
from txnproducer.session import TransactSession
from txnproducer.testing import EmbeddedKafka

PARTITIONS = 6
KEYS = 12
WORKERS = 3
# Short, so that the group notices a killed worker soon. The broker allows no less.
_CLASSIC = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 1_000}
_OF_KAFKA_PYTHON = {
    "session_timeout_ms": 6_000,
    "heartbeat_interval_ms": 1_000,
    # After a restart of a broker it would begin again after 30 seconds.
    "reconnect_backoff_max_ms": 1_000,
    "request_timeout_ms": 10_000,
}
CONSUMERS: dict[str, dict[str, Any]] = {
    "kafka-python": _OF_KAFKA_PYTHON,
    "kafka-python-cooperative": {
        **_OF_KAFKA_PYTHON,
        "partition_assignment_strategy": (CooperativeStickyAssignor,),
    },
    "confluent": _CLASSIC,
    "confluent-cooperative": {
        **_CLASSIC,
        "partition.assignment.strategy": "cooperative-sticky",
    },
    "confluent-848": {"group.protocol": "consumer"},
}
_STATIC = "-static"
# Of groups of KIP-848 the broker decides.
BROKER = {
    "group.consumer.min.session.timeout.ms": 6_000,
    "group.consumer.session.timeout.ms": 6_000,
    "group.consumer.min.heartbeat.interval.ms": 1_000,
    "group.consumer.heartbeat.interval.ms": 1_000,
}
PRODUCER = {"linger_ms": 0, "transaction_timeout_ms": 15_000}
_A_SECOND = 150  # records that the feeder writes
_DONE_S = 120.0  # after the last kill
_ENDS_S = 30.0
_SIGTERM_RATE = 0.15


def open_session(
    consumer: str, servers: str, topics: tuple[str, str], transactional_id: str, **settings: Any
) -> TransactSession:
    """Open a session from the first topic.

    Args:
        consumer: a name of `CONSUMERS`; with "-static" at its end it is a static member.
        servers: of both clients.
        topics: the input and the output.
        transactional_id: of the producer; that of a static member as well.
        **settings: of the session.
    """
    name, static, _ = consumer.partition(_STATIC)
    is_confluent = name.startswith("confluent")
    instance = "group.instance.id" if is_confluent else "group_instance_id"
    common = {**CONSUMERS[name], **({instance: transactional_id} if static else {})}
    make = TransactSession.for_confluent if is_confluent else TransactSession.for_kafka_python
    return make(
        [topics[0]],
        f"group-{topics[0]}",
        transactional_id,
        bootstrap_servers=servers,
        consumer_settings={**common, **settings.pop("consumer_settings", {})},
        producer_settings={**PRODUCER, **settings.pop("producer_settings", {})},
        **settings,
    )


def work(consumer: str, servers: str, topics: tuple[str, str], transactional_id: str) -> None:
    """Copy records until the process is ended; SIGTERM ends it in good order."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def copy(record, transaction):
        transaction.send(topics[1], record.value, record.key)
        time.sleep(0.001)  # so that a kill meets a batch

    with open_session(consumer, servers, topics, transactional_id) as session:
        session.run(copy, stop, max_records=20)


class Workers:
    """The processes of a group; a worker that is ended is started again.

    Attributes:
        ends: by the name of the signal.
    """

    def __init__(self, consumer: str, servers: str, topics: tuple[str, str]) -> None:
        self._arguments = consumer, servers, topics
        self._processes: dict[int, Any] = {}
        self.ends: Counter[str] = Counter()

    def __enter__(self) -> Self:
        for slot in range(WORKERS):
            self._start(slot)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.join(_ENDS_S)
            process.kill()
            process.join()

    def _start(self, slot: int) -> None:
        spawn: Any = multiprocessing.get_context("spawn")
        arguments = (*self._arguments, f"{self._arguments[2][0]}-{slot}")
        self._processes[slot] = spawn.Process(target=work, args=arguments)
        self._processes[slot].start()

    def end(self, slot: int, with_signal: signal.Signals) -> None:
        """End a worker, and start it again."""
        process = self._processes[slot]
        assert process.is_alive(), f"worker {slot} has ended by itself: {process.exitcode}"
        os.kill(process.pid, with_signal)
        process.join(_ENDS_S)
        assert not process.is_alive(), f"worker {slot} does not end"
        self.ends[with_signal.name] += 1
        self._start(slot)


@dataclass
class Feeder:
    """Writes numbers to a topic, each key's in ascending order.

    Attributes:
        count: of the numbers that are written.
    """

    servers: str
    topic: str
    count: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def write(self, producer: TransactionalProducer, count: int) -> None:
        """Write the next numbers in a transaction."""
        with producer.transaction():
            for number in range(self.count, self.count + count):
                producer.send(self.topic, b"%d" % number, key=b"key %d" % (number % KEYS))
        self.count += count

    def fill(self, count: int) -> None:
        """Write numbers, once."""
        with self._producer() as producer:
            producer.init_transactions()
            self.write(producer, count)

    def _producer(self) -> TransactionalProducer:
        return TransactionalProducer(self.servers, f"feeder-{self.topic}")

    def _run(self) -> None:
        with self._producer() as producer:
            producer.init_transactions()
            while not self._stop.wait(0.2):
                self.write(producer, _A_SECOND // 5)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class Watcher:
    """Counts the results while they come.

    Attributes:
        count: of the results seen.
        longest_s: the longest time without a new one.
    """

    def __init__(self, servers: str, topic: str) -> None:
        settings = {"group.id": "watcher", "isolation.level": "read_committed"}
        self._consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, **settings})
        places = (confluent_kafka.TopicPartition(topic, n, 0) for n in range(PARTITIONS))
        self._consumer.assign(list(places))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.count, self.longest_s = 0, 0.0

    def _run(self) -> None:
        last_s = time.monotonic()
        while not self._stop.is_set():
            message = self._consumer.poll(0.2)
            now_s = time.monotonic()
            self.longest_s = max(self.longest_s, now_s - last_s)
            if message is not None and message.error() is None:
                self.count, last_s = self.count + 1, now_s

    def reaches(self, count: int, within_s: float) -> bool:
        """Return whether so many results are there in time."""
        end_s = time.monotonic() + within_s
        while self.count < count and time.monotonic() < end_s:
            time.sleep(0.1)  # the counting thread needs the processor
        return self.count >= count

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()


@dataclass(frozen=True)
class Account:
    """The results, compared with the input.

    Attributes:
        lost: numbers without a result.
        doubled: results beyond the first of a number.
        disordered: results that come before an earlier one of their key.
    """

    lost: int
    doubled: int
    disordered: int

    @property
    def is_exact(self) -> bool:
        """Whether each number has one result, in the order of its key."""
        return (self.lost, self.doubled, self.disordered) == (0, 0, 0)


def account(count: int, reads: list[Read]) -> Account:
    """Compare the numbers from 0 to a count with the records of a topic, in their order."""
    results = Counter(int(read.value or b"-1") for read in reads)
    by_key = defaultdict(list)
    for read in reads:
        by_key[read.key].append(int(read.value or b"-1"))
    pairs = (pair for numbers in by_key.values() for pair in pairwise(numbers))
    return Account(
        lost=sum(number not in results for number in range(count)),
        doubled=sum(results.values()) - len(results),
        disordered=sum(before > after for before, after in pairs),
    )


@dataclass(frozen=True)
class Campaign:
    """The figures of a campaign.

    Attributes:
        longest_s: the longest time without a new result.
        rest_s: from the last kill to the last result.
    """

    consumer: str
    seed: int
    kills: int
    terms: int
    records: int
    account: Account
    longest_s: float
    rest_s: float
    took_s: float

    ROW = "{:32}{:>6}{:>7}{:>9}{:>9}{:>6}{:>9}{:>14}{:>15}{:>8}{:>8}"

    @classmethod
    def head(cls) -> str:
        """Return the line above the rows."""
        names = ("consumer", "seed", "kills", "SIGTERM", "records", "lost", "doubled")
        return cls.ROW.format(*names, "out of order", "longest gap s", "rest s", "took s")

    def __str__(self) -> str:
        found = self.account
        figures = self.kills, self.terms, self.records, found.lost, found.doubled, found.disordered
        times = f"{self.longest_s:.1f}", f"{self.rest_s:.1f}", f"{self.took_s:.0f}"
        return self.ROW.format(self.consumer, self.seed, *figures, *times)


def play(kafka: EmbeddedKafka, consumer: str, kills: int, seed: int, topics: Any) -> Campaign:
    """Kill workers at random, and take account of their results.

    Args:
        kafka: has the topics.
        consumer: the name of its library.
        kills: by SIGKILL; a few ends by SIGTERM come between.
        seed: of the times, the workers and the signals.
        topics: the input and the output, both new.
    """
    rng, began_s, servers = random.Random(seed), time.monotonic(), kafka.bootstrap_servers
    with Watcher(servers, topics[1]) as watcher, Workers(consumer, servers, topics) as workers:
        with Feeder(servers, topics[0]) as feeder:
            while workers.ends["SIGKILL"] < kills:
                time.sleep(rng.uniform(0.3, 2.7))  # into a start, a poll, a batch, a rebalance
                is_kill = rng.random() > _SIGTERM_RATE
                workers.end(rng.randrange(WORKERS), signal.SIGKILL if is_kill else signal.SIGTERM)
        ended_s = time.monotonic()
        watcher.reaches(feeder.count, _DONE_S)
        rest_s = time.monotonic() - ended_s
    return Campaign(
        consumer,
        seed,
        workers.ends["SIGKILL"],
        workers.ends["SIGTERM"],
        feeder.count,
        account(feeder.count, read_with_confluent(servers, topics[1], timeout=60)),
        watcher.longest_s,
        rest_s,
        time.monotonic() - began_s,
    )


def make_topics(kafka: EmbeddedKafka, name: str) -> tuple[str, str]:
    """Make a topic of input and one of output."""
    topics = f"in-{name}", f"out-{name}"
    for topic in topics:
        kafka.create_topic(topic, partitions=PARTITIONS)
    return topics


def main() -> int:
    """Run campaigns, print a table, and return 1 if a result is not exact."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200, help="of each campaign")
    names = [name + end for name in CONSUMERS for end in ("", _STATIC)]
    usual = ["kafka-python", "confluent"]
    parser.add_argument("--consumer", choices=names, nargs="+", default=usual)
    parser.add_argument("--seed", type=int, nargs="+", default=[1], help="a campaign for each")
    given = parser.parse_args()
    print(Campaign.head(), flush=True)
    found = []
    with EmbeddedKafka(settings=BROKER) as kafka:
        for consumer in given.consumer:
            for seed in given.seed:
                topics = make_topics(kafka, f"{consumer}-{seed}")
                found.append(play(kafka, consumer, given.kills, seed, topics))
                print(found[-1], flush=True)
    return 0 if all(one.account.is_exact for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
