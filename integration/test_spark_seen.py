"""The sight of the sink in Spark: gauges in its metrics, and the errors of its tasks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from integration.spark_frames import expected, keyless, seen, wait_for
from txnproducer.errors import KafkaTimeoutError, RecordTooLargeError
from txnproducer.spark import BatchFailedError, SchemaError, SinkError, spark_metrics

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
ATOMICITIES = ("partition", "batch", "prepared")


# Spark's pages are off in the session of the tests, so this is a program of its own.
_PROGRAM = """
import sys, urllib.request
from pyspark.sql import SparkSession
from txnproducer.spark import ExactlyOnceKafkaSink

builder = SparkSession.builder.master("local[1]").config("spark.ui.port", "0")
sink = "spark.metrics.conf.*.sink.prometheusServlet."
for name, value in {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    sink + "class": "org.apache.spark.metrics.sink.PrometheusServlet",
    sink + "path": "/metrics/prometheus",
}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
servers, topic = sys.argv[1:]
sink = ExactlyOnceKafkaSink(servers, "orders-sink", topic=topic, query_id="q", driver_rows=100)
for number in range(2):
    sink.write(spark.range(20).selectExpr("CAST(id AS STRING) AS value"), number)
sink.close()
page = urllib.request.urlopen(spark.sparkContext.uiWebUrl + "/metrics/prometheus").read().decode()
print("\\n".join(line for line in page.splitlines() if "orders_sink" in line))
spark.stop()
"""


def test_spark_exports_the_gauges_to_prometheus(kafka, topic):
    command = [sys.executable, "-P", "-c", _PROGRAM, kafka.bootstrap_servers, topic]
    run = subprocess.run(command, capture_output=True, text=True, timeout=150, check=True)
    found = dict(line.rsplit(" ", 1) for line in run.stdout.splitlines())
    values = {name.partition("orders_sink_")[2]: value for name, value in found.items()}
    assert values['rows_Value{type="gauges"}'] == "40"
    assert values['transactions_Value{type="gauges"}'] == "2"
    assert 'last_timeout_percent_Value{type="gauges"}' in values


def gauges(spark, sink_id):
    """Return the values of the gauges of a sink, by name."""
    made = spark_metrics._registered[spark.sparkContext.applicationId, sink_id]
    return {name: gauge.value() for name, gauge in made.items()}


@pytest.mark.parametrize("atomicity", ATOMICITIES)
def test_sparks_metrics_have_the_totals_of_a_sink(spark, kafka, topic, make_sink, atomicity):
    sink = make_sink(atomicity=atomicity)
    reports = [sink.write(keyless(spark, 40, first=40 * n), n) for n in range(2)]
    again = make_sink(atomicity=atomicity)
    reports.append(again.write(keyless(spark, 40, first=40), 1))
    sink.close()
    again.close()
    found = gauges(spark, f"sink-{topic}")
    assert found.pop("milliseconds") == pytest.approx(
        1000 * sum(r.seconds for r in reports), abs=9
    )
    assert found.pop("last_timeout_percent") >= 0
    assert found == {
        "batches": 3,
        "rows": 120,
        "bytes": sum(report.size_bytes for report in reports),
        "transactions": sum(report.transactions for report in reports),
        "replayed_partitions": 2,
        "retries": 0,
    }
    wait_for(kafka, topic, expected(80))


@pytest.mark.parametrize("atomicity", ATOMICITIES)
def test_a_row_for_a_partition_that_is_not_there_is_named_in_the_first_line(
    spark, kafka, topic, make_sink, atomicity
):
    rows = spark.createDataFrame([(7, "x"), (0, "y")], "partition int, value string")
    with pytest.raises((SinkError, BatchFailedError)) as caught:
        make_sink(atomicity=atomicity).write(rows, 0)
    assert "a row is for partition 7" in str(caught.value).splitlines()[0]
    assert len(str(caught.value).splitlines()) == 1
    assert type(caught.value) is SchemaError or atomicity != "partition"
    # The other task has committed its partition.
    assert seen(kafka, topic) == ([b"y"] if atomicity == "partition" else [])


def test_a_row_that_is_too_large_fails_by_its_own_error(spark, topic, make_sink):
    sink = make_sink(options={"kafka.max.request.size": "1000"})
    with pytest.raises(RecordTooLargeError, match=r"^row 0 is 50\d\d bytes") as caught:
        sink.write(spark.createDataFrame([("x" * 5000,)], "value string"), 0)
    assert caught.value.recovery == "fix"


def test_a_broker_that_does_not_answer_is_named_in_the_first_line(spark, make_sink, monkeypatch):
    sink = make_sink(options={"kafka.max.block.ms": "3000"})
    sink.write(keyless(spark, 4), 0)
    # Of the tasks alone: the driver has its connections.
    settings = {**sink._cluster.producer_settings(), "bootstrap.servers": "127.0.0.1:1"}
    monkeypatch.setattr(sink._cluster, "producer_settings", lambda: settings)
    with pytest.raises(KafkaTimeoutError) as caught:
        sink.write(keyless(spark, 4, first=4), 1)
    assert "127.0.0.1:1" in str(caught.value).splitlines()[0]


def test_an_error_of_the_frame_is_raised_as_spark_reports_it(spark, make_sink):
    frame = keyless(spark, 4).selectExpr("CAST(raise_error('no such row') AS STRING) AS value")
    with pytest.raises(Exception, match="no such row") as caught:
        make_sink().write(frame, 0)
    assert type(caught.value).__module__.startswith(("pyspark", "py4j"))
