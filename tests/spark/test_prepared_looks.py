"""The looks at the plan before an id of a prepared part is taken, and after it.

To take an id aborts its open part, and another driver may have decided that part. A simulator
draws such moments (`tests/spark/parts`); these are the ones that its seeds seldom meet.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.spark.test_take_over import FakeLedger
from txnproducer.errors import KafkaTimeoutError
from txnproducer.records import ProducerIdAndEpoch
from txnproducer.spark.driver import prepared_runs, runs
from txnproducer.spark.driver.partition_batch import PartitionBatches
from txnproducer.spark.driver.prepared_batch import PreparedBatches
from txnproducer.spark.driver.prepared_runs import PreparedRuns
from txnproducer.spark.driver.runs import Runs
from txnproducer.spark.errors import (
    LedgerError,
    PartialReplayError,
    StaleRunError,
    TornBatchError,
)
from txnproducer.spark.ledger.decided_runs import RunState
from txnproducer.spark.ledger.decisions import Decision
from txnproducer.spark.ledger.entries import LedgerBatch, LedgerEntry, PlanEntry
from txnproducer.spark.ledger.rules import LedgerRules

OURS = PlanEntry(1, "query", 2, is_prepared=True)
OF_ANOTHER = PlanEntry(2, "query", 2, is_prepared=True)
BATCH = LedgerBatch(7, "query", 2)
ENTRY = LedgerEntry(7, "query", 2, 1, "00", run_id="monday")


class Ledger(FakeLedger):
    """A ledger with a plan for each look, of which the last one stays."""

    steps: list[str]
    plans: list[PlanEntry]
    decision: Decision | None

    def look(self, partitions=(), **how):
        self.steps.append("look")
        self.put(plan=self.plans.pop(0) if len(self.plans) > 1 else self.plans[0])
        return super().look(partitions, **how)

    def read_decision(self):
        return self.decision


class Ids:
    """The ids of parts, none of which is held."""

    def __init__(self, steps, end=None):
        self._steps, self._end = steps, end

    def missing(self, slots):
        return list(slots)

    def take(self, slots, settings):
        self._steps.append("take")

    def lease(self, slots, settings):
        self._steps.append("lease")
        return {}

    def end(self, leases, settings, *, is_commit):
        self._steps.append(f"end {sorted(leases)}")
        if self._end is not None:
            raise self._end
        return {}

    def forget(self, slots=None):
        pass


@pytest.fixture
def steps():
    return []


def begun(steps, plans, **ids):
    """Return the runs of a driver that has begun one, with the plans of the looks to come."""
    ledger = Ledger()
    ledger.put(steps=steps, plans=list(plans), decision=None)
    driver: Any = PreparedRuns(ledger, LedgerRules())
    driver._begun = OURS
    driver.ids = Ids(steps, **ids)
    return driver


def test_ids_are_taken_between_two_looks(steps):
    begun(steps, [OURS]).lease([0, 1], {})
    assert steps == ["look", "take", "look", "lease"]


@pytest.mark.parametrize(
    ("plans", "done"),
    [([OF_ANOTHER], ["look"]), ([OURS, OF_ANOTHER], ["look", "take", "look"])],
    ids=["before", "meanwhile"],
)
def test_nothing_is_leased_once_another_driver_has_begun(steps, plans, done):
    with pytest.raises(StaleRunError):
        begun(steps, plans).lease([0, 1], {})
    assert steps == done


def test_a_driver_without_the_plans_id_looks_before_it_begins_again(steps, monkeypatch):
    monkeypatch.setattr(Runs, "enter", lambda *_: steps.append("begin"))
    driver = begun(steps, [OF_ANOTHER])
    driver.batch_done()
    with pytest.raises(StaleRunError):
        driver.enter(BATCH, {})
    assert steps == ["look"]


@pytest.mark.parametrize("is_held", [False, True])
def test_a_small_batch_takes_its_id_after_a_look(steps, monkeypatch, is_held):
    monkeypatch.setattr(PartitionBatches, "_attempt", lambda *_: steps.append("attempt"))
    settings: Any = SimpleNamespace(rules=LedgerRules(), driver_rows=None)
    cluster: Any = None
    batches: Any = PreparedBatches(settings, Ledger(), cluster, None)
    batches.runs = begun(steps, [OURS, OF_ANOTHER])
    batches._kept = SimpleNamespace(is_held=is_held)
    batches._attempt()
    assert steps == (["attempt"] if is_held else ["look", "attempt"])
    if not is_held:
        with pytest.raises(StaleRunError):
            batches._attempt()
        assert steps == ["look", "attempt", "look"]


def test_a_take_over_goes_no_further_while_a_decided_part_may_be_open(steps):
    driver = begun(steps, [OURS], end=KafkaTimeoutError("no answer"))
    parts = {0: ProducerIdAndEpoch(5, 0), 1: ProducerIdAndEpoch(6, 0)}
    driver._ledger.put(decision=Decision(3, BATCH, True, parts))
    with pytest.raises(KafkaTimeoutError):
        driver._roll_forward({})
    assert steps == ["look", "end [0, 1]"]
    assert driver.next_decision == 4


def test_a_refresh_ends_decided_parts_before_it_takes_their_ids(steps, monkeypatch):
    monkeypatch.setattr(Runs, "refresh", lambda *_: steps.append("refresh"))
    driver = begun(steps, [OURS, OURS, OURS])
    monkeypatch.setattr(driver, "_planning", lambda _: nullcontext())
    monkeypatch.setattr(driver, "_roll_forward", lambda _: steps.append("roll forward"))
    driver.refresh("query", {})
    assert steps == ["look", "look", "roll forward", "refresh"]
    steps.clear()
    assert driver.refresh("another query", {}) == 0
    assert steps == ["look"], "the driver of another query is not fenced"


def test_a_refresh_takes_no_id_once_another_driver_has_begun(steps, monkeypatch):
    @contextmanager
    def holding(ledger, name, settings):
        steps.append("take")
        yield

    monkeypatch.setattr(runs, "holding", holding)
    with pytest.raises(StaleRunError):
        begun(steps, [OF_ANOTHER])._refresh(1, OURS, {})
    assert steps == ["look"]


def test_a_driver_that_was_replaced_refreshes_nothing(steps, monkeypatch):
    driver = begun(steps, [OF_ANOTHER])
    monkeypatch.setattr(driver, "_planning", lambda _: steps.append("take"))
    with pytest.raises(StaleRunError):
        driver.refresh("query", {})
    assert set(steps) == {"look"}, "the other driver is not fenced"


def test_a_driver_that_is_replaced_in_the_midst_of_a_refresh_takes_no_part(steps, monkeypatch):
    driver = begun(steps, [OURS, OURS, OF_ANOTHER])
    monkeypatch.setattr(driver, "_planning", lambda _: nullcontext())
    with pytest.raises(StaleRunError):
        driver.refresh("query", {})
    assert set(steps) == {"look"}


LATER = LedgerEntry(12, "query", 1, 1, "00", decision=0, at_ms=900)
OWN = LedgerEntry(10, "query", 2, 1, "00", decision=3, at_ms=500)


@pytest.mark.parametrize(
    ("entries", "ended"),
    [
        ({0: OWN, 1: OWN}, None),
        ({0: LATER, 1: OWN}, None),  # a small batch came later
        ({0: replace(LATER, at_ms=None), 1: OWN}, None),
        ({1: OWN}, [0]),
        # A checkpoint was rewound to batch 10: these entries are ahead of it, and older.
        ({0: OWN, 1: replace(LATER, decision=2)}, [1]),
        ({0: replace(LATER, at_ms=400), 1: OWN}, [0]),
        ({0: LATER, 1: replace(LATER, decision=2)}, [0, 1]),
        ({0: LATER, 1: LATER}, [0, 1]),
        ({0: replace(LATER, query_id="other"), 1: OWN}, [0]),
    ],
)
def test_a_part_is_ended_unless_its_slot_shows_its_commit_or_a_later_one(steps, entries, ended):
    driver = begun(steps, [OURS])
    parts = {slot: ProducerIdAndEpoch(5 + slot, 0) for slot in range(2)}
    decision = Decision(3, LedgerBatch(10, "query", 2), True, parts)
    driver._ledger.put(decision=decision, entries=entries)
    driver._roll_forward({})
    assert steps == (["look"] if ended is None else ["look", f"end {ended}"])


def check_of_a_named_run(steps, monkeypatch, plan, check):
    """Check a named run after a look that found `plan`, while a part of it counts as lost."""

    def find(*_, **__):
        if isinstance(check, Exception):
            raise check
        return check

    is_of_another = isinstance(check, TornBatchError)
    look = find if is_of_another else lambda *_: None
    monkeypatch.setattr(prepared_runs, "check_nothing_torn", look)
    monkeypatch.setattr(prepared_runs, "state_of", find)
    driver = begun(steps, [plan])
    driver._plan = OURS
    return driver._check(replace(BATCH, run_id="monday"), {})


@pytest.mark.parametrize(
    "check",
    [
        TornBatchError("another run is torn"),
        PartialReplayError("it was cut otherwise"),
        RunState(ENTRY, is_torn=True, done={0: ENTRY}),
        RunState(ENTRY),
    ],
    ids=["another run", "cut otherwise", "this run", "this run, decided meanwhile"],
)
def test_a_lost_part_may_be_one_that_another_driver_has_written_over(steps, monkeypatch, check):
    with pytest.raises(StaleRunError):
        check_of_a_named_run(steps, monkeypatch, OF_ANOTHER, check)
    if isinstance(check, Exception):
        with pytest.raises(type(check)):
            check_of_a_named_run(steps, monkeypatch, OURS, check)
    else:
        assert check_of_a_named_run(steps, monkeypatch, OURS, check) == check.done
    assert steps == ["look", "look"]


def test_a_part_without_any_entry_is_written_if_its_batch_was_decided(steps):
    """It was lost after the decision. Its entry cannot have expired: the decision is older."""
    driver: Any = begun(steps, [OURS])
    parts = {slot: ProducerIdAndEpoch(5 + slot, 0) for slot in range(3)}
    batch = LedgerBatch(7, "query", 3)
    entries = {slot: LedgerEntry(7, "query", 3, 1, "00", decision=3) for slot in (0, 2)}
    with pytest.raises(LedgerError, match=r"ledgers of \[1\] are missing"):
        driver._check(batch, entries)
    driver._decision = Decision(3, batch, True, parts)
    assert driver._check(batch, entries) == entries
    driver._decision = Decision(3, replace(batch, batch_id=6), True, parts)
    with pytest.raises(LedgerError, match=r"ledgers of \[1\] are missing"):
        driver._check(batch, entries)


def test_a_move_looks_at_the_plan_right_before_each_id(steps, monkeypatch):
    @contextmanager
    def holding(ledger, name, settings):
        steps.append(f"take {name}")
        yield

    monkeypatch.setattr(runs, "holding", holding)
    driver = begun(steps, [OURS, OF_ANOTHER])
    driver._ledger.put(move=lambda *_: None)
    driver._move(0, OURS, {})
    with pytest.raises(StaleRunError):
        driver._move(1, OURS, {})
    assert [each for each in steps if each != "look"] == ["take orders.p0"]


@pytest.mark.parametrize("is_moving", [False, True])
def test_the_ids_of_a_run_are_taken_right_after_a_look(steps, monkeypatch, is_moving):
    monkeypatch.setattr(Runs, "_fence", lambda *_: steps.append("move"))
    driver = begun(steps, [OURS, OF_ANOTHER])
    monkeypatch.setattr(Ledger, "is_moving", is_moving)
    driver._fence([0, 1], OURS, {})
    with pytest.raises(StaleRunError):
        driver._fence([0, 1], OURS, {})
    move = ["move"] * is_moving
    assert steps == [*move, "look", "take", *move, "look"]


def test_a_driver_that_was_replaced_says_how_much_may_be_written(steps):
    way_out = "If two queries run, end one, or give it a sink id"
    with pytest.raises(StaleRunError, match=rf"Nothing was written\. {way_out}"):
        begun(steps, [OF_ANOTHER]).check_not_replaced()
    with pytest.raises(StaleRunError, match=rf"Batch 7 may be committed: .*\. {way_out}"):
        begun(steps, [OF_ANOTHER]).check_not_replaced(decided="7")
