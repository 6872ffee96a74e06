"""Frames reach Kafka as Arrow batches: every type, cut as they were counted, evaluated once."""

from __future__ import annotations

import itertools

import pytest

from integration.readers import read_with_confluent
from integration.waiting import wait_until
from txnproducer._core.batches.partitioner import partition_for_key
from txnproducer.spark import ExactlyOnceKafkaSink
from txnproducer.spark.driver.frames import CountedPartitions
from txnproducer.spark.errors import BatchFailedError
from txnproducer.spark.rows import placing
from txnproducer.spark.rows.placing import PLACE, own_batches, placed
from txnproducer.spark.rows.spark_hash import numbers_by_hash

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
_NUMBERS = itertools.count()
PARTITIONS = 3
COLUMNS = (
    "key binary, value string, partition int, headers array<struct<key:string,value:binary>>,"
    " topic string, more double"
)


@pytest.fixture
def topics(kafka):
    names = [f"arrow-{next(_NUMBERS)}" for _ in range(2)]
    for name in names:
        kafka.create_topic(name, partitions=PARTITIONS)
    return names


@pytest.fixture
def sink(kafka, topics):
    made = []

    def make(name="sink", **arguments):
        usual = {"topic": topics[0], "query_id": "query", "driver_rows": 0}
        given = {**usual, "atomicity": "partition", **arguments}
        made.append(ExactlyOnceKafkaSink(kafka.bootstrap_servers, f"{name}-{topics[0]}", **given))
        return made[-1]

    yield make
    for one in made:
        one.close()


def mixed_rows(topics, count=60):
    """Return rows of every shape, 60 of them."""

    def row(n):
        headers = [[("n", b"%d" % n), ("null", None), ("n", b"")], [], None][n % 3]
        return (
            None if n % 4 == 0 else bytearray(b"key %d" % (n % 7)),
            None if n % 5 == 0 else f"value {n}",
            n % PARTITIONS if n % 6 == 0 else None,
            headers,
            topics[n * 5 % 7 % 2],
            n / 3,
        )

    return [row(n) for n in range(count)]


def mixed(spark, topics, partitions=2):
    return spark.createDataFrame(
        spark.sparkContext.parallelize(mixed_rows(topics), partitions), COLUMNS
    )


def as_record(row, partition=None):
    key, value, _, headers, _, _ = row
    pairs = tuple((name, data) for name, data in headers or ())
    return partition, None if key is None else bytes(key), value and value.encode(), pairs


def seen(kafka, topic):
    return [
        (read.partition, read.key, read.value, tuple(read.headers or ()))
        for read in read_with_confluent(kafka.bootstrap_servers, topic)
    ]


def wait_for(kafka, topic, wanted):
    """Wait until readers see these records, in any order and partition."""

    def unplaced():
        return sorted(map(repr, (record[1:] for record in seen(kafka, topic))))

    expected = sorted(repr(record[1:]) for record in wanted)
    wait_until(lambda: unplaced() == expected, f"readers do not see {len(expected)} rows")


def check_places(kafka, topic, rows):
    """Check that rows lie where their partition, or without one their key, leads."""
    named = {row[1].encode(): row[2] for row in rows if row[1] and row[2] is not None}
    for partition, key, value, _ in seen(kafka, topic):
        if value is None:
            continue  # a tombstone does not tell its row
        if value in named:
            assert partition == named[value]
        elif key is not None:
            assert partition == partition_for_key(key, PARTITIONS)


@pytest.mark.parametrize("atomicity", ["partition", "batch"])
def test_every_column_arrives_as_it_was(spark, kafka, topics, sink, atomicity):
    rows = mixed_rows(topics)
    report = sink(atomicity=atomicity).write(mixed(spark, topics), 0)
    assert report.rows == 60
    wait_for(kafka, topics[0], map(as_record, rows))
    check_places(kafka, topics[0], rows)
    assert seen(kafka, topics[1]) == []


def test_rows_choose_their_topics_and_keep_their_order_in_a_partition(spark, kafka, topics, sink):
    rows = mixed_rows(topics)
    sink(topic=None, ledger_topic=topics[0]).write(mixed(spark, topics, partitions=1), 0)
    for topic in topics:
        own = [row for row in rows if row[4] == topic]
        wait_for(kafka, topic, map(as_record, own))
        check_places(kafka, topic, own)
        order = {row[1].encode(): n for n, row in enumerate(own) if row[1]}
        for partition in range(PARTITIONS):
            numbers = [
                order[value]
                for place, key, value, _ in seen(kafka, topic)
                if place == partition and key is not None and value is not None
            ]
            assert numbers == sorted(numbers)


