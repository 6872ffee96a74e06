"""Whether a task has read its input to the end, or only to where it broke off.

Why it exists: where Spark's side of a task fails, because a shuffle can't be fetched or the task
is killed, it closes the connection to the Python worker. PySpark takes that for the end of the
rows (`FramedSerializer.load_stream` and Arrow's reader alike), so that a function can't tell half
of a partition from all of it. Whoever commits what he has read must be able to.

What tells them apart is what follows the rows: Spark's side ends a whole input with the number
`END_OF_STREAM`, which the worker reads when the function has returned. Here it is looked at, and
left where it is.

Owns: finding the worker's input, the look at it. Must not know: rows, Kafka.
"""

from __future__ import annotations

import io
import sys
from types import FrameType
from typing import Final

from txnproducer.spark.errors import InputBrokenError

# `pyspark.serializers.SpecialLengths.END_OF_STREAM`, as a big-endian int32.
_END_OF_STREAM: Final = (-4).to_bytes(4, "big", signed=True)
_WORKER: Final = "main"
_INPUT: Final = "infile"


def check_input_is_whole() -> None:
    """Check, when all rows are read, that these are all rows of the task.

    Does nothing outside a Spark task.

    Raises:
        InputBrokenError: they are not, or nobody can tell.
    """
    from pyspark import TaskContext

    if TaskContext.get() is None:
        return
    source = _input_of_worker(sys._getframe())  # noqa: SLF001 - no other way to the worker's input
    if source is None:
        raise InputBrokenError(
            "this version of PySpark does not show whether a task has all of its rows; use one "
            "that the sink is tested with (docs/spark.md)"
        )
    try:
        # One read at most; the number is sent at once, behind the rows.
        found = source.peek(len(_END_OF_STREAM))[: len(_END_OF_STREAM)]
    except OSError as error:
        raise InputBrokenError(_BROKEN) from error
    if not found or not _END_OF_STREAM.startswith(found):
        raise InputBrokenError(_BROKEN)


_BROKEN: Final = (
    "the rows of this task broke off: Spark could not read all of them, or has ended the task. "
    "Nothing was committed; what happened is in the executor's log"
)


def _input_of_worker(frame: FrameType | None) -> io.BufferedReader | io.BufferedRWPair | None:
    """Return what the worker's main function reads from: it is one of our callers."""
    while frame is not None:
        is_worker = str(frame.f_globals.get("__name__")).startswith(("pyspark", "__main__"))
        if is_worker and frame.f_code.co_name == _WORKER:
            found = frame.f_locals.get(_INPUT)
            # The second where workers are not forked by a daemon (`spark.python.use.daemon`).
            if isinstance(found, io.BufferedReader | io.BufferedRWPair):
                return found
        frame = frame.f_back
    return None
