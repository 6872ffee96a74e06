"""From Kafka to Kafka: Spark's own source connector reads, the sink writes, each row once."""

from __future__ import annotations

import itertools
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest

import txnproducer.spark
from integration.readers import read_with_confluent, values
from integration.spark_chaos import kafka_input
from integration.waiting import wait_until
from txnproducer import TransactionalProducer
from txnproducer.spark import ExactlyOnceKafkaSink
from txnproducer.spark.demo import start_spark
from txnproducer.testing import EmbeddedKafka

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        pyspark.__version__ != "4.0.0",
        reason=f"needs PySpark 4.0.0 (pip install pyspark==4.0.0) and its {CONNECTOR}",
    ),
]
_NUMBERS = itertools.count()
PER_TURN = 60


@pytest.fixture(scope="module")
def kafka():
    with EmbeddedKafka() as kafka:
        yield kafka


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--packages {CONNECTOR} pyspark-shell"
        try:
            session = start_spark(tmp_path_factory.mktemp("spark"))
        finally:
            del os.environ["PYSPARK_SUBMIT_ARGS"]
        session.dataSource.register(txnproducer.spark.KafkaExactlyOnceDataSource)
        yield session
        session.stop()


@pytest.fixture(autouse=True)
def _quiet():
    # PySpark leaves sockets to the garbage collector; that is not ours to judge.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield


@pytest.fixture
def topics(kafka):
    number = next(_NUMBERS)
    names = kafka_input.renumbered_topic(f"from-{number}", 2), f"to-{number}"
    for name in names:
        kafka.create_topic(name, partitions=2)
    return names


def fill(kafka, topic, first):
    with TransactionalProducer(kafka.bootstrap_servers) as producer:
        for n in range(first, first + PER_TURN):
            producer.send(topic, b"value %d" % n, key=b"%d" % n, partition=n % 2)
        producer.flush()


def read_from(spark, kafka, topic):
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", PER_TURN // 3)
        .option("kafka.isolation.level", "read_committed")
        .load()
        .selectExpr("key", "value")
    )


def run(writer, folder):
    query = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def wait_for(kafka, topic, count):
    def seen():
        return sorted(values(read_with_confluent(kafka.bootstrap_servers, topic)))

    wait_until(lambda: len(seen()) >= count, f"readers do not see {count} rows")
    assert seen() == sorted(b"value %d" % n for n in range(count))


@pytest.mark.parametrize("atomicity", ["partition", "batch"])
def test_a_query_that_dies_after_its_commit_goes_on_exactly_once(
    spark, kafka, topics, tmp_path, atomicity
):
    source, target = topics
    sink = ExactlyOnceKafkaSink(
        kafka.bootstrap_servers, f"sink-{target}", topic=target, atomicity=atomicity
    )
    died: list[int] = []

    def write(frame, batch_id):
        sink(frame, batch_id)
        if batch_id == 1 and not died:
            died.append(batch_id)
            raise RuntimeError("the driver dies between Kafka's commit and Spark's")

    fill(kafka, source, 0)
    with pytest.raises(Exception, match="the driver dies"):
        run(read_from(spark, kafka, source).writeStream.foreachBatch(write), tmp_path)
    fill(kafka, source, PER_TURN)
    run(read_from(spark, kafka, source).writeStream.foreachBatch(write), tmp_path)
    sink.close()
    wait_for(kafka, target, 2 * PER_TURN)


@dataclass(frozen=True)
class Fail:
    """Fails each attempt of a task, or the end of its part, in one batch, once others are done."""

    folder: str
    events: tuple[str, str]

    def __call__(self, name, info):
        folder = Path(self.folder)
        if info["batch_id"] != 1 or (folder / "mended").exists():
            return
        if name == self.events[1]:
            (folder / "committed").touch()
        elif name == self.events[0] and info["partition"] == 0:
            wait_until((folder / "committed").exists, "no other partition is done")
            raise RuntimeError("the task dies in mid-batch")


@pytest.mark.parametrize("is_source", [False, True])
def test_a_query_whose_task_dies_in_mid_batch_goes_on(spark, kafka, topics, tmp_path, is_source):
    source, target = topics
    events = (
        ("partition_before_commit", "partition_committed")
        if is_source
        else ("task_before_commit", "task_after_commit")
    )
    hook = Fail(str(tmp_path), events)
    sink = ExactlyOnceKafkaSink(
        kafka.bootstrap_servers,
        f"sink-{target}",
        topic=target,
        atomicity="partition",
        driver_rows=0,
        on_event=hook,
    )
    faulty: Any = type(
        "Faulty", (txnproducer.spark.KafkaExactlyOnceDataSource,), {"on_event": hook}
    )
    first_of_batch: list[int] = []  # which partition of the topic is Spark's first

    def write(frame, batch_id):
        if batch_id == 1:
            first_of_batch.append(int(frame.first()["value"].split()[1]) % 2)
        sink(frame, batch_id)

    def writer():
        stream = read_from(spark, kafka, source).writeStream
        if not is_source:
            return stream.foreachBatch(write)
        given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": target}
        return stream.format(faulty.name()).options(**given, sinkId=f"sink-{target}")

    fill(kafka, source, 0)
    spark.dataSource.register(faulty)
    try:
        with pytest.raises(Exception, match="the task dies in mid-batch"):
            run(writer(), tmp_path / "checkpoint")
        (tmp_path / "mended").touch()
        run(writer(), tmp_path / "checkpoint")
    finally:
        spark.dataSource.register(txnproducer.spark.KafkaExactlyOnceDataSource)
        sink.close()
    wait_for(kafka, target, PER_TURN)
    if not is_source:
        assert first_of_batch == [1, 0]  # otherwise this test shows nothing


def test_a_query_into_the_data_source_is_started_again(spark, kafka, topics, tmp_path):
    source, target = topics
    for turn in range(2):
        fill(kafka, source, turn * PER_TURN)
        writer = (
            read_from(spark, kafka, source)
            .writeStream.format(txnproducer.spark.KafkaExactlyOnceDataSource.name())
            .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
            .option("topic", target)
            .option("sinkId", f"sink-{target}")
        )
        run(writer, tmp_path)
    wait_for(kafka, target, 2 * PER_TURN)
