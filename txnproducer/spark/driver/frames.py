"""A frame's partitions as tasks. They are counted once, and run in passes, each with an order.

Why it exists: the orders to the tasks (how many tasks there are, which run it is, a lease) are
known only when the partitions are counted. Counting plans the frame, which runs its shuffles. A
second plan may be cut otherwise (adaptive execution), and runs the shuffles again. So the frame is
planned once, together with the tasks, and the order follows later, in a local property of the
Spark job. A pass that is repeated runs the very same partitions.

Owns: the way of orders and reports, and the check that every partition was run. Must not know: the
work of the tasks, Kafka.

Rules:
* A task whose number is not below the number of partitions that were counted writes nothing
  and fails.
* All partitions report, each of them once, or the pass has failed.
* A pass that a report dooms is ended early; see `doomed_passes.py`. Spark Connect tells of no
  report before the end.
* An order holds no secret: a job's properties are in Spark's logs. Passwords go in the closure.
* Spark Connect has neither local properties nor a way to count. There the number is fixed by a
  shuffle, and each pass is a plan of its own. A frame that is empty by its plan runs no task in
  spite of the shuffle; then the work is done here, without rows.
"""

from __future__ import annotations

import base64
import logging
import pickle
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from txnproducer.errors import InvalidConfigurationError
from txnproducer.spark.driver.doomed_passes import (
    Alarm,
    DoomedError,
    alarm_of,
    run_until_doomed,
)
from txnproducer.spark.driver.report_rows import REPORTS, rdd_of_reports, sending_settings
from txnproducer.spark.driver.task_errors import naming_task_error
from txnproducer.spark.errors import SinkError
from txnproducer.spark.interpreters import carried, naming_interpreter
from txnproducer.spark.session import is_connect, raise_if_stopped
from txnproducer.spark.tasks.worker_imports import forget_sparks_zips

_LOG = logging.getLogger(__name__)
_PROPERTY: Final = "txnproducer.order"

Work: TypeAlias = Callable[[Any, int, Iterable[Any]], Any]
"""The work of a task, from an order, the partition's number and its batches to a report."""


class Partitions(Protocol):
    """The partitions of a frame.

    Attributes:
        count: how many; 0 for a frame that is empty by its plan, and so runs no task.
    """

    count: int

    def run(self, order: Any) -> list[Any]:
        """Run all tasks with an order. Return their reports, by partition.

        If one of them dooms the pass, only such reports are returned, as soon as there is one.
        """

    def raise_if_stopped(self) -> None:
        """Raise if the query or Spark was stopped, as far as Spark shows it."""


def partitions_of(
    frame: Any, work: Work, count: int | None, is_doom: Callable[[Any], bool] | None = None
) -> Partitions:
    """Return a frame's partitions.

    Args:
        frame: of Spark's, classic or Connect.
        work: picklable.
        count: the number of partitions that the frame was shuffled into; None to count them.
        is_doom: whether a report dooms its pass; picklable. None: no report does.

    Raises:
        InvalidConfigurationError: they cannot be counted under Spark Connect.
    """
    if not is_connect(frame):
        # Counting runs the shuffles, and functions before one may need the package (`placing`).
        with naming_task_error(), naming_interpreter(frame):
            return CountedPartitions(frame, work, is_doom)
    if count is None:
        raise InvalidConfigurationError(
            "writers is needed here: Spark Connect does not give a frame's number of partitions. "
            "Give the sink writers=n (such as the topic's number of partitions), and it cuts each "
            "batch into n"
        )
    return FixedPartitions(frame, work, count)


class CountedPartitions:
    """Partitions of a classic frame. Counting them plans the frame, once.

    Args:
        frame: of Spark's.
        work: picklable.
        is_doom: see `partitions_of`.
    """

    def __init__(
        self, frame: Any, work: Work, is_doom: Callable[[Any], bool] | None = None
    ) -> None:
        # A JVM can mix up the properties of threads: the token shows a job of another one.
        self._token = secrets.token_hex(8)
        self._frame = frame
        self._context = frame.sparkSession.sparkContext
        self._alarm = None if is_doom is None else alarm_of(self._context, is_doom)
        task = _Task(work, self._token, alarm=self._alarm)
        self._rdd = rdd_of_reports(frame, _as_function(task))
        self.count: int = self._rdd.getNumPartitions()

    def run(self, order: Any) -> list[Any]:
        """Run all tasks with an order. See `Partitions`."""
        self.raise_if_stopped()  # a job that begins now ends only when Spark cancels it later
        context, text = self._context, _written(_Order(self._token, self.count, order))
        context.setLocalProperty(_PROPERTY, text)
        try:
            naming = naming_interpreter(self._frame)
            with naming_task_error(), naming, sending_settings(self._frame):
                rows = self._collected()
        except DoomedError as doomed:
            return doomed.reports
        finally:
            # Spark hands local properties on to later jobs of this thread, the query's own
            # included.
            context.setLocalProperty(_PROPERTY, None)
        return _complete(rows, self.count)

    def _collected(self) -> list[Any]:
        collect: Callable[[], list[Any]] = self._rdd.collect
        if self._alarm is None:
            return collect()
        return run_until_doomed(self._context, self._alarm, self._token, collect)

    def raise_if_stopped(self) -> None:
        """Raise if the query or Spark was stopped. See `session.raise_if_stopped`."""
        raise_if_stopped(self._context)


