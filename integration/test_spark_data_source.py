"""The data source kafka-exactly-once on a real broker and a real Spark."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import time
from dataclasses import dataclass

import pytest

pytest.importorskip("pyspark.sql.datasource", reason="needs Spark 4")

from integration.readers import read_with_confluent, values
from integration.waiting import wait_until
from txnproducer.spark import KafkaExactlyOnceDataSource
from txnproducer.spark.driver.parallel_calls import MOST_AT_ONCE
from txnproducer.spark.ledger.store import Ledger

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
_NUMBERS = itertools.count()
FORMAT = KafkaExactlyOnceDataSource.name()
LONG = pytest.mark.long("a query that is started twice; a shorter test shows the like")
ROWS_PER_BATCH = 20
ANY = -1  # partition


@dataclass(frozen=True)
class Strike:
    """Kills the process that it is called in, at an event, once per marker."""

    marker: str
    event: str
    partition: int | None

    def __call__(self, name, info):
        if name != self.event or self.partition not in (info.get("partition"), ANY):
            return
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


class Streams:
    """Streams of text files into a topic of its own."""

    def __init__(self, spark, kafka, folder):
        self.spark, self.kafka, self.folder = spark, kafka, folder
        self.topic = f"source-{next(_NUMBERS)}"
        kafka.create_topic(self.topic, partitions=2)
        self.source = folder / "in"
        self.source.mkdir()
        self.files = 0
        self.register()

    def register(self, on_event=None):
        """Make the format known, with or without a fault."""
        made = type("Faulty", (KafkaExactlyOnceDataSource,), {"on_event": on_event})
        self.spark.dataSource.register(made if on_event else KafkaExactlyOnceDataSource)

    def add_files(self, count):
        for _ in range(count):
            first = self.files * ROWS_PER_BATCH
            lines = [f"value {n}" for n in range(first, first + ROWS_PER_BATCH)]
            path = self.source / f"{self.files}.txt"
            path.write_text("\n".join(lines))
            os.utime(path, (1_000_000_000 + self.files, 1_000_000_000 + self.files))
            self.files += 1

    def frame(self, partitions):
        lines = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.source))
        # By its content, so that a replay is cut in the same way.
        return lines.repartition(partitions, "value")

    def options(self, **options):
        return {
            "kafka.bootstrap.servers": self.kafka.bootstrap_servers,
            "topic": self.topic,
            "sinkId": f"sink-{self.topic}",
            **options,
        }

    def start(self, partitions=3, checkpoint="checkpoint", frame=None, **options):
        frame = self.frame(partitions) if frame is None else frame
        return (
            frame.writeStream.format(FORMAT)
            .options(**self.options(**options))
            .option("checkpointLocation", str(self.folder / checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    def run(self, *args, **kwargs):
        """Run a query to its end, or to its error."""
        query = self.start(*args, **kwargs)
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def seen(self):
        return sorted(values(read_with_confluent(self.kafka.bootstrap_servers, self.topic)))

    def wait_for(self, wanted):
        """Wait until readers see this: a commit returns before its markers are written."""
        wait_until(lambda: len(self.seen()) >= len(wanted), f"not {len(wanted)} rows")
        assert self.seen() == wanted

    def expected(self):
        return sorted(b"value %d" % n for n in range(self.files * ROWS_PER_BATCH))

    def entries(self, partitions):
        ledger = Ledger(self.kafka.bootstrap_servers, f"sink-{self.topic}", self.topic, {})
        return ledger.read_entries(range(partitions))


@pytest.fixture
def streams(spark, kafka, tmp_path):
    return Streams(spark, kafka, tmp_path)


@LONG
def test_a_stream_that_is_started_again_with_other_partitions_is_exact(streams):
    for partitions in (3, 5, 1):
        streams.add_files(2)
        streams.run(partitions)
    streams.wait_for(streams.expected())
    entries = streams.entries(5)
    assert entries[0].batch_id == 5
    assert {entry.query_id for entry in entries.values()} == {entries[0].query_id}


@pytest.mark.parametrize(
    "event", ["task_before_lease", pytest.param("task_after_lease", marks=LONG)]
)
def test_a_task_that_is_killed_is_run_again_without_loss_or_double(streams, tmp_path, event):
    marker = tmp_path / "struck"
    streams.register(Strike(str(marker), event, 1))
    streams.add_files(2)
    streams.run()
    assert marker.exists()
    streams.wait_for(streams.expected())


@pytest.mark.parametrize(
    ("event", "partition"),
    [
        pytest.param("batch_before_commit", None, marks=LONG),
        ("partition_committed", 1),
        pytest.param("batch_after_commit", None, marks=LONG),
    ],
)
def test_a_commit_that_is_killed_is_completed_by_the_query_started_again(
    streams, tmp_path, event, partition
):
    streams.register(Strike(str(tmp_path / "struck"), event, partition))
    streams.add_files(3)
    with pytest.raises(Exception, match=r"."):
        streams.run()
    assert streams.entries(3) or event == "batch_before_commit"
    streams.run()
    streams.wait_for(streams.expected())


@LONG
def test_a_batch_that_was_broken_off_is_refused_with_other_partitions(streams, tmp_path):
    # More than are committed at once: some have not begun when the first one is done.
    writers = MOST_AT_ONCE + 4
    streams.register(Strike(str(tmp_path / "struck"), "partition_committed", ANY))
    streams.add_files(1)
    with pytest.raises(Exception, match=r"."):
        streams.run(writers)
    for partitions in (writers - 1, writers + 1):
        with pytest.raises(Exception, match=r"is committed in part: .* now there are"):
            streams.run(partitions)
    assert 0 < len(streams.seen()) < ROWS_PER_BATCH
    streams.run(writers)
    streams.wait_for(streams.expected())


@LONG
def test_a_query_that_is_stopped_among_its_tasks_goes_on_exactly_once(streams, tmp_path):
    from pyspark.sql.functions import udf

    marker, read = tmp_path / "slow", tmp_path / "read"
    marker.touch()
    read.mkdir()

    @udf("string")
    def slow(value):
        if marker.exists():
            (read / value).touch()
            time.sleep(0.5)  # the stop finds the tasks at work
        return value

    def frame():
        return streams.frame(3).select(slow("value").alias("value"))

    streams.add_files(2)
    query = streams.start(frame=frame())
    half = ROWS_PER_BATCH // 2
    wait_until(lambda: len(list(read.iterdir())) >= half, "half of a batch is not read", 90)
    query.stop()
    marker.unlink()
    streams.run(frame=frame())
    streams.wait_for(streams.expected())


def test_empty_batches_are_recorded(streams):
    streams.add_files(3)
    kept = streams.frame(2).where("cast(substring(value, 7) as int) >= 40")
    streams.run(frame=kept)
    streams.wait_for(sorted(b"value %d" % n for n in range(40, 60)))
    assert {entry.batch_id for entry in streams.entries(2).values()} == {2}


@LONG
def test_a_deleted_checkpoint_and_a_second_query_are_refused(streams, tmp_path):
    streams.add_files(1)
    streams.run()
    with pytest.raises(Exception, match=r"belongs to another query.*onForeignLedger"):
        streams.run(checkpoint="another")
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(Exception, match="belongs to another query"):
        streams.run()
    streams.wait_for(streams.expected())
    streams.add_files(1)
    shutil.rmtree(tmp_path / "checkpoint")  # as a user who takes a new sink id for it
    streams.run(sinkId=f"new-{streams.topic}")
    first = [b"value %d" % n for n in range(ROWS_PER_BATCH)]
    streams.wait_for(sorted([*streams.expected(), *first]))


@LONG
def test_a_rewound_checkpoint_is_refused(streams, tmp_path):
    streams.add_files(1)
    streams.run()
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "old")
    streams.add_files(1)
    streams.run()
    streams.add_files(1)
    streams.run()
    with pytest.raises(Exception, match="the checkpoint was rewound"):
        streams.run(checkpoint="old")
    streams.run()
    streams.wait_for(streams.expected())


@LONG
def test_a_second_query_beside_the_first_is_refused_and_the_first_goes_on(streams):
    streams.add_files(1)
    streams.run()
    streams.add_files(4)
    first = streams.start()
    with pytest.raises(Exception, match="belongs to another query"):
        streams.run(checkpoint="another")
    first.awaitTermination()
    streams.wait_for(streams.expected())


def job(streams, count, batch_id, partitions=3, mode="append", first=0, **options):
    spark = streams.spark
    frame = spark.range(first, first + count, 1, partitions)
    (
        frame.selectExpr("concat('value ', id) AS value")
        .write.format(FORMAT)
        .mode(mode)
        .options(**streams.options(queryId="nightly", batchId=batch_id, **options))
        .save()
    )


def test_a_batch_job_is_written_once_and_its_replay_not_at_all(streams):
    job(streams, 40, 0)
    job(streams, 40, 0)
    with pytest.raises(Exception, match="comes again with other rows"):
        job(streams, 40, 0, first=1)
    job(streams, 40, 0, partitions=2)  # the same rows, cut otherwise
    with pytest.raises(Exception, match=r"40 rows .* were committed, now there are 41"):
        job(streams, 41, 0, partitions=2)
    job(streams, 20, 1, first=40)
    streams.files = 3
    streams.wait_for(streams.expected())


def test_spark_finds_the_data_source_by_itself(streams):
    frame = streams.spark.range(20).selectExpr("concat('value ', id) AS value")
    for _ in range(2):
        given = streams.options(queryId="nightly", batchId=0)
        frame.write.format("txnproducer").mode("append").options(**given).save()
    streams.files = 1
    streams.wait_for(streams.expected())


def test_a_partition_that_the_topic_has_not_is_refused_at_once(streams):
    def save(number, batch_id):
        frame = streams.spark.sql(f"SELECT 'value {batch_id}' AS value, {number} AS partition")
        given = streams.options(queryId="nightly", batchId=batch_id)
        frame.write.format(FORMAT).mode("append").options(**given).save()

    save(1, 0)
    # Without the check the producer waits for the partition in each attempt (max.block.ms).
    with pytest.raises(Exception, match=r"SchemaError.* partition 2 .*partitions 0 to 1\."):
        save(2, 1)
    assert streams.seen() == [b"value 0"]


def test_unusable_options_are_refused_before_a_task_starts(streams):
    frame = streams.spark.range(3).selectExpr("cast(id as string) AS value")

    def save(data=frame, mode="append", **options):
        given = streams.options(**{"queryId": "nightly", "batchId": 0, **options})
        chosen = {name: value for name, value in given.items() if value is not None}
        data.write.format(FORMAT).mode(mode).options(**chosen).save()

    for options, message in (
        ({"batchId": None}, "needs the option"),
        ({"atomicity": "batch"}, "foreachBatch"),
        ({"topic": "no-such-topic"}, "does not exist"),
        ({"transactionTimeout": 10**8}, r"transaction\.max\.timeout\.ms"),
        ({"mode": "overwrite"}, r'mode\("append"\)'),
        ({"data": streams.spark.range(3)}, "the column `value` is missing"),
        ({"data": frame.selectExpr("value", "1 AS key")}, "the column `key` is int"),
    ):
        with pytest.raises(Exception, match=message):
            save(**options)
    assert streams.seen() == []
