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


def partitions_of(
    frame: Frame, work: Any, count: int | None, is_doom: Callable[[Any], bool]
) -> Partitions:
    """See `frames.partitions_of`."""
    del count
    return Partitions(frame, work, is_doom)


def stop_raiser(frame: Frame) -> Callable[[], None]:
    """See `session.stop_raiser`."""
    del frame
    return lambda: None


def losses_of(frame: Frame) -> Callable[[float, BaseException | None], bool]:
    """See `session.losses_of`."""
    del frame
    return lambda _, error: "ExecutorLostFailure" in str(error)


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

    def __init__(self, frame: Frame, work: Any, is_doom: Callable[[Any], bool]) -> None:
        self.count = frame.parts
        self._frame = frame
        self._work = work
        self._is_doom = is_doom

    def raise_if_stopped(self) -> None:
        """Do nothing: nobody stops a query."""

    def run(self, order: Any) -> list[Any]:
        """Run all tasks with an order. Return their reports, by partition."""
        job = _Job(self._frame, self._work, pickle.dumps(order), self.count)
        return job.run(self._is_doom)


class _Job:
    """One pass over a frame."""

    def __init__(self, frame: Frame, work: Any, order: bytes, count: int) -> None:
        self.world = present()
        self.frame, self.work, self.order, self.count = frame, work, order, count
        self.edition = frame.draws_edition()
        self.reports: dict[int, bytes] = {}
        self.error = ""
        self._failures = [0] * count
        self._numbers = [0] * count
        self._is_over = False

    def run(self, is_doom: Callable[[Any], bool]) -> list[Any]:
        """Run the tasks, and return their reports, or those that have doomed the pass."""

        def doomed() -> list[Any]:
            return [each for each in map(pickle.loads, self.reports.values()) if is_doom(each)]

        try:
            for partition in range(self.count):
                self._begin(partition)
            self.world.baton.wait(
                lambda: bool(self.error or doomed()) or len(self.reports) == self.count
            )
        finally:
            # Attempts that are under way live on, as those that Spark cannot reach.
            self._is_over = True
        if found := doomed():
            return found
        if self.error:
            raise SparkError(f"Job aborted due to stage failure: {self.error}")
        return [pickle.loads(self.reports[number]) for number in range(self.count)]

    def _begin(self, partition: int) -> None:
        _Attempt(self, partition, self._numbers[partition]).start()

    def needs(self, partition: int) -> bool:
        """Return whether the job waits for a task."""
        return not self._is_over and partition not in self.reports

    def fail(self, partition: int, text: str) -> None:
        """Note that an attempt has failed, and start another."""
        if not self.needs(partition):
            return
        self._failures[partition] += 1
        self._numbers[partition] += 1
        if self._failures[partition] >= _MOST_FAILURES:
            self.error = text
        else:
            self._begin(partition)

    def lose(self, partition: int) -> None:
        """Note that the executor of an attempt is lost, and start another attempt."""
        if not self.needs(partition):
            return
        self.world.count("lose an executor")
        # Where the stage is repeated, the numbers of attempts begin again.
        is_repeated = self.frame.rng.random() < 0.3
        self._numbers[partition] = 0 if is_repeated else self._numbers[partition] + 1
        self._begin(partition)


class _Attempt(VirtualThread):
    """One attempt of a task, in a process of its own."""

    def __init__(self, job: _Job, partition: int, number: int) -> None:
        world = job.world
        world.attempts += 1
        super().__init__(world.baton, self._run, f"task-{world.attempts}")
        self.job, self.partition, self.number = job, partition, number
        self.driver = world.baton.process

    def start(self) -> None:
        world = self.job.world
        world.processes[self.name] = self
        super().start()
        self.turn.process = self.name

    def kill(self) -> None:
        """Kill the executor."""
        self.job.world.baton.kill(self.name)
        self.job.lose(self.partition)

    def pauses(self, seconds: float) -> None:
        """Let Spark take the executor for lost, perhaps, while it stands still."""
        rng, world = self.job.frame.rng, self.job.world
        if seconds > 1 and rng.random() < 0.5:
            after_ms = 1000 * rng.uniform(1, seconds)
            world.baton.call_after(after_ms, lambda: self.job.lose(self.partition))

    def _run(self) -> None:
        try:
            self._work_once()
        finally:
            self.job.world.processes.pop(self.name, None)

    def _work_once(self) -> None:
        job, world = self.job, self.job.world
        world.trace(f"attempt {self.number} of task {self.partition} of {job.frame.name}")
        rng = job.frame.rng
        world.rest(rng.uniform(0, 0.05))
        if world.options.is_slow and not world.is_healed and rng.random() < 0.1:
            world.count("slow task")
            world.rest(rng.uniform(0, world.options.timeout_ms / 1000))
        rows = job.frame.batches_of(self.partition, job.edition)
        try:
            report = job.work(pickle.loads(job.order), self.partition, rows)
        except Exception as error:  # noqa: BLE001 - Spark takes each of them
            world.trace(f"fails: {error!r}")
            job.fail(self.partition, f"{type(error).__module__}.{error!r}")
            return
        world.trace(f"ends{': ' + report.failure if getattr(report, 'failure', '') else ''}")
        if job.needs(self.partition):
            job.reports[self.partition] = pickle.dumps(report)
