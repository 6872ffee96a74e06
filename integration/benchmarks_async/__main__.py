"""`python -m integration.benchmarks_async`: the peers in turn, their medians and the targets."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from integration.benchmarks.markdown import table
from integration.benchmarks_async.peers import PEERS
from integration.surroundings import about_run, load
from txnproducer.testing import EmbeddedKafka

# Records of a transaction, and the table of settings: `best` is that of values at hand in a list.
WORKS = {"1 record": (1, "short"), "10 records": (10, "short"), "1,000 records": (1_000, "equal")}
WORKS["50,000 values"] = (50_000, "best")
FIGURES = ("transactions_s", "records_s", "cpu_us", "p50_ms", "p99_ms", "lag_p99_ms")
_OURS = "txnproducer"
_LEAST_RATIO, _MOST_LAG_MS = 1.5, 10.0
_BROKERS_JVM = ("-Xms1g", "-Xmx1g", "-XX:+UseParallelGC")
_LIMIT_S = 180


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks_async")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--results", type=Path, default=Path("results") / "bench-async.json")
    arguments = parser.parse_args()
    found: dict[str, dict[str, list[dict[str, Any]]]] = {
        work: {peer: [] for peer in PEERS} for work in WORKS
    }
    with EmbeddedKafka(jvm_options=_BROKERS_JVM) as kafka:
        about = about_run(kafka.version)
        for number in range(arguments.rounds):
            for work in WORKS:
                for peer in PEERS:
                    topic = f"t{number}-{len(found[work][peer])}-{'-'.join(work.split())}"
                    topic = f"{topic.replace(',', '')}-{peer}"
                    kafka.create_topic(topic, 6)
                    one = _measured(peer, work, arguments.seconds, kafka.bootstrap_servers, topic)
                    found[work][peer].append(one)
    about["load_after"] = load()
    arguments.results.parent.mkdir(exist_ok=True)
    arguments.results.write_text(json.dumps({"about": about, "found": found}, indent=1))
    print("\n".join(lines(about, found)), flush=True)


def _measured(peer: str, work: str, seconds: float, servers: str, topic: str) -> dict[str, Any]:
    records, settings = WORKS[work]
    options = {"peer": peer, "records": records, "table": settings, "seconds": seconds}
    words = [f"--{name}={value}" for name, value in {**options, "servers": servers}.items()]
    done = subprocess.run(
        [sys.executable, "-m", "integration.benchmarks_async.child", *words, f"--topic={topic}"],
        stdout=subprocess.PIPE,
        text=True,
        timeout=_LIMIT_S,
        check=True,
    )
    one: dict[str, Any] = json.loads(done.stdout)
    rate = f"{one['records_s']:,.0f} records/s, p99 {one['p99_ms']:.1f} ms"
    print(f"{work}: {peer} {rate}, lag p99 {one['lag_p99_ms']:.2f} ms", flush=True)
    return one


def lines(about: dict[str, Any], found: dict[str, dict[str, list[dict[str, Any]]]]) -> list[str]:
    """Return the tables and the targets of a run."""
    told = [", ".join(f"{name} {value}" for name, value in about.items()), ""]
    targets: list[list[str]] = []
    for work, peers in found.items():
        medians = {peer: _medians(rounds) for peer, rounds in peers.items()}
        heads = ["", *FIGURES, f"{_OURS} is"]
        ours = medians[_OURS]
        rows = [
            [peer, *(f"{one[name]:,.2f}" for name in FIGURES), f"{_ratio(ours, one):.2f}"]
            for peer, one in medians.items()
        ]
        told += [f"### {work}", "", *table(heads, rows), ""]
        others = [one for peer, one in medians.items() if peer != _OURS]
        targets += _targets(work, ours, others)
    return [*told, *table(["target", "wanted", "found", ""], targets)]


def _targets(work: str, ours: dict[str, float], others: list[dict[str, float]]) -> list[list[str]]:
    ratio = min(_ratio(ours, one) for one in others)
    best_p99 = min(one["p99_ms"] for one in others)
    p99 = ours["p99_ms"]
    rows = [
        [f"{work}: times the best", f">= {_LEAST_RATIO}", f"{ratio:.2f}", ratio >= _LEAST_RATIO],
        [f"{work}: p99, ms", f"<= {best_p99:.1f}", f"{p99:.1f}", p99 <= best_p99],
    ]
    if work.startswith("50,000"):
        lag = ours["lag_p99_ms"]
        rows += [
            [f"{work}: lag p99, ms", f"<= {_MOST_LAG_MS:g}", f"{lag:.1f}", lag <= _MOST_LAG_MS]
        ]
    return [[*map(str, row[:3]), "met" if row[3] else "**missed**"] for row in rows]


def _medians(rounds: list[dict[str, Any]]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in rounds) for name in FIGURES}


def _ratio(ours: dict[str, float], one: dict[str, float]) -> float:
    return ours["records_s"] / one["records_s"]


if __name__ == "__main__":
    main()
