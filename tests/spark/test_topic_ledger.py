"""A ledger in a topic: its records, and its move from offsets, without a cluster."""

from __future__ import annotations

import itertools
import json
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.spark.fake_topic import FakeCluster, Killed
from txnproducer.admin import LogBatch, LogRecord
from txnproducer.errors import CorruptRecordError, TopicAuthorizationError
from txnproducer.ledger import compacted_topic
from txnproducer.ledger.topic_log import Stored
from txnproducer.records import ProducerIdAndEpoch
from txnproducer.spark import LedgerError, MissingRightError
from txnproducer.spark.driver import parallel_calls, runs
from txnproducer.spark.driver.part_ids import PartIds
from txnproducer.spark.driver.prepared_runs import PreparedRuns
from txnproducer.spark.driver.runs import Runs
from txnproducer.spark.ledger import first_look, ledger_topic, topic_ledger
from txnproducer.spark.ledger.decisions import Decision
from txnproducer.spark.ledger.entries import LedgerBatch, LedgerEntry, PlanEntry
from txnproducer.spark.ledger.ledger_topic import check_ledger_topic
from txnproducer.spark.ledger.move import mark_of, topic_of
from txnproducer.spark.ledger.named_runs import read_run, write_run
from txnproducer.spark.ledger.rules import LedgerRules
from txnproducer.spark.ledger.store import Ledger
from txnproducer.spark.ledger.topic_ledger import TopicLedger

OLD = LedgerEntry(7, "q", 2, 5, "0" * 32, at_ms=1)
NEW = LedgerEntry(8, "q", 2, 6, "1" * 32, at_ms=2)


@pytest.fixture
def cluster(monkeypatch):
    cluster = FakeCluster()

    def offsets(ledger, groups, **_):
        cluster.asked.append("groups")
        return {group: cluster.groups[group] for group in groups if group in cluster.groups}

    monkeypatch.setattr(topic_ledger, "log_of", lambda *_: cluster)
    monkeypatch.setattr(Ledger, "_offsets", offsets)
    return cluster


@pytest.fixture
def ledger(cluster):
    return TopicLedger("nowhere:9092", "sink", "orders", {}, "books")


def put(cluster, **entries):
    cluster.groups.update(
        {f"__txn.sink.{name}": entry.stored() for name, entry in entries.items()}
    )


def test_an_entry_in_the_topic_is_the_entry_that_was_written(cluster, ledger):
    ledger.write(cluster, 3, OLD)
    record = json.loads(cluster.topic["p3"].value)
    assert record == {"number": 7, "sink": "sink", **json.loads(OLD.stored().metadata)}
    assert ledger.read_entries([3, 4]) == {3: OLD}
    assert ledger.read_entries([3])[3].at_ms == 1


def test_until_all_ids_have_moved_the_higher_number_counts(cluster, ledger):
    put(cluster, p0=OLD, p1=NEW)
    ledger.write(cluster, 0, NEW)
    ledger.write(cluster, 1, OLD)
    assert ledger.read_entries([0, 1]) == {0: NEW, 1: NEW}


def test_groups_are_read_before_the_topic(cluster, ledger):
    put(cluster, p0=OLD)
    ledger.read_entries([0])
    assert cluster.asked[-2:] == ["groups", "topic"]


def test_an_id_moves_in_one_transaction(cluster, ledger):
    put(cluster, p0=OLD)
    ledger.move(cluster, ledger.group(0))
    assert topic_of(cluster.groups["__txn.sink.p0"]) == "books"
    assert ledger.read_entries([0]) == {0: OLD}
    before = dict(cluster.topic)
    ledger.move(cluster, ledger.group(0))
    assert cluster.topic == before


def test_a_partition_without_an_entry_leaves_no_mark(cluster, ledger):
    ledger.move(cluster, ledger.group(5))
    assert (cluster.groups, cluster.topic) == ({}, {})
    ledger.move(cluster, ledger.whole_group)
    assert set(cluster.groups) == {"__txn.sink.batch"}


def test_groups_are_not_read_any_more_when_all_ids_have_moved(cluster, ledger):
    put(cluster, batch=OLD)
    assert ledger.is_moving
    ledger.move(cluster, ledger.whole_group, is_last=True)
    assert not ledger.is_moving
    cluster.asked.clear()
    assert ledger.read_whole() == OLD
    assert "groups" not in cluster.asked


