"""Waiting records: appending, memory, putting back, splitting, expiry, ends, flushes."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.support import (
    TP0,
    TP1,
    MiddleRng,
    answered,
    append,
    head,
    make_accumulator,
    queued,
    seeded,
)
from txnproducer._core.batches import record_accumulator
from txnproducer._core.batches.buffer_pool import BufferPool, MemoryTicket
from txnproducer._core.batches.partition_queues import is_before
from txnproducer._core.batches.producer_batch import ProducerBatch
from txnproducer._core.batches.results import FutureRecordMetadata
from txnproducer._core.metadata import NEVER_MS
from txnproducer.errors import IllegalStateError, KafkaError, TransactionAbortedError
from txnproducer.records import ProducerIdAndEpoch, TopicPartition

PRODUCER = ProducerIdAndEpoch(5, 1)


class RefusingBatch(ProducerBatch):
    """Takes no record, not even its first."""

    def try_append(self, *_):
        return None


def drain_one(accumulator, place=TP0, sequence=None):
    """Take a partition's first batch out as the sender does."""
    batch = accumulator.take_head(accumulator.topic_queues(place.topic).queue(place.partition))
    if sequence is not None:
        batch.set_producer_state(PRODUCER, sequence, is_transactional=False)
    accumulator.close_batch(batch)
    batch.sent(0)
    return batch


# --- append --------------------------------------------------------------------------------


@pytest.mark.conformance("5.01")
def test_records_fill_the_last_batch_and_then_a_new_one():
    accumulator = make_accumulator(batch_size=400)
    for _ in range(7):
        append(accumulator, value=b"x" * 100)
    assert [batch.record_count for batch in queued(accumulator)] == [3, 3, 1]


@pytest.mark.conformance("5.02")
def test_a_record_larger_than_batch_size_gets_a_full_batch_of_its_own():
    accumulator = make_accumulator(batch_size=400)
    append(accumulator, value=b"x" * 2_000)
    append(accumulator, value=b"y")
    first, second = queued(accumulator)
    assert first.is_full
    assert first.record_count == 1
    assert first.memory_bytes > 2_000
    assert second.memory_bytes == 400


@pytest.mark.conformance("5.05")
def test_a_batch_size_of_zero_means_one_record_per_batch():
    accumulator = make_accumulator(batch_size=0)
    append(accumulator)
    append(accumulator)
    assert [batch.record_count for batch in queued(accumulator)] == [1, 1]
    assert head(accumulator).is_full


def test_a_record_that_cannot_be_encoded_leaves_no_batch_and_no_memory_taken():
    accumulator = make_accumulator()
    with pytest.raises(TypeError):
        append(accumulator, value="text")
    assert accumulator.pool.available_bytes == accumulator.pool.total_bytes
    assert not accumulator.has_incomplete
    assert not accumulator.has_undrained


@pytest.mark.conformance("5.06")
def test_the_compression_estimate_improves_slowly_and_worsens_fast():
    queues = make_accumulator().topic_queues("topic")
    queues.compression_ratio = 0.8
    queues.learn_compression_ratio(0.2)
    assert queues.compression_ratio == pytest.approx(0.795)
    queues.learn_compression_ratio(0.8)
    assert queues.compression_ratio == pytest.approx(0.845)
    queues.learn_compression_ratio(1.2)
    assert queues.compression_ratio == pytest.approx(1.2)
    queues.learn_compression_ratio(queues.compression_ratio)
    assert queues.compression_ratio == pytest.approx(1.2)


@pytest.mark.conformance("5.06")
def test_after_a_refused_batch_the_estimate_is_at_least_one():
    accumulator = make_accumulator(compression_type="gzip")
    for _ in range(3):
        append(accumulator, value=b"x" * 200)
    batch = drain_one(accumulator)
    accumulator.topic_queues("topic").compression_ratio = 0.1
    accumulator.split_and_reenqueue(batch)
    assert accumulator.topic_queues("topic").compression_ratio == 1.0


@pytest.mark.conformance("5.06")
def test_after_a_refused_batch_that_did_not_compress_its_own_ratio_counts():
    accumulator = make_accumulator(compression_type="gzip")
    append(accumulator, value=bytes(seeded(1).randbytes(200)))
    batch = drain_one(accumulator)
    reached = batch.builder.actual_compression_ratio
    accumulator.topic_queues("topic").compression_ratio = 0.1
    accumulator.split_and_reenqueue(batch)
    assert accumulator.topic_queues("topic").compression_ratio == reached > 1.0


