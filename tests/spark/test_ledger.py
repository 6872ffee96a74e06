"""The rules of the ledger: entries that fit a batch, and those that stop it before any row."""

from __future__ import annotations

import pytest

from txnproducer.admin import committed_offsets
from txnproducer.errors import UnstableOffsetCommitError
from txnproducer.records import OffsetAndMetadata
from txnproducer.spark.errors import (
    LedgerError,
    PartialReplayError,
    ReplayMismatchError,
    TornBatchError,
)
from txnproducer.spark.ledger import store
from txnproducer.spark.ledger.digest import total
from txnproducer.spark.ledger.entries import MOST_METADATA_BYTES, LedgerEntry, PlanEntry
from txnproducer.spark.ledger.rules import (
    LedgerRules,
    added_up,
    check_without_frame,
    is_whole,
)
from txnproducer.spark.ledger.store import Ledger

LEDGER = Ledger("127.0.0.1:9092", "orders", "topic", {})


def entry(batch_id, writers=2, query="q", rows=10):
    return LedgerEntry(batch_id, query, writers, rows, "d" * 32)


def check(entries, batch_id, writers=2, **rules):
    return LedgerRules(**rules).check(entries, batch_id, "q", writers)


def test_ids_and_groups_are_named_after_sink_and_partition():
    assert LEDGER.transactional_id(3) == "orders.p3"
    assert LEDGER.group(3) == "__txn.orders.p3"


def test_an_entry_is_read_back_as_it_was_written():
    assert LedgerEntry.parse("group", entry(7).stored()) == entry(7)
    plan = PlanEntry(3, "q", 8)
    assert PlanEntry.parse("group", plan.stored()) == plan


def test_stored_entries_can_be_read_by_earlier_versions():
    metadata = '{"v":1,"query":"q","writers":2,"rows":10,"digest":"%s"}' % ("d" * 32)
    assert entry(7).stored() == OffsetAndMetadata(7, metadata)
    plan = '{"v":1,"query":"q","most_writers":8}'
    assert PlanEntry(3, "q", 8).stored() == OffsetAndMetadata(3, plan)


def test_an_entry_never_exceeds_the_brokers_limit():
    with pytest.raises(LedgerError, match="query_id is too long"):
        entry(7, query="q" * MOST_METADATA_BYTES).stored()


@pytest.mark.parametrize(
    "metadata",
    [
        "",
        "{}",
        "[]",
        "[" * 4000,
        "not json",
        '{"v":1}',
        '{"v":1,"query":"q","writers":Infinity,"most_writers":Infinity,"rows":1,"digest":""}',
    ],
)
@pytest.mark.parametrize("kind", [LedgerEntry, PlanEntry])
def test_offsets_of_a_consumer_are_not_taken_for_a_ledger(kind, metadata):
    with pytest.raises(
        LedgerError, match=r"^the group G does not hold a ledger's entry \(.+Error"
    ):
        kind.parse("the group G", OffsetAndMetadata(5, metadata))


@pytest.mark.parametrize("more", ['"at":"x"', '"at":null', '"decision":[1]'])
def test_a_field_of_another_kind_is_no_entry(more):
    metadata = entry(7).stored().metadata.replace("}", f",{more}}}")
    with pytest.raises(LedgerError, match="does not hold a ledger's entry"):
        LedgerEntry.parse("group", OffsetAndMetadata(7, metadata))


def asked(ledger):
    """Return each question to a ledger, by the id of the group that is asked first."""
    return {
        "plan": ledger.read,
        "batch": ledger.read_whole,
        "p0": lambda: ledger.read_entries([0]),
        "plan.0": ledger.read_decision,
    }


@pytest.mark.parametrize("name", asked(LEDGER))
def test_an_entry_that_cannot_be_read_is_named_by_group_partition_and_offset(name, monkeypatch):
    stored = {LEDGER.place: OffsetAndMetadata(41, "x" * 4000)}
    questions = []

    def offsets(servers, groups, *_, **__):
        questions.append(list(groups))
        return {group: stored for group in groups if group == f"__txn.orders.{name}"}

    monkeypatch.setattr(store, "committed_offsets", offsets)
    told = (
        rf"^the group __txn\.orders\.{name}, partition 0 of the topic topic, offset 41, does not"
        r" hold .* \(JSONDecodeError: .*Ways out: .*on_missing_ledger"
    )
    with pytest.raises(LedgerError, match=told) as found:
        asked(LEDGER)[name]()
    assert found.value.recovery == "fix"
    assert len(questions) == 1, "another attempt finds the same"
    assert len(str(found.value)) < 1200, "the beginning of the text is enough"


