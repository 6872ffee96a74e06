"""Drivers that take a ledger over and are paused, on real brokers, played without Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from integration.readers import read_with_confluent, values
from integration.waiting import wait_until
from txnproducer.spark import LedgerError, StaleRunError
from txnproducer.spark.driver.batch_transactions import BatchTransactions
from txnproducer.spark.driver.runs import Runs
from txnproducer.spark.ledger.entries import LedgerBatch, LedgerEntry
from txnproducer.spark.ledger.rules import LedgerRules
from txnproducer.spark.ledger.store import Ledger
from txnproducer.spark.rows.schema import RowReader
from txnproducer.spark.tasks.participant import ParticipantOrder, ParticipantTask

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
PARTITIONS = 2


class Scene:
    """A sink, and its drivers."""

    def __init__(self, broker, topic):
        self.topic = topic
        self.servers = broker.servers
        self.ledger = Ledger(broker.servers, f"sink-{topic}", topic, {})
        self.settings = {"bootstrap.servers": broker.servers, "transaction.timeout.ms": "60000"}
        self.drivers = []

    def driver(self, *rules):
        self.drivers.append(BatchTransactions(self.ledger, LedgerRules(*rules), lambda *_: None))
        return self.drivers[-1]

    def write(self, driver, batch_id):
        task = ParticipantTask(self.settings, RowReader(self.topic), (), batch_id)

        def rows(partition):
            column = pa.array([f"{batch_id}-{partition}-{n}" for n in range(5)])
            return [pa.RecordBatch.from_arrays([column], ["value"])]

        def run_tasks(lease, is_last):
            order = ParticipantOrder(lease, seeks_cause=is_last)
            return [task(order, number, rows(number)) for number in range(PARTITIONS)]

        return driver.write(batch(batch_id), run_tasks)

    def seen(self):
        return sorted(values(read_with_confluent(self.servers, self.topic)))


def batch(batch_id, query_id="query"):
    return LedgerBatch(batch_id, query_id, PARTITIONS)


def rows_of(batches):
    return sorted(
        f"{batch_id}-{partition}-{n}".encode()
        for batch_id in range(batches)
        for partition in range(PARTITIONS)
        for n in range(5)
    )


@pytest.fixture
def scene(broker):
    made = Scene(broker, broker.topic(partitions=PARTITIONS))
    yield made
    for driver in made.drivers:
        driver.close()


def test_a_driver_that_took_over_and_wakes_after_another_writes_nothing_again(scene):
    old = scene.driver()
    old.enter(LedgerBatch(0, "old", 0), scene.settings)
    old.write(LedgerBatch(0, "old", 0), lambda *_: [])
    scene.ledger.read_whole()  # waits for the commit's markers: a first look does not
    asleep = scene.driver("write", "take_over")
    for batch_id in range(2):
        assert asleep.enter(batch(batch_id), scene.settings) is None
        scene.write(asleep, batch_id)
    assert asleep.enter(batch(2), scene.settings) is None
    # Here it is paused, and the query is started again, without the option.
    awake = scene.driver()
    for batch_id in (2, 3):
        assert awake.enter(batch(batch_id), scene.settings) is None
        scene.write(awake, batch_id)
    with pytest.raises(LedgerError, match="batch 3 is committed already, this is batch 2"):
        scene.write(asleep, 2)
    found = scene.ledger.read_whole()
    assert found is not None
    assert found.batch_id == 3
    wait_until(lambda: len(scene.seen()) >= len(rows_of(4)), "not all rows are there")
    assert scene.seen() == rows_of(4)


def test_a_driver_that_was_fenced_stops_and_leaves_the_newer_one_alone(scene):
    older, newer = scene.driver(), scene.driver()
    older.enter(batch(0), scene.settings)
    # Here the newer one comes, in the middle of the older one's batch.
    newer.enter(batch(0), scene.settings)
    with pytest.raises(StaleRunError, match="another driver"):
        scene.write(older, 0)
    assert older.attempts == 1
    for batch_id in range(2):
        newer.enter(batch(batch_id), scene.settings)
        scene.write(newer, batch_id)
        assert newer.attempts == 1
    wait_until(lambda: len(scene.seen()) >= len(rows_of(2)), "not all rows are there")
    assert scene.seen() == rows_of(2)


def test_a_driver_of_partitions_that_took_over_begins_no_run_after_its_own_query(scene):
    old, asleep = (
        Runs(scene.ledger, LedgerRules(*rules)) for rules in ((), ("write", "take_over"))
    )
    old.enter(batch(0, "old"), scene.settings)
    scene.ledger.read()  # waits for the markers, as above
    run, _ = asleep.enter(batch(0), scene.settings)
    with asleep._holding(scene.ledger.transactional_id(0), scene.settings) as producer:
        with producer.transaction():
            scene.ledger.write(
                producer, 0, LedgerEntry(1, "query", 2, 0, "0" * 32)
            )  # by another driver of the query
    with pytest.raises(LedgerError, match="has committed batch 1 already, this is batch 0"):
        asleep.enter(batch(0), scene.settings)
    found, _ = scene.ledger.read()
    assert found is not None
    assert found.run == run
