"""Runs of the Spark sink on a real broker, without Spark: tasks of earlier runs commit nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from integration.readers import read_with_confluent, values
from txnproducer import TransactionalProducer, TransactionParticipant, admin
from txnproducer.errors import KafkaError
from txnproducer.spark import (
    LedgerError,
    ReplayMismatchError,
    StaleRunError,
)
from txnproducer.spark.driver.runs import Runs
from txnproducer.spark.errors import BatchFailedError
from txnproducer.spark.ledger.digest import Digest
from txnproducer.spark.ledger.entries import LedgerBatch
from txnproducer.spark.ledger.slots import assign_slots
from txnproducer.spark.tasks.participant import Part

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


class Row(tuple):
    """As Spark's, of one column."""

    __slots__ = ()
    __fields__ = ("value",)

    def __getitem__(self, name):
        return tuple.__getitem__(self, self.__fields__.index(name))


ROWS = [Row((f"value {n}",)) for n in range(10)]


def enter(sink, batch_id=0, writers=2, query_id="query"):
    """Begin a batch, and return the plan for its tasks."""
    plan, _ = sink._batches.plan(LedgerBatch(batch_id, query_id, writers))
    return plan


def write_all(plan):
    for partition in range(plan.writers):
        plan.write(partition, plan.rows(ROWS))


def delete_group(kafka, name):
    with admin.connect(kafka.bootstrap_servers) as client:
        client.delete_groups([name])


def committed(kafka, topic):
    return len(values(read_with_confluent(kafka.bootstrap_servers, topic)))


@pytest.mark.parametrize("partition", [1, 5])
def test_a_task_of_an_earlier_run_that_wakes_writes_nothing(kafka, topic, make_sink, partition):
    before = enter(make_sink(), writers=8)
    after = enter(make_sink(), writers=4)
    with pytest.raises(StaleRunError, match=r"this is run 1 .* run 2 "):
        before.write(partition, before.rows(ROWS))
    write_all(after)
    assert committed(kafka, topic) == 40


def test_a_waking_task_of_an_earlier_batch_writes_nothing_after_a_take_over(
    kafka, topic, make_sink
):
    # In one run nobody fences it: an attempt that Spark gave up, and that only slept.
    write_all(enter(make_sink(query_id="old"), query_id="old"))
    sink = make_sink(on_foreign_ledger="take_over")
    asleep = enter(sink)
    write_all(asleep)
    sink._batches.runs.batch_done()
    write_all(enter(sink, 1))
    sink._batches.runs.batch_done()
    with pytest.raises(LedgerError, match="has committed batch 1 already, this is batch 0"):
        asleep.write(1, asleep.rows(ROWS))
    write_all(enter(sink, 2))
    assert committed(kafka, topic) == 80


@pytest.mark.parametrize("partition", [1, 5])
def test_a_task_of_an_earlier_run_that_is_about_to_commit_is_shut_out(
    kafka, topic, make_sink, partition
):
    seen: list[Any] = []

    def take_over(name, info):
        if name == "task_before_commit" and info["partition"] == partition and not seen:
            seen.append(enter(make_sink(), writers=4))

    before = enter(make_sink(on_event=take_over), writers=8)
    with pytest.raises(KafkaError):
        before.write(partition, before.rows(ROWS))
    assert committed(kafka, topic) == 0
    write_all(seen[0])
    assert committed(kafka, topic) == 40


# --- slots: a batch that was broken off, and is numbered otherwise now ---------------------------

PARTS = ([Row(("a",))], [Row(("b",))], [Row(("c",))])


def complete(sink, parts):
    """Enter batch 0 again, and return the plan for its tasks, as `write` does it."""
    plan, done = sink._batches.plan(LedgerBatch(0, "query", len(parts)))
    found = {}
    for number, rows in enumerate(parts):
        source = plan.rows(rows)
        source.read()
        found[number] = source.digest.count, source.digest.hex()
    return replace(plan, slots=assign_slots(0, done, found, "stop"))


def written(kafka, topic):
    return sorted(values(read_with_confluent(kafka.bootstrap_servers, topic)))


