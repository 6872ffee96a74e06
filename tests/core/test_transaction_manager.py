"""The operations of the transaction manager, each request answered by hand."""

from __future__ import annotations

import pytest

from tests.core.txn_driver import (
    GROUP,
    PRODUCER,
    TP0,
    TxnDriver,
    begun,
    finish,
    with_partition,
)
from txnproducer._core.transactions.state import TransactionState
from txnproducer._protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    CoordinatorType,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from txnproducer.errors import (
    ClusterAuthorizationError,
    ErrorCode,
    IllegalStateError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    KafkaError,
    KafkaTimeoutError,
    NetworkError,
    ProducerFencedError,
    TopicAuthorizationError,
    TransactionAbortableError,
    TransactionalIdAuthorizationError,
)
from txnproducer.records import ProducerIdAndEpoch

S = TransactionState
NEXT = ProducerIdAndEpoch(77, 1)


# --- the usual course -------------------------------------------------------------------------


@pytest.mark.conformance("1.01")
def test_a_new_manager_knows_nothing():
    driver = TxnDriver()
    manager = driver.manager
    assert driver.state is S.UNINITIALIZED
    assert manager.identity.producer_id_and_epoch == ProducerIdAndEpoch(-1, -1)
    assert not manager.identity.coordinator_can_bump
    assert not manager.identity.is_bump_required
    assert manager.requests.coordinator(CoordinatorType.TRANSACTION) is None
    assert manager.requests.coordinator(CoordinatorType.GROUP) is None
    assert not manager.requests.has_pending_requests
    assert manager.progress.outcome is None
    assert driver.take() is None


@pytest.mark.parametrize(
    "version",
    [
        pytest.param(1, marks=pytest.mark.conformance("2.31")),
        pytest.param(2, marks=pytest.mark.conformance("3.43")),
    ],
)
@pytest.mark.parametrize("call", ["begin_commit", "begin_abort"])
def test_an_empty_transaction_ends_without_a_request(version, call):
    driver = begun(version=version)
    result = getattr(driver.manager, call)()
    assert driver.take() is None
    finish(result)
    assert driver.state is S.READY
    assert driver.manager.identity.producer_id_and_epoch == PRODUCER


@pytest.mark.conformance("2.31")
@pytest.mark.parametrize("version", [1, 2])
def test_an_empty_transaction_after_one_with_records_ends_without_a_request_too(version):
    driver = with_partition(version=version)
    commit = driver.manager.begin_commit()
    driver.expect(EndTxnRequest, producer=NEXT if version == 2 else None)
    finish(commit)
    driver.manager.begin_transaction()
    commit = driver.manager.begin_commit()
    assert driver.take() is None
    finish(commit)
    assert driver.state is S.READY


def test_a_v1_transaction_adds_partitions_and_offsets_before_it_commits():
    driver = begun(version=1)
    manager = driver.manager
    manager.maybe_add_partition(TP0)
    assert not manager.progress.is_send_to_partition_allowed(TP0)
    offsets = driver.send_offsets()
    commit = manager.begin_commit()
    driver.expect(AddOffsetsToTxnRequest)
    driver.expect(FindCoordinatorRequest)
    driver.expect(TxnOffsetCommitRequest)
    finish(offsets)
    driver.expect(AddPartitionsToTxnRequest)
    assert manager.progress.is_send_to_partition_allowed(TP0)
    end = driver.expect(EndTxnRequest)
    assert (end.is_commit, end.is_transaction_v2_enabled) == (True, False)
    finish(commit)
    assert driver.state is S.READY
    assert manager.identity.producer_id_and_epoch == PRODUCER
    assert manager.progress.outcome == "committed"


