"""Prepared parts with a ledger in a topic: entries and decision are records, also after a kill."""

from __future__ import annotations

import json

import pytest

from integration.readers import read_with_confluent
from integration.spark_frames import expected, keyed, keyless, wait_for
from integration.spark_kills import DeadDriverError, kill, kill_at_step, others, start_at_each_step
from txnproducer.ledger.topic_log import forget_logs
from txnproducer.spark import LedgerError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


@pytest.fixture
def sink(make_sink):
    """Return a maker of sinks, each of which reads the topic from its beginning."""

    def make(**arguments):
        forget_logs()
        return make_sink(**{"ledger": "topic", "atomicity": "prepared", **arguments})

    return make


@pytest.mark.parametrize("ended", [0, 1, 2, None])
def test_a_decided_batch_is_completed_without_its_frame(
    spark, kafka, topic, sink, monkeypatch, ended
):
    with monkeypatch.context() as patch:
        kill(patch, ended)
        with pytest.raises(DeadDriverError):
            sink().write(keyed(spark, 60), 0)
    report = sink().write(others(spark), 0)
    if ended is None:
        assert (report.rows, report.transactions) == (30, 5)
        wait_for(kafka, topic, expected(30, first=1000))
        return
    assert (report.rows, report.transactions, report.has_other_rows) == (60, 0, True)
    sink().write(keyless(spark, 10, first=60), 1)
    wait_for(kafka, topic, expected(70))
    reads = read_with_confluent(kafka.bootstrap_servers, f"sink-{topic}.ledger")
    found = {read.key: json.loads(read.value or b"") for read in reads}
    assert found[b"decision"]["number"] == 2
    assert found[b"decision"]["batch"] == [1, "query", 2]


@pytest.mark.parametrize("ended", [0, 2, 3])
def test_a_ledger_in_offsets_moves_when_its_parts_are_ended(
    spark, kafka, topic, sink, make_sink, monkeypatch, ended
):
    with monkeypatch.context() as patch:
        kill(patch, ended)
        with pytest.raises(DeadDriverError):
            make_sink(atomicity="prepared").write(keyed(spark, 60), 0)
    # A sink that names no atomicity goes on in that of the ledger on its way, too.
    report = sink(atomicity=None).write(others(spark), 0)
    assert (report.rows, report.transactions, report.has_other_rows) == (60, 0, True)
    one = sink()
    for number in (1, 2):
        one.write(keyless(spark, 10, first=50 + 10 * number), number)
    with pytest.raises(LedgerError, match='ledger="topic", for good'):
        make_sink(atomicity="prepared").write(keyless(spark, 10), 3)
    assert sink().write(keyless(spark, 10, first=70), 2).transactions == 0
    wait_for(kafka, topic, expected(80))


def test_decided_parts_move_whichever_step_a_start_ends_at(
    spark, kafka, topic, sink, make_sink, monkeypatch
):
    with monkeypatch.context() as patch:
        kill(patch, 1)
        with pytest.raises(DeadDriverError):
            make_sink(atomicity="prepared").write(keyed(spark, 60), 0)
    with kill_at_step(monkeypatch) as kill_at:
        report, ends = start_at_each_step(kill_at, lambda: sink().write(others(spark), 0))
    assert ends >= 10
    assert (report.rows, report.transactions, report.has_other_rows) == (60, 0, True)
    with pytest.raises(LedgerError, match='ledger="topic", for good'):
        make_sink(atomicity="prepared").write(keyless(spark, 10), 1)
    sink().write(keyless(spark, 10, first=60), 1)
    wait_for(kafka, topic, expected(70))