@pytest.mark.parametrize("place", ["offsets", "topic"])
def test_a_mark_that_names_another_topic_stops_the_sink(cluster, ledger, place):
    cluster.groups["__txn.sink.batch"] = mark_of("elsewhere")
    if place == "offsets":
        ledger = Ledger("nowhere:9092", "sink", "orders", {})
    with pytest.raises(LedgerError, match=r'in the topic .elsewhere.* ledger="topic:elsewhere"'):
        ledger.read_whole()


def test_an_earlier_version_refuses_a_mark():
    # It knows entries alone.
    with pytest.raises(LedgerError, match="format 2; this version reads format 1"):
        LedgerEntry.parse("__txn.sink.p0", mark_of("books"))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"7",
        b"[]",
        b"[" * 100_000,
        b'{"v":1}',
        b'{"number":"x","v":1}',
        b'{"number":1,"v":1,"writers":Infinity}',
        b"\xff" * 100_000,
    ],
)
def test_an_entry_that_cannot_be_read_is_named_by_topic_offset_and_key(cluster, ledger, value):
    cluster.topic["batch"] = Stored(41, 0, value)
    told = (
        r"^partition 0 of the topic books, offset 41, key 'batch', does not hold a ledger's entry "
        r"\(\w+Error: .*Ways out: .*on_missing_ledger"
    )
    with pytest.raises(LedgerError, match=told) as found:
        ledger.read_whole()
    assert len(str(found.value)) < 1200


def test_a_record_of_a_newer_format_is_refused(cluster, ledger):
    cluster.topic["batch"] = Stored(0, 0, b'{"v":9,"number":1}')
    with pytest.raises(LedgerError, match=r"offset 0, key 'batch', has .* format 9"):
        ledger.read_whole()


# --- one topic, one sink -------------------------------------------------------------------------


@pytest.fixture
def other(cluster):
    return TopicLedger("nowhere:9092", "other", "orders", {}, "books")


def write_of(kind, ledger, cluster):
    """Let a ledger write one of its records, as the first one of its sink."""
    {
        "plan": lambda: ledger.write_plan(cluster, PlanEntry(1, "q", 1)),
        "part": lambda: ledger.write(cluster, 0, OLD),
        "whole": lambda: ledger.write_whole(cluster, OLD),
        "run": lambda: write_run(ledger, cluster, "monday", OLD),
        "decision": lambda: ledger.write_decision(cluster, DECISION),
        "moved": lambda: ledger.write_moved(cluster),
    }[kind]()


@pytest.mark.parametrize("kind", ["plan", "part", "whole", "run", "moved"])
def test_a_topic_with_a_record_of_another_sink_is_refused_by_each_look(
    cluster, ledger, other, kind
):
    write_of(kind, other, cluster)
    with pytest.raises(LedgerError, match=r"^partition 0 of the topic books, .*the sink 'other'"):
        ledger.look([0])


def test_an_entry_or_a_decision_of_another_sink_is_never_taken_for_an_own_one(
    cluster, ledger, other
):
    for kind in ("part", "whole", "run", "decision"):
        write_of(kind, other, cluster)
    for read in (
        lambda: ledger.read_entries([0]),
        ledger.read_whole,
        ledger.read_decision,
        lambda: read_run(ledger, "monday"),
        lambda: ledger.move(cluster, ledger.whole_group),
    ):
        with pytest.raises(LedgerError, match="keeps the ledger of one sink"):
            read()


def test_a_record_of_an_earlier_version_names_no_sink_and_counts_as_an_own_one(cluster, ledger):
    ledger.write(cluster, 0, OLD)
    record = json.loads(cluster.topic["p0"].value)
    assert record.pop("sink") == "sink"
    cluster.topic["p0"] = Stored(0, 0, json.dumps(record).encode())
    assert ledger.read_entries([0]) == {0: OLD}


# --- the place -----------------------------------------------------------------------------------

ENTRY = b'{"number":1,"v":1}'
LEDGERS = [(key, ENTRY) for key in (b"plan", b"plan.0", b"batch", b"p12", b"moved", b"run:x")]
OTHERS = [(None, ENTRY), (b"page", ENTRY), (b"p1", b"x"), (b"p1", b"[1]"), (b"p1", b'{"v":1}')]


@pytest.fixture
def there(monkeypatch):
    """Return a function that puts a topic of the ledger's name there, with its first record."""

    def put_there(*first):
        def read_log(servers, topic, offset, take, **_):
            for record in first:
                if isinstance(record, Exception):
                    raise record
                newest = {record[0]: LogRecord(offset, 0, *record)}
                take(LogBatch(offset + 1, 1, False, None, offset, 0, newest))
            return offset

        monkeypatch.setattr(ledger_topic, "partition_count", lambda *_: 1)
        monkeypatch.setattr(ledger_topic, "read_log", read_log)

    return put_there