@pytest.mark.conformance("1.25")
@pytest.mark.trap(17, 18, 19)
def test_a_v2_transaction_adds_nothing_and_goes_on_under_the_epoch_of_its_end():
    driver = begun(version=2)
    manager = driver.manager
    manager.maybe_add_partition(TP0)
    assert manager.progress.is_send_to_partition_allowed(TP0)
    assert not manager.progress.open.has_partitions_to_add
    manager.sequences.maybe_update_producer_id_and_epoch(TP0)
    manager.sequences.partitions.get(TP0).increment_sequence(9)
    offsets = driver.send_offsets()
    driver.expect(FindCoordinatorRequest)
    assert driver.expect(TxnOffsetCommitRequest).is_transaction_v2_enabled
    finish(offsets)
    commit = manager.begin_commit()
    assert driver.expect(EndTxnRequest, producer=NEXT).is_transaction_v2_enabled
    finish(commit)
    assert manager.identity.producer_id_and_epoch == NEXT
    assert manager.sequences.partitions.get_or_create(TP0).next_sequence == 0


@pytest.mark.conformance("3.41")
@pytest.mark.parametrize("following", [NEXT, ProducerIdAndEpoch(78, 0)])
def test_a_v2_end_hands_out_the_next_epoch_or_a_new_producer_id_and_numbers_begin_at_0(following):
    driver = with_partition(version=2)
    sequences = driver.manager.sequences
    sequences.maybe_update_producer_id_and_epoch(TP0)
    sequences.partitions.get(TP0).increment_sequence(9)
    commit = driver.manager.begin_commit()
    driver.expect(EndTxnRequest, producer=following)
    finish(commit)
    assert driver.manager.identity.producer_id_and_epoch == following
    assert sequences.partitions.get_or_create(TP0).next_sequence == 0


@pytest.mark.conformance("3.44")
@pytest.mark.trap(19)
@pytest.mark.parametrize(("version", "requests"), [(1, 0), (2, 1)])
def test_only_v2_counts_a_call_as_the_start_of_the_transaction(version, requests):
    driver = begun(version=version)
    driver.manager.maybe_add_partition(TP0)
    driver.manager.begin_abort()
    driver.take()
    assert driver.kinds().count("EndTxn") == requests


@pytest.mark.conformance("3.44")
@pytest.mark.trap(19)
@pytest.mark.parametrize(("version", "requests"), [(1, 0), (2, 1)])
def test_only_v2_counts_a_call_to_send_offsets_as_the_start_of_the_transaction(version, requests):
    driver = begun(version=version)
    driver.send_offsets()
    driver.manager.begin_abort()
    driver.take()
    assert driver.kinds().count("EndTxn") == requests


@pytest.mark.conformance("3.44")
@pytest.mark.trap(19)
@pytest.mark.parametrize("is_of_offsets", [False, True])
def test_the_coordinators_answer_begins_a_v1_transaction(is_of_offsets):
    driver = begun(version=1)
    if is_of_offsets:
        driver.send_offsets()
        driver.expect(AddOffsetsToTxnRequest)
    else:
        driver.add_partition()
    driver.manager.begin_abort()
    assert isinstance(driver.take(), EndTxnRequest)


@pytest.mark.conformance("3.03")
def test_the_end_waits_for_incomplete_batches():
    driver = with_partition()
    driver.manager.begin_commit()
    assert driver.take(has_incomplete_batches=True) is None
    assert isinstance(driver.take(), EndTxnRequest)


@pytest.mark.conformance("1.20")
def test_an_ended_transaction_leaves_no_partition():
    driver = with_partition(version=1)
    abort = driver.manager.begin_abort()
    driver.expect(EndTxnRequest)
    finish(abort)
    assert not driver.manager.progress.is_send_to_partition_allowed(TP0)
    assert not driver.manager.progress.open.has_partitions_to_add
    driver.manager.begin_transaction()
    driver.manager.begin_abort()
    assert driver.take() is None


