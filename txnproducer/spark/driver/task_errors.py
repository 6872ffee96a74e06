"""The error of a task, as the first line that a user reads on the driver.

Why it exists: Spark puts the text of a task's error at the end of its own, below a stack trace of
Python's and above one of Java's. The first line says only that a stage has failed.

Owns: the search for this package's own errors in the text of Spark's. Must not know: the work of
the tasks, Kafka.

Rules:
* An error of this package is raised on the driver with the class and the text that it had in the
  task. All of Spark's text is in the log.
* An error of the frame itself is raised as Spark reports it: it is not the sink's to judge.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Iterator
from typing import Final

from txnproducer.errors import KafkaError
from txnproducer.spark.session import is_of_spark

_LOG = logging.getLogger(__name__)
# The last line of a Python traceback, and the lines that belong to the error's text.
_ERROR: Final = re.compile(
    r"^(txnproducer(?:\.\w+)*)\.(\w+): (.*?)(?=\n\s*at |\n\s*\n|\Z)", re.MULTILINE | re.DOTALL
)
_TASK: Final = re.compile(
    r"Task (\d+) in stage [\d.]+ failed (\d+) times.*?\(TID \d+\) \((\S+) executor (\S+)\)",
    re.DOTALL,
)


@contextlib.contextmanager
def naming_task_error() -> Iterator[None]:
    """Raise the error of a task of a block as it was there, if it is one of this package.

    Raises:
        KafkaError: a task has raised it.
    """
    try:
        yield
    except Exception as error:
        found = error_of_task(str(error)) if is_of_spark(error) else None
        if found is None:
            raise
        _LOG.info("a task has failed. Spark reports: %s", error)
        # Without the cause: pages of stack traces would stand above the one line that counts.
        raise found from None


def error_of_task(text: str) -> KafkaError | None:
    """Return the error of this package that a task has raised, or None.

    Args:
        text: of Spark's error.
    """
    # The last one is the error that the task has raised. Those before are its causes.
    found = list(_ERROR.finditer(_without_driver(text)))
    if not found:
        return None
    home, name, message = found[-1].groups()
    # A worker may have another version of the package, with other classes.
    kind = getattr(sys.modules.get(home), name, None)
    if not (isinstance(kind, type) and issubclass(kind, KafkaError)):
        return None
    return kind(f"{message.strip()}{_place(text)}")


def _without_driver(text: str) -> str:
    """Return the text up to Java's own stack trace of the driver."""
    return text.partition("\nDriver stacktrace:")[0]


def _place(text: str) -> str:
    """Return a note for people that names the task, as far as Spark names it."""
    found = _TASK.search(text)
    if found is None:
        return ""
    task, attempts, host, executor = found.groups()
    tries = "once" if attempts == "1" else f"{attempts} times"
    return f" (task {task} has failed {tries}, the last time on {host}, executor {executor})"
