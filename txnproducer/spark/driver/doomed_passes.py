"""The early end of a pass over a frame's partitions, as soon as one report dooms it.

Why it exists: Spark hands out the reports of tasks when all of them have ended. Where a part has
one attempt, the first one that fails dooms the pass, and the others would write for nothing.

Owns: the way of such a report to the driver, the end of the job, the wait for its tasks. Must not
know: the work of the tasks, which report dooms a pass.

Rules:
* A report comes by an accumulator, whose values Spark sends with the end of each task.
* The job is ended by a tag of its own: the group of the query's jobs is the query's.
* Spark kills a task of Python in four seconds. The driver waits for that, so that no task writes
  into a transaction that is over, and the next pass finds free cores.
* A stop that comes meanwhile is raised.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

from txnproducer.spark.session import raise_if_stopped

_LOG = logging.getLogger(__name__)
_POLL_S: Final = 0.1
_KILLED_WITHIN_S: Final = 10.0


class DoomedError(Exception):
    """The pass was ended early.

    Attributes:
        reports: those that doomed it, of which there is at least one.
    """

    def __init__(self, reports: list[Any]) -> None:
        super().__init__(f"{len(reports)} report(s) have doomed the pass")
        self.reports = reports


class _ByToken:
    """Reports by the token of their pass, as Spark's accumulator adds them up."""

    def zero(self, value: dict[str, list[Any]]) -> dict[str, list[Any]]:
        del value
        return {}

    def addInPlace(  # noqa: N802 - Spark's name
        self, found: dict[str, list[Any]], more: dict[str, list[Any]]
    ) -> dict[str, list[Any]]:
        for token, reports in more.items():
            found.setdefault(token, []).extend(reports)
        return found


# One for each context: Spark keeps an accumulator for ever.
_ACCUMULATORS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


@dataclass(frozen=True)
class Alarm:
    """The task's side: it sends a report that dooms its pass ahead of all others.

    Attributes:
        accumulator: of Spark's.
        is_doom: whether a report dooms its pass.
    """

    accumulator: Any
    is_doom: Callable[[Any], bool]

    def note(self, token: str, report: Any) -> None:
        """Note the report of a task of the partitions with this token."""
        if self.is_doom(report):
            self.accumulator.add({token: [report]})


def alarm_of(context: Any, is_doom: Callable[[Any], bool]) -> Alarm:
    """Return the alarm of tasks of a SparkContext."""
    accumulator = _ACCUMULATORS.get(context)
    if accumulator is None:
        accumulator = _ACCUMULATORS[context] = context.accumulator({}, _ByToken())
    return Alarm(accumulator, is_doom)


def run_until_doomed(
    context: Any, alarm: Alarm, token: str, job: Callable[[], list[Any]]
) -> list[Any]:
    """Run a Spark job, and end it early if one of its tasks gives the alarm.

    Args:
        context: the SparkContext.
        alarm: of the job's tasks.
        token: of the partitions.
        job: runs the job in this thread, and returns its rows.

    Raises:
        DoomedError: the job was ended early; its tasks have ended, or were not killed in time.
        Exception: raised by Spark.
    """
    tag, is_over = f"txnproducer-{secrets.token_hex(8)}", threading.Event()
    reports = alarm.accumulator.value

    def watch() -> None:
        while not is_over.wait(_POLL_S):
            if token in reports:
                _cancel(context, tag)
                return

    reports.pop(token, None)
    watcher = threading.Thread(target=watch, name="txnproducer-doomed", daemon=True)
    context.addJobTag(tag)
    watcher.start()
    try:
        return job()
    except Exception as error:
        if tag not in str(error) or token not in reports:
            raise
        doomed = DoomedError(reports[token])
    finally:
        is_over.set()
        watcher.join()
        context.removeJobTag(tag)
        reports.pop(token, None)
    _wait_for_tasks(context, tag)
    raise doomed


def _cancel(context: Any, tag: str) -> None:
    try:
        context.cancelJobsWithTag(tag)
    except Exception:  # noqa: BLE001 - then the pass ends with its last task
        _LOG.warning("a pass that is doomed could not be ended early", exc_info=True)


def _wait_for_tasks(context: Any, tag: str) -> None:
    """Wait until the killed tasks have ended.

    Raises:
        Exception: the query or Spark was stopped.
    """
    end_s = time.monotonic() + _KILLED_WITHIN_S
    while time.monotonic() < end_s:
        raise_if_stopped(context)
        if not _active_tasks(context, tag):
            return
        time.sleep(_POLL_S)
    _LOG.info("tasks of a pass that was ended early have not ended yet")


def _active_tasks(context: Any, tag: str) -> int:
    try:
        tracker = context._jsc.sc().statusTracker()  # noqa: SLF001 - in Java's API
        jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForTag(tag)]
        stages = [
            tracker.getStageInfo(number)
            for job in jobs
            if job.isDefined()
            for number in job.get().stageIds()
        ]
        return sum(stage.get().numActiveTasks() for stage in stages if stage.isDefined())
    except Exception:  # noqa: BLE001 - the transaction's end shuts out what still runs
        _LOG.debug("Spark does not tell which tasks are active", exc_info=True)
        return 0