@pytest.mark.conformance("1.20")
def test_an_ended_transaction_leaves_id_coordinator_and_sequence_numbers_as_they_were():
    driver = with_partition(version=1)
    manager = driver.manager
    manager.sequences.maybe_update_producer_id_and_epoch(TP0)
    manager.sequences.partitions.get(TP0).increment_sequence(9)
    commit = manager.begin_commit()
    driver.expect(EndTxnRequest)
    finish(commit)
    assert manager.identity.producer_id_and_epoch == PRODUCER
    assert manager.requests.coordinator(CoordinatorType.TRANSACTION) is not None
    assert manager.sequences.partitions.get_or_create(TP0).next_sequence == 9


@pytest.mark.conformance("1.20")
def test_an_error_and_its_effects_end_with_the_transaction():
    driver = begun(version=1)
    manager = driver.manager
    manager.maybe_add_partition(TP0)
    driver.expect(AddPartitionsToTxnRequest, ErrorCode.UNKNOWN_PRODUCER_ID)
    assert manager.progress.open.has_partitions_to_add
    abort = manager.begin_abort()
    driver.expect(InitProducerIdRequest, producer=NEXT)
    finish(abort)
    assert manager.machine.last_error is None
    assert not manager.progress.open.has_partitions_to_add
    manager.begin_transaction()
    manager.maybe_add_partition(TP0)
    driver.expect(AddPartitionsToTxnRequest)
    commit = manager.begin_commit()
    driver.expect(EndTxnRequest)
    assert driver.take() is None  # the bump was due once
    finish(commit)


# --- who may call what, and when --------------------------------------------------------------


@pytest.mark.conformance("1.02")
@pytest.mark.parametrize("call", ["begin_transaction", "begin_commit", "begin_abort"])
def test_a_call_too_early_is_refused_and_does_no_harm(call):
    driver = TxnDriver()
    with pytest.raises(IllegalStateError):
        getattr(driver.manager, call)()
    driver.begin()
    assert driver.state is S.IN_TRANSACTION


@pytest.mark.conformance("2.18")
def test_an_idempotent_producer_refuses_transactions():
    manager = TxnDriver(None).manager
    for call in (
        manager.initialize_transactions,
        manager.begin_transaction,
        manager.begin_commit,
        manager.begin_abort,
        lambda: manager.send_offsets_to_transaction({}, GROUP),
    ):
        with pytest.raises(IllegalStateError, match="transactional_id"):
            call()


@pytest.mark.conformance("2.05")
def test_initializing_twice_is_refused():
    driver = TxnDriver()
    driver.initialize()
    with pytest.raises(IllegalStateError):
        driver.manager.initialize_transactions()
    assert driver.state is S.READY
    assert not driver.manager.requests.has_pending_requests
    driver.manager.begin_transaction()
    driver.add_partition()
    commit = driver.manager.begin_commit()
    driver.expect(EndTxnRequest, producer=NEXT)
    finish(commit)


@pytest.mark.conformance("2.04")
@pytest.mark.trap(1, 2)
def test_after_a_timed_out_init_only_init_is_possible_and_waits_for_the_same():
    driver = TxnDriver()
    manager = driver.manager
    result = manager.initialize_transactions()
    assert manager.initialize_transactions() is result
    driver.expect(FindCoordinatorRequest)
    driver.expect(InitProducerIdRequest, producer=PRODUCER)
    assert driver.state is S.READY
    for call in (
        manager.begin_transaction,
        manager.begin_commit,
        manager.begin_abort,
        manager.check_can_append,
        driver.send_offsets,
    ):
        with pytest.raises(IllegalStateError, match=r"init_transactions\(\) is under way"):
            call()
    assert manager.initialize_transactions() is result
    result.acknowledge()
    manager.begin_transaction()
    assert driver.kinds().count("InitProducerId") == 1


