"""Named runs of prepared parts: their entries, and the batches that have to wait for one."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from tests.spark.fake_topic import FakeCluster
from txnproducer.admin import LogRecord
from txnproducer.records import ProducerIdAndEpoch
from txnproducer.spark import LedgerError, PartialReplayError, ReplayMismatchError, TornBatchError
from txnproducer.spark.driver.kept_producer import KeptProducer
from txnproducer.spark.driver.small_run import SmallRun
from txnproducer.spark.ledger import named_runs, topic_ledger
from txnproducer.spark.ledger.decided_runs import (
    check_nothing_torn,
    find_run,
    open_parts,
    state_of,
)
from txnproducer.spark.ledger.decisions import Decision, parse_one
from txnproducer.spark.ledger.digest import total
from txnproducer.spark.ledger.entries import Found, LedgerBatch, LedgerEntry, PlanEntry
from txnproducer.spark.ledger.named_runs import read_run_parts, write_part, write_run
from txnproducer.spark.ledger.rules import LedgerRules
from txnproducer.spark.ledger.store import Ledger
from txnproducer.spark.ledger.topic_ledger import TopicLedger, is_record_of_ledger
from txnproducer.spark.rows.schema import RowReader
from txnproducer.spark.tasks.partition_transaction import BatchPlan

MONDAY = LedgerBatch(0, "q", 3, "monday")
PARTS = {slot: ProducerIdAndEpoch(100 + slot, 4) for slot in range(3)}
DECISION = Decision(5, MONDAY, True, PARTS)
DAY_MS = 24 * 3600 * 1000
NOW_MS = int(time.time() * 1000)
DIGESTS = [f"{slot + 1:032x}" for slot in range(3)]


@pytest.fixture
def cluster(monkeypatch):
    cluster = FakeCluster()
    monkeypatch.setattr(topic_ledger, "log_of", lambda *_: cluster)
    monkeypatch.setattr(Ledger, "_offsets", lambda *_, **__: {})
    return cluster


@pytest.fixture
def ledger():
    return TopicLedger("nowhere:9092", "sink", "orders", {}, "books")


def part_of(slot, **changes):
    entry = LedgerEntry(0, "q", 3, 10 + slot, DIGESTS[slot], decision=5, run_id="monday", at_ms=7)
    return replace(entry, **changes)


def decide(cluster, ledger, ended, decision=DECISION, **changes):
    """Let a run be decided, and some of its parts be ended."""
    whole = LedgerEntry(0, "q", 3, 33, total(DIGESTS), decision=decision.number, run_id="monday")
    ledger.write_decision(cluster, decision)
    write_run(ledger, cluster, "monday", replace(whole, **changes))
    for slot in ended:
        write_part(ledger, cluster, slot, part_of(slot, decision=decision.number))


def find(ledger, batch=MONDAY, **how):
    return state_of(ledger, ledger.read_decision(), batch, takes_over=False, **how)


# --- what is stored ------------------------------------------------------------------------------


def test_the_parts_of_named_runs_have_keys_beside_those_of_numbers(cluster, ledger):
    ledger.write_moved(cluster)
    number = LedgerEntry(4, "q", 1, 7, "0" * 32, decision=0)
    write_part(ledger, cluster, 0, number)
    write_part(ledger, cluster, 0, part_of(0))
    write_part(ledger, cluster, 2, part_of(2))
    assert set(cluster.topic) == {"moved", "p0", "p0.run", "p2.run"}
    assert ledger.read_entries([0, 1, 2]) == {0: number}
    found = read_run_parts(ledger, [0, 1, 2])
    assert found == {0: part_of(0), 2: part_of(2)}
    assert {(one.run_id, one.decision) for one in found.values()} == {("monday", 5)}
    assert ledger.known_partitions() == [0]


def test_the_texts_stay_as_they_are_since_they_outlive_the_program(cluster, ledger):
    decide(cluster, ledger, [0], at_ms=8)
    assert json.loads(cluster.topic["decision"].value)["batch"] == [0, "q", 3, "monday"]
    assert json.loads(cluster.topic["p0.run"].value) == {
        "number": 0,
        "sink": "sink",
        "v": 1,
        "query": "q",
        "writers": 3,
        "rows": 10,
        "digest": DIGESTS[0],
        "at": 7,
        "decision": 5,
        "run": "monday",
    }
    assert json.loads(cluster.topic["run:monday"].value)["decision"] == 5
    assert parse_one(Found("the topic", DECISION.as_one())) == DECISION


def test_each_record_of_a_ledger_is_recognised():
    for key in ("plan", "decision", "batch", "p3", "p3.run", "run:x", "moved", "plan.0"):
        assert is_record_of_ledger(LogRecord(0, 0, key.encode(), b'{"number":1,"v":1}'))
    for key in ("", "p", "p.run", "pay", "p3.rum", "decisions"):
        assert not is_record_of_ledger(LogRecord(0, 0, key.encode(), b'{"number":1,"v":1}'))


def test_a_run_that_is_written_again_when_it_is_old_is_not_forgotten_at_once(cluster, ledger):
    long_ago = LedgerEntry(0, "other", 1, 1, DIGESTS[0], decision=0)
    for name in ("monday", "tuesday"):
        write_run(ledger, cluster, name, replace(long_ago, run_id=name))
        commit_at(cluster, f"run:{name}", 1)
    write_run(ledger, cluster, "wednesday", long_ago)
    commit_at(cluster, "run:wednesday", NOW_MS)
    decide(cluster, ledger, [0, 1, 2])  # as after on_foreign_ledger="take_over"
    assert find(ledger).whole is not None
    assert named_runs.read_run(ledger, "tuesday") is None


@pytest.mark.parametrize("ahead", ["the driver", "the brokers"])
def test_no_run_is_forgotten_by_one_clock_that_is_wrong(cluster, ledger, ahead, monkeypatch):
    entry = LedgerEntry(0, "q", 1, 1, DIGESTS[0], decision=0)
    later_ms = NOW_MS + 2 * ledger.keeps_days * DAY_MS
    if ahead == "the driver":
        monkeypatch.setattr("time.time", lambda: later_ms / 1000)
    for name, at_ms in (("monday", NOW_MS), ("tuesday", later_ms), ("wednesday", later_ms)):
        write_run(ledger, cluster, name, entry)
        commit_at(cluster, f"run:{name}", at_ms if ahead == "the brokers" else NOW_MS)
    assert named_runs.read_run(ledger, "monday") is not None


def commit_at(cluster, key, at_ms):
    """Let a record have been committed at a time, by the brokers' clock."""
    cluster.topic[key] = replace(cluster.topic[key], at_ms=at_ms)


