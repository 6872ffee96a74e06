"""`make soak`: an hour of mixed load on three brokers, with a fault a minute and short sessions.

Why it exists: what grows by a little with each transaction, fault or login shows only after many.
Owns: the writers, the samples. Must not know: how brokers are struck (`chaos.faults`), what is
right in a topic (`chaos.run`).

Four services write over TLS, logged in by SCRAM for a minute at a time: ten records a transaction,
2,000 in one call, records with a group's offsets, and ten records with a new producer each time.
Each aborts every seventh transaction. They pause between transactions, so that all records of an
hour can be read back and compared. Every two seconds a sample is taken of this process: memory,
threads, descriptors, renewed logins, and the time of each transaction since the last sample. What
the soak itself keeps of a transaction is one byte, and samples go to a file, so that memory that
grows is the producers'.

`python -m integration.soak_page results/soak.json` takes the result into the documentation.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from integration.chaos.faults import KINDS, Faults
from integration.chaos.run import PARTITIONS, Account, check
from integration.readers import read_with_confluent
from integration.soak_picture import draw
from integration.soak_samples import (
    Sample,
    growth,
    not_renewed,
    too_few_faults,
    wrong_offset,
)
from integration.surroundings import about_run, load
from txnproducer import TransactionalProducer, __version__, errors
from txnproducer._wire.reauthentication import Reauthentication
from txnproducer.records import ConsumerGroupMetadata, TopicPartition
from txnproducer.testing import EmbeddedKafka

RESULTS = Path("results") / "soak.json"
SAMPLES = RESULTS.with_suffix(".jsonl")
PICTURE = RESULTS.with_suffix(".svg")
_EVERY_S = 2.0
_FAULT_IN_S = 120.0  # a pause of a minute, a fault, and the time until the cluster is whole again
_ENDS_S = 180.0  # longer than any call may take
_SESSION_MS = 60_000
_GROUP = "soak"
_OUTCOMES = ("committed", "aborted", "unknown")
_ABORTED_EVERY = 7
_SETTINGS = {"max_block_ms": 60_000, "request_timeout_ms": 5_000, "delivery_timeout_ms": 60_000}


@dataclass
class Writer:
    """One service's work, repeated until the end.

    Attributes:
        of_a_producer: the number of transactions after which a producer is closed and the next one
            made; 0 keeps it.
        producers: that were made.
        told: an index into `_OUTCOMES` for each transaction; the first one has the number 1.
    """

    name: str
    records: int
    pause_s: float
    of_a_producer: int = 0
    producers: int = 0
    aborts: Counter[str] = field(default_factory=Counter)
    new_producers: Counter[str] = field(default_factory=Counter)
    took_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    told: bytearray = field(default_factory=bytearray)

    @property
    def account(self) -> Account:
        outcomes = {number: _OUTCOMES[told] for number, told in enumerate(self.told, 1)}
        return Account(outcomes, self.aborts, self.new_producers)

    def run(self, kafka: EmbeddedKafka, stop: threading.Event) -> None:
        try:
            self._run(kafka, stop)
        except BaseException as error:  # noqa: BLE001 - told at the end, which fails on it
            self.errors.append(repr(error))

    def _run(self, kafka: EmbeddedKafka, stop: threading.Event) -> None:
        while not stop.is_set():
            with TransactionalProducer(
                kafka.bootstrap_servers,
                f"soak-{self.name}",
                **kafka.security_config(),
                **_SETTINGS,
            ) as producer:
                self.producers += 1
                _again(producer.init_transactions)
                last = len(self.told) + (self.of_a_producer or sys.maxsize)
                while len(self.told) < last and not stop.is_set() and self._goes_on(producer):
                    stop.wait(self.pause_s)

    def _goes_on(self, producer: TransactionalProducer) -> bool:
        """Write a transaction, and return whether its producer can be used again."""
        began, outcome = time.monotonic(), "unknown"
        try:
            outcome = self._one(producer, len(self.told) + 1)
        except errors.KafkaError as error:
            outcome = "unknown" if error.recovery == "unknown" else "aborted"
            self.new_producers[repr(error)[:200]] += 1
            return False
        else:
            return True
        finally:
            self.told.append(_OUTCOMES.index(outcome))
            self.took_s.append(time.monotonic() - began)

    def _one(self, producer: TransactionalProducer, number: int) -> str:
        producer.begin_transaction()
        try:
            self._send(producer, number)
            if number % _ABORTED_EVERY == 0:
                _again(producer.abort_transaction)
                return "aborted"
            _again(producer.commit_transaction)
        except errors.KafkaError as error:
            if error.recovery != "abort":
                raise
            self.aborts[type(error).__name__] += 1
            _again(producer.abort_transaction)
            return "aborted"
        return "committed"

    def _send(self, producer: TransactionalProducer, number: int) -> None:
        values = [b"%06d:%04d" % (number, index) for index in range(self.records)]
        places = [index % PARTITIONS for index in range(self.records)]
        if self.name == "long":
            producer.send_batch(self.name, values, partitions=places)
            return
        for value, place in zip(values, places, strict=True):
            producer.send(self.name, value, partition=place)
        if self.name == "offsets":
            offsets = {TopicPartition(self.name, 0): number}
            group = ConsumerGroupMetadata(_GROUP)
            _again(lambda: producer.send_offsets_to_transaction(offsets, group))


def _again(call) -> None:
    """Call until the operation ends. A time-out is not a failure."""
    while True:
        try:
            call()
            return
        except errors.KafkaTimeoutError as error:
            if error.recovery != "resume":
                raise


# --- renewed logins -----------------------------------------------------------------------------

renewals: Counter[str] = Counter()


_collect = Reauthentication.collect


def collect_and_count(login: Reauthentication) -> bytes | int | None:
    """Take a step of a login, and count the renewals that brokers have accepted.

    The package has no metric of them, and a renewal that is never due would leave all else as it
    is until the brokers close the connection.
    """
    outcome = _collect(login)
    if isinstance(outcome, int):
        renewals["accepted"] += 1
    return outcome


# --- samples ------------------------------------------------------------------------------------


def sample(began: float, writers: list[Writer], faults: int) -> Sample:
    """Take a sample, and append it to the file."""
    took = [seconds for writer in writers for seconds in _drained(writer.took_s)]
    status = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text("ascii").splitlines()
    )
    taken = Sample(
        round(time.monotonic() - began, 1),
        round(int(status["VmRSS"].split()[0]) * 1024 / 1e6, 1),
        int(status["Threads"]),
        sum(1 for _ in Path("/proc/self/fd").iterdir()),
        len(took),
        round(statistics.median(took) * 1000, 2) if took else 0.0,
        round(max(took, default=0.0) * 1000, 1),
        faults,
        renewals["accepted"],
    )
    with SAMPLES.open("a", encoding="utf-8") as file:
        file.write(json.dumps(taken) + "\n")
    return taken


def _drained(values: list[float]) -> list[float]:
    drained = values[:]
    del values[: len(drained)]
    return drained


# --- the run ------------------------------------------------------------------------------------


def soak(minutes: float, version: str) -> int:
    writers = [
        Writer("short", 10, 0.02),
        Writer("long", 2_000, 5.0),
        Writer("offsets", 30, 0.2),
        Writer("fresh", 10, 1.0, of_a_producer=1),
    ]
    wrong: list[str] = []
    about = {"minutes": minutes, "version": __version__, **about_run(version)}
    RESULTS.parent.mkdir(exist_ok=True)
    SAMPLES.write_text("", "utf-8")
    settings = {"connections.max.reauth.ms": _SESSION_MS}
    with (
        EmbeddedKafka(3, version=version, listeners=("SASL_SSL",), settings=settings) as kafka,
        patch.object(Reauthentication, "collect", collect_and_count),
    ):
        plain = kafka.addresses("PLAINTEXT")
        for writer in writers:
            config = {"min.insync.replicas": "2"}
            kafka.create_topic(writer.name, partitions=PARTITIONS, config=config)
        faults = Faults(kafka, "short", PARTITIONS, "soak-short", KINDS, seed=1, pause_s=(50, 60))
        stop = threading.Event()
        threads = [
            threading.Thread(target=each.run, args=(kafka, stop), name=each.name)
            for each in writers
        ]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        faults.start()
        try:
            while time.monotonic() - began < minutes * 60:
                time.sleep(_EVERY_S)  # the time between two samples
                # Otherwise a sample would show the garbage of this process as growth.
                gc.collect()
                _show(sample(began, writers, faults.counts.total()))
        finally:
            stop.set()
            faults.stop()
            for thread in threads:
                thread.join(_ENDS_S)
        wrong += [f"{thread.name}: a call hangs" for thread in threads if thread.is_alive()]
        for writer in writers:
            reads = read_with_confluent(plain, writer.name, timeout=300)
            found = check(reads, writer.account, writer.records) + writer.errors
            if writer.name == "offsets":
                found += wrong_offset(writer.account.outcomes, _offset_of(kafka, writer.name))
            wrong += [f"{writer.name}: {each}" for each in found]
    wrong += [f"a fault could not be made: {error!r}" for error in faults.errors]
    lines = SAMPLES.read_text("utf-8").splitlines()
    samples = [Sample(*json.loads(line)) for line in lines]
    wrong += growth(samples) + not_renewed(samples, 2 * _SESSION_MS / 1000)
    wrong += too_few_faults(samples, _FAULT_IN_S)
    about["load_after"] = load()
    _note(about, samples, writers, faults.counts, wrong)
    return 1 if wrong else 0


def _offset_of(kafka: EmbeddedKafka, topic: str) -> int | None:
    told = kafka.committed(_GROUP).get(TopicPartition(topic, 0))
    return None if told is None else told.offset


def _show(latest: Sample) -> None:
    print(
        f"{latest.at_s:7.0f} s  {latest.memory_mb:6.1f} MB  {latest.threads:3} threads "
        f" {latest.descriptors:3} descriptors  {latest.renewals:4} renewals "
        f" {latest.transactions:5} transactions, "
        f" median {latest.median_ms:.1f} ms, longest {latest.longest_ms:.0f} ms",
        flush=True,
    )


def _note(
    about: dict[str, Any],
    samples: list[Sample],
    writers: list[Writer],
    faults: Counter[str],
    wrong: list[str],
) -> None:
    told = {
        "about": about,
        "faults": dict(faults),
        "outcomes": {each.name: dict(Counter(each.account.outcomes.values())) for each in writers},
        "producers": {each.name: each.producers for each in writers},
        "new_producers": {each.name: dict(each.new_producers) for each in writers},
        "wrong": wrong,
    }
    RESULTS.write_text(json.dumps(told | {"samples": samples}) + "\n", "utf-8")
    PICTURE.write_text(draw(samples), "utf-8")
    print(json.dumps(told, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m integration.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--version", default="4.3.1", help="of Kafka")
    arguments = parser.parse_args()
    return soak(arguments.minutes, arguments.version)


if __name__ == "__main__":
    sys.exit(main())
