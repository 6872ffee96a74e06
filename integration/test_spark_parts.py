"""The data source on real brokers, without Spark: tasks open transactions, commits end them."""

from __future__ import annotations

import pickle
import threading
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from integration.readers import end_offset, read_with_confluent, values
from integration.waiting import wait_until
from txnproducer import KafkaError
from txnproducer.spark import (
    LedgerError,
    PartialReplayError,
    ReplayMismatchError,
    TornBatchError,
)
from txnproducer.spark.driver.batch_transactions import BatchTransactions
from txnproducer.spark.driver.part_commits import PartCommits
from txnproducer.spark.driver.part_ends import PartEnds
from txnproducer.spark.errors import BatchFailedError, CommitIncompleteError
from txnproducer.spark.ledger.entries import LedgerBatch
from txnproducer.spark.ledger.producers import take_ids
from txnproducer.spark.ledger.rules import LedgerRules
from txnproducer.spark.ledger.store import Ledger
from txnproducer.spark.rows.schema import RowReader
from txnproducer.spark.tasks.open_part import PartWriter, _OpenPartWriting

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


class Row(tuple):
    """As Spark's, of one column."""

    __slots__ = ()
    __fields__ = ("value",)

    def __getitem__(self, name):
        return tuple.__getitem__(self, self.__fields__.index(name))


def rows(count, first=0):
    return [Row((f"value {n}",)) for n in range(first, first + count)]


def arrow(data):
    """Return rows as the Arrow batches that Spark makes of them."""
    column = pa.array([row["value"] for row in data])
    half = len(data) // 2
    batch = pa.RecordBatch.from_arrays([column], ["value"])
    return [batch.slice(0, half), batch.slice(half)]


def cut(count, writers, first=0):
    """Cut a batch into parts."""
    data = rows(count, first)
    return [data[number::writers] for number in range(writers)]


def expected(count, first=0):
    return sorted(b"value %d" % n for n in range(first, first + count))


# Two that are equal, two that are empty, two that are like no other.
PARTS: tuple[list[Row], ...] = (rows(5), [], rows(7, first=5), rows(5), rows(3, first=12), [])
WRITTEN = sorted([*expected(15), *expected(5)])


def numbered(*order):
    return [PARTS[number] for number in order]


class Query:
    """A streaming query, as far as tasks and commits know of it."""

    def __init__(
        self,
        broker,
        topic,
        query_id="query",
        rules=None,
        on_event=None,
        keep=False,
        timeout_ms=60_000,
    ):
        self.query_id = query_id
        self.ledger = Ledger(broker.servers, f"sink-{topic}", topic, {})
        self.rules = rules or LedgerRules()
        settings = {
            "bootstrap.servers": broker.servers,
            "transaction.timeout.ms": str(timeout_ms),
            "max.block.ms": "20000",
        }
        self.writer = PartWriter(self.ledger, self.rules, settings, RowReader(topic), on_event)
        kept = replace(self.rules, on_replay_mismatch="keep" if keep else "stop")
        self.commits = PartCommits(self.ledger, kept, settings, on_event)

    def task(self, partition, data, batch_id=0):
        """Run a task. Its message goes through pickle, as with Spark."""
        part = self.writer.write(partition, batch_id, self.query_id, data)
        return pickle.loads(pickle.dumps(part))

    def tasks(self, parts, batch_id=0):
        return [self.task(number, data, batch_id) for number, data in enumerate(parts)]

    def batch(self, parts, batch_id=0):
        """Run a whole batch, as Spark does: a commit that fails is followed by an abort."""
        told = self.tasks(parts, batch_id)
        try:
            self.commits.commit(told, batch_id)
        except (KafkaError, Killed):
            self.commits.abort(told)
            raise
        return told

    def entries(self, partitions):
        return self.ledger.read_entries(range(partitions))

    def wait_for_entries(self, count):
        """Wait until so many of six entries are committed. Open transactions do not count."""

        def found():
            return self.ledger.read(range(6), waits_for_undecided=False)[1]

        wait_until(lambda: len(found()) >= count, f"fewer than {count} entries")
        assert len(found()) == count
        return found()


class Killed(BaseException):
    """The end of the process, as far as the commit is concerned."""


def die_at(event, partition=None):
    def hook(name, info):
        if name == event and info.get("partition") == partition:
            raise Killed

    return hook


