"""Sequence numbers of a partition: the wrap, the order in flight, renumbering, taking back."""

from __future__ import annotations

import pytest

from tests.core.numbered import CURRENT, TP0, FakeBatch
from txnproducer._core.sequences.partition_map import (
    TxnPartitionEntry,
    TxnPartitionMap,
    is_sequence_after,
    next_sequence_after,
    sequence_distance,
)
from txnproducer.errors import IllegalStateError
from txnproducer.records import ProducerIdAndEpoch

LAST = 2**31 - 1


def entry_with(*batches, next_sequence=0):
    entry = TxnPartitionEntry(TP0)
    entry.producer_id_and_epoch = CURRENT
    entry.next_sequence = next_sequence
    for batch in batches:
        entry.add_in_flight_batch(batch)
    return entry


def in_flight_sequences(entry):
    return [batch.base_sequence for batch in entry.in_flight]


# --- the wrap ---------------------------------------------------------------------------------


@pytest.mark.conformance("4.02")
@pytest.mark.parametrize(
    ("start", "increment", "result"), [(LAST, 100, 99), (99, LAST, 98), (0, 5, 5)]
)
def test_sequences_wrap_from_the_largest_to_zero(start, increment, result):
    entry = entry_with(next_sequence=start)
    entry.increment_sequence(increment)
    assert entry.next_sequence == result


@pytest.mark.conformance("4.03")
@pytest.mark.parametrize(
    ("sequence", "other", "is_after"),
    [(1, 0, True), (0, 1, False), (5, 5, False), (0, LAST, True), (LAST, 0, False), (3, -1, True)],
)
def test_sequences_are_compared_around_the_wrap(sequence, other, is_after):
    assert is_sequence_after(sequence, other) is is_after


@pytest.mark.conformance("4.03")
def test_the_next_sequence_is_counted_around_the_wrap():
    assert next_sequence_after(-1) == 0
    assert next_sequence_after(LAST) == 0
    assert sequence_distance(LAST, 1) == 2


@pytest.mark.conformance("4.03")
def test_a_batch_across_the_wrap_moves_the_acknowledged_sequence_on():
    entry = entry_with()
    entry.last_acked_sequence = LAST - 5
    entry.maybe_update_last_acked(FakeBatch(LAST - 4, 10), -1)
    assert entry.last_acked_sequence == 4
    assert entry.is_next(5)


# --- in flight --------------------------------------------------------------------------------


@pytest.mark.conformance("4.06")
@pytest.mark.trap(21)
def test_batches_in_flight_are_kept_in_the_order_of_their_sequences():
    entry = entry_with(FakeBatch(4), FakeBatch(0), FakeBatch(2))
    assert in_flight_sequences(entry) == [0, 2, 4]
    assert entry.first_in_flight.base_sequence == 0


@pytest.mark.conformance("4.03")
def test_the_order_in_flight_holds_around_the_wrap():
    entry = entry_with(FakeBatch(3), FakeBatch(LAST - 1), FakeBatch(0))
    assert in_flight_sequences(entry) == [LAST - 1, 0, 3]


@pytest.mark.conformance("4.06")
def test_batches_of_an_older_epoch_come_first():
    old = FakeBatch(9, producer=ProducerIdAndEpoch(77, 0))
    entry = entry_with(FakeBatch(0, producer=ProducerIdAndEpoch(77, 1)), old)
    assert entry.first_in_flight is old


@pytest.mark.conformance("4.06")
def test_batches_of_an_older_producer_id_come_first_with_any_epoch():
    old = FakeBatch(9, producer=ProducerIdAndEpoch(77, 5))
    entry = entry_with(old, FakeBatch(0, producer=ProducerIdAndEpoch(78, 0)))
    assert entry.first_in_flight is old


def test_a_batch_that_is_not_tracked_can_be_removed():
    tracked = FakeBatch(0)
    entry = entry_with(tracked)
    entry.remove_in_flight_batch(FakeBatch(0))
    assert entry.in_flight == (tracked,)
    entry.remove_in_flight_batch(tracked)
    assert not entry.has_in_flight_batches


