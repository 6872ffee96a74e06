"""A row that names a partition which its topic does not have is refused before it is sent."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from txnproducer.spark.errors import SchemaError
from txnproducer.spark.ledger.store import Ledger
from txnproducer.spark.rows import topic_partitions as module
from txnproducer.spark.rows.arrow_rows import ArrowRows
from txnproducer.spark.rows.record_sources import RowRecords
from txnproducer.spark.rows.schema import RowReader
from txnproducer.spark.rows.topic_partitions import TopicPartitions, partitions_of_topic

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")

LEDGER = Ledger("nowhere:9092", "sink", "topic", {})


@pytest.fixture
def cluster(monkeypatch):
    """Say how many partitions the cluster tells, and count how often it was asked."""
    state = SimpleNamespace(count=3, questions=0)

    def topic_access(servers, topics):
        assert (servers, topics) == ("nowhere:9092", ["topic"])
        state.questions += 1
        return {"topic": SimpleNamespace(partition_count=state.count)}

    monkeypatch.setattr(module, "topic_access", topic_access)
    return state


class Writer:
    """A producer that counts its rows."""

    def __init__(self):
        self.records = 0

    def send_arrow(self, topic, data, partition=None):
        self.records += data.num_rows

    def send(self, topic, value, key, headers, partition):
        self.records += 1


class Row(dict):
    """A row as Spark's."""

    @property
    def __fields__(self):
        return list(self)


def arrow(numbers, partitions):
    columns = {"value": ["x"] * len(numbers), "partition": pa.array(numbers, pa.int32())}
    reader = RowReader("topic", partitions=partitions)
    return ArrowRows([pa.RecordBatch.from_pydict(columns)], reader)


def rows(numbers, partitions):
    given = [Row(value="x", partition=number) for number in numbers]
    return RowRecords(given, RowReader("topic", partitions=partitions))


@pytest.mark.parametrize("make", [arrow, rows])
def test_partitions_that_are_there_are_not_asked_for(cluster, make):
    writer = Writer()
    make([0, None, 2], TopicPartitions(LEDGER, "topic", 3)).send_to(writer)
    assert (writer.records, cluster.questions) == (3, 0)


@pytest.mark.parametrize("make", [arrow, rows])
@pytest.mark.parametrize(
    ("number", "told"), [(3, r"partition 3 .*partitions 0 to 2\. "), (-1, "-1")]
)
def test_one_that_the_topic_has_not_is_refused_before_it_is_sent(cluster, make, number, told):
    writer = Writer()
    with pytest.raises(SchemaError, match=told):
        make([number, 0], TopicPartitions(LEDGER, "topic", 3)).send_to(writer)
    assert writer.records == 0


@pytest.mark.parametrize("make", [arrow, rows])
def test_one_that_was_added_since_the_driver_looked_is_asked_for_once(cluster, make):
    cluster.count = 5
    writer = Writer()
    partitions = TopicPartitions(LEDGER, "topic", 3)
    make([3, 4, 4], partitions).send_to(writer)
    make([4, 3, 0], partitions).send_to(writer)
    assert (writer.records, cluster.questions) == (6, 1)


@pytest.mark.parametrize("make", [arrow, rows])
def test_where_another_decides_on_the_partition_the_column_does_not_count(cluster, make):
    writer = Writer()
    make([9], TopicPartitions(LEDGER, "topic", 3)).send_to(writer, 1)
    assert (writer.records, cluster.questions) == (1, 0)


def test_rows_that_choose_their_topic_are_left_to_the_producer():
    assert partitions_of_topic(LEDGER, None, 0) is None
    assert partitions_of_topic(LEDGER, "topic", 3) is not None