def die_before_the_end_of(*partitions, behind):
    """Return a hook: the commit dies before some ends, and after so many others."""
    others, are_done = [], threading.Event()
    if not behind:
        are_done.set()

    def hook(name, info):
        if name == "partition_committed":
            others.append(info["partition"])
            if len(others) == behind:
                are_done.set()
        elif name == "partition_before_commit" and info["partition"] in partitions:
            assert are_done.wait(30)
            raise Killed

    return hook


@pytest.fixture
def topic(broker):
    return broker.topic(partitions=2)


@pytest.fixture
def query(broker, topic):
    def make(**arguments):
        return Query(broker, topic, **arguments)

    return make


@pytest.fixture
def seen(broker, topic):
    """Return a call that waits until readers see some values, since markers follow a commit."""

    def look():
        return sorted(values(read_with_confluent(broker.servers, topic)))

    def check(wanted):
        wait_until(lambda: len(look()) >= len(wanted), f"readers do not see {len(wanted)} rows")
        assert look() == wanted

    return check


@pytest.fixture
def nothing_is_open(broker, topic):
    """Return a call that waits until no transaction holds readers back."""

    def check():
        marker = broker.producer(None)
        with marker:
            for partition in range(2):
                marker.send(topic, b"behind", partition=partition)
            marker.flush()
        wait_until(
            lambda: values(read_with_confluent(broker.servers, topic)).count(b"behind") == 2,
            "an open transaction holds readers back",
        )

    return check


# --- batches that end well -----------------------------------------------------------------------


def test_arrow_batches_have_the_digest_of_rows_so_another_spark_version_can_go_on(query, seen):
    with_rows, with_arrow = query(), query()
    with_arrow.writer = replace(with_arrow.writer, takes_arrow=True)
    told = with_arrow.batch([arrow(part) for part in cut(30, 3)])
    assert [part.rows for part in told] == [10, 10, 10]
    seen(expected(30))
    replayed = with_rows.batch(cut(30, 3))
    assert [part.lease for part in replayed] == [None] * 3
    assert [part.digest for part in replayed] == [part.digest for part in told]
    seen(expected(30))


def test_batches_are_committed_and_a_replay_writes_nothing(query, seen):
    told = query().batch(cut(30, 3))
    assert [part.rows for part in told] == [10, 10, 10]
    query().batch(cut(20, 2, first=30), batch_id=1)
    again = query().batch(cut(20, 2, first=30), batch_id=1)
    assert [part.lease for part in again] == [None, None]
    seen(expected(50))


def test_nothing_is_visible_before_the_commit(query, seen):
    told = query().tasks(cut(30, 3))
    seen([])
    query().commits.commit(told, 0)
    seen(expected(30))


def test_empty_parts_and_empty_batches_have_entries(query, seen):
    query().batch([rows(5), [], []])
    query().batch([[]], batch_id=1)
    assert {p: e.batch_id for p, e in query().entries(3).items()} == {0: 1, 1: 0, 2: 0}
    seen(expected(5))


def test_a_commit_that_comes_twice_finds_its_work_done(query, seen):
    told = query().batch(cut(30, 3))
    query().commits.commit(told, 0)
    seen(expected(30))


@pytest.mark.parametrize("is_replay", [False, True])
def test_a_part_that_was_ended_meanwhile_is_found_in_the_ledger(
    query, seen, monkeypatch, is_replay
):
    if is_replay:
        told = query().tasks(PARTS)
        with pytest.raises(Killed):
            query(on_event=die_before_the_end_of(0, 2, behind=4)).commits.commit(told, 0)
    usual = PartEnds.end_one

    def twice(ends, lease):
        assert usual(ends, lease) is None
        # As if the answer had been lost, and somebody had taken the id before it is asked again.
        assert ends.take_all([lease.transactional_id]) == {}
        return usual(ends, lease)

    monkeypatch.setattr(PartEnds, "end_one", twice)
    query().batch(numbered(2, 0, 1, 4, 3, 5) if is_replay else PARTS)
    seen(WRITTEN)


def test_more_and_fewer_partitions_from_batch_to_batch(query, seen):
    for batch_id, writers in enumerate((2, 5, 1, 3)):
        query().batch(cut(20, writers, first=20 * batch_id), batch_id)
    plan, _ = query().ledger.read()
    assert (plan.run, plan.most_writers) == (4, 5)
    seen(expected(80))


# --- attempts that fail --------------------------------------------------------------------------


def test_a_task_that_is_run_again_takes_everything_back(query, seen):
    told = query().tasks(cut(30, 3))
    told[1] = query().task(1, cut(30, 3)[1])
    query().commits.commit(told, 0)
    seen(expected(30))


