"""The account that one batch keeps of itself."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.core.support import TP0, make_batch
from txnproducer._core.batches.producer_batch import FinalState
from txnproducer._core.batches.results import FutureRecordMetadata
from txnproducer._protocol.backoff import ExponentialBackoff
from txnproducer._record import IMPL, RecordBatchBuilder, read_batches
from txnproducer.errors import (
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    TransactionAbortedError,
)
from txnproducer.records import ProducerIdAndEpoch

MAX_SEQUENCE = 2**31 - 1


@pytest.mark.conformance("5.27")
def test_a_batch_ends_once_and_a_later_end_after_a_failure_changes_nothing():
    batch, (future,) = make_batch()
    error = KafkaTimeoutError("expired")
    assert batch.complete_exceptionally(lambda _: error)
    assert not batch.complete(5, -1)
    assert not batch.complete_exceptionally(lambda _: KafkaError())
    assert batch.final_state is FinalState.FAILED
    batch.result.done()
    with pytest.raises(KafkaTimeoutError, match="expired"):
        future.result()


@pytest.mark.conformance("5.27")
def test_nothing_may_follow_a_success():
    batch, _ = make_batch()
    assert batch.complete(5, -1)
    with pytest.raises(IllegalStateError):
        batch.complete(5, -1)
    with pytest.raises(IllegalStateError):
        batch.complete_exceptionally(lambda _: KafkaError())
    with pytest.raises(IllegalStateError):
        batch.abort(KafkaError())


@pytest.mark.conformance("5.27")
@pytest.mark.trap(35)
def test_aborting_twice_is_a_mistake_but_an_answer_after_an_abort_is_not():
    batch, (future,) = make_batch()
    batch.abort(TransactionAbortedError())
    with pytest.raises(IllegalStateError):
        batch.abort(TransactionAbortedError())
    assert not batch.complete(5, -1)
    assert not batch.complete_exceptionally(lambda _: KafkaError())
    assert batch.final_state is FinalState.ABORTED
    batch.result.done()
    assert isinstance(future.exception(), TransactionAbortedError)


def test_a_future_has_offset_timestamp_and_sizes_of_its_own_record():
    batch, futures = make_batch(3, value=b"12345")
    batch.complete(40, -1)
    batch.result.done()
    assert futures[2].result() == ("topic", 0, 42, 102, -1, 5)
    batch, futures = make_batch(2)
    batch.complete(40, 777)  # the broker's own time counts
    batch.result.done()
    assert futures[1].result().timestamp_ms == 777


@pytest.mark.quirk("O13")
def test_records_of_a_batch_that_the_broker_had_already_keep_their_own_timestamps():
    # It answers with the newest timestamp in the batch, given or not; Java's client takes that
    # for the broker's time of every record.
    batch, futures = make_batch(3)
    batch.reenqueued(50, 10)
    batch.complete(40, 102)
    batch.result.done()
    assert [future.result().timestamp_ms for future in futures] == [100, 101, 102]


def test_a_broker_may_append_at_the_very_time_of_the_newest_record():
    batch, futures = make_batch(3)
    batch.complete(40, 102)  # at the first attempt there is no doubt whose time it is
    batch.result.done()
    assert [future.result().timestamp_ms for future in futures] == [102, 102, 102]


def test_a_future_without_a_known_offset_says_so():
    batch, futures = make_batch(2)
    batch.complete(-1, -1)
    batch.result.done()
    assert futures[1].result().offset == -1
    assert not futures[1].result().has_offset


def test_a_wait_that_ends_too_early_does_not_end_the_record():
    _, (future,) = make_batch()
    assert not future.done()
    with pytest.raises(KafkaTimeoutError, match="still on its way"):
        future.result(timeout=0.1)


@pytest.mark.conformance("5.29")
def test_each_record_can_fail_with_an_error_of_its_own():
    batch, futures = make_batch(3)
    errors = [KafkaError("a"), KafkaError("b"), KafkaError("c")]
    batch.complete_exceptionally(lambda index: errors[index])
    batch.result.done()
    assert [future.exception() for future in futures] == errors


def test_a_record_whose_batch_is_split_between_two_looks_at_it_is_not_done():
    class Split:
        is_done = False
        waiter = SimpleNamespace(refuse_in_fork=lambda: None)

        @property
        def children(self):
            self.is_done = True  # its own end: its records are its parts' now
            return ()

    assert not FutureRecordMetadata(cast("Any", Split()), 0, 0, -1, -1).done()


@pytest.mark.conformance("5.28")
def test_callbacks_run_in_append_order_with_results_readable_before_futures_are_done():
    seen: list[tuple[int, bool]] = []
    futures: list[FutureRecordMetadata] = []
    batch, made = make_batch(
        3, on_delivery=lambda metadata, _: seen.append((metadata.offset, futures[0].done()))
    )
    futures += made
    batch.complete(10, -1)
    callbacks = batch.take_callbacks(batch.result.done)
    assert callbacks is not None
    callbacks.run()
    assert seen == [(10, False), (11, False), (12, False)]
    callbacks.on_finished()
    assert futures[0].done()


@pytest.mark.conformance("5.28")
@pytest.mark.parametrize("mistake", [RuntimeError, asyncio.CancelledError])
def test_an_exception_in_a_callback_is_logged_and_the_next_one_runs(caplog, mistake):
    seen: list[int] = []

    def on_delivery(metadata, error):
        seen.append(metadata.offset)
        raise mistake("a user's mistake")

    batch, _ = make_batch(2, on_delivery=on_delivery)
    batch.complete(0, -1)
    callbacks = batch.take_callbacks(batch.result.done)
    assert callbacks is not None
    callbacks.run()
    assert seen == [0, 1]
    assert "a user's mistake" in caplog.text


# --- sequences -----------------------------------------------------------------------------------


@pytest.mark.conformance("4.04")
def test_a_numbered_batch_cannot_be_numbered_again():
    batch, _ = make_batch()
    batch.set_producer_state(ProducerIdAndEpoch(5, 1), 0, is_transactional=True)
    with pytest.raises(IllegalStateError, match="has a sequence already"):
        batch.set_producer_state(ProducerIdAndEpoch(5, 2), 0, is_transactional=True)


@pytest.mark.conformance("4.03")
def test_the_last_sequence_wraps_to_zero_after_the_largest():
    batch, _ = make_batch(3)
    batch.set_producer_state(ProducerIdAndEpoch(5, 1), MAX_SEQUENCE - 1, is_transactional=False)
    assert batch.last_sequence == 0


@pytest.mark.conformance("4.21")
@pytest.mark.trap(24)
def test_renumbering_rewrites_the_header_alone_and_marks_the_batch_until_closed_again():
    batch, _ = make_batch(2)
    batch.set_producer_state(ProducerIdAndEpoch(5, 1), 10, is_transactional=True)
    sent = batch.close()
    (before,) = read_batches(sent)
    batch.reset_producer_state(ProducerIdAndEpoch(5, 2), 0)
    assert batch.is_reset
    (after,) = read_batches(batch.close())
    assert not batch.is_reset
    assert (after.header.producer_epoch, after.header.base_sequence) == (2, 0)
    assert after.header.is_transactional
    assert list(after) == list(before)
    assert next(read_batches(sent)).header == before.header  # those on the wire stay as they are


@pytest.mark.conformance("4.21")
def test_an_aborted_batch_cannot_be_renumbered():
    batch, _ = make_batch()
    batch.set_producer_state(ProducerIdAndEpoch(5, 1), 0, is_transactional=False)
    batch.abort(KafkaError())
    with pytest.raises(IllegalStateError, match="aborted"):
        batch.reset_producer_state(ProducerIdAndEpoch(5, 2), 0)


# --- attempts ------------------------------------------------------------------------------------


@pytest.mark.conformance("5.21")
def test_a_batch_expires_at_its_deadline_and_never_when_the_clock_goes_back():
    batch, _ = make_batch(created_ms=1_000)
    assert not batch.has_reached_delivery_timeout(500, 1_499)
    assert batch.has_reached_delivery_timeout(500, 1_500)
    assert not batch.has_reached_delivery_timeout(500, 0)
    assert not batch.has_reached_delivery_timeout(2**63 - 1, 2**62)


@pytest.mark.conformance("5.12")
def test_backoff_counts_from_the_last_attempt_and_the_first_attempt_has_none():
    batch, _ = make_batch()
    assert batch.backoff_left_ms(0) == 0
    batch.reenqueued(now_ms=50, backoff_ms=100)
    assert batch.backoff_left_ms(50) == 100
    assert batch.backoff_left_ms(149) == 1
    assert batch.backoff_left_ms(150) == 0


class LoadedRng(random.Random):
    """Draw always the same."""

    def __init__(self, drawn):
        super().__init__()
        self.drawn = drawn

    def random(self):
        return self.drawn


@pytest.mark.conformance("5.12")
@pytest.mark.parametrize(("drawn", "share"), [(0.0, 0.8), (0.5, 1.0), (1.0, 1.2)])
def test_a_backoff_is_a_fifth_shorter_or_longer_at_most_at_its_cap_too(drawn, share):
    backoff = ExponentialBackoff(100, 1_000, LoadedRng(drawn))
    waits = [backoff.draw_ms(attempts) for attempts in range(6)]
    assert waits == [int(share * wait) for wait in (100, 200, 400, 800, 1_000, 1_000)]


@pytest.mark.conformance("5.14")
@pytest.mark.trap(39)
def test_a_newer_leader_epoch_cancels_the_backoff_of_one_attempt_only():
    batch, _ = make_batch()
    batch.maybe_update_leader_epoch(100)
    assert not batch.has_leader_changed_for_the_ongoing_retry  # the first attempt is no retry
    batch.reenqueued(0, backoff_ms=100)
    for same_or_older in (100, 99, -1):
        batch.maybe_update_leader_epoch(same_or_older)
        assert batch.backoff_left_ms(0) == 100
    batch.maybe_update_leader_epoch(101)
    assert batch.backoff_left_ms(0) == 0
    batch.maybe_update_leader_epoch(101)  # looked at again within the same attempt
    assert batch.backoff_left_ms(0) == 0
    batch.reenqueued(0, backoff_ms=100)
    batch.maybe_update_leader_epoch(101)
    assert batch.backoff_left_ms(0) == 100


# --- split ---------------------------------------------------------------------------------------


def split(batch, size):
    return batch.split(size, RecordBatchBuilder)


@pytest.mark.conformance("4.53")
@pytest.mark.trap(34)
def test_a_split_keeps_all_records_in_order_with_consecutive_sequences_and_no_attempt():
    batch, _ = make_batch(10, created_ms=7, value=b"x" * 100)
    batch.set_producer_state(ProducerIdAndEpoch(5, 1), MAX_SEQUENCE - 4, is_transactional=True)
    before = list(batch.builder.records())
    batch.reenqueued(50, 100)
    parts = split(batch, 400)
    assert len(parts) > 2
    assert [record for part in parts for record in part.builder.records()] == before
    assert [p.created_ms for p in parts] == [7] * len(parts)
    assert [p.attempts for p in parts] == [0] * len(parts)
    sequence = MAX_SEQUENCE - 4
    for part in parts:
        assert part.base_sequence == sequence
        assert (part.producer_id, part.producer_epoch, part.is_transactional) == (5, 1, True)
        sequence = (sequence + part.record_count) & MAX_SEQUENCE


@pytest.mark.conformance("5.29")
@pytest.mark.trap(34)
def test_futures_and_callbacks_follow_their_record_through_two_splits():
    seen: list[int] = []
    batch, futures = make_batch(
        8, value=b"x" * 100, on_delivery=lambda metadata, _: seen.append(metadata.offset)
    )
    first, *rest = split(batch, 700)
    parts = [*split(first, 350), *rest]
    assert not batch.result.are_all_done()
    assert not any(future.done() for future in futures)
    offset = 100
    for part in parts:
        part.complete(offset, -1)
        callbacks = part.take_callbacks(part.result.done)
        assert callbacks is not None
        callbacks.run()
        callbacks.on_finished()
        offset += part.record_count
        assert seen == list(range(100, offset))
    assert batch.result.are_all_done()
    assert [future.result().offset for future in futures] == list(range(100, 108))


@pytest.mark.skipif(IMPL == "cython", reason="a compiled attribute takes no subclass of list")
def test_a_split_looks_at_each_callback_once():
    class Callbacks(list):
        looks = 0

        def __iter__(self):
            for each in super().__iter__():
                self.looks += 1
                yield each

    batch, _ = make_batch(8, value=b"x" * 100, on_delivery=lambda *_: None)
    batch._callbacks = callbacks = Callbacks(batch._callbacks)
    assert len(split(batch, 200)) == 8
    assert callbacks.looks == 8


@pytest.mark.conformance("4.54")
def test_splitting_a_part_again_ends_at_single_records():
    batch, _ = make_batch(6, value=b"x" * 1_000)
    parts = split(batch, 10_000)
    assert len(parts) == 1  # the first split may change nothing but the mark
    (part,) = parts
    assert part.is_split
    halves = split(part, part.estimated_size_bytes // 2)
    assert [half.record_count for half in halves] == [2, 2, 2]
    half = halves[0]
    assert [one.record_count for one in split(half, half.estimated_size_bytes // 2)] == [1, 1]


@pytest.mark.conformance("4.54")
@pytest.mark.parametrize("is_big_first", [True, False])
def test_a_tiny_record_does_not_fit_after_a_big_one(is_big_first):
    # In Java it does, in the bytes by which a record's size is overestimated: the part is as large
    # as the whole, refused again, and split into itself until its time is up.
    batch, _ = make_batch(0)
    for value in (b"x" * 1_000, b"y")[:: 1 if is_big_first else -1]:
        batch.try_append(7, None, value, (), None)
    parts = split(batch, batch.estimated_size_bytes // 2)
    assert [part.record_count for part in parts] == [1, 1]


@pytest.mark.conformance("4.54")
def test_a_split_keeps_headers_and_compression():
    batch, _ = make_batch(1)
    batch.builder.append(7, b"key", None, (("h", b"1"), ("h", None)))
    batch.builder.close()
    parts = batch.split(1, lambda limit: RecordBatchBuilder(limit, "gzip"))
    assert [list(p.builder.records()) for p in parts][1] == [
        (7, b"key", None, (("h", b"1"), ("h", None)))
    ]
    (header,) = [b.header for b in read_batches(parts[1].close())]
    assert header.compression == "gzip"


def test_a_batch_names_its_place_when_shown():
    batch, _ = make_batch(2)
    assert "topic-0 records=2" in repr(batch)
    assert batch.topic_partition == TP0


def test_a_result_is_set_once():
    batch, _ = make_batch()
    batch.result.set(0, -1, None)
    with pytest.raises(IllegalStateError, match="twice"):
        batch.result.set(1, -1, None)


def test_a_future_says_where_to_and_how_it_stands():
    batch, (future,) = make_batch()
    assert repr(future) == "<FutureRecordMetadata topic-0 pending>"
    batch.complete(0, -1)
    batch.result.done()
    assert repr(future) == "<FutureRecordMetadata topic-0 delivered>"
