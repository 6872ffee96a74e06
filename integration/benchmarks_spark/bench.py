"""Measure: one session of Spark, one broker, a fresh topic for each measurement.

Owns: frames (cached before anything is measured), the session, the count of rows that have
arrived. Must not know: what is made of the figures.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from integration.benchmarks.memory import MemoryMeter
from integration.benchmarks_spark.figures import Measured
from integration.benchmarks_spark.works import (
    IN_JVM,
    MODES,
    NO_OPS,
    OURS,
    SPARK,
    SPARK_THERE,
    WRONG_GUESS,
    Frame,
    batches_of,
    frame_before,
)
from txnproducer.spark import ExactlyOnceKafkaSink
from txnproducer.spark.driver.frames import partitions_of
from txnproducer.testing import EmbeddedKafka

_PARTITIONS = 4
_ADMIN_S, _PAUSE_S = 30.0, 0.02
_KEY = "cast(id % 100000 AS string) AS key"
_VALUE = "rpad(cast(id AS string), 100, 'x') AS value"
_MODE = dict(zip(OURS + WRONG_GUESS, MODES * 2, strict=True))


def start_spark(folder: Path, jars: Sequence[Path], tasks: int = 2) -> Any:
    """Start a session of some tasks at once, quiet, with the connector where there is one."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "3g",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.jars": ",".join(map(str, jars)),
    }
    builder = SparkSession.builder.master(f"local[{tasks}]").appName("txnproducer benchmarks")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


@dataclass(frozen=True)
class NoteMemory:
    """A hook that notes a worker's memory when it has sent its rows. It is sent to the workers.

    Attributes:
        path: where to.
    """

    path: str

    def __call__(self, name: str, info: dict[str, Any]) -> None:
        """Hear of an event of the sink."""
        if name in ("task_before_commit", "task_before_receipt"):
            meter = MemoryMeter()
            meter.start()
            with Path(self.path).open("a", encoding="utf-8") as file:
                file.write(f"{info['rows']} {meter.rss[0]}\n")


@dataclass
class _Writing:
    """A writer of batches, into a topic of its own.

    Attributes:
        topic, partitions: where to.
        write: writes a frame as the batch of a number.
        sink: of ours.
        written: the frames of the batches.
        ms: how long those took that are measured.
    """

    topic: str
    partitions: int
    write: Callable[[Any, int], object]
    sink: ExactlyOnceKafkaSink | None
    written: list[Frame] = field(default_factory=list)
    ms: list[float] = field(default_factory=list)

    def batch(self, frame: Frame, cached: Any) -> float:
        """Write a batch, and return how many milliseconds it took."""
        began = time.perf_counter()
        self.write(cached, len(self.written))
        took = time.perf_counter() - began
        self.written.append(frame)
        return round(1000 * took, 2)


