"""Idempotence, judged batch by batch: no sender, no queues, no transaction."""

from __future__ import annotations

import pytest

from tests.core.numbered import CURRENT, TP0, TP1, FakeBatch
from txnproducer._core.sequences.sequence_manager import (
    MAX_PRODUCER_EPOCH,
    BumpOutcome,
    SequenceManager,
)
from txnproducer._protocol.messages import ProducePartitionResponse
from txnproducer.errors import (
    ErrorCode,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    error_for_code,
)
from txnproducer.records import ProducerIdAndEpoch, TopicPartition

OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
UNKNOWN = ErrorCode.UNKNOWN_PRODUCER_ID


def manager_for(*, is_transactional, producer=CURRENT):
    manager = SequenceManager(is_transactional=is_transactional)
    manager.adopt(producer)
    return manager


@pytest.fixture
def idempotent():
    return manager_for(is_transactional=False)


@pytest.fixture
def transactional():
    return manager_for(is_transactional=True)


@pytest.fixture(params=[False, True], ids=["idempotent", "transactional"])
def either(request):
    return manager_for(is_transactional=request.param)


OTHER = TopicPartition("other", 0)


def drain(manager, record_count=1, place=TP0):
    """Number a batch as draining does."""
    manager.maybe_update_producer_id_and_epoch(place)
    batch = FakeBatch(
        manager.partitions.get_or_create(place).next_sequence,
        record_count,
        place=place,
        producer=manager.producer_id_and_epoch,
    )
    manager.partitions.get(place).increment_sequence(record_count)
    manager.add_in_flight_batch(batch)
    return batch


def ack(manager, batch, base_offset=0):
    answer = ProducePartitionResponse(batch.topic_partition, 0, base_offset)
    manager.handle_completed_batch(batch, answer)
    batch.is_done = True


def fail(manager, batch, code=ErrorCode.MESSAGE_TOO_LARGE, *, is_certain=True):
    batch.is_done = True
    manager.remove_in_flight_batch(batch)
    error = error_for_code(code)
    manager.handle_failed_batch(batch, error, adjust_sequence_numbers=is_certain)


def expire(manager, batch):
    batch.is_done = True
    manager.remove_in_flight_batch(batch)
    manager.handle_failed_batch(batch, KafkaTimeoutError(), adjust_sequence_numbers=False)
    manager.mark_sequence_unresolved(batch)


def can_retry(manager, batch, code, log_start_offset=-1):
    answer = ProducePartitionResponse(
        batch.topic_partition, code, log_start_offset=log_start_offset
    )
    return manager.can_retry(answer, error_for_code(code), batch)


def is_bump_due(manager):
    return manager.bump_idempotent_epoch() is not BumpOutcome.NOT_DUE


# --- numbering --------------------------------------------------------------------------------


@pytest.mark.conformance("4.01")
@pytest.mark.trap(20)
def test_numbers_begin_at_zero_and_grow_by_the_record_count(either):
    assert [drain(either, count).base_sequence for count in (3, 1, 2)] == [0, 3, 4]
    assert either.partitions.get_or_create(TP0).next_sequence == 6
    assert drain(either, place=TP1).base_sequence == 0


def test_a_batch_without_a_number_cannot_be_tracked(either):
    with pytest.raises(IllegalStateError, match="no sequence"):
        either.add_in_flight_batch(FakeBatch())


@pytest.mark.conformance("4.12")
def test_the_lowest_sequence_in_flight_is_known(either):
    assert either.first_in_flight_sequence(TP0) == -1
    first, second = drain(either, 2), drain(either, 2)
    assert either.first_in_flight_sequence(TP0) == 0
    ack(either, first)
    assert either.first_in_flight_sequence(TP0) == 2
    ack(either, second)
    assert either.first_in_flight_sequence(TP0) == -1
    assert either.last_acked_sequence(TP0) == 3