@pytest.mark.conformance("5.06")
def test_the_compression_ratio_of_a_batch_is_learnt_for_the_next_one_of_its_topic():
    accumulator = make_accumulator(compression_type="gzip")
    append(accumulator, value=b"x" * 200)
    drain_one(accumulator)
    assert accumulator.topic_queues("topic").compression_ratio == pytest.approx(0.995)
    append(accumulator)
    assert head(accumulator).builder.compression_ratio == pytest.approx(0.995)


# --- memory --------------------------------------------------------------------------------


@pytest.mark.conformance("5.31")
def test_without_memory_a_record_waits_with_a_ticket_and_nothing_is_appended():
    accumulator = make_accumulator(batch_size=1_000, buffer_memory=1_500)
    append(accumulator, TP0)
    ticket = append(accumulator, TP1)
    assert isinstance(ticket, MemoryTicket)
    assert queued(accumulator, TP1) == []
    assert not accumulator.pool.is_due(ticket)
    answered(accumulator, drain_one(accumulator))
    assert accumulator.pool.is_due(ticket)
    assert isinstance(append(accumulator, TP1, ticket=ticket), FutureRecordMetadata)
    assert not accumulator.pool.waiting


@pytest.mark.conformance("5.31")
def test_memory_is_given_first_come_first_served():
    pool = BufferPool(100)
    assert pool.allocate(90) is None
    large = pool.allocate(50)
    small = pool.allocate(5)  # would fit, but others came first
    assert large is not None
    assert small is not None
    assert not pool.is_due(large)
    assert not pool.is_due(small)
    pool.deallocate(90)
    assert pool.is_due(large)
    assert not pool.is_due(small)
    assert pool.allocate(50, large) is None
    assert pool.allocate(5, small) is None
    assert pool.available_bytes == 45


def test_one_that_waits_may_need_another_amount_and_keeps_its_place():
    pool = BufferPool(100)
    pool.allocate(90)
    first, second = pool.allocate(50), pool.allocate(5)
    assert first is not None
    assert pool.allocate(80, first) is first
    assert pool.allocate(5, second) is second
    pool.deallocate(50)
    assert not pool.is_due(first)
    pool.deallocate(40)
    assert pool.allocate(80, first) is None
    assert pool.allocate(5, second) is None
    assert pool.available_bytes == 15


def test_a_batch_that_refuses_its_first_record_gives_its_memory_back(monkeypatch):
    accumulator = make_accumulator()
    monkeypatch.setattr(record_accumulator, "ProducerBatch", RefusingBatch)
    with pytest.raises(IllegalStateError, match="empty batch"):
        append(accumulator)
    assert accumulator.pool.available_bytes == accumulator.pool.total_bytes
    assert queued(accumulator) == []


class InterruptedQueue(deque[Any]):
    """A queue that is interrupted at every append: before it, or just after it."""

    is_late = False

    def append(self, item):
        if self.is_late:
            super().append(item)
        raise KeyboardInterrupt


def begin_filled(accumulator, *values):
    """Begin a batch with records of some values, by default of one. Return it, or None."""
    queues = accumulator.topic_queues("topic")

    def fill(buffer):
        return sum(buffer.append(100, None, each) is not None for each in values or [b"value"])

    return accumulator.begin_batch(queues, queues.queue(0), 0, fill)


@pytest.mark.parametrize("begin", [append, begin_filled])
@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("is_another_waiting", [False, True])
def test_an_interrupt_leaves_a_new_batch_in_its_queue_and_in_the_books_or_nowhere(
    begin, is_another_waiting, is_late
):
    accumulator = make_accumulator(batch_size=1_000)
    queue = accumulator.topic_queues("topic").queue(0)
    if is_another_waiting:
        append(accumulator)
        queue.close_open_batch()
    queue.batches = InterruptedQueue(queue.batches)
    queue.batches.is_late = is_late
    with pytest.raises(KeyboardInterrupt):
        begin(accumulator)
    count = is_another_waiting + is_late
    assert len(queue.batches) == count
    assert accumulator.pool.available_bytes == 10_000 - 1_000 * count
    assert accumulator.has_undrained is (count > 0)
    for _ in range(count):
        answered(accumulator, drain_one(accumulator))
    assert accumulator.pool.available_bytes == 10_000
    assert not accumulator.has_incomplete


def test_where_nothing_waits_nothing_is_taken_out():
    assert make_accumulator().take_out(TP0, bool) == []


@pytest.mark.conformance("5.32")
def test_giving_up_lets_the_next_one_through_and_closing_wakes_everybody():
    pool = BufferPool(100)
    pool.allocate(100)
    first, second = pool.allocate(80), pool.allocate(10)
    assert first is not None
    assert second is not None
    pool.deallocate(20)
    pool.give_up(first)
    assert pool.is_due(second)
    pool.give_up(first)  # again does nothing
    third = pool.allocate(100)
    assert third is not None
    assert not pool.is_due(third)
    pool.is_closed = True
    assert pool.is_due(third)
    pool.deallocate(80)  # memory still comes back after the close


