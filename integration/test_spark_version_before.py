"""Ledgers of the version before prepared parts are taken over, on a real broker and a real Spark.

The entries and rows were kept from a run of that version (`tests/data/ledgers_before.json`).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from integration.spark_frames import PARTITIONS, expected, keyed, wait_for
from txnproducer import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    TopicPartition,
    TransactionalProducer,
)
from txnproducer.spark import LedgerError, ReplayMismatchError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
_KEPT = json.loads((Path(__file__).parents[1] / "tests/data/ledgers_before.json").read_text())


@pytest.fixture
def topic(kafka, request):
    """Make the topic of a sink of the version before, with all that it left on the broker."""
    left = _KEPT[request.param]
    # A digest is of the topic's name as well.
    name = left["topic"]
    kafka.create_topic(name, partitions=PARTITIONS)
    with TransactionalProducer(kafka.bootstrap_servers, f"of-{name}") as producer:
        producer.init_transactions()
        with producer.transaction():
            for partition, key, value in left["rows"]:
                producer.send(name, value.encode(), key.encode(), partition=partition)
            for ending, offset, text in left["entries"]:
                entry = {TopicPartition(name, 0): OffsetAndMetadata(offset, text)}
                group = ConsumerGroupMetadata(f"__txn.sink-{name}.{ending}")
                producer.send_offsets_to_transaction(entry, group)
    return name


def of(atomicity):
    return pytest.mark.parametrize("topic", [atomicity], indirect=True)


@of("partition")
def test_a_batch_that_was_broken_off_is_completed(spark, kafka, topic, make_sink):
    sink = make_sink(atomicity=None)
    with pytest.raises(ReplayMismatchError):
        make_sink(atomicity=None).write(keyed(spark, 6, first=13), 2)
    report = sink.write(keyed(spark, 6, first=12), 2)
    assert (report.rows, report.replayed, report.transactions) == (6, 2, 1)
    assert sink.status().atomicity == "partition"
    assert sink.write(keyed(spark, 6, first=18), 3).transactions == 3
    wait_for(kafka, topic, expected(24))


@of("batch")
def test_a_whole_batch_is_not_written_again(spark, kafka, topic, make_sink):
    sink = make_sink(atomicity=None)
    with pytest.raises(LedgerError, match="rewound"):
        make_sink(atomicity=None).write(keyed(spark, 6), 0)
    assert sink.write(keyed(spark, 6, first=6), 1).transactions == 0
    assert sink.status().atomicity == "batch"
    assert sink.write(keyed(spark, 6, first=12), 2).transactions == 1
    wait_for(kafka, topic, expected(18))