def test_rows_and_arrow_batches_have_the_same_digests(spark, kafka, topics, sink):
    data = mixed(spark, topics, partitions=3)
    arguments = {"topic": None, "ledger_topic": topics[0]}
    data.foreachPartition(sink(**arguments).partition_writer(0, writers=3))
    report = sink(**arguments).write(data, 0)
    assert (report.rows, report.replayed, report.transactions) == (60, 3, 0)


@pytest.mark.parametrize("atomicity", ["partition", "batch"])
def test_partitions_of_adaptive_execution_are_counted_and_evaluated_once(
    spark, kafka, topics, sink, atomicity
):
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
    evaluated = spark.sparkContext.accumulator(0)

    def note(row):
        evaluated.add(1)
        return row

    source = spark.sparkContext.parallelize([(n % 40, n) for n in range(400)], 4).map(note)
    groups = spark.createDataFrame(source, "k int, n int").groupBy("k").sum("n")
    data = groups.selectExpr("concat('value ', k) AS value")

    report = sink(atomicity=atomicity).write(data, 0)

    # A shuffle has 200 partitions, which are merged when it is known how little is in them.
    assert 1 <= len(report.partitions) < 10
    assert report.rows == 40
    assert evaluated.value == 400
    rows = [(None, f"value {k}", None, None, None, None) for k in range(40)]
    wait_for(kafka, topics[0], map(as_record, rows))


def test_passes_over_a_frame_run_the_same_partitions(spark):
    data = spark.range(1000).selectExpr("id % 20 AS k").groupBy("k").count()

    def work(order, partition, batches):
        return order, partition, sorted(k for batch in batches for k in batch["k"].to_pylist())

    partitions = CountedPartitions(data.coalesce(3), work)
    first, second = partitions.run(1), partitions.run(2)
    assert [report[1] for report in first] == list(range(partitions.count))
    assert [report[1:] for report in first] == [report[1:] for report in second]
    assert {report[0] for report in second} == {2}
    assert sorted(k for report in first for k in report[2]) == list(range(20))


@pytest.mark.parametrize("has_ids", [True, False])
def test_rows_are_shuffled_to_the_task_of_their_partition(spark, has_ids, monkeypatch):
    if has_ids and not hasattr(spark.range(1), "repartitionById"):
        pytest.skip("needs PySpark 4.1, which has `repartitionById`")
    monkeypatch.setattr(placing, "_takes_ids", lambda frame: has_ids)
    keys = spark.range(500).selectExpr("cast(id % 50 AS string) AS key", "'v' AS value")
    cut = placed(keys, 8)
    places = cut.places
    assert places == (tuple(range(8)) if has_ids else numbers_by_hash(8))

    def work(order, partition, batches):
        own = own_batches(partition, places, batches)
        return [key for batch in own for key in batch["key"].to_pylist()]

    found = CountedPartitions(cut.frame, work).run(None)
    assert len(found) == 8
    for partition, own in enumerate(found):
        assert {partition_for_key(key.encode(), 8) for key in own} <= {partition}
    assert sum(map(len, found)) == 500


def test_a_task_that_gets_rows_of_another_fails(spark, kafka, topics, sink, monkeypatch):
    from txnproducer.spark.driver import whole_batch as module

    def wrongly(frame, partitions):
        cut = placed(frame, partitions)
        wrong = cut.frame.repartition(partitions, "value")
        return type(cut)(wrong, cut.count, cut.places)

    monkeypatch.setattr(module, "placed", wrongly)
    with pytest.raises(Exception, match="Spark has shuffled the rows in another way"):
        sink(atomicity="batch").write(mixed(spark, topics).select("key", "value"), 0)
    assert seen(kafka, topics[0]) == []
    assert PLACE not in mixed(spark, topics).columns


def test_a_null_topic_and_a_nameless_header_are_refused(spark, kafka, topics, sink):
    nowhere = spark.createDataFrame([("v", None)], "value string, topic string")
    with pytest.raises(Exception, match="a row's topic is null"):
        sink(topic=None, ledger_topic=topics[0]).write(nowhere, 0)
    kind = "value string, headers array<struct<key:string,value:binary>>"
    nameless = spark.createDataFrame([("v", [(None, b"x")])], kind)
    with pytest.raises(BatchFailedError, match="name must be a str"):
        sink("other", atomicity="batch").write(nameless, 0)
    assert seen(kafka, topics[0]) == []
