"""A frame that is planned once, so that its partitions are counted before it is cut otherwise.

Why it exists: the way in which a frame is cut depends on the number of its partitions, which only
a plan has. With adaptive execution a plan runs the frame's shuffles, and a second one would run
them again. So the frame that is cut reads the rows of the plan that was counted.

Owns: that frame. Must not know: the reason for which it is counted, Kafka.

It is made of the JVM's classes, as Spark makes the frame that it gives to `foreachBatch`.
"""

from __future__ import annotations

import logging
from typing import Any

from txnproducer.spark.interpreters import naming_interpreter

_LOG = logging.getLogger(__name__)


def planned(frame: Any) -> tuple[Any, int] | None:
    """Return a frame of the same rows that is planned already, and the number of its partitions.

    Args:
        frame: a classic one of Spark's, not Connect's.

    Returns:
        None if this version of Spark has no such classes.

    Raises:
        Exception: raised by Spark for the frame itself, whose shuffles may run here.
    """
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.sql import DataFrame

    session, dataset = frame.sparkSession, frame._jdf  # noqa: SLF001 - there is no public way
    try:
        with naming_interpreter(frame):  # the frame's own functions may need the package
            rows = dataset.queryExecution().toRdd()
        of_java = session._jsparkSession  # noqa: SLF001
        made = of_java.internalCreateDataFrame(rows, dataset.schema(), False)
    except Py4JError as error:
        if isinstance(error, Py4JJavaError):  # the JVM's own error, for the frame
            raise
        _LOG.info("a frame is cut without a count of its partitions: %s", error)
        return None
    return DataFrame(made, session), rows.getNumPartitions()
