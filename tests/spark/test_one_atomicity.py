"""A sink id belongs to one atomicity: a driver with the other one is refused with the reason."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import replace

import pytest

from txnproducer.spark import LedgerError, StaleRunError
from txnproducer.spark.data_source_options import naming_options
from txnproducer.spark.driver.batch_transactions import BatchTransactions
from txnproducer.spark.driver.runs import Runs
from txnproducer.spark.ledger import first_look
from txnproducer.spark.ledger.entries import LedgerBatch, LedgerEntry, PlanEntry
from txnproducer.spark.ledger.one_atomicity import check_one_atomicity
from txnproducer.spark.ledger.rules import LedgerRules
from txnproducer.spark.ledger.store import Ledger, LedgerView
from txnproducer.spark.rows.schema import RowReader
from txnproducer.spark.tasks.open_part import PartWriter

LEDGER = Ledger("nowhere:9092", "orders", "topic", {})
ENTRY = LedgerEntry(4, "q", 2, 7, "0" * 32)
OF_WHOLE_BATCHES = LedgerView(None, {}, ENTRY)
OF_PARTITIONS = LedgerView(PlanEntry(3, "q", 2), {0: ENTRY}, None)
OF_A_PLAN = LedgerView(PlanEntry(3, "q", 2), {}, None)
DECIDED = replace(ENTRY, decision=5)
NAMED = replace(ENTRY, batch_id=0, run_id="monday")
DECIDED_NAMED = replace(NAMED, decision=5)
PREPARED_PLAN = PlanEntry(3, "q", 2, is_prepared=True)
OF_PREPARED = LedgerView(PREPARED_PLAN, {0: DECIDED}, None)
OWN = {"batch": OF_WHOLE_BATCHES, "partition": OF_PARTITIONS, "prepared": OF_PREPARED}
ANYTHING = LedgerRules("write", "take_over")
SETTINGS = {"transaction.timeout.ms": "60000"}


class FakeLedger(Ledger):
    """A ledger that shows one view after the other, and the last one for ever."""

    views: list[LedgerView]

    def __init__(self, *views):
        super().__init__("nowhere:9092", "orders", "topic", {})
        self.__dict__.update(views=list(views))

    def look(self, partitions=(), **_):
        view = self.views.pop(0) if len(self.views) > 1 else self.views[0]
        wanted = {p: view.entries[p] for p in partitions if p in view.entries}
        return LedgerView(view.plan, wanted, view.whole)

    def known_partitions(self):
        return []


@pytest.fixture
def runs(monkeypatch):
    """Return a maker of `Runs` on a fake ledger, and the ids that it took."""
    taken: list[str] = []
    monkeypatch.setattr(first_look, "check_groups", lambda *_: None)
    monkeypatch.setattr(Runs, "_commit", lambda *_: taken.append("commit"))

    def hold(_, name, __):
        taken.append(name)
        return nullcontext()

    def fence(_, partitions, *__):
        taken.extend(map(LEDGER.transactional_id, partitions))

    monkeypatch.setattr(Runs, "_holding", hold)
    monkeypatch.setattr(Runs, "_fence", fence)
    return lambda *views: Runs(FakeLedger(*views), ANYTHING), taken


def test_a_sink_of_its_own_atomicity_or_of_none_goes_on():
    nothing = LedgerView(None, {}, None)
    for atomicity, view in OWN.items():
        check_one_atomicity(LEDGER, view, atomicity)
        check_one_atomicity(LEDGER, nothing, atomicity)


@pytest.mark.parametrize(
    ("ours", "theirs", "view", "there"),
    [
        ("batch", "partition", OF_PARTITIONS, "batch 4 of query q"),
        ("batch", "partition", OF_A_PLAN, "run 3 of query q"),
        ("batch", "partition", LedgerView(None, {0: ENTRY}, None), "batch 4 of query q"),
        ("partition", "batch", OF_WHOLE_BATCHES, "batch 4 of query q"),
        ("prepared", "partition", OF_PARTITIONS, "batch 4 of query q"),
        ("prepared", "partition", OF_A_PLAN, "run 3 of query q"),
        ("prepared", "batch", OF_WHOLE_BATCHES, "batch 4 of query q"),
        ("prepared", "batch", LedgerView(None, {}, None, NAMED), "batch monday of query q"),
        ("batch", "prepared", LedgerView(None, {}, None, DECIDED_NAMED), "batch monday of query"),
        (
            "partition",
            "prepared",
            LedgerView(PREPARED_PLAN, {}, None, DECIDED_NAMED),
            "batch monday of",
        ),
        ("partition", "prepared", OF_PREPARED, "batch 4 of query q"),
        ("partition", "prepared", LedgerView(None, {0: DECIDED}, None), "batch 4 of query q"),
        ("batch", "prepared", LedgerView(PREPARED_PLAN, {}, None), "run 3 of query q"),
    ],
)
def test_another_atomicity_is_refused_with_its_entries_and_the_ways_out(ours, theirs, view, there):
    with pytest.raises(LedgerError) as caught:
        check_one_atomicity(LEDGER, view, ours)
    text = str(caught.value)
    assert text.startswith(f"the sink id 'orders' was used with atomicity=\"{theirs}\"")
    assert f'this is atomicity="{ours}": there the ledger holds {there}' in text
    assert f'go on with atomicity="{theirs}"; or a new sink_id, with on_missing_led' in text
    assert "wholly committed" in text
    with pytest.raises(LedgerError, match=r"a new sinkId, with onMissingLedger="):
        with naming_options():
            check_one_atomicity(LEDGER, view, ours)


@pytest.mark.parametrize("atomicity", ["batch", "partition"])
def test_where_both_have_written_only_a_new_id_is_named(atomicity):
    both = LedgerView(PlanEntry(3, "q", 2), {0: ENTRY}, ENTRY)
    with pytest.raises(LedgerError, match=r"Way out: \(both .*\) a new sink_id") as caught:
        check_one_atomicity(LEDGER, both, atomicity)
    assert "go on with" not in str(caught.value)


# --- whole batches -------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_id", [0, 4, 5])
def test_whole_batches_are_refused_after_partitions_without_fencing(monkeypatch, batch_id):
    monkeypatch.setattr(BatchTransactions, "_take", lambda _: pytest.fail("fenced"))
    batches = BatchTransactions(FakeLedger(OF_PARTITIONS), ANYTHING, lambda *_: None)
    with pytest.raises(LedgerError, match="the sink id 'orders' was used"):
        batches.enter(LedgerBatch(batch_id, "q", 2), SETTINGS)


def test_whole_batches_stop_where_the_other_atomicity_came_meanwhile(monkeypatch):
    views = [OF_WHOLE_BATCHES, OF_WHOLE_BATCHES, LedgerView(PlanEntry(1, "q", 2), {}, ENTRY)]
    batches = BatchTransactions(FakeLedger(*views), ANYTHING, lambda *_: None)
    monkeypatch.setattr(BatchTransactions, "_take", lambda _: object())
    assert batches.enter(LedgerBatch(5, "q", 2), SETTINGS) is None
    with pytest.raises(LedgerError, match="the sink id 'orders' was used"):
        batches.enter(LedgerBatch(6, "q", 2), SETTINGS)


# --- partitions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_id", [0, 4, 5])
def test_partitions_are_refused_after_whole_batches_without_fencing(runs, batch_id):
    make, taken = runs
    with pytest.raises(LedgerError, match="the sink id 'orders' was used"):
        make(OF_WHOLE_BATCHES).enter(LedgerBatch(batch_id, "q", 2), SETTINGS)
    with pytest.raises(LedgerError, match="the sink id 'orders' was used"):
        make(OF_WHOLE_BATCHES).enter_commit(LedgerBatch(batch_id, "q", 2), SETTINGS)
    assert taken == []


@pytest.mark.parametrize("call", ["enter", "enter_commit"])
def test_partitions_plan_nothing_where_a_whole_batch_came_at_the_last_moment(runs, call):
    make, taken = runs
    sink = make(LedgerView(None, {}, None), OF_WHOLE_BATCHES)
    with pytest.raises(LedgerError, match="the sink id 'orders' was used"):
        getattr(sink, call)(LedgerBatch(0, "q", 2), SETTINGS)
    assert taken == ["orders.plan"]


@pytest.mark.parametrize("call", ["enter", "enter_commit"])
def test_partitions_write_nothing_where_a_whole_batch_came_with_their_plan(runs, call):
    make, taken = runs
    nothing = LedgerView(None, {}, None)
    planned = LedgerView(PlanEntry(1, "q", 2), {}, ENTRY)
    with pytest.raises(LedgerError, match="the sink id 'orders' was used"):
        getattr(make(nothing, nothing, planned), call)(LedgerBatch(0, "q", 2), SETTINGS)
    assert taken == ["orders.plan", "commit", "orders.batch"]


def test_no_id_of_a_part_is_taken_where_another_driver_began_while_whole_batches_are_shut_out(
    runs,
):
    make, taken = runs
    nothing, theirs = LedgerView(None, {}, None), LedgerView(PlanEntry(2, "q", 2), {}, None)
    with pytest.raises(StaleRunError, match="run 2 of query q has begun"):
        make(nothing, nothing, theirs).enter(LedgerBatch(0, "q", 2), SETTINGS)
    assert taken == ["orders.plan", "commit", "orders.batch"]


@pytest.mark.parametrize("call", ["enter", "enter_commit"])
def test_whole_batches_are_shut_out_until_a_partition_has_an_entry(runs, call):
    # The first plan alone is not enough, since its driver may die right after it.
    make, taken = runs
    plan = PlanEntry(1, "q", 2)
    for entries, is_shut_out in (({}, True), ({1: replace(ENTRY, batch_id=0)}, False)):
        taken.clear()
        with suppress(StaleRunError):  # the fake ledger does not hold the plan that is committed
            getattr(make(LedgerView(plan, entries, None)), call)(LedgerBatch(1, "q", 2), SETTINGS)
        assert taken[:2] == ["orders.plan", "commit"]
        assert ("orders.batch" in taken) == is_shut_out


def test_a_task_of_the_data_source_takes_no_id_after_whole_batches():
    writer = PartWriter(FakeLedger(OF_WHOLE_BATCHES), ANYTHING, SETTINGS, RowReader("topic"))
    with pytest.raises(LedgerError, match="the sink id 'orders' was used"):
        writer.write(0, 0, "q", [])
