"""The Python of Spark's tasks: its check there, and its one sentence on the driver."""

from __future__ import annotations

import pickle
import platform
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from txnproducer._version import __version__
from txnproducer.spark import interpreters
from txnproducer.spark.errors import SinkError
from txnproducer.spark.interpreters import carried, check_version, naming_interpreter

cloudpickle = pytest.importorskip(
    "pyspark.cloudpickle", reason="PySpark is not installed (extra `spark`)"
)
FRAME = SimpleNamespace(
    sparkSession=SimpleNamespace(sparkContext=SimpleNamespace(pythonExec="/opt/python"))
)
TRACE = "\n\tat org.apache.spark.api.python.BasePythonRunner.compute(PythonRunner.scala:1)" * 30


def double(number):
    return 2 * number


def sentence_of(error):
    """The driver's sentence for an error of a task, below and above a stack trace."""
    with pytest.raises(SinkError) as caught, naming_interpreter(FRAME):
        raise ValueError(f"Job aborted{TRACE}\n{error}{TRACE}")
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None
    return str(caught.value)


def test_carried_work_is_the_work_here_and_in_a_task():
    assert carried(double)(3) == 6
    assert cloudpickle.loads(cloudpickle.dumps(carried(double)))(3) == 6


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("txnproducer", "has no package txnproducer"),
        ("crc32c", "cannot load the sink's task (No module named 'crc32c')"),
    ],
)
def test_carried_work_says_in_a_python_without_the_package_which_python_that_is(name, found):
    text = cloudpickle.dumps(carried(double))
    # Finders come first, and say here what Python says if the package is not installed.
    program = f"""
import pickle, sys
class Missing:
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
import pyspark.cloudpickle
try:
    pickle.loads({text!r})
except RuntimeError as error:
    print(error)
"""
    command = [sys.executable, "-P", "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    here = f"{sys.executable}, {platform.python_version()}"
    assert sentence_of(f"RuntimeError: {ran.stdout}") == (
        f"the Python that runs Spark's tasks ({here}, on {platform.node()}) {found}: the driver "
        f"({here}) has {__version__}. Install the same version there with its dependencies, or "
        "set PYSPARK_PYTHON (or spark.pyspark.python) to an interpreter on the executors that "
        "has it. This task has written nothing"
    )


def test_carried_work_of_another_version_is_not_loaded(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(interpreters, "__version__", "9.9.9")
        text = cloudpickle.dumps(carried(lambda: pytest.fail("it was loaded")))
    with pytest.raises(RuntimeError) as caught:
        pickle.loads(text)
    told = sentence_of(f"RuntimeError: {caught.value}")
    assert f") has txnproducer {__version__}: the driver (" in told
    assert ") has 9.9.9. Install the same version there" in told


def test_work_that_was_loaded_by_other_ways_can_compare_the_version():
    check_version(__version__)
    with pytest.raises(SinkError, match=r"has txnproducer .*: the driver has 9\.9\.9\. Install"):
        check_version("9.9.9")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            "ModuleNotFoundError: No module named 'txnproducer'",
            "(/opt/python) has no package txnproducer: the driver has it. Install",
        ),
        (
            "ModuleNotFoundError: No module named 'pyarrow'",
            "(/opt/python) has no package pyarrow: the driver has it. Install",
        ),
        (  # as of 3.5
            "Python in worker has different version (3, 10) than that in driver 3.11, PySpark",
            "(/opt/python) is Python 3.10, and the driver's is another one",
        ),
        (  # as of 4.x
            "Python in worker has different version: 3.9 than that in driver: 3.11, PySpark",
            "(/opt/python) is Python 3.9, and the driver's is another one",
        ),
        (
            'java.io.IOException: Cannot run program "/opt/none": error=2, No such file',
            "tasks, /opt/none, is not there on an executor. Set PYSPARK_PYTHON",
        ),
    ],
)
def test_errors_of_spark_about_an_interpreter_become_one_sentence(error, told):
    assert re.search(re.escape(told), sentence_of(error))


@pytest.mark.parametrize("error", ["ModuleNotFoundError: No module named 'mine'", "ValueError: x"])
def test_other_errors_stay_as_they_are(error):
    failure = ValueError(error)
    with pytest.raises(ValueError, match="Error") as caught, naming_interpreter(FRAME):
        raise failure
    assert caught.value is failure