# --- the state of a run --------------------------------------------------------------------------


def test_a_run_is_decided_if_its_entry_is_there(cluster, ledger):
    assert find(ledger).entry is None
    write_part(ledger, cluster, 0, part_of(0))
    assert find(ledger).entry is None
    decide(cluster, ledger, [0, 1, 2])
    state = find(ledger)
    assert (state.whole.rows, state.whole.writers, state.is_torn) == (33, 3, False)
    # In whatever cut it comes again: nothing is written.
    assert find(ledger, replace(MONDAY, writers=7)).whole == state.whole
    assert find(ledger, replace(MONDAY, run_id="sunday")).entry is None


def test_a_run_without_all_its_ends_has_the_parts_that_are_committed(cluster, ledger):
    decide(cluster, ledger, [0, 2])
    state = find(ledger)
    assert (state.whole, state.is_torn, state.done) == (None, True, {0: part_of(0), 2: part_of(2)})
    with pytest.raises(PartialReplayError, match=r"batch monday is committed in part: 2 part"):
        find(ledger, replace(MONDAY, writers=4))


def test_a_run_of_which_nothing_is_visible_may_be_cut_otherwise(cluster, ledger):
    decide(cluster, ledger, [])
    for writers in (1, 3, 4):
        state = find(ledger, replace(MONDAY, writers=writers))
        assert (state.whole, state.is_torn, state.done) == (None, True, {})


