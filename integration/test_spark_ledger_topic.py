"""A ledger in a topic of its own has the entries that offsets have, and they do not expire."""

from __future__ import annotations

import json
from functools import partial

import pytest

from integration.readers import read_with_confluent
from integration.spark_frames import expected, keyed, seen, wait_for
from txnproducer import TransactionalProducer
from txnproducer.admin import committed_offsets, group_ids, topic_settings
from txnproducer.ledger.topic_log import forget_logs
from txnproducer.spark import (
    ExactlyOnceKafkaSink,
    LedgerError,
    ReplayMismatchError,
    TornBatchError,
)
from txnproducer.spark.ledger.entries import LedgerBatch

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


@pytest.fixture
def sink(make_sink):
    """Return a maker of sinks, each of which reads the topic from its beginning."""

    def make(**arguments):
        forget_logs()
        return make_sink(**{"ledger": "topic", "first_batch_id": 1, **arguments})

    return make


def entries(kafka, topic):
    """Return the committed entries of a sink's topic, by key."""
    reads = read_with_confluent(kafka.bootstrap_servers, f"sink-{topic}.ledger")
    return {(read.key or b"").decode(): json.loads(read.value or b"") for read in reads}


def tear(sink, frame, batch_id):
    """Write one of two partitions, as a job does that dies half-way."""
    parts = frame.rdd.glom().collect()
    plan, _ = sink()._batches.plan(LedgerBatch(batch_id, "query", len(parts)))
    plan.write(0, plan.rows(parts[0]))


@pytest.mark.parametrize("atomicity", ["partition", "batch", "prepared"])
@pytest.mark.parametrize("driver_rows", [0, 100])
def test_batches_are_recognised_by_their_records(
    spark, kafka, topic, sink, atomicity, driver_rows
):
    make = partial(sink, atomicity=atomicity, driver_rows=driver_rows)
    with pytest.raises(LedgerError, match="no ledger"):
        make().write(keyed(spark, 10, first=10), 2)
    one = make()
    for batch_id in (1, 2, 2, 3):
        report = one.write(keyed(spark, 10, first=10 * batch_id), batch_id)
        assert report.rows == 10
    report = make().write(keyed(spark, 10, first=30), 3)
    assert (report.transactions, report.rows) == (0, 10)
    with pytest.raises(ReplayMismatchError):
        make(on_replay_mismatch="stop").write(keyed(spark, 10, first=40), 3)
    with pytest.raises(LedgerError, match="rewound"):
        make().write(keyed(spark, 10, first=20), 2)
    with pytest.raises(LedgerError, match="another query"):
        make(query_id="other").write(keyed(spark, 10), 4)
    make().write(keyed(spark, 10, first=40), 4)
    wait_for(kafka, topic, expected(40, first=10))


@pytest.mark.parametrize("atomicity", ["partition", "batch", "prepared"])
def test_a_second_sink_in_the_topic_is_refused_before_it_writes(
    spark, kafka, topic, sink, atomicity
):
    one = sink(atomicity=atomicity)
    one.write(keyed(spark, 10), 1)
    other = ExactlyOnceKafkaSink(
        kafka.bootstrap_servers,
        f"other-{topic}",
        topic=topic,
        query_id="query",
        first_batch_id=1,
        ledger=f"topic:sink-{topic}.ledger",
        atomicity=atomicity,
    )
    with pytest.raises(LedgerError, match="keeps the ledger of one sink"):
        other.write(keyed(spark, 10, first=100), 1)
    other.close()
    one.write(keyed(spark, 10, first=10), 2)
    wait_for(kafka, topic, expected(20))


def test_a_torn_batch_is_completed_by_its_records(spark, kafka, topic, sink):
    frame = keyed(spark, 10, partitions=2)
    tear(sink, frame, 1)
    with pytest.raises(TornBatchError):
        sink().write(keyed(spark, 10, partitions=2, first=10), 2)
    report = sink().write(frame, 1)
    assert (report.transactions, report.replayed) == (1, 1)
    wait_for(kafka, topic, expected(10))


