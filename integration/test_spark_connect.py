"""The sink under Spark Connect: `foreachPartition` and the data source, on a real broker."""

from __future__ import annotations

import itertools
import math
import os
import sys
import warnings
from pathlib import Path

import pyspark
import pytest

import txnproducer.spark
from integration.readers import read_with_confluent, values
from integration.waiting import wait_until
from txnproducer.spark import ExactlyOnceKafkaSink
from txnproducer.spark.driver import small_batches
from txnproducer.testing import EmbeddedKafka

pytest.importorskip("grpc", reason="Spark Connect is not installed (extra `connect`)")
JARS = Path(pyspark.__file__).parent / "jars"
pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not any(JARS.glob("spark-connect*.jar")),
        reason="PySpark 3.5 comes without the server of Spark Connect",
    ),
]
_NUMBERS = itertools.count()
FORMAT = "kafka-exactly-once"


@pytest.fixture(scope="module")
def kafka():
    with EmbeddedKafka() as kafka:
        yield kafka


@pytest.fixture(autouse=True)
def _quiet():
    # PySpark leaves sockets to the garbage collector; that is not ours to judge.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def spark():
    """Return a session of Connect's, with a server of its own in this machine's memory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        from pyspark.sql import SparkSession

        session = (
            SparkSession.builder.remote("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .getOrCreate()
        )
        session.dataSource.register(txnproducer.spark.KafkaExactlyOnceDataSource)
        yield session
        session.stop()


@pytest.fixture
def topic(kafka):
    name = f"connect-{next(_NUMBERS)}"
    kafka.create_topic(name, partitions=2)
    return name


@pytest.fixture
def wait_for(kafka, topic):
    def seen():
        return sorted(values(read_with_confluent(kafka.bootstrap_servers, topic)))

    def wait(count):
        wait_until(lambda: len(seen()) >= count, f"readers do not see {count} rows")
        assert seen() == sorted(b"value %d" % n for n in range(count))

    return wait


def frame(spark, count, first=0):
    return spark.range(first, first + count, 1, 2).selectExpr("concat('value ', id) AS value")


def add_file(folder, number):
    folder.mkdir(exist_ok=True)
    lines = [f"value {n}" for n in range(number * 10, number * 10 + 10)]
    (folder / f"{number}.txt").write_text("\n".join(lines))


def lines_of(spark, folder):
    return spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder))


def run(writer, checkpoint):
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def test_foreach_partition_writes_once_and_a_replay_not_at_all(spark, kafka, topic, wait_for):
    def sink():
        return ExactlyOnceKafkaSink(
            kafka.bootstrap_servers, f"sink-{topic}", topic=topic, query_id="query"
        )

    for _ in range(2):
        frame(spark, 40).foreachPartition(sink().partition_writer(0, writers=2))
    frame(spark, 20, first=40).foreachPartition(sink().partition_writer(1, writers=2))
    wait_for(60)


def test_foreach_batch_goes_on_from_its_checkpoint(spark, kafka, topic, wait_for, tmp_path):
    sink = ExactlyOnceKafkaSink(
        kafka.bootstrap_servers, f"sink-{topic}", topic=topic, query_id="query", writers=2
    )
    for number in range(2):
        add_file(tmp_path / "in", number)
        lines = lines_of(spark, tmp_path / "in")
        run(lines.writeStream.foreachBatch(sink), tmp_path / "checkpoint")
    wait_for(20)


@pytest.fixture(params=["partition", "batch", "prepared"])
def make_sink(request, kafka, topic):
    """Return a function that makes a sink of each atomicity. Its test closes it."""

    def make(**arguments):
        is_whole = request.param == "batch"
        return ExactlyOnceKafkaSink(
            kafka.bootstrap_servers,
            f"sink-{topic}",
            topic=topic,
            atomicity=request.param,
            query_id="query",
            writers=None if is_whole else 2,
            **arguments,
        )

    return make


def test_a_frame_that_is_empty_by_its_plan_is_recorded(spark, make_sink, wait_for):
    sink = make_sink()
    empty = spark.createDataFrame([], "value string")
    assert [report.rows for report in sink.write(empty, 0).partitions] == [0, 0]
    assert sink.write(empty, 0).transactions == 0
    sink.write(frame(spark, 10), 1)
    wait_for(10)
    sink.close()


@pytest.mark.parametrize("driver_rows", [0, 100])
def test_named_runs_are_written_once_in_any_order(spark, kafka, topic, wait_for, driver_rows):
    sink = ExactlyOnceKafkaSink(
        kafka.bootstrap_servers,
        f"sink-{topic}",
        topic=topic,
        query_id="query",
        ledger="topic",
        writers=2,
        driver_rows=driver_rows,
    )
    for run_id, first, is_new in (("b", 20, True), ("a", 0, True), ("b", 20, False)):
        report = sink.write(frame(spark, 20, first=first), run_id=run_id)
        assert (report.run_id, report.rows, report.transactions > 0) == (run_id, 20, is_new)
    sink.close()
    wait_for(40)


def test_the_driver_writes_small_batches(spark, make_sink, wait_for, monkeypatch):
    monkeypatch.setattr(small_batches, "_TRIED_AFTER_S", math.inf)
    sink = make_sink(driver_rows=20)
    sizes, by_driver, first = (20, 0, 21, 10, 10), [], 0
    for number, size in enumerate(sizes):
        by_driver.append(sink.write(frame(spark, size, first=first), number).is_by_driver)
        first += size
    assert by_driver == [True, True, False, True, True]
    wait_for(sum(sizes))
    sink.close()


def test_foreach_batch_says_at_once_that_a_query_id_is_needed(spark, kafka, topic, tmp_path):
    sink = ExactlyOnceKafkaSink(kafka.bootstrap_servers, f"sink-{topic}", topic=topic, writers=2)
    add_file(tmp_path / "in", 0)
    with pytest.raises(Exception, match="query_id is needed here"):
        run(
            lines_of(spark, tmp_path / "in").writeStream.foreachBatch(sink),
            tmp_path / "checkpoint",
        )


def halting(folder, until):
    """Return a function that reads a frame, and first halts until a file `until` exists."""

    def read(batches):
        yield from batches
        try:
            with (folder / "halted").open("x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            return
        wait_until((folder / until).exists, f"there is no {until}", 90)
        (folder / "woken").touch()

    return lambda frame: frame.mapInArrow(read, "value string")


def lives(pid_file):
    return Path("/proc", pid_file.read_text()).exists()


@pytest.mark.parametrize("atomicity", ["partition", "batch", "prepared"])
def test_a_query_that_is_stopped_in_mid_batch_goes_on_exactly_once(
    spark, kafka, topic, wait_for, tmp_path, atomicity
):
    """The process of `foreachBatch` is killed by a stop. With Spark 4.0 its tasks go on."""
    sink = ExactlyOnceKafkaSink(
        kafka.bootstrap_servers,
        f"sink-{topic}",
        topic=topic,
        atomicity=atomicity,
        query_id="query",
        writers=None if atomicity == "batch" else 2,
    )
    halting_once = halting(tmp_path, "restarted")

    def write(frame, batch_id):
        (tmp_path / "driver").write_text(str(os.getpid()))
        sink(halting_once(frame), batch_id)

    def start():
        writer = lines_of(spark, tmp_path / "in").writeStream.foreachBatch(write)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    add_file(tmp_path / "in", 0)
    query = start()
    halted, woken = tmp_path / "halted", tmp_path / "woken"
    wait_until(halted.exists, "no row was read", 90)
    query.stop()
    assert (query.isActive, query.exception()) == (False, None)
    wait_until(lambda: not lives(tmp_path / "driver"), "the process of foreachBatch lives on")
    assert read_with_confluent(kafka.bootstrap_servers, topic) == []
    # A task that goes on has its rows still to write when the batch was written again.
    for number in range(2):
        add_file(tmp_path / "in", number)
        query = start()
        query.processAllAvailable()
        query.stop()
        wait_for(10 + 10 * number)
        (tmp_path / "restarted").touch()
        wait_until(lambda: woken.exists() or not lives(halted), "the task does not wake", 90)
    wait_for(20)


def options(kafka, topic, **more):
    return {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "topic": topic,
        "sinkId": f"sink-{topic}",
        **more,
    }


def test_a_stream_into_the_data_source_goes_on_from_its_checkpoint(
    spark, kafka, topic, wait_for, tmp_path
):
    for number in range(2):
        add_file(tmp_path / "in", number)
        lines = lines_of(spark, tmp_path / "in").repartition(2, "value")
        writer = lines.writeStream.format(FORMAT).options(**options(kafka, topic))
        run(writer, tmp_path / "checkpoint")
    wait_for(20)


def test_a_batch_job_into_the_data_source_is_written_once(spark, kafka, topic, wait_for):
    for _ in range(2):
        (
            frame(spark, 40)
            .write.format(FORMAT)
            .mode("append")
            .options(**options(kafka, topic, queryId="nightly", batchId=0))
            .save()
        )
    wait_for(40)
