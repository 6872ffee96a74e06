"""The steps of a transaction one by one: the change that each makes, and no other."""

from __future__ import annotations

import pytest

from tests.core.txn_driver import GROUP, PRODUCER, TP0, TP1, TxnDriver, begun, with_partition
from txnproducer._core.transactions.state import Role, TransactionState
from txnproducer._protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    PartitionErrorCode,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from txnproducer.errors import (
    ErrorCode,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    TopicAuthorizationError,
    TransactionAbortableError,
    TransactionalIdAuthorizationError,
)
from txnproducer.records import ProducerIdAndEpoch

S = TransactionState
NEXT = ProducerIdAndEpoch(77, 1)


# --- states -----------------------------------------------------------------------------------


@pytest.mark.conformance("1.04")
@pytest.mark.trap(6)
@pytest.mark.parametrize(
    ("role", "state"), [(Role.APPLICATION, S.READY), (Role.SENDER, S.FATAL_ERROR)]
)
def test_the_role_decides_whether_an_illegal_step_poisons(role, state):
    driver = TxnDriver()
    driver.initialize()
    driver.manager.machine.act_for(role)
    with pytest.raises(IllegalStateError):
        driver.manager.progress.transition_to_abortable_error(KafkaError("late"))
    assert driver.state is state


@pytest.mark.conformance("1.07")
@pytest.mark.parametrize("call", ["begin_commit", "begin_abort"])
def test_an_end_that_is_answered_closes_the_transaction(call):
    driver = with_partition()
    getattr(driver.manager, call)()
    assert driver.manager.machine.has_ongoing_transaction
    driver.expect(EndTxnRequest, producer=NEXT)
    assert not driver.manager.machine.has_ongoing_transaction
    assert driver.state is S.READY


@pytest.mark.conformance("1.10")
def test_the_latest_of_several_abortable_errors_is_raised():
    driver = with_partition()
    driver.manager.progress.maybe_transition_to_error_state(TopicAuthorizationError("first"))
    later = TopicAuthorizationError("second")
    driver.manager.progress.maybe_transition_to_error_state(later)
    with pytest.raises(KafkaError) as caught:
        driver.manager.begin_commit()
    assert caught.value.__cause__ is later


@pytest.mark.conformance("1.11")
@pytest.mark.parametrize(
    ("add", "request_type", "code"),
    [
        (
            lambda driver: driver.manager.maybe_add_partition(TP0),
            AddPartitionsToTxnRequest,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ),
        (
            lambda driver: driver.send_offsets(),
            AddOffsetsToTxnRequest,
            ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ),
    ],
    ids=["partition", "offsets"],
)
def test_a_transaction_without_added_partitions_needs_no_end_txn(add, request_type, code):
    driver = begun(version=1)
    add(driver)
    driver.expect(request_type, code)
    assert driver.state is S.ABORTABLE_ERROR
    abort = driver.manager.begin_abort()
    assert driver.take() is None
    assert abort.is_successful
    assert driver.manager.progress.outcome == "aborted"


