"""The status of a sink lists the named runs that were committed last, and counts the others."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from tests.spark.fake_topic import FakeCluster
from txnproducer.admin import TopicAccess
from txnproducer.cli import sink_status
from txnproducer.cli.main import main
from txnproducer.ledger.topic_log import Stored
from txnproducer.spark import status
from txnproducer.spark.ledger import places, topic_ledger
from txnproducer.spark.ledger.entries import LedgerEntry, PlanEntry
from txnproducer.spark.ledger.store import Ledger
from txnproducer.spark.ledger.topic_ledger import RUN_PREFIX, TopicLedger
from txnproducer.spark.status import MOST_RUNS, read_status

ENTRY = LedgerEntry(0, "daily", 2, 5, "0" * 32, at_ms=1_000)


@pytest.fixture
def cluster(monkeypatch):
    cluster = FakeCluster()
    monkeypatch.setattr(topic_ledger, "log_of", lambda *_: cluster)
    monkeypatch.setattr(Ledger, "_offsets", lambda *_, **__: {})
    monkeypatch.setattr(Ledger, "known_partitions", lambda _: [])
    monkeypatch.setattr(status, "partition_count", lambda *_, **__: 1)
    monkeypatch.setattr(status, "describe_transactions", lambda *_, **__: {})
    return cluster


@pytest.fixture
def ledger(cluster):
    return TopicLedger("nowhere:9092", "sink", "orders", {}, "books")


def put_run(ledger, cluster, name, entry):
    # Without the deletion of old runs: all records of the fake are old.
    ledger.write_record(cluster, RUN_PREFIX + name, entry.stored())


def put_runs(ledger, cluster, *names):
    for name in names:
        put_run(ledger, cluster, name, replace(ENTRY, rows=len(name)))


def test_runs_are_listed_in_the_order_of_their_commits(cluster, ledger):
    put_runs(ledger, cluster, "2026-04-03", "a", "2026-04-01")
    found = read_status(ledger)
    assert [(one.run_id, one.rows) for one in found.runs] == [
        ("2026-04-01", 10),
        ("a", 1),
        ("2026-04-03", 10),
    ]
    assert found.more_runs == 0
    one = found.runs[0]
    assert (one.query_id, one.writers, one.digest) == ("daily", 2, "0" * 32)
    assert (one.committed_ms, one.age_s is not None and one.age_s > 1e9) == (1_000, True)


def test_of_many_runs_the_newest_are_listed_and_the_others_counted(cluster, ledger):
    put_runs(ledger, cluster, *map(str, range(MOST_RUNS + 3)))
    found = read_status(ledger)
    assert [one.run_id for one in found.runs] == [str(n) for n in range(MOST_RUNS + 2, 2, -1)]
    assert found.more_runs == 3


def test_a_run_that_was_forgotten_is_neither_listed_nor_counted(cluster, ledger):
    put_runs(ledger, cluster, "old", "new")
    cluster.topic["run:old"] = Stored(9, 0, None)
    found = read_status(ledger)
    assert ([one.run_id for one in found.runs], found.more_runs) == (["new"], 0)


@pytest.mark.parametrize(("decision", "atomicity"), [(None, "batch"), (4, "prepared")])
def test_a_sink_that_has_named_runs_only_is_not_empty(cluster, ledger, decision, atomicity):
    put_run(ledger, cluster, "a", replace(ENTRY, decision=decision))
    found = read_status(ledger)
    assert (found.atomicity, found.query_id, found.partitions) == (atomicity, "daily", {})


def test_runs_stand_beside_batches_with_numbers(cluster, ledger):
    ledger.write_plan(cluster, PlanEntry(3, "daily", 2, is_prepared=True))
    ledger.write(cluster, 0, replace(ENTRY, batch_id=7, decision=2))
    put_run(ledger, cluster, "a", replace(ENTRY, decision=3))
    # The entry of a part is no run.
    cluster.topic["p1.run"] = cluster.topic["run:a"]
    found = read_status(ledger)
    assert (found.atomicity, found.run, found.partitions[0].batch_id) == ("prepared", 3, 7)
    assert [one.run_id for one in found.runs] == ["a"]


def test_a_ledger_in_offsets_has_no_runs(cluster):
    found = read_status(Ledger("nowhere:9092", "sink", "orders", {}))
    assert (found.atomicity, found.runs, found.more_runs) == (None, [], 0)


LEDGER_OPTIONS = ("--ledger-topic", "orders", "--ledger", "topic")


@pytest.fixture
def shown(monkeypatch, ledger):
    """Return a function that runs `sink-status`, and returns code, JSON and tables."""
    monkeypatch.setattr(sink_status, "reach", lambda _: None)
    monkeypatch.setenv("COLUMNS", "200")

    def run(ledger=ledger):
        monkeypatch.setattr(places, "ledger_at", lambda *_: lambda *_, **__: ledger)
        done = CliRunner().invoke(
            main,
            ["sink-status", "-b", "nowhere:9092", "sink", *LEDGER_OPTIONS],
        )
        return done.exit_code, json.loads(done.stdout), done.stderr

    return run


def test_the_command_prints_runs_with_their_times(cluster, ledger, shown):
    put_runs(ledger, cluster, "2026-04-01", "[bold]x")
    code, found, tables = shown()
    assert code == 0
    assert [one["run_id"] for one in found["runs"]] == ["[bold]x", "2026-04-01"]
    assert (found["more_runs"], found["runs"][0]["committed_ms"]) == (0, 1_000)
    assert "named runs" in tables
    assert "newest" not in tables
    line = next(line for line in tables.splitlines() if "[bold]x" in line)
    assert "1970-01-01 00:00:01 UTC" in line


def test_the_command_says_how_many_runs_it_leaves_out(cluster, ledger, shown):
    put_runs(ledger, cluster, *map(str, range(MOST_RUNS + 3)))
    _, found, tables = shown()
    assert (len(found["runs"]), found["more_runs"]) == (MOST_RUNS, 3)
    assert f"named runs, the newest {MOST_RUNS} of {MOST_RUNS + 3}" in tables


def test_the_command_shows_no_table_of_runs_if_there_are_none(cluster, ledger, shown):
    ledger.write_whole(cluster, ENTRY)
    code, found, tables = shown()
    assert (code, found["runs"]) == (0, [])
    assert "named runs" not in tables


@pytest.mark.parametrize(
    ("is_there", "ends_with", "told"),
    [
        (False, 4, "there is no topic 'orders': name the one that sink 'sink' writes to"),
        (True, 1, "The ledger of sink 'sink' at topic 'orders' is empty"),
    ],
)
def test_a_topic_that_is_not_there_is_no_empty_ledger(
    cluster, shown, monkeypatch, is_there, ends_with, told
):
    access = TopicAccess(is_there, 1, None)
    monkeypatch.setattr(sink_status, "topic_access", lambda *_, **__: {"orders": access})
    code, _, text = shown(Ledger("nowhere:9092", "sink", "orders", {}))
    assert code == ends_with
    assert told in text


def test_an_empty_ledger_in_a_topic_is_named_as_such(cluster, shown, monkeypatch):
    access = TopicAccess(True, 1, None)
    monkeypatch.setattr(sink_status, "topic_access", lambda *_, **__: {"orders": access})
    code, _, text = shown()
    assert code == 1
    assert "The ledger of sink 'sink' in the topic 'books' is empty: nothing was committed" in text
    assert "--ledger" not in text
    assert "offsets" not in text


def test_the_command_says_which_topic_it_needs():
    done = CliRunner().invoke(sink_status.command, ["-b", "nowhere:9092", "sink"])
    assert done.exit_code == 2
    assert "--ledger-topic" in done.stderr
    assert "the topic that the sink writes to" in " ".join(done.stderr.split())