@pytest.mark.conformance("4.17")
@pytest.mark.trap(25, 26)
def test_a_partition_takes_the_new_epoch_only_when_nothing_old_is_in_flight(idempotent):
    asked, other = drain(idempotent, place=TP0), drain(idempotent, place=TP1)
    idempotent.request_idempotent_epoch_bump_for_partition(TP0)
    assert idempotent.bump_idempotent_epoch() is BumpOutcome.BUMPED
    assert (asked.producer_epoch, other.producer_epoch) == (6, 5)
    idempotent.maybe_update_producer_id_and_epoch(TP1)
    assert idempotent.partitions.get_or_create(TP1).next_sequence == 1
    ack(idempotent, other)
    idempotent.maybe_update_producer_id_and_epoch(TP1)
    assert idempotent.partitions.get_or_create(TP1).next_sequence == 0


@pytest.mark.conformance("4.16")
def test_a_partition_keeps_its_epoch_with_batches_in_flight_and_then_forgets_its_acks(
    idempotent,
):
    ack(idempotent, drain(idempotent, 3))
    old = drain(idempotent, 2)
    idempotent.producer_id_and_epoch = ProducerIdAndEpoch(77, 6)
    idempotent.maybe_update_producer_id_and_epoch(TP0)
    assert (old.base_sequence, old.producer_epoch, old.is_reset) == (3, 5, False)
    assert (
        idempotent.partitions.get_or_create(TP0).next_sequence,
        idempotent.last_acked_sequence(TP0),
    ) == (5, 2)
    ack(idempotent, old)
    new = drain(idempotent)
    assert (new.base_sequence, new.producer_epoch) == (0, 6)
    assert idempotent.last_acked_sequence(TP0) == -1


@pytest.mark.conformance("4.05")
def test_an_acknowledged_batch_counts_up_to_its_last_record_and_never_goes_back(either):
    ack(either, drain(either, 3), base_offset=10)
    assert (either.last_acked_sequence(TP0), either.last_acked_offset(TP0)) == (2, 12)
    ack(either, drain(either, 2), base_offset=5)
    assert (either.last_acked_sequence(TP0), either.last_acked_offset(TP0)) == (4, 12)


# --- late answers -----------------------------------------------------------------------------


@pytest.mark.conformance("4.47")
@pytest.mark.trap(18, 35)
@pytest.mark.quirk("Q4")
def test_a_late_success_after_the_numbers_were_wiped_is_tolerated(either):
    batch = drain(either)
    either.reset_sequence_numbers()
    ack(either, batch)
    assert either.last_acked_sequence(TP0) == -1
    assert either.last_acked_offset(TP0) == -1


@pytest.mark.conformance("4.46")
@pytest.mark.trap(35)
def test_a_late_success_of_an_expired_batch_still_counts(either):
    batch = drain(either, 2)
    expire(either, batch)
    ack(either, batch, base_offset=40)
    assert either.last_acked_sequence(TP0) == 1
    assert either.last_acked_offset(TP0) == 41
    assert either.maybe_resolve_sequences() == []


# --- failures ---------------------------------------------------------------------------------


@pytest.mark.conformance("4.22")
@pytest.mark.trap(27)
def test_an_idempotent_producer_bumps_after_a_certain_refusal(idempotent):
    failed, later = drain(idempotent), drain(idempotent)
    fail(idempotent, failed)
    assert idempotent.bump_idempotent_epoch() is BumpOutcome.BUMPED
    assert (later.base_sequence, later.producer_epoch) == (0, 6)


@pytest.mark.conformance("4.23")
@pytest.mark.trap(27)
def test_a_transactional_producer_shifts_after_a_certain_refusal(transactional):
    failed, later = drain(transactional, 3), drain(transactional, 2)
    fail(transactional, failed)
    assert (later.base_sequence, transactional.partitions.get_or_create(TP0).next_sequence) == (
        0,
        2,
    )


@pytest.mark.conformance("4.24")
@pytest.mark.trap(27)
def test_nothing_moves_after_a_failure_that_may_be_a_success(either):
    failed, later = drain(either, 3), drain(either, 2)
    fail(either, failed, is_certain=False)
    assert (later.base_sequence, either.partitions.get_or_create(TP0).next_sequence) == (3, 5)
    assert not is_bump_due(either)


