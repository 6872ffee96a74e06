"""Small batches that the driver writes itself, on a real broker and a real Spark."""

from __future__ import annotations

import math
import threading
import time
from contextlib import contextmanager

import pytest
from pyspark import InheritableThread

from integration.spark_frames import expected, keyed, keyless, wait_for
from txnproducer.errors import KafkaTimeoutError
from txnproducer.spark import LedgerError, ReplayMismatchError, StaleRunError
from txnproducer.spark.driver import partition_batch, small_batches
from txnproducer.spark.driver.runs import Runs
from txnproducer.spark.rows.few_rows import read_few
from txnproducer.spark.session import tells_of_stop

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
both = pytest.mark.parametrize("atomicity", ["partition", "batch"])


class Break(Exception):  # noqa: N818 - the name of a fault
    """The exception of a hook."""


class Hook:
    """Breaks off at an event, a given number of times."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.breaks: dict[str, int] = {}

    def __call__(self, name, info):
        self.events.append(name)
        if self.breaks.get(name):
            self.breaks[name] -= 1
            raise Break(name)


@pytest.fixture(autouse=True)
def any_time(monkeypatch):
    """Let a batch be tried after one that took long, as any does on a loaded machine."""
    monkeypatch.setattr(small_batches, "_TRIED_AFTER_S", math.inf)


@both
def test_the_driver_writes_the_batch_after_a_small_one(spark, kafka, topic, make_sink, atomicity):
    sink = make_sink(atomicity=atomicity, driver_rows=None)
    reports = [sink.write(keyed(spark, 20, first=20 * n), n) for n in range(4)]
    assert [report.is_by_driver for report in reports] == [False, True, True, True]
    assert [report.rows for report in reports] == [20] * 4
    assert reports[-1].transactions == 1
    wait_for(kafka, topic, expected(80))


@both
def test_a_batch_with_too_many_rows_goes_by_tasks_and_the_next_is_tried_again(
    spark, kafka, topic, make_sink, atomicity
):
    sink = make_sink(atomicity=atomicity, driver_rows=20)
    sizes = (20, 21, 20, 20, 0, 20)
    first = 0
    by_driver = []
    for number, size in enumerate(sizes):
        by_driver.append(sink.write(keyless(spark, size, first=first), number).is_by_driver)
        first += size
    assert by_driver == [True, False, True, True, True, True]
    wait_for(kafka, topic, expected(sum(sizes)))


@both
@pytest.mark.parametrize("by_driver_first", [True, False])
def test_a_batch_that_comes_again_in_the_other_way_is_compared_in_sum(
    spark, kafka, topic, make_sink, atomicity, by_driver_first
):
    ways = (100, 0) if by_driver_first else (0, 100)
    first, again, other, last = [
        make_sink(atomicity=atomicity, driver_rows=rows) for rows in (*ways, *ways)
    ]
    assert first.write(keyed(spark, 30), 0).is_by_driver == by_driver_first
    report = again.write(keyed(spark, 30, partitions=5), 0)
    assert (report.rows, report.transactions) == (30, 0)
    with pytest.raises(ReplayMismatchError, match="30 rows"):
        other.write(keyed(spark, 30, first=1), 0)
    assert last.write(keyed(spark, 10, first=30), 1).rows == 10
    wait_for(kafka, topic, expected(40))


@both
def test_a_batch_that_comes_again_in_the_same_run_is_not_written_twice(
    spark, kafka, topic, make_sink, atomicity
):
    sink = make_sink(atomicity=atomicity, driver_rows=100)
    for number in range(3):
        sink.write(keyless(spark, 10, first=10 * number), number)
    assert sink.write(keyless(spark, 10, first=20), 2).transactions == 0
    with pytest.raises(ReplayMismatchError):
        sink.write(keyless(spark, 10, first=21), 2)
    with pytest.raises(LedgerError, match="rewound"):
        sink.write(keyless(spark, 10, first=10), 1)
    wait_for(kafka, topic, expected(30))


@pytest.mark.parametrize(
    ("atomicity", "event"),
    [
        ("partition", "task_before_commit"),
        ("partition", "task_after_commit"),
        ("batch", "batch_before_commit"),
        ("batch", "batch_after_commit"),
    ],
)
def test_a_batch_whose_write_is_broken_off_is_written_once(
    spark, kafka, topic, make_sink, atomicity, event
):
    hook = Hook()
    sink = make_sink(atomicity=atomicity, driver_rows=100, on_event=hook)
    sink.write(keyless(spark, 10), 0)
    hook.breaks[event] = 1
    with pytest.raises(Break):
        sink.write(keyless(spark, 10, first=10), 1)
    wait_for(kafka, topic, expected(20 if "after" in event else 10))
    report = sink.write(keyless(spark, 10, first=10), 1)
    assert report.transactions == (0 if "after" in event else 1)
    assert sink.write(keyless(spark, 10, first=20), 2).is_by_driver
    wait_for(kafka, topic, expected(30))


@both
def test_two_drivers_do_not_write_one_batch_twice(spark, kafka, topic, make_sink, atomicity):
    old = make_sink(atomicity=atomicity, driver_rows=100)
    for number in range(2):
        old.write(keyless(spark, 10, first=10 * number), number)
    new = make_sink(atomicity=atomicity, driver_rows=100)
    new.write(keyless(spark, 10, first=20), 2)
    new.write(keyless(spark, 10, first=30), 3)
    with pytest.raises((StaleRunError, LedgerError)):
        old.write(keyless(spark, 10, first=20), 2)
    wait_for(kafka, topic, expected(40))
    assert new.status().query_id == "query"


@both
@pytest.mark.parametrize("new_rows", [100, 0])
def test_a_driver_that_was_replaced_stops_and_takes_no_id_back(
    spark, kafka, topic, make_sink, atomicity, new_rows
):
    old = make_sink(atomicity=atomicity, driver_rows=100)
    for number in range(2):
        old.write(keyless(spark, 10, first=10 * number), number)
    new = make_sink(atomicity=atomicity, driver_rows=new_rows)
    new.write(keyless(spark, 10, first=20), 2)
    with pytest.raises(StaleRunError) as stopped:
        old.write(keyless(spark, 10, first=30), 3)
    if atomicity == "partition":
        assert "Batch 3 may be committed" in str(stopped.value)
    assert new.write(keyless(spark, 10, first=30), 3).retries == 0
    wait_for(kafka, topic, expected(40))


def test_a_ledger_is_taken_over_by_tasks_however_small_the_batches_are(
    spark, kafka, topic, make_sink
):
    make_sink(query_id="old").write(keyed(spark, 20, partitions=4), 0)
    sink = make_sink(driver_rows=100, on_foreign_ledger="take_over")
    reports = [sink.write(keyed(spark, 20, partitions=4, first=20 * n), n) for n in (1, 2, 3)]
    # The second one shows that nothing is left to take over.
    assert [report.is_by_driver for report in reports] == [False, False, True]
    # The option has done its work.
    assert make_sink(driver_rows=100).write(keyed(spark, 20, first=80), 4).is_by_driver
    wait_for(kafka, topic, expected(100))


@both
def test_a_refresh_between_small_batches_does_no_harm(spark, kafka, topic, make_sink, atomicity):
    sink = make_sink(atomicity=atomicity, driver_rows=100)
    for number in range(3):
        assert sink.write(keyless(spark, 10, first=10 * number), number).is_by_driver
        assert sink.refresh_ledger() == 1
    wait_for(kafka, topic, expected(30))


@pytest.mark.parametrize("atomicity", ["partition", "batch", "prepared"])
def test_small_batches_and_those_of_tasks_take_turns(spark, kafka, topic, make_sink, atomicity):
    sink = make_sink(atomicity=atomicity, driver_rows=10)
    by_driver = []
    for number in range(6):
        # Each third one is too large.
        size = 10 if number % 3 else 40
        report = sink.write(keyed(spark, size, partitions=4, first=1000 * number), number)
        by_driver.append(report.is_by_driver)
    assert by_driver == [False, True, True] * 2
    wanted = sorted(row for n in range(6) for row in expected(10 if n % 3 else 40, first=1000 * n))
    wait_for(kafka, topic, wanted)


def test_the_entries_of_other_partitions_do_not_expire_while_all_batches_are_small(
    spark, kafka, topic, make_sink, monkeypatch
):
    make_sink().write(keyed(spark, 9), 0)  # by three tasks
    renewed: list[int] = []
    usual = Runs._refresh

    def refresh(runs, slot, *more):
        renewed.append(slot)
        usual(runs, slot, *more)

    monkeypatch.setattr(Runs, "_refresh", refresh)
    sink = make_sink(driver_rows=10)
    for number in range(1, 4):
        assert sink.write(keyless(spark, 5, first=100 * number), number).is_by_driver
    assert sorted(renewed) == [0, 1, 2], "once: a new driver does not know how old they are"
    monkeypatch.setattr(partition_batch, "REFRESH_AFTER_S", 0.0)
    assert sink.write(keyless(spark, 5, first=400), 4).is_by_driver
    assert sorted(renewed) == [0, 0, 1, 1, 2, 2]
    assert {entry.batch_id for entry in sink._ledger.read(range(3))[1].values()} == {0, 4}
    monkeypatch.setattr(partition_batch, "REFRESH_AFTER_S", 3600.0)
    assert sink.write(keyed(spark, 30, first=500), 5).transactions == 3
    wanted = [*expected(9), *(row for n in range(1, 5) for row in expected(5, first=100 * n))]
    wait_for(kafka, topic, sorted([*wanted, *expected(30, first=500)]))


def test_a_failed_renewal_fails_no_batch(spark, kafka, topic, make_sink, monkeypatch, caplog):
    make_sink().write(keyed(spark, 9), 0)

    def refuse(*_):
        raise KafkaTimeoutError("no answer")

    sink = make_sink(driver_rows=10)
    monkeypatch.setattr(Runs, "refresh", refuse)
    for number in range(1, 3):
        assert sink.write(keyless(spark, 5, first=100 * number), number).is_by_driver
    assert caplog.text.count("the ledger could not be refreshed") == 1
    wait_for(kafka, topic, sorted([*expected(9), *expected(5, 100), *expected(5, 200)]))


@pytest.mark.parametrize("atomicity", ["partition", "batch", "prepared"])
def test_the_state_of_an_aggregation_is_that_of_one_evaluation(
    spark, kafka, topic, make_sink, atomicity, tmp_path
):
    words = [
        ["a"] * 3,
        [f"w{n}" for n in range(40)] * 2,
        ["a", "w1"],
        ["a"],
    ]  # the second is large
    files = tmp_path / "input"
    files.mkdir()
    (files / "0.txt").write_text("\n".join(words[0]))
    sink, by_driver = make_sink(atomicity=atomicity, driver_rows=10, query_id=None), []
    counts = spark.readStream.text(str(files)).groupBy("value").count()
    rows = counts.selectExpr("value AS key", "concat(value, ' ', count) AS value")

    def write(frame, batch_id):
        by_driver.append(sink.write(frame, batch_id).is_by_driver)

    for number, lines in enumerate(words):
        (files / f"{number}.txt").write_text("\n".join(lines))
        query = (
            rows.writeStream.outputMode("update")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .foreachBatch(write)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        assert query.exception() is None
    assert by_driver == [True, False, True, True], "the second was evaluated twice"
    second = [f"w{n} 2" for n in range(40)]
    wanted = ["a 3", *second, "a 4", "w1 3", "a 5"]
    wait_for(kafka, topic, sorted(text.encode() for text in wanted))


# --- the read ------------------------------------------------------------------------------------


@contextmanager
def job_group(spark, name):
    context = spark.sparkContext
    context.setJobGroup(name, name)
    try:
        yield
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)


@pytest.mark.parametrize("in_one_task", [True, False])
def test_a_read_keeps_the_order_of_each_partition(spark, in_one_task):
    frame = keyless(spark, 3000, partitions=3)
    batches = read_few(frame, 3000, in_one_task=in_one_task) or []
    rows = [value for batch in batches for value in batch.column("value").to_pylist()]
    assert sorted(rows) == sorted(f"value {n}" for n in range(3000))
    for first in range(0, 3000, 1000):
        part = [row for row in rows if first <= int(row.split()[1]) < first + 1000]
        assert part == [f"value {n}" for n in range(first, first + 1000)]


@pytest.mark.parametrize("in_one_task", [True, False])
def test_a_read_of_too_many_rows_or_bytes_ends(spark, in_one_task):
    frame = spark.range(0, 100_000, 1, 4).selectExpr("repeat('x', 1000) AS value")
    assert read_few(frame, 99, in_one_task=in_one_task) is None
    assert read_few(frame, 100_000, in_one_task=in_one_task, most_bytes=100_000) is None
    assert read_few(frame.where("id < 0"), 0, in_one_task=in_one_task) == []


def test_a_read_is_of_the_calling_threads_job_group(spark):
    began, wait_s = threading.Event(), 30
    slow = spark.range(0, 2, 1, 1).selectExpr("java_method('java.lang.Thread', 'sleep', 60000L) x")
    slow = slow.selectExpr("'x' AS value", "x").where("x IS NULL").select("value")

    def cancel():
        tracker = spark.sparkContext.statusTracker()
        while not tracker.getActiveJobsIds() and not began.wait(0.05):
            pass
        spark.sparkContext.cancelJobGroup("a query")

    canceller = InheritableThread(target=cancel)
    with job_group(spark, "a query"):
        canceller.start()
        began_s = time.monotonic()
        # A stop of the query cancels the jobs of its group.
        with pytest.raises(Exception, match="cancelled") as raised:
            read_few(slow, 10)
        canceller.join()
    assert tells_of_stop(raised.value)
    assert time.monotonic() - began_s < wait_s


@pytest.mark.parametrize("in_one_task", [True, False])
def test_a_read_has_the_settings_of_its_session(spark, in_one_task):
    # The pattern is of an older version of Spark, and a column: a task asks whether it may be.
    frame = spark.range(0, 4, 1, 2).selectExpr(
        "date_format(timestamp'2024-01-01 00:00:00', concat('u', if(id < 0, 'x', ''))) AS value"
    )
    spark.conf.set("spark.sql.legacy.timeParserPolicy", "LEGACY")
    try:
        batches = read_few(frame, 4, in_one_task=in_one_task) or []
    finally:
        spark.conf.unset("spark.sql.legacy.timeParserPolicy")
    assert [row for batch in batches for row in batch.column("value").to_pylist()] == ["1"] * 4
    assert spark.sparkContext.getLocalProperty("spark.sql.legacy.timeParserPolicy") is None


def test_a_read_works_in_a_thread_without_an_active_session(spark):
    sessions = spark._jvm.SparkSession
    frame, found = keyless(spark, 5), []

    def read():
        sessions.clearActiveSession()
        found.extend(read_few(frame, 5) or [])
        found.append(sessions.getActiveSession().isDefined())

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    *batches, is_active = found
    assert sum(batch.num_rows for batch in batches) == 5
    assert not is_active


def test_an_error_of_the_frame_is_raised_as_spark_raises_it(spark):
    frame = spark.sql("SELECT raise_error('of the frame') AS value")
    with pytest.raises(Exception, match="of the frame"):
        read_few(frame, 10)
    assert spark.range(3).count() == 3
