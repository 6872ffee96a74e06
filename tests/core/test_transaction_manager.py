"""The operations of the transaction manager, each request answered by hand."""

from __future__ import annotations

import pytest

from tests.core.numbered import FakeBatch
from tests.core.txn_driver import GROUP, PRODUCER, TP0, TP1, TxnDriver, begun, with_partition
from tests.harness import CoreHarness
from txnproducer._core.transaction_state import Role, TransactionState
from txnproducer._protocol.events import ResponseFailure
from txnproducer._protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    CoordinatorType,
    EndTxnRequest,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    MetadataResponse,
    PartitionErrorCode,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from txnproducer.errors import (
    ClusterAuthorizationError,
    CommitOutcomeUnknownError,
    ErrorCode,
    IllegalStateError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    KafkaError,
    KafkaTimeoutError,
    NetworkError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    SaslAuthenticationError,
    TopicAuthorizationError,
    TransactionAbortableError,
    TransactionAbortedError,
    TransactionalIdAuthorizationError,
    UnsupportedVersionError,
)
from txnproducer.records import OffsetAndMetadata, ProducerIdAndEpoch, TopicPartition

S = TransactionState
Find, AddOffsets = FindCoordinatorRequest, AddOffsetsToTxnRequest
NEXT = ProducerIdAndEpoch(77, 1)


def finish(driver, result):
    """See an operation's end, as a blocking call does."""
    assert result.is_completed
    result.acknowledge()
    if result.error is not None:
        raise result.error


# --- the usual course -------------------------------------------------------------------------


@pytest.mark.conformance("1.01")
def test_a_new_manager_knows_nothing():
    driver = TxnDriver()
    manager = driver.manager
    assert driver.state is S.UNINITIALIZED
    assert not manager.producer_id_and_epoch.is_valid
    assert manager.coordinator(CoordinatorType.TRANSACTION) is None
    assert manager.coordinator(CoordinatorType.GROUP) is None
    assert not manager.has_pending_requests
    assert manager.outcome is None
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
    finish(driver, result)
    assert driver.state is S.READY
    assert driver.manager.producer_id_and_epoch == PRODUCER


def test_a_v1_transaction_adds_partitions_and_offsets_before_it_commits():
    driver = begun(version=1)
    manager = driver.manager
    manager.maybe_add_partition(TP0)
    assert not manager.is_send_to_partition_allowed(TP0)
    offsets = driver.send_offsets()
    commit = manager.begin_commit()
    driver.expect(AddOffsetsToTxnRequest)
    driver.expect(FindCoordinatorRequest)
    driver.expect(TxnOffsetCommitRequest)
    finish(driver, offsets)
    driver.expect(AddPartitionsToTxnRequest)
    assert manager.is_send_to_partition_allowed(TP0)
    end = driver.expect(EndTxnRequest)
    assert (end.is_commit, end.is_transaction_v2_enabled) == (True, False)
    finish(driver, commit)
    assert driver.state is S.READY
    assert manager.producer_id_and_epoch == PRODUCER
    assert manager.outcome == "committed"


@pytest.mark.conformance("1.25")
@pytest.mark.trap(17, 18, 19)
def test_a_v2_transaction_adds_nothing_and_goes_on_under_the_epoch_of_its_end():
    driver = begun(version=2)
    manager = driver.manager
    manager.maybe_add_partition(TP0)
    assert manager.is_send_to_partition_allowed(TP0)
    assert not manager.has_partitions_to_add
    manager.sequences.maybe_update_producer_id_and_epoch(TP0)
    manager.sequences.increment_sequence_number(TP0, 9)
    offsets = driver.send_offsets()
    driver.expect(FindCoordinatorRequest)
    assert driver.expect(TxnOffsetCommitRequest).is_transaction_v2_enabled
    finish(driver, offsets)
    commit = manager.begin_commit()
    assert driver.expect(EndTxnRequest, producer=NEXT).is_transaction_v2_enabled
    finish(driver, commit)
    assert manager.producer_id_and_epoch == NEXT
    assert manager.sequences.sequence_number(TP0) == 0


@pytest.mark.conformance("3.41")
def test_a_v2_end_can_hand_out_a_new_producer_id():
    driver = with_partition(version=2)
    commit = driver.manager.begin_commit()
    driver.expect(EndTxnRequest, producer=ProducerIdAndEpoch(78, 0))
    finish(driver, commit)
    assert driver.manager.producer_id_and_epoch == ProducerIdAndEpoch(78, 0)


@pytest.mark.conformance("3.44")
@pytest.mark.trap(19)
@pytest.mark.parametrize(("version", "requests"), [(1, 0), (2, 1)])
def test_only_v2_counts_a_call_as_the_start_of_the_transaction(version, requests):
    driver = begun(version=version)
    driver.manager.maybe_add_partition(TP0)
    driver.manager.begin_abort()
    driver.take()
    assert driver.kinds().count("EndTxn") == requests


@pytest.mark.conformance("3.03")
def test_the_end_waits_for_incomplete_batches():
    driver = with_partition()
    driver.manager.begin_commit()
    assert driver.take(has_incomplete_batches=True) is None
    assert isinstance(driver.take(), EndTxnRequest)


@pytest.mark.conformance("1.20")
def test_an_ended_transaction_leaves_no_partition_behind():
    driver = with_partition(version=1)
    abort = driver.manager.begin_abort()
    driver.expect(EndTxnRequest)
    finish(driver, abort)
    assert not driver.manager.is_send_to_partition_allowed(TP0)
    assert not driver.manager.has_partitions_to_add
    driver.manager.begin_transaction()
    driver.manager.begin_abort()
    assert driver.take() is None


@pytest.mark.conformance("1.20")
def test_an_ended_transaction_leaves_id_coordinator_and_sequence_numbers_as_they_were():
    driver = with_partition(version=1)
    manager = driver.manager
    manager.sequences.maybe_update_producer_id_and_epoch(TP0)
    manager.sequences.increment_sequence_number(TP0, 9)
    commit = manager.begin_commit()
    driver.expect(EndTxnRequest)
    finish(driver, commit)
    assert manager.producer_id_and_epoch == PRODUCER
    assert manager.coordinator(CoordinatorType.TRANSACTION) is not None
    assert manager.sequences.sequence_number(TP0) == 9