class Bench:
    """Writes frames.

    Args:
        spark: the session.
        kafka: the broker, running.
    """

    def __init__(self, spark: Any, kafka: EmbeddedKafka) -> None:
        self._spark = spark
        self._kafka = kafka
        self._count = 0
        self._frames: dict[Frame, Any] = {}
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})

    def measure(self, found: Sequence[Measured]) -> None:
        """Write batches of a frame, each by all writers in turn, and add their times as a round.

        Each turn begins with another writer. So all writers have the same share of whatever else
        the machine does.

        Args:
            found: of one frame.
        """
        writings = [self._writing(each.frame, each.writer) for each in found]
        turns = list(zip(found, writings, strict=True))
        try:
            warm, count = batches_of(found[0].frame)
            for number in range(warm + count):
                for each, writing in [
                    *turns[number % len(turns) :],
                    *turns[: number % len(turns)],
                ]:
                    before = frame_before(each.frame, each.writer)
                    if before is not None:
                        writing.batch(before, self._cached(before))
                    ms = writing.batch(each.frame, self._cached(each.frame))
                    if number >= warm:
                        writing.ms.append(ms)
            for each, writing in turns:
                wrong = "" if each.writer in NO_OPS else self._wrong(writing)
                if wrong:
                    each.notes.append(wrong)
                else:
                    each.rounds.append(writing.ms)
        finally:
            for writing in writings:
                if writing.sink is not None:
                    writing.sink.close()
            self._admin.delete_topics([writing.topic for writing in writings])

    def memory(self, folder: Path, mode: str, rows: int) -> list[float]:
        """Return a worker's memory in MB, after a tenth of the rows and after all of them."""
        topic, path = f"memory-{mode}", folder / mode
        self._kafka.create_topic(topic, partitions=1)
        sink = self._sink(topic, mode, on_event=NoteMemory(str(path)))
        for number, count in enumerate((rows // 10, rows)):
            sink.write(self._spark.range(0, count, 1, 1).selectExpr(_VALUE), number)
        sink.close()
        self._admin.delete_topics([topic])
        return [float(line.split()[1]) for line in path.read_text("utf-8").splitlines()]

    def _cached(self, frame: Frame) -> Any:
        if frame not in self._frames:
            # A range has a row in each partition.
            ids = self._spark.range(0, max(frame.rows, frame.partitions), 1, frame.partitions)
            columns = (_KEY, _VALUE) if frame.has_keys else (_VALUE,)
            self._frames[frame] = ids.where(f"id < {frame.rows}").selectExpr(*columns).cache()
            self._frames[frame].count()
        return self._frames[frame]

    def _writing(self, frame: Frame, writer: str) -> _Writing:
        self._count += 1
        topic, mode = f"bench-{self._count}", _MODE.get(writer)
        # A whole batch has as many writers as the topic has partitions.
        partitions = max(_PARTITIONS, frame.partitions if mode == "batch" else 0)
        self._kafka.create_topic(topic, partitions=partitions)
        self._cached(frame)
        if mode is None:
            return _Writing(topic, partitions, self._save(writer, topic), None)
        sink = self._sink(topic, mode, driver_rows=0 if frame.by_tasks else None)
        return _Writing(topic, partitions, sink.write, sink)

    def _sink(self, topic: str, mode: Any, **options: Any) -> ExactlyOnceKafkaSink:
        servers = self._kafka.bootstrap_servers
        return ExactlyOnceKafkaSink(
            servers, topic, topic=topic, atomicity=mode, query_id="bench", **options
        )

    def _save(self, writer: str, topic: str) -> Callable[[Any, int], object]:
        options = {"kafka.bootstrap.servers": self._kafka.bootstrap_servers, "topic": topic}

        def save(frame: Any, _: int) -> None:
            if writer in (SPARK, SPARK_THERE):
                frame.write.format("kafka").options(**options).save()
            elif writer == IN_JVM:
                frame.write.format("noop").mode("overwrite").save()
            else:
                partitions_of(frame, _read, None).run(None)

        return save

    def _wrong(self, writing: _Writing) -> str:
        """Return an error of a topic, or nothing. An offset may be a transaction's marker."""
        rows = sum(frame.rows for frame in writing.written)
        most_markers = sum(writing.partitions * frame.partitions for frame in writing.written)
        # The last markers are written after the commit was answered.
        end = time.monotonic() + _ADMIN_S
        while (found := self._stable_end(writing)) < rows and time.monotonic() < end:
            time.sleep(_PAUSE_S)  # no event tells that a marker is written
        is_right = rows <= found <= rows + most_markers
        return "" if is_right else f"{rows} rows were written, and {found} offsets are there"

    def _stable_end(self, writing: _Writing) -> int:
        places = [TopicPartition(writing.topic, number) for number in range(writing.partitions)]
        asked = self._admin.list_offsets(
            dict.fromkeys(places, OffsetSpec.latest()),
            isolation_level=IsolationLevel.READ_COMMITTED,
        )
        return sum(each.result(_ADMIN_S).offset for each in asked.values())


def _read(_order: None, _partition: int, batches: Iterable[Any]) -> int:
    """Read the rows of a task, and write none."""
    return sum(batch.num_rows for batch in batches)