def test_a_task_whose_rows_fail_leaves_nothing_open(query, seen, nothing_is_open):
    def failing():
        yield from rows(5)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        query().task(0, failing())
    nothing_is_open()
    query().batch([rows(5)])
    seen(sorted([*expected(5), b"behind", b"behind"]))


@pytest.mark.parametrize(
    ("event", "partition"),
    [("batch_before_commit", None), ("partition_committed", 1), ("batch_after_commit", None)],
)
def test_a_commit_that_is_killed_is_completed_by_the_next_attempt(query, seen, event, partition):
    told = query().tasks(cut(60, 6))
    with pytest.raises(Killed):
        query(on_event=die_at(event, partition)).commits.commit(told, 0)
    query().batch(cut(60, 6)[::-1])  # numbered otherwise, as by Spark's own Kafka source
    query().batch(cut(10, 2, first=60), batch_id=1)
    seen(expected(70))


def test_a_batch_that_was_broken_off_is_completed_only_as_it_was_cut(query, seen, nothing_is_open):
    told, commits = query().tasks(cut(60, 6)), query().commits
    lose = run_meanwhile(
        "batch_before_commit",
        lambda: take_ids(commits.ledger, [commits.ledger.transactional_id(4)], commits.settings),
    )
    with pytest.raises(CommitIncompleteError):
        query(on_event=lose).commits.commit(told, 0)
    done = sum(entry.rows for entry in query().entries(6).values())
    assert done == 50
    for parts, refusal in (
        (cut(60, 2), PartialReplayError),
        (cut(60, 8), PartialReplayError),
        (cut(60, 6, first=1), ReplayMismatchError),
    ):
        with pytest.raises(refusal, match="committed"):
            query().batch(parts)
    assert sum(entry.rows for entry in query().entries(8).values()) == done
    nothing_is_open()
    query().batch(cut(60, 6))
    seen(sorted([*expected(60), b"behind", b"behind"]))


@pytest.mark.parametrize("writers", [1, 3])
def test_a_whole_batch_that_comes_again_and_is_cut_otherwise_is_left_as_it_was(
    query, seen, nothing_is_open, writers
):
    query().batch(cut(20, 2))
    query().batch(cut(20, writers))
    with pytest.raises(ReplayMismatchError, match=r"20 rows .* were committed, now there are 21"):
        query().batch(cut(21, writers))
    query(keep=True).batch(cut(21, writers))
    nothing_is_open()
    query().batch(cut(10, writers, first=20), batch_id=1)
    seen(sorted([*expected(30), b"behind", b"behind"]))


def test_other_rows_are_kept_out_where_that_is_allowed(query, seen):
    query().batch([rows(5), rows(5, first=5)])
    query(keep=True).batch([rows(7), rows(2, first=5)])
    seen(expected(10))


# --- batches that come again and are numbered otherwise ------------------------------------------


@pytest.mark.parametrize("left", [(0,), (0, 1), (2, 4), (1, 2, 3), (0, 1, 2, 3, 4)])
def test_a_batch_that_was_broken_off_is_completed_however_its_parts_are_numbered_now(
    query, seen, left
):
    told = query().tasks(PARTS)
    with pytest.raises(Killed):
        query(on_event=die_before_the_end_of(*left, behind=6 - len(left))).commits.commit(told, 0)
    query().wait_for_entries(6 - len(left))
    query().batch(numbered(5, 3, 4, 0, 1, 2))
    assert {entry.batch_id for entry in query().entries(6).values()} == {0}
    assert len(query().entries(6)) == 6
    query().batch(cut(10, 2, first=15), batch_id=1)
    seen(sorted([*WRITTEN, *expected(10, first=15)]))


def test_a_replay_that_is_killed_and_numbered_otherwise_once_more_is_completed(query, seen):
    told = query().tasks(PARTS)
    with pytest.raises(Killed):
        query(on_event=die_before_the_end_of(0, 1, 2, 4, behind=2)).commits.commit(told, 0)
    for event, order, count in (
        (die_at("batch_before_commit"), (4, 2, 5, 3, 0, 1), 2),
        (die_before_the_end_of(0, 3, behind=2), (2, 0, 1, 4, 3, 5), 4),
        (die_before_the_end_of(0, behind=1), (4, 5, 1, 0, 2, 3), 5),
    ):
        told = query().tasks(numbered(*order))
        with pytest.raises(Killed):
            query(on_event=event).commits.commit(told, 0)
        query().wait_for_entries(count)
    query().batch(numbered(3, 1, 2, 0, 4, 5))
    query().batch(numbered(5, 4, 3, 2, 1, 0))  # a replay of the whole
    seen(WRITTEN)


