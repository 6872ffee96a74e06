"""One partition's log: the records that each level of isolation shows, the last five batches."""

from __future__ import annotations

import random

import pytest

from tests.broker.support import T0, Bench, Who, batch_of
from txnproducer._broker.partition_log import Appended, PartitionLog
from txnproducer.errors import ErrorCode

A, B = Who("a", 1, 0), Who("b", 2, 0)
PLAIN = Who(None, 9, 0)
NOBODY = Who(None, -1, -1)
MAX_SEQUENCE = 2**31 - 1


def append(log: PartitionLog, who: Who, sequence: int, *values: str) -> int:
    """Append a batch that must be accepted, and return its offset."""
    appended = log.append(batch_of(who, sequence, *values), 0)
    assert appended.error_code == ErrorCode.NONE
    return appended.base_offset


def verdict(log: PartitionLog, who: Who, sequence: int, *values: str) -> ErrorCode:
    return log.append(batch_of(who, sequence, *values), 0).error_code


def mark(log: PartitionLog, who: Who, *, commit: bool, coordinator: int = 0) -> ErrorCode:
    """End a v1 transaction: under its own epoch."""
    return log.append_marker(
        who.producer_id, who.epoch, coordinator, 0, is_commit=commit, is_v2=False
    )


def seen(log: PartitionLog, *, committed: bool = True) -> list[tuple[int, str]]:
    return [(r.offset, (r.value or b"").decode()) for r in log.read(read_committed=committed)]


# --- the last stable offset, aborted ranges, control records -------------------------------------


def test_the_last_stable_offset_is_where_the_oldest_open_transaction_begins():
    log = PartitionLog()
    append(log, NOBODY, -1, "before")
    append(log, A, 0, "a1")
    append(log, B, 0, "b1")
    assert log.last_stable_offset == 1
    mark(log, A, commit=True)
    assert log.last_stable_offset == 2  # where the younger one begins
    mark(log, B, commit=True)
    assert log.last_stable_offset == log.log_end_offset == 5


def test_read_committed_stops_at_the_last_stable_offset_before_decided_transactions():
    log = PartitionLog()
    append(log, A, 0, "open")
    append(log, NOBODY, -1, "plain")
    append(log, B, 0, "committed")
    mark(log, B, commit=True)
    assert seen(log) == []
    assert [value for _, value in seen(log, committed=False)] == ["open", "plain", "committed"]


def test_control_records_take_an_offset_and_are_never_returned():
    log = PartitionLog()
    append(log, A, 0, "kept")
    mark(log, A, commit=True)
    append(log, NOBODY, -1, "next")
    assert seen(log) == seen(log, committed=False) == [(0, "kept"), (2, "next")]


def test_an_abort_hides_its_own_producers_range_and_no_more():
    log = PartitionLog()
    append(log, A, 0, "lost")
    append(log, B, 0, "kept")
    append(log, A, 1, "lost too")
    mark(log, A, commit=False)
    mark(log, B, commit=True)
    append(log, A, 2, "next")
    mark(log, A, commit=True)
    assert [value for _, value in seen(log)] == ["kept", "next"]
    assert [tuple(aborted) for aborted in log.aborted] == [(A.producer_id, 0, 3)]


def test_an_abort_of_a_transaction_that_wrote_nothing_here_leaves_no_range():
    log = PartitionLog()
    append(log, NOBODY, -1, "before")
    mark(log, A, commit=False)
    assert log.aborted == []
    assert seen(log) == [(0, "before")]
    assert log.last_stable_offset == log.log_end_offset == 2


def test_reading_from_within_a_batch_gives_its_remaining_records():
    log = PartitionLog()
    append(log, PLAIN, 0, "zero", "one", "two")
    append(log, PLAIN, 3, "three")
    records = log.read(read_committed=True, from_offset=1)
    assert [(r.offset, r.value) for r in records] == [(1, b"one"), (2, b"two"), (3, b"three")]


@pytest.mark.parametrize("seed", range(20))
def test_records_returned_by_read_committed_are_never_taken_back(seed):
    rng, log = random.Random(seed), PartitionLog()
    before: list[tuple[int, str]] = []
    sequences = {A: 0, B: 0}
    for step in range(60):
        who = rng.choice((A, B))
        if rng.random() < 0.6:
            append(log, who, sequences[who], str(step))
            sequences[who] += 1
        else:
            mark(log, who, commit=rng.random() < 0.5)
        now = seen(log)
        assert now[: len(before)] == before
        assert all(offset < log.last_stable_offset for offset, _ in now)
        before = now


# --- the window of five batches ------------------------------------------------------------------


def test_each_of_the_last_five_batches_sent_again_is_answered_with_its_first_offset():
    log = PartitionLog()
    offsets = [append(log, PLAIN, sequence) for sequence in range(6)]
    assert [append(log, PLAIN, sequence) for sequence in range(1, 6)] == offsets[1:]
    assert log.log_end_offset == 6
    assert verdict(log, PLAIN, 0) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_only_the_very_same_sequences_are_a_duplicate():
    log = PartitionLog()
    append(log, PLAIN, 0, "one", "two")
    assert verdict(log, PLAIN, 0, "one") == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert verdict(log, PLAIN, 1, "two") == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(log, PLAIN, 0, "one", "two") == 0


