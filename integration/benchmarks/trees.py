"""Compare built copies of the package by CPU time per record, in short slices that take turns.

    python -m integration.benchmarks.trees ROUNDS BASELINE TREE ...

Why it exists: on a busy machine two runs differ by more than a module costs. Slices of less than a
second that take turns meet the same load, so their ratio is steadier than either time.
Owns: the workloads, the turns, the table. Must not know: the differences between the trees.

A tree is a folder with a built `txnproducer`. Each has a process and a producer of its own for the
whole run. Name a second copy of the baseline as well: its ratio shows the noise.
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from txnproducer import TransactionalProducer, admin
from txnproducer.testing import EmbeddedKafka

_VALUE = b"x" * 100
_PARTITIONS = 600
_SLICES = "--slices"


def workloads(producer: TransactionalProducer) -> dict[str, Callable[[], int]]:
    """Return the workloads by name; each returns how many records it sent."""
    rows = [_VALUE] * 50_000

    def send(topic: str, count: int, transactions: int, partitions: int | None = None) -> int:
        for _ in range(transactions):
            producer.begin_transaction()
            for index in range(count):
                place = None if partitions is None else index % partitions
                producer.send(topic, _VALUE, None, None, place)
            producer.commit_transaction()
        return count * transactions

    def send_rows() -> int:
        for _ in range(3):
            producer.begin_transaction()
            producer.send_batch("one", rows)
            producer.commit_transaction()
        return 3 * len(rows)

    return {
        "long": lambda: send("one", 50_000, 3),
        "short": lambda: send("one", 10, 60),
        "batch": send_rows,
        "parts": lambda: send("many", 20 * _PARTITIONS, 1, _PARTITIONS),
    }


def run_slices(servers: str) -> None:
    """Run the workloads that standard input names, and print each one's microseconds a record."""
    producer = TransactionalProducer(
        servers, f"trees-{os.getpid()}", linger_ms=5, batch_size=65_536
    )
    with producer:
        producer.init_transactions()
        by_name = workloads(producer)
        for warm_up in by_name.values():
            warm_up()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        for line in sys.stdin:
            gc.collect()
            began_s = time.process_time()
            count = by_name[line.strip()]()
            sys.stdout.write(f"{(time.process_time() - began_s) / count * 1e6}\n")
            sys.stdout.flush()


class Runner:
    """The process of one tree."""

    def __init__(self, tree: Path, servers: str) -> None:
        # Without this file's folder on the path, and with the tree's package in front.
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, _SLICES, servers],
            env={**os.environ, "PYTHONPATH": str(tree)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._read() != "ready":
            raise RuntimeError(f"{tree} cannot run the workloads")

    def take_slice(self, name: str) -> float:
        """Run a workload; return its CPU microseconds per record."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        return float(self._read())

    def end(self) -> None:
        """Close the producer."""
        self._process.communicate()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def compare(rounds: int, trees: list[Path]) -> None:
    """Print the medians of all ratios to the baseline, which is the first tree."""
    with EmbeddedKafka() as kafka:
        servers = kafka.bootstrap_servers
        admin.create_topic(servers, "one", 1)
        admin.create_topic(servers, "many", _PARTITIONS)
        runners = {tree: Runner(tree, servers) for tree in trees}
        ratios: dict[tuple[Path, str], list[float]] = {}
        for _ in range(rounds):
            for name in ("long", "short", "batch", "parts"):
                order = random.sample(trees, len(trees))
                costs = {tree: runners[tree].take_slice(name) for tree in order}
                for tree in trees:
                    ratios.setdefault((tree, name), []).append(costs[tree] / costs[trees[0]])
        for runner in runners.values():
            runner.end()
    for (tree, name), found in ratios.items():
        sys.stdout.write(f"{tree} {name} {statistics.median(found):.3f}\n")


def main(arguments: list[str]) -> None:
    """Compare, or be one of the processes."""
    if arguments[0] == _SLICES:
        run_slices(arguments[1])
    else:
        compare(int(arguments[0]), [Path(each).resolve() for each in arguments[1:]])


if __name__ == "__main__":
    main(sys.argv[1:])
