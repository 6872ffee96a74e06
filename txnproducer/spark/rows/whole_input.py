"""The check that a task has read all of its rows, and not only those before its input broke off.

Why it exists: if Spark's side of a task fails (a shuffle cannot be fetched, or the task is
killed), it closes the connection to the Python worker. PySpark takes that for the end of the rows
(`FramedSerializer.load_stream` and Arrow's reader alike). So a function cannot tell half of a
partition from all of it, and a task must not commit before it can.

After the last row, Spark's side sends the number `END_OF_STREAM`, but only if the input is whole.
The worker reads it when the function has returned. This check looks at it, and leaves it there.

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
    """Check, when the rows end, that these are all rows of the task.

    Outside a Spark task it does nothing.

    Raises:
        InputBrokenError: rows are missing, or this version of PySpark does not show it.
    """
    from pyspark import TaskContext

    if TaskContext.get() is None:
        return
    source = _input_of_worker(sys._getframe())  # noqa: SLF001 - no other way to the worker's input
    # Refused: without the check half of a partition could be committed as all of it.
    if source is None:
        raise InputBrokenError(
            "this version of PySpark does not show whether a task has all of its rows; use one "
            "that the sink is tested with (docs/spark.md)"
        )
    try:
        # At most one read: Spark sends the number right after the rows.
        found = source.peek(len(_END_OF_STREAM))[: len(_END_OF_STREAM)]
    except OSError as error:
        raise InputBrokenError(_BROKEN) from error
    # `peek` returns the bytes of one read, which may be only a part of the number.
    if not found or not _END_OF_STREAM.startswith(found):
        raise InputBrokenError(_BROKEN)


_BROKEN: Final = (
    "the rows of this task broke off: Spark could not read all of them, or has ended the task. "
    "Nothing was committed; the cause is in the executor's log"
)


def _input_of_worker(frame: FrameType | None) -> io.BufferedReader | io.BufferedRWPair | None:
    """Return the input of the worker's main function, which is one of our callers."""
    while frame is not None:
        # `__main__` is a worker that no daemon has forked: Spark runs it as `python -m
        # pyspark.worker`.
        is_worker = str(frame.f_globals.get("__name__")).startswith(("pyspark", "__main__"))
        if is_worker and frame.f_code.co_name == _WORKER:
            found = frame.f_locals.get(_INPUT)
            # A pair if workers are not forked by a daemon (`spark.python.use.daemon`).
            if isinstance(found, io.BufferedReader | io.BufferedRWPair):
                return found
        frame = frame.f_back
    return None