@pytest.mark.parametrize("first", [*LEDGERS, (b"p3", None), TopicAuthorizationError("no Read")])
def test_a_sink_in_offsets_is_refused_if_its_topic_is_there(there, first):
    there(first)
    with pytest.raises(LedgerError, match='ledger="topic", for good'):
        check_ledger_topic(Ledger("nowhere:9092", "sink", "orders", {}))


def test_a_topic_of_that_name_that_cannot_be_read_is_named(there):
    there(CorruptRecordError("partition 0 of the topic sink.ledger, offset 0: the CRC"))
    with pytest.raises(LedgerError, match=r"topic sink\.ledger, offset 0: the CRC.*Ways out"):
        check_ledger_topic(Ledger("nowhere:9092", "sink", "orders", {}))


@pytest.mark.parametrize("records", [[], *([other, LEDGERS[0]] for other in OTHERS)])
def test_a_topic_of_that_name_that_is_no_ledger_stops_no_sink(there, records):
    there(*records)
    check_ledger_topic(Ledger("nowhere:9092", "sink", "orders", {}))


def test_a_sink_in_offsets_needs_no_right_to_the_topic_of_a_ledger(monkeypatch):
    def refuse(*_, **__):
        raise TopicAuthorizationError("no Describe")

    monkeypatch.setattr(ledger_topic, "partition_count", refuse)
    check_ledger_topic(Ledger("nowhere:9092", "sink", "orders", {}))


@pytest.mark.parametrize(
    ("of_offsets", "made"), [(3, 3), (None, None), (TopicAuthorizationError("no Describe"), None)]
)
def test_a_ledgers_topic_has_as_many_replicas_as_a_ledger_in_offsets(
    ledger, monkeypatch, of_offsets, made
):
    asked = []

    def replicas(servers, topic):
        if isinstance(of_offsets, Exception):
            raise of_offsets
        return {"__consumer_offsets": of_offsets}[topic]

    monkeypatch.setattr(ledger_topic, "partition_count", lambda *_: None)
    monkeypatch.setattr(compacted_topic, "replica_count", replicas)
    monkeypatch.setattr(compacted_topic, "create_topic", lambda *args: asked.append(args))
    monkeypatch.setattr(TopicLedger, "check_marks", lambda _: None)
    check_ledger_topic(ledger)
    assert asked == [("nowhere:9092", "books", 1, made, compacted_topic.SETTINGS)]


@pytest.mark.parametrize("replicas", [3, None])
def test_the_command_for_a_topic_that_may_not_be_made_names_the_replicas(
    ledger, monkeypatch, replicas
):
    def refuse(*_):
        raise TopicAuthorizationError("no Create")

    monkeypatch.setattr(ledger_topic, "partition_count", lambda *_: None)
    monkeypatch.setattr(compacted_topic, "replica_count", lambda *_: replicas)
    monkeypatch.setattr(compacted_topic, "create_topic", refuse)
    monkeypatch.setattr(TopicLedger, "check_marks", lambda _: None)
    with pytest.raises(MissingRightError, match="Way out: kafka-topics") as found:
        check_ledger_topic(ledger)
    assert ("--replication-factor 3 " in str(found.value)) is (replicas == 3)


# --- decisions about prepared parts --------------------------------------------------------------

PREPARED = PlanEntry(4, "q", 2, is_prepared=True)
DECISION = Decision(
    5, LedgerBatch(8, "q", 2), True, {0: ProducerIdAndEpoch(7, 1), 1: ProducerIdAndEpoch(8, 2)}
)


def put_decision(cluster, decision):
    for piece, stored in enumerate(decision.stored()):
        cluster.groups[f"__txn.sink.plan.{piece}"] = stored


def test_a_decision_is_one_record_and_a_prepared_plan_is_read_back(cluster, ledger):
    large = replace(
        DECISION, parts={n: ProducerIdAndEpoch((1 << 62) + n, 32_000) for n in range(1000)}
    )
    ledger.write_plan(cluster, PREPARED)
    ledger.write_decision(cluster, large)
    assert set(cluster.topic) == {"plan", "decision"}
    assert (ledger.read()[0], ledger.read_decision()) == (PREPARED, large)


