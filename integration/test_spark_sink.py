"""The Spark sink on a real broker and a real Spark: faults, replays, refusals."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark import TaskContext

from integration.readers import read_with_confluent
from integration.spark_frames import PARTITIONS, Strike, expected, keyed, seen, wait_for
from txnproducer.spark import (
    LedgerError,
    PartialReplayError,
    ReplayMismatchError,
    SchemaError,
    SinkError,
)
from txnproducer.spark.ledger.entries import LedgerBatch

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


def test_a_batch_is_written_once_and_its_replay_not_at_all(spark, kafka, topic, make_sink):
    writer = make_sink()
    report = writer.write(keyed(spark, 100), 0)
    assert (report.rows, report.transactions, report.replayed) == (100, 3, 0)
    again = make_sink().write(keyed(spark, 100), 0)
    assert (again.rows, again.transactions, again.replayed) == (100, 0, 3)
    make_sink().write(keyed(spark, 50, first=100), 1)
    assert seen(kafka, topic) == expected(150)
    assert {p: e.batch_id for p, e in writer.status().partitions.items()} == {0: 1, 1: 1, 2: 1}


def test_a_replay_with_other_rows_is_an_error_and_changes_nothing(spark, kafka, topic, make_sink):
    make_sink().write(keyed(spark, 30), 0)
    with pytest.raises(ReplayMismatchError, match=r"30 rows .* were committed, now there are"):
        make_sink().write(keyed(spark, 30, first=1), 0)
    assert seen(kafka, topic) == expected(30)
    kept = make_sink(on_replay_mismatch="keep").write(keyed(spark, 30, first=1), 0)
    assert kept.replayed == 3
    assert seen(kafka, topic) == expected(30)


@pytest.mark.parametrize("partitions", [2, 4])
def test_a_whole_batch_that_comes_again_is_compared_as_a_whole_if_it_is_cut_otherwise(
    spark, kafka, topic, make_sink, partitions
):
    make_sink().write(keyed(spark, 30, partitions=3), 0)
    again = make_sink().write(keyed(spark, 30, partitions=partitions), 0)
    assert (again.rows, again.transactions, again.replayed) == (30, 0, 3)
    other = keyed(spark, 31, partitions=partitions)
    for frame in (other, other.limit(0)):
        with pytest.raises(ReplayMismatchError, match=r"30 rows .* were committed, now there are"):
            make_sink().write(frame, 0)
    with pytest.raises(ReplayMismatchError, match=f"by 3 .* are {partitions}"):
        make_sink().partition_writer(0, writers=partitions)
    writer = make_sink(on_replay_mismatch="keep")
    assert writer.write(other, 0).rows == 30
    other.foreachPartition(writer.partition_writer(0, writers=partitions))
    assert seen(kafka, topic) == expected(30)
    writer.write(keyed(spark, 10, first=30, partitions=partitions), 1)
    assert seen(kafka, topic) == expected(40)


@pytest.mark.parametrize(
    ("partitions", "refusal"), [(4, PartialReplayError), (8, ReplayMismatchError)]
)
def test_a_batch_that_one_far_partition_holds_is_seen_before_a_row_is_written(
    spark, kafka, topic, make_sink, partitions, refusal
):
    # As after a driver that was killed when one of eight tasks had committed.
    write_one_of(make_sink, 8, 5, keyed(spark, 5, first=100).collect())
    with pytest.raises(refusal, match=r"5 rows"):
        make_sink().write(keyed(spark, 30, partitions=partitions), 0)
    assert seen(kafka, topic) == expected(5, first=100)
    assert list(make_sink().status().partitions) == [5]


def test_a_batch_that_was_broken_off_is_completed_if_its_rows_are_the_same(
    spark, kafka, topic, make_sink
):
    data = keyed(spark, 80, partitions=8)
    parts = data.rdd.glom().collect()
    write_one_of(make_sink, 8, 5, parts[5])
    report = make_sink().write(data, 0)
    assert (report.transactions, report.replayed) == (7, 1)
    assert seen(kafka, topic) == expected(80)


# Two that are equal, two that are empty, one that is like no other.
PARTS = (range(5), (), range(5, 12), range(5), ())
WRITTEN = sorted([*expected(12), *expected(5)])


def numbered(spark, *order):
    """Return a frame of these partitions, numbered in this order."""
    rows = [[(f"value {n}",) for n in PARTS[number]] for number in order]
    data = spark.sparkContext.parallelize(rows, len(rows)).flatMap(lambda part: part)
    return spark.createDataFrame(data, "value string")


@dataclass(frozen=True)
class Fail:
    """Fails each attempt of some tasks that are about to commit."""

    partitions: tuple[int, ...]

    def __call__(self, name, info):
        if name == "task_before_commit" and info["partition"] in self.partitions:
            raise RuntimeError("the task dies")


def test_a_broken_off_batch_is_completed_after_its_partitions_are_renumbered(
    spark, kafka, topic, make_sink
):
    frame = numbered(spark, 0, 1, 2, 3, 4)
    parts = frame.rdd.glom().collect()
    write_one_of(make_sink, 5, 3, parts[3])
    with pytest.raises(Exception, match="the task dies"):  # a second crash in the replay
        make_sink(on_event=Fail((0, 2))).write(numbered(spark, 3, 2, 4, 0, 1), 0)
    report = make_sink().write(numbered(spark, 2, 0, 1, 4, 3), 0)
    assert report.rows == 17
    assert report.replayed >= 1
    again = make_sink().write(numbered(spark, 4, 3, 2, 1, 0), 0)  # a replay of the whole
    assert (again.rows, again.transactions, again.replayed) == (17, 0, 5)
    assert seen(kafka, topic) == WRITTEN
    make_sink().write(keyed(spark, 3, first=20), 1)


def test_a_frame_that_changes_between_two_passes_is_refused_and_nothing_is_doubled(
    spark, kafka, topic, make_sink, tmp_path
):
    frame = numbered(spark, 0, 1, 2, 3, 4)
    write_one_of(make_sink, 5, 2, frame.rdd.glom().collect()[2])
    folder = str(tmp_path)

    def change(batches):
        """Give other rows in the second pass over partition 0."""
        number = TaskContext.get().partitionId()
        path = Path(folder) / f"read-{number}"
        is_second = path.exists()
        path.touch()
        for batch in batches:
            if is_second and number == 0:
                values = [f"other {n}" for n in range(batch.num_rows)]
                yield pa.RecordBatch.from_pydict({"value": values})
            else:
                yield batch

    with pytest.raises(Exception, match="partition 0 has changed between two passes"):
        make_sink().write(frame.mapInArrow(change, frame.schema), 0)
    assert 0 not in make_sink().status().partitions
    make_sink().write(numbered(spark, 4, 3, 2, 1, 0), 0)
    assert seen(kafka, topic) == WRITTEN


def test_a_batch_that_was_broken_off_stops_a_partition_writer(spark, kafka, topic, make_sink):
    data = keyed(spark, 80, partitions=8)
    parts = data.rdd.glom().collect()
    write_one_of(make_sink, 8, 5, parts[5])
    with pytest.raises(PartialReplayError, match="without the frame"):
        make_sink().partition_writer(0, writers=8)
    data.foreachPartition(make_sink(on_replay_mismatch="keep").partition_writer(0, writers=8))
    assert seen(kafka, topic) == expected(80)


def write_one_of(make_sink, writers, partition, rows):
    plan, _ = make_sink()._batches.plan(LedgerBatch(0, "query", writers))
    plan.write(partition, plan.rows(rows))


def test_another_query_and_a_rewound_checkpoint_are_refused(spark, kafka, topic, make_sink):
    make_sink().write(keyed(spark, 10), 0)
    make_sink().write(keyed(spark, 10, first=10), 1)
    with pytest.raises(LedgerError, match="another query"):
        make_sink(query_id="new").write(keyed(spark, 10), 0)
    with pytest.raises(LedgerError, match="rewound"):
        make_sink().write(keyed(spark, 10), 0)
    assert seen(kafka, topic) == expected(20)
    make_sink(query_id="new", on_foreign_ledger="take_over").write(keyed(spark, 5, first=20), 0)
    assert seen(kafka, topic) == expected(25)


@pytest.mark.parametrize(
    "atomicity",
    [
        pytest.param(
            "partition", marks=pytest.mark.long("four times as long as with a whole batch")
        ),
        "batch",
    ],
)
def test_a_query_goes_on_in_another_topic_if_the_ledger_stays_in_the_old_one(
    spark, kafka, topic, make_sink, atomicity
):
    other = f"{topic}-other"
    kafka.create_topic(other, partitions=PARTITIONS)

    def write(count, batch_id, **arguments):
        writer = make_sink(atomicity=atomicity, **arguments)
        try:
            writer.write(keyed(spark, count, first=10 * batch_id), batch_id)
        finally:
            writer.close()

    write(10, 0)
    write(10, 1)
    with pytest.raises(LedgerError, match="no ledger"):
        write(10, 2, topic=other)
    with pytest.raises(Exception, match="comes again with other rows"):
        write(10, 1, topic=other, ledger_topic=topic)
    write(10, 1, topic=other, ledger_topic=topic, on_replay_mismatch="keep")
    write(10, 2, topic=other, ledger_topic=topic)
    wait_for(kafka, topic, expected(20))
    wait_for(kafka, other, expected(10, first=20))


def test_a_later_batch_without_any_ledger_is_refused(spark, kafka, topic, make_sink):
    with pytest.raises(LedgerError, match="no ledger"):
        make_sink().write(keyed(spark, 10), 5)
    assert seen(kafka, topic) == []
    make_sink(on_missing_ledger="write").write(keyed(spark, 10), 5)
    assert seen(kafka, topic) == expected(10)


def test_empty_partitions_and_empty_batches_are_recorded(spark, kafka, topic, make_sink):
    assert make_sink().write(keyed(spark, 2, partitions=4), 0).transactions == 4
    assert make_sink().write(keyed(spark, 0, partitions=4), 1).transactions == 4
    nothing = spark.createDataFrame([], "key string, value string")
    report = make_sink(on_missing_ledger="write").write(nothing, 2)
    assert report.rows == 0
    assert make_sink().status().partitions[0].batch_id == 2
    assert seen(kafka, topic) == expected(2)


def test_all_of_sparks_columns_arrive(spark, kafka, topic, make_sink):
    rows = [
        ("k", bytearray(b"binary"), topic, 1, [("h", bytearray(b"x")), ("n", None)]),
        (None, None, topic, 0, None),
    ]
    schema = (
        "key string, value binary, topic string, partition int,"
        " headers array<struct<key:string,value:binary>>"
    )
    typed = spark.createDataFrame(rows, schema)
    make_sink(topic=None, ledger_topic=topic).write(typed, 0)
    found = read_with_confluent(kafka.bootstrap_servers, topic)
    assert [(r.partition, r.key, r.value) for r in found] == [
        (0, None, None),
        (1, b"k", b"binary"),
    ]


@pytest.mark.parametrize("atomicity", ["partition", "batch"])
def test_columns_are_read_in_any_case_as_sparks_own_sink_reads_them(
    spark, kafka, topic, make_sink, atomicity
):
    frame = keyed(spark, 30).selectExpr("key AS KEY", "value AS Value", "1 AS other")
    writer = make_sink(atomicity=atomicity)
    writer.write(frame, 0)
    assert writer.write(keyed(spark, 30), 0).transactions == 0, "the same rows"
    with pytest.raises(SchemaError, match="`Value` and `value` have the same name"):
        writer.write(frame.selectExpr("Value", "Value AS value"), 1)
    if atomicity == "partition":
        rows = keyed(spark, 10, first=30, partitions=2).selectExpr("KEY", "value AS VALUE")
        rows.foreachPartition(writer.partition_writer(1, writers=2))
    else:
        writer.write(keyed(spark, 10, first=30).selectExpr("KEY", "value AS VALUE"), 1)
    writer.close()
    wait_for(kafka, topic, expected(40))


def test_unusable_arguments_are_refused_on_the_driver(spark, topic, make_sink):
    with pytest.raises(SchemaError, match="value"):
        make_sink().write(spark.range(3), 0)
    with pytest.raises(SinkError, match="does not exist"):
        make_sink(topic="no-such-topic").write(keyed(spark, 1), 0)
    with pytest.raises(Exception, match=r"transaction\.max\.timeout\.ms"):
        make_sink(options={"transactionTimeout": 10**8}).write(keyed(spark, 1), 0)
    with pytest.raises(Exception, match="query_id"):
        make_sink(query_id=None).write(keyed(spark, 1), 0)


@pytest.mark.parametrize("is_arrow", [True, False])
def test_a_partition_that_the_topic_has_not_is_refused_at_once(
    spark, kafka, topic, make_sink, is_arrow
):
    def write(writer, number, batch_id):
        rows = spark.createDataFrame(
            [(number, f"value {batch_id}")], "partition int, value string"
        )
        if is_arrow:
            writer.write(rows, batch_id)
        else:
            rows.repartition(1).foreachPartition(writer.partition_writer(batch_id, writers=1))

    writer = make_sink()
    write(writer, PARTITIONS - 1, 0)
    # Without the check the producer waits for the partition in each attempt (max.block.ms).
    with pytest.raises(Exception, match=rf" partition {PARTITIONS} .*0 to {PARTITIONS - 1}"):
        write(writer, PARTITIONS, 1)
    assert seen(kafka, topic) == expected(1)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_partitions([NewPartitions(topic, PARTITIONS + 1)])[topic].result()
    write(writer, PARTITIONS, 1)  # the same sink, which has seen the topic before
    assert seen(kafka, topic) == expected(2)


def test_a_partition_writer_writes_the_rows_of_foreach_partition(spark, kafka, topic, make_sink):
    data = keyed(spark, 40, partitions=2)
    data.foreachPartition(make_sink().partition_writer(0, writers=2))
    assert seen(kafka, topic) == expected(40)
    # Again, as after a lost driver: recognised, not doubled.
    data.foreachPartition(make_sink().partition_writer(0, writers=2))
    assert seen(kafka, topic) == expected(40)


def test_a_partition_writer_refuses_partitions_beyond_its_number_of_writers(
    spark, kafka, topic, make_sink
):
    with pytest.raises(Exception, match=r"partition 2 is one too many: .* got writers=2"):
        keyed(spark, 9, partitions=3).foreachPartition(make_sink().partition_writer(0, writers=2))
    assert 2 not in make_sink()._ledger.read(range(3))[1]


@pytest.mark.parametrize("event", ["task_before_commit", "task_after_commit"])
def test_a_task_killed_around_its_commit_is_run_again_without_loss_or_double(
    spark, kafka, topic, make_sink, tmp_path, event
):
    strike = Strike(str(tmp_path / "struck"), event)
    report = make_sink(on_event=strike).write(keyed(spark, 300), 0)
    assert Path(strike.marker).exists()
    assert report.rows == 300
    assert report.replayed == (1 if event == "task_after_commit" else 0)
    assert seen(kafka, topic) == expected(300)


def test_a_streaming_query_restarted_after_its_death_goes_on_exactly_once(
    spark, kafka, topic, make_sink, tmp_path
):
    source = tmp_path / "in"
    source.mkdir()
    for number in range(3):
        lines = [f"value {n}" for n in range(number * 10, number * 10 + 10)]
        (source / f"{number}.txt").write_text("\n".join(lines))
    writer = make_sink(query_id=None)
    died: list[int] = []

    def write(df, batch_id):
        writer(df, batch_id)
        if batch_id == 1 and not died:
            died.append(batch_id)
            raise RuntimeError("the driver dies between Kafka's commit and Spark's")

    for _ in range(2):
        query = (
            spark.readStream.option("maxFilesPerTrigger", 1)
            .text(str(source))
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        if died:
            query.awaitTermination()
        else:
            with pytest.raises(Exception, match="the driver dies"):
                query.awaitTermination()
    assert seen(kafka, topic) == expected(30)

    # A deleted checkpoint begins a new query, whose batch 0 would silently be dropped as a replay.
    shutil.rmtree(tmp_path / "checkpoint")
    query = (
        spark.readStream.text(str(source))
        .writeStream.foreachBatch(writer)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception, match="belongs to another query"):
        query.awaitTermination()
    assert seen(kafka, topic) == expected(30)
