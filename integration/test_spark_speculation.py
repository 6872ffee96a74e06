"""Atomicity "batch" on a Spark that speculates, as its configuration says: refused at once."""

from __future__ import annotations

import warnings

import pytest

from integration.readers import read_with_confluent
from txnproducer.spark import ExactlyOnceKafkaSink, SinkError
from txnproducer.spark.demo import start_spark
from txnproducer.testing import EmbeddedKafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
_SETTING = "spark.speculation"


@pytest.fixture
def spark(tmp_path):
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        SparkContext.setSystemProperty(_SETTING, "true")  # what `spark-submit --conf` does
        try:
            if (other := SparkSession.getActiveSession()) is not None:
                other.stop()  # of another module, with another setting
            session = start_spark(tmp_path)
            yield session
            session.stop()
        finally:
            # The JVM goes on to serve the tests of other modules.
            SparkContext._jvm.java.lang.System.clearProperty(_SETTING)


def test_no_row_is_written_and_the_ways_out_are_named(spark):
    assert spark.conf.get(_SETTING) == "true"
    with EmbeddedKafka() as kafka:
        kafka.create_topic("rows")
        servers = kafka.bootstrap_servers
        sink = ExactlyOnceKafkaSink(
            servers, "sink", topic="rows", atomicity="batch", query_id="query"
        )
        frame = spark.range(3).selectExpr("string(id) AS value")
        with pytest.raises(SinkError, match=r"Switch speculation off, or use atomicity=.partit"):
            sink.write(frame, 0)
        sink.close()
        assert read_with_confluent(servers, "rows") == []