@pytest.mark.conformance("5.33")
def test_memory_that_comes_back_twice_is_noticed():
    pool = BufferPool(100)
    pool.allocate(60)
    pool.deallocate(60)
    with pytest.raises(IllegalStateError, match="twice"):
        pool.deallocate(60)


@pytest.mark.conformance("5.33")
@pytest.mark.trap(35)
def test_a_batch_aborted_on_the_wire_keeps_its_memory_until_the_answer():
    accumulator = make_accumulator()
    append(accumulator)
    batch = drain_one(accumulator)
    accumulator.abort_batches(KafkaError("fatal"))
    assert not accumulator.has_incomplete
    assert accumulator.pool.available_bytes < accumulator.pool.total_bytes
    batch.is_in_flight = False
    accumulator.deallocate(batch)
    accumulator.deallocate(batch)
    assert accumulator.pool.available_bytes == accumulator.pool.total_bytes


# --- memory under a codec --------------------------------------------------------------------


def compressing(ratio=0.05, **options):
    """Return an accumulator whose batches are expected to become much smaller."""
    settings = {"batch_size": 1_000, "buffer_memory": 10_000, "compression_type": "gzip"}
    accumulator = make_accumulator(**settings | options)
    accumulator.topic_queues("topic").compression_ratio = ratio
    return accumulator


def assert_all_is_counted(accumulator, on_the_wire=()):
    """Check that the memory taken covers the contents of the batches."""
    pool = accumulator.pool
    waiting = [batch for queue in accumulator.active.values() for batch in queue.batches]
    held = sum(batch.builder.size_bytes for batch in waiting if not batch.is_closed)
    taken = sum(batch.memory_bytes for batch in [*waiting, *on_the_wire])
    assert held <= sum(batch.memory_bytes for batch in waiting)
    assert pool.available_bytes == pool.total_bytes - taken >= 0


def test_the_uncompressed_bytes_of_an_open_batch_are_counted():
    accumulator = compressing()
    sent = 0
    while not isinstance(append(accumulator, TP0, b"x" * 100), MemoryTicket):
        sent += 1
        assert_all_is_counted(accumulator)
    # The batch is larger than batch_size, and memory is used up before it is full.
    [batch] = queued(accumulator)
    assert 9_000 < batch.builder.size_bytes <= 10_000
    assert batch.record_count == sent
    assert not batch.is_full


def test_a_compressed_batch_gives_back_the_memory_saved():
    accumulator = compressing()
    for _ in range(80):
        append(accumulator, TP0, b"x" * 100)
    assert accumulator.pool.available_bytes <= 1_000
    batch = drain_one(accumulator)
    assert batch.memory_bytes == 1_000
    assert_all_is_counted(accumulator, [batch])
    answered(accumulator, batch)
    assert accumulator.pool.available_bytes == 10_000


def test_a_batch_larger_than_batch_size_though_compressed_keeps_its_size():
    accumulator = compressing()
    noise = seeded(1).randbytes(4_000)
    for start in range(0, 4_000, 100):
        append(accumulator, TP0, noise[start : start + 100])
    batch = drain_one(accumulator)
    assert batch.memory_bytes == len(batch.close()) > 4_000
    answered(accumulator, batch)
    assert accumulator.pool.available_bytes == 10_000


def test_a_batch_that_ended_before_it_was_compressed_gives_back_nothing_twice():
    accumulator = compressing()
    for _ in range(50):
        append(accumulator, TP0, b"x" * 100)
    batch = head(accumulator)
    accumulator.abort_batches(KafkaError("aborted"))
    assert accumulator.pool.available_bytes == 10_000
    accumulator.close_batch(batch)
    assert accumulator.pool.available_bytes == 10_000


def test_a_batch_without_a_codec_keeps_its_memory_until_its_end():
    accumulator = make_accumulator(batch_size=1_000)
    append(accumulator, TP0, b"x" * 3_000)
    memory_bytes = head(accumulator).memory_bytes
    assert drain_one(accumulator).memory_bytes == memory_bytes > 3_000


def test_a_waiter_for_memory_comes_before_a_batch_that_could_grow():
    accumulator = compressing(buffer_memory=4_000)
    while accumulator.pool.available_bytes >= 1_000:
        append(accumulator, TP0, b"x" * 100)
    ticket = append(accumulator, TP1, b"x" * 100)
    assert isinstance(ticket, MemoryTicket)
    while isinstance(append(accumulator, TP0, b"x" * 100), FutureRecordMetadata):
        pass
    assert accumulator.topic_queues("topic").queue(0).open_batch is None
    batch = drain_one(accumulator)
    assert batch.memory_bytes == 1_000
    assert isinstance(append(accumulator, TP1, b"x" * 100, ticket=ticket), FutureRecordMetadata)


