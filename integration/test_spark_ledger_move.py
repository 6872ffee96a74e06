"""A ledger moves from offsets to a topic, also if starts end at any step of it."""

from __future__ import annotations

import pytest

from integration.spark_frames import expected, wait_for
from integration.spark_kills import kill_at_step, start_at_each_step
from txnproducer import admin
from txnproducer.admin import committed_offsets, group_ids
from txnproducer.ledger.topic_log import forget_logs
from txnproducer.spark import LedgerError
from txnproducer.spark.driver.batch_transactions import BatchTransactions
from txnproducer.spark.driver.runs import Runs
from txnproducer.spark.ledger.entries import LedgerBatch, LedgerEntry
from txnproducer.spark.ledger.ledger_topic import check_ledger_topic
from txnproducer.spark.ledger.move import topic_of
from txnproducer.spark.ledger.producers import holding
from txnproducer.spark.ledger.rules import LedgerRules
from txnproducer.spark.ledger.store import Ledger
from txnproducer.spark.ledger.topic_ledger import TopicLedger

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
SETTINGS = {"transaction.timeout.ms": "60000", "max.block.ms": "60000"}
PARTS = 2


@pytest.fixture
def kill_at(monkeypatch):
    """See `kill_at_step`."""
    with kill_at_step(monkeypatch) as begin:
        yield begin


def groups_of(kafka, topic):
    servers = kafka.bootstrap_servers
    found = committed_offsets(servers, group_ids(servers, f"__txn.sink-{topic}."))
    return {
        group.rpartition(".")[2]: topic_of(next(iter(places.values())))
        for group, places in found.items()
        if places
    }


@pytest.fixture
def ledgers(kafka, topic):
    """Return the ledger of a sink in offsets, and makers of it in a topic as new processes do."""
    sink_id = f"sink-{topic}"
    SETTINGS["bootstrap.servers"] = kafka.bootstrap_servers

    def in_topic():
        forget_logs()
        return TopicLedger(kafka.bootstrap_servers, sink_id, topic, {}, f"{sink_id}.ledger")

    check_ledger_topic(in_topic())
    return Ledger(kafka.bootstrap_servers, sink_id, topic, {}), in_topic


def write_part(ledger, topic, part, batch_id):
    """Write the rows of a part and its entry, as a task does."""
    with holding(ledger, ledger.transactional_id(part), SETTINGS) as producer:
        entry = ledger.read_entries([part]).get(part)
        if entry is not None and entry.batch_id == batch_id:
            return
        with producer.transaction():
            producer.send(topic, f"value {batch_id * PARTS + part}".encode())
            ledger.write(producer, part, LedgerEntry(batch_id, "query", PARTS, 1, "0" * 32))


def tasks_ledger(ledger):
    """Return the ledger of a task, which goes on from the driver's records."""
    return ledger.knowing(ledger.read_so_far())


@pytest.mark.parametrize("is_torn", [False, True])
def test_partitions_move_whichever_step_a_start_ends_at(kafka, topic, ledgers, kill_at, is_torn):
    offsets, in_topic = ledgers
    rules = LedgerRules()
    Runs(offsets, rules).enter(LedgerBatch(0, "query", PARTS), SETTINGS)
    for part in range(PARTS):
        write_part(offsets, topic, part, 0)
    if is_torn:
        write_part(offsets, topic, 0, 1)
    batch = LedgerBatch(1, "query", PARTS)
    (_, done), ends = start_at_each_step(
        kill_at, lambda: Runs(in_topic(), rules).enter(batch, SETTINGS)
    )
    assert ends >= 10
    assert set(done) == ({0} if is_torn else set())
    for _ in range(2):  # the second time all is there already
        for part in range(PARTS):
            write_part(tasks_ledger(in_topic()), topic, part, 1)
    wait_for(kafka, topic, expected(2 * PARTS))
    assert not in_topic().is_moving
    marks = {name for name, place in groups_of(kafka, topic).items() if place}
    assert marks >= {"plan", "p0", "p1"}
    with pytest.raises(LedgerError, match='ledger="topic"'):
        Runs(offsets, rules).enter(LedgerBatch(2, "query", PARTS), SETTINGS)


def test_whole_batches_move_whichever_step_a_start_ends_at(kafka, topic, ledgers, kill_at):
    offsets, in_topic = ledgers
    old = BatchTransactions(offsets, LedgerRules(), lambda *_: None)
    old.enter(LedgerBatch(0, "query", 0), SETTINGS)
    old.write(LedgerBatch(0, "query", 0), lambda *_: [])
    old.close()

    def start():
        driver = BatchTransactions(in_topic(), LedgerRules(), lambda *_: None)
        try:
            return driver.enter(LedgerBatch(0, "query", 0), SETTINGS)
        finally:
            driver.close()

    found, ends = start_at_each_step(kill_at, start)
    assert ends > 3
    assert found == LedgerEntry(0, "query", 0, 0, "0" * 32)
    assert not in_topic().is_moving
    with pytest.raises(LedgerError, match='ledger="topic"'):
        old.enter(LedgerBatch(1, "query", 0), SETTINGS)


def test_the_mark_of_whole_batches_that_has_expired_comes_back_with_a_batch(kafka, topic, ledgers):
    offsets, in_topic = ledgers
    for batch_id in range(2):
        batch = LedgerBatch(batch_id, "query", 0)
        driver = BatchTransactions(in_topic(), LedgerRules(), lambda *_: None)
        driver.enter(batch, SETTINGS)
        if batch_id:
            with admin.connect(kafka.bootstrap_servers) as client:
                client.delete_groups([offsets.whole_group])
            assert "batch" not in groups_of(kafka, topic)
        driver.write(batch, lambda *_: [])
        driver.close()
    old = BatchTransactions(offsets, LedgerRules(), lambda *_: None)
    with pytest.raises(LedgerError, match='ledger="topic"'):
        old.enter(LedgerBatch(2, "query", 0), SETTINGS)
