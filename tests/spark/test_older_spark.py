"""The sink where PySpark is 3.5, which has no data sources in Python."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")

WITHOUT_DATA_SOURCES = """
import sys

class Missing:
    def find_spec(self, name, path, target=None):
        if name == "pyspark.sql.datasource":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""


def run(program):
    command = [sys.executable, "-P", "-c", WITHOUT_DATA_SOURCES + program]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_data_source_is_refused_with_the_way_out():
    ran = run("from txnproducer.spark import KafkaExactlyOnceDataSource")
    last = ran.stderr.strip().splitlines()[-1]
    assert last == (
        "ImportError: data sources in Python need Spark 4.0 or newer, and this is an older "
        "PySpark: write with ExactlyOnceKafkaSink and foreachBatch, which Spark 3.5 runs as well"
    )


def test_the_sink_and_the_module_that_spark_looks_for_are_imported_all_the_same():
    ran = run("from txnproducer.spark import ExactlyOnceKafkaSink; import pyspark_txnproducer")
    assert (ran.returncode, ran.stderr) == (0, "")
