"""The error of a stopped query, job or Spark, and how Spark reports it."""

from __future__ import annotations

import re
import traceback
from types import SimpleNamespace

import pytest

from tests.spark.fake_context import FakeContext
from txnproducer.spark.errors import StoppedError
from txnproducer.spark.session import brief_stop, raise_if_stopped, tells_of_stop

# Spark's StreamExecution takes these for an interrupted query, in the text of Python's exception.
SPARKS = re.compile(
    r"py4j\.protocol\.Py4JJavaError: An error occurred while calling"
    r"((.|\r\n|\r|\n)*)(java\.lang\.InterruptedException)"
)
TRACE = "\n\tat org.apache.spark.scheduler.DAGScheduler.runJob(DAGScheduler.scala:1538)" * 100


@pytest.fixture
def context():
    return FakeContext()


@pytest.fixture
def frame(context):
    return SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context))


@pytest.mark.parametrize(
    ("text", "is_interrupted"),
    [
        (f"An error occurred while calling o5.f.\n: java.lang.InterruptedException{TRACE}", False),
        # Spark cancels the job first, and interrupts the thread then.
        (f"[SPARK_JOB_CANCELLED] Job 7 cancelled part of cancelled job group{TRACE}", True),
    ],
)
def test_an_interrupted_query_ends_by_an_error_that_spark_takes_for_a_stop(
    frame, context, text, is_interrupted
):
    def fail():
        context.is_interrupted = is_interrupted
        raise RuntimeError(text)

    with pytest.raises(StoppedError) as found, brief_stop(frame):
        fail()
    told = "".join(traceback.format_exception(found.value))
    match = SPARKS.search(told)
    assert match is not None
    assert len(told) - match.start() < 300, "Spark's search recurses for each character"
    assert tells_of_stop(found.value)


def test_a_query_that_was_stopped_before_begins_nothing(frame, context):
    context.is_interrupted = True
    with pytest.raises(StoppedError), brief_stop(frame):
        pytest.fail("begun")
    context.is_stopped = True
    with pytest.raises(StoppedError, match="Spark was stopped"), brief_stop(frame):
        pytest.fail("begun")


@pytest.mark.parametrize(
    ("text", "is_stop"),
    [
        ("[SPARK_JOB_CANCELLED] Job 7 cancelled as part of cancellation of all jobs", True),
        ("org.apache.spark.SparkException: Job 50 cancelled part of cancelled job group g", True),
        ("java.lang.IllegalStateException: Job 50 cancelled by its owner", False),
        ("Job aborted due to stage failure: ... SparkException: Job 50 cancelled by me", False),
    ],
)
def test_a_cancelled_job_is_recognised_with_and_without_a_code(text, is_stop):
    assert tells_of_stop(RuntimeError(f"An error occurred.\n: {text}{TRACE}")) == is_stop


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[SPARK_JOB_CANCELLED] Job 7 cancelled by a user, in a batch job"),
        ValueError("of the frame"),
    ],
)
def test_an_error_that_is_no_interrupt_is_unchanged(frame, error):
    with pytest.raises(type(error)) as found, brief_stop(frame):
        raise error
    assert found.value is error


def test_the_context_of_the_jvm_is_asked_for_once() -> None:
    context, asked = FakeContext(), []
    java = context._jsc.sc()

    def look_up():
        asked.append("sc")
        return java

    context._jsc.sc = look_up
    for _ in range(3):
        raise_if_stopped(context)
    assert asked == ["sc"]
    context.is_stopped = True
    with pytest.raises(StoppedError):
        raise_if_stopped(context)


def test_a_context_after_a_stopped_one_is_asked_itself() -> None:
    stopped, living = FakeContext(), FakeContext()
    stopped.is_stopped = True
    with pytest.raises(StoppedError):
        raise_if_stopped(stopped)
    raise_if_stopped(living)