def test_a_gap_in_the_sequences_is_out_of_order_and_appends_nothing():
    log = PartitionLog()
    append(log, PLAIN, 0)
    assert verdict(log, PLAIN, 2) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.log_end_offset == 1
    assert append(log, PLAIN, 1) == 1


def test_any_first_sequence_of_an_unknown_producer_is_accepted():
    log = PartitionLog()
    append(log, PLAIN, 41)
    assert verdict(log, PLAIN, 43) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(log, PLAIN, 42) == 1


def test_sequences_wrap_to_zero():
    log = PartitionLog()
    append(log, PLAIN, MAX_SEQUENCE - 1, "one", "two")
    assert verdict(log, PLAIN, 1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(log, PLAIN, 0) == 2


def test_a_new_epoch_begins_at_sequence_zero_and_shuts_the_old_one_out():
    log = PartitionLog()
    append(log, PLAIN, 0)
    newer = PLAIN._replace(epoch=1)
    assert verdict(log, newer, 1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(log, newer, 0)
    assert verdict(log, PLAIN, 1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert verdict(log, PLAIN, 0) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_new_epochs_batches_are_no_duplicates_of_the_old_ones():
    log = PartitionLog()
    newer = PLAIN._replace(epoch=1)
    offsets = [append(log, who, sequence) for who in (PLAIN, newer) for sequence in (0, 1)]
    assert offsets == [0, 1, 2, 3]


def test_a_plain_batch_in_the_midst_of_its_producers_transaction_is_refused():
    log = PartitionLog()
    append(log, A, 0)
    plain = batch_of(A, 1, is_transactional=False)
    assert log.append(plain, 0) == Appended(ErrorCode.INVALID_TXN_STATE)


# --- whose time it is ---------------------------------------------------------------------------


def test_records_keep_their_timestamp_and_no_other_is_returned():
    log = PartitionLog()
    assert log.append(batch_of(PLAIN, 0), 9_000).append_time_ms == -1
    (entry,) = log.entries
    assert entry.batch is not None
    assert entry.batch.header.max_timestamp_ms == 1_000


@pytest.mark.parametrize(("is_log_append_time", "told_ms"), [(False, 1_000), (True, 9_000)])
def test_a_duplicates_answer_has_the_newest_timestamp_of_either_clock(is_log_append_time, told_ms):
    log = PartitionLog(is_log_append_time=is_log_append_time)
    log.append(batch_of(PLAIN, 0), 9_000)
    assert log.append(batch_of(PLAIN, 0), 9_500) == Appended(ErrorCode.NONE, 0, told_ms)


def test_the_brokers_time_is_every_records_where_the_topic_wants_it():
    log = PartitionLog(is_log_append_time=True)
    assert log.append(batch_of(PLAIN, 0, "v", "w"), 9_000).append_time_ms == 9_000
    (entry,) = log.entries
    assert entry.batch is not None
    assert [record.timestamp_ms for record in entry.batch] == [9_000, 9_000]
    assert [record.value for record in entry.batch] == [b"v", b"w"]


# --- who may write a marker ----------------------------------------------------------------------


def test_a_marker_of_an_older_epoch_is_refused():
    log = PartitionLog()
    append(log, A._replace(epoch=3), 0)
    assert mark(log, A._replace(epoch=2), commit=False) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.last_stable_offset == 0


def test_a_v2_marker_needs_a_later_epoch_than_the_transaction_that_it_ends():
    log = PartitionLog()
    append(log, A, 0)
    of_its_own = log.append_marker(A.producer_id, A.epoch, 0, 0, is_commit=True, is_v2=True)
    of_the_next = log.append_marker(A.producer_id, A.epoch + 1, 0, 0, is_commit=True, is_v2=True)
    assert (of_its_own, of_the_next) == (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.NONE)
    assert seen(log) == [(0, "v")]


def test_a_former_coordinators_marker_is_fenced_once_a_newer_one_has_written():
    log = PartitionLog()
    append(log, A, 0, "kept")
    assert mark(log, A, commit=True, coordinator=2) == ErrorCode.NONE
    append(log, A, 1, "open")
    assert mark(log, A, commit=False, coordinator=1) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert log.last_stable_offset == 2


def test_before_kafka_2_5_a_later_number_of_an_unknown_producer_is_refused():
    bench = Bench(init_producer_id_version=2, transaction_version=1)
    who = Who(None, 7, 0)
    assert bench.produce(who, T0, 3).error_code == ErrorCode.UNKNOWN_PRODUCER_ID
    assert bench.produce(who, T0, 0).error_code == ErrorCode.NONE
    assert Bench().produce(who, T0, 3).error_code == ErrorCode.NONE