def test_the_first_waiter_may_extend_a_batch_that_another_one_began_meanwhile():
    accumulator = compressing(buffer_memory=3_000)
    for place, size in ((TP0, 900), (TP0, 500), (TP1, 900)):
        append(accumulator, place, b"x" * size)
    ticket = append(accumulator, TP0, b"x" * 800)
    assert isinstance(ticket, MemoryTicket)
    answered(accumulator, drain_one(accumulator, TP1))
    queue = accumulator.topic_queues("topic").queue(0)
    queue.open_batch = head(accumulator)
    future = append(accumulator, TP0, b"x" * 800, ticket=ticket)
    assert isinstance(future, FutureRecordMetadata)
    assert len(queued(accumulator)) == 1
    assert not accumulator.pool.waiting
    assert_all_is_counted(accumulator)


def test_parts_of_a_compressed_batch_are_split_by_the_ratio_that_was_reached():
    accumulator = compressing(is_idempotent=True)
    noise = seeded(1).randbytes(6_000)
    for start in range(0, 6_000, 100):
        append(accumulator, TP0, noise[start : start + 100])
    batch = drain_one(accumulator, sequence=0)
    parts = accumulator.split_and_reenqueue(batch)
    accumulator.forget_split_batch(batch)
    assert accumulator.topic_queues("topic").compression_ratio >= 1.0
    assert sum(part.record_count for part in parts) == 60
    assert all(part.estimated_size_bytes <= 1_100 for part in parts)
    assert accumulator.pool.available_bytes == 10_000


@given(
    ratio=st.sampled_from([0.05, 0.3, 0.9, 1.2]),
    steps=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([0, 10, 100, 900, 1_500, 9_000])),
        max_size=120,
    ),
)
@settings(deadline=None)
def test_memory_bounds_the_bytes_held_for_any_sequence_of_sends(ratio, steps):
    accumulator = compressing(ratio)
    on_the_wire = []
    for action, size in steps:
        if action == 2:
            on_the_wire += [drain_one(accumulator, place) for place in list(accumulator.active)]
        elif isinstance(
            ticket := append(accumulator, (TP0, TP1)[action], b"x" * size), MemoryTicket
        ):
            accumulator.give_up(ticket)
            while on_the_wire:
                answered(accumulator, on_the_wire.pop())
        assert_all_is_counted(accumulator, on_the_wire)
    on_the_wire += [
        drain_one(accumulator, place)
        for place in list(accumulator.active)
        for _ in queued(accumulator, place)
    ]
    for batch in on_the_wire:
        answered(accumulator, batch)
    assert accumulator.pool.available_bytes == accumulator.pool.total_bytes


@pytest.mark.conformance("5.34")
def test_parts_of_a_split_take_no_memory_and_the_parents_comes_back_at_the_split():
    accumulator = make_accumulator(batch_size=1_000)
    for _ in range(5):
        append(accumulator, value=b"x" * 150)
    batch = drain_one(accumulator)
    batch.is_split = True  # so that it is halved
    parts = accumulator.split_and_reenqueue(batch)
    accumulator.forget_split_batch(batch)
    assert len(parts) > 1
    assert accumulator.pool.available_bytes == accumulator.pool.total_bytes
    for part in parts:
        answered(accumulator, drain_one(accumulator))
        assert part.is_done
    assert accumulator.pool.available_bytes == accumulator.pool.total_bytes
    assert not accumulator.has_incomplete


# --- putting back --------------------------------------------------------------------------


@pytest.mark.conformance("4.03")
@pytest.mark.quirk("D4")
def test_sequences_are_compared_across_the_wrap():
    assert is_before(0, 1)
    assert not is_before(1, 1)
    assert not is_before(1, 0)
    assert is_before(2**31 - 1, 0)
    assert not is_before(0, 2**31 - 1)
    assert is_before(2**31 - 5, 95)


@pytest.mark.conformance("4.11")
@pytest.mark.trap(23)
def test_a_retry_goes_after_smaller_sequences_and_before_all_without_a_number():
    accumulator = make_accumulator(is_idempotent=True, batch_size=0)
    for _ in range(4):
        append(accumulator)
    batches = [drain_one(accumulator, sequence=n) for n in range(3)]
    for n in (1, 0, 2):
        accumulator.reenqueue(batches[n], now_ms=0)
    assert [batch.base_sequence for batch in queued(accumulator)] == [0, 1, 2, -1]


