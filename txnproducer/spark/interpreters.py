"""The Python of Spark's tasks. It needs this package, in the version that the driver has.

Why it exists: Spark starts whatever interpreter it is told to on each executor. What fails there
reaches the driver below pages of stack traces, which do not name the interpreter.

Owns: the check in the tasks, and the one sentence on the driver. It costs no job of its own: the
work of a task checks before it is loaded. Must not know: the work of the tasks, Kafka.
"""

from __future__ import annotations

import contextlib
import platform
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

from txnproducer._version import __version__
from txnproducer.spark.errors import SinkError
from txnproducer.spark.session import context_of, is_connect

_WAY_OUT: Final = (
    "Install the same version there with its dependencies, or set PYSPARK_PYTHON (or "
    "spark.pyspark.python) to an interpreter on the executors that has it. "
    "This task has written nothing"
)
_SET: Final = (
    "Set PYSPARK_PYTHON (or spark.pyspark.python) to an interpreter on the executors that has "
    f"txnproducer {__version__}, of the driver's minor version. No row was written"
)
# The error of `load` as it stands in the text of Spark's error.
_OF_LOAD: Final = re.compile(rf"the Python that runs Spark's tasks \(.*? {re.escape(_WAY_OUT)}")
# Packages that Spark's own worker or the work of a task imports, perhaps before `load` is called.
_NO_PACKAGE: Final = re.compile(
    r"ModuleNotFoundError: No module named '(txnproducer|pyarrow|pandas|numpy)\b"
)
# Up to 4.0 the version is a tuple in the text: "(3, 10)".
_OTHER_VERSION: Final = re.compile(r"Python in worker has different version:? \(?(\d+)\W+(\d+)")
_NO_PROGRAM: Final = re.compile(r'Cannot run program "([^"]+)"')


class _Carried:
    """A function that checks the Python of a task when it is loaded there.

    Args:
        work: the function; called here it is just that.
    """

    def __init__(self, work: Callable[..., Any]) -> None:
        self._work = work

    def __call__(self, *given: Any) -> Any:
        return self._work(*given)

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark's own copy, which it pickles functions with: what a program has registered there
        # counts.
        from pyspark import cloudpickle

        here = f"{sys.executable}, {platform.python_version()}"
        return _loader(), (cloudpickle.dumps(self._work), __version__, here, _WAY_OUT)


def carried(work: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function for Spark's tasks. It is loaded only in a Python with this very package.

    Args:
        work: picklable by Spark.
    """
    return _Carried(work)


def _loader() -> Callable[[bytes, str, str, str], Any]:
    # A function inside of a function: it is pickled with its code, not by a name in this module.
    # So it runs where the package is missing. It must not use names of this module.
    def load(payload: bytes, version: str, driver: str, way_out: str) -> Any:
        import pickle
        import platform
        import sys

        try:
            from txnproducer._version import __version__ as there

            if there == version:
                return pickle.loads(payload)  # noqa: S301 - the driver of this task wrote it
            found = f"has txnproducer {there}"
        except ImportError as error:
            found = f"cannot load the sink's task ({' '.join(str(error).split())})"
            if error.name == "txnproducer":
                found = "has no package txnproducer"
        here = f"{sys.executable}, {platform.python_version()}, on {platform.node()}"
        raise RuntimeError(
            f"the Python that runs Spark's tasks ({here}) {found}: the driver ({driver}) has "
            f"{version}. {way_out}"
        ) from None

    return load


@contextlib.contextmanager
def naming_interpreter(df: Any) -> Iterator[None]:
    """Raise one sentence if the tasks of a block ran in a Python that cannot run them.

    Args:
        df: the frame of the tasks.

    Raises:
        SinkError: they did.
    """
    try:
        yield
    except Exception as error:
        sentence = _sentence(str(error), df)
        if sentence is None:
            raise
        # Without the cause: Python's error stands below pages of an executor's stack trace.
        raise SinkError(sentence) from None


def _sentence(text: str, df: Any) -> str | None:
    """Return one sentence for an error about the interpreter, or None for any other error."""
    told = _OF_LOAD.search(text)
    if told:
        return told[0]
    found = _NO_PACKAGE.search(text)
    if found:
        return f"{_configured(df)} has no package {found[1]}: the driver has it. {_WAY_OUT}"
    found = _OTHER_VERSION.search(text)
    if found:
        here = f"{sys.executable}, {platform.python_version()}"
        return (
            f"{_configured(df)} is Python {found[1]}.{found[2]}, and the driver's is another one "
            f"({here}): Spark needs the same minor version on both. {_SET}"
        )
    found = _NO_PROGRAM.search(text)
    if found:
        return f"the Python of Spark's tasks, {found[1]}, is not there on an executor. {_SET}"
    return None


def _configured(df: Any) -> str:
    python = "PYSPARK_PYTHON" if is_connect(df) else context_of(df).pythonExec
    return f"the Python that runs Spark's tasks ({python})"


def check_interpreter() -> None:
    """Check that a task can load this package, for tasks that the sink does not start itself.

    Under Spark Connect, and without Spark, nothing is checked.

    Raises:
        SinkError: the Python of the tasks does not have the package in this version.
    """
    context = context_of(None)
    if context is not None:
        with naming_interpreter(None):
            context.parallelize([0], 1).foreach(carried(_do_nothing))


def check_version(of_driver: str) -> None:
    """Check in a task that its package has the version of the driver's.

    Args:
        of_driver: the package's version there.

    Raises:
        SinkError: it is another one.
    """
    if of_driver != __version__:
        here = f"{sys.executable}, {platform.python_version()}, on {platform.node()}"
        raise SinkError(
            f"the Python that runs Spark's tasks ({here}) has txnproducer {__version__}: the "
            f"driver has {of_driver}. {_WAY_OUT}"
        )


def _do_nothing(_: int) -> None:
    """Do nothing. A worker that can load this function has the package."""