@pytest.mark.conformance("4.34")
@pytest.mark.trap(28, 29)
def test_a_partition_that_the_broker_forgot_begins_at_zero_and_others_go_on(transactional):
    drain(transactional, place=TP1)
    ack(transactional, drain(transactional, 2))
    forgotten = drain(transactional, 4)
    fail(transactional, forgotten, UNKNOWN)
    assert transactional.partitions.get_or_create(TP0).next_sequence == 0
    assert transactional.partitions.get_or_create(TP1).next_sequence == 1


def test_a_partition_is_known_by_its_acknowledgements_for_this_producer_id(either):
    first = drain(either)
    assert not either.is_known_in(TP0)
    ack(either, first)
    assert either.is_known_in(TP0)
    drain(either)
    assert either.is_known_in(TP0)
    either.adopt(ProducerIdAndEpoch(CURRENT.producer_id, CURRENT.producer_epoch + 1))
    assert either.is_known_in(TP0)
    either.adopt(ProducerIdAndEpoch(CURRENT.producer_id + 1, 0))
    assert not either.is_known_in(TP0)


def test_a_batch_written_under_another_number_says_nothing_of_the_present_id(either):
    """It may have had another id on the wire: the partition has never heard of this one."""
    batch = drain(either)
    other = ProducerIdAndEpoch(CURRENT.producer_id + 1, 0)
    either.adopt(other)
    either.start_sequences_at_beginning(TP0, other)
    assert (batch.is_reset, batch.producer_id) == (True, other.producer_id)
    ack(either, batch)
    drain(either)
    assert not either.is_known_in(TP0)


def test_a_topic_that_is_gone_or_was_made_again_knows_no_producer(either):
    for place in (TP0, OTHER):
        ack(either, drain(either, place=place))
    either.forget_topics(set())
    assert either._known_as.keys() == {TP0, OTHER}
    either.forget_topics({"topic"})
    assert either._known_as.keys() == {OTHER}
    drain(either)
    assert not either.is_known_in(TP0)


@pytest.mark.parametrize("is_sent_again", [False, True])
def test_a_partition_that_has_forgotten_the_producer_is_not_known_any_more(either, is_sent_again):
    ack(either, drain(either))
    batch = drain(either)
    if is_sent_again:
        can_retry(either, batch, UNKNOWN, log_start_offset=10)
    else:
        fail(either, batch, UNKNOWN)
    drain(either)
    assert not either.is_known_in(TP0)


@pytest.mark.conformance("4.35")
@pytest.mark.trap(29)
@pytest.mark.parametrize("code", [OUT_OF_ORDER, UNKNOWN])
def test_an_idempotent_producer_bumps_after_a_gap(idempotent, code):
    fail(idempotent, drain(idempotent), code, is_certain=False)
    assert is_bump_due(idempotent)


# --- which refusals are retried ---------------------------------------------------------------


