"""The time of `query.stop()`, beside Spark's own: in the tasks, between batches, at the commit.

Run: `python -m integration.benchmarks_spark.stops`. It starts a broker and Spark. Each query has
one batch. It is stopped when a task has read its rows, and has 40 s left; when it waits for
its next batch; and, where a driver commits, just before the commit. In seconds, the median of
three. Beside the sink stands Spark's own "noop" format in a `foreachBatch`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from integration.benchmarks_spark.bench import start_spark
from integration.spark_frames import OnDriver, slowly
from integration.waiting import wait_until
from txnproducer.spark import ExactlyOnceKafkaSink
from txnproducer.testing import EmbeddedKafka

_Mode: TypeAlias = Literal["partition", "batch", "prepared"]
_Write: TypeAlias = Callable[[Any, int], object]
_TIMES = 3
_AWAITED_S = 90.0


def _noop(frame: Any, _: int) -> None:
    frame.write.format("noop").mode("append").save()


class _Stops:
    """The stops of queries with one writer.

    Args:
        spark: runs them.
        folder: for the input and the checkpoints.
        make: returns the writer; its argument is called at the commit.
        name: of the row.
    """

    def __init__(
        self, spark: Any, folder: Path, make: Callable[[Any], tuple[_Write, Any]], name: str
    ) -> None:
        self._spark, self._folder, self._make, self.name = spark, folder, make, name
        self._count = 0

    def in_the_tasks(self) -> float:
        marker = self._folder / f"{self.name}-{self._count}-read"
        slow = slowly(str(marker))
        return self._stop(lambda _: wait_until(marker.exists, "no row is read", _AWAITED_S), slow)

    def between_batches(self) -> float:
        return self._stop(lambda query: query.processAllAvailable())

    def at_the_commit(self) -> float:
        has_come = threading.Event()

        def strike(name: str, info: object) -> None:
            if name == "batch_before_commit":
                has_come.set()
                time.sleep(0.5)  # the stop begins meanwhile, as it would at any other instruction

        return self._stop(
            lambda _: wait_until(has_come.is_set, "no commit", _AWAITED_S), hook=OnDriver(strike)
        )

    def _stop(
        self,
        wait: Callable[[Any], object],
        change: Callable[[Any], Any] = lambda frame: frame,
        hook: Any = None,
    ) -> float:
        self._count += 1
        write, sink = self._make(hook)
        checkpoint = self._folder / f"{self.name}-{self._count}"
        query = (
            self._spark.readStream.text(str(self._folder / "in"))
            .writeStream.foreachBatch(lambda frame, number: write(change(frame), number))
            .option("checkpointLocation", str(checkpoint))
            .start()
        )
        try:
            wait(query)
            began = time.perf_counter()
            query.stop()
            return time.perf_counter() - began
        finally:
            if sink is not None:
                sink.close()


def _median(stop: Callable[[], float]) -> str:
    return f"{statistics.median(stop() for _ in range(_TIMES)):.2f}"


def main() -> None:
    """Print a row for each writer."""
    argparse.ArgumentParser(description=__doc__).parse_args()  # so that --help starts nothing
    with tempfile.TemporaryDirectory() as made, EmbeddedKafka() as kafka:
        folder = Path(made)
        (folder / "in").mkdir()
        (folder / "in" / "1.txt").write_text("\n".join(f"value {n}" for n in range(20)))
        kafka.create_topic("orders", 3)
        numbers = iter(range(1_000))

        def ours(mode: _Mode) -> Callable[[Any], tuple[_Write, Any]]:
            def make(hook: Any) -> tuple[_Write, Any]:
                sink = ExactlyOnceKafkaSink(
                    kafka.bootstrap_servers,
                    f"sink-{next(numbers)}",
                    topic="orders",
                    atomicity=mode,
                    driver_rows=0,
                    on_event=hook,
                )
                return sink, sink

            return make

        spark = start_spark(folder, ())
        try:
            rows = [_Stops(spark, folder, lambda _: (_noop, None), "noop")]
            rows += [_Stops(spark, folder, ours(mode), mode) for mode in get_args(_Mode)]
            print("| writer | in the tasks | between batches | at the commit |")
            print("|---|--:|--:|--:|", flush=True)
            for row in rows:
                commits = row.name in ("batch", "prepared")
                at_commit = _median(row.at_the_commit) if commits else ""
                cells = _median(row.in_the_tasks), _median(row.between_batches), at_commit
                print(f"| {row.name} | {' | '.join(cells)} |", flush=True)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