def test_batches_that_come_back_together_may_share_a_request_again():
    accumulator = make_accumulator(batch_size=0, rng=seeded(1))
    for place in (TP0, TP0, TP1, TP0):
        append(accumulator, place)
    places = (TP0, TP0, TP1, TP0)
    first, older, second, later = (drain_one(accumulator, place) for place in places)
    older.attempts = 1
    for batch in (first, older, second):
        accumulator.reenqueue(batch, now_ms=500)
    accumulator.reenqueue(later, now_ms=501)
    assert first.backoff_ms == second.backoff_ms != later.backoff_ms


@pytest.mark.conformance("4.03")
def test_the_order_holds_across_the_wrap_of_sequences():
    accumulator = make_accumulator(is_idempotent=True, batch_size=0)
    for _ in range(2):
        append(accumulator)
    last = drain_one(accumulator, sequence=2**31 - 1)
    first = drain_one(accumulator, sequence=0)
    accumulator.reenqueue(first, now_ms=0)
    accumulator.reenqueue(last, now_ms=0)
    assert [batch.base_sequence for batch in queued(accumulator)] == [2**31 - 1, 0]


@pytest.mark.conformance("4.11")
def test_an_idempotent_batch_without_a_sequence_cannot_be_put_back():
    accumulator = make_accumulator(is_idempotent=True)
    append(accumulator)
    with pytest.raises(IllegalStateError, match="without a sequence"):
        accumulator.reenqueue(drain_one(accumulator), now_ms=0)


def test_without_idempotence_a_retry_goes_to_the_front():
    accumulator = make_accumulator(batch_size=0)
    append(accumulator)
    append(accumulator)
    batch = drain_one(accumulator)
    accumulator.reenqueue(batch, now_ms=0)
    assert queued(accumulator)[0] is batch


@pytest.mark.conformance("5.12")
def test_backoff_doubles_up_to_its_cap():
    accumulator = make_accumulator(rng=MiddleRng())
    append(accumulator)
    waits = []
    for _ in range(6):
        batch = drain_one(accumulator)
        accumulator.reenqueue(batch, now_ms=0)
        waits.append(batch.backoff_left_ms(0))
    assert waits == [100, 200, 400, 800, 1_000, 1_000]


@pytest.mark.conformance("5.13")
@pytest.mark.quirk("D5")
def test_the_jitter_of_a_backoff_is_drawn_once_per_attempt():
    """Java draws it at every look, and the shortest of many draws wins."""
    accumulator = make_accumulator(rng=seeded(2))
    append(accumulator)
    drawn = set()
    for now_ms in range(40):
        batch = drain_one(accumulator)
        batch.attempts = 0
        accumulator.reenqueue(batch, now_ms)
        looks = {batch.backoff_left_ms(now_ms) for _ in range(5)}
        assert len(looks) == 1  # looking again does not draw again
        drawn |= looks
    assert min(drawn) >= 80
    assert max(drawn) <= 120
    assert len(drawn) > 10


# --- split ---------------------------------------------------------------------------------


@pytest.mark.conformance("4.50")
def test_parts_of_a_split_take_the_parents_place_in_sequence_order():
    accumulator = make_accumulator(is_idempotent=True, batch_size=1_000)
    for _ in range(5):
        append(accumulator, value=b"x" * 150)
    append(accumulator, value=b"x" * 900)
    batch = drain_one(accumulator, sequence=0)
    batch.is_split = True
    parts = accumulator.split_and_reenqueue(batch)
    assert queued(accumulator)[: len(parts)] == parts
    assert [part.base_sequence for part in parts] == sorted(p.base_sequence for p in parts)
    assert not queued(accumulator)[-1].has_sequence


# --- expiry --------------------------------------------------------------------------------


@pytest.mark.conformance("5.22")
def test_a_batch_after_a_live_one_does_not_expire_before_it():
    accumulator = make_accumulator(batch_size=0, delivery_timeout_ms=100, is_idempotent=True)
    append(accumulator, TP0, now_ms=60)
    append(accumulator, TP0, now_ms=0)  # as a clock that went back begins it
    assert accumulator.expired_batches(100) == ([], 160)
    assert len(queued(accumulator, TP0)) == 2
    expired, _ = accumulator.expired_batches(160)
    assert [batch.created_ms for batch in expired] == [60, 0]


def test_without_numbers_a_batch_expires_also_after_a_live_one():
    # A retry goes to the front there, so the order of a queue says nothing.
    accumulator = make_accumulator(batch_size=0, delivery_timeout_ms=100)
    append(accumulator, TP0, now_ms=60)
    append(accumulator, TP0, now_ms=0)
    live = head(accumulator, TP0)
    expired, next_ms = accumulator.expired_batches(100)
    assert [batch.created_ms for batch in expired] == [0]
    assert next_ms == 160
    assert list(queued(accumulator, TP0)) == [live]