@pytest.mark.conformance("1.20")
def test_an_error_and_what_it_left_behind_end_with_the_transaction():
    driver = begun(version=1)
    manager = driver.manager
    manager.maybe_add_partition(TP0)
    driver.expect(AddPartitionsToTxnRequest, ErrorCode.UNKNOWN_PRODUCER_ID)
    assert manager.has_partitions_to_add
    abort = manager.begin_abort()
    driver.expect(InitProducerIdRequest, producer=NEXT)
    finish(driver, abort)
    assert manager.last_error is None
    assert not manager.has_partitions_to_add
    manager.begin_transaction()
    manager.maybe_add_partition(TP0)
    driver.expect(AddPartitionsToTxnRequest)
    commit = manager.begin_commit()
    driver.expect(EndTxnRequest)
    assert driver.take() is None  # the bump was due once
    finish(driver, commit)


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
    for call in (manager.begin_transaction, manager.begin_commit, manager.begin_abort):
        with pytest.raises(IllegalStateError, match="init_transactions"):
            call()
    with pytest.raises(IllegalStateError, match="init_transactions"):
        manager.check_can_append()
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
    finish(driver, result)


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
    assert not driver.manager.has_pending_requests


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
        manager.maybe_add_partition(TP0)
    manager.begin_transaction()
    manager.check_can_append()
    manager.maybe_transition_to_error_state(TopicAuthorizationError())
    with pytest.raises(KafkaError) as caught:
        manager.maybe_add_partition(TP0)
    assert caught.value.recovery == "abort"
    assert isinstance(caught.value.__cause__, TopicAuthorizationError)


@pytest.mark.conformance("1.23")
def test_a_record_is_refused_for_the_first_of_all_that_stands_in_its_way():
    driver = with_partition()
    manager = driver.manager
    commit = manager.begin_commit()
    with pytest.raises(IllegalStateError, match=r"call commit_transaction\(\)"):
        manager.check_can_append()
    driver.expect(EndTxnRequest, ErrorCode.PRODUCER_FENCED)
    assert not commit.is_acked
    with pytest.raises(ProducerFencedError):
        manager.check_can_append()


@pytest.mark.conformance("1.23")
def test_an_idempotent_producer_refuses_records_only_after_a_fatal_error():
    manager = TxnDriver(None).manager
    manager.maybe_add_partition(TP0)
    assert manager.is_send_to_partition_allowed(TP0)
    manager.maybe_transition_to_error_state(ClusterAuthorizationError())
    assert not manager.is_send_to_partition_allowed(TP0)
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
    driver.manager.maybe_transition_to_error_state(InvalidProducerEpochError())
    assert driver.state is S.ABORTABLE_ERROR
    with pytest.raises(InvalidProducerEpochError) as caught:
        driver.manager.begin_commit()
    assert caught.value.recovery == "abort"


@pytest.mark.conformance("2.10")
@pytest.mark.trap(6)
def test_a_poisoned_producer_names_the_illegal_transition_as_the_cause():
    driver = TxnDriver()
    driver.initialize()
    with pytest.raises(IllegalStateError) as poison:
        driver.as_sender(driver.manager.transition_to_abortable_error, KafkaError("late"))
    for call in (driver.manager.begin_transaction, driver.manager.check_can_append):
        with pytest.raises(IllegalStateError) as caught:
            call()
        assert caught.value.__cause__ is poison.value


@pytest.mark.conformance("4.57")
@pytest.mark.trap(32)
@pytest.mark.parametrize("error", [NetworkError(), KafkaTimeoutError(), InvalidTxnStateError()])
def test_what_was_retried_in_vain_is_told_as_abortable(error):
    driver = with_partition()
    driver.manager.maybe_transition_to_error_state(TopicAuthorizationError())
    driver.manager.maybe_transition_to_error_state(error)
    last = driver.manager.last_error
    assert type(last) is TransactionAbortableError
    assert last.__cause__ is error


@pytest.mark.conformance("1.08")
@pytest.mark.trap(7)
def test_an_abort_under_way_hears_of_no_abortable_error():
    driver = with_partition()
    abort = driver.manager.begin_abort()
    driver.manager.maybe_transition_to_error_state(TopicAuthorizationError())
    assert (driver.state, driver.manager.last_error) == (S.ABORTING_TRANSACTION, None)
    driver.expect(EndTxnRequest, producer=NEXT)
    finish(driver, abort)


@pytest.mark.conformance("1.09")
def test_a_batch_that_fails_during_the_commit_ends_the_commit():
    driver = with_partition()
    commit = driver.manager.begin_commit()
    error = TopicAuthorizationError()
    driver.manager.maybe_transition_to_error_state(error)
    assert driver.take() is None
    assert commit.error is error
    assert error.recovery == "abort"
    assert driver.kinds().count("EndTxn") == 0
    commit.acknowledge()
    abort = driver.manager.begin_abort()
    assert not driver.expect(EndTxnRequest, producer=NEXT).is_commit
    finish(driver, abort)


@pytest.mark.conformance("1.18")
def test_a_fatal_error_wakes_whoever_waits_even_for_a_request_not_sent():
    driver = with_partition()
    offsets = driver.send_offsets()
    commit = driver.manager.begin_commit()
    error = ClusterAuthorizationError()
    driver.manager.transition_to_fatal_error(error)
    assert offsets.error is error
    assert commit.error is error
    assert not driver.manager.has_pending_requests


