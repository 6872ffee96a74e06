"""A pass over a frame's partitions is complete, and the one that was ordered."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from tests.spark.fake_context import FakeContext
from txnproducer.errors import InvalidConfigurationError
from txnproducer.spark.driver import frames
from txnproducer.spark.driver.doomed_passes import DoomedError
from txnproducer.spark.errors import SinkError, StoppedError

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")
pyspark = pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")


class Cluster(FakeContext):
    """Runs tasks as Spark would: a frame, its RDD and its context in one."""

    def __init__(self, monkeypatch, count=3) -> None:
        super().__init__()
        self.count = count
        self.numbers = list(range(count))
        self.properties: dict[str, Any] = {}
        self.sparkSession = SimpleNamespace(sparkContext=self)
        self.number = 0
        monkeypatch.setattr(pyspark.TaskContext, "get", lambda: self)

    def mapInArrow(self, task, schema):  # noqa: N802
        self.task = task
        return self

    @property
    def rdd(self):
        return self

    def getNumPartitions(self):  # noqa: N802
        return self.count

    def setLocalProperty(self, name, value):  # noqa: N802
        self.properties[name] = value

    def getLocalProperty(self, name):  # noqa: N802
        return self.properties.get(name)

    def partitionId(self):  # noqa: N802
        return self.number

    def collect(self):
        rows = []
        for number in self.numbers:
            self.number = number
            for batch in self.task(iter([number])):
                assert batch.schema.types == [pa.int32(), pa.binary()]
                rows += batch.to_pylist()
        return rows[::-1]


def work(order, number, batches):
    return order, number, list(batches)


@pytest.fixture
def cluster(monkeypatch):
    return Cluster(monkeypatch)


def test_each_pass_has_its_order_and_all_reports_by_partition(cluster):
    partitions = frames.partitions_of(cluster, work, None)
    assert partitions.count == 3
    for order in ("one", {"more": [2]}):
        assert partitions.run(order) == [(order, number, [number]) for number in range(3)]
    assert cluster.properties == {"txnproducer.order": None}


def test_a_pass_that_fails_leaves_no_order(cluster):
    def fail(order, number, batches):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        frames.partitions_of(cluster, fail, None).run("order")
    assert cluster.properties == {"txnproducer.order": None}


def test_a_pass_of_a_query_that_was_stopped_starts_no_job(cluster):
    partitions = frames.partitions_of(cluster, lambda *_: pytest.fail("a task was run"), None)
    partitions.raise_if_stopped()
    cluster.is_interrupted = True
    with pytest.raises(InterruptedError):
        partitions.run("order")
    cluster.is_stopped = True
    with pytest.raises(StoppedError, match="Spark was stopped"):
        partitions.run("order")
    cluster._jsc = None  # as PySpark leaves it after `spark.stop()`
    with pytest.raises(StoppedError, match="Spark was stopped"):
        partitions.run("order")


def test_a_pass_that_is_doomed_returns_only_what_doomed_it_and_leaves_no_order(
    cluster, monkeypatch
):
    noted: list[Any] = []
    alarm = SimpleNamespace(note=lambda *told: noted.append(told))
    monkeypatch.setattr(frames, "alarm_of", lambda *_: alarm)

    def run(context, given, token, job):
        assert (context, given) == (cluster, alarm)
        job()
        raise DoomedError([report for told, report in noted if told == token][1:2])

    monkeypatch.setattr(frames, "run_until_doomed", run)
    partitions = frames.partitions_of(cluster, work, None, lambda _: True)
    assert partitions.run("order") == [("order", 1, [1])]
    assert cluster.properties == {"txnproducer.order": None}


@pytest.mark.parametrize("numbers", [[0, 1], [0, 1, 1], [0, 1, 2, 2], []])
def test_a_pass_in_which_not_each_partition_reported_once_has_failed(cluster, numbers):
    cluster.numbers = numbers
    with pytest.raises(SinkError, match="of 3 partitions these have reported"):
        frames.partitions_of(cluster, work, None).run("order")


def test_a_task_beyond_those_that_were_counted_does_nothing(cluster):
    done = []
    partitions = frames.partitions_of(cluster, lambda *given: done.append(given), None)
    cluster.numbers = [3]
    with pytest.raises(SinkError, match="task 3 is one too many: 3 partitions"):
        partitions.run("order")
    assert done == []


def test_a_job_without_an_order_or_with_that_of_another_does_nothing(cluster):
    frames.partitions_of(cluster, work, None)
    with pytest.raises(SinkError, match="not started by the sink"):
        cluster.collect()
    other = frames._Order("other", 3, "order")
    cluster.properties["txnproducer.order"] = frames._written(other)
    with pytest.raises(SinkError, match="PYSPARK_PIN_THREAD"):
        cluster.collect()


def test_where_partitions_cannot_be_counted_their_number_is_needed(cluster, monkeypatch):
    monkeypatch.setattr(frames, "is_connect", lambda frame: True)
    with pytest.raises(InvalidConfigurationError, match="writers is needed here: Spark Connect"):
        frames.partitions_of(cluster, work, None)
    partitions = frames.partitions_of(cluster, work, 3)
    assert partitions.run("order") == [("order", number, [number]) for number in range(3)]
    assert cluster.properties == {}
    cluster.numbers = [0, 3]
    with pytest.raises(SinkError, match="one too many"):
        partitions.run("order")


def test_partitions_of_a_frame_that_runs_no_task_are_worked_on_without_rows(cluster, monkeypatch):
    monkeypatch.setattr(frames, "is_connect", lambda frame: True)
    cluster.numbers = []
    partitions = frames.partitions_of(cluster, work, 2)
    assert partitions.run("order") == [("order", 0, []), ("order", 1, [])]
    cluster.numbers = [1]
    with pytest.raises(SinkError, match="of 2 partitions these have reported"):
        partitions.run("order")


def test_an_order_is_small_and_comes_back_whole():
    order = frames._Order("token", 1000, tuple(range(1000)))
    text = frames._written(order)
    assert len(text) < len(pickle.dumps(order))
    assert frames._read(text) == order
