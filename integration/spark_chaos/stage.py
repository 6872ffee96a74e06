"""The stage of the runs: one Kafka, one Spark, and the present driver.

Why it exists: to start these takes longer than a run does. So runs follow each other on the same
clusters, and a driver is only replaced when it was killed, or when a run wants other settings.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from integration.spark_chaos import driver
from integration.spark_chaos.cluster import SparkCluster, python_path
from integration.spark_chaos.gates import take
from integration.spark_chaos.job import Answer, Job
from integration.waiting import wait_until
from txnproducer.testing import EmbeddedKafka
from txnproducer.testing._process import ManagedProcess

_START_S = 240.0
_END_S = 20.0


class Driver:
    """A driver, and its jobs.

    Args:
        spark: its cluster.
        settings: Spark's, as "name=value".
        folder: of its jobs and its log.
    """

    def __init__(self, spark: SparkCluster, settings: Sequence[str], folder: Path) -> None:
        self.settings = tuple(settings)
        self.folder = folder
        self._numbers = itertools.count()
        folder.mkdir()
        arguments = [str(folder), spark.url, str(spark.log4j), "--executors", str(spark.workers)]
        for setting in settings:
            arguments += ["--setting", setting]
        # -P: the checkout is found by its path, not because somebody stands in another one.
        command = [sys.executable, "-P", "-m", "integration.spark_chaos.driver", *arguments]
        command = ["env", f"PYTHONPATH={python_path()}", *command]
        self._process = ManagedProcess(command, folder / "driver.log", spark.watcher)

    def is_running(self) -> bool:
        """Return whether it has not ended."""
        return self._process.is_running()

    def await_ready(self) -> None:
        """Wait until it takes jobs."""
        self._await(self.folder / driver.READY, _START_S)

    def ask(self, job: Job) -> None:
        """Have it run a query. The answer comes as a file."""
        job.save(self.folder / f"{next(self._numbers):06}.job")

    def await_answer(self, job: Job, longest_s: float) -> Answer:
        """Wait until a query has ended."""
        self._await(Path(job.answer), longest_s)
        return Answer.load(Path(job.answer))

    def _await(self, path: Path, longest_s: float) -> None:
        wait_until(
            lambda: path.exists() or not self.is_running(),
            f"{path.name} does not come; the driver's log ends with:\n{self._process.log_tail()}",
            longest_s,
        )
        if not path.exists():
            raise RuntimeError(f"the driver has ended:\n{self._process.log_tail()}")

    def kill(self) -> None:
        """Kill it and its JVM at once (SIGKILL)."""
        # It is the first of its session, and its JVM belongs to it.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()

    def end(self) -> None:
        """Ask it to end, and see to it."""
        take(self.folder / driver.END)
        if not self._process.wait_or_kill(_END_S):
            return


class Stage:
    """The clusters, as a context manager.

    Args:
        nodes: Kafka's brokers.
        workers: Spark's, with one core each.
    """

    def __init__(self, nodes: int = 3, workers: int = 2) -> None:
        self.kafka = EmbeddedKafka(
            nodes,
            settings={
                # A killed process is missed sooner, so that runs are short.
                "broker.session.timeout.ms": 6000,
                "broker.heartbeat.interval.ms": 1000,
            },
        )
        self.spark = SparkCluster(workers)
        self._stack = ExitStack()
        self._driver: Driver | None = None
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        with self._stack:
            self._stack.enter_context(self.kafka)
            self._stack.enter_context(self.spark)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.dismiss()
        finally:
            self._stack.__exit__(exc_type, exc, traceback)

    def driver(self, settings: Sequence[str] = ()) -> Driver:
        """Return a driver with these settings that takes jobs: the present one, or a new one."""
        present = self._driver
        if present is not None and present.is_running() and present.settings == tuple(settings):
            return present
        self.dismiss()
        folder = self.spark.folder / f"driver-{next(self._numbers)}"
        self._driver = Driver(self.spark, settings, folder)
        self._driver.await_ready()
        return self._driver

    def abandon(self) -> None:
        """Put things in order after a run that failed: a new driver, and every broker running."""
        present, self._driver = self._driver, None
        if present is not None and present.is_running():
            present.kill()
        for index in range(self.kafka.nodes):
            if not self.kafka.is_node_running(index):
                self.kafka.start_node(index)

    def dismiss(self) -> None:
        """End the present driver."""
        present, self._driver = self._driver, None
        if present is not None and present.is_running():
            present.end()
