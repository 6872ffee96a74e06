"""Atomicity "batch" on a real broker and a real Spark: all of a batch at once, or nothing."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pyspark
import pytest

from integration.readers import read_with_confluent
from integration.spark_chaos.gates import Gate, Gatekeeper
from integration.spark_frames import (
    PARTITIONS,
    Strike,
    expected,
    keyed,
    keyless,
    seen,
    wait_for,
)
from integration.waiting import wait_until
from txnproducer import InvalidConfigurationError
from txnproducer._core.batches.partitioner import partition_for_key
from txnproducer.spark import LedgerError, SinkError
from txnproducer.spark.errors import BatchFailedError, BatchTimedOutError, ReplayMismatchError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture
def sink(make_sink):
    return partial(make_sink, atomicity="batch")


def number_of(read):
    return int((read.value or b"").split()[1])


def test_a_batch_is_one_transaction_and_its_replay_none(spark, kafka, topic, sink):
    writer = sink()
    report = writer.write(keyless(spark, 100), 0)
    assert (report.rows, report.transactions, report.replayed) == (100, 1, 0)
    assert [part.rows for part in report.partitions] == [50, 50]
    again = sink().write(keyless(spark, 100), 0)
    assert (again.rows, again.transactions, again.replayed) == (100, 0, 2)
    wait_for(kafka, topic, expected(100))
    found = writer.status()
    assert (found.atomicity, found.query_id, found.run) == ("batch", "query", 0)
    assert (found.batch.batch_id, found.batch.rows, found.batch.writers) == (0, 100, 2)


def test_one_sink_writes_batch_after_batch(spark, kafka, topic, sink):
    writer = sink()
    for number in range(4):
        writer.write(keyless(spark, 10, first=10 * number), number)
    assert writer.write(keyless(spark, 10, first=30), 3).transactions == 0
    wait_for(kafka, topic, expected(40))


@pytest.mark.parametrize("is_keyed", [False, True])
def test_a_committed_batch_with_other_rows_is_refused_or_left_as_it_was(
    spark, kafka, topic, sink, is_keyed
):
    # As where a checkpoint was set back by one batch, and Spark plans that one with more rows.
    def frame(count):
        rows = keyless(spark, count)
        return rows.selectExpr("value AS key", "value") if is_keyed else rows

    sink().write(frame(40), 0)
    assert sink().write(frame(40).repartition(3), 0).transactions == 0, "the same, cut otherwise"
    for other in (frame(60), frame(40).where("value <> 'value 7'"), frame(0), frame(40).limit(0)):
        with pytest.raises(ReplayMismatchError, match=r"40 rows .* were committed, now there are"):
            sink().write(other, 0)
    kept = sink(on_replay_mismatch="keep").write(frame(60), 0)
    assert (kept.rows, kept.transactions) == (40, 0)
    sink().write(keyless(spark, 10, first=40), 1)
    wait_for(kafka, topic, expected(50))


def test_rows_with_keys_go_where_the_producer_would_put_them_in_their_order(
    spark, kafka, topic, sink
):
    sink().write(keyed(spark, 400, partitions=4, keys=17), 0)
    wait_for(kafka, topic, expected(400))
    found = read_with_confluent(kafka.bootstrap_servers, topic)
    assert all(r.partition == partition_for_key(r.key or b"", PARTITIONS) for r in found)
    by_key: dict[bytes | None, list[int]] = {}
    for read in found:
        by_key.setdefault(read.key, []).append(number_of(read))
    assert len(by_key) == 17
    # Order holds for keys within one partition of the frame; each of the four has a quarter.
    for numbers in by_key.values():
        for quarter in range(4):
            part = [n for n in numbers if n // 100 == quarter]
            assert part == sorted(part)


def test_rows_go_to_the_partition_they_name(spark, kafka, topic, sink):
    rows = [(n % PARTITIONS, f"value {n}") for n in range(30)]
    sink().write(spark.createDataFrame(rows, "partition int, value string"), 0)
    wait_for(kafka, topic, expected(30))
    found = read_with_confluent(kafka.bootstrap_servers, topic)
    assert all(number_of(r) % PARTITIONS == r.partition for r in found)


def test_a_frame_with_more_partitions_than_the_topic_has_fewer_writers(spark, kafka, topic, sink):
    report = sink().write(keyless(spark, 60, partitions=9), 0)
    assert len(report.partitions) == PARTITIONS
    wait_for(kafka, topic, expected(60))


def test_empty_batches_are_recorded(spark, kafka, topic, sink):
    writer = sink()
    assert writer.write(keyless(spark, 0), 0).rows == 0
    assert writer.write(spark.createDataFrame([], "value string"), 1).rows == 0
    writer.write(keyless(spark, 5), 2)
    assert writer.status().batch.batch_id == 2
    wait_for(kafka, topic, expected(5))


@pytest.mark.parametrize(
    "event", ["task_before_claim", "task_before_receipt", "task_after_receipt"]
)
def test_a_task_that_is_killed_has_the_batch_run_again(spark, kafka, topic, sink, tmp_path, event):
    strike = Strike(str(tmp_path / "struck"), event)
    report = sink(on_event=strike).write(keyless(spark, 300), 0)
    assert Path(strike.marker).exists()
    assert (report.rows, report.transactions) == (300, 1)
    wait_for(kafka, topic, expected(300))


def test_a_batch_that_cannot_be_written_is_reported_and_leaves_nothing(spark, kafka, topic, sink):
    writer = sink(options={"kafka.max.request.size": "1000"})
    rows = [("value 0",), ("x" * 5000,)]
    with pytest.raises(BatchFailedError, match="nothing of it is visible"):
        writer.write(spark.createDataFrame(rows, "value string"), 0)
    assert seen(kafka, topic) == []
    writer.write(keyless(spark, 10), 0)
    wait_for(kafka, topic, expected(10))


@pytest.mark.long("three runs of four attempts; the test below has them as well")
def test_an_error_of_the_frame_itself_passes_through(spark, kafka, topic, sink):
    from pyspark.sql.functions import udf

    @udf("string")
    def fails(value):
        raise ZeroDivisionError(value)

    data = keyless(spark, 10)
    with pytest.raises(Exception, match="ZeroDivisionError"):
        sink().write(data.select(fails("value").alias("value")), 0)
    assert seen(kafka, topic) == []


def test_the_first_failure_of_a_frame_is_reported_and_not_the_refusal_of_later_attempts(
    spark, kafka, topic, sink
):
    # Each task has four attempts here; those after the first may not write.
    data = keyless(spark, 10).selectExpr(
        "CAST(raise_error(concat('no such ', value)) AS STRING) AS value"
    )
    with pytest.raises(Exception, match="no such value"):
        sink().write(data, 0)
    assert seen(kafka, topic) == []


def test_a_partition_that_the_topic_has_not_is_refused_once(spark, kafka, topic, sink):
    writer = sink()
    rows = spark.createDataFrame([(PARTITIONS, "value 0")], "partition int, value string")
    with pytest.raises(Exception, match=f"partitions 0 to {PARTITIONS - 1}"):
        writer.write(rows, 0)
    # None where the shuffle is run as the partitions are counted.
    assert writer._batches.transactions.attempts <= 1
    assert seen(kafka, topic) == []


@dataclass(frozen=True)
class Note:
    """Notes that the first part of a batch has been acknowledged."""

    marker: str

    def __call__(self, name, info):
        if name == "task_after_receipt" and info["partition"] == 0:
            Path(self.marker).touch()


def test_a_batch_that_outlasts_its_transaction_times_out(spark, kafka, topic, sink, tmp_path):
    note = Note(str(tmp_path / "acknowledged"))

    def slowly(number, rows):
        yield from rows
        if number == 1:  # the transaction's time begins with the first record
            wait_until(Path(note.marker).exists, "no part was written", 90)
            time.sleep(6)  # longer than transactionTimeout, and a broker looks every second

    data = spark.sparkContext.parallelize([(f"value {n}",) for n in range(4)], 2)
    slow = spark.createDataFrame(data.mapPartitionsWithIndex(slowly), "value string")
    writer = sink(on_event=note, options={"transactionTimeout": "3000"})
    with pytest.raises(
        BatchTimedOutError, match=r"transactionTimeout=3000 .* partition \d,"
    ) as told:
        writer.write(slow, 0)
    if not pyspark.__version__.startswith("3."):  # with 3.5 the advice named the other one
        assert "partition 1," in str(told.value)
    assert writer._batches.transactions.attempts == 1
    assert seen(kafka, topic) == []
    sink().write(keyless(spark, 10), 0)
    wait_for(kafka, topic, expected(10))


def test_a_batch_whose_job_is_cancelled_is_aborted_and_not_run_again(
    spark, kafka, topic, sink, tmp_path
):
    # As by `query.stop()`, which would wait for a second run, and see it committed.
    note = Note(str(tmp_path / "acknowledged"))

    def slowly(number, rows):
        yield from rows
        if number == 1:
            time.sleep(20)  # longer than the join below: only a cancelled task ends before that

    data = spark.sparkContext.parallelize([(f"value {n}",) for n in range(4)], 2)
    slow = spark.createDataFrame(data.mapPartitionsWithIndex(slowly), "value string")
    writer, errors = sink(on_event=note), []

    def write():
        try:
            writer.write(slow, 0)
        except Exception as error:  # noqa: BLE001 - looked at below
            errors.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    wait_until(Path(note.marker).exists, "no part was written", 90)
    spark.sparkContext.cancelAllJobs()
    thread.join(15)
    assert not thread.is_alive()
    assert re.search(r"Job \d+ cancelled", str(errors[0]))
    assert writer._batches.transactions.attempts == 1
    assert seen(kafka, topic) == []
    assert writer.write(keyless(spark, 10), 0).transactions == 1
    wait_for(kafka, topic, expected(10))


@dataclass(frozen=True)
class Pause:
    """A hook that pauses after a task's rows are acknowledged, so that readers can look."""

    def __call__(self, name, info):
        if name in ("task_after_receipt", "task_after_commit"):
            time.sleep(0.5)  # several reads of a topic


