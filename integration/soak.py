"""`make soak`: an hour of mixed load on three brokers, with a fault a minute and short sessions.

Why it exists: what grows by a little with each transaction, fault or login shows only after many.
Owns: the writers, the samples, the judgement that nothing grows. Must not know: how brokers are
struck (`chaos.faults`), what is right in a topic (`chaos.run`).

Three producers write over TLS, logged in by SCRAM for a minute at a time: ten records a
transaction, 2,000 in one call, and records with a group's offsets. They pause between
transactions, so that all records of an hour can be read back and compared. Every two seconds a
sample is taken of this process: memory, threads, descriptors, and the time of each transaction
since the last sample.
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
from typing import NamedTuple

from integration.chaos.faults import KINDS, Faults
from integration.chaos.run import PARTITIONS, Account, check
from integration.readers import read_with_confluent
from txnproducer import TransactionalProducer, errors
from txnproducer.records import ConsumerGroupMetadata, TopicPartition
from txnproducer.testing import EmbeddedKafka

RESULTS = Path("results") / "soak.json"
PICTURE = Path("results") / "soak.svg"
_EVERY_S = 2.0
_ENDS_S = 180.0  # longer than any call may take
_SESSION_MS = 60_000
# The share of the run in which caches, pools and the first faults settle.
_SETTLING = 0.25
# The growth from the second quarter of a run to its last one that counts as none.
_ALLOWED = {"memory_mb": 1.10, "threads": 1.0, "descriptors": 1.0}
_SETTINGS = {"max_block_ms": 60_000, "request_timeout_ms": 5_000, "delivery_timeout_ms": 60_000}


class Sample(NamedTuple):
    """This process at one time.

    Attributes:
        at_s: seconds since the begin.
        memory_mb: resident.
        transactions: that have ended since the last sample.
        median_ms: how long these took; 0 if there are none.
        longest_ms: likewise.
    """

    at_s: float
    memory_mb: float
    threads: int
    descriptors: int
    transactions: int
    median_ms: float
    longest_ms: float


@dataclass
class Writer:
    """One producer's work, repeated until the end."""

    name: str
    records: int
    pause_s: float
    account: Account = field(default_factory=Account)
    took_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def run(self, kafka: EmbeddedKafka, stop: threading.Event) -> None:
        try:
            self._run(kafka, stop)
        except BaseException as error:  # noqa: BLE001 - told at the end, which fails on it
            self.errors.append(repr(error))

    def _run(self, kafka: EmbeddedKafka, stop: threading.Event) -> None:
        number = 0
        while not stop.is_set():
            with TransactionalProducer(
                kafka.bootstrap_servers,
                f"soak-{self.name}",
                **kafka.security_config(),
                **_SETTINGS,
            ) as producer:
                _again(producer.init_transactions)
                while not stop.is_set():
                    began = time.monotonic()
                    number += 1
                    try:
                        self.account.outcomes[number] = self._one(producer, number)
                    except errors.KafkaError as error:
                        is_unknown = error.recovery == "unknown"
                        self.account.outcomes[number] = "unknown" if is_unknown else "aborted"
                        self.account.new_producers[repr(error)[:200]] += 1
                        break
                    finally:
                        self.took_s.append(time.monotonic() - began)
                    stop.wait(self.pause_s)

    def _one(self, producer: TransactionalProducer, number: int) -> str:
        producer.begin_transaction()
        try:
            self._send(producer, number)
            _again(producer.commit_transaction)
        except errors.KafkaError as error:
            if error.recovery != "abort":
                raise
            self.account.aborts[type(error).__name__] += 1
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
            group = ConsumerGroupMetadata("soak")
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


# --- samples ------------------------------------------------------------------------------------


def sample(began: float, writers: list[Writer]) -> Sample:
    """Take a sample."""
    took = [seconds for writer in writers for seconds in _drained(writer.took_s)]
    status = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text("ascii").splitlines()
    )
    return Sample(
        round(time.monotonic() - began, 1),
        round(int(status["VmRSS"].split()[0]) * 1024 / 1e6, 1),
        int(status["Threads"]),
        sum(1 for _ in Path("/proc/self/fd").iterdir()),
        len(took),
        round(statistics.median(took) * 1000, 2) if took else 0.0,
        round(max(took, default=0.0) * 1000, 1),
    )


