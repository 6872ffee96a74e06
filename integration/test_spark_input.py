"""The Spark sink refuses a task's input that breaks off, though PySpark takes it for complete."""

from __future__ import annotations

import itertools

import pytest

from integration.readers import read_with_confluent, values
from txnproducer.spark import ExactlyOnceKafkaSink

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
_NUMBERS = itertools.count()
ROWS = 5000
BREAKS_AT = 4000
BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
VALUE = "concat('value ', id, repeat('x', 100))"


@pytest.fixture(autouse=True)
def _small_batches(spark):
    spark.conf.set(BATCH_ROWS, 100)
    yield
    spark.conf.unset(BATCH_ROWS)


@pytest.fixture
def topic(kafka):
    name = f"input-{next(_NUMBERS)}"
    kafka.create_topic(name)
    return name


@pytest.fixture
def sink(kafka, topic):
    return ExactlyOnceKafkaSink(
        kafka.bootstrap_servers,
        f"sink-{topic}",
        topic=topic,
        atomicity="partition",
        query_id="query",
    )


def same(frames):
    yield from frames


def frame(spark, value):
    """Return rows that come by way of another Python worker, in one partition."""
    rows = spark.range(0, ROWS, 1, 1).selectExpr(f"{value} AS value")
    return rows.mapInPandas(same, "value string")


@pytest.fixture
def breaking(spark):
    """Rows of which Spark itself can't go on with one."""
    return frame(spark, f"IF(id = {BREAKS_AT}, raise_error('no such row'), {VALUE})")


def committed(kafka, topic):
    return values(read_with_confluent(kafka.bootstrap_servers, topic))


def test_rows_before_the_one_at_which_spark_fails_are_not_committed(
    spark, kafka, topic, sink, breaking
):
    with pytest.raises(Exception, match=r"no such row|broke off"):
        sink.write(breaking, 0)
    assert committed(kafka, topic) == []
    assert sink.status().partitions == {}
    sink.write(frame(spark, VALUE), 0)
    assert len(committed(kafka, topic)) == ROWS


def test_a_partition_writer_does_not_commit_them_either(kafka, topic, sink, breaking):
    with pytest.raises(Exception, match=r"no such row|broke off"):
        breaking.foreachPartition(sink.partition_writer(0, writers=1))
    assert committed(kafka, topic) == []
    assert sink.status().partitions == {}
