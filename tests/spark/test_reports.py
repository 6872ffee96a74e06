"""The report of a batch: sums, phases, the share of the time-out, the line in the log."""

from __future__ import annotations

import logging

import pytest

from txnproducer.spark.ledger.entries import LedgerEntry
from txnproducer.spark.reports import (
    PartitionReport,
    SinkTotals,
    report_found,
    report_partitions,
    report_whole,
)

PHASES = {"driver.check": 0.5, "driver.tasks": 2.0}


def part(number, *, is_replay=False, open_s=1.0, attempt=0, write=1.0):
    seconds = {"init": 0.25, "write": write}
    open_s = 0.0 if is_replay else open_s
    return PartitionReport(number, 10, 100, "d" * 32, is_replay, seconds, open_s, attempt)


def test_a_batch_of_partitions_is_added_up():
    parts = [part(1, open_s=4.0), part(0, is_replay=True, attempt=2)]
    report = report_partitions(7, parts, PHASES, 10_000)
    assert (report.rows, report.size_bytes, report.transactions, report.replayed) == (
        20,
        200,
        1,
        1,
    )
    assert [one.partition for one in report.partitions] == [0, 1]
    assert (report.retries, report.slowest) == (2, 1)
    assert report.timeout_share == pytest.approx(0.4)
    assert report.seconds == pytest.approx(2.5)
    assert report.phases == {**PHASES, "init": 0.5, "write": 2.0}


def test_a_replay_has_used_nothing_of_the_time_out():
    report = report_partitions(7, [part(0, is_replay=True)], PHASES, 10_000)
    assert (report.timeout_share, report.slowest) == (0.0, None)


def test_a_whole_batch_is_one_transaction_and_its_slowest_part_is_named():
    phases = {**PHASES, "driver.transaction": 1.8}
    report = report_whole(7, (part(0), part(1, write=1.5)), phases, 2000, attempts=3)
    assert (report.rows, report.transactions, report.retries, report.slowest) == (20, 1, 2, 1)
    assert report.timeout_share == pytest.approx(0.9)
    assert report.seconds == pytest.approx(2.5)  # the transaction is a part of the tasks' time


def test_a_whole_batch_without_tasks():
    report = report_whole(7, (), {**PHASES, "driver.transaction": 0.1}, 2000, attempts=1)
    assert (report.rows, report.slowest, report.retries) == (0, None, 0)


def test_a_batch_that_was_found_has_no_transaction():
    report = report_found(7, 30, 3, 0.1)
    assert (report.rows, report.transactions, report.replayed) == (30, 0, 3)


def test_totals_are_sums():
    report = report_partitions(7, [part(0, attempt=1)], PHASES, 10_000)
    assert SinkTotals().plus(report).plus(report) == SinkTotals(2, 20, 200, 2, 0, 2, 5.0)


@pytest.mark.parametrize(("open_s", "is_near"), [(7.9, False), (8.1, True)])
def test_a_time_out_that_comes_near_is_warned_of(caplog, open_s, is_near):
    report = report_partitions(7, [part(0), part(3, open_s=open_s)], PHASES, 10_000)
    with caplog.at_level(logging.INFO):
        report.tell("orders", 10_000)
    told = [record for record in caplog.records if record.levelno == logging.INFO]
    assert len(told) == 1
    assert "sink orders, batch 7: 20 rows" in told[0].getMessage()
    warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert bool(warned) is is_near
    if warned:
        assert "81 % of the transaction time-out (transactionTimeout=10000 ms)" in warned[0]
        assert "slowest part was 3" in warned[0]


def test_an_entry_has_its_age_and_is_the_same_without():
    entry = LedgerEntry(3, "q", 2, 10, "d" * 32, at_ms=1_700_000_000_000)
    stored = entry.stored()
    assert stored.metadata.endswith('"at":1700000000000}')
    assert LedgerEntry.parse("group", stored).at_ms == 1_700_000_000_000
    assert LedgerEntry.parse("group", stored) == LedgerEntry(3, "q", 2, 10, "d" * 32)