def test_until_the_ledger_has_moved_the_higher_of_two_decisions_counts(cluster, ledger):
    assert ledger.read_decision() is None
    put_decision(cluster, DECISION)
    assert ledger.read_decision() == DECISION
    for number, counts in ((4, DECISION), (6, replace(DECISION, number=6))):
        ledger.write_decision(cluster, replace(DECISION, number=number))
        assert ledger.read_decision() == counts


def test_a_prepared_ledger_moves_when_its_decided_parts_are_ended(
    cluster, ledger, start, monkeypatch
):
    old, new = replace(OLD, decision=4), replace(NEW, decision=5)
    ended: list[int] = []

    def end(ids, leases, settings, *, is_commit):
        assert is_commit
        assert topic_of(cluster.groups["__txn.sink.p1"]) is None, "it moved before its end"
        cluster.step()
        assert {slot: lease.producer for slot, lease in leases.items()} == {1: DECISION.parts[1]}
        put(cluster, p1=new)
        ended.append(1)
        return {}

    monkeypatch.setattr(PartIds, "take", lambda ids, slots, settings: cluster.step())
    monkeypatch.setattr(PartIds, "end", end)
    monkeypatch.setattr(
        PreparedRuns, "_planning", lambda runs, settings: runs._holding("plan", settings)
    )
    for step in itertools.count(1):
        cluster.topic, cluster.groups = {}, {}
        ended.clear()
        put(cluster, plan=PREPARED, p0=new, p1=old)
        put_decision(cluster, DECISION)
        is_killed = False
        try:
            _, found = start(LedgerBatch(8, "q", 3), step, PreparedRuns)
        except Killed:
            is_killed = True
            _, found = start(LedgerBatch(8, "q", 3), kind=PreparedRuns)
        # Whole, by two parts: the batch needs its frame no more, in however many partitions.
        assert found == {0: new, 1: new}
        assert ended == [1]
        assert not ledger.is_moving
        if not is_killed:
            break
    assert step > 20


# --- a start that ends at any step ---------------------------------------------------------------


@pytest.fixture
def start(cluster, ledger, monkeypatch):
    """Return a function that begins a run as a new driver does, and may end at a step."""

    @contextmanager
    def held(runs, name, settings):
        cluster.step()
        yield cluster

    def known(_):
        names = (group.rpartition(".p")[2] for group in cluster.groups)
        return [int(name) for name in names if name.isdecimal()]

    monkeypatch.setattr(first_look, "check_groups", lambda *_: None)
    monkeypatch.setattr(Ledger, "known_partitions", known)
    monkeypatch.setattr(parallel_calls, "MOST_AT_ONCE", 1)
    monkeypatch.setattr(Runs, "_holding", held)
    # Of a start that has nothing to move: it only takes the ids.
    monkeypatch.setattr(runs, "take_ids", lambda _, names, __: [cluster.step() for _ in names])
    # A test of the steps: the fake is a producer as well.
    monkeypatch.setattr(topic_ledger, "TransactionalProducer", FakeCluster)

    def begin(batch, last_step=None, kind=Runs):
        cluster.steps, cluster.last_step = 0, last_step
        try:
            return kind(ledger, LedgerRules()).enter(batch, {})
        finally:
            cluster.last_step = None

    return begin


@pytest.mark.parametrize(
    ("entries", "done"),
    [
        ({0: OLD, 1: OLD}, set()),
        ({0: NEW, 1: OLD}, {0}),
        ({0: NEW, 1: NEW}, {0, 1}),
    ],
    ids=["whole", "torn", "replayed"],
)
def test_a_start_that_ends_at_any_step_of_the_move_is_gone_on_from(
    cluster, ledger, start, entries, done
):
    batch = LedgerBatch(NEW.batch_id, "q", 2)
    for step in itertools.count(1):
        cluster.topic, cluster.groups = {}, {}
        put(cluster, plan=PlanEntry(4, "q", 2), **{f"p{n}": one for n, one in entries.items()})
        is_killed = False
        try:
            _, found = start(batch, step)
        except Killed:
            is_killed = True
            # In whichever place: nothing is lost on the way, and no entry is set back.
            assert ledger.read_entries([0, 1]) == entries
            assert ledger.read()[0].run >= 4
            _, found = start(batch)
        assert set(found) == done
        assert ledger.read_entries([0, 1]) == entries
        assert not ledger.is_moving
        marked = {name.rpartition(".")[2] for name, one in cluster.groups.items() if topic_of(one)}
        assert marked >= {"plan", "p0", "p1"}
        if not is_killed:
            break
    assert step > 20
