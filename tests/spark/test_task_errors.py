"""The error of a task is found in the text of Spark's error."""

from __future__ import annotations

import pytest

from txnproducer import InvalidConfigurationError
from txnproducer.errors import KafkaTimeoutError, RecordTooLargeError
from txnproducer.spark.driver.task_errors import error_of_task, naming_task_error
from txnproducer.spark.errors import SchemaError, SinkError

# As PySpark 4.3 raises it.
PYTHON = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/lib/pyspark/worker.py", line 3300, in main
    process()
  File "/lib/txnproducer/spark/rows/topic_partitions.py", line 64, in _look_again
    raise SchemaError(
txnproducer.spark.errors.SchemaError: a row is for partition 7; the topic 't' has partitions 0 to 1
"""
# As Spark 3.5 and 4.0 do, by way of Py4J.
JAVA = """An error occurred while calling o91.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 3.0 \
failed 4 times, most recent failure: Lost task 1.3 in stage 3.0 (TID 12) (10.0.0.7 executor 5): \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
txnproducer.errors.DisconnectError: the broker is gone

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/lib/pyspark/worker.py", line 1834, in main
    process()
txnproducer.errors.KafkaTimeoutError: not written within 60000 ms
the last attempt: 10.0.0.1:9092

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:559)
\tat java.base/java.lang.Thread.run(Thread.java:840)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2856)
txnproducer.spark.errors.SinkError: not the task's
"""
OF_THE_FRAME = PYTHON[: PYTHON.rindex("txnproducer")] + "ZeroDivisionError: division by zero\n"


def test_the_class_and_the_text_are_those_of_the_task():
    found = error_of_task(PYTHON)
    assert type(found) is SchemaError
    assert str(found) == "a row is for partition 7; the topic 't' has partitions 0 to 1"
    assert found.recovery == "fix"


def test_the_last_error_counts_and_its_task_is_named():
    found = error_of_task(JAVA.replace("\\\n", ""))
    assert type(found) is KafkaTimeoutError
    assert str(found) == (
        "not written within 60000 ms\nthe last attempt: 10.0.0.1:9092 (task 1 has failed 4 times,"
        " the last time on 10.0.0.7, executor 5)"
    )


@pytest.mark.parametrize("text", [OF_THE_FRAME, "Job 7 cancelled", ""])
def test_an_error_that_is_not_of_this_package_is_left_to_spark(text):
    assert error_of_task(text) is None


@pytest.mark.parametrize("name", ["errors.NoSuchError", "nowhere.SinkError", "records.Iterable"])
def test_a_class_that_is_not_known_here_is_left_to_spark(name):
    assert error_of_task(f"txnproducer.{name}: from another version\n") is None


def spark_error(text):
    return type("PythonException", (Exception,), {"__module__": "pyspark.errors"})(text)


def test_only_errors_of_spark_are_read():
    with (
        pytest.raises(SchemaError, match=r"^a row is for partition 7") as caught,
        naming_task_error(),
    ):
        raise spark_error(PYTHON)
    assert caught.value.__suppress_context__
    with pytest.raises(SinkError, match=r"^An exception was thrown"), naming_task_error():
        raise SinkError(PYTHON)
    frames = spark_error(OF_THE_FRAME)
    with pytest.raises(Exception, match="ZeroDivisionError") as found, naming_task_error():
        raise frames
    assert found.value is frames


@pytest.mark.parametrize("kind", [RecordTooLargeError, InvalidConfigurationError])
def test_errors_with_more_arguments_are_made_of_their_text(kind):
    text = f"{kind.__module__}.{kind.__qualname__}: too much\n"
    found = error_of_task(text)
    assert (type(found), str(found)) == (kind, "too much")
