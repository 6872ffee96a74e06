"""Measure each peer in a process of its own, on one broker, and count the records in the topic.

Owns: fresh topics and processes, their time limit. Must not know: how a peer writes, and what is
made of its figures.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import cast

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from integration.benchmarks.arrived import check_arrived
from integration.benchmarks.busy import broker_processes
from integration.benchmarks.java import JavaPeer
from integration.benchmarks.job import FailedRunError, Job, LeftOutError, Told
from integration.benchmarks.results import Result
from integration.benchmarks.settings import in_words_of
from integration.benchmarks.turns import take_turns
from integration.benchmarks.values import write_values
from integration.benchmarks.works import Work
from txnproducer.errors import KafkaError
from txnproducer.testing import EmbeddedKafka

_LIMIT_S = 120.0
_ADMIN_S = 30.0
# Six hundred partitions, on a machine with other work.
_TOPIC_S = 60.0
# Of the seconds that are measured: as fast as they get after a few transactions.
_WARM_OTHERS = 0.5
# More transactions than any time has.
_MANY = 1_000_000
# Characters of an error in a table.
_LONGEST_ERROR = 200


@dataclass(frozen=True)
class Plan:
    """How it is measured.

    Attributes:
        rounds: in which each peer has its turn.
        seconds: of a measurement; before it, half of that is warm-up.
        java_warm_s: of warm-up for Java, which compiles what runs often, and is three times as
            fast after two seconds as after half of one.
        is_by_time: whether only the time ends a measurement, however many transactions it takes.
    """

    rounds: int
    seconds: float
    java_warm_s: float = 2.0
    is_by_time: bool = False


class Bench:
    """Measures works on a broker.

    Args:
        kafka: the broker, running.
        java: the Java client, compiled, or why it is not.
        folder: for the values.
        plan: how it is measured.
    """

    def __init__(
        self, kafka: EmbeddedKafka, java: JavaPeer | str, folder: Path, plan: Plan
    ) -> None:
        self._kafka = kafka
        self._java = java
        self._folder = folder
        self._plan = plan
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        self._brokers = broker_processes()
        self._count = 0

    def measure(self, table: str, work: Work, peers: Sequence[str]) -> list[Result]:
        """Return the results of the peers, and their failed runs."""
        rounds = 1 if work.is_quiet else self._plan.rounds
        return take_turns(
            table, work, peers, rounds, lambda peer: self.measure_once(table, work, peer)
        )

    def measure_once(self, table: str, work: Work, peer: str) -> Told:
        """Return the answer of one process.

        Raises:
            LeftOutError: the peer cannot do this work.
            FailedRunError: it failed, or not exactly its records are there.
        """
        self._count += 1
        topic = f"bench-{self._count}"
        try:
            self._create(topic, work.partitions)
            told = self._run(self._job(table, work, peer, topic))
            transactions = told["warm"] + told["transactions"]
            check_arrived(
                work,
                transactions,
                lambda: self._stable_end(topic, work.partitions),
                has_markers=peer != "raw.sender",
            )
        finally:
            self._admin.delete_topics([topic])
        return told

    def _job(self, table: str, work: Work, peer: str, topic: str) -> Job:
        seconds = self._plan.seconds
        warm_s = self._plan.java_warm_s if peer == "java" else seconds * _WARM_OTHERS
        return Job(
            peer=peer,
            servers=self._kafka.bootstrap_servers,
            topic=topic,
            transactional_id=f"{topic}-{peer}",
            pool=str(self._pool(work.values, work.value_bytes)),
            value_bytes=work.value_bytes,
            records=work.records,
            partitions=work.partitions,
            threads=work.threads,
            least=work.least,
            most=_MANY if self._plan.is_by_time and not work.is_quiet else work.most,
            seconds=seconds,
            warm_seconds=0 if work.is_quiet else warm_s,
            watches_memory=work.is_quiet,
            brokers=self._brokers,
            settings=in_words_of(peer, table, work.codec),
        )

    def _pool(self, kind: str, size: int) -> Path:
        """Return a file of values, the same for all peers."""
        path = self._folder / f"values-{kind}-{size}"
        if not path.exists():
            write_values(path, kind, size)
        return path

    def _run(self, job: Job) -> Told:
        environment = dict(os.environ)
        if job.peer == "txnproducer.python":
            environment["TXNPRODUCER_IMPL"] = "python"
        try:
            done = subprocess.run(
                self._command(job),
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                env=environment,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise FailedRunError(f"not done in {_LIMIT_S:g} s") from None
        told = done.stdout.splitlines()
        if done.returncode or not told:
            last = done.stderr.strip().splitlines()[-1:] or ["no word"]
            why = _short(last[0])
            raise FailedRunError(f"ended with {done.returncode}: {why}")
        return cast("Told", json.loads(told[-1]))

    def _command(self, job: Job) -> list[str]:
        if job.peer != "java":
            return [sys.executable, "-m", "integration.benchmarks.child", job.to_json()]
        if isinstance(self._java, str):
            raise LeftOutError(self._java)
        if job.threads > 1:
            raise LeftOutError("JavaPeer.java sends from one thread")
        return self._java.command(job)

    def _create(self, topic: str, partitions: int) -> None:
        try:
            self._kafka.create_topic(topic, partitions=partitions, timeout=_TOPIC_S)
        except KafkaError as error:
            why = _short(str(error))
            raise FailedRunError(f"its topic was not made: {why}") from error

    def _stable_end(self, topic: str, partitions: int) -> int:
        places = [TopicPartition(topic, number) for number in range(partitions)]
        try:
            asked = self._admin.list_offsets(
                dict.fromkeys(places, OffsetSpec.latest()),
                isolation_level=IsolationLevel.READ_COMMITTED,
            )
            return sum(each.result(_ADMIN_S).offset for each in asked.values())
        except KafkaException as error:
            raise FailedRunError(f"its records could not be counted: {error}") from error


def _short(text: str) -> str:
    """Return an error as a table has room for it, cut between words if it has any."""
    return shorten(text, _LONGEST_ERROR) if " " in text[:_LONGEST_ERROR] else text[:_LONGEST_ERROR]
