"""A pass that one report dooms is ended early by a tag of its own, and its tasks are awaited."""

from __future__ import annotations

import pickle
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tests.spark.fake_context import FakeContext
from txnproducer.spark.driver import doomed_passes
from txnproducer.spark.driver.doomed_passes import Alarm, DoomedError, alarm_of, run_until_doomed
from txnproducer.spark.errors import StoppedError
from txnproducer.spark.tasks.participant import Part, is_failed

accumulators = pytest.importorskip(
    "pyspark.accumulators", reason="PySpark is not installed (extra `spark`)"
)


class Spark(FakeContext):
    """A context whose jobs go on until their tag is cancelled."""

    def __init__(self):
        super().__init__()
        self.tags: list[str] = []
        self.cancelled: list[str] = []
        self.is_cancelled = threading.Event()
        self.active = [2, 1, 0]  # tasks, at each question; the last answer for ever
        self._jsc.sc = lambda: SimpleNamespace(
            isStopped=lambda: self.is_stopped, statusTracker=lambda: self
        )

    def accumulator(self, value, param):
        return accumulators.Accumulator(7_000_001, value, param)

    def addJobTag(self, tag):  # noqa: N802 - Spark's names
        self.tags.append(tag)

    def removeJobTag(self, tag):  # noqa: N802
        self.tags.remove(tag)

    def cancelJobsWithTag(self, tag):  # noqa: N802
        self.cancelled.append(tag)
        self.is_cancelled.set()

    # --- the status tracker ---

    def getJobIdsForTag(self, tag):  # noqa: N802
        return [4, 5] if tag in self.cancelled else []

    def getJobInfo(self, number):  # noqa: N802
        return some(SimpleNamespace(stageIds=lambda: [8])) if number == 4 else some(None)

    def getStageInfo(self, _):  # noqa: N802
        count = self.active.pop(0) if len(self.active) > 1 else self.active[0]
        return some(SimpleNamespace(numActiveTasks=lambda: count))


def some(found: Any):
    return SimpleNamespace(isDefined=lambda: found is not None, get=lambda: found)


@pytest.fixture
def spark(monkeypatch):
    monkeypatch.setattr(doomed_passes, "_POLL_S", 0.01)
    return Spark()


@pytest.fixture
def alarm(spark):
    return alarm_of(spark, lambda report: report < 0)


def in_a_task(alarm: Alarm, token: str, report: int) -> None:
    """Note a report in a task. Spark sends its values to the driver when the task has ended."""
    ours = alarm.accumulator
    del accumulators._accumulatorRegistry[ours.aid]  # a worker has a registry of its own
    there = Alarm(pickle.loads(pickle.dumps(ours)), alarm.is_doom)
    there.note(token, report)
    accumulators._accumulatorRegistry[ours.aid] = ours
    ours.add(there.accumulator._value)


def until_cancelled(spark, alarm, *reports, token="ours"):
    """Return a job with these reports, which lasts until it is cancelled."""

    def job():
        for report in reports:
            in_a_task(alarm, token, report)
        assert spark.is_cancelled.wait(10), "the job was not ended"
        raise RuntimeError(f"[SPARK_JOB_CANCELLED] Job 4 cancelled part of {spark.tags[0]}")

    return job


def test_a_job_is_ended_by_its_own_tag_as_soon_as_a_report_dooms_it(spark, alarm):
    with pytest.raises(DoomedError) as caught:
        run_until_doomed(spark, alarm, "ours", until_cancelled(spark, alarm, 1, -2, -3))
    assert caught.value.reports == [-2, -3]
    [tag] = spark.cancelled
    assert tag.startswith("txnproducer-")
    assert (spark.tags, alarm.accumulator.value) == ([], {})
    assert spark.active == [0], "its tasks were not awaited"


def test_a_job_without_such_a_report_goes_on_to_its_end(spark, alarm):
    def job():
        in_a_task(alarm, "ours", 1)
        in_a_task(alarm, "others", -1)
        assert not spark.is_cancelled.wait(0.2)
        return ["row"]

    assert run_until_doomed(spark, alarm, "ours", job) == ["row"]
    assert (spark.tags, spark.cancelled) == ([], [])
    assert list(alarm.accumulator.value) == ["others"]


def test_a_pass_does_not_hear_of_the_one_before(spark, alarm):
    in_a_task(alarm, "ours", -1)

    def job():
        assert not spark.is_cancelled.wait(0.2)
        return ["row"]

    assert run_until_doomed(spark, alarm, "ours", job) == ["row"]


@pytest.mark.parametrize("is_doomed", [True, False])
def test_another_end_of_the_job_is_raised(spark, alarm, is_doomed):
    def job():
        if is_doomed:
            in_a_task(alarm, "ours", -1)
            assert spark.is_cancelled.wait(10)
        raise RuntimeError("Job 4 cancelled part of cancelled job group of the query")

    with pytest.raises(RuntimeError, match="job group of the query"):
        run_until_doomed(spark, alarm, "ours", job)
    assert (spark.tags, alarm.accumulator.value) == ([], {})


def test_a_stop_that_comes_meanwhile_is_raised(spark, alarm):
    spark.active = [1]
    spark.is_interrupted = True
    with pytest.raises(InterruptedError):
        run_until_doomed(spark, alarm, "ours", until_cancelled(spark, alarm, -1))
    spark.is_cancelled.clear()
    spark.is_stopped = True
    with pytest.raises(StoppedError):
        run_until_doomed(spark, alarm, "ours", until_cancelled(spark, alarm, -1))


def test_tasks_that_nobody_can_kill_are_not_awaited_for_ever(spark, alarm, monkeypatch):
    monkeypatch.setattr(doomed_passes, "_KILLED_WITHIN_S", 0.05)
    spark.active = [1]
    with pytest.raises(DoomedError):
        run_until_doomed(spark, alarm, "ours", until_cancelled(spark, alarm, -1))


def test_a_spark_that_does_not_tell_its_tasks_is_not_waited_for(spark, alarm, monkeypatch):
    def refuse(*_):
        raise RuntimeError("no such method")

    monkeypatch.setattr(Spark, "getJobIdsForTag", refuse)
    with pytest.raises(DoomedError):
        run_until_doomed(spark, alarm, "ours", until_cancelled(spark, alarm, -1))


def test_a_job_that_cannot_be_ended_goes_on_to_its_end(spark, alarm, monkeypatch):
    refused = threading.Event()

    def refuse(*_):
        refused.set()
        raise RuntimeError("no such method")

    monkeypatch.setattr(Spark, "cancelJobsWithTag", refuse)

    def job():
        in_a_task(alarm, "ours", -1)
        assert refused.wait(10)
        return ["row"]

    assert run_until_doomed(spark, alarm, "ours", job) == ["row"]


def test_a_context_has_one_accumulator(spark, alarm):
    assert alarm_of(spark, is_failed).accumulator is alarm.accumulator
    assert alarm_of(Spark(), is_failed).accumulator is not alarm.accumulator


def test_a_part_that_could_not_be_written_dooms_a_pass():
    part = Part(None, 0, 0, "", "", "resume", {})
    failed = Part(None, 0, 0, "", "partition 1: refused", "abort", {})
    assert [is_failed(report) for report in (part, failed, (3, "digest"))] == [False, True, False]
