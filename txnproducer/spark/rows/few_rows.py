"""The rows of a small frame, read on the driver without a Python task.

Why it exists: a task of Python's costs Spark a hundred milliseconds however few rows it has. The
JVM can send the rows of a small frame to the driver in a fifth of that.

Owns: the bounded read, its end where the frame turns out large. Must not know: Kafka, the ledger,
who writes the rows.

Rules:
* No more rows are read than can be written, and one. The frame is not evaluated for the rest.
* On a classic session the bytes are counted as they come, and a read that has too many is ended by
  a tag of its own job: the group of the query's jobs is the query's.
* Rows of a partition of the frame keep their order.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Iterator
from typing import Any, Final

from txnproducer.spark.session import is_connect, naming_interpreter

_LOG = logging.getLogger(__name__)
MOST_BYTES: Final = 16 * 1024 * 1024


def can_read_few(frame: Any) -> bool:
    """Return whether this version of Spark gives a frame's rows as Arrow batches."""
    if is_connect(frame):
        return hasattr(frame, "toArrow")  # since 4.0
    return hasattr(frame, "_jdf")


def read_few(
    frame: Any, most_rows: int, *, in_one_task: bool = False, most_bytes: int = MOST_BYTES
) -> list[Any] | None:
    """Return a frame's rows as record batches, or None if there are too many.

    Args:
        frame: of Spark's.
        most_rows: how many rows are few.
        in_one_task: whether one task does all of the frame's last stage.
        most_bytes: how many bytes of Arrow batches are few; not for Spark Connect.

    Raises:
        Exception: raised by Spark for the frame itself, or for a stop.
    """
    with naming_interpreter(frame):  # the frame's own functions may need the package
        if is_connect(frame):
            limited = (frame.coalesce(1) if in_one_task else frame).limit(most_rows + 1)
            batches = limited.toArrow().to_batches()
        else:
            # The JVM's frame, since each of Python's costs the driver some more calls.
            dataset = frame._jdf.coalesce(1) if in_one_task else frame._jdf  # noqa: SLF001
            context = frame.sparkSession.sparkContext
            found = _collected(context, dataset.limit(most_rows + 1), most_bytes)
            if found is None:
                return None
            batches = found
    return batches if sum(batch.num_rows for batch in batches) <= most_rows else None


def _collected(context: Any, dataset: Any, most_bytes: int) -> list[Any] | None:
    """Return the rows of a frame of the JVM in their order, or None if they are too many bytes."""
    tag = f"txnproducer-{secrets.token_hex(8)}"
    context.addJobTag(tag)
    try:
        port, secret, server = dataset.collectAsArrowToPython()  # as `toArrow` does
    finally:
        # The job has its own thread in the JVM, which has inherited the tag.
        context.removeJobTag(tag)
    with _served(port, secret) as stream:
        batches = _bounded(stream, most_bytes)
        if batches is not None:
            order = _order(stream)
            _raise_of_job(server)
            return [batches[number] for number in order]
    context.cancelJobsWithTag(tag)
    with contextlib.suppress(Exception):  # that the job was cancelled is what was asked for
        _raise_of_job(server)
    _LOG.info("a batch has more than %d bytes, and goes by tasks", most_bytes)
    return None


@contextlib.contextmanager
def _served(port: Any, secret: Any) -> Iterator[Any]:
    """Connect to the JVM's thread that serves a result."""
    try:
        from pyspark.util import local_connect_and_auth
    except ImportError:  # before 4.0
        from pyspark.java_gateway import local_connect_and_auth
    stream, sock = local_connect_and_auth(port, secret)
    try:
        # The time-out was for the connection. The job may take as long as the frame needs.
        sock.settimeout(None)
        yield stream
    finally:
        stream.close()
        sock.close()


def _bounded(stream: Any, most_bytes: int) -> list[Any] | None:
    """Read the record batches of a result, in the order in which they come."""
    import pyarrow as pa

    batches, size = [], 0
    for batch in pa.ipc.open_stream(stream):
        size += batch.nbytes
        if size > most_bytes:
            return None
        batches.append(batch)
    return batches


def _order(stream: Any) -> list[int]:
    """Read the numbers of the batches in the frame's order. They follow the batches.

    They are missing if the job failed. The error comes from the JVM's thread then.
    """
    from pyspark.serializers import read_int

    count = read_int(stream)
    return [read_int(stream) for _ in range(count)] if count > 0 else []


def _raise_of_job(server: Any) -> None:
    """Wait for the JVM's thread that has served a result, and raise the error of its job."""
    from pyspark.errors.exceptions.captured import unwrap_spark_exception

    with unwrap_spark_exception():
        server.getResult()
