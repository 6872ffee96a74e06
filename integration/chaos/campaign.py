"""`python -m integration.chaos.campaign`: the rows of the plan, played one by one.

Each row is appended to results/clusters.jsonl, and its history stays in results/clusters/. The
campaign goes on where it stopped. The rows of ours whose producers ended for a reason that is not
recorded, and no others:

    python -m integration.chaos.campaign --clients txnproducer \\
        --names $(python -m integration.chaos.page --without-causes)
    python -m integration.chaos.page --add results/clusters.jsonl
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from integration.chaos.cluster import LinkedKafka, plain_kafka
from integration.chaos.java import java_command
from integration.chaos.plan import CLIENTS, FAULTS, NEED_PROXIES, OURS, WORKLOADS, Row, cover
from integration.chaos.play import play
from integration.chaos.probe import warm_up
from integration.chaos.writers import Command, python_command
from txnproducer.testing import EmbeddedKafka
from txnproducer.testing.embedded import DEFAULT_VERSION

RESULTS = Path("results") / "clusters.jsonl"
HISTORIES = Path("results") / "clusters"
NOT_THE_PRODUCER = [
    f":(exclude)txnproducer/{room}"
    for room in ("cli", "sim", "spark", "testing", "_broker", "_server")
]


class Clusters:
    """The one cluster that runs, kept for the next row if that needs the same kind."""

    def __init__(self) -> None:
        self._kind: tuple[int, bool] | None = None
        self._kafka: EmbeddedKafka | None = None
        self._clients: Callable[[], list[int]] = list

    def watch(self, clients: Callable[[], list[int]]) -> None:
        """Take the function that returns the process ids of the clients."""
        self._clients = clients

    def get(self, version: int, linked: bool) -> EmbeddedKafka:
        """Return a cluster on which all brokers run and are in sync."""
        if self._kafka is not None and self._kind == (version, linked):
            # One that does not recover is dropped, whatever it lacks.
            with contextlib.suppress(Exception):
                self._kafka.wait_in_sync(20)
                return self._kafka
        self.drop()
        kafka = LinkedKafka(version, lambda: self._clients()) if linked else plain_kafka(version)
        self._kafka, self._kind = kafka.start(), (version, linked)
        warm_up(kafka)
        return kafka

    def drop(self) -> None:
        """End the cluster: the next row gets a new one."""
        if self._kafka is not None:
            self._kafka.stop()
        self._kafka = self._kind = None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m integration.chaos.campaign", description=__doc__
    )
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--versions", nargs="+", type=int, choices=(1, 2), default=[2, 1])
    parser.add_argument("--rows", type=int, default=60, help="at most, per client")
    parser.add_argument("--names", nargs="+", help="of rows: play these alone, each once more")
    parser.add_argument("--again", action="store_true", help="also rows that were played before")
    return parser.parse_args()


def commit_of_producer() -> str:
    """Return the last commit that changed the producer; one of the campaign changes no row."""
    last = ["git", "log", "-1", "--format=%h", "--", "txnproducer", *NOT_THE_PRODUCER]
    done = subprocess.run(last, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def version_of(client: str) -> str:
    if client == "java":
        return DEFAULT_VERSION
    return version(client)


def _done(commit: str) -> set[str]:
    """Return the rows that need not be played again: a commit of ours changes no other client."""
    if not RESULTS.exists():
        return set()
    lines = (json.loads(line) for line in RESULTS.read_text("utf-8").splitlines())
    return {line["row"] for line in lines if not line["failed"] and _is_valid(line, commit)}


def _is_valid(line: dict[str, Any], commit: str) -> bool:
    client = line["row"].split("/")[0]
    if client == OURS:
        return bool(line["commit"] == commit)
    return bool(line["version"] == version_of(client))


def _rows(arguments: argparse.Namespace) -> Iterator[Row]:
    """Return the rows in turn: the first ones of every client, then the next ones."""
    plans = [
        [row for row in cover(client) if _is_wanted(row, arguments)][: arguments.rows]
        for client in arguments.clients
    ]
    for at in range(max(map(len, plans), default=0)):
        yield from (plan[at] for plan in plans if at < len(plan))


def _is_wanted(row: Row, arguments: argparse.Namespace) -> bool:
    if arguments.names:
        return row.name in arguments.names
    return (
        row.fault in arguments.faults
        and row.workload in arguments.workloads
        and row.version in arguments.versions
    )


def run_row(clusters: Clusters, row: Row, commit: str) -> bool:
    """Play a row, append its result, and return whether nothing was wrong."""
    folder = HISTORIES / row.name.replace("/", "_")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    kafka = clusters.get(row.version, row.fault in NEED_PROXIES)
    command: Command = java_command(folder.parent) if row.client == "java" else python_command
    played = play(kafka, row, command, folder, clusters.watch)
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(
            json.dumps({"commit": commit, "version": version_of(row.client), **played.as_dict()})
            + "\n"
        )
    print(
        f"{row.name}: {played.outcomes}, recovery {played.recovery_s} s, stall"
        f" {played.stall_s} s (cluster {played.cluster_stall_s} s), hung {played.hung},"
        f" {played.errors}, {played.wrong or 'nothing wrong'} {played.failed}",
        flush=True,
    )
    for text in played.findings:
        print(f"  {text}", flush=True)
    if played.failed or row.fault in ("full disk", "version raised"):
        clusters.drop()
    return not played.wrong and not played.failed


def main() -> int:
    arguments, commit = _arguments(), commit_of_producer()
    done = set() if arguments.again or arguments.names else _done(commit)
    HISTORIES.mkdir(parents=True, exist_ok=True)
    rows = [row for row in _rows(arguments) if row.name not in done]
    if unknown := set(arguments.names or ()) - {row.name for row in rows}:
        print(f"these clients have no such rows: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    # A cluster takes half as long to start as a row to play: rows that can share one follow.
    rows.sort(key=lambda row: (row.version != 2, row.fault in NEED_PROXIES))
    print(f"{len(rows)} rows, {len(done)} done before at {commit}", flush=True)
    clusters, wrong = Clusters(), 0
    try:
        for row in rows:
            wrong += not run_row(clusters, row, commit)
    finally:
        clusters.drop()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