def test_tasks_take_the_ids_of_their_slots(kafka, topic, make_sink):
    before = enter(make_sink(), writers=3)
    before.write(0, before.rows(PARTS[0]))
    now = PARTS[1], PARTS[2], PARTS[0]
    plan = complete(make_sink(), now)
    assert {part: slot.number for part, slot in plan.slots.items()} == {2: 0, 0: 2, 1: 1}
    with TransactionalProducer(kafka.bootstrap_servers, plan.ledger.transactional_id(2)) as older:
        older.init_transactions()
        last = plan.write(0, plan.rows(now[0]))
        with pytest.raises(KafkaError), older.transaction():
            older.send(topic, b"of an attempt that is fenced")
    first = plan.write(2, plan.rows(now[2]))
    assert (first.is_replay, last.is_replay) == (True, False)
    # A second crash, and another numbering.
    now = PARTS[2], PARTS[0], PARTS[1]
    plan = complete(make_sink(), now)
    reports = [plan.write(part, plan.rows(rows)) for part, rows in enumerate(now)]
    assert [report.is_replay for report in reports] == [False, True, True]
    assert written(kafka, topic) == [b"a", b"b", b"c"]
    assert sorted(plan.ledger.read(range(3))[1]) == [0, 1, 2]


def test_a_task_that_has_other_rows_than_were_read_commits_nothing(kafka, topic, make_sink):
    before = enter(make_sink(), writers=3)
    before.write(1, before.rows(PARTS[1]))
    plan = complete(make_sink(), PARTS)
    with pytest.raises(ReplayMismatchError, match="partition 0 has changed between two passes"):
        plan.write(0, plan.rows(PARTS[2]))
    with pytest.raises(ReplayMismatchError, match=r"Partition 1: 1 rows .* were committed, now"):
        plan.write(1, plan.rows(PARTS[0]))
    assert written(kafka, topic) == [b"b"]
    assert list(plan.ledger.read(range(3))[1]) == [1]
    plan = complete(make_sink(), PARTS)
    kept = replace(plan, rules=replace(plan.rules, on_replay_mismatch="keep"))
    for part, rows in ((0, PARTS[2]), (1, PARTS[0]), (2, PARTS[2])):
        kept.write(part, kept.rows(rows))
    assert written(kafka, topic) == [b"b", b"c", b"c"]


def test_a_slot_that_was_committed_and_is_empty_now_is_not_written_again(kafka, topic, make_sink):
    before = enter(make_sink(), writers=3)
    before.write(1, before.rows(PARTS[1]))
    plan = complete(make_sink(), PARTS)
    delete_group(kafka, plan.ledger.group(1))
    with pytest.raises(BatchFailedError, match="batch 0 in the ledger of 1, and now it is not"):
        plan.write(1, plan.rows(PARTS[1]))
    assert written(kafka, topic) == [b"b"]


@pytest.mark.parametrize("partition", range(3))
def test_a_task_of_an_earlier_run_commits_nothing_once_slots_are_assigned(
    kafka, topic, make_sink, partition
):
    # It has written its rows, which another partition has now, and wakes before its commit.
    now = PARTS[1], PARTS[2], PARTS[0]
    begun: list[Any] = []

    def begin_again(name, info):
        if name == "task_before_commit" and info["partition"] == partition and not begun:
            begun.append(complete(make_sink(), now))

    before = enter(make_sink(on_event=begin_again), writers=3)
    other = (partition + 1) % 3
    before.write(other, before.rows(PARTS[other]))
    with pytest.raises(KafkaError):
        before.write(partition, before.rows(PARTS[partition]))
    with pytest.raises(StaleRunError):
        before.write(partition, before.rows(PARTS[partition]))
    plan = begun[0]
    assert [slot.is_committed for slot in plan.slots.values()].count(True) == 1
    for part, rows in enumerate(now):
        plan.write(part, plan.rows(rows))
    with pytest.raises(StaleRunError):
        before.write(partition, before.rows(PARTS[partition]))
    assert written(kafka, topic) == [b"a", b"b", b"c"]


def test_an_attempt_that_lost_its_id_to_its_twin_finds_the_entry_in_its_slot(
    kafka, topic, make_sink
):
    twins: list[Any] = []

    def overtake(name, info):
        if name == "task_before_commit" and not twins:
            twins.append(None)
            twins.append(plan.write(info["partition"], plan.rows(PARTS[1])))

    before = enter(make_sink(), writers=3)
    before.write(0, before.rows(PARTS[0]))
    now = PARTS[1], PARTS[2], PARTS[0]
    plan = complete(make_sink(on_event=overtake), now)
    report = plan.write(0, plan.rows(PARTS[1]))
    assert (report.is_replay, twins[1].is_replay) == (True, False)
    assert written(kafka, topic) == [b"a", b"b"]


