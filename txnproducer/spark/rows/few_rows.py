"""The rows of a small frame, read on the driver without a Python task.

Why it exists: a task of Python's costs Spark a hundred milliseconds however few rows it has. The
JVM can send the rows of a small frame to the driver in a fifth of that.

Owns: the bounded read, its end where the frame turns out large. Must not know: Kafka, the ledger,
who writes the rows.

Rules:
* No more rows are read than can be written, and one. The frame is not evaluated for the rest.
* On a classic session a read that is left, for whatever reason, is ended by a tag of its own job:
  the group of the query's jobs is the query's.
* A stop is asked for before the job and while it runs. The job has a thread of its own in the JVM,
  and Spark interrupts only the query's.
* Rows of a partition of the frame keep their order.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import select
from collections.abc import Iterator
from typing import Any, Final

from txnproducer.spark.errors import SinkError
from txnproducer.spark.interpreters import naming_interpreter
from txnproducer.spark.session import is_connect, raise_if_stopped, tells_of_stop

_LOG = logging.getLogger(__name__)
MOST_BYTES: Final = 16 * 1024 * 1024
_POLL_S: Final = 0.1  # as soon as that a stop ends a read


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
        most_bytes: how many bytes of Arrow batches are few.

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
            batches = _collected(context, dataset.limit(most_rows + 1), most_bytes)
    rows = sum(batch.num_rows for batch in batches)
    size = sum(batch.nbytes for batch in batches)
    return batches if rows <= most_rows and size <= most_bytes else None


def _collected(context: Any, dataset: Any, most_bytes: int) -> list[Any]:
    """Return the rows of a frame of the JVM, in their order unless they are too many bytes."""
    tag = f"txnproducer-{secrets.token_hex(8)}"
    raise_if_stopped(context)  # a job that begins now ends only when Spark cancels it later
    context.addJobTag(tag)
    try:
        port, secret, server = dataset.collectAsArrowToPython()  # as `toArrow` does
    finally:
        # The job's thread in the JVM has inherited the tag.
        context.removeJobTag(tag)
    with _served(port, secret) as (stream, sock):
        try:
            _wait(context, sock)
            batches = _bounded(stream, most_bytes)
            if sum(batch.nbytes for batch in batches) <= most_bytes:
                return _ordered(batches, stream, server)
        except BaseException as error:
            context.cancelJobsWithTag(tag)
            # The stream only breaks off if the job fails: the JVM's thread has the error.
            if isinstance(error, OSError | EOFError | ValueError):
                _raise_of_job(server)
            raise
    context.cancelJobsWithTag(tag)
    _end_of_job(server, tag)
    return batches


@contextlib.contextmanager
def _served(port: Any, secret: Any) -> Iterator[tuple[Any, Any]]:
    """Connect to the JVM's thread that serves a result."""
    try:
        from pyspark.util import local_connect_and_auth
    except ImportError:  # Spark 3.5
        from pyspark.java_gateway import local_connect_and_auth

    stream, sock = local_connect_and_auth(port, secret)
    try:
        # The time-out was for the connection. The job may take as long as the frame needs.
        sock.settimeout(None)
        yield stream, sock
    finally:
        stream.close()
        sock.close()


def _wait(context: Any, sock: Any) -> None:
    """Wait for the first bytes of a result, or raise if the query is stopped meanwhile.

    The JVM keeps a small result back until it is whole.
    """
    while not select.select([sock], [], [], _POLL_S)[0]:
        raise_if_stopped(context)


def _bounded(stream: Any, most_bytes: int) -> list[Any]:
    """Read the record batches of a result as they come, until they are too many bytes."""
    import pyarrow as pa

    batches, size = [], 0
    for batch in pa.ipc.open_stream(stream):
        batches.append(batch)
        size += batch.nbytes
        if size > most_bytes:
            break
    return batches


def _ordered(batches: list[Any], stream: Any, server: Any) -> list[Any]:
    """Return all batches in the frame's order. The JVM sends their numbers after them.

    Raises:
        SinkError: Spark has not sent all of them.
        Exception: the error of the job.
    """
    from pyspark.serializers import read_int

    count = read_int(stream)  # below 0 if the job has failed
    order = [read_int(stream) for _ in range(count)]
    _raise_of_job(server)
    if sorted(order) != list(range(len(batches))):
        raise SinkError(f"Spark has sent {len(batches)} batches of rows, with the order {order}")
    return [batches[number] for number in order]


def _raise_of_job(server: Any) -> None:
    """Wait for the JVM's thread that has served a result, and raise the error of its job."""
    from pyspark.errors.exceptions.captured import unwrap_spark_exception

    with unwrap_spark_exception():
        server.getResult()


def _end_of_job(server: Any, tag: str) -> None:
    """Wait for the end of a job that was cancelled. Raise if the query was stopped meanwhile."""
    try:
        _raise_of_job(server)
    except Exception as error:
        # The JVM clears the interrupt of a thread that it raises for, so nobody would ask again.
        if tells_of_stop(error) and tag not in str(error):
            raise
        _LOG.debug("a read that was too large has ended: %s", error)