@pytest.mark.conformance("5.22")
def test_expiry_takes_each_queue_from_its_head_and_stops_at_the_first_live_batch():
    accumulator = make_accumulator(batch_size=0, delivery_timeout_ms=100)
    append(accumulator, TP0, now_ms=0)
    append(accumulator, TP0, now_ms=60)
    append(accumulator, TP1, now_ms=10)
    first = head(accumulator, TP0)
    assert accumulator.expired_batches(99) == ([], 100)
    expired, next_ms = accumulator.expired_batches(100)
    assert expired == [first]
    assert next_ms == 110
    expired, next_ms = accumulator.expired_batches(160)
    assert len(expired) == 2
    assert not accumulator.has_undrained


@pytest.mark.conformance("5.21")
def test_a_muted_partition_expires_too():
    accumulator = make_accumulator(delivery_timeout_ms=100)
    append(accumulator)
    accumulator.mute_partition(TP0)
    expired, _ = accumulator.expired_batches(100)
    assert len(expired) == 1


@pytest.mark.conformance("5.21")
def test_a_record_never_joins_an_expired_batch():
    accumulator = make_accumulator(delivery_timeout_ms=100)
    append(accumulator)
    (expired,), _ = accumulator.expired_batches(100)
    append(accumulator, now_ms=100)
    assert expired.record_count == 1
    assert head(accumulator) is not expired


# --- flush, abort, close -------------------------------------------------------------------


@pytest.mark.conformance("2.33")
def test_a_flush_waits_for_the_batches_of_its_beginning_and_their_parts():
    accumulator = make_accumulator(batch_size=1_000)
    for _ in range(5):
        append(accumulator, TP0, value=b"x" * 150)
    ticket = accumulator.begin_flush()
    append(accumulator, TP1)  # later: not waited for
    assert accumulator.is_flush_in_progress
    batch = drain_one(accumulator)
    batch.is_split = True
    parts = accumulator.split_and_reenqueue(batch)
    accumulator.forget_split_batch(batch)
    assert not ticket.is_done()
    for _ in parts:
        assert not ticket.is_done()
        answered(accumulator, drain_one(accumulator))
    assert ticket.is_done()
    assert not accumulator.is_flush_in_progress
    assert accumulator.has_incomplete


@pytest.mark.conformance("5.36")
@pytest.mark.trap(20)
def test_aborting_undrained_batches_keeps_numbered_ones():
    accumulator = make_accumulator(is_idempotent=True, batch_size=0)
    futures = [append(accumulator) for _ in range(3)]
    batch = drain_one(accumulator, sequence=0)
    accumulator.reenqueue(batch, now_ms=0)
    accumulator.abort_undrained_batches(TransactionAbortedError())
    assert queued(accumulator) == [batch]
    assert not futures[0].done()
    assert all(isinstance(f.exception(), TransactionAbortedError) for f in futures[1:])
    assert accumulator.pool.total_bytes - accumulator.pool.available_bytes == batch.memory_bytes


@pytest.mark.conformance("5.36")
def test_aborting_undrained_batches_without_idempotence_keeps_closed_ones():
    accumulator = make_accumulator(batch_size=0)
    append(accumulator)
    append(accumulator)
    batch = drain_one(accumulator)
    accumulator.reenqueue(batch, now_ms=0)
    accumulator.abort_undrained_batches(KafkaError())
    assert queued(accumulator) == [batch]


@pytest.mark.conformance("5.37")
def test_aborting_all_fails_waiting_and_in_flight_batches():
    accumulator = make_accumulator(batch_size=0)
    futures = [append(accumulator, place) for place in (TP0, TP0, TP1)]
    drain_one(accumulator)
    accumulator.abort_batches(KafkaError("over"))
    assert [str(future.exception()) for future in futures] == ["over"] * 3
    assert not accumulator.has_undrained
    append(accumulator)  # the queues are usable, and the aborted batches are not
    assert head(accumulator).record_count == 1


@pytest.mark.conformance("5.38")
def test_a_batch_leaves_the_incomplete_set_exactly_once():
    accumulator = make_accumulator()
    append(accumulator)
    batch = drain_one(accumulator)
    answered(accumulator, batch)
    with pytest.raises(IllegalStateError, match="twice"):
        accumulator.complete_batch(batch)