class FixedPartitions:
    """Partitions of a frame that was shuffled into a known number. Each pass is a new plan.

    Args:
        frame: of Spark's.
        work: picklable.
        count: how many.
    """

    def __init__(self, frame: Any, work: Work, count: int) -> None:
        self._frame = frame
        self._work = work
        self.count = count

    def run(self, order: Any) -> list[Any]:
        """Run all tasks with an order. Return their reports, by partition."""
        # Connect has no local properties, so the order goes in the closure, and no token is
        # needed.
        task = _Task(self._work, "", _Order("", self.count, order))
        with naming_task_error(), naming_interpreter(self._frame):
            rows = self._frame.mapInArrow(_as_function(task), REPORTS).collect()
        if not rows:  # a task always reports, so there was none
            return [self._work(order, number, ()) for number in range(self.count)]
        return _complete(rows, self.count)

    def raise_if_stopped(self) -> None:
        """Do nothing. A client of Connect learns of a stop only by its next answer."""


@dataclass(frozen=True)
class _Order:
    """The order of a pass, as it is sent to the tasks.

    Attributes:
        token: of the partitions that the order is for.
        count: how many partitions there are.
        order: for the work.
    """

    token: str
    count: int
    order: Any


@dataclass(frozen=True)
class _Task:
    """One task. It takes its order, does the work, and gives the report as an Arrow row.

    Attributes:
        work: the work.
        token: of the task's partitions; the order must have the same one.
        order: of the pass; None if it is in the job's property.
        alarm: takes a report that dooms the pass; None if no report does.
    """

    work: Work
    token: str
    order: _Order | None = None
    alarm: Alarm | None = None

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            raise SinkError("a task of the sink runs in Spark's workers only")
        order = self.order or _read(context.getLocalProperty(_PROPERTY))
        number = context.partitionId()
        # Before the work: the order of another job would name another run, and other slots.
        if order.token != self.token:
            raise SinkError(
                "this job was not started by the sink that its tasks are of: nothing was written. "
                "With PYSPARK_PIN_THREAD=false threads mix up each other's jobs; leave it out"
            )
        if number >= order.count:
            raise SinkError(
                f"task {number} is one too many: {order.count} partitions were counted, and Spark "
                "has cut the frame otherwise since. It has written nothing"
            )
        report = self.work(order.order, number, batches)
        if self.alarm is not None:
            self.alarm.note(self.token, report)
        columns = {"partition": pa.array([number], pa.int32()), "report": [pickle.dumps(report)]}
        yield pa.RecordBatch.from_pydict(columns)
        forget_sparks_zips()


def _as_function(task: _Task) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a task as a function of one argument, which Spark looks for."""
    checked = carried(task)

    def run_task(batches: Iterable[Any]) -> Iterator[Any]:
        found: Iterator[Any] = checked(batches)
        return found

    return run_task


def _written(order: _Order) -> str:
    # Text, since a local property is a string of Java's; compressed, since it goes along with each
    # task.
    return base64.b64encode(zlib.compress(pickle.dumps(order))).decode()


def _read(text: str | None) -> _Order:
    if text is None:
        raise SinkError(
            "this task was not started by the sink: the sink's DataFrame was executed by other "
            "code"
        )
    # The driver of this job wrote it, as it wrote the closure.
    order: _Order = pickle.loads(zlib.decompress(base64.b64decode(text)))  # noqa: S301
    return order


def _complete(rows: Iterable[Any], count: int) -> list[Any]:
    reports = sorted((row["partition"], row["report"]) for row in rows)
    numbers = [number for number, _ in reports]
    if numbers != list(range(count)):
        raise SinkError(
            f"of {count} partitions these have reported: {numbers}. Spark has cut the frame "
            "otherwise than when they were counted, or lost a task's answer"
        )
    return [pickle.loads(report) for _, report in reports]  # noqa: S301 - our own tasks'
