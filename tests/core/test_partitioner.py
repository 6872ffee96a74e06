"""Where records go when no partition is named."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Any

import pytest

from tests.core.sending import idempotent
from tests.core.support import MiddleRng, append, make_accumulator, seeded, snapshot
from txnproducer._core.batches.partitioner import BuiltInPartitioner, murmur2, partition_for_key
from txnproducer._core.batches.record_accumulator import RecordAccumulator
from txnproducer.records import TopicPartition

# From the Java client: the signed values that its own tests expect.
JAVA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.conformance("5.39")
@pytest.mark.parametrize(("key", "expected"), JAVA_VECTORS.items())
def test_a_key_hashes_as_in_the_java_client(key: bytes, expected: int):
    assert murmur2(key) == expected & 0xFFFFFFFF


@pytest.mark.conformance("5.39")
def test_a_key_goes_to_its_positive_hash_modulo_all_partitions():
    for key, hashed in JAVA_VECTORS.items():
        assert partition_for_key(key, 7) == (hashed & 0x7FFFFFFF) % 7


@pytest.mark.conformance("5.43")
def test_a_sticky_size_below_one_byte_is_refused():
    with pytest.raises(ValueError, match="at least 1 byte"):
        BuiltInPartitioner(0, MiddleRng())


@pytest.mark.conformance("5.40")
def test_it_is_time_to_switch_after_the_sticky_size_when_the_batch_is_full():
    partitioner = BuiltInPartitioner(100, MiddleRng())
    assert not partitioner.update(99, is_switch_enabled=True)
    assert partitioner.update(1, is_switch_enabled=True)


@pytest.mark.conformance("5.40")
def test_an_open_batch_holds_the_switch_back_until_twice_the_size():
    partitioner = BuiltInPartitioner(100, MiddleRng())
    assert not partitioner.update(199, is_switch_enabled=False)
    assert partitioner.update(1, is_switch_enabled=False)


@pytest.mark.conformance("5.41")
def test_partitions_without_a_leader_are_left_out_unless_none_has_one():
    partitioner = BuiltInPartitioner(1, seeded(3))
    drawn = {partitioner.switch(3, [0, 2]) for _ in range(50)}
    assert drawn == {0, 2}
    drawn = {partitioner.switch(3, []) for _ in range(50)}
    assert drawn == {0, 1, 2}


@pytest.mark.conformance("5.42")
def test_longer_queues_are_drawn_less_often_in_exact_proportion():
    class CountingRng(MiddleRng):
        limit = 0

        def randrange(self, stop: int, /) -> int:
            self.limit = stop
            return super().randrange(stop)

    rng = CountingRng()
    partitioner = BuiltInPartitioner(1, rng)
    lengths = [(5, 0), (6, 3), (7, 1)]  # weights 4, 1, 3
    drawn = Counter(partitioner.switch(8, [5, 6, 7], lambda: lengths) for _ in range(8 * 10))
    assert rng.limit == 8
    assert drawn == {5: 40, 6: 10, 7: 30}


@pytest.mark.conformance("5.42")
@pytest.mark.parametrize(("count", "looks"), [(2, 300), (199, 300), (300, 100), (5_000, 6)])
def test_the_lengths_of_many_queues_serve_several_draws(count: int, looks: int):
    looked_at: list[int] = []

    def look():
        looked_at.append(0)
        return [(partition, partition % 2) for partition in range(count)]

    partitioner = BuiltInPartitioner(1, seeded(3))
    available = list(range(count))
    drawn = Counter(partitioner.switch(count, available, look) % 2 for _ in range(300))
    assert len(looked_at) == looks
    assert drawn[0] > 1.5 * drawn[1]


def test_a_change_of_the_leaders_ends_the_lengths_that_were_looked_at():
    partitioner = BuiltInPartitioner(1, seeded(3))
    partitioner.switch(5_000, list(range(5_000)), lambda: [(number, 1) for number in range(5_000)])
    # The old lengths would lead to a partition that has lost its leader.
    assert [partitioner.switch(5_000, [0], lambda: [(0, 9)]) for _ in range(10)] == [0] * 10


def fill(accumulator: RecordAccumulator, count: int, leaders: list[int]) -> list[int]:
    """Append records without key and partition, one batch each, and return their partitions."""
    partitions = []
    queues = accumulator.topic_queues("topic")
    for _ in range(count):
        queue = accumulator.sticky_queue(queues, snapshot(leaders))
        append(accumulator, queue.topic_partition, b"x" * 900)
        queue.close_open_batch()
        partitions.append(queue.topic_partition.partition)
    return partitions


@pytest.mark.conformance("5.40")
def test_records_stay_with_a_partition_for_about_one_batch():
    accumulator = make_accumulator(
        batch_size=1_000, is_adaptive_partitioning=False, buffer_memory=10**6
    )
    queues = accumulator.topic_queues("topic")
    partitions = []
    for _ in range(60):  # of about 110 bytes: nine fill a batch
        queue: Any = queues.sticky_queue
        batch = None if queue is None else queue.open_batch
        if batch is None or not batch.builder.has_room_for(100, None, b"x" * 100):
            if queue is not None:
                queue.close_open_batch()
            queue = accumulator.sticky_queue(queues, snapshot([0, 0, 0]))
        append(accumulator, queue.topic_partition, b"x" * 100)
        queues.note_sticky_batch()
        partitions.append(queue.topic_partition.partition)
    runs = [len(list(run)) for _, run in groupby(partitions)]
    # The first batch ends just below the sticky size, so a partition gets one batch or two.
    assert sum(runs) == 60
    assert set(runs[:-1]) == {16}


@pytest.mark.conformance("5.42")
def test_adaptive_choice_begins_once_every_partition_has_a_queue():
    accumulator = make_accumulator(buffer_memory=10**6, rng=seeded(5))
    queues = accumulator.topic_queues("topic")
    fill(accumulator, 3, [0, 0])
    for place in (TopicPartition("topic", 0), TopicPartition("topic", 1)):
        queues.queue(place.partition)
    queues.queue(0).batches.clear()
    for _ in range(20):
        append(accumulator, TopicPartition("topic", 1), b"x" * 990)
        queues.queue(1).close_open_batch()
    drawn: Counter[int] = Counter()
    for _ in range(300):
        queues.sticky_queue = None
        drawn[accumulator.sticky_queue(queues, snapshot([0, 0])).topic_partition.partition] += 1
    assert drawn[1] < 30  # one in more than twenty


@pytest.mark.conformance("5.42")
def test_a_broker_that_was_ready_but_not_drained_for_too_long_is_left_out():
    accumulator = make_accumulator(partition_availability_timeout_ms=10, rng=seeded(5))
    queues = accumulator.topic_queues("topic")
    for partition in (0, 1):
        append(accumulator, TopicPartition("topic", partition))
    accumulator.update_node_latency(1, 100, can_drain=True)
    accumulator.update_node_latency(1, 110, can_drain=False)
    assert drawn_of(accumulator, queues) == {0, 1}  # so long it may take
    accumulator.update_node_latency(1, 111, can_drain=False)
    assert drawn_of(accumulator, queues) == {0}
    accumulator.update_node_latency(1, 112, can_drain=True)
    assert drawn_of(accumulator, queues) == {0, 1}


@pytest.mark.conformance("5.42")
@pytest.mark.parametrize(
    "off", [{"partition_availability_timeout_ms": 0}, {"is_adaptive_partitioning": False}]
)
def test_no_broker_is_left_out_where_that_is_switched_off(off):
    options = {"partition_availability_timeout_ms": 10, "rng": seeded(5)} | off
    accumulator = make_accumulator(**options)
    queues = accumulator.topic_queues("topic")
    for partition in (0, 1):
        append(accumulator, TopicPartition("topic", partition))
    accumulator.update_node_latency(1, 100, can_drain=True)
    accumulator.update_node_latency(1, 10_000, can_drain=False)
    assert drawn_of(accumulator, queues) == {0, 1}


@pytest.mark.conformance("5.42")
def test_the_choice_is_even_while_a_partition_has_had_no_queue():
    accumulator = make_accumulator(buffer_memory=10**6, rng=seeded(5))
    queues = accumulator.topic_queues("topic")
    for _ in range(20):
        append(accumulator, TopicPartition("topic", 1), b"x" * 990)
        queues.queue(1).close_open_batch()
    drawn = sum(
        BuiltInPartitioner(1, seeded(seed)).switch(
            2, [0, 1], lambda: accumulator._queue_lengths(queues, snapshot([0, 0]))
        )
        for seed in range(100)
    )
    assert 30 < drawn < 70


@pytest.mark.conformance("5.42")
def test_the_sender_notes_which_brokers_have_data_ready_and_which_take_them():
    harness = idempotent(node_count=2, partitioner_availability_timeout_ms=10)
    accumulator = harness.core._accumulator
    for partition in (0, 1):
        harness.client.prepare_produce()
        harness.send(partition=partition).result()
    assert not accumulator._is_node_slow(1)
    harness.client.stop_node(1)
    harness.send(partition=1)
    harness.run_for(100)
    assert [accumulator._is_node_slow(node) for node in (0, 1)] == [False, True]
    harness.client.start_node(1)
    harness.run_for(100)
    assert not accumulator._is_node_slow(1)


def drawn_of(accumulator, queues):
    """Return the partitions that are drawn for records without a key."""
    drawn = set()
    for _ in range(50):
        queues.sticky_queue = None
        drawn.add(accumulator.sticky_queue(queues, snapshot([0, 1])).topic_partition.partition)
    return drawn
