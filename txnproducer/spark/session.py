"""Spark's session and task context: the query's id, settings, attempts, stops.

Owns: the questions to Spark, and the defaults for those that are not answered; how Spark says that
the work has to stop. Must not know: Kafka, transactions, the ledger.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, Final

from txnproducer.errors import InvalidConfigurationError
from txnproducer.spark.errors import StoppedError

_LOG = logging.getLogger(__name__)
_DESCRIPTION: Final = "spark.job.description"
QUERY_ID_PROPERTY: Final = "sql.streaming.queryId"
# Errors on the driver when a job was ended from outside: `query.stop()` cancels the jobs of the
# query and interrupts its thread; the first of the two is raised. Connect has a code of its own.
_INTERRUPTIONS: Final = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)
_STOPS: Final = (
    *_INTERRUPTIONS,
    "SPARK_JOB_CANCELLED",
    "OPERATION_CANCELED",
    "SparkContext was shut down",
    "stopped SparkContext",
)
# Spark 3.5 has no code for it: "Job 50 cancelled as part of cancellation of all jobs".
_CANCELLED: Final = re.compile(r"SparkException: Job \d+ cancelled ")
_INTERRUPTED: Final = (
    "the query was stopped, and so was its batch: rows without a commit are not written. Start "
    "the query again to go on (py4j.protocol.Py4JJavaError: An error occurred while calling "
    "Spark\n: java.lang.InterruptedException)"  # Spark 3.5 looks for the line break as well
)
# The failure of a task contains the text of the task's error. That error is no stop: a task is
# interrupted whenever its executor is lost or its stage is over.
# Spark's reason for an executor that it has given back, as one without work.
_GIVEN_BACK: Final = "killed by driver"
# In the error of a job that has lost the executor of a task.
_LOST: Final = "ExecutorLostFailure"
_OF_A_TASK: Final = "Job aborted due to stage failure"


def is_connect(frame: Any) -> bool:
    """Return whether a frame is Spark Connect's, which has no RDD and no context."""
    # By its name: Connect's classes cannot be imported where grpc is not installed.
    return type(frame).__module__.startswith("pyspark.sql.connect")


def query_of(df: Any) -> str:
    """Return the id of the streaming query that a frame is a batch of.

    Args:
        df: the frame; None to ask the active session.

    Raises:
        InvalidConfigurationError: Spark has none, as in a batch job or under Spark Connect.
    """
    found: Any = None
    try:
        context = context_of(df)
        # The query's id is the same after a restart from the checkpoint, unlike the id of its run.
        found = None if context is None else context.getLocalProperty(QUERY_ID_PROPERTY)
    except Exception:  # noqa: BLE001 - Connect refuses the question in several ways
        _LOG.debug("Spark does not tell the query's id", exc_info=True)
    if not found:
        raise InvalidConfigurationError(
            "query_id is needed here: Spark gives it only in a streaming query's "
            "foreachBatch, and not under Spark Connect. Name the job that the batch ids belong "
            "to, such as query_id='nightly-load', and keep the name"
        )
    return str(found)


def speculates(df: Any) -> bool:
    """Return whether Spark runs second attempts of slow tasks beside the first."""
    return _setting(df, "spark.speculation") == "true"


def _setting(df: Any, name: str) -> str:
    """Return a switch of Spark's in small letters; "false" if it is not set."""
    try:
        return str(df.sparkSession.conf.get(name, "false")).lower()
    except Exception:  # noqa: BLE001 - settings are not visible everywhere
        _LOG.debug("Spark does not tell %s", name, exc_info=True)
        return "false"


def most_tasks_at_once(df: Any) -> float:
    """Return how many tasks Spark runs at once at most; infinity if executors come and go.

    Args:
        df: a frame, not Connect's.
    """
    if _setting(df, "spark.dynamicAllocation.enabled") == "true":
        return math.inf
    # The cores of all executors, or `spark.default.parallelism`.
    return int(context_of(df).defaultParallelism)


@contextlib.contextmanager
def described(df: Any, text: str) -> Iterator[None]:
    """Describe the jobs of a block in Spark's user interface.

    An earlier description (a streaming query's name and batch) stays in front. Spark Connect takes
    no description.
    """
    try:
        context = context_of(df)
        before = context.getLocalProperty(_DESCRIPTION)
        # Spark separates the lines of its own description of a batch in the same way.
        context.setLocalProperty(_DESCRIPTION, f"{before}<br/>{text}" if before else text)
    except Exception:  # noqa: BLE001 - a description is no reason to fail
        _LOG.debug("Spark takes no description", exc_info=True)
        yield
        return
    try:
        yield
    finally:
        # Restored, since the thread is the query's, and Spark shows its name and batch there.
        context.setLocalProperty(_DESCRIPTION, before)