def test_an_entry_that_stays_undecided_is_named_by_its_groups():
    def ask(*_, **__):
        raise UnstableOffsetCommitError("failed for partition 0")

    names = [f"g{number}" for number in range(1000)]
    told = r"one of the groups g0, g1, .*, g9 and 990 more, and .* in 5 s \(failed for partition 0"
    with pytest.raises(UnstableOffsetCommitError, match=told):
        committed_offsets("servers", names, 5.0, asker=ask)


def test_an_entry_of_a_later_format_is_refused():
    later = entry(7).stored().metadata.replace('"v":1', '"v":2')
    with pytest.raises(LedgerError, match="format 2"):
        LedgerEntry.parse("group", OffsetAndMetadata(7, later))


def test_a_first_batch_needs_no_ledger():
    assert check({}, 0) == {}


def test_batches_may_be_counted_by_date_from_any_first_one_on():
    for batch_id in (0, 20260331, 20260402):
        with pytest.raises(LedgerError, match=f"no ledger.*first_batch_id={batch_id}, for good"):
            check({}, batch_id, first_batch_id=20260401)
    assert check({}, 20260401, first_batch_id=20260401) == {}
    first = {1: entry(20260401)}
    assert check(first, 20260401, first_batch_id=20260401) == first, "broken off, and completed"
    assert LedgerRules(first_batch_id=7).check_whole(None, 7, "q", is_taken_over=False) is None
    with pytest.raises(LedgerError, match="no ledger"):
        LedgerRules(first_batch_id=7).check_whole(None, 8, "q", is_taken_over=False)


def test_the_batch_after_the_last_one_is_new():
    assert check({0: entry(4), 1: entry(4)}, 5) == {}


def test_a_batch_that_every_partition_holds_is_a_replay():
    done = {0: entry(5), 1: entry(5)}
    assert check(done, 5) == done


def test_a_broken_off_batch_is_known_by_the_partitions_that_hold_it():
    assert check({0: entry(5), 1: entry(4)}, 5) == {0: entry(5)}


@pytest.mark.parametrize("writers", [1, 2, 4])
def test_a_broken_off_batch_cut_in_another_way_stops_and_names_the_written_partitions(writers):
    entries = {0: entry(5, writers=3), 2: entry(5, writers=3)}
    told = (
        r"batch 5 is committed in part: 2 .* 20 rows of it.*written by \[3\].*keep. does not help"
    )
    with pytest.raises(PartialReplayError, match=told):
        check(entries, 5, writers)


@pytest.mark.parametrize("writers", [1, 2, 4])
def test_a_batch_that_is_wholly_committed_is_a_replay_however_it_is_cut_now(writers):
    entries = {p: entry(5, writers=3) for p in range(3)}
    done = check(entries, 5, writers)
    assert done == entries
    assert is_whole(done)
    assert added_up(done) == LedgerEntry(5, "q", 3, 30, total(["d" * 32] * 3))


def test_a_batch_that_is_not_whole_is_not_taken_for_it():
    for partitions in ((0,), (0, 2), (1, 2), (1, 2, 3)):
        assert not is_whole({p: entry(5, writers=3) for p in partitions})
    assert not is_whole({})
    assert not is_whole({0: entry(5, writers=2), 1: entry(5, writers=3)})


def test_without_a_frame_a_batch_that_can_not_be_compared_stops():
    whole = {p: entry(5, writers=3) for p in range(3)}
    check_without_frame(5, {}, 3)
    check_without_frame(5, whole, 3)
    with pytest.raises(ReplayMismatchError, match=r"wholly committed, by 3 .* are 2.*writers=3"):
        check_without_frame(5, whole, 2)
    with pytest.raises(PartialReplayError, match=r"in part: 1 .*without the frame"):
        check_without_frame(5, {0: entry(5, writers=3)}, 3)


def test_another_querys_ledger_stops_the_batch():
    with pytest.raises(LedgerError, match=r"belongs to another query.*take_over"):
        check({0: entry(4, query="other"), 1: entry(4)}, 5)


