"""A driver takes over the entries that its first look finds, and none that are committed later."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace

import pytest

from txnproducer.spark import LedgerError
from txnproducer.spark.driver.runs import Runs
from txnproducer.spark.ledger import first_look
from txnproducer.spark.ledger.entries import LedgerBatch, LedgerEntry, PlanEntry
from txnproducer.spark.ledger.rules import LedgerRules
from txnproducer.spark.ledger.store import Ledger, LedgerView
from txnproducer.spark.ledger.take_over import TakeOver

SETTINGS = {"transaction.timeout.ms": "60000"}
OLD = LedgerEntry(7, "old", 1, 5, "0" * 32, at_ms=1)
AHEAD = LedgerEntry(7, "q", 1, 5, "0" * 32, at_ms=1)


@pytest.fixture
def taking():
    return TakeOver(LedgerRules(on_foreign_ledger="take_over"))


@pytest.mark.parametrize("entry", [OLD, AHEAD])
def test_an_entry_found_by_the_first_look_is_taken_over(taking, entry):
    taking.look_at(None, {0: entry}, "q")
    assert taking.of({0: entry}, 3, "q") == {0: entry}


@pytest.mark.parametrize(
    "entry",
    [replace(OLD, batch_id=8), replace(OLD, at_ms=2), replace(AHEAD, batch_id=4)],
    ids=["the old query goes on", "written again", "this query goes on"],
)
def test_an_entry_made_after_the_first_look_is_not_taken_over(taking, entry):
    taking.look_at(None, {0: OLD}, "q")
    taking.look_at(None, {0: entry}, "q")
    assert taking.of({0: entry, 1: OLD}, 3, "q") == {}
    with pytest.raises(LedgerError):
        taking.rules.check({0: entry}, 3, "q", 1)


def test_a_batch_that_was_seen_ahead_counts_when_its_turn_comes(taking):
    taking.look_at(None, {0: AHEAD}, "q")
    assert taking.of({0: AHEAD}, 6, "q") == {0: AHEAD}
    assert taking.of({0: AHEAD}, 7, "q") == {}


def test_an_entry_ahead_that_is_younger_than_the_driver_is_not_taken_over(taking):
    young = replace(AHEAD, at_ms=int(time.time() * 1000) + 60_000)
    taking.look_at(None, {0: young, 1: AHEAD}, "q")
    assert taking.of({0: young, 1: AHEAD}, 3, "q") == {1: AHEAD}
    with pytest.raises(LedgerError, match="committed batch 7 already, this is batch 3"):
        taking.rules.check({0: young}, 3, "q", 1)


def test_a_plan_is_taken_over_as_it_was(taking):
    plan = PlanEntry(3, "old", 2)
    taking.look_at(plan, {}, "q")
    taking.check_plan(plan, "q")
    taking.check_plan(PlanEntry(4, "q", 2), "q")
    for other in (PlanEntry(4, "old", 2), PlanEntry(5, "third", 2)):
        with pytest.raises(LedgerError, match="another query"):
            taking.check_plan(other, "q")


def test_without_the_option_nothing_is_taken_over():
    taking = TakeOver(LedgerRules())
    taking.look_at(PlanEntry(3, "old", 2), {0: OLD}, "q")
    assert taking.of({0: OLD}, 3, "q") == {}
    with pytest.raises(LedgerError):
        taking.check_plan(PlanEntry(3, "old", 2), "q")


# --- runs ----------------------------------------------------------------------------------------


class FakeLedger(Ledger):
    """A ledger with the entries that a test puts there."""

    plan: PlanEntry | None
    entries: dict[int, LedgerEntry]

    def __init__(self):
        super().__init__("nowhere:9092", "orders", "topic", {})
        self.__dict__.update(plan=None, entries={})

    def look(self, partitions=(), **_):
        wanted = {p: self.entries[p] for p in partitions if p in self.entries}
        return LedgerView(self.plan, wanted, None)

    def read(self, partitions=(), **_):
        view = self.look(partitions)
        return view.plan, view.entries

    def known_partitions(self):
        return list(self.entries)

    def put(self, **fields):
        self.__dict__.update(fields)


@pytest.fixture
def scene(monkeypatch):
    """Return a ledger, and a driver of it that takes over."""
    monkeypatch.setattr(first_look, "check_groups", lambda *_: None)
    monkeypatch.setattr(Runs, "_holding", lambda *_: nullcontext())
    monkeypatch.setattr(Runs, "_fence", lambda *_: None)
    monkeypatch.setattr(Runs, "_commit", lambda runs, _, plan: runs._ledger.put(plan=plan))
    ledger = FakeLedger()
    ledger.put(plan=PlanEntry(2, "old", 1), entries={0: OLD})
    return ledger, Runs(ledger, LedgerRules("write", "take_over"))


def committed(batch_id):
    return {0: LedgerEntry(batch_id, "q", 1, 5, "1" * 32, at_ms=10 + batch_id)}


def test_a_driver_takes_over_and_goes_on(scene):
    ledger, driver = scene
    for batch_id in range(3):
        assert driver.enter(LedgerBatch(batch_id, "q", 1), SETTINGS) == (3, {})
        assert driver.taken_over == ({0: OLD} if batch_id == 0 else {})
        ledger.put(entries=committed(batch_id))
        driver.batch_done()


def test_a_driver_that_took_over_begins_no_run_after_its_own_query(scene):
    ledger, driver = scene
    driver.enter(LedgerBatch(3, "q", 1), SETTINGS)
    # It is paused, its batch fails, and another driver of the query has gone on.
    ledger.put(plan=PlanEntry(4, "q", 1), entries=committed(4))
    with pytest.raises(LedgerError, match="committed batch 4 already, this is batch 3"):
        driver.enter(LedgerBatch(3, "q", 1), SETTINGS)
    assert ledger.plan.run == 4, "nobody was fenced"


@pytest.mark.parametrize("batch_id", [3, 4])
def test_a_driver_paused_after_its_first_look_takes_nothing_newer_over(
    scene, monkeypatch, batch_id
):
    ledger, driver = scene

    def planning(*_):
        ledger.put(plan=PlanEntry(3, "q", 1), entries=committed(batch_id))
        return nullcontext()

    monkeypatch.setattr(Runs, "_planning", planning)
    if batch_id == 3:  # this very batch: a replay
        assert driver.enter(LedgerBatch(3, "q", 1), SETTINGS)[1] == committed(3)
        return
    with pytest.raises(LedgerError, match="committed batch 4 already"):
        driver.enter(LedgerBatch(3, "q", 1), SETTINGS)


def test_a_third_querys_plan_is_not_taken_over_at_a_new_beginning(scene):
    ledger, driver = scene
    driver.enter(LedgerBatch(0, "q", 1), SETTINGS)
    ledger.put(plan=PlanEntry(9, "third", 1))
    with pytest.raises(LedgerError, match="its plan is run 9 of query third"):
        driver.enter(LedgerBatch(0, "q", 1), SETTINGS)