@pytest.mark.conformance("2.11")
@pytest.mark.quirk("D6")
def test_an_unseen_failure_is_told_wrapped_by_init_and_raw_by_commit():
    driver = TxnDriver()
    driver.manager.initialize_transactions()
    driver.expect(FindCoordinatorRequest)
    driver.expect(InitProducerIdRequest, ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    with pytest.raises(KafkaError) as caught:
        driver.manager.initialize_transactions()
    assert caught.value.__cause__ is driver.manager.last_error
    assert caught.value.recovery == "fix"

    driver = with_partition()
    commit = driver.manager.begin_commit()
    driver.expect(EndTxnRequest, ErrorCode.PRODUCER_FENCED)
    assert driver.manager.begin_commit() is commit
    assert type(commit.error) is ProducerFencedError


@pytest.mark.conformance("2.13")
@pytest.mark.quirk("D1")
def test_a_fatal_error_does_not_turn_a_success_into_a_failure():
    driver = with_partition()
    commit = driver.manager.begin_commit()
    driver.expect(EndTxnRequest, producer=NEXT)
    driver.manager.transition_to_fatal_error(ProducerFencedError())
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
    assert manager.must_begin_anew
    result.acknowledge()
    with pytest.raises(KafkaError) as wrapped:
        manager.initialize_transactions()
    assert wrapped.value.__cause__ is result.error
    driver.as_sender(manager.transition_to_uninitialized, manager.last_error)
    assert (driver.state, manager.last_error) == (S.UNINITIALIZED, None)
    again = manager.initialize_transactions()
    driver.expect(InitProducerIdRequest, producer=PRODUCER)
    finish(driver, again)


@pytest.mark.quirk("O1")
def test_an_init_whose_coordinator_is_refused_fails_and_can_be_tried_again():
    driver = TxnDriver()
    manager = driver.manager
    result = manager.initialize_transactions()
    driver.expect(FindCoordinatorRequest, ErrorCode.TRANSACTION_ABORTABLE)
    error = manager.last_error
    assert isinstance(error, TransactionAbortableError)
    manager.fail_pending_requests(error)
    driver.as_sender(manager.transition_to_uninitialized, error)
    assert result.error is error
    assert not manager.has_pending_requests
    result.acknowledge()
    driver.initialize()


# --- coordinators -----------------------------------------------------------------------------


@pytest.mark.conformance("3.05")
@pytest.mark.parametrize("failure", [ResponseFailure.DISCONNECTED, ResponseFailure.TIMED_OUT])
def test_a_request_without_an_answer_is_sent_again_after_a_look_up(failure):
    driver = TxnDriver()
    result = driver.manager.initialize_transactions()
    driver.expect(FindCoordinatorRequest)
    driver.take()
    driver.fail(failure)
    assert driver.manager.coordinator(CoordinatorType.TRANSACTION) is None
    driver.expect(FindCoordinatorRequest)
    driver.expect(InitProducerIdRequest, ErrorCode.NOT_COORDINATOR)
    driver.expect(FindCoordinatorRequest)
    driver.expect(InitProducerIdRequest, producer=PRODUCER)
    finish(driver, result)


@pytest.mark.conformance("3.07")
@pytest.mark.parametrize("told", [None, UnsupportedVersionError("too old"), KafkaError("odd")])
def test_an_unsupported_version_is_fatal(told):
    driver = TxnDriver()
    result = driver.manager.initialize_transactions()
    driver.take()
    driver.fail(ResponseFailure.UNSUPPORTED_VERSION, told)
    assert driver.state is S.FATAL_ERROR
    assert isinstance(result.error, UnsupportedVersionError)
    assert result.error.recovery == "fix"


def test_a_lost_coordinator_is_looked_up_once_however_many_ask():
    driver = with_partition(version=1)
    manager = driver.manager
    manager.maybe_add_partition(TP1)
    driver.send_offsets()
    driver.take()
    handler = driver.handler
    driver.fail()
    manager.lookup_coordinator(handler)
    driver.expect(FindCoordinatorRequest)
    driver.expect(AddOffsetsToTxnRequest)
    assert driver.kinds().count("FindCoordinator") == 2


def test_a_broker_that_goes_is_no_longer_any_coordinator():
    driver = begun()
    driver.send_offsets()
    driver.expect(FindCoordinatorRequest)
    driver.manager.handle_coordinator_disconnected(5)
    assert driver.manager.coordinator(CoordinatorType.GROUP) is not None
    driver.manager.handle_coordinator_disconnected(0)
    assert driver.manager.coordinator(CoordinatorType.GROUP) is None
    assert driver.manager.coordinator(CoordinatorType.TRANSACTION) is None


def test_each_group_has_its_own_coordinator():
    driver = begun()
    driver.send_offsets()
    other = GROUP._replace(group_id="other")
    driver.manager.send_offsets_to_transaction({TP0: OffsetAndMetadata(1)}, other)
    assert driver.expect(FindCoordinatorRequest).key == "g"
    driver.expect(TxnOffsetCommitRequest)
    assert driver.expect(FindCoordinatorRequest).key == "other"
    assert driver.expect(TxnOffsetCommitRequest).group_id == "other"


@pytest.mark.conformance("3.04")
def test_after_an_abortable_error_requests_fail_but_a_look_up_still_goes():
    driver = with_partition(version=1)
    driver.manager.maybe_add_partition(TP1)
    driver.take()
    driver.fail()
    offsets = driver.send_offsets()
    error = TopicAuthorizationError()
    driver.manager.maybe_transition_to_error_state(error)
    driver.expect(FindCoordinatorRequest)
    assert driver.take() is None
    assert offsets.error is error
    abort = driver.manager.begin_abort()
    driver.expect(EndTxnRequest)
    driver.expect(InitProducerIdRequest, producer=NEXT)
    finish(driver, abort)


def test_a_request_to_any_broker_has_no_coordinator_to_look_up():
    driver = TxnDriver(None)
    driver.as_sender(driver.manager.bump_idempotent_epoch_and_reset_id_if_needed)
    driver.take()
    assert driver.handler is not None
    with pytest.raises(IllegalStateError, match="any broker"):
        driver.manager.lookup_coordinator(driver.handler)


@pytest.mark.conformance("3.38")
def test_an_answer_with_two_coordinators_is_fatal():
    driver = TxnDriver()
    result = driver.manager.initialize_transactions()
    driver.take()
    driver.answer(FindCoordinatorResponse(()))
    assert driver.state is S.FATAL_ERROR
    assert isinstance(result.error, IllegalStateError)


@pytest.mark.conformance("3.37")
def test_a_refused_login_fails_the_request_in_hand_too():
    driver = TxnDriver()
    result = driver.manager.initialize_transactions()
    driver.expect(FindCoordinatorRequest)
    driver.take()
    in_hand, driver.handler = driver.handler, None
    error = SaslAuthenticationError()
    driver.as_sender(driver.manager.authentication_failed, error, in_hand)
    assert driver.state is S.FATAL_ERROR
    assert result.error is error


def test_a_refused_login_matters_to_nobody_who_has_nothing_to_send():
    driver = begun()
    driver.as_sender(driver.manager.authentication_failed, SaslAuthenticationError())
    assert driver.state is S.IN_TRANSACTION


@pytest.mark.conformance("3.35")
@pytest.mark.trap(16)
@pytest.mark.parametrize(
    ("version", "can_bump", "must_bump", "can_abort"),
    [(1, True, True, True), (1, False, False, False), (2, True, False, True)],
)
def test_who_raises_the_epoch_is_remembered_while_the_coordinator_is_away(
    version, can_bump, must_bump, can_abort
):
    driver = begun(version=version, can_bump=can_bump)
    driver.manager.handle_coordinator_disconnected(0)
    assert driver.manager.must_bump_from_client is must_bump
    assert driver.manager.can_handle_abortable_error is can_abort


# --- AddPartitionsToTxn -----------------------------------------------------------------------


@pytest.mark.conformance("1.24")
def test_a_partition_named_again_at_any_stage_is_asked_for_once():
    driver = begun(version=1)
    manager = driver.manager
    for _ in ("new", "new again"):
        manager.maybe_add_partition(TP0)
    assert not manager.has_pending_requests
    assert driver.take().partitions == (TP0,)
    manager.maybe_add_partition(TP0)  # while its request is on its way
    assert not manager.is_send_to_partition_allowed(TP0)
    driver.reply(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    manager.maybe_add_partition(TP0)  # while its request waits to be sent again
    driver.expect(AddPartitionsToTxnRequest)
    assert manager.is_send_to_partition_allowed(TP0)
    manager.maybe_add_partition(TP0)  # once it is in the transaction
    assert driver.take() is None
    assert not manager.has_partitions_to_add
    assert driver.kinds().count("AddPartitionsToTxn") == 2  # the second is the repeated one


def test_a_new_partition_is_asked_for_without_those_that_are_in_the_transaction():
    driver = with_partition(version=1)
    driver.manager.maybe_add_partition(TP1)
    assert driver.expect(AddPartitionsToTxnRequest).partitions == (TP1,)


@pytest.mark.conformance("3.29")
def test_a_later_request_lists_all_that_is_pending():
    driver = begun(version=1)
    driver.manager.maybe_add_partition(TP0)
    driver.expect(AddPartitionsToTxnRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    driver.manager.maybe_add_partition(TP1)
    assert driver.expect(AddPartitionsToTxnRequest).partitions == (TP0,)
    assert driver.expect(AddPartitionsToTxnRequest).partitions == (TP0, TP1)


@pytest.mark.conformance("3.10")
def test_the_first_partition_waits_shortly_for_the_previous_transaction():
    driver = begun(version=1)
    driver.manager.maybe_add_partition(TP0)
    driver.take()
    handler = driver.handler
    driver.reply(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert handler.retry_backoff_ms == 20
    driver.expect(AddPartitionsToTxnRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert handler.retry_backoff_ms == 100
    driver.expect(AddPartitionsToTxnRequest)
    driver.manager.maybe_add_partition(TP1)
    driver.take()
    handler = driver.handler
    driver.reply(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert handler.retry_backoff_ms == 100


@pytest.mark.conformance("3.16")
def test_denied_topics_are_named_and_an_abort_needs_no_request():
    driver = begun(version=1)
    other = TopicPartition("other", 0)
    driver.manager.maybe_add_partition(TP0)
    driver.manager.maybe_add_partition(other)
    driver.take()
    driver.answer(
        AddPartitionsToTxnResponse(
            (
                PartitionErrorCode(TP0, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
                PartitionErrorCode(other, ErrorCode.OPERATION_NOT_ATTEMPTED),
            )
        )
    )
    error = driver.manager.last_error
    assert isinstance(error, TopicAuthorizationError)
    assert error.topics == {"test"}
    assert not driver.manager.has_partitions_to_add
    assert not driver.manager.is_send_to_partition_allowed(other)
    abort = driver.manager.begin_abort()
    assert driver.take() is None
    finish(driver, abort)


@pytest.mark.conformance("1.26")
def test_an_abort_forgets_partitions_that_are_not_added_yet():
    driver = with_partition(version=1)
    driver.manager.maybe_add_partition(TP1)
    driver.expect(AddPartitionsToTxnRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    driver.manager.maybe_add_partition(TopicPartition("topic", 2))
    abort = driver.manager.begin_abort()
    driver.expect(EndTxnRequest)  # in Java behind AddPartitionsToTxn, however often it is refused
    finish(driver, abort)


@pytest.mark.conformance("1.26")
def test_partitions_that_are_being_added_as_the_abort_begins_are_not_asked_for_again():
    driver = with_partition(version=1)
    driver.manager.maybe_add_partition(TP1)
    driver.take()
    abort = driver.manager.begin_abort()
    driver.reply(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    driver.expect(EndTxnRequest)
    finish(driver, abort)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("is_in_flight", [True, False])
def test_an_abort_does_not_wait_for_offsets_that_are_refused_again_and_again(
    version, is_in_flight
):
    driver = begun(version=version)
    offsets = driver.send_offsets()
    if version == 1:
        driver.expect(AddOffsetsToTxnRequest)
    driver.expect(FindCoordinatorRequest)
    if is_in_flight:
        driver.take()
    else:
        driver.expect(TxnOffsetCommitRequest, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    abort = driver.manager.begin_abort()
    if is_in_flight:
        driver.reply(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert isinstance(offsets.error, TransactionAbortedError)
    driver.expect(EndTxnRequest, producer=NEXT if version == 2 else None)
    finish(driver, abort)


def test_an_abort_does_not_wait_for_a_groups_coordinator_that_cannot_be_reached():
    harness = CoreHarness(node_count=2)
    harness.start_transaction()
    harness.client.prepare_produce(base_offset=0)
    harness.run_until(harness.send().done)
    harness.client.stop_node(1)
    for _ in range(9):
        harness.client.prepare_find_coordinator(node_id=1)
    offsets = harness.send_offsets()
    harness.run_for(10)
    abort = harness.core.begin_abort()
    harness.client.prepare_end_txn()
    harness.run_for(10)
    assert abort.is_successful
    assert isinstance(offsets.error, TransactionAbortedError)


@pytest.mark.parametrize("how", ["refused", "lost"])
def test_partitions_that_may_be_added_are_asked_for_until_that_is_known(how):
    # Else the answer to EndTxn could be about the transaction before, and leave this one open.
    driver = begun(version=1)
    driver.manager.maybe_add_partition(TP0)
    driver.take()
    abort = driver.manager.begin_abort()
    if how == "refused":
        driver.reply(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    else:
        driver.fail()
    driver.expect(FindCoordinatorRequest)
    driver.expect(AddPartitionsToTxnRequest)
    driver.expect(EndTxnRequest)
    if how == "lost":
        driver.expect(InitProducerIdRequest, producer=NEXT)
    finish(driver, abort)


def test_offsets_that_are_just_added_as_the_abort_begins_are_not_sent():
    driver = begun(version=1)
    offsets = driver.send_offsets()
    driver.take()
    abort = driver.manager.begin_abort()
    driver.reply()
    assert isinstance(offsets.error, TransactionAbortedError)
    driver.expect(EndTxnRequest)
    finish(driver, abort)


@pytest.mark.parametrize("code", [ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE])
def test_a_commit_that_was_given_up_ends_even_if_both_its_ends_are_refused(code):
    driver = with_partition(version=1)
    commit = driver.manager.begin_commit()
    driver.take()
    driver.fail()
    driver.expect(FindCoordinatorRequest)
    abort = driver.manager.begin_abort()
    driver.expect(EndTxnRequest, ErrorCode.INVALID_TXN_STATE)
    driver.expect(EndTxnRequest, code)
    assert driver.state is S.FATAL_ERROR
    assert isinstance(commit.error, CommitOutcomeUnknownError)
    assert isinstance(abort.error, CommitOutcomeUnknownError)


def test_a_transaction_that_is_committed_stays_so_whatever_its_bump_meets():
    driver = with_partition(version=1)
    commit = driver.manager.begin_commit()
    driver.take()
    driver.fail()
    driver.expect(FindCoordinatorRequest)
    driver.expect(EndTxnRequest)
    driver.expect(InitProducerIdRequest, ErrorCode.TRANSACTION_ABORTABLE)
    finish(driver, commit)
    assert driver.manager.outcome == "committed"
    abort = driver.manager.begin_abort()
    while driver.take() is not None:
        driver.reply()
    finish(driver, abort)
    assert driver.manager.outcome == "committed"


# --- offsets ----------------------------------------------------------------------------------


@pytest.mark.conformance("3.20")
def test_a_retry_sends_all_offsets_and_waits_only_for_those_that_failed():
    driver = begun()
    result = driver.send_offsets(TP0, TP1)
    driver.expect(FindCoordinatorRequest)
    driver.take()
    driver.answer(
        TxnOffsetCommitResponse(
            (
                PartitionErrorCode(TP0, 0),
                PartitionErrorCode(TP1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            )
        )
    )
    assert not result.is_completed
    assert len(driver.take().offsets) == 2
    driver.answer(TxnOffsetCommitResponse((PartitionErrorCode(TP1, 0),)))
    finish(driver, result)


@pytest.mark.conformance("2.14")
@pytest.mark.quirk("Q10")
def test_two_calls_are_done_each_by_its_own_answer_and_in_their_order():
    driver = begun()
    first = driver.send_offsets(offset=1)
    second = driver.send_offsets(offset=2)
    driver.expect(FindCoordinatorRequest)
    driver.expect(TxnOffsetCommitRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert driver.expect(TxnOffsetCommitRequest).offsets[0][1].offset == 1
    assert (first.is_completed, second.is_completed) == (True, False)
    assert driver.expect(TxnOffsetCommitRequest).offsets[0][1].offset == 2
    finish(driver, second)


@pytest.mark.conformance("1.20")
@pytest.mark.quirk("Q3")
def test_offsets_of_an_aborted_transaction_never_reach_the_next_one():
    driver = begun()
    lost = driver.send_offsets(TP0)
    driver.expect(FindCoordinatorRequest, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    assert driver.take() is None
    assert lost.error is driver.manager.last_error
    lost.acknowledge()
    abort = driver.manager.begin_abort()
    driver.expect(EndTxnRequest, producer=NEXT)
    finish(driver, abort)
    driver.manager.begin_transaction()
    driver.send_offsets(TP1)
    driver.expect(FindCoordinatorRequest)
    assert [place for place, _ in driver.expect(TxnOffsetCommitRequest).offsets] == [TP1]


@pytest.mark.conformance("3.19")
@pytest.mark.trap(7)
@pytest.mark.quirk("Q7")
@pytest.mark.parametrize(
    "code", [ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TRANSACTION_ABORTABLE]
)
def test_a_group_that_cannot_be_found_does_not_hold_up_an_abort(code):
    driver = begun()
    offsets = driver.send_offsets()
    driver.take()
    abort = driver.manager.begin_abort()
    assert isinstance(offsets.error, TransactionAbortedError)
    driver.reply(code)
    driver.expect(EndTxnRequest, producer=NEXT)
    finish(driver, abort)


def test_an_abort_whose_coordinator_is_refused_does_not_look_for_it_for_ever():
    driver = with_partition()
    abort = driver.manager.begin_abort()
    driver.take()
    driver.fail()
    driver.expect(FindCoordinatorRequest, ErrorCode.TRANSACTION_ABORTABLE)
    assert driver.state is S.FATAL_ERROR
    assert isinstance(abort.error.__cause__, TransactionAbortableError)


@pytest.mark.conformance("3.24")
def test_a_fatal_answer_to_offsets_ends_the_abort_behind_it():
    driver = begun(version=1)
    driver.send_offsets()
    driver.take()
    abort = driver.manager.begin_abort()
    driver.reply(ErrorCode.INVALID_TXN_STATE)
    assert driver.state is S.FATAL_ERROR
    assert isinstance(abort.error, InvalidTxnStateError)


@pytest.mark.conformance("3.22")
def test_group_metadata_go_along():
    driver = begun()
    group = GROUP._replace(generation_id=4, member_id="m", group_instance_id="i")
    driver.manager.send_offsets_to_transaction({TP0: OffsetAndMetadata(3)}, group)
    driver.expect(FindCoordinatorRequest)
    request = driver.expect(TxnOffsetCommitRequest)
    assert (request.generation_id, request.member_id, request.group_instance_id) == (4, "m", "i")


# --- the epoch after a transaction ------------------------------------------------------------


@pytest.mark.conformance("1.13")
@pytest.mark.trap(8)
def test_a_v1_abort_after_an_error_raises_the_epoch_before_it_returns():
    driver = with_partition(version=1)
    driver.manager.maybe_transition_to_error_state(InvalidProducerEpochError())
    abort = driver.manager.begin_abort()
    driver.expect(EndTxnRequest)
    assert driver.state is S.INITIALIZING
    assert not abort.is_completed
    bump = driver.expect(InitProducerIdRequest, producer=NEXT)
    assert (bump.producer_id, bump.producer_epoch) == (77, 0)
    finish(driver, abort)
    assert driver.manager.producer_id_and_epoch == NEXT
    driver.manager.begin_transaction()


@pytest.mark.conformance("1.14")
@pytest.mark.trap(9)
def test_an_abort_without_anything_added_raises_the_epoch_alone():
    driver = begun(version=1)
    driver.manager.maybe_add_partition(TP0)
    driver.expect(AddPartitionsToTxnRequest, ErrorCode.UNKNOWN_PRODUCER_ID)
    abort = driver.manager.begin_abort()
    driver.expect(InitProducerIdRequest, producer=NEXT)
    finish(driver, abort)
    assert "EndTxn" not in driver.kinds()


@pytest.mark.conformance("3.30")
@pytest.mark.quirk("Q5")
def test_a_bump_that_becomes_due_during_the_abort_is_made():
    driver = begun(version=1)
    driver.add_partition(TP0)
    driver.send_offsets()
    driver.take()
    abort = driver.manager.begin_abort()
    driver.reply(ErrorCode.UNKNOWN_PRODUCER_ID)
    assert driver.state is S.ABORTING_TRANSACTION
    driver.expect(EndTxnRequest)
    driver.expect(InitProducerIdRequest, producer=NEXT)
    finish(driver, abort)
    assert driver.state.name == "READY"


@pytest.mark.conformance("4.55")
@pytest.mark.trap(33)
def test_an_error_during_the_commit_raises_the_epoch_behind_the_abort():
    # In Java it stays: where the broker has lost the end of its log, every later transaction of
    # `send(); commit()` goes on with the same number, and fails.
    driver = with_partition(version=1)
    commit = driver.manager.begin_commit()
    driver.manager.maybe_transition_to_error_state(OutOfOrderSequenceError())
    assert driver.take() is None
    commit.acknowledge()
    abort = driver.manager.begin_abort()
    driver.expect(EndTxnRequest)
    driver.expect(InitProducerIdRequest, producer=NEXT)
    finish(driver, abort)
    assert driver.state is S.READY


@pytest.mark.conformance("3.45")
def test_v2_leaves_the_epoch_to_the_coordinator():
    driver = with_partition(version=2)
    driver.manager.maybe_transition_to_error_state(TopicAuthorizationError())
    abort = driver.manager.begin_abort()
    driver.expect(EndTxnRequest, producer=NEXT)
    finish(driver, abort)
    assert driver.take() is None


@pytest.mark.conformance("3.33")
@pytest.mark.quirk("D8")
def test_a_bump_that_fails_is_told_at_the_next_begin():
    driver = with_partition(version=1)
    driver.manager.maybe_transition_to_error_state(TopicAuthorizationError())
    abort = driver.manager.begin_abort()
    driver.expect(EndTxnRequest)
    driver.expect(InitProducerIdRequest, ErrorCode.PRODUCER_FENCED)
    finish(driver, abort)
    with pytest.raises(ProducerFencedError):
        driver.manager.begin_transaction()


@pytest.mark.conformance("3.33")
def test_a_bump_that_is_refused_for_lack_of_rights_asks_for_a_new_init():
    driver = with_partition(version=1)
    driver.manager.maybe_transition_to_error_state(TopicAuthorizationError())
    abort = driver.manager.begin_abort()
    driver.expect(EndTxnRequest)
    driver.expect(InitProducerIdRequest, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    finish(driver, abort)
    assert driver.manager.must_begin_anew
    driver.as_sender(driver.manager.transition_to_uninitialized, driver.manager.last_error)
    with pytest.raises(KafkaError, match="init_transactions") as caught:
        driver.manager.begin_transaction()
    assert isinstance(caught.value.__cause__, TransactionalIdAuthorizationError)
    again = driver.manager.initialize_transactions()
    driver.expect(InitProducerIdRequest, producer=ProducerIdAndEpoch(77, 4))
    finish(driver, again)
    driver.manager.begin_transaction()


def test_a_bump_that_must_be_aborted_is_made_up_for_by_the_abort():
    driver = with_partition(version=1)
    driver.manager.maybe_transition_to_error_state(TopicAuthorizationError())
    first = driver.manager.begin_abort()
    driver.expect(EndTxnRequest)
    driver.expect(InitProducerIdRequest, ErrorCode.TRANSACTION_ABORTABLE)
    finish(driver, first)
    second = driver.manager.begin_abort()
    driver.expect(InitProducerIdRequest, producer=NEXT)
    finish(driver, second)
    assert driver.manager.producer_id_and_epoch == NEXT


@pytest.mark.conformance("3.34")
def test_a_fatal_end_is_told_with_its_own_error():
    driver = with_partition(version=1)
    driver.manager.maybe_transition_to_error_state(TopicAuthorizationError())
    abort = driver.manager.begin_abort()
    driver.expect(EndTxnRequest, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    assert driver.state is S.FATAL_ERROR
    assert type(abort.error) is type(driver.manager.last_error)
    assert driver.take() is None


@pytest.mark.conformance("3.47")
@pytest.mark.trap(17)
def test_an_upgrade_is_seen_at_the_end_and_costs_a_bump():
    driver = with_partition(version=1)
    driver.client.set_transaction_version(2)
    assert not driver.manager.is_transaction_v2_enabled
    commit = driver.manager.begin_commit()
    # What is left of this transaction is still written as it was begun.
    assert not driver.manager.is_transaction_v2_enabled
    assert not driver.expect(EndTxnRequest).is_transaction_v2_enabled
    assert not commit.is_completed
    driver.expect(InitProducerIdRequest, producer=NEXT)
    finish(driver, commit)
    assert driver.manager.is_transaction_v2_enabled


@pytest.mark.conformance("3.50")
@pytest.mark.trap(17)
def test_a_downgrade_is_seen_at_the_end_and_adopts_the_last_v2_epoch():
    driver = with_partition(version=2)
    driver.client.set_transaction_version(1)
    commit = driver.manager.begin_commit()
    assert driver.expect(EndTxnRequest, producer=NEXT).is_transaction_v2_enabled
    finish(driver, commit)
    assert not driver.manager.is_transaction_v2_enabled
    assert driver.manager.producer_id_and_epoch == NEXT
    assert driver.take() is None


@pytest.mark.conformance("3.48")
def test_only_a_newer_reading_of_the_features_counts():
    driver = with_partition(version=1)
    driver.client.features = type(driver.client.features)(0, {"transaction.version": 2})
    commit = driver.manager.begin_commit()
    driver.expect(EndTxnRequest)
    finish(driver, commit)
    assert not driver.manager.is_transaction_v2_enabled


# --- giving up a commit -----------------------------------------------------------------------


@pytest.mark.conformance("2.12")
@pytest.mark.trap(1, 3)
@pytest.mark.quirk("D7")
@pytest.mark.parametrize("version", [1, 2])
def test_a_commit_that_was_not_sent_becomes_an_abort(version):
    driver = with_partition(version=version)
    commit = driver.manager.begin_commit()
    assert driver.take(has_incomplete_batches=True) is None
    abort = driver.manager.begin_abort()
    assert driver.state is S.ABORTING_TRANSACTION
    assert driver.manager.begin_abort() is abort
    assert not driver.expect(EndTxnRequest, producer=NEXT if version == 2 else None).is_commit
    finish(driver, abort)
    assert isinstance(commit.error, TransactionAbortedError)
    assert driver.manager.outcome == "aborted"
    assert driver.state.name == "READY"
    assert driver.take() is None


@pytest.mark.conformance("2.12")
@pytest.mark.trap(3)
def test_a_commit_that_failed_unseen_can_be_aborted_at_once():
    driver = with_partition()
    commit = driver.manager.begin_commit()
    driver.expect(EndTxnRequest, ErrorCode.TRANSACTION_ABORTABLE)
    assert commit.error is not None
    abort = driver.manager.begin_abort()
    driver.expect(EndTxnRequest, producer=NEXT)
    finish(driver, abort)


@pytest.mark.conformance("2.12")
def test_a_commit_that_is_about_to_fail_can_be_aborted_at_once():
    driver = with_partition()
    commit = driver.manager.begin_commit()
    error = TopicAuthorizationError()
    driver.manager.maybe_transition_to_error_state(error)
    abort = driver.manager.begin_abort()
    assert commit.error is error
    assert not driver.expect(EndTxnRequest, producer=NEXT).is_commit
    finish(driver, abort)


def test_a_commit_that_succeeded_unseen_cannot_be_aborted():
    driver = with_partition()
    driver.manager.begin_commit()
    driver.expect(EndTxnRequest, producer=NEXT)
    with pytest.raises(IllegalStateError, match="committed"):
        driver.manager.begin_abort()
    assert driver.state is S.READY


def test_a_commit_that_was_decided_cannot_be_aborted_while_its_bump_runs():
    driver = with_partition(version=1)
    driver.client.set_transaction_version(2)
    driver.manager.begin_commit()
    driver.expect(EndTxnRequest)
    with pytest.raises(IllegalStateError, match="committed"):
        driver.manager.begin_abort()


@pytest.mark.parametrize("version", [1, 2])
def test_an_abort_after_a_lost_commit_finds_out_that_it_was_not_carried_out(version):
    driver = with_partition(version=version)
    commit = driver.manager.begin_commit()
    driver.take()
    driver.fail(ResponseFailure.TIMED_OUT)
    abort = driver.manager.begin_abort()
    driver.expect(FindCoordinatorRequest)
    question = driver.expect(EndTxnRequest, producer=NEXT if version == 2 else None)
    assert not question.is_commit
    if version == 1:  # the lost commit must not hit the next transaction
        driver.expect(InitProducerIdRequest, producer=NEXT)
    finish(driver, abort)
    assert isinstance(commit.error, TransactionAbortedError)
    assert driver.manager.outcome == "aborted"
    assert driver.manager.producer_id_and_epoch == NEXT


@pytest.mark.quirk("D7")
@pytest.mark.parametrize("version", [1, 2])
def test_an_abort_after_a_lost_commit_finds_out_that_it_was_carried_out(version):
    driver = with_partition(version=version)
    commit = driver.manager.begin_commit()
    driver.take()
    driver.fail(ResponseFailure.TIMED_OUT)
    abort = driver.manager.begin_abort()
    driver.expect(FindCoordinatorRequest)
    assert not driver.expect(EndTxnRequest, ErrorCode.INVALID_TXN_STATE).is_commit
    assert driver.expect(EndTxnRequest, producer=NEXT if version == 2 else None).is_commit
    if version == 1:  # the copy that was lost must not hit the next transaction
        driver.expect(InitProducerIdRequest, producer=NEXT)
    assert commit.is_successful
    assert isinstance(abort.error, IllegalStateError)
    assert driver.manager.outcome == "committed"
    assert driver.state is S.READY
    abort.acknowledge()
    driver.manager.begin_transaction()


def test_an_abort_waits_for_a_commit_on_the_wire_that_then_succeeds():
    driver = with_partition()
    commit = driver.manager.begin_commit()
    driver.take()
    abort = driver.manager.begin_abort()
    driver.reply(0, NEXT)
    assert commit.is_successful
    assert isinstance(abort.error, IllegalStateError)
    assert (driver.state, driver.manager.outcome) == (S.READY, "committed")


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ],
)
def test_an_abort_goes_on_where_the_commit_on_the_wire_was_refused(code):
    driver = with_partition()
    driver.manager.begin_commit()
    driver.take()
    abort = driver.manager.begin_abort()
    driver.reply(code)
    assert not driver.expect(EndTxnRequest, producer=NEXT).is_commit
    finish(driver, abort)
    assert driver.manager.outcome == "aborted"


def test_a_lost_commit_of_a_fenced_producer_stays_unknown():
    driver = with_partition()
    commit = driver.manager.begin_commit()
    driver.take()
    driver.fail()
    abort = driver.manager.begin_abort()
    driver.expect(FindCoordinatorRequest)
    driver.expect(EndTxnRequest, ErrorCode.PRODUCER_FENCED)
    for result in (commit, abort):
        assert isinstance(result.error, CommitOutcomeUnknownError)
        assert isinstance(result.error.__cause__, ProducerFencedError)
        assert result.error.recovery == "unknown"
    assert isinstance(driver.manager.last_error, ProducerFencedError)


def test_a_cluster_that_cannot_raise_epochs_cannot_forget_a_lost_commit():
    driver = with_partition(version=1, can_bump=False)
    commit = driver.manager.begin_commit()
    driver.take()
    driver.fail()
    with pytest.raises(CommitOutcomeUnknownError):
        driver.manager.begin_abort()
    assert driver.state is S.FATAL_ERROR
    assert isinstance(commit.error, CommitOutcomeUnknownError)


# --- commits of unknown outcome ---------------------------------------------------------------


def test_a_commit_cut_off_by_a_close_does_not_claim_to_have_failed():
    driver = with_partition()
    commit = driver.manager.begin_commit()
    driver.take()
    driver.as_sender(driver.manager.close, KafkaError("closed"))
    assert isinstance(commit.error, CommitOutcomeUnknownError)


def test_a_commit_that_was_never_sent_has_failed_when_the_producer_closes():
    driver = with_partition()
    commit = driver.manager.begin_commit()
    driver.as_sender(driver.manager.close, KafkaError("closed"))
    assert type(commit.error) is KafkaError


@pytest.mark.parametrize(
    "code",
    [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.REQUEST_TIMED_OUT],
)
def test_a_commit_answered_with_a_passing_error_may_have_been_carried_out(code):
    # The coordinator answers so, too, when its log was too slow: the commit may be in it.
    driver = with_partition()
    commit = driver.manager.begin_commit()
    driver.expect(EndTxnRequest, code)
    driver.as_sender(driver.manager.close, KafkaError("closed"))
    assert isinstance(commit.error, CommitOutcomeUnknownError)


@pytest.mark.parametrize(
    "code", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS]
)
def test_a_commit_refused_before_the_coordinators_log_has_failed_for_certain(code):
    driver = with_partition()
    commit = driver.manager.begin_commit()
    driver.expect(EndTxnRequest, code)
    driver.as_sender(driver.manager.close, KafkaError("closed"))
    assert type(commit.error) is KafkaError


def test_an_abort_finds_out_about_a_commit_that_was_answered_with_a_passing_error():
    driver = with_partition()
    commit = driver.manager.begin_commit()
    driver.expect(EndTxnRequest, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    abort = driver.manager.begin_abort()
    driver.expect(FindCoordinatorRequest)
    driver.expect(EndTxnRequest, ErrorCode.INVALID_TXN_STATE)  # the abort: it was committed
    driver.expect(EndTxnRequest)  # the commit once more, for its answer
    assert commit.is_successful
    assert isinstance(abort.error, IllegalStateError)


def test_a_repeated_commit_that_is_refused_for_good_is_unknown():
    driver = with_partition()
    commit = driver.manager.begin_commit()
    driver.take()
    driver.fail()
    driver.expect(FindCoordinatorRequest)
    driver.expect(EndTxnRequest, ErrorCode.PRODUCER_FENCED)
    assert isinstance(commit.error, CommitOutcomeUnknownError)


def test_a_commit_that_the_coordinator_aborted_before_it_came_is_known_to_have_failed():
    driver = with_partition()
    commit = driver.manager.begin_commit()
    driver.expect(EndTxnRequest, ErrorCode.INVALID_TXN_STATE)
    assert type(commit.error) is InvalidTxnStateError
    assert commit.error.recovery == "restart"


@pytest.mark.quirk("O6")
def test_a_send_that_fails_beside_a_sent_commit_does_not_decide_over_it():
    driver = with_partition()
    commit = driver.manager.begin_commit()
    driver.take()
    driver.manager.maybe_transition_to_error_state(KafkaTimeoutError())
    assert driver.state is S.COMMITTING_TRANSACTION
    driver.reply(0, NEXT)
    finish(driver, commit)


# --- closing, late answers --------------------------------------------------------------------


@pytest.mark.conformance("6.22")
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_closing_fails_whoever_still_waits(steps):
    driver = TxnDriver()
    result = driver.manager.initialize_transactions()
    for _ in range(steps):
        driver.take()
        if driver.handler is not None and len(driver.sent) < 2:
            driver.reply()
    error = KafkaError("closed by force")
    driver.as_sender(driver.manager.close, error)
    assert result.error is error
    assert driver.state is S.FATAL_ERROR


def test_closing_an_idle_producer_is_no_error():
    driver = begun()
    driver.as_sender(driver.manager.close, KafkaError("closed"))
    assert driver.state is S.IN_TRANSACTION


def test_an_answer_after_a_fatal_error_changes_nothing():
    driver = with_partition(version=1)
    driver.manager.maybe_add_partition(TP1)
    driver.take()
    error = ClusterAuthorizationError()
    driver.manager.transition_to_fatal_error(error)
    driver.reply()
    assert (driver.state, driver.manager.last_error) == (S.FATAL_ERROR, error)
    assert driver.take() is None


@pytest.mark.parametrize("call", ["begin_commit", "begin_abort"])
def test_an_end_that_is_answered_after_a_fatal_error_does_not_bring_the_producer_back(call):
    driver = with_partition()
    getattr(driver.manager, call)()
    driver.take()
    error = ClusterAuthorizationError()
    driver.manager.transition_to_fatal_error(error)
    driver.reply(0, NEXT)
    assert (driver.state, driver.manager.last_error) == (S.FATAL_ERROR, error)


def test_no_answer_after_a_fatal_error_is_not_asked_for_again():
    driver = with_partition()
    driver.manager.begin_abort()
    driver.take()
    driver.manager.transition_to_fatal_error(ClusterAuthorizationError())
    driver.fail()
    assert not driver.manager.has_pending_requests


def test_an_answer_that_meets_an_impossible_state_fails_whoever_waits():
    driver = with_partition()
    commit = driver.manager.begin_commit()
    driver.take()
    driver.manager.state = S.IN_TRANSACTION
    with pytest.raises(IllegalStateError):
        driver.reply(0, NEXT)
    assert driver.state is S.FATAL_ERROR
    assert isinstance(commit.error, IllegalStateError)


@pytest.mark.parametrize(
    "bring",
    [
        lambda driver: driver.manager.initialize_transactions(),
        lambda driver: (driver.manager.initialize_transactions(), driver.expect(Find)),
        lambda driver: (driver.begin(), driver.manager.maybe_add_partition(TP0)),
        lambda driver: (driver.begin(), driver.send_offsets()),
        lambda driver: (driver.begin(), driver.send_offsets(), driver.expect(AddOffsets)),
        lambda driver: (
            driver.begin(),
            driver.send_offsets(),
            driver.expect(AddOffsets),
            driver.expect(Find),
        ),
        lambda driver: (driver.begin(), driver.add_partition(), driver.manager.begin_commit()),
    ],
    ids=["find", "init", "partitions", "offsets", "find-group", "commit-offsets", "end"],
)
def test_an_answer_to_another_request_is_an_error(bring):
    driver = TxnDriver(version=1)
    bring(driver)
    driver.take()
    with pytest.raises(IllegalStateError, match="not the answer"):
        driver.answer(MetadataResponse((), ()))


def test_the_first_fatal_error_is_kept():
    driver = begun()
    first = ProducerFencedError()
    driver.manager.transition_to_fatal_error(first)
    driver.manager.transition_to_fatal_error(ClusterAuthorizationError())
    driver.manager.maybe_transition_to_error_state(TopicAuthorizationError())
    assert driver.manager.last_error is first


# --- batches ----------------------------------------------------------------------------------


@pytest.mark.conformance("1.03")
@pytest.mark.trap(6)
def test_a_batch_that_fails_outside_a_transaction_poisons():
    driver = TxnDriver()
    driver.initialize()
    with pytest.raises(IllegalStateError):
        driver.as_sender(
            driver.manager.handle_failed_batch, FakeBatch(0), TopicAuthorizationError(), True
        )
    assert driver.state is S.FATAL_ERROR


@pytest.mark.conformance("4.48")
def test_after_a_fatal_error_a_failed_batch_moves_no_numbers():
    driver = with_partition()
    sequences = driver.manager.sequences
    sequences.maybe_update_producer_id_and_epoch(TP0)
    sequences.increment_sequence_number(TP0, 3)
    driver.manager.transition_to_fatal_error(ProducerFencedError())
    batch = FakeBatch(0, 3, place=TP0, producer=PRODUCER)
    driver.as_sender(driver.manager.handle_failed_batch, batch, TopicAuthorizationError(), True)
    assert sequences.sequence_number(TP0) == 3


def expired_batch(driver):
    sequences = driver.manager.sequences
    sequences.maybe_update_producer_id_and_epoch(TP0)
    sequences.increment_sequence_number(TP0, 1)
    batch = FakeBatch(0, place=TP0, producer=PRODUCER)
    sequences.add_in_flight_batch(batch)
    batch.is_done = True
    driver.as_sender(driver.manager.handle_failed_batch, batch, KafkaTimeoutError(), False)
    sequences.mark_sequence_unresolved(batch)


@pytest.mark.conformance("4.40")
@pytest.mark.trap(16, 31)
@pytest.mark.parametrize(
    ("version", "can_bump", "state"),
    [(1, True, S.ABORTABLE_ERROR), (1, False, S.FATAL_ERROR), (2, True, S.ABORTABLE_ERROR)],
)
def test_a_batch_of_unknown_fate_is_abortable_where_the_epoch_can_change(version, can_bump, state):
    driver = with_partition(version=version, can_bump=can_bump)
    expired_batch(driver)
    first = driver.manager.last_error
    assert type(first) is TransactionAbortableError
    driver.as_sender(driver.manager.maybe_resolve_sequences)
    assert driver.state is state
    if state is S.ABORTABLE_ERROR:
        assert driver.manager.last_error is first
        driver.manager.begin_abort()
        driver.expect(EndTxnRequest, producer=NEXT if version == 2 else None)
        is_bump = isinstance(driver.take(), InitProducerIdRequest)
        assert is_bump == (version == 1)


def test_an_idempotent_producer_gets_an_id_from_any_broker_and_a_new_one_after_the_last_epoch():
    driver = TxnDriver(None)
    manager = driver.manager
    step = manager.bump_idempotent_epoch_and_reset_id_if_needed
    driver.as_sender(step)
    driver.as_sender(step)
    last = ProducerIdAndEpoch(77, 2**15 - 1)
    request = driver.expect(InitProducerIdRequest, producer=last)
    assert request.transactional_id is None
    assert request.transaction_timeout_ms == 2**31 - 1
    assert manager.state is S.READY
    assert driver.take() is None
    manager.sequences.request_idempotent_epoch_bump_for_partition(TP0)
    driver.as_sender(step)
    assert (driver.state, manager.has_producer_id) == (S.INITIALIZING, False)
    driver.expect(InitProducerIdRequest, producer=ProducerIdAndEpoch(78, 0))
    assert manager.producer_id_and_epoch == ProducerIdAndEpoch(78, 0)
    assert driver.kinds() == ["InitProducerId", "InitProducerId"]


@pytest.mark.conformance("4.18")
def test_an_idempotent_producer_raises_its_epoch_by_itself():
    driver = TxnDriver(None)
    step = driver.manager.bump_idempotent_epoch_and_reset_id_if_needed
    driver.as_sender(step)
    driver.expect(InitProducerIdRequest, producer=PRODUCER)
    driver.manager.sequences.request_idempotent_epoch_bump_for_partition(TP0)
    driver.as_sender(step)
    assert driver.manager.producer_id_and_epoch == NEXT
    assert driver.take() is None


def test_the_role_is_the_applications_unless_the_sender_says_otherwise():
    assert TxnDriver().manager.role is Role.APPLICATION
