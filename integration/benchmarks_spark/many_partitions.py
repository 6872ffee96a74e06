"""The driver's own cost of a later batch, by the number of its partitions and by atomicity.

Run: `python -m integration.benchmarks_spark.many_partitions [2 20 200 1000]`. It starts a broker
and Spark. A frame with one row in each partition is written by tasks, batch after batch with one
sink, and the first one is not measured. Beside it stands Spark's own job of as many empty
tasks in Python.

Columns: the whole batch, the time in Spark's jobs, and the rest, which is the driver's own; the
processor's time of the driver's Python in that rest, which does not hold the broker's work on the
same machine. The last table is the growth from the second number of partitions to the last one.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from integration.benchmarks_spark.bench import start_spark
from txnproducer.spark import ExactlyOnceKafkaSink
from txnproducer.spark.driver import frames
from txnproducer.testing import EmbeddedKafka

_Mode: TypeAlias = Literal["partition", "batch", "prepared"]
_MODES: tuple[_Mode, ...] = get_args(_Mode)
_WARM = 1
_VALUE = "cast(id AS string) AS value"
_TOPIC_PARTITIONS = 8


@dataclass
class _Spent:
    """Seconds by the clock and of the processor."""

    clock: float = 0.0
    processor: float = 0.0

    @contextmanager
    def counting(self) -> Iterator[None]:
        clock, processor = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self.clock += time.perf_counter() - clock
            self.processor += time.process_time() - processor


class _Jobs:
    """Measures the jobs of `CountedPartitions`, from the order that is set to the rows."""

    def __init__(self) -> None:
        self.spent = _Spent()
        run, jobs = frames.CountedPartitions.run, self

        def counted(partitions: Any, order: Any) -> Any:
            rdd = partitions._rdd
            partitions._rdd = _Counted(rdd, jobs)
            try:
                return run(partitions, order)
            finally:
                partitions._rdd = rdd

        frames.CountedPartitions.run = counted  # type: ignore[assignment, method-assign]


class _Counted:
    def __init__(self, rdd: Any, jobs: _Jobs) -> None:
        self._rdd, self._jobs = rdd, jobs

    def collect(self) -> Any:
        with self._jobs.spent.counting():
            return self._rdd.collect()


def _batches_of(count: int) -> int:
    return 5 if count < 200 else 2


def _empty_job(frame: Any, count: int) -> float:
    rdd = frame.mapInArrow(lambda batches: batches, "value string").rdd
    took = []
    for _ in range(_batches_of(count)):
        spent = _Spent()
        with spent.counting():
            rdd.collect()
        took.append(spent.clock)
    return statistics.median(took)


def _measure(
    kafka: EmbeddedKafka, frame: Any, mode: _Mode, count: int, jobs: _Jobs
) -> tuple[float, float, float]:
    """Return the seconds of a batch: all, of its job, and the processor's outside of the job."""
    # A whole batch has as many writers as the topic has partitions.
    partitions = count if mode == "batch" else _TOPIC_PARTITIONS
    topic = f"many-{mode}-{count}"
    kafka.create_topic(topic, partitions=partitions)
    sink = ExactlyOnceKafkaSink(
        kafka.bootstrap_servers,
        topic,
        topic=topic,
        atomicity=mode,
        query_id="bench",
        driver_rows=0,
    )
    found = []
    for number in range(_WARM + _batches_of(count)):
        jobs.spent, whole = _Spent(), _Spent()
        with whole.counting():
            sink.write(frame, number)
        if number >= _WARM:
            own = whole.processor - jobs.spent.processor
            found.append((whole.clock, jobs.spent.clock, own))
    sink.close()
    by_kind = zip(*found, strict=True)
    total_s, job_s, processor_s = map(statistics.median, by_kind)
    return total_s, job_s, processor_s


def main(counts: list[int]) -> None:
    """Print a row for each number of partitions and each atomicity."""
    print("| partitions | | a batch, ms | Spark's job | the driver's own | of it processor |")
    print("|--:|--|--:|--:|--:|--:|", flush=True)
    own: dict[tuple[str, int], tuple[float, float]] = {}
    jobs = _Jobs()
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedKafka(jvm_options=("-Xms1g", "-Xmx1g", "-XX:+UseParallelGC")) as kafka,
    ):
        spark = start_spark(Path(folder), [])
        for count in counts:
            frame = spark.range(0, count, 1, count).selectExpr(_VALUE)
            job_s = _empty_job(frame, count)
            print(f"| {count:,} | empty tasks | {job_s * 1000:.0f} | | | |", flush=True)
            for mode in _MODES:
                total_s, job_s, processor_s = _measure(kafka, frame, mode, count, jobs)
                own[mode, count] = total_s - job_s, processor_s
                figures = (total_s, job_s, total_s - job_s, processor_s)
                cells = " | ".join(f"{1000 * each:.0f}" for each in figures)
                print(f"| {count:,} | {mode} | {cells} |", flush=True)
        spark.stop()
    few, many = counts[min(1, len(counts) - 2)], counts[-1]
    print(f"\n| ms a partition, from {few:,} to {many:,} | the driver's own | of it processor |")
    print("|--|--:|--:|")
    for mode in _MODES:
        grown = [
            1000 * (of_many - of_few) / (many - few)
            for of_many, of_few in zip(own[mode, many], own[mode, few], strict=True)
        ]
        print(f"| {mode} | {grown[0]:.3f} | {grown[1]:.3f} |")


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:]] or [2, 20, 200, 1000])
