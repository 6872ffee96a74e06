"""`python -m integration.benchmarks_spark`: Spark's own sink and ours in turn, ratios, targets."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyspark

from integration.benchmarks.markdown import table
from integration.benchmarks.results import Result
from integration.benchmarks.turns import take_turns
from integration.benchmarks.works import Work
from integration.benchmarks_spark.bench import Bench, start_spark
from integration.benchmarks_spark.connector import connector_jars
from integration.benchmarks_spark.works import (
    BATCH_TASKS,
    BY_DRIVER,
    EMPTY,
    PARTITION_TASKS,
    PEERS,
    SIZES,
    SMALL,
    SPARK,
    TARGETS,
    VALUE_BYTES,
    works,
)
from txnproducer.testing import EmbeddedKafka

# The only version whose connector is complete on the registries.
_CONNECTED = "4.0.0"
_FLAT_MB = 5.0
_BROKERS_JVM = ("-Xms1g", "-Xmx1g", "-XX:+UseParallelGC")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks_spark")
    parser.add_argument("--rows", type=int, default=2_000_000, help="of the long works")
    parser.add_argument("--memory-rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="only the cost of small batches")
    parser.add_argument("--quick", action="store_true", help="fewer rows, two rounds")
    return parser.parse_args()


def main() -> None:
    arguments = _arguments()
    if arguments.quick:
        arguments.rows, arguments.memory_rows, arguments.rounds = 500_000, 2_000_000, 2
    has_connector = pyspark.__version__ == _CONNECTED
    jars = connector_jars(_CONNECTED) if has_connector else []
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder, EmbeddedKafka(jvm_options=_BROKERS_JVM) as kafka:
        spark = start_spark(Path(folder), jars)
        try:
            _tell(
                f"- Spark {pyspark.__version__}; {arguments.rows:,} rows of 100 bytes in 2 Spark"
            )
            _tell(
                f"  partitions, a topic of 4; {arguments.rounds} rounds; load before: {load:.1f}"
            )
            bench = Bench(spark, kafka, arguments.rows, has_connector=has_connector)
            if arguments.small:
                for line in _small(bench, arguments.rounds):
                    _tell(line)
                return
            for line in _measured(bench, arguments):
                _tell(line)
            for atomicity in ("partition", "batch"):
                held = bench.memory(Path(folder), atomicity, arguments.memory_rows)
                _tell(_memory_line(atomicity, held, arguments.memory_rows))
        finally:
            spark.stop()


def _measured(bench: Bench, arguments: argparse.Namespace) -> Iterator[str]:
    found: dict[tuple[str, str], Result] = {}
    for work in works(arguments.rows):
        batches = 10 if work.name in (EMPTY, SMALL) else 1

        def measure_once(peer: str, name: str = work.name, batches: int = batches):
            return bench.measure(name, peer, batches)

        results = take_turns("spark", work, PEERS, arguments.rounds, measure_once)
        found.update({(work.name, each.peer): each for each in results})
        yield ""
        yield f"### {work.name}"
        yield ""
        yield from _table(results)
    yield ""
    yield "### Targets"
    yield ""
    yield from _targets(found)


def _small(bench: Bench, rounds: int) -> Iterator[str]:
    """Measure batches of a few rows, written by the driver and by tasks, beside Spark's own."""
    bench.sinks |= BY_DRIVER
    peers = (*PEERS, PARTITION_TASKS, BATCH_TASKS)
    yield ""
    yield "ms a batch, the median of rounds; in brackets, times Spark's own"
    yield ""
    rows: list[tuple[str, ...]] = []
    known: list[str] = []
    for size in SIZES:
        name = f"{size:,} rows"
        bench.add(name, size)

        def measure_once(peer: str, name: str = name):
            return bench.measure(name, peer, 12)

        # Without a number of records, since batches are counted.
        results = take_turns("spark", Work(name, VALUE_BYTES, 0), peers, rounds, measure_once)
        ms = {each.peer: 1000 / each.rate for each in results if each.runs}
        known = [peer for peer in peers if peer in ms]
        own = ms.get(SPARK, 0.0)
        ratios = [f" ({ms[peer] / own:.2f})" if own else "" for peer in known]
        cells = [f"{ms[peer]:.0f}{ratio}" for peer, ratio in zip(known, ratios, strict=True)]
        rows.append((name, *cells))
        yield f"- {name}: {', '.join(cells)}"
    yield ""
    yield from table(("a batch of", *known), rows)


def _table(results: list[Result]) -> Iterator[str]:
    is_long = results[0].work.is_long
    unit = "rows/s" if is_long else "ms a batch"
    rows = []
    for each in results:
        if each.runs:
            figures = sorted(rate if is_long else 1000 / rate for rate in each.rates)
            middle = each.rate if is_long else 1000 / each.rate
            rows.append((each.peer, f"{middle:,.0f}", f"{figures[0]:,.0f} - {figures[-1]:,.0f}"))
    if rows:
        yield from table((unit, "median", "of rounds"), rows)
    for each in results:
        yield from (f"- {each.peer}: {why}" for why in (*each.failures, each.left_out) if why)


def _targets(found: dict[tuple[str, str], Result]) -> Iterator[str]:
    rows = []
    for target in TARGETS:
        ours, theirs = found[target.work, target.ours], found[target.work, SPARK]
        sign = "at most" if target.is_of_overhead else "at least"
        name = f"{target.work}, {target.ours} / {SPARK}: {sign} {target.limit}"
        if not ours.runs or not theirs.runs:
            rows.append((name, "not measured", ""))
            continue
        ratio = theirs.rate / ours.rate if target.is_of_overhead else ours.rate / theirs.rate
        rows.append((name, f"{ratio:.2f}", "met" if target.is_met(ratio) else "missed"))
    yield from table(("target", "found", ""), rows)


def _memory_line(atomicity: str, held: list[float], rows: int) -> str:
    grown = held[-1] - held[0]
    verdict = "met" if grown <= _FLAT_MB else "missed"
    return (
        f"- memory of a worker ({atomicity}): {held[0]:.0f} MB after {rows // 10:,} rows,"
        f" {held[-1]:.0f} MB after {rows:,} more; at most {_FLAT_MB:.0f} MB more: {verdict}"
    )


def _tell(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
