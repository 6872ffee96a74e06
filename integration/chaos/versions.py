"""How long transactions take over a slow link to a leader, by the version of transactions.

`python -m integration.chaos.versions` lets a writer of each client in turn write for some seconds
to a cluster with `transaction.version` 1 and, after it is raised, with 2. Of these clients ours
and the Java client speak version 2. The figures are kept in versions.json, from which
docs/clusters.md is made.
Owns: the measurement, and its figures. Must not know: reasons.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from integration.chaos.campaign import commit_of_producer, version_of
from integration.chaos.cluster import CLIENTS as PROCESSES
from integration.chaos.cluster import LinkedKafka, broker, raise_version
from integration.chaos.history import COMMITTED, add_up, load
from integration.chaos.java import java_command
from integration.chaos.job import Job
from integration.chaos.plan import CLIENTS, OURS, PLAIN
from integration.chaos.probe import warm_up
from integration.chaos.strikes import DELAY_S, both_ways
from integration.chaos.writers import Writers, python_command

DATA = Path(__file__).with_name("versions.json")
VERSIONS = (1, 2)
# The others write with version 1 to a cluster with version 2 as well.
SPEAK_V2 = (OURS, "java")
_TOPIC, _PARTITIONS = "slow-leader", 4
_ROUNDS, _WRITE_S, _END_S = 2, 16.0, 20.0

# Seconds of each transaction, by the cluster's version and the client.
Took = dict[str, dict[str, list[float]]]


class Measurement:
    """One run.

    Args:
        folder: for the histories.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._commands = dict.fromkeys(CLIENTS, python_command) | {"java": java_command(folder)}
        self._writers: list[Writers] = []
        self._numbers = itertools.count(1)
        self._kafka = LinkedKafka(VERSIONS[0], self._pids)

    def run(self) -> Took:
        """Return the seconds of the transactions of each client, with each version."""
        kafka = self._kafka
        kafka.start()
        try:
            warm_up(kafka)
            kafka.create_topic(_TOPIC, _PARTITIONS)
            found = {}
            for version in VERSIONS:
                if version != VERSIONS[0]:
                    raise_version(kafka)
                found[str(version)] = self._over_a_slow_link()
            return found
        finally:
            kafka.stop()

    def _pids(self) -> list[int]:
        return [pid for writers in self._writers for pid in writers.pids]

    def _over_a_slow_link(self) -> dict[str, list[float]]:
        kafka = self._kafka
        took: dict[str, list[float]] = {client: [] for client in CLIENTS}
        leader = kafka.leader_index(_TOPIC, 0)
        parties = [*map(broker, range(kafka.nodes)), PROCESSES]
        kafka.links.slow(both_ways(broker(leader), parties), DELAY_S)
        try:
            for _ in range(_ROUNDS):
                for client, seconds in took.items():
                    seconds += self._write(client, self._id(leader))
        finally:
            kafka.links.heal()
        return took

    def _write(self, client: str, transactional_id: str) -> list[float]:
        """Return the seconds of each transaction that was committed, but for the first one."""
        until = time.monotonic() + _WRITE_S
        job = Job(
            client=client,
            servers=self._kafka.bootstrap_servers,
            transactional_id=transactional_id,
            writer=f"{client}-{transactional_id}-",
            workload=PLAIN,
            topics=[_TOPIC],
            partitions=_PARTITIONS,
            until=until,
            history="",
        )
        writers = Writers([job], self._commands[client], self._folder)
        self._writers = [writers]
        writers.start()
        writers.finish(until + _END_S)
        txns = add_up(load(writers.histories)).txns.values()
        ends = [(txn.began, txn.told_at) for txn in txns if txn.told == COMMITTED]
        return [round(end - began, 2) for began, end in ends[1:] if end is not None]

    def _id(self, leader: int) -> str:
        """Return a new id that the slow broker does not coordinate."""
        names = (f"id-{next(self._numbers)}" for _ in itertools.count())
        return next(name for name in names if self._kafka.coordinator_index(name) != leader)


def cost_of_v2_s() -> float:
    """Return how much longer a transaction of ours takes there with version 2, by the median."""
    took = figures()["took"]
    return _median(took, 2, OURS) - _median(took, 1, OURS)


def medians() -> list[tuple[str, float, float]]:
    """Return each client with its median with version 1 and with version 2."""
    took = figures()["took"]
    return [(client, _median(took, 1, client), _median(took, 2, client)) for client in CLIENTS]


def _median(took: Took, version: int, client: str) -> float:
    return statistics.median(took[str(version)][client])


def figures() -> dict[str, Any]:
    """Return the producer's commit, the clients' versions, and their `Took`, as they are kept."""
    kept: dict[str, Any] = json.loads(DATA.read_text("utf-8"))
    return kept


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        measured = Measurement(Path(made)).run()
    of = {client: version_of(client) for client in CLIENTS}
    kept = {"commit": commit_of_producer(), "versions": of, "took": measured}
    DATA.write_text(json.dumps(kept) + "\n", "utf-8")
    for client, first, second in medians():
        print(f"{client}: {first:.2f} s with version 1, {second:.2f} s with version 2")
    sys.exit(0)