def test_tasks_do_not_wait_for_an_entry_that_the_id_of_a_later_task_has_left_undecided(
    query, seen
):
    patient = {"timeout_ms": 600_000}  # longer than a ledger is asked for
    told = query(**patient).tasks(PARTS)
    with pytest.raises(Killed):
        query(on_event=die_before_the_end_of(0, 1, 2, 4, behind=2), **patient).commits.commit(
            told, 0
        )
    told = query(**patient).tasks(numbered(4, 2, 5, 3, 0, 1))
    with pytest.raises(Killed):
        query(on_event=die_at("batch_before_commit"), **patient).commits.commit(told, 0)
    query(**patient).batch(numbered(1, 5, 0, 3, 2, 4))
    seen(WRITTEN)


@pytest.mark.parametrize("partition", range(6))
def test_parts_that_are_to_be_aborted_have_to_be_alive_as_well(query, seen, partition):
    # An earlier attempt may have the id, and be about to commit.
    told = query().tasks(PARTS)
    with pytest.raises(Killed):
        query(on_event=die_before_the_end_of(0, 1, behind=4)).commits.commit(told, 0)
    before = query().wait_for_entries(4)
    order = (5, 3, 4, 0, 1, 2)
    told = query().tasks(numbered(*order))
    zombie = query().task(partition, PARTS[order[partition]])
    with pytest.raises(BatchFailedError, match=f"partition {partition} is lost"):
        query().commits.commit(told, 0)
    assert query().wait_for_entries(4) == before
    query().commits.abort([*told, zombie])
    query().batch(numbered(*order))
    seen(WRITTEN)


@pytest.mark.parametrize(
    "parts",
    [
        [PARTS[0], PARTS[1], rows(7, first=6), *PARTS[3:]],  # one has other rows
        [*numbered(1, 4, 1, 0, 1), rows(7, first=5)[1:]],  # a row less
        [PARTS[2], *numbered(2, 4, 0, 1, 5)],  # two that are equal have become one
        [*PARTS, []],  # one more
    ],
)
def test_a_batch_that_was_broken_off_is_not_completed_with_other_parts(
    query, seen, nothing_is_open, parts
):
    told = query().tasks(PARTS)
    with pytest.raises(Killed):
        query(on_event=die_before_the_end_of(1, 4, behind=4)).commits.commit(told, 0)
    with pytest.raises((ReplayMismatchError, PartialReplayError), match="committed"):
        query().batch(parts)
    nothing_is_open()
    query().wait_for_entries(4)
    query().batch(numbered(1, 0, 3, 2, 5, 4))
    seen(sorted([*WRITTEN, b"behind", b"behind"]))


def test_an_older_commit_that_wakes_in_a_replay_of_the_same_batch_commits_nothing_more(
    query, seen
):
    def newer():
        query().batch(numbered(3, 1, 2, 0, 4, 5))

    told = query().tasks(PARTS)
    with pytest.raises(Killed):
        query(on_event=die_before_the_end_of(0, 2, behind=4)).commits.commit(told, 0)
    older = query(on_event=run_meanwhile("batch_before_commit", newer))
    told = older.tasks(numbered(4, 2, 5, 3, 0, 1))
    # It is shut out of its ids, and what the newer one has committed lies in other slots.
    with pytest.raises(CommitIncompleteError):
        older.commits.commit(told, 0)
    seen(WRITTEN)


def test_an_aborted_part_does_not_hold_readers_back(query, nothing_is_open):
    told = query().tasks(PARTS)
    with pytest.raises(Killed):
        query(on_event=die_before_the_end_of(0, behind=5)).commits.commit(told, 0)
    query().commits.commit(query().tasks(numbered(5, 3, 4, 0, 1, 2)), 0)
    nothing_is_open()


# --- two drivers ---------------------------------------------------------------------------------


def run_meanwhile(event, action):
    """Return a hook that runs something once, at an event: an older process that was asleep."""
    seen: list[None] = []

    def hook(name, info):
        if name == event and not seen:
            seen.append(None)
            action()

    return hook


