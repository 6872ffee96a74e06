"""Measure: one session of Spark, one broker, a fresh topic for each measurement.

Owns: frames (made and cached before anything is measured), the session, the count of what has
arrived. Must not know: what is made of the figures.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from integration.benchmarks.job import FailedRunError, LeftOutError, Told
from integration.benchmarks.memory import MemoryMeter
from integration.benchmarks_spark.works import EMPTY, KEYED, KEYLESS, SINKS, SMALL, SPARK
from txnproducer.spark import ExactlyOnceKafkaSink
from txnproducer.testing import EmbeddedKafka

_PARTITIONS = 4
_ADMIN_S = 30.0
_VALUE = "rpad(cast(id AS string), 100, 'x') AS value"


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


class Bench:
    """Writes frames.

    Args:
        spark: the session.
        kafka: the broker, running.
        rows: of the long works.
        has_connector: whether Spark's own sink can take part.

    Attributes:
        sinks: the atomicity of each of our writers, and the most rows that its driver writes.
    """

    def __init__(
        self, spark: Any, kafka: EmbeddedKafka, rows: int, *, has_connector: bool
    ) -> None:
        self._spark = spark
        self._kafka = kafka
        self._has_connector = has_connector
        self.sinks = dict(SINKS)
        self._count = 0
        self._sinks: list[ExactlyOnceKafkaSink] = []
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        many = spark.range(0, rows, 1, 2)
        self._frames = {
            KEYLESS: many.selectExpr(_VALUE),
            KEYED: many.selectExpr("cast(id % 100000 AS string) AS key", _VALUE),
            EMPTY: spark.range(0, 10, 1, 2).where("id < 0").selectExpr(_VALUE),
            SMALL: spark.range(0, 100, 1, 2).selectExpr(_VALUE),
        }
        for frame in self._frames.values():
            frame.cache().count()

    def add(self, name: str, rows: int) -> None:
        """Make the frame of a work with a few rows."""
        frame = self._spark.range(0, max(rows, 10), 1, 2).where(f"id < {rows}").selectExpr(_VALUE)
        self._frames[name] = frame.cache()
        frame.count()

    def measure(self, work: str, peer: str, batches: int) -> Told:
        """Return how long some batches took, after one that is not measured.

        Raises:
            LeftOutError: Spark's connector is not there.
            FailedRunError: not exactly the rows have arrived.
        """
        self._count += 1
        topic = f"bench-{self._count}"
        self._kafka.create_topic(topic, partitions=_PARTITIONS)
        frame = self._frames[work]
        write = self._writer(peer, topic)
        try:
            write(frame, 0)
            began = time.monotonic()
            for number in range(1, batches + 1):
                write(frame, number)
            seconds = time.monotonic() - began
            self._check(topic, (batches + 1) * frame.count(), batches + 1)
        finally:
            while self._sinks:
                self._sinks.pop().close()
            self._admin.delete_topics([topic])
        return _told(batches, seconds)

    def memory(self, folder: Path, atomicity: str, rows: int) -> list[float]:
        """Return a worker's memory in MB, after a tenth of the rows and after all of them."""
        topic, path = f"memory-{atomicity}", folder / atomicity
        self._kafka.create_topic(topic, partitions=1)
        sink = self._sink(topic, atomicity, NoteMemory(str(path)))
        for number, count in enumerate((rows // 10, rows)):
            sink.write(self._spark.range(0, count, 1, 1).selectExpr(_VALUE), number)
        sink.close()
        self._admin.delete_topics([topic])
        return [float(line.split()[1]) for line in path.read_text("utf-8").splitlines()]

    def _sink(
        self,
        topic: str,
        atomicity: str,
        on_event: Any = None,
        driver_rows: int | None = None,
    ) -> ExactlyOnceKafkaSink:
        return ExactlyOnceKafkaSink(
            self._kafka.bootstrap_servers,
            topic,
            topic=topic,
            atomicity=cast('Literal["partition", "batch"]', atomicity),
            query_id="bench",
            driver_rows=driver_rows,
            on_event=on_event,
        )

    def _writer(self, peer: str, topic: str) -> Callable[[Any, int], object]:
        if peer != SPARK:
            atomicity, driver_rows = self.sinks[peer]
            sink = self._sink(topic, atomicity, driver_rows=driver_rows)
            self._sinks.append(sink)
            return sink.write
        if not self._has_connector:
            raise LeftOutError("no connector for this version of Spark")
        options = {"kafka.bootstrap.servers": self._kafka.bootstrap_servers, "topic": topic}
        return lambda frame, _: frame.write.format("kafka").options(**options).save()

    def _check(self, topic: str, rows: int, batches: int) -> None:
        """Check that the rows are there. An offset may be a transaction's marker."""
        places = [TopicPartition(topic, number) for number in range(_PARTITIONS)]
        asked = self._admin.list_offsets(
            dict.fromkeys(places, OffsetSpec.latest()),
            isolation_level=IsolationLevel.READ_COMMITTED,
        )
        found = sum(each.result(_ADMIN_S).offset for each in asked.values())
        most_markers = batches * _PARTITIONS * 2
        if not rows <= found <= rows + most_markers:
            raise FailedRunError(f"{rows} rows were written, and {found} offsets are there")


def _told(batches: int, seconds: float) -> Told:
    return Told(
        version="",
        warm=1,
        transactions=batches,
        seconds=seconds,
        cpu=0.0,
        latencies=[],
        commits=[],
        rss=[],
        peaks=[],
    )