@pytest.mark.conformance("2.07")
@pytest.mark.trap(1)
@pytest.mark.parametrize("call", ["begin_commit", "begin_abort"])
def test_a_timed_out_end_is_waited_for_again_through_a_lost_coordinator(call):
    driver = with_partition()
    manager = driver.manager
    result = getattr(manager, call)()
    driver.take()
    driver.fail()
    assert getattr(manager, call)() is result
    for other in (manager.begin_transaction, manager.check_can_append):
        with pytest.raises(IllegalStateError, match="first"):
            other()
    driver.expect(FindCoordinatorRequest)
    driver.expect(EndTxnRequest, producer=NEXT)
    assert getattr(manager, call)() is result
    finish(result)


@pytest.mark.conformance("2.06")
def test_an_abort_that_timed_out_cannot_become_a_commit():
    driver = with_partition()
    driver.manager.begin_abort()
    with pytest.raises(IllegalStateError, match="abort_transaction"):
        driver.manager.begin_commit()


@pytest.mark.conformance("2.15")
def test_no_offsets_need_neither_a_state_nor_a_request():
    driver = TxnDriver()
    assert driver.manager.send_offsets_to_transaction({}, GROUP).is_successful
    assert not driver.manager.requests.has_pending_requests


@pytest.mark.conformance("2.17")
def test_offsets_outside_a_transaction_are_refused():
    driver = TxnDriver()
    driver.initialize()
    with pytest.raises(IllegalStateError, match="begin_transaction"):
        driver.send_offsets()


@pytest.mark.conformance("1.23")
def test_a_record_has_a_place_only_in_an_open_transaction():
    driver = TxnDriver()
    manager = driver.manager
    with pytest.raises(IllegalStateError, match="init_transactions"):
        manager.check_can_append()
    driver.initialize()
    with pytest.raises(IllegalStateError, match="begin_transaction"):
        manager.check_can_append()
    manager.begin_transaction()
    manager.check_can_append()
    manager.progress.maybe_transition_to_error_state(TopicAuthorizationError())
    with pytest.raises(KafkaError) as caught:
        manager.check_can_append()
    assert caught.value.recovery == "abort"
    assert isinstance(caught.value.__cause__, TopicAuthorizationError)


@pytest.mark.conformance("1.23")
def test_a_record_is_refused_for_the_first_of_all_that_stands_in_its_way():
    driver = with_partition()
    manager = driver.manager
    commit = manager.begin_commit()
    with pytest.raises(IllegalStateError, match=r"call commit_transaction\(\)"):
        manager.check_can_append()
    driver.refuse_end(ErrorCode.PRODUCER_FENCED)
    assert not commit.is_acked
    with pytest.raises(ProducerFencedError):
        manager.check_can_append()


@pytest.mark.conformance("1.23")
def test_a_record_is_refused_for_the_call_to_repeat_before_it_is_for_the_missing_id():
    driver = TxnDriver()
    driver.manager.initialize_transactions()
    with pytest.raises(IllegalStateError, match=r"init_transactions\(\) is under way"):
        driver.manager.check_can_append()


@pytest.mark.conformance("1.23")
def test_an_idempotent_producer_refuses_records_only_after_a_fatal_error():
    manager = TxnDriver(None).manager
    manager.maybe_add_partition(TP0)
    assert manager.progress.is_send_to_partition_allowed(TP0)
    manager.progress.maybe_transition_to_error_state(ClusterAuthorizationError())
    assert not manager.progress.is_send_to_partition_allowed(TP0)
    with pytest.raises(KafkaError):
        manager.check_can_append()


# --- errors, raw and told again ---------------------------------------------------------------


@pytest.mark.conformance("2.10")
@pytest.mark.trap(4, 5, 10)
@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED])
def test_a_fenced_producer_says_so_at_once_and_ever_after(code):
    driver = begun(version=1)
    manager = driver.manager
    manager.maybe_add_partition(TP0)
    driver.expect(AddPartitionsToTxnRequest, code)
    assert driver.state is S.FATAL_ERROR
    for call in (
        manager.begin_transaction,
        manager.begin_commit,
        manager.begin_abort,
        manager.begin_abort,
        manager.initialize_transactions,
        manager.check_can_append,
    ):
        with pytest.raises(ProducerFencedError) as caught:
            call()
        assert caught.value.recovery == "restart"
    assert driver.state is S.FATAL_ERROR


