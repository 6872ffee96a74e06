"""Upkeep of a sink's ledger on a real broker, without Spark: refresh, expiry, status."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from integration.test_spark_runs import ROWS, committed, enter, write_all
from txnproducer import admin
from txnproducer.cli.main import main
from txnproducer.errors import KafkaError
from txnproducer.spark import ExactlyOnceKafkaSink, StaleRunError
from txnproducer.spark.driver import runs as runs_module
from txnproducer.spark.ledger.entries import LedgerBatch, LedgerEntry
from txnproducer.spark.listener import SinkListener
from txnproducer.testing import EmbeddedKafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


def write_whole(sink, batch_id=0, rows=0):
    """Commit a whole batch as the driver does, without tasks."""
    batch = LedgerBatch(batch_id, "query", rows)
    sink._batches.transactions.enter(batch, sink._cluster.producer_settings())
    sink._batches.transactions.write(batch, lambda *_: [])


def fetched(sink, partitions):
    return sink._ledger.read(range(partitions))


def refresh(sink, *arguments):
    """Refresh the ledger when all commits are visible. The refresh itself waits for nothing."""
    fetched(sink, 2)
    return sink.refresh_ledger(*arguments)


def test_a_refresh_changes_nothing_but_when_the_entries_expire(kafka, topic, make_sink):
    sink = make_sink()
    write_all(enter(sink, 0, writers=3))
    sink._batches.runs.batch_done()
    before = fetched(sink, 3)
    assert sink.refresh_ledger() == 3
    after = fetched(sink, 3)
    assert after == before
    assert {n: one.at_ms for n, one in after[1].items()} == {
        n: one.at_ms for n, one in before[1].items()
    }
    # The run goes on as if nothing had been.
    plan = enter(sink, 1, writers=3)
    assert plan.run == 1
    write_all(plan)
    assert committed(kafka, topic) == 60


def test_nothing_is_refreshed_while_a_batch_may_run(kafka, topic, make_sink):
    sink = make_sink()
    assert sink.refresh_ledger() == 0  # nothing was ever written
    write_all(enter(sink, 0))
    plan = enter(sink, 1)
    plan.write(0, plan.rows(ROWS))
    struck: list[int] = []

    def strike(name, _):
        if name == "task_before_commit":
            struck.append(sink.refresh_ledger())

    open_task = enter(sink, 1)  # task 0 is done, task 1 is about to commit
    replace(open_task, on_event=strike).write(1, plan.rows(ROWS))
    assert struck == [0]
    assert refresh(sink) == 2  # both have committed now
    assert committed(kafka, topic) == 40


def test_a_refresh_waits_for_no_batch_and_a_batch_for_the_refresh(make_sink):
    sink = make_sink()
    write_all(enter(sink, 0))
    found: list[int] = []
    with sink._lock:
        other = threading.Thread(target=lambda: found.append(sink.refresh_ledger()))
        other.start()
        other.join(10)
    assert found == [0]
    assert refresh(sink) == 2


def test_a_driver_that_was_replaced_refreshes_nothing(make_sink):
    old = make_sink()
    write_all(enter(old, 0))
    old._batches.runs.batch_done()
    new = make_sink()
    write_all(enter(new, 1))
    with pytest.raises(StaleRunError):
        old.refresh_ledger()
    assert refresh(new) == 2


def test_a_query_that_rests_from_its_start_is_refreshed_and_another_ones_sink_is_not(make_sink):
    write_all(enter(make_sink(), 0))
    assert make_sink(query_id="other").refresh_ledger() == 0
    assert make_sink(query_id=None).refresh_ledger() == 0  # whose it is, is not known
    assert refresh(make_sink(query_id=None), "query") == 2


def test_a_refresh_fences_a_leftover_task_and_keeps_its_committed_records(kafka, topic, make_sink):
    old = make_sink()
    write_all(enter(old, 0))
    left_over = enter(old, 1)
    resting = make_sink()
    assert refresh(resting) == 2

    def wake(name, _):
        if name == "task_before_commit":
            assert make_sink().refresh_ledger() == 2

    with pytest.raises(KafkaError):
        replace(left_over, on_event=wake).write(1, left_over.rows(ROWS))
    assert {one.batch_id for one in fetched(old, 2)[1].values()} == {0}
    assert committed(kafka, topic) == 20


def test_whole_batches_are_refreshed_by_the_driver_that_holds_them(make_sink):
    sink = make_sink(atomicity="batch")
    assert sink.refresh_ledger() == 0
    write_whole(sink)
    before = sink._ledger.read_whole()
    assert sink.refresh_ledger() == 1
    assert sink._ledger.read_whole() == before
    write_whole(sink, 1)
    resting = make_sink(atomicity="batch")
    assert resting.refresh_ledger() == 1
    with pytest.raises(KafkaError):  # the older driver has been replaced
        sink.refresh_ledger()
    assert resting._ledger.read_whole().batch_id == 1


def test_the_plan_is_committed_again_before_it_expires(make_sink, monkeypatch):
    sink = make_sink()
    write_all(enter(sink, 0))
    sink._batches.runs.batch_done()
    committed_plans = []
    usual = runs_module.Runs._commit

    def commit(runs, producer, plan):
        committed_plans.append(plan)
        usual(runs, producer, plan)

    monkeypatch.setattr(runs_module.Runs, "_commit", commit)
    write_all(enter(sink, 1))
    sink._batches.runs.batch_done()
    assert committed_plans == []
    monkeypatch.setattr(runs_module, "REFRESH_AFTER_S", 0.0)
    assert enter(sink, 2).run == 1
    assert [(plan.run, plan.most_writers) for plan in committed_plans] == [(1, 2)]


def test_the_listener_refreshes_when_the_query_is_idle_and_not_too_often(make_sink):
    sink = make_sink()
    write_all(enter(sink, 0))
    sink._batches.runs.batch_done()
    idle = SimpleNamespace(id="an id of Spark's")
    listener = SinkListener(sink, refresh_every_s=0.2)
    listener.onQueryIdle(idle)
    listener.onQueryIdle(idle)
    assert listener.refreshed == 2
    time.sleep(0.25)  # longer than refresh_every_s
    listener.onQueryIdle(idle)
    assert listener.refreshed == 4
    other = SinkListener(make_sink(query_id=None), refresh_every_s=0.2)
    other.onQueryIdle(idle)
    assert other.refreshed == 0


@pytest.mark.long("brokers forget offsets after a minute at the earliest")
def test_offsets_expire_and_a_refreshed_ledger_does_not():
    settings = {"offsets.retention.minutes": 1, "offsets.retention.check.interval.ms": 1000}
    with EmbeddedKafka(settings=settings) as kafka:
        kafka.create_topic("t")
        resting, kept = (
            ExactlyOnceKafkaSink(kafka.bootstrap_servers, name, "t", "partition", query_id="query")
            for name in ("resting", "kept")
        )
        for sink in (resting, kept):
            write_all(enter(sink, 0))
        end = time.monotonic() + 80
        while time.monotonic() < end:
            assert refresh(kept) == 2
            time.sleep(10)  # between two refreshes: often enough within the minute of retention
        assert fetched(resting, 2) == (None, {})
        assert resting.status().atomicity is None
        plan, entries = fetched(kept, 2)
        assert plan.run == 1
        assert {one.batch_id for one in entries.values()} == {0}


# --- status --------------------------------------------------------------------------------------


def run(kafka, *arguments):
    result = CliRunner().invoke(
        main, ["sink-status", "-b", kafka.bootstrap_servers, *arguments], catch_exceptions=False
    )
    return result.exit_code, json.loads(result.stdout) if result.stdout else None


def test_the_status_shows_the_plan_and_each_partition(kafka, topic, make_sink):
    sink = make_sink()
    write_all(enter(sink, 0, writers=3))
    write_all(enter(sink, 1, writers=2))
    code, found = run(kafka, f"sink-{topic}", "--ledger-topic", topic, "-o", "json")
    assert code == 0
    assert (found["sink_id"], found["atomicity"]) == (f"sink-{topic}", "partition")
    assert (found["query_id"], found["run"], found["most_writers"]) == ("query", 1, 3)
    batches = {number: one["batch_id"] for number, one in found["partitions"].items()}
    assert batches == {"0": 1, "1": 1, "2": 0}
    first = found["partitions"]["0"]
    assert (first["rows"], first["writers"], first["is_open"]) == (10, 2, False)
    assert first["transactional_id"] == f"sink-{topic}.p0"
    assert len(first["digest"]) == 32
    assert 0 <= first["age_s"] < 120
    assert found["batch"] is None


def test_the_status_shows_an_open_transaction_and_disturbs_no_producer(kafka, topic, make_sink):
    seen = []

    def look(name, info):
        if name == "task_before_commit" and info["batch_id"] == 1:
            seen.append(make_sink().status().partitions[0].is_open)

    sink = make_sink(on_event=look)
    write_all(enter(sink, 0, writers=1))
    write_all(enter(sink, 1, writers=1))
    assert seen == [True]
    assert committed(kafka, topic) == 20


def test_the_status_of_whole_batches_and_of_none(kafka, topic, make_sink):
    code, found = run(kafka, f"sink-{topic}", "--ledger-topic", topic)
    assert (code, found["atomicity"], found["partitions"]) == (1, None, {})
    sink = make_sink(atomicity="batch")
    write_whole(sink, 0)
    code, found = run(kafka, f"sink-{topic}", "--ledger-topic", topic)
    assert (code, found["atomicity"], found["query_id"]) == (0, "batch", "query")
    assert found["batch"]["transactional_id"] == f"sink-{topic}.batch"


def test_entries_of_an_earlier_version_have_no_age(make_sink):
    sink = make_sink()
    plan = enter(sink, 0, writers=1)
    old = LedgerEntry(0, "query", 1, 0, "d" * 32)
    with sink._batches.runs._holding(plan.ledger.transactional_id(0), plan.producer) as producer:
        with producer.transaction():
            plan.ledger._write(producer, plan.ledger.group(0), old.stored())
    assert sink.status().partitions[0].age_s is None
    assert admin.describe_transaction(plan.ledger.bootstrap_servers, "no such id") is None
