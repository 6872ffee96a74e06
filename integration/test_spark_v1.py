"""The Spark sink on brokers with transactions version 1, where it takes other steps.

There tasks add their partitions, the ledger's group is added before its offset, and the epoch goes
up by an `InitProducerId` of the driver's after each end. All else is tried on version 2.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.brokers import MODES
from integration.spark_frames import Strike, expected, keyless, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
V1 = next(mode for mode in MODES if mode.name == "4.3.1-v1")


@pytest.fixture(scope="module")
def kafka():
    with V1.start() as kafka:
        yield kafka


def test_a_whole_batch_is_committed_and_its_replay_not_written(spark, kafka, topic, make_sink):
    writer = make_sink(atomicity="batch")
    assert writer.write(keyless(spark, 100), 0).transactions == 1
    assert not writer._batches.transactions._lease.is_transaction_v2
    writer.write(keyless(spark, 50, first=100), 1)
    again = make_sink(atomicity="batch").write(keyless(spark, 50, first=100), 1)
    assert (again.rows, again.transactions, again.replayed) == (50, 0, 2)
    wait_for(kafka, topic, expected(150))


def test_a_whole_batch_whose_task_is_killed_before_the_commit_is_run_again(
    spark, kafka, topic, make_sink, tmp_path
):
    strike = Strike(str(tmp_path / "struck"), "task_before_receipt")
    writer = make_sink(atomicity="batch", on_event=strike)
    report = writer.write(keyless(spark, 300), 0)
    assert Path(strike.marker).exists()
    assert (report.rows, report.transactions, writer._batches.transactions.attempts) == (300, 1, 2)
    # The killed task's rows were aborted: neither this commit nor the next one takes them.
    writer.write(keyless(spark, 50, first=300), 1)
    wait_for(kafka, topic, expected(350))


def test_partitions_are_committed_one_by_one_through_a_killed_task(
    spark, kafka, topic, make_sink, tmp_path
):
    strike = Strike(str(tmp_path / "struck"), "task_before_commit")
    report = make_sink(on_event=strike).write(keyless(spark, 300), 0)
    assert Path(strike.marker).exists()
    assert (report.rows, report.transactions, report.replayed) == (300, 2, 0)
    again = make_sink().write(keyless(spark, 300), 0)
    assert (again.transactions, again.replayed) == (0, 2)
    make_sink().write(keyless(spark, 50, first=300), 1)
    wait_for(kafka, topic, expected(350))
