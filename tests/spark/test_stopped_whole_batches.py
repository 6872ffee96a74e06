"""A stop of the query, the job or Spark aborts a whole batch, which is not run again."""

from __future__ import annotations

import time

import pytest

from tests.spark.whole_batches import BATCH, SETTINGS, SparkError, part
from txnproducer.errors import KafkaTimeoutError
from txnproducer.spark.driver import batch_retries
from txnproducer.spark.errors import StoppedError

INTERRUPTED = SparkError(
    "An error occurred while calling o5.collectToPython.\n: java.lang.InterruptedException"
)
STOPS = [
    INTERRUPTED,
    SparkError(
        "... calling o7.collect.\n: java.io.UncheckedIOException: lost\nCaused by: "
        "java.nio.channels.ClosedByInterruptException"
    ),
    SparkError("java.io.InterruptedIOException: interrupted"),
    SparkError("[SPARK_JOB_CANCELLED] Job 7 cancelled part of cancelled job group q"),
    SparkError("[OPERATION_CANCELED] Operation has been canceled. SQLSTATE: HY008"),
    SparkError("Job 7 cancelled because SparkContext was shut down"),
    StoppedError("Spark was stopped"),
]


class Stopping:
    """Raises from the n-th question on, as Spark does to a query that was stopped."""

    def __init__(self, after, error=INTERRUPTED):
        self.left, self.error = after, error

    def __call__(self, *_):
        self.left -= 1
        if self.left < 0:
            raise self.error


@pytest.mark.parametrize("error", STOPS, ids=lambda error: str(error)[:30])
def test_a_batch_that_is_stopped_in_its_tasks_is_aborted_and_not_run_again(whole, error):
    make, log = whole
    batches = make()
    batches.enter(BATCH, SETTINGS)
    with pytest.raises(type(error)):
        batches.write(BATCH, Stopping(0, error))
    assert log.count("begin") == 1
    assert log[-1] == "close", "which aborts"


@pytest.mark.parametrize("error", [STOPS[0], STOPS[-1]])
def test_a_batch_that_is_stopped_before_its_commit_is_not_committed(whole, error):
    make, log = whole
    batches = make()
    batches.enter(BATCH, SETTINGS)
    with pytest.raises(type(error)):
        batches.write(BATCH, lambda *_: [part(), part()], Stopping(0, error))
    assert log.count("begin") == 1
    assert "commit" not in log
    batches.write(BATCH, lambda *_: [part(), part()])
    assert log.count("commit") == 1, "a later batch takes the id again"


def test_a_batch_that_is_stopped_between_two_runs_is_not_run_again(whole, monkeypatch):
    make, log = whole
    monkeypatch.setattr(batch_retries, "wait_exponential", lambda **_: lambda _: 60)
    batches, began_s = make(), time.monotonic()
    batches.enter(BATCH, SETTINGS)
    with pytest.raises(SparkError, match="InterruptedException"):
        batches.write(BATCH, lambda *_: [part("lost"), part()], Stopping(1))
    assert log.count("begin") == 1
    assert time.monotonic() - began_s < 30


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_stop_that_came_while_no_broker_answered_asks_nothing_more(whole, is_commit):
    make, log = whole
    lost = KafkaTimeoutError("no answer")
    batches = make(commits=[lost] if is_commit else ())
    batches.enter(BATCH, SETTINGS)
    log.clear()
    # The first question before a commit comes too early.
    with pytest.raises(SparkError, match="InterruptedException"):
        batches.write(
            BATCH,
            lambda *_: [part(), part()] if is_commit else Stopping(0, lost)(),
            Stopping(int(is_commit)),
        )
    assert log[-1] == "close", "no abort, no look and no new producer, which would wait as long"
    assert not {"abort", "look", "glance", "take"} & set(log)


def test_the_interrupt_of_a_task_is_no_stop(whole):
    # An executor that is lost interrupts its tasks, and the batch is run again.
    error = SparkError(
        "Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent "
        "failure: ... java.nio.channels.ClosedByInterruptException"
    )
    make, log = whole
    batches = make()
    batches.enter(BATCH, SETTINGS)
    tries = [error, None]

    def run(*_):
        if (failure := tries.pop(0)) is not None:
            raise failure
        return [part(), part()]

    batches.write(BATCH, run)
    assert (log.count("begin"), log.count("commit")) == (2, 1)