@pytest.mark.conformance("3.12")
@pytest.mark.trap(10)
def test_an_old_epoch_from_produce_is_abortable_and_keeps_its_name():
    driver = with_partition()
    driver.manager.progress.maybe_transition_to_error_state(InvalidProducerEpochError())
    assert driver.state is S.ABORTABLE_ERROR
    with pytest.raises(InvalidProducerEpochError) as caught:
        driver.manager.begin_commit()
    assert caught.value.recovery == "abort"


@pytest.mark.conformance("2.10")
@pytest.mark.trap(10)
@pytest.mark.parametrize("kind", [ProducerFencedError, InvalidProducerEpochError])
def test_each_later_call_raises_a_fresh_error_after_fencing_or_an_old_epoch(kind):
    driver = with_partition()
    error = kind("the first")
    driver.manager.progress.maybe_transition_to_error_state(error)
    raised = [error]
    for call in (driver.manager.begin_commit, driver.manager.check_can_append) * 2:
        with pytest.raises(kind) as caught:
            call()
        assert type(caught.value) is kind
        assert all(caught.value is not earlier for earlier in raised)
        raised.append(caught.value)


@pytest.mark.conformance("2.10")
def test_any_other_error_is_the_cause_of_later_calls_errors():
    driver = with_partition()
    error = TopicAuthorizationError()
    driver.manager.progress.maybe_transition_to_error_state(error)
    for call in (driver.manager.begin_commit, driver.manager.check_can_append):
        with pytest.raises(KafkaError) as caught:
            call()
        assert type(caught.value) is KafkaError
        assert caught.value.__cause__ is error


@pytest.mark.conformance("2.10")
@pytest.mark.trap(6)
def test_a_poisoned_producer_names_the_illegal_transition_as_the_cause():
    driver = TxnDriver()
    driver.initialize()
    with pytest.raises(IllegalStateError) as poison:
        driver.as_sender(driver.manager.progress.transition_to_abortable_error, KafkaError("late"))
    for call in (driver.manager.begin_transaction, driver.manager.check_can_append):
        with pytest.raises(IllegalStateError) as caught:
            call()
        assert caught.value.__cause__ is poison.value


@pytest.mark.conformance("4.57")
@pytest.mark.trap(32)
@pytest.mark.parametrize("error", [NetworkError(), KafkaTimeoutError(), InvalidTxnStateError()])
def test_an_error_after_the_last_retry_is_abortable(error):
    driver = with_partition()
    driver.manager.progress.maybe_transition_to_error_state(TopicAuthorizationError())
    driver.manager.progress.maybe_transition_to_error_state(error)
    last = driver.manager.machine.last_error
    assert type(last) is TransactionAbortableError
    assert last.__cause__ is error


@pytest.mark.conformance("1.08")
@pytest.mark.trap(7)
def test_an_abort_under_way_hears_of_no_abortable_error():
    driver = with_partition()
    abort = driver.manager.begin_abort()
    driver.manager.progress.maybe_transition_to_error_state(TopicAuthorizationError())
    assert (driver.state, driver.manager.machine.last_error) == (S.ABORTING_TRANSACTION, None)
    driver.expect(EndTxnRequest, producer=NEXT)
    finish(abort)


@pytest.mark.conformance("1.09")
def test_a_batch_that_fails_during_the_commit_ends_the_commit():
    driver = with_partition()
    commit = driver.manager.begin_commit()
    error = TopicAuthorizationError()
    driver.manager.progress.maybe_transition_to_error_state(error)
    assert driver.take() is None
    assert commit.error.__cause__ is error
    assert commit.error.recovery == "abort"
    assert driver.kinds().count("EndTxn") == 0
    commit.acknowledge()
    abort = driver.manager.begin_abort()
    assert not driver.expect(EndTxnRequest, producer=NEXT).is_commit
    finish(abort)


