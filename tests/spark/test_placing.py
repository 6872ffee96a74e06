"""Where rows belong in a whole batch, and how Spark is brought to send them there."""

from __future__ import annotations

import math
from typing import Any

import pytest

from txnproducer._core.batches.partitioner import partition_for_key
from txnproducer.spark.errors import SinkError
from txnproducer.spark.rows import placing
from txnproducer.spark.rows.placing import PLACE, PlaceFinder, own_batches, placed
from txnproducer.spark.rows.spark_hash import numbers_by_hash, spark_hash

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")

KEYS = ["a", None, "", "a longer key", "ключ"]
WANTED = [None if key is None else partition_for_key(key.encode(), 4) for key in KEYS]
KINDS = [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()]


@pytest.fixture(autouse=True)
def task(monkeypatch):
    monkeypatch.setattr(placing, "_task_number", lambda: 6)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_key_has_the_place_that_the_producer_would_give_it(kind):
    found = PlaceFinder(4).find(pa.array(KEYS).cast(kind), None)
    assert found.type == pa.int32()
    # A row without one stays in its task.
    assert found.to_pylist() == [2 if place is None else place for place in WANTED]


def test_a_partition_counts_before_a_key_and_rows_with_neither_stay_together():
    keys = pa.array(["a", "a", None, None])
    partitions = pa.array([3, None, 0, None], pa.int32())
    assert PlaceFinder(4).find(keys, partitions).to_pylist() == [3, WANTED[0], 0, 2]
    assert PlaceFinder(4).find(None, partitions).to_pylist() == [3, 2, 0, 2]
    assert PlaceFinder(4).find(pa.nulls(2, pa.string()), pa.nulls(2, pa.int32())).to_pylist() == [
        2,
        2,
    ]


def test_a_slice_has_the_places_of_its_rows_and_none_has_none():
    keys = pa.array(KEYS)
    assert PlaceFinder(4).find(keys[3:], None).to_pylist() == WANTED[3:]
    assert PlaceFinder(4).find(keys[:0], None).to_pylist() == []


def test_another_number_can_stand_for_a_partition():
    found = PlaceFinder(4, (10, 11, 12, 13)).find(None, pa.array([3, None, 0], pa.int32()))
    assert found.to_pylist() == [13, 12, 10]


@pytest.mark.parametrize("place", [-1, 4])
def test_a_partition_that_the_topic_has_not_is_refused(place):
    with pytest.raises(SinkError, match="partitions 0 to 3"):
        PlaceFinder(4).find(None, pa.array([0, place, 3], pa.int32()))


def rows(*places):
    return pa.RecordBatch.from_pydict({"value": ["x"] * len(places), PLACE: pa.array(places)})


@pytest.mark.parametrize("batch", [rows(7, 9), rows(9, 7, 7), rows(8)])
def test_a_row_in_the_wrong_task_is_refused(batch):
    ours = own_batches(1, (5, 7, 9), [rows(7, 7), batch])
    assert next(ours).schema.names == ["value"]
    with pytest.raises(SinkError, match=r"partition [28] is in task 1"):
        next(ours)


def test_no_rows_are_in_no_wrong_task():
    [batch] = own_batches(1, (5, 7), [rows(7)[:0]])
    assert batch.num_rows == 0


# --- the shuffle --------------------------------------------------------------------------------


class Frame:
    """Notes how it is cut."""

    def __init__(self, *columns: str) -> None:
        self.columns = columns
        self.calls: list[Any] = []

    def coalesce(self, count):
        self.calls.append(("coalesce", count))
        return self

    def repartition(self, *given):
        self.calls.append(("repartition", *given))
        return self

    def repartitionById(self, *given):  # noqa: N802 - Spark's name
        self.calls.append(("repartitionById", *given))
        return self


@pytest.fixture
def spark_of(monkeypatch):
    """Return a function that sets how many tasks run at once, and a frame's partitions."""

    def set_both(tasks_at_once, count):
        monkeypatch.setattr(placing, "most_tasks_at_once", lambda frame: tasks_at_once)
        found = None if count is None else (Frame("planned"), count)
        monkeypatch.setattr(placing, "planned", lambda frame: found)
        monkeypatch.setattr(placing, "_with_number", lambda frame, *given: frame)

    return set_both


@pytest.mark.parametrize(
    ("tasks_at_once", "count"), [(3, 8), (8, None)], ids=["as many tasks", "not counted"]
)
def test_rows_without_places_stay_in_their_stage_if_no_more_tasks_could_run(
    spark_of, tasks_at_once, count
):
    spark_of(tasks_at_once, count)
    cut = placed(Frame("value"), 3)
    assert (cut.frame.calls, cut.count, cut.places) == ([("coalesce", 3)], None, ())


def test_a_frame_that_was_counted_is_not_planned_again(spark_of):
    spark_of(8, 3)
    cut = placed(Frame("value"), 3)
    assert (cut.frame.columns, cut.frame.calls) == (("planned",), [])
    assert (cut.count, cut.places) == (None, ())


@pytest.mark.parametrize("tasks_at_once", [4, math.inf])
def test_more_partitions_than_the_topic_has_are_sent_whole_where_more_tasks_run(
    spark_of, monkeypatch, tasks_at_once
):
    spark_of(tasks_at_once, 4)
    cut = placed(Frame("value"), 3)
    assert (cut.frame.columns, cut.frame.calls) == (("planned",), [("repartitionById", 3, PLACE)])
    assert (cut.count, cut.places) == (3, (0, 1, 2))
    monkeypatch.setattr(placing, "_takes_ids", lambda frame: False)
    cut = placed(Frame("value"), 3)
    assert cut.frame.calls[1:] == [("repartition", 3, PLACE)]
    assert (cut.count, cut.places) == (3, numbers_by_hash(3))


def test_rows_that_cannot_be_counted_are_shuffled(monkeypatch):
    monkeypatch.setattr(placing, "is_connect", lambda frame: True)
    cut = placed(Frame("value"), 3)
    assert (cut.frame.calls, cut.count, cut.places) == ([("repartition", 3)], 3, ())


def test_numbers_are_hashed_as_spark_does():
    # The results of Spark's own `hash` function for the ints from 0.
    hashes = [933211791, -559580957, 1765031574, -1823081949, -397064898, 1023896466, -331964951]
    assert [spark_hash(number) for number in range(7)] == hashes


@pytest.mark.parametrize("partitions", [1, 2, 3, 8, 50])
def test_each_partition_has_a_number_that_spark_sends_there(partitions):
    numbers = numbers_by_hash(partitions)
    assert [spark_hash(number) % partitions for number in numbers] == list(range(partitions))
