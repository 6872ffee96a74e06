"""The end of a task's input shows whether it is whole. No Spark is needed."""

from __future__ import annotations

import io
import os
import types

import pytest

from txnproducer.spark.errors import InputBrokenError
from txnproducer.spark.rows.whole_input import check_input_is_whole

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")
END_OF_STREAM = (-4).to_bytes(4, "big", signed=True)
END_OF_DATA = (-1).to_bytes(4, "big", signed=True)


def main(infile, read):
    """As PySpark's worker: its function is called from here."""
    read(infile)


@pytest.fixture
def in_task(monkeypatch):
    from pyspark import TaskContext

    monkeypatch.setattr(TaskContext, "get", lambda: object())


def read_all(infile):
    """As a task's function."""
    assert infile.read(4) == b"rows"
    check_input_is_whole()


def run(sent, name="pyspark.worker"):
    """Send rows of four bytes, and more bytes after them, and return the rest that can be read."""
    worker = types.FunctionType(main.__code__, {"__name__": name})
    reading, writing = os.pipe()
    os.write(writing, b"rows" + sent)
    os.close(writing)
    with os.fdopen(reading, "rb") as infile:
        worker(infile, read_all)
        return infile.read()


def test_rows_that_spark_has_ended_are_whole_and_the_worker_reads_the_end_itself(in_task):
    assert run(END_OF_STREAM) == END_OF_STREAM
    assert run(END_OF_STREAM, "__main__") == END_OF_STREAM
    assert run(END_OF_STREAM + b"more") == END_OF_STREAM + b"more"


@pytest.mark.parametrize("sent", [b"", END_OF_DATA, b"rows"])
def test_rows_that_end_otherwise_have_broken_off(in_task, sent):
    with pytest.raises(InputBrokenError, match="broke off"):
        run(sent)


def test_a_connection_that_is_gone_has_broken_off(in_task):
    class Gone(io.BufferedReader):
        def peek(self, size=0):
            raise ConnectionResetError

    worker = types.FunctionType(main.__code__, {"__name__": "pyspark.worker"})
    with pytest.raises(InputBrokenError, match="broke off"):
        worker(Gone(io.BytesIO()), lambda _: check_input_is_whole())


def test_a_worker_that_no_daemon_has_forked_reads_and_writes_one_file(in_task):
    def of(sent):
        return io.BufferedRWPair(io.BytesIO(b"rows" + sent), io.BytesIO())

    worker = types.FunctionType(main.__code__, {"__name__": "__main__"})
    worker(of(END_OF_STREAM), read_all)
    with pytest.raises(InputBrokenError, match="broke off"):
        worker(of(b""), read_all)


def test_a_worker_whose_input_is_not_found_is_refused(in_task):
    with pytest.raises(InputBrokenError, match="does not show"):
        run(END_OF_STREAM, "another.worker")


def test_outside_a_task_there_is_nothing_to_check():
    assert run(b"", "another.worker") == b""