def test_another_querys_plan_stops_the_batch():
    plan = PlanEntry(2, "other", 4)
    LedgerRules().check_plan(plan, "other")
    LedgerRules(on_foreign_ledger="take_over").check_plan(plan, "q")
    with pytest.raises(LedgerError, match="plan is run 2 of query other"):
        LedgerRules().check_plan(plan, "q")


def test_a_ledger_ahead_of_the_batch_stops_it():
    with pytest.raises(LedgerError, match="committed batch 9 already, this is batch 5"):
        check({0: entry(9), 1: entry(4)}, 5)


def test_taking_over_counts_foreign_and_later_entries_as_none():
    entries = {0: entry(9), 1: entry(5, query="other")}
    assert check(entries, 5, on_foreign_ledger="take_over") == {}


def test_no_ledger_at_all_after_the_first_batch_stops_the_query():
    with pytest.raises(LedgerError, match=r"no ledger.*on_missing_ledger"):
        check({}, 5)
    assert check({}, 5, on_missing_ledger="write") == {}


def test_a_lost_ledger_of_a_partition_of_the_batch_before_stops_the_query():
    with pytest.raises(TornBatchError, match=r"ledgers of \[1\] have expired.*on_missing_ledger"):
        check({0: entry(4, writers=2)}, 5)
    assert check({0: entry(4, writers=2)}, 5, on_missing_ledger="write") == {}


def test_an_expired_entry_of_the_batch_itself_is_not_taken_for_unwritten():
    entries = {1: entry(5, writers=3), 2: entry(5, writers=3)}
    with pytest.raises(LedgerError, match=r"batch 5 is committed in part.* of \[0\] are missing"):
        check(entries, 5, writers=3)
    assert check(entries, 5, writers=3, on_missing_ledger="write") == entries
    # A first batch has nothing before it; after a batch with fewer partitions some are new.
    first = {1: entry(0, writers=3)}
    assert check(first, 0, writers=3) == first
    for before in (4, 2):  # that they are counted by date, or not on Sundays, makes no difference
        grown = {0: entry(before, writers=1), 1: entry(5, writers=3)}
        assert check(grown, 5, writers=3) == {1: entry(5, writers=3)}


@pytest.mark.parametrize("batch_id", [5, 9, 20260403])
def test_a_torn_batch_is_not_overtaken(batch_id):
    torn = {0: entry(4, writers=3), 1: entry(3, writers=3), 2: entry(4, writers=3)}
    told = (
        r"batch 4 is committed in part: 2 of its 3 partitions \(0, 2\) hold 20 rows of it, and "
        rf"\[1\] do not.*Nothing of batch {batch_id} .*write batch 4 again first.*in 3 partitions"
    )
    for rules in ({}, {"on_missing_ledger": "write"}, {"on_foreign_ledger": "take_over"}):
        with pytest.raises(TornBatchError, match=told) as caught:
            check(torn, batch_id, writers=3, **rules)
        assert "on_missing_ledger" not in str(caught.value), "nothing is missing"
    assert check(torn, 4, writers=3) == {0: torn[0], 2: torn[2]}, "it can be completed"


def test_the_newest_earlier_batch_counts_alone():
    # With fewer partitions than before, the others keep their entries.
    shrunk = {0: entry(4, writers=2), 1: entry(4, writers=2), 2: entry(3, writers=4)}
    assert check(shrunk, 5) == {}
    # An earlier version has let batch 5 overtake batch 4: nothing can complete that any more.
    assert check({0: entry(5), 1: entry(3)}, 5) == {0: entry(5)}
    overtaken = {0: entry(5, writers=1), 1: entry(4, writers=3)}
    assert check(overtaken, 6, writers=1) == {}


def test_entries_taken_over_from_another_query_do_not_make_a_batch_whole():
    entries = {0: entry(0), 1: entry(7, query="other")}
    with pytest.raises(TornBatchError):
        check(entries, 1, on_foreign_ledger="take_over", on_missing_ledger="write")
    # Nor is a batch torn whose partitions are ahead, by a checkpoint that was set back.
    ahead = {0: entry(9), 1: entry(3)}
    assert check(ahead, 4, on_foreign_ledger="take_over") == {}


def test_a_partition_that_was_never_used_is_no_error():
    assert check({0: entry(4, writers=1)}, 5, writers=3) == {}