@pytest.mark.conformance("4.10")
def test_the_last_acknowledged_sequence_never_goes_back():
    entry = entry_with()
    entry.maybe_update_last_acked(FakeBatch(2, 2), 103)
    entry.maybe_update_last_acked(FakeBatch(0, 2), 101)
    assert (entry.last_acked_sequence, entry.last_acked_offset) == (3, 103)
    entry.maybe_update_last_acked(FakeBatch(4, 1), -1)
    assert (entry.last_acked_sequence, entry.last_acked_offset) == (4, 103)


@pytest.mark.conformance("4.46")
@pytest.mark.trap(18)
def test_a_late_success_under_an_older_epoch_leaves_the_new_numbers_alone():
    entry = entry_with()
    entry.maybe_update_last_acked(FakeBatch(50, producer=ProducerIdAndEpoch(77, 4)), 7)
    assert entry.last_acked_sequence == -1
    assert entry.is_next(0)


# --- renumbering ------------------------------------------------------------------------------


@pytest.mark.conformance("4.18")
@pytest.mark.trap(24)
def test_starting_at_the_beginning_renumbers_batches_in_flight():
    first, second = FakeBatch(7, 3), FakeBatch(10, 2)
    entry = entry_with(first, second, next_sequence=12)
    entry.last_acked_sequence = 6
    bumped = ProducerIdAndEpoch(77, 6)
    entry.start_sequences_at_beginning(bumped)
    assert [(b.base_sequence, b.producer_epoch, b.is_reset) for b in (first, second)] == [
        (0, 6, True),
        (3, 6, True),
    ]
    assert (entry.next_sequence, entry.last_acked_sequence) == (5, -1)
    assert entry.producer_id_and_epoch == bumped


@pytest.mark.conformance("4.21")
def test_a_batch_that_has_ended_is_not_renumbered():
    ended = FakeBatch(0, 3)
    ended.is_done = True
    later, last = FakeBatch(3, 2), FakeBatch(5, 1)
    entry = entry_with(ended, later, last)
    entry.start_sequences_at_beginning(CURRENT)
    assert (ended.base_sequence, later.base_sequence, last.base_sequence) == (0, 0, 2)
    assert entry.in_flight == (later, last)


@pytest.mark.conformance("4.23")
@pytest.mark.trap(27)
def test_a_refused_batch_gives_its_numbers_to_those_after_it():
    before, failed, after = FakeBatch(0, 2), FakeBatch(2, 3), FakeBatch(5, 4)
    entry = entry_with(before, after, next_sequence=9)
    entry.adjust_sequences_due_to_failed_batch(failed)
    assert in_flight_sequences(entry) == [0, 2]
    assert entry.next_sequence == 6


@pytest.mark.conformance("4.23")
def test_taking_back_more_numbers_than_were_given_is_an_error():
    entry = entry_with(next_sequence=2)
    with pytest.raises(IllegalStateError, match="negative"):
        entry.adjust_sequences_due_to_failed_batch(FakeBatch(0, 3))
    assert entry.next_sequence == 2


@pytest.mark.conformance("4.03")
def test_numbers_are_taken_back_across_the_wrap():
    failed, after = FakeBatch(LAST - 1, 4), FakeBatch(2, 1)
    entry = entry_with(after, next_sequence=3)
    entry.adjust_sequences_due_to_failed_batch(failed)
    assert (after.base_sequence, entry.next_sequence) == (LAST - 1, LAST)


@pytest.mark.conformance("4.17")
def test_a_failed_batch_of_an_older_epoch_takes_nothing_back():
    entry = entry_with(next_sequence=4)
    entry.adjust_sequences_due_to_failed_batch(FakeBatch(0, 3, producer=ProducerIdAndEpoch(77, 4)))
    assert entry.next_sequence == 4


# --- the map ----------------------------------------------------------------------------------


def test_an_entry_is_made_once_and_wiped_with_the_others():
    entries = TxnPartitionMap()
    assert entries.find(TP0) is None
    with pytest.raises(IllegalStateError, match="topic-0"):
        entries.get(TP0)
    entry = entries.get_or_create(TP0)
    assert entries.get_or_create(TP0) is entry
    assert list(entries) == [entry]
    assert TP0 in entries
    entries.reset()
    assert TP0 not in entries
