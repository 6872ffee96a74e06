"""`python -m integration.benchmarks_spark`: Spark's own sink and ours in turn.

`python -m integration.benchmarks_spark.page results/bench-spark.jsonl` keeps the figures, and
makes the page's tables and pictures of them.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyspark

from integration.benchmarks_spark.bench import Bench, start_spark
from integration.benchmarks_spark.connector import connector_jars
from integration.benchmarks_spark.figures import Measured, Part, keep
from integration.benchmarks_spark.page import lines_of
from integration.benchmarks_spark.works import LONG_ROWS, MODES, PARTS, Frame, frames, writers
from integration.surroundings import about_run, load
from txnproducer.testing import EmbeddedKafka

# The only version whose connector is complete on the registries.
_CONNECTED = "4.0.0"
_RESULTS = Path("results") / "bench-spark.jsonl"
_BROKERS_JVM = ("-Xms1g", "-Xmx1g", "-XX:+UseParallelGC")
_WARM = (Frame(1_000), Frame(20_000))
_ALL = (*PARTS, "memory")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks_spark")
    parser.add_argument("--long", action="store_true", help="many rows, with keys and without")
    parser.add_argument("--curve", action="store_true", help="from no rows to a million a batch")
    parser.add_argument("--growth", action="store_true", help="from 2 to 1,000 partitions")
    parser.add_argument("--memory", action="store_true", help="of a worker; default: all four")
    parser.add_argument("--rows", type=int, default=LONG_ROWS, help="of the long batches")
    parser.add_argument("--memory-rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most", type=int, help="leave out frames of more rows or partitions")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="a line for each part")
    return parser.parse_args()


def main() -> None:
    """Measure the chosen parts, print each, and keep it."""
    arguments = _arguments()
    names = [name for name in _ALL if getattr(arguments, name)]
    has_connector = pyspark.__version__ == _CONNECTED
    jars = connector_jars(_CONNECTED) if has_connector else []
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedKafka(
            jvm_options=_BROKERS_JVM, settings={"log.segment.delete.delay.ms": 1_000}
        ) as kafka,
    ):
        spark = start_spark(Path(folder), jars)
        try:
            bench = Bench(spark, kafka)
            chosen = partial(writers, has_connector=has_connector)
            # The JVM compiles the code of all ways.
            for frame in _WARM:
                bench.measure([Measured(frame, each) for each in chosen("long", frame.rows)])
            for name in names or _ALL:
                about = {**about_run(kafka.version), "rounds": arguments.rounds}
                part = Part(name, pyspark.__version__, about)
                if name == "memory":
                    part.about["rows"] = arguments.memory_rows
                    for mode in MODES:
                        part.held[mode] = bench.memory(Path(folder), mode, arguments.memory_rows)
                else:
                    _measure(bench, part, arguments, chosen)
                part.about["load_after"] = load()
                keep(part, arguments.results)
                _print(part)
        finally:
            spark.stop()


def _measure(
    bench: Bench,
    part: Part,
    arguments: argparse.Namespace,
    writers_of: Callable[[str, int], tuple[str, ...]],
) -> None:
    for frame in frames(part.name, arguments.rows):
        if arguments.most and max(frame.rows, frame.partitions) > arguments.most:
            continue
        found = [Measured(frame, writer) for writer in writers_of(part.name, frame.rows)]
        for _ in range(arguments.rounds):
            bench.measure(found)
        part.found.extend(found)
        told = ", ".join(f"{each.writer} {each.ms:.1f}" for each in found if each.rounds)
        print(f"- {frame.name}, {frame.partitions:,} partitions: {told} ms", flush=True)


def _print(part: Part) -> None:
    for line in lines_of(part):
        print(line, flush=True)


if __name__ == "__main__":
    main()
