"""`python -m integration.spark_chaos.driver`: a Spark driver that runs one query after another.

A process of its own, so that it can be killed with its JVM. It takes the jobs that appear in a
folder, in the order of their names, until the file `end` is there. It does not know of faults.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from integration.spark_chaos.cluster import QUICK_JAVA
from integration.spark_chaos.gates import STOP
from integration.spark_chaos.job import Answer, Job
from integration.spark_chaos.writers import frame_of, into
from integration.waiting import wait_until
from txnproducer.testing._config import HOST

READY = "ready"
END = "end"
_POLL_S = 0.05
_EXECUTORS_S = 180.0


def start_spark(master: str, log4j: str, settings: list[str]) -> Any:
    """Start a session on a standalone cluster."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = HOST
    from pyspark.sql import SparkSession

    java = " ".join((*QUICK_JAVA, f"-Dlog4j2.configurationFile=file:{log4j}"))
    builder = (
        SparkSession.builder.master(master)
        .appName("txnproducer chaos")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", HOST)
        .config("spark.driver.bindAddress", HOST)
        .config("spark.driver.memory", "512m")
        .config("spark.executor.memory", "512m")
        .config("spark.executor.cores", "1")
        .config("spark.driver.extraJavaOptions", java)
        .config("spark.executor.extraJavaOptions", java)
        .config("spark.sql.shuffle.partitions", "2")
        # The blocks of a killed executor are asked for once more, and not for fifteen seconds.
        .config("spark.shuffle.io.maxRetries", "1")
        .config("spark.shuffle.io.retryWait", "200ms")
        # Spark ends tasks that nobody needs any more where it can. It can't end one that is cut
        # off from it, and such zombies are what this is about.
        .config("spark.python.task.killTimeout", "300s")
    )
    for setting in settings:
        builder = builder.config(*setting.split("=", 1))
    return builder.getOrCreate()


def run_query(spark: Any, job: Job, executors: int) -> Answer:
    """Run a query to the end of its input, and return its error, if it failed."""
    wait_for_executors(spark, executors)
    stream, close = into(frame_of(spark, job).writeStream, spark, job)
    try:
        query = (
            stream.option("checkpointLocation", job.checkpoint).trigger(availableNow=True).start()
        )
        _await_end(query, Path(job.gates.folder) / STOP)
    except Exception as error:  # noqa: BLE001 - the error that ends a query is the answer
        return Answer(f"{type(error).__name__}: {error}")
    finally:
        close()
    return Answer("")


def _await_end(query: Any, stop: Path) -> None:
    """Wait until a query ends, and stop it once if that is asked for."""
    while not query.awaitTermination(_POLL_S):
        if stop.exists():
            stop.unlink()
            query.stop()


def wait_for_executors(spark: Any, count: int) -> None:
    """Wait until every executor is there: a killed one is replaced by its worker."""
    context = spark.sparkContext._jsc.sc()
    # The driver counts as one.
    wait_until(
        lambda: context.getExecutorMemoryStatus().size() > count,
        f"fewer than {count} executors",
        _EXECUTORS_S,
    )


def main() -> None:
    logging.basicConfig(level=logging.WARNING)  # what the sink warns of is half of a diagnosis
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("master")
    parser.add_argument("log4j")
    parser.add_argument("--executors", type=int, default=2)
    parser.add_argument("--setting", action="append", default=[])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ResourceWarning)
    folder: Path = arguments.folder
    spark = start_spark(arguments.master, arguments.log4j, arguments.setting)
    wait_for_executors(spark, arguments.executors)
    (folder / READY).touch()
    while not (folder / END).exists():
        path = min(folder.glob("*.job"), default=None)
        if path is None:
            time.sleep(_POLL_S)  # for the next job; the process that sends them also ends this one
            continue
        job = Job.load(path)
        path.unlink()
        run_query(spark, job, arguments.executors).save(Path(job.answer))
    spark.stop()


if __name__ == "__main__":
    main()