@pytest.mark.parametrize(
    "stale",
    [{"decision": 4}, {"run_id": "sunday"}, {"query_id": "other"}, {"decision": None}],
    ids=["decision", "run", "query", "none"],
)
def test_an_entry_of_another_decision_shows_nothing(cluster, ledger, stale):
    decide(cluster, ledger, [0, 1, 2])
    write_part(ledger, cluster, 1, part_of(1, **stale))
    assert open_parts(ledger, DECISION) == [1]


def test_a_second_decision_completes_the_first(cluster, ledger):
    decide(cluster, ledger, [0])
    rest = replace(DECISION, number=6, parts={1: PARTS[1], 2: PARTS[2]})
    decide(cluster, ledger, [1], rest)
    state = find(ledger)
    assert state.is_torn
    assert set(state.done) == {0, 1}
    write_part(ledger, cluster, 2, part_of(2, decision=6))
    assert find(ledger).whole.rows == 33


def test_the_rows_that_complete_a_run_are_those_that_were_decided(cluster, ledger):
    decide(cluster, ledger, [0])
    state = find(ledger)
    contents = [(10 + slot, DIGESTS[slot]) for slot in (2, 0, 1)]
    state.check_rows(contents, "warn")
    with pytest.raises(ReplayMismatchError, match="batch monday comes again with other rows"):
        state.check_rows([*contents[:2], (11, "f" * 32)], "warn")
    state.check_rows([], "keep")


# --- other batches -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other", [LedgerBatch(0, "q", 1, "tuesday"), LedgerBatch(7, "q", 1)], ids=["name", "number"]
)
def test_another_batch_waits_until_a_decided_run_is_whole(cluster, ledger, other):
    decide(cluster, ledger, [1])
    with pytest.raises(TornBatchError, match=r"run monday is decided, and 2 of its 3 parts \(0, "):
        check_nothing_torn(ledger, DECISION, other)
    check_nothing_torn(ledger, DECISION, replace(MONDAY, writers=9))
    check_nothing_torn(ledger, DECISION, replace(other, query_id="other"))
    for slot in (0, 2):
        write_part(ledger, cluster, slot, part_of(slot))
    check_nothing_torn(ledger, DECISION, other)


def test_a_run_that_was_written_again_by_its_own_commit_stops_nothing(cluster, ledger):
    decide(cluster, ledger, [])
    small = LedgerEntry(0, "q", 1, 33, total(DIGESTS), decision=0, run_id="monday")
    write_run(ledger, cluster, "monday", small)
    assert find(ledger).whole == small
    check_nothing_torn(ledger, DECISION, LedgerBatch(0, "q", 1, "tuesday"))


def test_another_querys_run_counts_only_until_it_is_taken_over(cluster, ledger):
    decide(cluster, ledger, [0, 1, 2])
    theirs = replace(MONDAY, query_id="other")
    with pytest.raises(LedgerError, match=r"another query: its ledger holds batch monday"):
        find_run(ledger, theirs, takes_over=False)
    assert find_run(ledger, theirs, takes_over=True) is None


def test_a_small_run_finds_its_own_commit_and_no_other(cluster, ledger):
    plan = BatchPlan(ledger, LedgerRules(), {}, RowReader("orders"), 0, "q", 1, 1, run_id="monday")
    ledger.write_plan(cluster, PlanEntry(1, "q", 1, is_prepared=True))
    kept = KeptProducer(ledger, "sink.p0")
    attempt = SmallRun(plan, [], kept, lambda: None)
    decide(cluster, ledger, [])
    assert attempt._look()[1] is None, "the driver has found that all its parts were lost"
    attempt._write_entry(cluster, (33, total(DIGESTS)))
    assert attempt._look()[1] == find(ledger).whole
    write_run(ledger, cluster, "monday", replace(find(ledger).whole, query_id="other"))
    assert attempt._look()[1] is None
