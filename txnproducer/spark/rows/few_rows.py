"""The rows of a small frame, read on the driver without a Python task.

Why it exists: a task of Python's costs Spark a hundred milliseconds however few rows it has. The
JVM can send the rows of a small frame to the driver in a fifth of that.

Owns: the bounded read, its end where the frame turns out large. Must not know: Kafka, the ledger,
who writes the rows.

Rules:
* No more rows reach the driver than can be written, and one. One task evaluates the frame for no
  more; each of many tasks for as many, since none knows of the others.
* On a classic session the limit is put on the frame's own physical plan. A limit of Spark's public
  interface is a new frame, which Spark analyses, optimizes and plans: that takes as long as the
  job itself.
* The job runs in the calling thread. So a stop of the query cancels it, and interrupts the wait.
* Rows of a partition of the frame keep their order.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

from txnproducer.spark.interpreters import naming_interpreter
from txnproducer.spark.session import is_connect

MOST_BYTES: Final = 16 * 1024 * 1024
_PIECE_BYTES: Final = 4 * 1024 * 1024  # both sides hold one piece besides the rows
_LENGTH: Final = struct.Struct(">i")
_ANY_NUMBER: Final = 0  # of rows in a piece
# Whether two fields of a struct must not have one name, and since Spark 4 whether offsets have 64
# bits. No column of ours has such a struct, and no piece needs such offsets.
_PLAIN: Final = (False, False)
_NO_ZONE: Final = "UTC"  # no column of ours has a time
_CONVERTERS: Final = "org.apache.spark.sql.execution.arrow.ArrowConverters"
# Set in a thread whose jobs have the settings of a session.
_EXECUTION: Final = "spark.sql.execution.id"


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
            batches = _collected(frame, most_rows + 1, most_bytes, in_one_task=in_one_task)
    rows = sum(batch.num_rows for batch in batches)
    size = sum(batch.nbytes for batch in batches)
    return batches if rows <= most_rows and size <= most_bytes else None


class _Java(NamedTuple):
    """Names of the JVM's, which Py4J asks for part by part."""

    sessions: Any
    coalesce: Any
    collect_limit: Any
    local_limit: Any
    converters: Any
    serve: Any
    plain: tuple[bool, ...]


@lru_cache(maxsize=1)
def _java_of(gateway: Any) -> _Java:
    import pyspark

    jvm = gateway.jvm
    plans, arrow = jvm.org.apache.spark.sql.execution, f"{_CONVERTERS}$"
    return _Java(
        jvm.SparkSession,
        plans.CoalesceExec,
        plans.CollectLimitExec,
        plans.LocalLimitExec,
        getattr(getattr(jvm, arrow), "MODULE$"),
        jvm.PythonRDD.serveIterator,
        _PLAIN[:1] if pyspark.__version__.startswith("3.") else _PLAIN,
    )


def _collected(frame: Any, limit: int, most_bytes: int, *, in_one_task: bool) -> list[Any]:
    """Return the first rows of a frame of the JVM, until they are too many bytes."""
    session, dataset = frame.sparkSession, frame._jdf  # noqa: SLF001 - there is no public way
    java = _java_of(session.sparkContext._gateway)  # noqa: SLF001
    with _active(java, session), settings_of(session):
        plan = dataset.queryExecution().executedPlan()
        # Either is one partition, so that the iterator runs one job.
        one = java.coalesce(1, plan) if in_one_task else java.collect_limit(limit, plan, 0)
        rows = java.local_limit(limit, one).executeToIterator()
        return _as_arrow(java, rows, dataset.schema(), most_bytes)


@contextlib.contextmanager
def _active(java: _Java, session: Any) -> Iterator[None]:
    """Make a session the active one of the thread. A part of a plan takes it from there."""
    own = session._jsparkSession  # noqa: SLF001 - there is no public way
    before = java.sessions.getActiveSession()
    if before.contains(own):  # as in the thread of each streaming query
        yield
        return
    java.sessions.setActiveSession(own)
    try:
        yield
    finally:
        if before.isDefined():
            java.sessions.setActiveSession(before.get())
        else:
            java.sessions.clearActiveSession()


@contextlib.contextmanager
def settings_of(session: Any) -> Iterator[None]:
    """Send a session's settings along with the jobs of a block, as Spark's own actions do.

    Functions of Spark's ask for some of them in the tasks.
    """
    context = session.sparkContext
    if context.getLocalProperty(_EXECUTION):
        yield  # a streaming query has sent them for all of its batch
        return
    java_context = context._jsc.sc()  # noqa: SLF001 - there is no public way
    before = java_context.getLocalProperties()
    properties = before.clone()
    properties.putAll(session._jsparkSession.sessionState().conf().settings())  # noqa: SLF001
    java_context.setLocalProperties(properties)
    try:
        yield
    finally:
        java_context.setLocalProperties(before)


def _as_arrow(java: _Java, rows: Any, schema: Any, most_bytes: int) -> list[Any]:
    """Return rows of the JVM as record batches, until they are too many bytes."""
    import pyarrow as pa

    pieces = java.converters.toBatchWithSchemaIterator(
        rows, schema, _ANY_NUMBER, _PIECE_BYTES, _NO_ZONE, *java.plain
    )
    try:
        is_empty = not pieces.hasNext()  # runs the job
    except BaseException:
        pieces.close()
        raise
    if is_empty:
        return []
    port, secret, server = java.serve(pieces, "txnproducer-rows")
    batches: list[Any] = []
    size = 0
    with _served(port, secret) as stream:
        # All are taken, since the JVM frees its memory after the last one.
        for piece in _pieces(stream):
            if size <= most_bytes:
                batches += pa.ipc.open_stream(piece)
                size = sum(batch.nbytes for batch in batches)
    server.getResult()  # raises if the JVM has broken off
    return batches


@contextlib.contextmanager
def _served(port: Any, secret: Any) -> Iterator[Any]:
    """Connect to the JVM's thread that serves a result."""
    try:
        from pyspark.util import local_connect_and_auth
    except ImportError:  # Spark 3.5
        from pyspark.java_gateway import local_connect_and_auth

    stream, sock = local_connect_and_auth(port, secret)
    try:
        yield stream
    finally:
        stream.close()
        sock.close()


def _pieces(stream: Any) -> Iterator[bytes]:
    while head := stream.read(_LENGTH.size):
        yield stream.read(*_LENGTH.unpack(head))