@pytest.mark.conformance("1.18")
def test_a_fatal_error_wakes_every_waiter_even_of_a_request_not_sent():
    driver = with_partition()
    offsets = driver.send_offsets()
    commit = driver.manager.begin_commit()
    error = ClusterAuthorizationError()
    driver.manager.progress.transition_to_fatal_error(error)
    assert offsets.error is error
    assert commit.error is error
    assert not driver.manager.requests.has_pending_requests


@pytest.mark.conformance("2.11")
@pytest.mark.quirk("D6")
def test_an_unseen_failure_is_raised_wrapped_by_init_and_raw_by_commit_and_abort():
    driver = TxnDriver()
    driver.manager.initialize_transactions()
    driver.expect(FindCoordinatorRequest)
    driver.expect(InitProducerIdRequest, ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    with pytest.raises(KafkaError) as caught:
        driver.manager.initialize_transactions()
    assert caught.value.__cause__ is driver.manager.machine.last_error
    assert caught.value.recovery == "fix"

    for call in ("begin_commit", "begin_abort"):
        driver = with_partition()
        end = getattr(driver.manager, call)()
        driver.refuse_end(ErrorCode.PRODUCER_FENCED)
        assert getattr(driver.manager, call)() is end
        assert type(end.error) is ProducerFencedError


@pytest.mark.conformance("2.13")
@pytest.mark.quirk("D1")
def test_a_fatal_error_does_not_turn_a_success_into_a_failure():
    driver = with_partition()
    commit = driver.manager.begin_commit()
    driver.expect(EndTxnRequest, producer=NEXT)
    driver.manager.progress.transition_to_fatal_error(ProducerFencedError())
    assert commit.is_successful


# --- initializing again -----------------------------------------------------------------------


@pytest.mark.conformance("1.15")
@pytest.mark.trap(15)
@pytest.mark.parametrize(
    ("code", "kind", "recovery"),
    [
        (
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            TransactionalIdAuthorizationError,
            "fix",
        ),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ClusterAuthorizationError, "fix"),
        (ErrorCode.TRANSACTION_ABORTABLE, TransactionAbortableError, "resume"),
    ],
)
def test_a_refused_init_can_be_tried_again_after_the_senders_next_step(code, kind, recovery):
    driver = TxnDriver()
    manager = driver.manager
    result = manager.initialize_transactions()
    driver.expect(FindCoordinatorRequest)
    driver.expect(InitProducerIdRequest, code)
    assert isinstance(result.error, kind)
    assert result.error.recovery == recovery
    assert manager.progress.must_reinitialize
    result.acknowledge()
    with pytest.raises(KafkaError) as wrapped:
        manager.initialize_transactions()
    assert wrapped.value.__cause__ is result.error
    driver.as_sender(manager.progress.transition_to_uninitialized, manager.machine.last_error)
    assert (driver.state, manager.machine.last_error) == (S.UNINITIALIZED, None)
    again = manager.initialize_transactions()
    driver.expect(InitProducerIdRequest, producer=PRODUCER)
    finish(again)


@pytest.mark.quirk("O1")
def test_an_init_whose_coordinator_is_refused_fails_and_can_be_tried_again():
    driver = TxnDriver()
    manager = driver.manager
    result = manager.initialize_transactions()
    driver.expect(FindCoordinatorRequest, ErrorCode.TRANSACTION_ABORTABLE)
    error = manager.machine.last_error
    assert isinstance(error, TransactionAbortableError)
    manager.requests.fail_pending_requests(error)
    driver.as_sender(manager.progress.transition_to_uninitialized, error)
    assert result.error is error
    assert not manager.requests.has_pending_requests
    result.acknowledge()
    driver.initialize()
