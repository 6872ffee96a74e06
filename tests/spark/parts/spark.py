"""Spark, as the sink meets it: frames, jobs of tasks, attempts, lost executors.

Owns: a frame's rows, the attempts of tasks, which of them live on. Must not know: Kafka, the sink.

Rules:
* A job ends when each of its tasks has one attempt that has ended well, or one task failed too
  often. Other attempts may live on, long after the job, and after the driver.
* A lost executor's attempt may live on as well. The next attempt has the next number, or the same
  one again if Spark repeats the stage.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tests.spark.parts.world import present
from txnproducer.sim.stack.baton import VirtualThread

_MOST_FAILURES = 4


class SparkError(Exception):
    """As Spark raises it on the driver."""

    __module__ = "pyspark.errors"


@dataclass
class Frame:
    """A frame of one batch.

    Attributes:
        batch: the query and the number of the batch.
        rows: how many.
        parts: into how many partitions the rows are cut.
        rng: draws the attempts of its tasks.
        edition: whether another evaluation gives other rows: None if not.
        order: of the partitions, which Spark may number otherwise.
        passes: how often it was evaluated.
    """

    name: str
    rows: int
    parts: int
    rng: random.Random
    draws_edition: Callable[[], int]
    order: list[int] = field(default_factory=list)

    def batches_of(self, partition: int, edition: int) -> list[pa.RecordBatch]:
        """Return the rows of a partition."""
        number = self.order[partition]
        rows = range(number, self.rows, self.parts)
        values = [f"{self.name}|{edition}|{row}".encode() for row in rows]
        return [pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})]


def partitions_of(frame: Frame, work: Any, count: int | None) -> Partitions:
    """See `frames.partitions_of`."""
    del count
    return Partitions(frame, work)


def stop_raiser(frame: Frame) -> Callable[[], None]:
    """See `session.stop_raiser`."""
    del frame
    return lambda: None


def executors_of(frame: Frame) -> Callable[[], frozenset[str]]:
    """See `session.executors_of`."""
    del frame
    return frozenset


def read_few(frame: Frame, most_rows: int, **others: object) -> list[pa.RecordBatch] | None:
    """See `few_rows.read_few`."""
    del others
    present().rest(0.01)
    if frame.rows > most_rows:
        return None
    edition = frame.draws_edition()
    return [batch for part in range(frame.parts) for batch in frame.batches_of(part, edition)]


def attempt_number() -> int:
    """See `session.attempt_number`."""
    thread = present().baton.current
    return thread.number if isinstance(thread, _Attempt) else 0


class Partitions:
    """The partitions of a frame, as tasks. See `frames.Partitions`."""

    def __init__(self, frame: Frame, work: Any) -> None:
        self.count = frame.parts
        self._frame = frame
        self._work = work

    def raise_if_stopped(self) -> None:
        """Do nothing: nobody stops a query."""

    def run(self, order: Any) -> list[Any]:
        """Run all tasks with an order. Return their reports, by partition."""
        job = _Job(self._frame, self._work, pickle.dumps(order), self.count)
        return job.run()


class _Job:
    """One pass over a frame."""

    def __init__(self, frame: Frame, work: Any, order: bytes, count: int) -> None:
        self.world = present()
        self.frame, self.work, self.order, self.count = frame, work, order, count
        self.edition = frame.draws_edition()
        self.reports: dict[int, bytes] = {}
        self.failures: list[int] = [0] * count
        self.error: str = ""
        self.is_over = False

    def run(self) -> list[Any]:
        for partition in range(self.count):
            self.begin(partition, 0)
        self.world.baton.wait(lambda: bool(self.error) or len(self.reports) == self.count)
        self.is_over = True
        if self.error:
            raise SparkError(f"Job aborted due to stage failure: {self.error}")
        return [pickle.loads(self.reports[number]) for number in range(self.count)]

    def begin(self, partition: int, number: int) -> None:
        """Start an attempt of a task."""
        _Attempt(self, partition, number).start()

    def fail(self, partition: int, number: int, text: str) -> None:
        """Note that an attempt has failed, and start another."""
        if self.is_over or partition in self.reports:
            return
        self.failures[partition] += 1
        if self.failures[partition] >= _MOST_FAILURES:
            self.error = text
        else:
            self.begin(partition, number + 1)


class _Attempt(VirtualThread):
    """One attempt of a task."""

    def __init__(self, job: _Job, partition: int, number: int) -> None:
        world = job.world
        world.attempts += 1
        name = f"task-{world.attempts}"
        super().__init__(world.baton, self._run, name)
        self.job, self.partition, self.number, self.label = job, partition, number, name

    def start(self) -> None:
        super().start()
        self.turn.process = self.label

    def _run(self) -> None:
        job, world = self.job, self.job.world
        world.trace(f"attempt {self.number} of task {self.partition} of {job.frame.name}")
        rng = job.frame.rng
        world.rest(rng.uniform(0, 0.05))
        rows = job.frame.batches_of(self.partition, job.edition)
        try:
            report = job.work(pickle.loads(job.order), self.partition, rows)
        except Exception as error:  # noqa: BLE001 - Spark takes each of them
            world.trace(f"fails: {error!r}")
            job.fail(self.partition, self.number, f"{type(error).__module__}.{error!r}")
            return
        if not job.is_over:
            job.reports.setdefault(self.partition, pickle.dumps(report))