def test_no_reader_sees_a_part_of_a_batch(spark, kafka, topic, sink):
    writer, is_over, passes = sink(on_event=Pause()), threading.Event(), []
    rows, batches, size = 900, 3, 1000  # several of the producer's batches for each partition

    def places():
        reads = read_with_confluent(kafka.bootstrap_servers, topic)
        return Counter((read.partition, number_of(read) // rows) for read in reads)

    def read():
        while not is_over.is_set():
            passes.append(places())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(batches):
            data = keyless(spark, rows, partitions=6, first=rows * number)
            writer.write(data.selectExpr(f"rpad(value, {size}, ' ') AS value"), number)
        wait_until(lambda: places().total() == batches * rows, "readers do not see all rows")
    finally:
        is_over.set()
        reader.join()
    # A reader takes the partitions one after the other, each at a moment of its own.
    whole = places()
    assert [
        (place, seen, whole[place])
        for each in passes
        for place, seen in each.items()
        if seen != whole[place]
    ] == []
    assert any(0 < each.total() < batches * rows for each in passes), "nobody looked meanwhile"


def test_a_newer_driver_fences_the_older_before_its_commit(spark, kafka, topic, sink, tmp_path):
    keeper = Gatekeeper(tmp_path)
    older = sink(on_event=keeper.hook(Gate("older", "batch_before_commit", 1)))
    older.write(keyless(spark, 10), 0)
    reports = []
    thread = threading.Thread(
        target=lambda: reports.append(older.write(keyless(spark, 10, first=10), 1))
    )
    thread.start()
    try:
        keeper.await_arrival("older", 90)  # all of its rows are acknowledged
        assert sink().write(keyless(spark, 10, first=10), 1).transactions == 1
    finally:
        keeper.give_leave("older")
        thread.join(60)
    # Its commit failed, and it has found the batch in the ledger.
    assert [(report.batch_id, report.rows) for report in reports] == [(1, 10)]
    wait_for(kafka, topic, expected(20))


def test_unusable_arguments_are_refused_on_the_driver(topic, sink):
    with pytest.raises(InvalidConfigurationError, match="topic is needed"):
        sink(topic=None, ledger_topic=topic)
    with pytest.raises(InvalidConfigurationError, match="writers=2"):
        sink(writers=2)
    with pytest.raises(InvalidConfigurationError, match="no driver"):
        sink().partition_writer(0, writers=1)
    speculating = SimpleNamespace(
        dtypes=[("value", "string")],
        sparkSession=SimpleNamespace(conf={"spark.speculation": "true"}),
    )
    with pytest.raises(SinkError, match="speculation"):
        sink().write(speculating, 0)


def test_another_query_a_rewound_checkpoint_and_a_missing_ledger_stop_it(
    spark, kafka, topic, sink
):
    with pytest.raises(LedgerError, match="no ledger"):
        sink().write(keyless(spark, 1), 3)
    first = sink()
    first.write(keyless(spark, 10), 0)
    first.write(keyless(spark, 10, first=10), 1)
    with pytest.raises(LedgerError, match="another query"):
        sink(query_id="new").write(keyless(spark, 10), 0)
    with pytest.raises(LedgerError, match="rewound"):
        sink().write(keyless(spark, 10), 0)
    # Nobody was fenced by those that had to stop.
    first.write(keyless(spark, 10, first=20), 2)
    wait_for(kafka, topic, expected(30))
