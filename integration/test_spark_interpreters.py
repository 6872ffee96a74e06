"""An interpreter on the executors that cannot run the sink's tasks, named in one sentence."""

from __future__ import annotations

import platform
import re
import sys
import sysconfig
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException

import txnproducer.spark
from integration.spark_frames import keyed, seen
from txnproducer._version import __version__
from txnproducer.spark import SinkError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


def site_packages():
    return {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}


@pytest.fixture
def bare_python(spark, tmp_path, monkeypatch):
    """Have tasks run by a Python without the package, but with all that Spark needs.

    As where PYSPARK_PYTHON is not set on the executors.
    """
    needed = {"pyspark", "py4j", "pyarrow", "pandas", "numpy", "dateutil", "pytz", "six.py"}
    for found in site_packages():
        for each in found.iterdir():
            if each.name in needed or each.name.partition("-")[0] in needed:
                (tmp_path / each.name).symlink_to(each)
    python = tmp_path / "python"
    bare = getattr(sys, "_base_executable", sys.executable)
    python.write_text(f'#!/bin/sh\ncd "{tmp_path}"; PYTHONPATH="{tmp_path}" exec "{bare}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    return bare, platform.python_version()


@pytest.mark.parametrize("how", ["partition", "batch", "foreachPartition"])
def test_an_interpreter_without_the_package_is_named_in_one_sentence(
    spark, kafka, topic, make_sink, how, bare_python
):
    writer = make_sink(atomicity="batch" if how == "batch" else "partition")
    frame = keyed(spark, 10)
    calls = {"foreachPartition": lambda: writer.partition_writer(0, writers=3)}
    with pytest.raises(SinkError) as caught:
        calls.get(how, lambda: writer.write(frame, 0))()
    writer.close()
    told = str(caught.value)
    there, _, rest = told.partition(" has no package txnproducer: the driver ")
    bare, version = bare_python
    assert re.fullmatch(rf"the Python .* \({re.escape(bare)}, {version}, on [^ ]+\)", there)
    assert rest.startswith(f"({sys.executable}, {version}) has {__version__}. Install")
    assert "PYSPARK_PYTHON" in told
    assert "\n" not in told, "one sentence"
    assert seen(kafka, topic) == []
    if how == "foreachPartition":
        assert writer.status().run == 0, "nobody was fenced"


def test_spark_itself_reports_the_missing_package_of_a_data_source(
    spark, kafka, topic, bare_python
):
    pytest.importorskip("pyspark.sql.datasource", reason="needs Spark 4")
    spark.dataSource.register(txnproducer.spark.KafkaExactlyOnceDataSource)
    given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": topic, "sinkId": "s"}
    writer = keyed(spark, 10).write.format("kafka-exactly-once").mode("append")
    with pytest.raises(AnalysisException, match="No module named 'txnproducer'"):
        writer.options(**given, queryId="q", batchId=0).save()


def test_a_worker_with_another_version_of_the_package_is_named_in_one_sentence(
    spark, kafka, topic, make_sink, monkeypatch
):
    # The driver is the one that differs here, which comes to the same.
    for module in ("interpreters", "data_source"):
        monkeypatch.setattr(f"txnproducer.spark.{module}.__version__", "9.9.9", raising=False)
    frame = keyed(spark, 10)
    for atomicity in ("batch", "partition"):
        with pytest.raises(SinkError) as caught:
            make_sink(atomicity=atomicity).write(frame, 0)
        told = str(caught.value)
        assert re.search(rf" has txnproducer {__version__}: the driver .* has 9\.9\.9\. ", told)
        assert "\n" not in told, "one sentence"
    with pytest.raises(SinkError, match=r"has 9\.9\.9\. Install the same version"):
        make_sink().partition_writer(0, writers=3)
    assert seen(kafka, topic) == []


def test_an_interpreter_that_is_not_there_is_named_in_one_sentence(
    spark, topic, make_sink, monkeypatch
):
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/opt/none/bin/python")
    with pytest.raises(SinkError, match=r"^the Python .*, /opt/none/bin/python, is not there"):
        make_sink().write(keyed(spark, 10), 0)
