"""An RDD that runs a function over a classic frame's Arrow batches, and collects reports.

Why it exists: Spark 3.5 tells `mapInArrow`'s function of a task that is killed that its rows are
over, in the same words as at their true end (`ContextAwareIterator`, gone since 4.0). A task of
atomicity "partition" would commit what it has got. An RDD of Python's raises there.

Owns: the two ways to such an RDD. Must not know: what the function does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, TypeAlias

from txnproducer.spark.rows.few_rows import settings_of

REPORTS: Final = "partition int, report binary"

Function: TypeAlias = Callable[[Iterable[Any]], Iterator[Any]]
"""A function from Arrow batches of rows to Arrow batches of `REPORTS`."""


def rdd_of_reports(frame: Any, function: Function) -> Any:
    """Return the RDD of reports of a frame's partitions."""
    if _ends_killed_tasks():
        return frame.mapInArrow(function, REPORTS).rdd
    from pyspark import RDD
    from pyspark.serializers import NoOpSerializer
    from pyspark.sql.pandas.types import to_arrow_schema

    batches = frame._jdf.toArrowBatchRdd().toJavaRDD()  # noqa: SLF001 - there is no public way
    rdd: Any = RDD(batches, frame.sparkSession.sparkContext, NoOpSerializer())
    return rdd.mapPartitions(_over_bytes(function, to_arrow_schema(frame.schema)))


def sending_settings(frame: Any) -> AbstractContextManager[None]:
    """Send a session's settings along with the jobs of a block, where the RDD does not."""
    return nullcontext() if _ends_killed_tasks() else settings_of(frame.sparkSession)


def _ends_killed_tasks() -> bool:
    """Return whether this version of Spark ends the input of a task that is killed by an error."""
    import pyspark

    return not pyspark.__version__.startswith("3.")


def _over_bytes(function: Function, schema: Any) -> Callable[[Iterable[bytes]], Iterator[Any]]:
    def run_task(pieces: Iterable[bytes]) -> Iterator[Any]:
        import pyarrow as pa

        batches = (pa.ipc.read_record_batch(pa.py_buffer(piece), schema) for piece in pieces)
        for reports in function(batches):
            yield from reports.to_pylist()

    return run_task
