"""What Spark tells: whose batch this is, how it runs, which attempt, the rows behind a frame.

Owns: the questions to Spark's session and to a task's context, and what is made of those that are
not answered. Must not know: Kafka, transactions, the ledger.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any, Final

from txnproducer.errors import InvalidConfigurationError
from txnproducer.spark.errors import SinkError

_LOG = logging.getLogger(__name__)
_DESCRIPTION: Final = "spark.job.description"
_QUERY_ID_PROPERTY: Final = "sql.streaming.queryId"


def query_of(df: Any) -> str:
    """Return the id of the streaming query whose batch a frame is.

    Args:
        df: the frame; None to ask the session that is active.

    Raises:
        InvalidConfigurationError: Spark does not tell, as in a batch job or under Spark Connect.
    """
    found: Any = None
    try:
        context = _context_of(df)
        found = None if context is None else context.getLocalProperty(_QUERY_ID_PROPERTY)
    except Exception:  # noqa: BLE001 - Connect refuses the question in several ways
        _LOG.debug("Spark does not tell the query's id", exc_info=True)
    if not found:
        raise InvalidConfigurationError(
            "query_id is needed here: Spark tells it only in a streaming query's "
            "foreachBatch, and not under Spark Connect. Name what the batch ids belong to, "
            "such as query_id='nightly-load', and keep it"
        )
    return str(found)


def speculates(df: Any) -> bool:
    """Tell whether Spark runs second attempts of slow tasks beside the first."""
    try:
        value = df.sparkSession.conf.get("spark.speculation", "false")
    except Exception:  # noqa: BLE001 - the setting is not visible everywhere
        _LOG.debug("Spark does not tell spark.speculation", exc_info=True)
        return False
    return str(value).lower() == "true"


@contextlib.contextmanager
def described(df: Any, text: str) -> Iterator[None]:
    """Have Spark's user interface say of the jobs of a block what they do.

    What it says already (a streaming query's name and batch) stays in front. Under Spark Connect
    there is nothing to say it to.
    """
    try:
        context = _context_of(df)
        before = context.getLocalProperty(_DESCRIPTION)
        context.setLocalProperty(_DESCRIPTION, f"{before}<br/>{text}" if before else text)
    except Exception:  # noqa: BLE001 - a description is no reason to fail
        _LOG.debug("Spark takes no description", exc_info=True)
        yield
        return
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)


def attempt_number() -> int:
    """Return, in a task, how often it has been tried before; 0 outside of Spark's tasks."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else int(context.attemptNumber())


def is_of_spark(error: BaseException) -> bool:
    """Tell whether an error is what Spark raises on the driver, such as for an executor lost."""
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


def rdd_of(frame: Any) -> Any:
    """Return a frame's own rows, so that the partitions that are counted are those that are run.

    Raises:
        SinkError: it has none, under Spark Connect.
    """
    try:
        return frame.rdd
    except Exception as error:
        raise SinkError(
            "this frame has no RDD: it is Spark Connect's. There, use "
            "frame.repartition(n).foreachPartition(sink.partition_writer(batch_id, writers=n)), "
            "and give the sink a query_id"
        ) from error


def _context_of(df: Any) -> Any:
    if df is not None:
        return df.sparkSession.sparkContext
    from pyspark import SparkContext

    return SparkContext._active_spark_context  # noqa: SLF001 - there is no public way to ask
