"""`python -m integration.two_phase_kills`: kill -9 at any moment of prepare, decide and complete.

A process pays: each payment is a row in a database and a record in Kafka, which
`SqlAlchemyDecisions` commits together. It is killed at a random moment, and the next one recovers
and goes on. Now and then the broker is killed as well. Now and then a process is stopped, another
one takes its id over, and the first wakes. In the end rows and records must be the same numbers
from 1 on, each once, in order, and no process may have failed or hung. The broker lets a prepared
transaction wait for ever.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import sqlalchemy as sa

from integration.postgres import postgres
from integration.readers import read_with_confluent
from txnproducer.testing import EmbeddedKafka

NO_TIMEOUT_MS = 2**31 - 1
_LONGEST_RUN_S = 0.7
_BROKER_EVERY = 20
_SLEEP_EVERY = 3
_READ_S = 60.0


def broker(max_timeout_ms: int = NO_TIMEOUT_MS) -> EmbeddedKafka:
    """Make a broker that lets transactions be prepared for any time, or for that long."""
    return EmbeddedKafka(
        settings={
            "transaction.max.timeout.ms": max_timeout_ms,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
            "group.initial.rebalance.delay.ms": 0,
        },
    )


class Workers:
    """A process that makes forks, which pay and are killed. See `two_phase_worker`."""

    def __init__(
        self, servers: str, url: str, topic: str, name: str, timeout_ms: int = NO_TIMEOUT_MS
    ) -> None:
        command = [sys.executable, "-m", "integration.two_phase_worker"]
        self._process = subprocess.Popen(
            [*command, servers, url, topic, name, str(timeout_ms)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, command: str) -> str:
        """Give a command, and return the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


@contextmanager
def workers(kafka: EmbeddedKafka, url: str, name: str, timeout_ms: int) -> Iterator[Workers]:
    """Make a topic, and run a worker process that pays into it. Both have the name."""
    kafka.create_topic(name, partitions=1)
    made = Workers(kafka.bootstrap_servers, url, name, name, timeout_ms)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def database(kind: str) -> Iterator[str]:
    """Yield the URL of a new database."""
    if kind == "postgres":
        with postgres() as url:
            yield url
        return
    with tempfile.TemporaryDirectory() as folder:
        yield f"sqlite:///{Path(folder, 'payments.db')}"


def booked(url: str) -> list[int]:
    """Return the amounts in the database, in order."""
    engine = sa.create_engine(url)
    try:
        with engine.connect() as connection:
            rows = connection.execute(sa.text("SELECT amount FROM payments ORDER BY amount"))
            return [row.amount for row in rows]
    finally:
        engine.dispose()


def sent(servers: str, topic: str) -> list[int]:
    """Return the amounts that a read_committed consumer gets, in its order."""
    return [
        int(record.value or b"0")
        for record in read_with_confluent(servers, topic, timeout=_READ_S)
    ]


@dataclass
class Outcome:
    """The result of a campaign."""

    kills: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    payments: int = 0
    wrong: list[str] = field(default_factory=list)

    def take(self, answer: str, right: set[str], about: str = "") -> None:
        """Count how a process has ended, and note it if it must not end so."""
        self.answers[about + answer] += 1
        self.kills["process"] += answer == "killed"
        if answer not in right:
            self.wrong.append(f"a process has {answer} after {self.kills.total()} kills")


def run(kafka: EmbeddedKafka, url: str, name: str, kills: int, seed: int) -> Outcome:
    """Kill so many times, recover, and compare both sides."""
    rng, outcome = random.Random(seed), Outcome()
    with workers(kafka, url, name, NO_TIMEOUT_MS) as paying:
        for turn in count():
            if outcome.kills.total() >= kills:
                break
            seconds = rng.uniform(0.0, _LONGEST_RUN_S)
            if turn % _BROKER_EVERY == _BROKER_EVERY - 1:
                outcome.kills["broker"] += 1
                restart = threading.Thread(target=_restart, args=(kafka, rng.uniform(0.2, 0.6)))
                restart.start()
                # Some producers die while the broker is away, and some outlive that.
                outcome.take(paying.ask(f"run {rng.uniform(0.5, 8.0):.3f}"), {"killed"})
                restart.join()
            elif turn % _SLEEP_EVERY == 0:
                other_s, awake_s = rng.uniform(0.3, 1.5), rng.uniform(0.1, 1.0)
                answer = paying.ask(f"sleep {seconds + 0.2:.3f} {other_s:.3f} {awake_s:.3f}")
                sleeper, other = answer.split()
                outcome.take(sleeper, {"killed", "overtaken"}, "the sleeper was ")
                outcome.take(other, {"killed", "locked"}, "the one that took over was ")
            else:
                outcome.take(paying.ask(f"run {seconds:.3f}"), {"killed"})
        last = paying.ask("recover")
    rows, records = booked(url), sent(kafka.bootstrap_servers, name)
    outcome.payments = len(rows)
    if last != "done":
        outcome.wrong.append(f"the last recovery has {last}")
    if rows != list(range(1, len(rows) + 1)):
        outcome.wrong.append(f"the rows are not the numbers from 1 on: {rows}")
    if records != rows:
        outcome.wrong.append(f"rows {_first_difference(rows, records)}")
    return outcome


def _restart(kafka: EmbeddedKafka, after_s: float) -> None:
    time.sleep(after_s)
    kafka.kill_node(0)
    kafka.start_node(0)


def _first_difference(rows: list[int], records: list[int]) -> str:
    pairs = enumerate(zip(rows, records, strict=False))
    at = next((index for index, (row, record) in pairs if row != record), None)
    return f"{len(rows)} and records {len(records)} differ first at index {at}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--database", choices=["sqlite", "postgres"], default="sqlite")
    args = parser.parse_args()
    name = f"payments-{args.seed}"
    with broker() as kafka, database(args.database) as url:
        began = time.monotonic()
        outcome = run(kafka, url, name, args.kills, args.seed)
        took_s = time.monotonic() - began
    print(
        f"{args.database}, seed {args.seed}:"
        f" {dict(outcome.kills)} killed in {took_s:.0f} s, runs {dict(outcome.answers)},"
        f" {outcome.payments} payments; wrong: {outcome.wrong or 'nothing'}"
    )
    sys.exit(bool(outcome.wrong))


if __name__ == "__main__":
    main()