@pytest.mark.conformance("5.38")
def test_a_batch_that_was_split_is_incomplete_no_more_only_its_parts_are():
    accumulator = make_accumulator()
    append(accumulator, value=b"x" * 200)
    append(accumulator, value=b"x" * 200)
    batch = drain_one(accumulator)
    batch.is_split = True  # so that it is halved
    parts = accumulator.split_and_reenqueue(batch)
    accumulator.forget_split_batch(batch)
    assert len(parts) == 2
    for part in parts:
        assert accumulator.has_incomplete
        drain_one(accumulator)
        answered(accumulator, part)
    assert not accumulator.has_incomplete


@pytest.mark.conformance("2.32")
def test_a_batch_stays_incomplete_until_its_callbacks_ran():
    accumulator = make_accumulator()
    future = append(accumulator, on_delivery=lambda *_: None)
    answered(accumulator, drain_one(accumulator))
    assert accumulator.has_incomplete
    assert not future.done()
    accumulator.abort_batches(KafkaError())  # it has ended: nothing is left to abort
    (callbacks,) = accumulator.callbacks
    callbacks.run()
    callbacks.on_finished()
    assert not accumulator.has_incomplete
    assert future.exception() is None


@pytest.mark.conformance("5.16")
def test_the_served_queue_goes_after_the_others():
    accumulator = make_accumulator(batch_size=0)
    tp2 = TopicPartition("other", 0)
    for place in (TP0, TP1, tp2, TP0):
        append(accumulator, place)
    drain_one(accumulator, TP0)
    assert list(accumulator.active) == [TP1, tp2, TP0]


def test_batches_are_taken_out_and_an_empty_queue_is_no_longer_active():
    accumulator = make_accumulator(batch_size=0, is_idempotent=True)
    append(accumulator)
    append(accumulator, TP1)
    append(accumulator, TP1)
    written = [head(accumulator, TP0), head(accumulator, TP1)]
    assert accumulator.take_out(TP0, written.__contains__) == [written[0]]
    assert accumulator.take_out(TP1, written.__contains__) == [written[1]]
    assert list(accumulator.active) == [TP1]
    assert len(queued(accumulator, TP1)) == 1


def fill(accumulator, place=TP0, batches=2):
    """Append records until a partition has so many batches."""
    while len(queued(accumulator, place)) < batches:
        append(accumulator, place, b"v" * 100)


def records_of(*batches):
    """Return the records of batches that are sealed."""
    return [batch.builder.seal() for batch in batches]


def test_batches_without_room_are_there_to_be_compressed_ahead_oldest_first():
    accumulator = compressing(ratio=1.0)
    fill(accumulator, TP0)
    fill(accumulator, TP1)

    heads = [head(accumulator, TP0), head(accumulator, TP1)]
    assert accumulator.full_batches.take() == records_of(*heads)
    assert not accumulator.full_batches.take()


def test_without_a_codec_there_is_nothing_to_compress_ahead():
    accumulator = make_accumulator()
    fill(accumulator)

    assert not accumulator.full_batches


LARGE = {"batch_size": 65_536, "buffer_memory": 1_000_000, "max_request_size": 1_000_000}


@pytest.mark.parametrize(("codec", "count"), [("lz4", 9), ("zstd", 9), ("gzip", 2)])
def test_half_a_megabyte_is_compressed_ahead_at_a_time_and_less_by_gzip(codec, count):
    accumulator = compressing(1.0, compression_type=codec, **LARGE)
    while len(queued(accumulator)) < 12:
        append(accumulator, TP0, b"v" * 29_000)
    batches = queued(accumulator)

    assert accumulator.full_batches.take() == records_of(*batches[:count])
    assert accumulator.full_batches.take() == records_of(*batches[count:-1][:count])


def test_a_thread_that_waits_gets_the_oldest_batches_but_for_the_two_that_are_sent_next():
    accumulator = compressing(ratio=1.0)
    fill(accumulator, batches=7)
    first, second, third, failed, drained, last, _ = queued(accumulator)
    accumulator.close_batch(drained)
    failed.abort(KafkaError("gone"))

    lent = [accumulator.full_batches.lend(0) for _ in range(5)]

    assert lent == [*records_of(third, last, second, first), None]
    assert not accumulator.full_batches


def test_a_batch_is_held_until_the_loop_takes_it_or_for_a_while_if_a_thread_has_it():
    accumulator = compressing(ratio=1.0)
    fill(accumulator, batches=3)
    first, second, _ = queued(accumulator)
    assert accumulator.full_batches.held == {first: NEVER_MS, second: NEVER_MS}

    accumulator.full_batches.lend(1_000)
    accumulator.full_batches.take()

    assert accumulator.full_batches.held == {second: 1_100}


