"""`python -m integration.benchmarks`: the works, the peers in turn, medians and ratios."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from integration.benchmarks.peers import PEERS, SETTINGS, WORKS
from integration.readers import end_offset
from txnproducer.testing import THROUGHPUT_JVM, EmbeddedKafka

_LIMIT_S = 120
_PARTITIONS = 1


def _measure(peer: str, kafka: EmbeddedKafka, number: int, share: float, key: str) -> float | None:
    """Return a rate (records or transactions a second), or None when the peer failed."""
    topic = f"bench-{number}-{key}-{peer}"
    kafka.create_topic(topic, partitions=_PARTITIONS)
    command = [sys.executable, "-m", "integration.benchmarks.peers", peer]
    command += [kafka.bootstrap_servers, topic, str(number), str(share)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        print(f"  {peer}: not done in {_LIMIT_S} s")
        return None
    if done.returncode:
        print(f"  {peer}: failed: {done.stderr.strip().splitlines()[-1:]}")
        return None
    read = json.loads(done.stdout.splitlines()[-1])
    work = WORKS[number]
    written = read["transactions"] * work.records
    # Every record and a marker for each transaction: a rate of records that are not there is none.
    found = end_offset(kafka.bootstrap_servers, topic)
    if found < written:
        print(f"  {peer}: wrote {found} of {written} records")
        return None
    count = written if work.records >= 1_000 else read["transactions"]
    return float(count / read["seconds"])


def _unit(records: int) -> str:
    return "records/s" if records >= 1_000 else "transactions/s"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round of a fifth of the works")
    arguments = parser.parse_args()
    rounds, share = (1, 0.2) if arguments.quick else (arguments.rounds, 1.0)
    versions = {peer: importlib.metadata.version(peer) for peer in PEERS}
    for peer, settings in SETTINGS.items():
        print(f"{peer} {versions[peer]}: {settings}")
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    results: list[dict[str, object]] = []
    with EmbeddedKafka(jvm_options=THROUGHPUT_JVM) as kafka:
        print(f"Apache Kafka {kafka.version}, one broker, {_PARTITIONS} partition per topic")
        _measure("txnproducer", kafka, 0, 0.5, "warm")  # the broker's own warm-up
        for number, work in enumerate(WORKS):
            rates: dict[str, list[float]] = {peer: [] for peer in PEERS}
            for turn in range(rounds):
                for peer in PEERS:
                    rate = _measure(peer, kafka, number, share, str(turn))
                    if rate is not None:
                        rates[peer].append(rate)
            results.append({"work": work.name, "unit": _unit(work.records), "rates": rates})
            _print(work.name, _unit(work.records), rates)
    _keep(results, versions, arguments.quick)


def _print(name: str, unit: str, rates: dict[str, list[float]]) -> None:
    medians = {peer: statistics.median(found) for peer, found in rates.items() if found}
    ours = medians.get("txnproducer")
    print(f"\n{name} ({unit}; median [least-most]; ours as a multiple)")
    for peer, median in sorted(medians.items(), key=lambda item: -item[1]):
        found = rates[peer]
        ratio = f"{ours / median:5.2f} x" if ours and peer != "txnproducer" else ""
        print(f"  {peer:16} {median:12,.0f} [{min(found):,.0f}-{max(found):,.0f}] {ratio}")


def _keep(results: list[dict[str, object]], versions: dict[str, str], is_quick: bool) -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    path = Path("results") / f"bench-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.parent.mkdir(exist_ok=True)
    kept = {
        "commit": commit,
        "quick": is_quick,
        "versions": versions,
        "settings": SETTINGS,
        "results": results,
    }
    path.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    print(f"\nkept in {path}")


if __name__ == "__main__":
    main()
