"""Named runs of prepared parts: crashes, zombies, and parts that time has ended."""

from __future__ import annotations

import pytest

from integration.spark_frames import expected, keyed, keyless, seen, wait_for
from integration.spark_kills import DeadDriverError, kill, others
from txnproducer import TransactionalProducer
from txnproducer.ledger.topic_log import forget_logs
from txnproducer.spark import (
    PartialReplayError,
    ReplayMismatchError,
    StaleRunError,
    TornBatchError,
)
from txnproducer.spark.driver.prepared_runs import PreparedRuns

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


@pytest.fixture
def sink(make_sink):
    """Return a maker of sinks, each of which reads the topic from its beginning."""

    def make(**arguments):
        forget_logs()
        return make_sink(**{"ledger": "topic", "atomicity": None, **arguments})

    return make


@pytest.fixture
def broken_off(spark, sink, monkeypatch):
    """Return a function that writes the run "a", and ends the driver after some ends of parts."""

    def write(ended):
        with monkeypatch.context() as patch:
            kill(patch, ended)
            with pytest.raises(DeadDriverError):
                sink().write(keyed(spark, 60), run_id="a")

    return write


def lose_part(kafka, topic, slot):
    """End a part as its time-out does."""
    name = f"sink-{topic}.p{slot}"
    with TransactionalProducer(kafka.bootstrap_servers, name) as producer:
        producer.init_transactions()


@pytest.mark.parametrize("ended", [0, 1, 2, 3])
def test_a_decided_run_is_completed_by_whichever_run_comes_next(
    spark, kafka, topic, sink, broken_off, ended
):
    broken_off(ended)
    report = sink().write(keyless(spark, 10, first=60), run_id="b")
    assert (report.run_id, report.rows) == ("b", 10)
    wait_for(kafka, topic, expected(70))
    # Its frame is needed no more, and gives other rows in other partitions.
    report = sink().write(others(spark), run_id="a")
    assert (report.rows, report.transactions, report.has_other_rows) == (60, 0, True)
    assert seen(kafka, topic) == expected(70)


def test_a_run_that_was_not_decided_begins_again(spark, kafka, topic, sink, broken_off):
    broken_off(None)
    sink().write(keyless(spark, 10, first=60), run_id="b")
    wait_for(kafka, topic, expected(10, first=60))
    report = sink().write(others(spark), run_id="a")
    assert (report.rows, report.transactions) == (30, 5)
    wait_for(kafka, topic, sorted([*expected(10, first=60), *expected(30, first=1000)]))


def test_a_run_that_lost_a_part_holds_up_the_others_until_it_is_whole(
    spark, kafka, topic, sink, broken_off
):
    broken_off(1)
    lose_part(kafka, topic, 2)
    for again in range(2):
        with pytest.raises(TornBatchError, match=r"run a is decided, and 1 of its 3 parts \(2\)"):
            sink(driver_rows=100 * again).write(keyless(spark, 10, first=60), run_id="b")
        with pytest.raises(TornBatchError, match="run a is decided"):
            sink().write(keyless(spark, 10, first=60), 0)
    with pytest.raises(PartialReplayError, match="batch a is committed in part: 2 partition"):
        sink().write(others(spark), run_id="a")
    with pytest.raises(ReplayMismatchError, match="batch a comes again with other rows"):
        sink().write(keyed(spark, 60, first=1), run_id="a")
    report = sink().write(keyed(spark, 60), run_id="a")
    assert (report.run_id, report.rows, report.transactions) == ("a", 60, 2)
    sink().write(keyless(spark, 10, first=60), run_id="b")
    for run_id, frame in (("a", keyed(spark, 60)), ("b", keyless(spark, 10, first=60))):
        report = sink().write(frame, run_id=run_id)
        assert (report.transactions, report.has_other_rows) == (0, False)
    wait_for(kafka, topic, expected(70))


@pytest.mark.parametrize("driver_rows", [0, 100])
def test_a_run_that_lost_all_parts_is_written_as_if_it_were_new(
    spark, kafka, topic, sink, broken_off, driver_rows
):
    broken_off(0)
    for slot in range(3):
        lose_part(kafka, topic, slot)
    with pytest.raises(TornBatchError, match="3 of its 3 parts"):
        sink().write(keyless(spark, 10), run_id="b")
    report = sink(driver_rows=driver_rows).write(others(spark), run_id="a")
    assert (report.rows, report.has_other_rows) == (30, False)
    assert sink().write(others(spark), run_id="a").transactions == 0
    sink().write(keyless(spark, 10, first=1030), run_id="b")
    wait_for(kafka, topic, expected(40, first=1000))


@pytest.mark.parametrize("run_id", ["a", "b"])
def test_a_driver_that_was_replaced_before_it_decided_writes_nothing(
    spark, kafka, topic, sink, monkeypatch, run_id
):
    real = PreparedRuns.decide
    wrote: list[object] = []

    def decide(*call):
        if not wrote:
            wrote.append(True)
            wrote.append(sink().write(keyed(spark, 30, first=100), run_id=run_id))
        return real(*call)

    monkeypatch.setattr(PreparedRuns, "decide", decide)
    late = sink()
    with pytest.raises(StaleRunError):
        late.write(keyed(spark, 30), run_id="a")
    wait_for(kafka, topic, expected(30, first=100))
    report = sink().write(keyed(spark, 30), run_id="a")
    assert (report.transactions > 0, report.has_other_rows) == (run_id == "b", run_id == "a")


def test_a_run_of_one_part_and_one_without_rows_are_remembered(spark, kafka, topic, sink):
    for run_id, count in (("one", 5), ("none", 0)):
        for driver_rows in (0, 100):
            frame = keyless(spark, count, partitions=1)
            report = sink(driver_rows=driver_rows).write(frame, run_id=run_id)
            assert (report.rows, report.transactions > 0) == (count, driver_rows == 0)
    wait_for(kafka, topic, expected(5))
