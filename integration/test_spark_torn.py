"""A batch job that counts by date: its first run, and a batch that was torn and not overtaken."""

from __future__ import annotations

from functools import partial

import pytest

from integration.spark_frames import expected, keyed, seen, wait_for
from txnproducer.spark import (
    KafkaExactlyOnceDataSource,
    LedgerError,
    ReplayMismatchError,
    TornBatchError,
)
from txnproducer.spark.ledger.entries import LedgerBatch

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
APRIL_1, APRIL_2, APRIL_3 = 20260401, 20260402, 20260403


@pytest.fixture
def sink(make_sink):
    return partial(make_sink, query_id="nightly-load", first_batch_id=APRIL_1)


def tear(sink, frame, batch_id):
    """Write one of two partitions, as a job does that dies half-way."""
    parts = frame.rdd.glom().collect()
    plan, _ = sink()._batches.plan(LedgerBatch(batch_id, "nightly-load", len(parts)))
    plan.write(0, plan.rows(parts[0]))


@pytest.mark.parametrize("atomicity", ["partition", "batch"])
def test_a_job_that_counts_by_date_begins_with_its_first_batch(
    spark, kafka, topic, sink, atomicity
):
    with pytest.raises(LedgerError, match=f"no ledger.*first_batch_id={APRIL_2}"):
        sink(atomicity=atomicity).write(keyed(spark, 10, first=10), APRIL_2)
    for day in (0, 1, 1, 2):
        frame = keyed(spark, 10, first=10 * day)
        sink(atomicity=atomicity).write(frame, APRIL_1 + day)
    wait_for(kafka, topic, expected(30))


@pytest.mark.parametrize("begun_before", [False, True])
def test_a_torn_batch_is_completed_before_a_newer_one(spark, kafka, topic, sink, begun_before):
    torn = APRIL_2 if begun_before else APRIL_1
    if begun_before:
        sink().write(keyed(spark, 10, partitions=2, first=100), APRIL_1)
    before = expected(10, first=100) if begun_before else []
    frame, next_frame = keyed(spark, 10, partitions=2), keyed(spark, 10, partitions=2, first=10)
    tear(sink, frame, torn)
    wait_for(kafka, topic, sorted([*expected(5), *before]))
    told = rf"batch {torn} is committed in part: 1 of its 2 partitions \(0\) hold 5 rows"
    for call in (
        lambda: sink().write(next_frame, APRIL_3),
        lambda: sink().partition_writer(APRIL_3, writers=2),
    ):
        with pytest.raises(TornBatchError, match=told):
            call()
    assert seen(kafka, topic) == sorted([*expected(5), *before])
    # The way out that the error names.
    report = sink().write(frame, torn)
    assert (report.transactions, report.replayed) == (1, 1)
    sink().write(next_frame, APRIL_3)
    wait_for(kafka, topic, sorted([*expected(20), *before]))


def test_a_torn_batch_whose_rows_are_gone_can_be_kept_and_gone_on_from(spark, kafka, topic, sink):
    tear(sink, keyed(spark, 10, partitions=2), APRIL_1)
    other = keyed(spark, 10, partitions=2, first=50)
    with pytest.raises(ReplayMismatchError):
        sink().write(other, APRIL_1)
    sink(on_replay_mismatch="keep").write(other, APRIL_1)
    sink().write(keyed(spark, 10, first=10), APRIL_2)
    kept = [*expected(5), *expected(5, first=55), *expected(10, first=10)]
    wait_for(kafka, topic, sorted(kept))


def test_the_data_source_does_not_overtake_a_torn_batch_either(spark, kafka, topic, sink):
    spark.dataSource.register(KafkaExactlyOnceDataSource)

    def write(frame, batch_id):
        writer = frame.write.format("kafka-exactly-once").mode("append")
        options = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "topic": topic,
            "sinkId": f"sink-{topic}",
            "queryId": "nightly-load",
            "batchId": batch_id,
            "firstBatchId": APRIL_1,
        }
        writer.options(**options).save()

    frame = keyed(spark, 10, partitions=2)
    tear(sink, frame, APRIL_1)
    with pytest.raises(Exception, match=f"batch {APRIL_1} is committed in part"):
        write(keyed(spark, 10, partitions=2, first=10), APRIL_2)
    wait_for(kafka, topic, expected(5))
    write(frame, APRIL_1)
    wait_for(kafka, topic, expected(10))