@pytest.mark.conformance("4.26")
def test_a_retriable_error_is_retried_and_others_are_not(either):
    batch = drain(either)
    assert can_retry(either, batch, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert not can_retry(either, batch, ErrorCode.MESSAGE_TOO_LARGE)


@pytest.mark.conformance("4.27")
def test_out_of_order_is_retried_while_an_earlier_batch_is_missing(either):
    drain(either)
    assert can_retry(either, drain(either), OUT_OF_ORDER)
    assert not is_bump_due(either)


@pytest.mark.conformance("4.27")
@pytest.mark.trap(24)
def test_out_of_order_of_a_renumbered_batch_is_retried_without_another_bump(idempotent):
    batch = drain(idempotent)
    idempotent.request_idempotent_epoch_bump_for_partition(TP0)
    idempotent.bump_idempotent_epoch()
    assert batch.is_reset
    assert can_retry(idempotent, batch, OUT_OF_ORDER)
    assert not is_bump_due(idempotent)


@pytest.mark.conformance("4.28")
def test_out_of_order_of_the_next_batch_is_a_gap(idempotent, transactional):
    assert can_retry(idempotent, drain(idempotent), OUT_OF_ORDER)
    assert is_bump_due(idempotent)
    assert not can_retry(transactional, drain(transactional), OUT_OF_ORDER)


@pytest.mark.conformance("4.03")
def test_the_next_batch_is_recognised_around_the_wrap(transactional):
    transactional.maybe_update_producer_id_and_epoch(TP0)
    transactional.partitions.get(TP0).increment_sequence(2**31 - 2)
    ack(transactional, drain(transactional, 2))
    assert transactional.partitions.get_or_create(TP0).next_sequence == 0
    assert not can_retry(transactional, drain(transactional), OUT_OF_ORDER)


@pytest.mark.conformance("4.29")
@pytest.mark.trap(30)
def test_out_of_order_after_an_expired_batch_waits_unless_it_is_the_next_one(idempotent):
    expired, following, third = (drain(idempotent) for _ in range(3))
    expire(idempotent, expired)
    assert can_retry(idempotent, third, OUT_OF_ORDER)
    assert not is_bump_due(idempotent)
    assert can_retry(idempotent, following, OUT_OF_ORDER)
    assert is_bump_due(idempotent)


@pytest.mark.conformance("4.30")
@pytest.mark.trap(28)
def test_unknown_producer_id_is_retried_while_the_log_start_offset_is_unknown(either):
    ack(either, drain(either), base_offset=5)
    batch = drain(either)
    assert can_retry(either, batch, UNKNOWN, log_start_offset=-1)
    assert (batch.base_sequence, batch.producer_epoch) == (1, 5)
    assert not is_bump_due(either)


@pytest.mark.conformance("4.31")
@pytest.mark.trap(24, 28)
def test_unknown_producer_of_a_renumbered_batch_is_an_echo(either):
    ack(either, drain(either), base_offset=5)
    batch = drain(either)
    batch.is_reset = True
    assert can_retry(either, batch, UNKNOWN, log_start_offset=10)
    assert (batch.base_sequence, batch.producer_epoch) == (1, 5)
    assert not is_bump_due(either)


@pytest.mark.conformance("4.32")
@pytest.mark.trap(28)
def test_after_retention_a_transaction_goes_on_from_zero_under_its_epoch(transactional):
    ack(transactional, drain(transactional, 2), base_offset=5)
    batch, later = drain(transactional, 2), drain(transactional)
    assert can_retry(transactional, batch, UNKNOWN, log_start_offset=7)
    assert [(b.base_sequence, b.producer_epoch) for b in (batch, later)] == [(0, 5), (2, 5)]
    assert transactional.partitions.get_or_create(TP0).next_sequence == 3


@pytest.mark.conformance("4.34")
@pytest.mark.trap(28)
def test_unknown_producer_without_truncation_fails_in_a_transaction(transactional):
    ack(transactional, drain(transactional), base_offset=5)
    assert not can_retry(transactional, drain(transactional), UNKNOWN, log_start_offset=5)


@pytest.mark.parametrize("code", [OUT_OF_ORDER, UNKNOWN])
def test_batches_after_one_refused_with_unknown_producer_id_fail_with_it(transactional, code):
    first, second = drain(transactional), drain(transactional)
    fail(transactional, first, UNKNOWN)  # the numbers begin at 0 again
    for _ in range(2):  # Java's is sent again until its time is up
        assert not can_retry(transactional, second, code, log_start_offset=0)
    assert transactional.partitions.get_or_create(TP0).next_sequence == 0
    assert can_retry(transactional, second, ErrorCode.NOT_ENOUGH_REPLICAS)


@pytest.mark.trap(28)
@pytest.mark.parametrize(
    "log_start_offset",
    [
        pytest.param(9, marks=pytest.mark.conformance("4.32"), id="truncated"),
        pytest.param(0, marks=pytest.mark.conformance("4.33"), id="not-truncated"),
    ],
)
def test_unknown_producer_bumps_and_retries_without_transactions(idempotent, log_start_offset):
    ack(idempotent, drain(idempotent), base_offset=5)
    batch = drain(idempotent)
    assert can_retry(idempotent, batch, UNKNOWN, log_start_offset=log_start_offset)
    idempotent.bump_idempotent_epoch()
    assert (batch.base_sequence, batch.producer_epoch) == (0, 6)


# --- unresolved -------------------------------------------------------------------------------


@pytest.mark.conformance("4.38")
@pytest.mark.trap(30)
def test_a_later_success_proves_that_the_expired_batch_was_written(either):
    expired, later = drain(either), drain(either)
    expire(either, expired)
    assert either.maybe_resolve_sequences() == []
    assert either.has_unresolved_sequence(TP0)
    ack(either, later)
    assert either.maybe_resolve_sequences() == []
    assert not either.has_unresolved_sequence(TP0)
    assert not is_bump_due(either)


@pytest.mark.conformance("4.39")
@pytest.mark.trap(30)
@pytest.mark.parametrize("is_transactional", [False, True])
def test_a_partition_whose_batches_all_expired_is_lost_under_this_epoch(is_transactional):
    manager = manager_for(is_transactional=is_transactional)
    expired, later = drain(manager), drain(manager)
    expire(manager, expired)
    expire(manager, later)
    assert manager.maybe_resolve_sequences() == [TP0]
    assert not manager.has_unresolved_sequences
    if is_transactional:  # its epoch goes up after the abort
        assert not is_bump_due(manager)
        assert manager.partitions.get_or_create(TP0).next_sequence == 2
    else:
        assert is_bump_due(manager)
        assert manager.partitions.get_or_create(TP0).next_sequence == 0


@pytest.mark.conformance("4.37")
def test_the_largest_sequence_in_doubt_counts(idempotent):
    first, second, third = (drain(idempotent) for _ in range(3))
    expire(idempotent, second)
    expire(idempotent, first)
    assert can_retry(idempotent, third, OUT_OF_ORDER)
    assert is_bump_due(idempotent)


# --- epochs -----------------------------------------------------------------------------------


@pytest.mark.conformance("4.18")
def test_a_bump_happens_once(idempotent):
    drain(idempotent)
    assert not is_bump_due(idempotent)
    idempotent.request_idempotent_epoch_bump_for_partition(TP0)
    assert is_bump_due(idempotent)
    assert idempotent.producer_id_and_epoch == ProducerIdAndEpoch(77, 6)
    assert not is_bump_due(idempotent)


@pytest.mark.conformance("4.20")
@pytest.mark.quirk("Q2")
def test_after_the_last_epoch_batches_are_renumbered_when_the_new_id_is_known():
    manager = manager_for(
        is_transactional=False, producer=ProducerIdAndEpoch(77, MAX_PRODUCER_EPOCH)
    )
    asked, other = drain(manager, 2, TP0), drain(manager, 1, TP1)
    manager.request_idempotent_epoch_bump_for_partition(TP0)
    assert manager.bump_idempotent_epoch() is BumpOutcome.NEW_ID_NEEDED
    assert not manager.producer_id_and_epoch.is_valid
    # Not -1: a batch without an id would be written without idempotence.
    assert (asked.producer_id, asked.base_sequence) == (77, 0)
    assert manager.bump_idempotent_epoch() is BumpOutcome.NOT_DUE
    manager.adopt(ProducerIdAndEpoch(78, 0))
    assert asked.producer_id == 77  # what else came with that answer may still fail it
    assert manager.partitions_to_renumber == {TP0}
    assert manager.bump_idempotent_epoch() is BumpOutcome.BUMPED
    assert (asked.producer_id, asked.producer_epoch, asked.base_sequence) == (78, 0, 0)
    assert (other.producer_id, other.producer_epoch) == (77, MAX_PRODUCER_EPOCH)
    assert manager.partitions.get_or_create(TP0).next_sequence == 2
    assert not is_bump_due(manager)


def test_a_certain_refusal_after_the_numbers_were_wiped_is_tolerated(transactional):
    batch = drain(transactional)
    transactional.reset_sequence_numbers()
    transactional.handle_failed_batch(batch, KafkaError(), adjust_sequence_numbers=True)
    assert drain(transactional).base_sequence == 0
