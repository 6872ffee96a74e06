"""How long a keyless whole batch takes, by the way in which its frame is cut for the tasks.

Run: `python -m integration.benchmarks_spark.whole_cut [--rounds 3]`. It starts a broker and Spark
with eight tasks at once. A frame of eight partitions is written by "partition", by "batch" as the
sink cuts it (whole partitions are sent to the tasks that write), and by "batch" with `coalesce`
before, as the sink cut it in earlier versions. In turn, and every row is counted.

Works: partitions that wait for a second each, as for a service; partitions of many rows without
other work, where a shuffle only costs.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from integration.benchmarks_spark.bench import start_spark
from txnproducer.spark import ExactlyOnceKafkaSink
from txnproducer.testing import EmbeddedKafka

_CUT = 8
_VALUE = "rpad(cast(id AS string), 100, 'x') AS value"
_WAYS = ("partition", "batch", "batch, coalesced")


def _waiting(spark: Any, seconds: float) -> Any:
    def wait(batches):
        time.sleep(seconds)  # the work of the frame itself
        yield from batches

    rows = spark.range(0, 8_000, 1, _CUT).selectExpr(_VALUE)
    return rows.mapInArrow(wait, "value string")


def _cached(spark: Any, rows: int) -> Any:
    frame = spark.range(0, rows, 1, _CUT).selectExpr(_VALUE).cache()
    frame.count()
    return frame


class _Writer:
    """Writes a frame again and again, each time with a sink and a topic of its own."""

    def __init__(self, kafka: EmbeddedKafka) -> None:
        self._kafka = kafka
        self._count = 0

    def seconds(self, frame: Any, way: str, partitions: int, rows: int) -> float:
        self._count += 1
        topic = f"cut-{self._count}"
        self._kafka.create_topic(topic, partitions=partitions)
        if way == "batch, coalesced":
            frame = frame.coalesce(partitions)
        sink = ExactlyOnceKafkaSink(
            self._kafka.bootstrap_servers,
            topic,
            topic=topic,
            atomicity="partition" if way == "partition" else "batch",
            query_id="bench",
            driver_rows=0,
        )
        began = time.monotonic()
        report = sink.write(frame, 0)
        took = time.monotonic() - began
        sink.close()
        if report.rows != rows:
            raise RuntimeError(f"{report.rows} rows were written, and not {rows}")
        return took


def main(rounds: int, rows: int) -> None:
    """Print a line for each work: the seconds of each way, median and range."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedKafka() as kafka:
        spark = start_spark(Path(folder), [], tasks=_CUT)
        cached = _cached(spark, rows)
        works: list[tuple[str, Callable[[], Any], int, int]] = [
            ("1 s of waiting a partition, 8 into 1", lambda: _waiting(spark, 1.0), 1, 8_000),
            ("1 s of waiting a partition, 8 into 4", lambda: _waiting(spark, 1.0), 4, 8_000),
            ("no wait, 8 into 1", lambda: _waiting(spark, 0.0), 1, 8_000),
            (f"{rows:,} cached rows, 8 into 1", lambda: cached, 1, rows),
            (f"{rows:,} cached rows, 8 into 4", lambda: cached, 4, rows),
        ]
        print(f"| seconds, the median of {rounds} (range) | " + " | ".join(_WAYS) + " |")
        print("|--|" + "--:|" * len(_WAYS), flush=True)
        writer = _Writer(kafka)
        for name, make, partitions, count in works:
            found: dict[str, list[float]] = {way: [] for way in _WAYS}
            for number in range(rounds + 1):
                for way in _WAYS:
                    took = writer.seconds(make(), way, partitions, count)
                    if number:  # the first round compiles
                        found[way].append(took)
            cells = [
                f"{statistics.median(each):.2f} ({min(each):.2f}-{max(each):.2f})"
                for each in found.values()
            ]
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
        spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks_spark.whole_cut")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=2_000_000)
    given = parser.parse_args()
    main(given.rounds, given.rows)