@pytest.mark.conformance("1.16")
@pytest.mark.trap(15)
def test_an_init_right_after_a_refused_one_comes_too_early():
    driver = TxnDriver()
    refused = driver.manager.initialize_transactions()
    driver.expect(FindCoordinatorRequest)
    driver.expect(InitProducerIdRequest, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    refused.acknowledge()
    with pytest.raises(KafkaError) as caught:
        driver.manager.initialize_transactions()
    assert isinstance(caught.value.__cause__, TransactionalIdAuthorizationError)
    driver.as_sender(
        driver.manager.progress.transition_to_uninitialized, driver.manager.machine.last_error
    )
    driver.manager.initialize_transactions()
    assert driver.state is S.INITIALIZING


@pytest.mark.conformance("1.17")
def test_nothing_leads_out_of_a_fatal_error_not_even_aborting_twice():
    driver = with_partition()
    error = TopicAuthorizationError()
    driver.manager.progress.transition_to_fatal_error(error)
    for _ in range(2):
        with pytest.raises(KafkaError) as caught:
            driver.manager.begin_abort()
        assert caught.value.__cause__ is error
    assert (driver.state, driver.manager.machine.last_error) == (S.FATAL_ERROR, error)


@pytest.mark.conformance("1.21")
def test_an_idempotent_producer_gets_a_new_id_after_the_last_epoch():
    driver = TxnDriver(None)
    step = driver.manager.progress.bump_idempotent_epoch_and_reset_id_if_needed
    driver.as_sender(step)
    driver.expect(InitProducerIdRequest, producer=ProducerIdAndEpoch(77, 2**15 - 1))
    assert driver.state is S.READY
    driver.manager.sequences.request_idempotent_epoch_bump_for_partition(TP0)
    driver.as_sender(step)
    assert (driver.state, driver.manager.identity.has_producer_id) == (S.INITIALIZING, False)
    driver.expect(InitProducerIdRequest, producer=ProducerIdAndEpoch(78, 0))
    assert driver.state is S.READY
    assert driver.manager.identity.producer_id_and_epoch == ProducerIdAndEpoch(78, 0)


@pytest.mark.conformance("1.22")
def test_a_partition_may_be_sent_to_from_its_addition_until_a_fatal_error():
    driver = begun(version=1)
    is_allowed = driver.manager.progress.is_send_to_partition_allowed
    assert not is_allowed(TP0)
    driver.manager.maybe_add_partition(TP0)
    assert not is_allowed(TP0)  # waiting for its request
    driver.take()
    assert not is_allowed(TP0)  # waiting for the answer
    driver.reply()
    assert is_allowed(TP0)
    driver.manager.progress.maybe_transition_to_error_state(TopicAuthorizationError())
    assert is_allowed(TP0)
    driver.manager.begin_abort()
    assert is_allowed(TP0)
    driver.manager.progress.transition_to_fatal_error(ProducerFencedError())
    assert not is_allowed(TP0)


@pytest.mark.conformance("1.22")
def test_a_partition_of_the_transaction_may_be_sent_to_while_it_is_committed():
    driver = with_partition(version=1)
    driver.manager.begin_commit()
    assert driver.manager.progress.is_send_to_partition_allowed(TP0)
    assert not driver.manager.progress.is_send_to_partition_allowed(TP1)


@pytest.mark.conformance("1.22")
def test_without_transactions_every_partition_may_be_sent_to_until_a_fatal_error():
    manager = TxnDriver(None).manager
    assert manager.progress.is_send_to_partition_allowed(TP0)
    manager.progress.transition_to_fatal_error(ProducerFencedError())
    assert not manager.progress.is_send_to_partition_allowed(TP0)


@pytest.mark.conformance("1.25")
@pytest.mark.trap(19)
def test_naming_a_partition_in_transactions_v2_is_enough_to_have_the_transaction_ended():
    driver = begun(version=2)
    driver.manager.maybe_add_partition(TP0)
    assert driver.manager.progress.is_send_to_partition_allowed(TP0)
    assert not driver.manager.progress.open.has_partitions_to_add
    driver.manager.begin_abort()
    assert isinstance(driver.take(), EndTxnRequest)


# --- calls ------------------------------------------------------------------------------------


@pytest.mark.conformance("2.03")
@pytest.mark.trap(1)
def test_init_again_after_a_time_out_is_the_same_operation():
    driver = TxnDriver()
    first = driver.manager.initialize_transactions()
    driver.expect(FindCoordinatorRequest)
    assert driver.manager.initialize_transactions() is first
    driver.expect(InitProducerIdRequest, producer=PRODUCER)
    assert driver.manager.initialize_transactions() is first
    assert driver.take() is None


@pytest.mark.conformance("2.06")
@pytest.mark.trap(1)
@pytest.mark.parametrize("call", ["begin_commit", "begin_abort"])
def test_every_other_call_is_refused_until_an_end_was_seen(call):
    driver = with_partition()
    manager = driver.manager
    result = getattr(manager, call)()
    for other in (
        manager.initialize_transactions,
        manager.begin_transaction,
        manager.check_can_append,
        driver.send_offsets,
    ):
        with pytest.raises(IllegalStateError, match=r"has timed out.* first"):
            other()
    assert getattr(manager, call)() is result


@pytest.mark.conformance("2.08")
@pytest.mark.trap(2)
def test_an_answered_end_still_waits_to_be_seen():
    driver = with_partition()
    commit = driver.manager.begin_commit()
    driver.expect(EndTxnRequest, producer=NEXT)
    assert driver.state is S.READY
    with pytest.raises(IllegalStateError, match="commit_transaction"):
        driver.manager.begin_transaction()
    commit.acknowledge()
    driver.manager.begin_transaction()


@pytest.mark.conformance("2.17")
def test_offsets_are_sent_when_every_partition_was_committed():
    driver = begun()
    result = driver.send_offsets(TP0, TP1)
    driver.expect(FindCoordinatorRequest)
    driver.take()
    assert not result.is_completed
    driver.answer(
        TxnOffsetCommitResponse(
            (
                PartitionErrorCode(TP0, 0),
                PartitionErrorCode(TP1, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
            )
        )
    )
    assert not result.is_completed
    driver.take()
    driver.reply()
    assert result.is_successful


@pytest.mark.conformance("2.40")
def test_init_reads_the_transaction_version_and_raises_no_epoch_for_it():
    driver = TxnDriver(version=1)
    result = driver.manager.initialize_transactions()
    driver.client.set_transaction_version(2)
    driver.expect(FindCoordinatorRequest)
    driver.expect(InitProducerIdRequest, producer=PRODUCER)
    result.acknowledge()
    assert driver.manager.identity.is_transaction_v2_enabled
    driver.manager.begin_transaction()
    assert driver.take() is None
    assert driver.manager.identity.producer_id_and_epoch == PRODUCER
    commit = driver.manager.begin_commit()
    assert driver.take() is None
    assert commit.is_successful
    assert driver.manager.identity.producer_id_and_epoch == PRODUCER


# --- requests ---------------------------------------------------------------------------------


@pytest.mark.conformance("3.28")
def test_a_partition_used_later_needs_a_request_of_its_own():
    driver = begun(version=1)
    driver.manager.maybe_add_partition(TP0)
    driver.take()
    driver.manager.maybe_add_partition(TP1)
    driver.reply()
    assert driver.manager.progress.is_send_to_partition_allowed(TP0)
    assert not driver.manager.progress.is_send_to_partition_allowed(TP1)
    assert driver.expect(AddPartitionsToTxnRequest).partitions == (TP1,)
    assert driver.manager.progress.is_send_to_partition_allowed(TP1)


@pytest.mark.conformance("3.31")
def test_an_idempotent_producers_id_belongs_to_no_transaction():
    driver = TxnDriver(None)
    driver.as_sender(driver.manager.progress.bump_idempotent_epoch_and_reset_id_if_needed)
    request = driver.take()
    assert isinstance(request, InitProducerIdRequest)
    assert request.transactional_id is None
    assert request.transaction_timeout_ms == 2**31 - 1
    handler = driver.handler
    assert handler is not None
    assert handler.needs_coordinator is None  # any broker will do


@pytest.mark.conformance("3.32")
def test_the_first_init_names_no_identity_and_a_bump_names_the_present_one():
    driver = with_partition(version=1)
    (first,) = (r for r in driver.sent if isinstance(r, InitProducerIdRequest))
    assert (first.producer_id, first.producer_epoch) == (-1, -1)
    driver.manager.progress.maybe_transition_to_error_state(TopicAuthorizationError())
    driver.manager.begin_abort()
    driver.expect(EndTxnRequest)
    bump = driver.expect(InitProducerIdRequest, producer=NEXT)
    assert (bump.producer_id, bump.producer_epoch) == (77, 0)


@pytest.mark.conformance("3.39")
def test_with_transactions_v2_offsets_go_to_their_group_at_once():
    driver = begun(version=2)
    before = len(driver.sent)
    driver.send_offsets()
    driver.expect(FindCoordinatorRequest)
    request = driver.expect(TxnOffsetCommitRequest)
    assert request.group_id == GROUP.group_id
    assert request.is_transaction_v2_enabled
    assert len(driver.sent) == before + 2


@pytest.mark.conformance("3.42")
@pytest.mark.parametrize("call", ["begin_commit", "begin_abort"])
def test_with_transactions_v1_id_epoch_and_numbers_outlive_the_transaction(call):
    driver = with_partition(version=1)
    sequences = driver.manager.sequences
    sequences.maybe_update_producer_id_and_epoch(TP0)
    sequences.partitions.get(TP0).increment_sequence(9)
    getattr(driver.manager, call)()
    driver.expect(EndTxnRequest)
    assert driver.manager.identity.producer_id_and_epoch == PRODUCER
    assert sequences.partitions.get_or_create(TP0).next_sequence == 9


@pytest.mark.conformance("6.07")
@pytest.mark.trap(9)
def test_an_end_that_needs_no_request_makes_room_for_the_bump_at_once():
    driver = begun(version=1)
    driver.manager.maybe_add_partition(TP0)
    driver.expect(AddPartitionsToTxnRequest, ErrorCode.UNKNOWN_PRODUCER_ID)
    driver.manager.begin_abort()
    assert isinstance(driver.take(), InitProducerIdRequest)
    assert driver.kinds().count("EndTxn") == 0


@pytest.mark.conformance("4.57")
@pytest.mark.trap(32)
def test_a_commit_after_exhausted_retries_names_the_abort_as_the_way_out():
    driver = with_partition()
    driver.manager.progress.maybe_transition_to_error_state(KafkaTimeoutError("in vain"))
    with pytest.raises(KafkaError) as caught:
        driver.manager.begin_commit()
    assert type(caught.value.__cause__) is TransactionAbortableError
    assert caught.value.recovery == "abort"