def _drained(values: list[float]) -> list[float]:
    drained = values[:]
    del values[: len(drained)]
    return drained


def growth(samples: list[Sample]) -> list[str]:
    """Return the values that grew: the last quarter of a run against its second one."""
    count = len(samples)
    early = samples[round(count * _SETTLING) : count // 2]
    late = samples[round(count * (1 - _SETTLING)) :]
    grown = []
    for name, allowed in _ALLOWED.items():
        before = statistics.median(getattr(each, name) for each in early)
        after = statistics.median(getattr(each, name) for each in late)
        if after > before * allowed:
            grown.append(f"{name}: {before} in the second quarter, {after} in the last")
    return grown


def draw(samples: list[Sample], path: Path) -> None:
    """Draw the times of transactions, and the memory, over the run."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    figure, (upper, lower) = plt.subplots(2, figsize=(7.5, 5), sharex=True, layout="constrained")
    minutes = [each.at_s / 60 for each in samples]
    upper.semilogy(minutes, [each.longest_ms or None for each in samples], ".", label="longest")
    upper.semilogy(minutes, [each.median_ms or None for each in samples], label="median")
    upper.set_ylabel("a transaction, ms")
    upper.legend()
    lower.plot(minutes, [each.memory_mb for each in samples])
    lower.set_ylabel("memory, MB")
    lower.set_xlabel("minutes")
    figure.savefig(path)


# --- the run ------------------------------------------------------------------------------------


def soak(minutes: float, version: str) -> int:
    writers = [
        Writer("short", 10, 0.02),
        Writer("long", 2_000, 5.0),
        Writer("offsets", 30, 0.2),
    ]
    samples: list[Sample] = []
    wrong: list[str] = []
    settings = {"connections.max.reauth.ms": _SESSION_MS}
    with EmbeddedKafka(3, version=version, listeners=("SASL_SSL",), settings=settings) as kafka:
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
                samples.append(sample(began, writers))
                _show(samples[-1])
        finally:
            stop.set()
            faults.stop()
            for thread in threads:
                thread.join(_ENDS_S)
        wrong += [f"{thread.name}: a call hangs" for thread in threads if thread.is_alive()]
        for writer in writers:
            reads = read_with_confluent(plain, writer.name, timeout=300)
            found = check(reads, writer.account, writer.records) + writer.errors
            wrong += [f"{writer.name}: {each}" for each in found]
    wrong += [f"a fault could not be made: {error!r}" for error in faults.errors]
    wrong += growth(samples)
    _note(samples, writers, faults.counts, wrong)
    return 1 if wrong else 0


def _show(latest: Sample) -> None:
    print(
        f"{latest.at_s:7.0f} s  {latest.memory_mb:6.1f} MB  {latest.threads:3} threads "
        f" {latest.descriptors:3} descriptors  {latest.transactions:5} transactions, "
        f" median {latest.median_ms:.1f} ms, longest {latest.longest_ms:.0f} ms",
        flush=True,
    )


def _note(
    samples: list[Sample], writers: list[Writer], faults: Counter[str], wrong: list[str]
) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    told = {
        "faults": dict(faults),
        "outcomes": {each.name: dict(Counter(each.account.outcomes.values())) for each in writers},
        "new_producers": {each.name: dict(each.account.new_producers) for each in writers},
        "wrong": wrong,
        "samples": [each._asdict() for each in samples],
    }
    RESULTS.write_text(json.dumps(told, indent=1) + "\n", "utf-8")
    draw(samples, PICTURE)
    del told["samples"]
    print(json.dumps(told, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m integration.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--version", default="4.3.1", help="of Kafka")
    arguments = parser.parse_args()
    return soak(arguments.minutes, arguments.version)


if __name__ == "__main__":
    sys.exit(main())
