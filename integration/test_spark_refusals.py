"""Refusals of the Spark sink in real streaming queries: no row is written, and ways out are named.

Another number of partitions and other rows on a partial replay are in `test_spark_sink.py`.
"""

from __future__ import annotations

import itertools
import os
import shutil

import pytest

from integration.readers import read_with_confluent, values
from integration.waiting import wait_until
from txnproducer import admin
from txnproducer.spark import ExactlyOnceKafkaSink, LedgerError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
_NUMBERS = itertools.count()
ROWS = 10


@pytest.fixture
def topic(kafka):
    name = f"refusals-{next(_NUMBERS)}"
    kafka.create_topic(name, partitions=2)
    return name


@pytest.fixture(params=["partition", "batch"])
def make_sink(request, kafka, topic):
    """Return a function that makes a sink as a driver of its own has it, always of one sink id."""
    made = []

    def make(**arguments):
        given = {"topic": topic, "atomicity": request.param, **arguments}
        made.append(ExactlyOnceKafkaSink(kafka.bootstrap_servers, f"sink-{topic}", **given))
        return made[-1]

    yield make
    for sink in made:
        sink.close()


@pytest.fixture
def query(spark, tmp_path, make_sink):
    """Return a function that starts a query on the input, from a checkpoint of the given name."""
    started = []
    (tmp_path / "in").mkdir()

    def start(checkpoint="checkpoint", **trigger):
        lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
        started.append(
            lines.writeStream.foreachBatch(make_sink())
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )
        return started[-1]

    yield start
    for each in started:
        each.stop()


def put(folder, batch):
    """Add a file, which is a batch, to the input."""
    lines = [f"value {n}" for n in range(batch * ROWS, (batch + 1) * ROWS)]
    path = folder / "in" / f".{batch}"
    path.write_text("\n".join(lines))
    os.utime(path, (1_000_000_000 + batch, 1_000_000_000 + batch))
    path.rename(folder / "in" / f"{batch}.txt")


def committed(kafka, topic):
    return sorted(values(read_with_confluent(kafka.bootstrap_servers, topic)))


def expected(batches):
    return sorted(b"value %d" % n for n in range(batches * ROWS))


def test_a_deleted_checkpoint_does_not_drop_rows_as_replays(kafka, topic, query, tmp_path):
    put(tmp_path, 0)
    put(tmp_path, 1)
    query().awaitTermination()
    wait_until(lambda: committed(kafka, topic) == expected(2), "not all rows are there")
    shutil.rmtree(tmp_path / "checkpoint")
    put(tmp_path, 2)
    with pytest.raises(Exception, match=r"belongs to another query(.|\n)*another sink id"):
        query().awaitTermination()
    assert committed(kafka, topic) == expected(2)


def test_a_second_query_with_the_sinks_id_is_refused_and_disturbs_no_other(
    kafka, topic, query, tmp_path
):
    put(tmp_path, 0)
    first = query(processingTime="1 second")
    wait_until(lambda: committed(kafka, topic) == expected(1), "nothing is written", 120)
    with pytest.raises(Exception, match=r"belongs to another query(.|\n)*another sink id"):
        query("another").awaitTermination()
    put(tmp_path, 1)
    wait_until(lambda: committed(kafka, topic) == expected(2), "the first does not go on", 120)
    assert first.exception() is None


def test_a_ledger_that_is_gone_stops_the_next_batch(kafka, topic, query, tmp_path):
    put(tmp_path, 0)
    query().awaitTermination()
    wait_until(lambda: committed(kafka, topic) == expected(1), "not all rows are there")
    with admin.connect(kafka.bootstrap_servers) as client:
        client.delete_groups(admin.group_ids(kafka.bootstrap_servers, f"__txn.sink-{topic}.", 30))
    put(tmp_path, 1)
    told = r"no ledger, but this is batch 1(.|\n)*on_missing_ledger=.write"
    with pytest.raises(Exception, match=told):
        query().awaitTermination()
    assert committed(kafka, topic) == expected(1)


def test_no_row_of_a_frame_is_computed_for_a_batch_that_is_refused(spark, kafka, topic, make_sink):
    computed = spark.sparkContext.accumulator(0)

    def counted(batches):
        for each in batches:
            computed.add(each.num_rows)
            yield each

    frame = spark.range(1000).selectExpr("CAST(id AS STRING) AS value")
    shuffled = frame.mapInArrow(counted, "value string").repartition(3)
    make_sink(query_id="old").write(frame.limit(10), 0)
    with pytest.raises(LedgerError, match="belongs to another query"):
        make_sink(query_id="new").write(shuffled, 0)
    assert computed.value == 0
    make_sink(query_id="new", on_foreign_ledger="take_over").write(shuffled, 0)
    assert computed.value >= 1000