def test_a_refresh_commits_no_entry_again_if_a_run_has_begun_meanwhile(make_sink, monkeypatch):
    # The commit of a data source, which may have put an entry of this slot under another id.
    sink = make_sink()
    write_all(enter(sink))
    sink._batches.runs.batch_done()
    read = type(sink._ledger).read
    begun: list[None] = []

    def begin_at_the_first_look_of_a_slot(ledger, partitions=(), **how):
        found = list(partitions)
        if how.get("waits_for_undecided", True) and found and not begun:
            begun.append(None)
            enter(make_sink(), 1)
        return read(ledger, found, **how)

    monkeypatch.setattr(type(sink._ledger), "read", begin_at_the_first_look_of_a_slot)
    with pytest.raises(StaleRunError, match=r"this is run 1 .* run 2 "):
        sink._batches.runs.refresh("query", sink._cluster.producer_settings())
    assert begun


@pytest.mark.parametrize("has_plan", [True, False])
def test_another_query_is_stopped_before_it_fences_a_producer(kafka, topic, make_sink, has_plan):
    refused: list[LedgerError] = []

    def intrude(name, info):
        if name == "task_before_commit":
            if not has_plan:  # as of a version that had none
                delete_group(kafka, plan.ledger.plan_group)
            with pytest.raises(LedgerError, match="belongs to another query") as caught:
                enter(make_sink(query_id="other"), query_id="other")
            refused.append(caught.value)

    sink = make_sink(on_event=intrude)
    if not has_plan:
        write_all(replace(enter(sink, writers=1), on_event=None))
    plan = enter(sink, 0 if has_plan else 1, writers=1)
    write_all(plan)
    assert len(refused) == 1
    assert committed(kafka, topic) == (10 if has_plan else 20)


def test_another_query_is_stopped_before_it_has_fenced_a_driver_that_plans(make_sink, monkeypatch):
    enter(make_sink())
    usual = Runs._commit
    refused: list[LedgerError] = []

    def commit(runs, producer, plan):
        if not refused:
            with pytest.raises(LedgerError, match="its plan is run 1 of query query") as caught:
                enter(make_sink(query_id="other"), query_id="other")
            refused.append(caught.value)
        usual(runs, producer, plan)

    monkeypatch.setattr(Runs, "_commit", commit)
    assert enter(make_sink()).run == 2


def test_a_query_whose_sink_is_taken_at_the_last_moment_fences_no_producer(
    kafka, topic, make_sink, monkeypatch
):
    usual = Runs._planning
    begun: list[Any] = []

    def planning(runs, settings):
        if not begun:
            begun.append(None)  # the other one's turn is next
            begun.append(enter(make_sink(query_id="quick"), query_id="quick"))
        return usual(runs, settings)

    monkeypatch.setattr(Runs, "_planning", planning)
    with pytest.raises(LedgerError, match="its plan is run 1 of query quick"):
        enter(make_sink())
    write_all(begun[1])
    assert committed(kafka, topic) == 20


def test_a_run_goes_on_while_batches_are_whole_and_not_after_a_failure(kafka, topic, make_sink):
    sink = make_sink()
    first = enter(sink, 0)
    write_all(first)
    second = enter(sink, 1)
    second.write(0, second.rows(ROWS))  # and the other task fails
    third = enter(sink, 1)
    third.write(1, third.rows(ROWS))
    fourth = enter(sink, 2)
    assert [plan.run for plan in (first, second, third, fourth)] == [1, 1, 2, 2]
    with pytest.raises(StaleRunError):
        second.write(1, second.rows(ROWS))
    assert committed(kafka, topic) == 40