@pytest.mark.parametrize("writers", [2, 6])
def test_an_older_commit_that_wakes_among_its_ends_commits_nothing_more(query, seen, writers):
    def newer():
        query().batch(cut(60, writers))

    older = query(on_event=run_meanwhile("batch_before_commit", newer))
    told = older.tasks(cut(60, 6)[::-1])  # also where the numbers are equal, cut otherwise
    with pytest.raises(CommitIncompleteError):
        older.commits.commit(told, 0)
    seen(expected(60))


def test_an_older_commit_that_wakes_before_it_begins_is_refused_where_its_rows_differ(query, seen):
    told = query().tasks(cut(60, 6, first=1))
    query().batch(cut(60, 6))
    with pytest.raises(ReplayMismatchError):
        query().commits.commit(told, 0)
    query().batch(cut(10, 2, first=60), batch_id=1)
    with pytest.raises(LedgerError, match="rewound"):
        query().commits.commit(told, 0)
    seen(expected(70))


@pytest.mark.parametrize("writers", [2, 6])
def test_an_older_commit_that_wakes_before_it_begins_is_a_replay_of_the_same_batch(
    query, seen, writers
):
    told = query().tasks(cut(60, 6)[::-1])
    query().batch(cut(60, writers))
    query().commits.commit(told, 0)
    query().batch(cut(10, 2, first=60), batch_id=1)
    with pytest.raises(LedgerError, match="rewound"):
        query().commits.commit(told, 0)
    seen(expected(70))


@pytest.mark.parametrize("partition", [0, 5])
def test_a_task_of_an_older_attempt_that_wakes_stops_the_commit_before_its_first_end(
    query, seen, nothing_is_open, partition
):
    told = query().tasks(cut(60, 6))
    zombie = query().task(partition, cut(60, 6)[partition])
    with pytest.raises(BatchFailedError, match=f"partition {partition} is lost"):
        query().commits.commit(told, 0)
    query().wait_for_entries(0)
    query().commits.abort([*told, zombie])
    nothing_is_open()
    query().batch(cut(60, 6))
    seen(sorted([*expected(60), b"behind", b"behind"]))


def test_two_attempts_with_some_ids_each_commit_nothing(query, seen):
    one, other = query(), query()
    first, second = cut(20, 2), cut(20, 2)[::-1]
    ones = [one.task(0, first[0]), None]
    others = [other.task(0, second[0]), other.task(1, second[1])]
    ones[1] = one.task(1, first[1])
    for query_, told in ((one, ones), (other, others)):
        with pytest.raises(BatchFailedError):
            query_.commits.commit(told, 0)
        query_.commits.abort(told)
    query().batch(cut(20, 2))
    seen(expected(20))


# --- other queries -------------------------------------------------------------------------------


def test_a_second_query_is_refused_in_its_tasks_and_disturbs_no_other(query, seen):
    query().batch(cut(10, 2))
    told = query().tasks(cut(10, 2, first=10), batch_id=1)
    other = query(query_id="other")
    for partition in range(2):
        with pytest.raises(LedgerError, match="another query"):
            other.task(partition, rows(5))
    other.commits.abort([None, None], "other")
    query().commits.commit(told, 1)
    seen(expected(20))
    query(query_id="other", rules=LedgerRules(on_foreign_ledger="take_over")).batch(
        [rows(5, first=20)]
    )
    seen(expected(25))


def test_a_query_that_meets_another_one_in_its_commit_ends_nothing(query, seen):
    told = query().tasks(cut(10, 1))
    other = query(query_id="other").tasks(cut(10, 2), batch_id=0)
    query(query_id="other").commits.commit(other, 0)
    with pytest.raises(LedgerError, match="another query"):
        query().commits.commit(told, 0)
    seen(expected(10))


def test_a_sink_id_of_whole_batches_is_refused_by_tasks_and_by_the_commit(query):
    before = query().tasks(cut(10, 2))
    whole = BatchTransactions(query().ledger, LedgerRules(), lambda *_: None)
    whole.enter(LedgerBatch(0, "query", 0), query().commits.settings)
    whole.write(LedgerBatch(0, "query", 0), lambda *_: [])
    whole.close()
    with pytest.raises(LedgerError, match=r'used with atomicity="batch".* batch 0 of query'):
        query().commits.commit(before, 0)
    rules = LedgerRules("write", "take_over")
    with pytest.raises(LedgerError, match=r'used with atomicity="batch".* batch 0 of query'):
        query(rules=rules).task(0, rows(5))
    query().commits.abort(before)
    assert query().ledger.read(range(2)) == (None, {})


