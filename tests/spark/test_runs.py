"""A run that goes on: the questions of its driver, batch after batch."""

from __future__ import annotations

import time
from contextlib import nullcontext

import pytest

from tests.spark.test_take_over import FakeLedger
from txnproducer.spark.driver.runs import Runs
from txnproducer.spark.errors import StaleRunError
from txnproducer.spark.ledger import first_look
from txnproducer.spark.ledger.entries import LedgerBatch, LedgerEntry, PlanEntry
from txnproducer.spark.ledger.rules import LedgerRules

WRITERS = 5


class NotingLedger(FakeLedger):
    """A ledger that notes how many partitions are asked for."""

    asked: list[int]

    def __init__(self):
        super().__init__()
        self.put(asked=[])

    def look(self, partitions=(), **how):
        wanted = list(partitions)
        self.asked.append(len(wanted))
        return super().look(wanted, **how)


@pytest.fixture
def ledger(monkeypatch):
    monkeypatch.setattr(first_look, "check_groups", lambda *_: None)
    monkeypatch.setattr(Runs, "_holding", lambda *_: nullcontext())
    monkeypatch.setattr(Runs, "_fence", lambda *_: None)
    monkeypatch.setattr(Runs, "_commit", commit)
    return NotingLedger()


def commit(runs, _, plan):
    runs._ledger.put(plan=plan)
    runs._planned_s = time.monotonic()  # 0 would be long ago on a machine that runs for hours


def write(ledger, runs, batch_id, writers=WRITERS):
    """Write a batch, and return how many partitions were asked for."""
    del ledger.asked[:]
    found = runs.enter(LedgerBatch(batch_id, "q", writers), {})
    entry = LedgerEntry(batch_id, "q", writers, 1, "1" * 32)
    ledger.put(entries={**ledger.entries, **dict.fromkeys(range(writers), entry)})
    runs.batch_done()
    assert found == (1, {})
    return max(ledger.asked)


def test_a_later_batch_asks_for_the_plan_alone_however_many_partitions_there_are(ledger):
    runs = Runs(ledger, LedgerRules())
    assert write(ledger, runs, 0) == WRITERS
    assert [write(ledger, runs, number) for number in range(1, 4)] == [0, 0, 0]
    assert ledger.plan.run == 1


def test_a_batch_of_more_partitions_than_the_last_one_asks_for_all_entries(ledger):
    runs = Runs(ledger, LedgerRules())
    write(ledger, runs, 0)
    assert write(ledger, runs, 1, writers=2) == 0
    assert write(ledger, runs, 2, writers=3) == WRITERS


def test_a_batch_that_comes_again_is_found_by_its_entries(ledger):
    runs = Runs(ledger, LedgerRules())
    write(ledger, runs, 0)
    _, done = runs.enter(LedgerBatch(0, "q", WRITERS), {})
    assert len(done) == WRITERS


def test_a_later_batch_notices_the_run_of_another_driver(ledger):
    runs = Runs(ledger, LedgerRules())
    write(ledger, runs, 0)
    ledger.put(plan=PlanEntry(2, "q", WRITERS))
    with pytest.raises(StaleRunError):
        runs.enter(LedgerBatch(1, "q", WRITERS), {})


def test_after_a_batch_that_failed_all_entries_are_asked_for(ledger):
    runs = Runs(ledger, LedgerRules())
    write(ledger, runs, 0)
    runs.enter(LedgerBatch(1, "q", WRITERS), {})
    del ledger.asked[:]
    run, _ = runs.enter(LedgerBatch(2, "q", WRITERS), {})
    assert (run, max(ledger.asked)) == (2, WRITERS)
