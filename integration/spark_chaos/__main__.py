"""`python -m integration.spark_chaos`: the fault campaign on Spark, resumed where it stopped.

Every run is noted as it ends. A run that was noted for this commit is not played again, unless it
failed. `--runs` is for prepared parts, the default mode. The other writers have three runs at most
of each fault. The plain writer, which is only there to compare, reads files alone. The input
"kafka" is Spark's own Kafka source with `maxOffsetsPerTrigger`. "kafka-unlimited" is the same
without a limit: three runs of each fault with prepared parts, and one of each other writer. Both
need the one version of Spark whose connector can be had.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

from integration.spark_chaos import kafka_input
from integration.spark_chaos.faults import BY_NAME, FAULTS, WRITERS, Fault, writers_of
from integration.spark_chaos.job import Input, Writer
from integration.spark_chaos.results import (
    RESULTS,
    Result,
    append,
    load,
    name_of,
    present_commit,
)
from integration.spark_chaos.run import run
from integration.spark_chaos.stage import Stage

SHORT: tuple[tuple[str, Writer], ...] = (
    ("executor-after-commit", "partition"),
    ("deleted-checkpoint", "partition"),
    ("zombie", "batch"),
    ("driver-after-end", "batch"),
    ("driver-after-decision", "prepared"),
)
INPUTS: tuple[Input, ...] = ("files", "kafka", "kafka-unlimited")
_FEW = 3  # runs of a fault


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m integration.spark_chaos", description=__doc__)
    parser.add_argument("--runs", type=int, default=10, help="of each fault with prepared parts")
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--faults", nargs="+", choices=sorted(BY_NAME), default=sorted(BY_NAME))
    parser.add_argument("--writers", nargs="+", choices=WRITERS, default=list(WRITERS))
    parser.add_argument("--inputs", nargs="+", choices=INPUTS, default=["files"])
    parser.add_argument("--short", action="store_true", help="five faults, one run each")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args()


def plan(arguments: argparse.Namespace) -> Iterator[tuple[Fault, Writer, int, Input]]:
    """Return the runs, in an order in which drivers live long."""
    if arguments.short:
        for name, writer in SHORT:
            yield BY_NAME[name], writer, arguments.seed, "files"
        return
    for source, fault, writer in itertools.product(INPUTS, FAULTS, WRITERS):
        if source not in arguments.inputs or source not in fault.inputs:
            continue
        if writer not in fault.writers or writer not in writers_of(source):
            continue
        if fault.name in arguments.faults and writer in arguments.writers:
            runs = _runs_of(writer, source, arguments.runs)
            for seed in range(arguments.seed, arguments.seed + runs):
                yield fault, writer, seed, source


def _runs_of(writer: Writer, source: Input, most: int) -> int:
    if source == kafka_input.UNLIMITED:
        return min(most, _FEW) if writer == "prepared" else 1
    return most if writer == "prepared" else min(most, _FEW)


def main() -> int:
    arguments, commit = _arguments(), present_commit()
    if any(map(kafka_input.is_input, arguments.inputs)) and not kafka_input.is_available():
        print(f"the input kafka needs PySpark {kafka_input.SPARK_VERSION}", file=sys.stderr)
        return 2
    done = {
        result.name
        for result in load(arguments.results)
        if result.commit == commit and result.outcome != "failed"
    }
    left = [
        (fault, writer, seed, source)
        for fault, writer, seed, source in plan(arguments)
        if name_of(fault.name, writer, seed, source) not in done
    ]
    print(f"{len(left)} runs at {commit}; {len(done)} were done before")
    if not left:
        return 0
    bad = 0
    with Stage() as stage:
        for fault, writer, seed, source in left:
            result = run(stage, fault, writer, seed, commit, source)
            append(result, arguments.results)
            bad += _tell(result)
    return 1 if bad else 0


def _tell(result: Result) -> bool:
    """Print a run, and return whether it is one that must not be."""
    print(f"{result.name}: {result.outcome} ({result.seconds:.0f} s) {result.text}", flush=True)
    if result.outcome == "wrong":
        print(f"  {result.lost} lost, {result.doubled} doubled, {result.torn} times torn")
    is_bad = result.outcome == "failed" or (result.outcome == "wrong" and result.writer != "plain")
    if is_bad:
        print(
            f"  again: python -m integration.spark_chaos --faults {result.fault} --writers"
            f" {result.writer} --inputs {result.input} --seed {result.seed} --runs 1"
        )
    return is_bad


if __name__ == "__main__":
    sys.exit(main())