def test_a_rewound_checkpoint_and_an_absent_ledger_are_refused(query, seen, nothing_is_open):
    first = query(rules=LedgerRules(on_missing_ledger="write"))
    with pytest.raises(LedgerError, match="no ledger"):
        query().task(0, rows(5), batch_id=4)
    with pytest.raises(LedgerError, match="no ledger"):
        query().commits.commit(first.tasks(cut(10, 2), batch_id=4), 4)
    first.batch(cut(10, 2), batch_id=4)
    with pytest.raises(LedgerError, match="rewound"):
        query().task(0, rows(5), batch_id=3)
    nothing_is_open()
    seen(sorted([*expected(10), b"behind", b"behind"]))


def test_a_batch_after_a_torn_one_is_refused_by_its_first_task_and_by_its_commit(
    broker, topic, query, seen, monkeypatch
):
    told = query().tasks(cut(9, 3))
    with pytest.raises(Killed):
        query(on_event=die_before_the_end_of(1, behind=2)).commits.commit(told, 0)
    query().commits.abort(told)
    before = [end_offset(broker.servers, topic, partition) for partition in range(2)]
    with pytest.raises(TornBatchError, match="batch 0 is committed in part"):
        query().task(0, rows(5, first=9), batch_id=1)
    assert [end_offset(broker.servers, topic, partition) for partition in range(2)] == before
    with monkeypatch.context() as patch:
        patch.setattr(_OpenPartWriting, "_refuse_any_cut", lambda *_: None)
        told = query().tasks(cut(9, 3, first=9), batch_id=1)
    with pytest.raises(TornBatchError, match="batch 0 is committed in part"):
        query().commits.commit(told, 1)
    assert {entry.batch_id for entry in query().entries(3).values()} == {0}
    query().batch(cut(9, 3))
    query().batch(cut(9, 3, first=9), batch_id=1)
    seen(expected(18))


def test_the_first_task_waits_for_the_ends_of_the_batch_before(query, seen, monkeypatch):
    """A commit is answered before its entry can be seen: a whole batch looks torn until then."""
    query().batch(cut(9, 3))
    late = query().entries(3)
    query().batch(cut(9, 3, first=9), batch_id=1)
    look, looks = Ledger.look, []

    def first_without_an_end(ledger, partitions=(), **how):
        view = look(ledger, partitions, **how)
        if len(partitions) < 3:
            return view
        looks.append(partitions)
        return view if len(looks) > 1 else replace(view, entries={**view.entries, 1: late[1]})

    monkeypatch.setattr(Ledger, "look", first_without_an_end)
    told = query().task(0, rows(3, first=18), batch_id=2)
    assert (told.rows, len(looks)) == (3, 2)
    query().batch(cut(9, 3, first=18), batch_id=2)
    seen(expected(27))


def test_tasks_of_two_batches_are_not_committed_together(query, seen):
    told = query().tasks(cut(10, 2))
    mixed: list[Any] = [told[0], replace(told[1], batch_id=1)]
    for parts in (mixed, [told[0], None], [told[1]], []):
        with pytest.raises(KafkaError, match="nothing was committed"):
            query().commits.commit(parts, 0)
    query().commits.commit(told, 0)
    seen(expected(10))


# --- abort ---------------------------------------------------------------------------------------


def test_an_abort_ends_the_transactions_of_reported_and_unreported_tasks(
    query, seen, nothing_is_open
):
    query().batch(cut(10, 2))
    told = query().tasks(cut(10, 2, first=10), batch_id=1)
    query().commits.abort([told[0], None])
    nothing_is_open()
    query().commits.abort([told[0], None])
    query().commits.abort([None, None])
    query().batch(cut(10, 2, first=10), batch_id=1)
    query().commits.abort(told)  # of an attempt that is over: nobody is harmed
    seen(sorted([*expected(20), b"behind", b"behind"]))


def test_an_abort_after_a_commit_takes_nothing_back(query, seen):
    told = query().batch(cut(10, 2))
    query().commits.abort(told)
    query().batch(cut(10, 2, first=10), batch_id=1)
    seen(expected(20))


def test_an_abort_without_a_cluster_is_logged_and_does_not_raise(broker, query, caplog):
    told = query().tasks(cut(10, 1))
    settings = {"bootstrap.servers": "127.0.0.1:1", "max.block.ms": "200"}
    caplog.set_level("INFO")
    away = replace(query().commits, settings={**query().commits.settings, **settings})
    away.abort(told)
    assert "1 of 1 transactions were not aborted" in caplog.text
