"""`python -m integration.outbox_kills`: two relays of an outbox, killed again and again.

Programs enqueue rows with keys, and roll some of them back. Two relays share the shards. One of
them is killed by SIGKILL at a random moment, or stopped (SIGSTOP) while another process takes its
place, and then woken. Now and then the shards are shared out in another way. At the end each
committed row is in the topic once, and those of each key are in their order.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from integration.postgres import postgres
from integration.readers import read_with_confluent
from txnproducer.admin import create_topic
from txnproducer.outbox import Outbox
from txnproducer.testing import EmbeddedKafka

KEYS = 12
RELAYS = 2
_ENQUEUE_S = 0.004
_LONGEST_LIFE_S = 3.5
_DRAIN_S = 120.0


@dataclass
class Relay:
    """One relay, in the process that runs it now.

    Attributes:
        command: that starts it, but for its shards.
        log: of all its processes.
        process: the present one.
        shards: the present one's.
        sleepers: processes that were stopped, each with the timer that wakes it. A process that
            was woken ends by itself.
    """

    command: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    shards: str = ""
    sleepers: list[tuple[threading.Timer, subprocess.Popen[bytes]]] = field(default_factory=list)

    def start(self, shards: str) -> None:
        self.shards = shards
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command, "--shards", shards], stdout=log, stderr=log
            )

    @property
    def has_ended(self) -> bool:
        """Whether another relay has replaced it."""
        return self.process is not None and self.process.poll() is not None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def put_to_sleep(self, seconds: float) -> None:
        process = self.process
        if process is None:
            return
        process.send_signal(signal.SIGSTOP)
        # On a thread: the program may wait for a lock that the sleeper has in the database.
        timer = threading.Timer(seconds, process.send_signal, (signal.SIGCONT,))
        timer.start()
        self.sleepers.append((timer, process))

    def end(self) -> None:
        self.kill()
        for timer, process in self.sleepers:
            timer.cancel()
            timer.join()
            process.kill()
            process.wait()


@dataclass
class Outcome:
    """The result of a campaign."""

    kills: int
    sleeps: int
    rows: int
    lost: int
    doubled: int
    out_of_order: int
    seconds: float

    @property
    def is_exact(self) -> bool:
        """Whether each row is there once, in its order."""
        return not (self.lost or self.doubled or self.out_of_order)


class Writer:
    """Enqueues rows of a growing number for each key, and rolls some of them back."""

    def __init__(self, outbox: Outbox, topic: str, rng: random.Random) -> None:
        self._outbox, self._topic, self._rng = outbox, topic, rng
        self.committed: dict[str, int] = dict.fromkeys((f"key {n}" for n in range(KEYS)), 0)

    @property
    def rows(self) -> int:
        """How many rows are committed."""
        return sum(self.committed.values())

    def write(self) -> None:
        """Enqueue some rows, in one transaction."""
        wanted = dict(self.committed)
        with self._outbox.engine.connect() as connection:
            for _ in range(self._rng.randint(1, 4)):
                key = self._rng.choice(list(wanted))
                self._outbox.enqueue(connection, self._topic, str(wanted[key]), key)
                wanted[key] += 1
            if self._rng.random() < 0.1:
                connection.rollback()
                return
            connection.commit()
        self.committed = wanted


def campaign(
    servers: str, database: str, kills: int, seed: int, tell: Callable[[str], None] = print
) -> Outcome:
    """Run one campaign.

    Args:
        servers: of Kafka.
        database: SQLAlchemy's URL.
        kills: how many processes are killed. Others are stopped for a while.
        seed: of the choices.
        tell: called with a line now and then.
    """
    rng = random.Random(seed)
    topic = f"outbox-{os.getpid()}-{time.monotonic_ns()}"
    create_topic(servers, topic, 6)
    engine = sa.create_engine(database, connect_args=_patience(database))
    outbox = Outbox(engine, name=f"o{time.monotonic_ns()}")
    outbox.create_tables()
    writer = Writer(outbox, topic, rng)
    began_s = time.monotonic()
    killed = slept = 0
    with tempfile.TemporaryDirectory() as folder:
        relays = [
            Relay(_command(servers, database, outbox, topic, place), Path(folder) / f"{place}.log")
            for place in range(RELAYS)
        ]
        border = 32
        try:
            for relay, shards in zip(relays, _shared(border), strict=True):
                relay.start(shards)
            next_s = time.monotonic() + rng.uniform(0.5, _LONGEST_LIFE_S)
            while killed < kills:
                writer.write()
                time.sleep(_ENQUEUE_S)  # the load that the relays have to keep up with
                now_s = time.monotonic()
                if now_s < next_s:
                    continue
                next_s = now_s + rng.uniform(0.3, _LONGEST_LIFE_S)
                if rng.random() < 0.1:
                    border = rng.randrange(20, 44)
                _start_ended(relays, border)
                place = rng.randrange(RELAYS)
                relay = relays[place]
                if rng.random() < 0.25:
                    relay.put_to_sleep(rng.uniform(1, 6))
                    slept += 1
                else:
                    relay.kill()
                    killed += 1
                relay.start(_shared(border)[place])
                if (killed + slept) % 25 == 0:
                    tell(f"{killed + slept} kills, {writer.rows} rows, {outbox.backlog()}")
            _drain(outbox, relays, border, Path(folder))
        finally:
            for relay in relays:
                relay.end()
            engine.dispose()
    counts = _judge(servers, topic, writer)
    return Outcome(killed, slept, writer.rows, *counts, time.monotonic() - began_s)


def _patience(database: str) -> dict[str, float]:
    # SQLite has one writer at a time.
    return {"timeout": 30.0} if database.startswith("sqlite") else {}


def _command(servers: str, database: str, outbox: Outbox, topic: str, place: int) -> list[str]:
    return [
        *(sys.executable, "-P", "-m", "txnproducer", "outbox", "run"),
        *("--database", database, "--name", str(outbox.rows.name)),
        *("-b", servers, "--relay-id", f"{topic}.{place}"),
        *("--batch-rows", "40", "-X", "linger.ms=0", "--ledger-topic", f"{topic}.ledger"),
    ]


def _shared(border: int) -> tuple[str, str]:
    return f"0-{border - 1}", f"{border}-63"


def _start_ended(relays: list[Relay], border: int) -> None:
    for relay, shards in zip(relays, _shared(border), strict=True):
        if relay.has_ended:
            relay.start(shards)


def _drain(outbox: Outbox, relays: list[Relay], border: int, folder: Path) -> None:
    """Wait until no row is left. A relay that another one has replaced is started again."""
    # The border may have moved since a relay was started, and shards between the two be nobody's.
    for relay, shards in zip(relays, _shared(border), strict=True):
        if relay.shards != shards:
            relay.kill()
            relay.start(shards)
    until_s = time.monotonic() + _DRAIN_S
    while outbox.backlog()["waiting"]:
        _start_ended(relays, border)
        if time.monotonic() > until_s:
            logs = "\n".join(path.read_text()[-3000:] for path in sorted(folder.glob("*.log")))
            raise AssertionError(f"rows are left: {outbox.backlog()}\n{logs}")
        time.sleep(0.2)  # each look locks SQLite, which the relays need


def _judge(servers: str, topic: str, writer: Writer) -> tuple[int, int, int]:
    found: dict[str, list[int]] = {key: [] for key in writer.committed}
    for read in read_with_confluent(servers, topic, timeout=60):
        found[(read.key or b"").decode()].append(int(read.value or b""))
    lost = doubled = out_of_order = 0
    for key, numbers in found.items():
        wanted = range(writer.committed[key])
        lost += len(set(wanted) - set(numbers))
        doubled += len(numbers) - len(set(numbers))
        out_of_order += numbers != sorted(numbers)
    return lost, doubled, out_of_order


@contextmanager
def database_of(kind: str) -> Iterator[str]:
    """Yield the URL of a new database."""
    if kind == "postgresql":
        with postgres() as url:
            yield url
        return
    with tempfile.TemporaryDirectory() as folder:
        yield f"sqlite:///{folder}/outbox.db"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m integration.outbox_kills", description=__doc__
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        servers = stack.enter_context(EmbeddedKafka()).bootstrap_servers
        url = stack.enter_context(database_of(arguments.database))
        found = campaign(servers, url, arguments.kills, arguments.seed)
    print(f"{arguments.database}: {found}")
    return 0 if found.is_exact else 1


if __name__ == "__main__":
    sys.exit(main())
