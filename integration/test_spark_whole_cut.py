"""Rows without keys and atomicity "batch": the frame's own work is done by all tasks of Spark."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from integration.readers import read_with_confluent
from integration.spark_frames import PARTITIONS, expected, wait_for
from txnproducer.errors import KafkaTimeoutError
from txnproducer.spark.driver import whole_batch
from txnproducer.spark.rows import placing
from txnproducer.spark.rows.placing import Placed, placed
from txnproducer.spark.rows.spark_hash import numbers_by_hash

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

CUT = 8  # the frame's partitions, more than the topic has
ROWS = 400


@pytest.fixture
def sink(make_sink):
    return partial(make_sink, atomicity="batch")


@pytest.fixture(autouse=True)
def many_tasks(monkeypatch):
    """Let Spark seem to run many tasks at once, on two processors."""
    monkeypatch.setattr(placing, "most_tasks_at_once", lambda frame: CUT)


def counting(spark, partitions=CUT, shuffled_into=None):
    """Return a frame that counts its rows, and notes the tasks that make them."""
    context = spark.sparkContext
    evaluated, tasks = context.accumulator(0), context.accumulator(0)

    def count(batches):
        from pyspark import TaskContext

        tasks.add(1 << TaskContext.get().partitionId())
        for batch in batches:
            evaluated.add(batch.num_rows)
            yield batch

    frame = spark.range(0, ROWS, 1, partitions).selectExpr("concat('value ', id) AS value")
    frame = frame.mapInArrow(count, "value string")
    if shuffled_into is not None:
        frame = frame.repartition(shuffled_into, "value")
    return frame, evaluated, tasks


def by_coalesce(frame, partitions):
    return Placed(frame.coalesce(partitions), None)


def test_each_partition_of_the_frame_is_a_task_and_is_written_whole(spark, kafka, topic, sink):
    frame, evaluated, tasks = counting(spark)
    report = sink().write(frame, 0)
    assert (report.rows, report.transactions, len(report.partitions)) == (ROWS, 1, PARTITIONS)
    wait_for(kafka, topic, expected(ROWS))
    assert evaluated.value == ROWS
    assert tasks.value == (1 << CUT) - 1, "one task for each of the frame's partitions"
    found = read_with_confluent(kafka.bootstrap_servers, topic)
    size = ROWS // CUT
    rows = [(read.partition, int((read.value or b"").split()[1])) for read in found]
    for number in range(CUT):
        part = [row for row in rows if row[1] // size == number]
        # One Kafka partition has all of them, in their order.
        assert {partition for partition, _ in part} == {number % PARTITIONS}
        assert [row for _, row in part] == list(range(number * size, (number + 1) * size))


def test_without_ids_the_hash_sends_whole_partitions(spark, kafka, topic, sink, monkeypatch):
    monkeypatch.setattr(placing, "_takes_ids", lambda frame: False)
    frame, evaluated, tasks = counting(spark)
    cut = placed(frame, PARTITIONS)
    assert cut.places == numbers_by_hash(PARTITIONS)
    sink().write(frame, 0)
    wait_for(kafka, topic, expected(ROWS))
    assert (evaluated.value, tasks.value) == (ROWS, (1 << CUT) - 1)


@pytest.mark.parametrize("adaptive", ["true", "false"])
@pytest.mark.parametrize("shuffled_into", [CUT, PARTITIONS])
def test_a_frame_with_a_shuffle_of_its_own_is_evaluated_once(
    spark, kafka, topic, sink, adaptive, shuffled_into
):
    before = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    try:
        frame, evaluated, _ = counting(spark, shuffled_into=shuffled_into)
        sink().write(frame, 0)
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", before)
    wait_for(kafka, topic, expected(ROWS))
    assert evaluated.value == ROWS


@pytest.mark.parametrize("cuts", [(by_coalesce, placed), (placed, by_coalesce)])
def test_a_batch_that_comes_again_is_recognised_however_it_is_cut(
    spark, kafka, topic, sink, monkeypatch, cuts
):
    reports = []
    for cut in cuts:
        monkeypatch.setattr(whole_batch, "placed", cut)
        reports.append(sink().write(counting(spark)[0], 0))
    assert [(report.rows, report.transactions) for report in reports] == [(ROWS, 1), (ROWS, 0)]
    wait_for(kafka, topic, expected(ROWS))


@dataclass(frozen=True)
class FailOnce:
    """Fails the first run of a batch, in its driver.

    Attributes:
        marker: a file that is made by then.
    """

    marker: Path

    def __call__(self, name, info):
        if name == "batch_before_commit" and not self.marker.exists():
            self.marker.touch()
            raise KafkaTimeoutError("a fault of the test")


def test_a_run_that_is_repeated_does_not_evaluate_the_frame_again(
    spark, kafka, topic, sink, tmp_path
):
    frame, evaluated, _ = counting(spark)
    report = sink(on_event=FailOnce(tmp_path / "failed")).write(frame, 0)
    assert (report.rows, report.retries) == (ROWS, 1)
    wait_for(kafka, topic, expected(ROWS))
    assert evaluated.value == ROWS