def test_an_entry_that_a_task_left_undecided_is_not_waited_for(kafka, topic, make_sink):
    seen: list[Any] = []

    def enter_again(name, info):
        if name == "task_before_commit" and not seen:
            seen.append(enter(sink, 0))

    sink = make_sink(on_event=enter_again, options={"transactionTimeout": 300_000})
    plan = enter(sink, 0)
    began = time.monotonic()
    with pytest.raises(KafkaError):
        plan.write(0, plan.rows(ROWS))
    assert time.monotonic() - began < 40  # the transaction's own time-out is 300 s
    assert (plan.run, seen[0].run) == (1, 2)
    write_all(seen[0])
    assert committed(kafka, topic) == 20


def test_more_writers_than_ever_are_planned_before_they_write(kafka, topic, make_sink):
    sink = make_sink()
    write_all(enter(sink, 0, writers=1))
    more = enter(sink, 1, writers=3)
    planned, _ = more.ledger.read()
    assert (more.run, planned.run, planned.most_writers) == (1, 1, 3)
    write_all(more)
    write_all(enter(sink, 2, writers=2))
    assert more.ledger.read()[0].most_writers == 3
    assert committed(kafka, topic) == 60


@pytest.mark.parametrize("writers", [1, 3])
def test_a_driver_that_another_one_has_replaced_stops(make_sink, writers):
    old = make_sink()
    write_all(enter(old, 0, writers=1))
    enter(make_sink(), 1, writers=2)
    with pytest.raises(StaleRunError, match="another driver"):
        enter(old, 1, writers=writers)


def test_a_sink_that_has_no_plan_yet_counts_the_partitions_that_have_a_ledger(kafka, make_sink):
    old = enter(make_sink(), 0, writers=5)
    write_all(old)
    delete_group(kafka, old.ledger.plan_group)
    new = enter(make_sink(), 1, writers=2)
    planned, _ = new.ledger.read()
    assert (planned.run, planned.most_writers) == (1, 5)


def write_whole(sink, batch_id):
    """Commit a whole batch as the driver does, without tasks."""
    batch = LedgerBatch(batch_id, "query", 0)
    sink._batches.transactions.enter(batch, sink._cluster.producer_settings())
    sink._batches.transactions.write(batch, lambda *_: [])


def test_a_sink_id_does_not_change_its_atomicity(kafka, topic, make_sink):
    # As after a driver that died after its commit, and a user who then takes the other one.
    anything = {"on_missing_ledger": "write", "on_foreign_ledger": "take_over"}
    first = make_sink()
    write_all(enter(first, 0))
    other = make_sink(atomicity="batch", **anything)
    for batch_id in (0, 1):
        with pytest.raises(LedgerError, match=f"'sink-{topic}' was used with .*batch 0 of query"):
            write_whole(other, batch_id)
    first._batches.runs.batch_done()
    write_all(enter(first, 1))  # it was not fenced
    assert first.status().batch is None
    assert committed(kafka, topic) == 40


def test_a_sink_id_of_whole_batches_does_not_become_one_of_partitions(make_sink):
    anything = {"on_missing_ledger": "write", "on_foreign_ledger": "take_over"}
    first = make_sink(atomicity="batch")
    write_whole(first, 0)
    for batch_id in (0, 1):
        with pytest.raises(LedgerError, match=r'used with atomicity="batch".* batch 0 of query'):
            make_sink(**anything).partition_writer(batch_id, writers=2)
    write_whole(first, 1)
    found = first.status()
    assert (found.atomicity, found.batch.batch_id) == ("batch", 1)
    first.close()


def test_a_driver_that_wakes_in_its_very_first_whole_batch_commits_nothing(
    kafka, topic, make_sink
):
    # Nothing tells of it before it commits: neither a ledger nor a plan.
    asleep, batch = make_sink(atomicity="batch"), LedgerBatch(0, "query", 0)
    settings = asleep._cluster.producer_settings()
    asleep._batches.transactions.enter(batch, settings)
    awake = make_sink()

    def run_tasks(lease, _):
        with TransactionParticipant(lease, 0, kafka.bootstrap_servers) as writer:
            writer.send(topic, b"of the whole batch")
            receipt = writer.receipt()
        write_all(enter(awake))
        return [Part(receipt, 1, 18, Digest().hex(), "", "resume", {})]

    with pytest.raises(LedgerError, match=r'used with atomicity="partition".* batch 0 of query'):
        asleep._batches.transactions.write(replace(batch, writers=1), run_tasks)
    assert committed(kafka, topic) == 20
    assert awake.status().batch is None
    assert asleep._ledger.read_whole() is None