def test_an_open_transaction_of_another_slot_holds_nobody_up(spark, kafka, topic, sink):
    frame = keyed(spark, 10, partitions=2)
    sink().write(frame, 1)
    servers = kafka.bootstrap_servers
    with TransactionalProducer(servers, f"sink-{topic}.p7") as killed:
        killed.init_transactions()
        killed.begin_transaction()
        killed.send(f"sink-{topic}.ledger", b"{}", b"p7", partition=0)
        killed.flush()
        # Its last stable offset stays where it is, and the look does not.
        report = sink().write(keyed(spark, 10, partitions=2, first=10), 2)
        assert (report.transactions, report.rows) == (2, 10)
        killed.abort_transaction()
    wait_for(kafka, topic, expected(20))


def test_the_topic_is_made_by_the_sink_and_another_policy_is_refused(spark, kafka, topic, sink):
    servers, name = kafka.bootstrap_servers, f"sink-{topic}.ledger"
    sink().write(keyed(spark, 10), 1)
    settings = topic_settings(servers, name)
    assert (settings["cleanup.policy"], settings["segment.bytes"]) == ("compact", "1048576")
    assert set(entries(kafka, topic)) == {"plan", "p0", "p1", "p2", "moved"}
    for made, told in (
        ({"config": {"cleanup.policy": "compact,delete"}}, "cleanup.policy=compact,delete"),
        ({"config": {"cleanup.policy": "delete"}}, "cleanup.policy=delete"),
        ({"partitions": 2, "config": {"cleanup.policy": "compact"}}, "2 partitions"),
    ):
        other = f"{topic}-{len(made)}-{len(told)}"
        kafka.create_topic(other, **made)
        with pytest.raises(LedgerError, match=told):
            sink(ledger=f"topic:{other}").write(keyed(spark, 10), 2)
    assert seen(kafka, topic) == expected(10)


def test_no_group_lags_and_there_is_nothing_to_refresh(spark, kafka, topic, sink):
    one = sink()
    one.write(keyed(spark, 10), 1)
    groups = group_ids(kafka.bootstrap_servers, f"__txn.sink-{topic}.")
    found = committed_offsets(kafka.bootstrap_servers, groups)
    ends = [offset for places in found.values() for offset in places.values()]
    assert ends
    assert all(each.offset == 1 << 62 for each in ends)
    assert one.refresh_ledger() == 0


def test_a_sink_with_a_topic_is_refused_without_it(spark, sink):
    sink(ledger="topic").write(keyed(spark, 10), 1)
    for arguments in ({"ledger": "offsets"}, {"ledger": None}):
        with pytest.raises(LedgerError, match=r'is in the topic .* ledger="topic", for good'):
            sink(**arguments).write(keyed(spark, 10, first=10), 2)


def test_a_topic_of_another_program_with_the_ledgers_name_stops_no_sink(spark, kafka, topic, sink):
    kafka.create_topic(f"sink-{topic}.ledger", config={"cleanup.policy": "compact"})
    one = sink(ledger="offsets")
    one.write(keyed(spark, 10), 1)
    with TransactionalProducer(kafka.bootstrap_servers) as theirs:
        theirs.send(f"sink-{topic}.ledger", b"42.00", b"account 7", partition=0)
        theirs.flush()
    sink(ledger="offsets").write(keyed(spark, 10, first=10), 2)
    wait_for(kafka, topic, expected(20))


def test_the_status_before_the_first_batch_is_that_there_is_no_ledger(spark, sink):
    status = sink().status()
    assert (status.atomicity, status.query_id, status.partitions, status.batch) == (
        None,
        None,
        {},
        None,
    )


def test_the_status_before_the_move_is_that_of_the_offsets(spark, sink):
    sink(ledger="offsets").write(keyed(spark, 10), 1)
    status = sink().status()
    assert (status.atomicity, status.query_id, status.run) == ("partition", "query", 1)
    assert sum(entry.rows for entry in status.partitions.values()) == 10


def test_a_sink_is_refused_if_its_mark_names_another_topic(spark, topic, sink):
    sink(ledger=f"topic:{topic}-books").write(keyed(spark, 10), 1)
    for place in ("topic", "offsets"):
        with pytest.raises(LedgerError, match=rf'ledger="topic:{topic}-books", for good'):
            sink(ledger=place).write(keyed(spark, 10, first=10), 2)