def attempt_number() -> int:
    """Return the number of earlier attempts of this task, or 0 outside of Spark's tasks."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else int(context.attemptNumber())


def is_of_spark(error: BaseException) -> bool:
    """Return whether Spark raised an error on the driver, such as for a lost executor."""
    # By the module: Py4J's errors and PySpark's have only `Exception` in common.
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


def tells_of_stop(error: BaseException) -> bool:
    """Return whether an error says that the query, the job or Spark was stopped."""
    text = str(error)
    is_told = any(name in text for name in _STOPS) or _CANCELLED.search(text) is not None
    return (is_told and _OF_A_TASK not in text) or isinstance(error, StoppedError)


@contextlib.contextmanager
def brief_stop(df: Any) -> Iterator[None]:
    """Raise one short error if `query.stop()` interrupts the thread of a block, before or in it.

    Spark searches the text of an error from `foreachBatch` for the words of `_INTERRUPTED`. If
    they are there, it takes the error for a stop, and otherwise for a failure of the query. The
    search recurses for each character after "calling": a Java stack trace there would end it by a
    StackOverflowError.

    Args:
        df: the frame.

    Raises:
        StoppedError: the thread was interrupted.
    """
    try:
        if not is_connect(df):
            raise_if_stopped(context_of(df))
        yield
    except Exception as error:
        if tells_of_stop(error) and _is_interrupted(df, error):
            # Without the cause, which would bring a Java stack trace into the text that Spark
            # searches.
            raise StoppedError(_INTERRUPTED) from None
        raise


def _is_interrupted(df: Any, error: BaseException) -> bool:
    """Return whether the thread was interrupted, also just after its job was cancelled."""
    if any(name in str(error) for name in _INTERRUPTIONS):
        return True
    if is_connect(df):
        return False
    try:
        raise_if_stopped(context_of(df))
    except Exception as found:  # noqa: BLE001 - only its text counts; the first error is raised
        return any(name in str(found) for name in _INTERRUPTIONS)
    return False


def losses_of(df: Any) -> Callable[[float, BaseException | None], bool]:
    """Return a function that says whether a job has lost an executor.

    It is called with the time when the job began, by `time.time`, and the job's error. The error
    may name the loss. Spark's own listener notes the executors that are gone, with the reason. One
    that had no work and was given back is no loss. Under Spark Connect none is lost: there each
    loss counts as a failure.
    """
    if is_connect(df):
        return lambda since_s, error: False  # noqa: ARG005
    context = context_of(df)

    def is_lost(executor: Any, since_ms: float) -> bool:
        gone = executor.removeTime()
        if not gone.isDefined() or gone.get().getTime() < since_ms:
            return False
        reason = executor.removeReason()
        return not (reason.isDefined() and _GIVEN_BACK in reason.get())

    def has_lost(since_s: float, error: BaseException | None) -> bool:
        if _LOST in str(error):
            return True
        try:
            store = context._jsc.sc().statusStore()  # noqa: SLF001 - there is no public way
            known = store.executorList(False)
            return any(is_lost(known.apply(n), since_s * 1000) for n in range(known.size()))
        except Exception:  # noqa: BLE001 - a run is then counted as one that failed by itself
            _LOG.debug("Spark does not tell its executors", exc_info=True)
            return False

    return has_lost


def stop_raiser(df: Any) -> Callable[[], None]:
    """Return a function that raises if the query or Spark was stopped, as far as Spark shows it.

    A client of Connect learns of a stop only by its next answer.
    """
    if is_connect(df):
        return lambda: None
    return partial(raise_if_stopped, context_of(df))


def raise_if_stopped(context: Any) -> None:
    """Raise if the work of the calling thread has to stop.

    `query.stop()` interrupts the query's thread. Spark notices that only when the thread waits for
    a job, so code between jobs has to ask.

    Args:
        context: the SparkContext; not Connect's.

    Raises:
        StoppedError: Spark was stopped.
        Exception: the thread was interrupted.
    """
    # None once Spark was stopped from Python.
    if context._jsc is None or _is_stopped_of(context)():  # noqa: SLF001
        raise StoppedError("Spark was stopped: rows without a commit are not written")
    # In the JVM's thread that is pinned to ours: with its interrupt pending it takes none of the
    # permits, but raises. A sleep of no time would do so as well, but gives the processor away.
    _permits_of(context._gateway)(0)  # noqa: SLF001 - there is no public way to the JVM


@lru_cache(maxsize=1)
def _is_stopped_of(context: Any) -> Callable[[], bool]:
    """Return the JVM's `SparkContext.isStopped`. The way to its object is one call more."""
    is_stopped: Callable[[], bool] = context._jsc.sc().isStopped  # noqa: SLF001 - likewise
    return is_stopped


@lru_cache(maxsize=1)
def _permits_of(gateway: Any) -> Callable[[int], None]:
    """Return a function of the JVM that acquires a number of permits, of which there are none."""
    acquire: Callable[[int], None] = gateway.jvm.java.util.concurrent.Semaphore(0).acquire
    return acquire


def context_of(df: Any) -> Any:
    """Return the SparkContext of a frame, or the active one; None if there is none.

    Args:
        df: the frame, not Connect's; None to ask for the active context.
    """
    if df is not None:
        return df.sparkSession.sparkContext
    from pyspark import SparkContext

    return SparkContext._active_spark_context  # noqa: SLF001 - there is no public way to ask
