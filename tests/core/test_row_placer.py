"""Where rows without key and partition go that lie among others."""

from __future__ import annotations

from array import array

import pytest

from tests.core.support import (
    TP0,
    MiddleRng,
    append,
    know,
    make_accumulator,
    make_metadata,
    seeded,
    topic_metadata,
)
from txnproducer._core.append.row_placer import RowPlacer, merged
from txnproducer.records import TopicPartition


def placer(partition_count=3, **options):
    """Return a placer and its accumulator. The random numbers count the partitions up."""
    metadata = make_metadata()
    know(metadata, topic_metadata("topic", [0] * partition_count))
    accumulator = make_accumulator(buffer_memory=10**6, rng=MiddleRng(), **options)
    return RowPlacer(metadata, accumulator), accumulator


def place(one, sizes):
    """Place rows in stretches of these sizes, as far as each has room. Return the partitions."""
    partitions = []
    for number, size in enumerate(sizes):
        partition, room_bytes = one.choose("topic", is_first=number == 0)
        one.note("topic", min(size, room_bytes))
        partitions.append(partition)
    return partitions


def test_a_topic_that_is_not_known_has_no_place():
    one, accumulator = placer()
    assert one.choose("other", is_first=True) is None
    know(one._metadata, topic_metadata("other", []))
    assert one.choose("other", is_first=True) is None
    assert "other" not in accumulator.topics


def test_each_partition_gets_a_batch_of_rows_and_then_another_one_does():
    one, _ = placer()
    assert one.choose("topic", is_first=True) == (0, 1_000)
    one.note("topic", 1_000)
    assert one.choose("topic", is_first=False) == (1, 1_000)
    one.note("topic", 1_000)
    assert one.choose("topic", is_first=False) == (2, 1_000)


def test_a_batch_that_the_rows_do_not_quite_fill_is_followed_by_one_more():
    # As where records are sent one by one.
    one, _ = placer()
    assert place(one, [990] * 6) == [0, 0, 1, 1, 2, 2]


def test_the_rows_of_short_calls_are_counted_as_well():
    one, _ = placer()
    partitions = []
    for _ in range(30):
        partitions += place(one, [100])
    assert partitions == [0] * 10 + [1] * 10 + [2] * 10


def test_the_first_rows_fill_the_batch_that_is_open():
    one, accumulator = placer()
    [partition] = place(one, [0])
    append(accumulator, TopicPartition("topic", partition), b"x" * 600)
    _, room_bytes = one.choose("topic", is_first=True)
    batch = accumulator.topic_queues("topic").queue(partition).open_batch
    assert room_bytes == 1_000 - batch.estimated_size_bytes


def test_a_batch_that_is_full_leaves_room_for_another_one():
    one, accumulator = placer(partition_count=1)
    place(one, [0])
    append(accumulator, TP0, b"x" * 2_000)
    assert one.choose("topic", is_first=True) == (0, 1_000)


def test_rows_that_were_counted_when_they_were_placed_are_not_counted_in_their_batch():
    one, accumulator = placer()
    queues = accumulator.topic_queues("topic")
    place(one, [0])
    append(accumulator, TP0, b"x" * 100)  # of others: counts as well
    assert place(one, [500]) == [0]
    counted = queues.partitioner.produced_bytes
    assert one.choose("topic", is_first=True) is not None  # before the rows are in their batch
    assert queues.partitioner.produced_bytes == counted
    append(accumulator, TP0, b"x" * 490)
    assert one.choose("topic", is_first=True) is not None
    assert counted <= queues.partitioner.produced_bytes < counted + 20


@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_with_a_codec_there_is_room_for_more_bytes_before_they_are_compressed(ratio):
    one, accumulator = placer(compression_type="gzip")
    accumulator.topic_queues("topic").compression_ratio = ratio
    partition, room_bytes = one.choose("topic", is_first=True)
    assert (partition, room_bytes) == (0, 1_000 / ratio)
    one.note("topic", room_bytes)
    assert accumulator.topic_queues("topic").partitioner.produced_bytes == 1_000


def test_a_batch_size_of_zero_leaves_each_row_to_itself():
    one, _ = placer(batch_size=0)
    assert place(one, [80] * 3) == [0, 1, 2]


def test_the_choice_is_as_adaptive_as_that_for_records():
    one, accumulator = placer(2)
    accumulator._rng = accumulator.topic_queues("topic").partitioner._rng = seeded(3)
    for number in (0, 1):
        accumulator.topic_queues("topic").queue(number)
    for _ in range(30):
        append(accumulator, TP0, b"x" * 990)
        accumulator.topic_queues("topic").queue(0).close_open_batch()
    partitions = place(one, [1_000] * 100)
    assert partitions.count(0) < 20


def test_spans_of_one_partition_become_one_in_the_order_of_the_rows():
    order = array("i", [1, 4, 0, 3, 2, 5])

    rows, spans = merged(order, [(0, 0, 2), (1, 2, 4), (0, 4, 6)])

    assert list(rows) == [1, 2, 4, 5, 0, 3]
    assert spans == [(0, 0, 4), (1, 4, 6)]


def test_a_partition_with_one_span_keeps_it():
    rows, spans = merged(array("i", [2, 0, 1]), [(7, 1, 3), (3, 0, 1)])

    assert list(rows) == [2, 0, 1]
    assert spans == [(3, 0, 1), (7, 1, 3)]