def test_a_batch_drained_while_another_thread_compresses_it_is_sent_as_drained():
    accumulator = compressing(ratio=1.0)
    fill(accumulator)
    batch = head(accumulator)
    sealed = accumulator.full_batches.lend(0)
    accumulator.close_batch(batch)
    drained = bytes(batch.builder.build())

    sealed.compress()
    accumulator.settle_compressed()

    assert bytes(batch.builder.build()) == drained
    assert len(list(batch.builder.records())) == batch.record_count


def test_a_batch_that_was_drained_or_has_failed_is_not_compressed_ahead():
    accumulator = compressing(ratio=1.0)
    fill(accumulator, batches=4)
    drained, failed, third, _ = queued(accumulator)
    accumulator.close_batch(drained)
    failed.abort(KafkaError("gone"))

    assert accumulator.full_batches.take() == records_of(third)


def test_records_are_appended_after_a_batch_that_is_compressed_ahead():
    accumulator = compressing(ratio=1.0)
    fill(accumulator)
    first, second = queued(accumulator)
    count = second.record_count
    (sealed,) = accumulator.full_batches.take()

    append(accumulator, TP0, b"v" * 100)

    assert second.record_count == count + 1
    sealed.compress()
    accumulator.close_batch(first)
    assert first.is_closed


def test_a_batch_compressed_ahead_gives_back_the_memory_saved_before_it_is_drained():
    # However many wait, none is held twice: as it was, and as it will be sent.
    accumulator = compressing(ratio=0.4)
    fill(accumulator)
    first, second = queued(accumulator)
    before = accumulator.pool.available_bytes
    assert first.memory_bytes > 1_000
    for sealed in accumulator.full_batches.take():
        sealed.compress()

    accumulator.settle_compressed()

    assert not first.builder.seal().records
    assert first.memory_bytes == 1_000  # what a batch without a codec would have
    saved_bytes = accumulator.pool.available_bytes - before
    assert saved_bytes > 0
    assert accumulator.pool.available_bytes == 10_000 - 1_000 - second.memory_bytes
    accumulator.settle_compressed()
    accumulator.close_batch(first)
    assert accumulator.pool.available_bytes == before + saved_bytes


def test_a_batch_whose_codec_failed_ahead_keeps_its_records_until_it_is_drained():
    accumulator = compressing(ratio=0.4)
    fill(accumulator)
    first = head(accumulator)
    accumulator.full_batches.take()  # and nothing is made of them
    memory_bytes = first.memory_bytes

    accumulator.settle_compressed()

    assert first.memory_bytes == memory_bytes
    assert len(list(first.builder.records())) == first.record_count
    accumulator.close_batch(first)
    accumulator.settle_compressed()
    assert first.memory_bytes == 1_000
    assert not accumulator.full_batches._sealed


def test_a_batch_begun_with_many_records_has_those_that_fit():
    accumulator = make_accumulator(batch_size=1_000)
    batch = begin_filled(accumulator, *[b"x" * 400] * 3)
    assert batch is not None
    assert batch.record_count == 2
    assert queued(accumulator) == [batch]
    assert accumulator.has_incomplete
    assert accumulator.pool.available_bytes == 9_000


def test_a_batch_is_not_begun_without_memory_nor_ahead_of_those_who_wait_for_it():
    accumulator = make_accumulator(batch_size=1_000, buffer_memory=2_500)
    first = begin_filled(accumulator)
    assert first is not None
    ticket = append(accumulator, TP1, b"x" * 2_000)
    assert isinstance(ticket, MemoryTicket)
    assert begin_filled(accumulator) is None
    accumulator.give_up(ticket)
    assert begin_filled(accumulator) is not None
    assert begin_filled(accumulator) is None
    assert accumulator.pool.available_bytes == 500
    assert not accumulator.pool.waiting


@pytest.mark.parametrize("limit", ["batch_size", "max_request_size"])
def test_a_batch_is_not_begun_with_a_record_above_the_limits(limit):
    accumulator = make_accumulator(**{limit: 1_000})
    assert begin_filled(accumulator, b"x" * 1_000, b"y") is None
    assert queued(accumulator) == []
    assert not accumulator.has_incomplete
    assert accumulator.pool.available_bytes == accumulator.pool.total_bytes


def test_an_interrupt_while_a_batch_is_filled_leaves_nothing_of_it():
    accumulator = make_accumulator()
    queues = accumulator.topic_queues("topic")

    def fill(buffer):
        buffer.append(100, None, b"value")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        accumulator.begin_batch(queues, queues.queue(0), 0, fill)
    assert queued(accumulator) == []
    assert not accumulator.has_incomplete
    assert not accumulator.has_undrained
    assert accumulator.pool.available_bytes == accumulator.pool.total_bytes
