"""A Spark that speculates, as its configuration says: a part with one writer is refused there."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest

from integration.readers import read_with_confluent
from integration.waiting import wait_until
from txnproducer import TransactionalProducer
from txnproducer.spark import ExactlyOnceKafkaSink, SinkError
from txnproducer.spark.demo import start_spark
from txnproducer.spark.ledger.entries import PlanEntry
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


def test_a_new_sink_id_gets_partition_and_a_used_one_is_refused(spark):
    with EmbeddedKafka() as kafka:
        kafka.create_topic("rows")
        frame = spark.range(3).selectExpr("string(id) AS value")

        def sink(name):
            return ExactlyOnceKafkaSink(
                kafka.bootstrap_servers, name, topic="rows", query_id="query"
            )

        new = sink("new")
        with pytest.warns(RuntimeWarning, match="fence each other"):
            new.write(frame, 0)
        assert new.status().atomicity == "partition"
        new.close()
        # As it was left by a Spark that did not speculate.
        ledger = new._ledger
        with TransactionalProducer(kafka.bootstrap_servers, "used.plan") as producer:
            producer.init_transactions()
            with producer.transaction():
                used = replace(ledger, sink_id="used")
                used.write_plan(producer, PlanEntry(1, "query", 1, is_prepared=True))
        with pytest.raises(SinkError, match=r"'prepared', since .*Switch speculation off"):
            sink("used").write(frame, 0)
        wait_until(
            lambda: len(read_with_confluent(kafka.bootstrap_servers, "rows")) == 3,
            "readers do not see the rows",
        )
