"""Which epoch follows a transaction, each request answered by hand."""

from __future__ import annotations

import pytest

from tests.core.txn_driver import (
    NODE,
    TP0,
    TP1,
    begun,
    finish,
    with_partition,
)
from txnproducer._core.transactions.state import TransactionState
from txnproducer._protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from txnproducer.errors import (
    ErrorCode,
    InvalidProducerEpochError,
    KafkaError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    TopicAuthorizationError,
    TransactionalIdAuthorizationError,
)
from txnproducer.records import ProducerIdAndEpoch

S = TransactionState
NEXT = ProducerIdAndEpoch(77, 1)


@pytest.mark.conformance("1.13")
@pytest.mark.trap(8)
def test_a_v1_abort_after_an_error_raises_the_epoch_before_it_returns():
    driver = with_partition(version=1)
    driver.manager.progress.maybe_transition_to_error_state(InvalidProducerEpochError())
    abort = driver.manager.begin_abort()
    driver.expect(EndTxnRequest)
    assert driver.state is S.INITIALIZING
    assert not abort.is_completed
    bump = driver.expect(InitProducerIdRequest, producer=NEXT)
    assert (bump.producer_id, bump.producer_epoch) == (77, 0)
    finish(abort)
    assert driver.manager.identity.producer_id_and_epoch == NEXT
    driver.manager.begin_transaction()


@pytest.mark.conformance("1.14")
@pytest.mark.trap(9)
def test_an_abort_without_anything_added_raises_the_epoch_alone():
    driver = begun(version=1)
    driver.manager.maybe_add_partition(TP0)
    driver.expect(AddPartitionsToTxnRequest, ErrorCode.UNKNOWN_PRODUCER_ID)
    abort = driver.manager.begin_abort()
    driver.expect(InitProducerIdRequest, producer=NEXT)
    finish(abort)
    assert "EndTxn" not in driver.kinds()


@pytest.mark.conformance("3.30")
@pytest.mark.parametrize("can_bump", [True, False])
def test_a_producer_unknown_to_its_coordinator_is_cured_by_an_abort_and_a_new_epoch(can_bump):
    driver = begun(version=1, can_bump=can_bump)
    driver.manager.maybe_add_partition(TP0)
    driver.expect(AddPartitionsToTxnRequest, ErrorCode.UNKNOWN_PRODUCER_ID)
    if not can_bump:
        assert driver.state is S.FATAL_ERROR
        return
    assert driver.state is S.ABORTABLE_ERROR
    abort = driver.manager.begin_abort()
    driver.expect(InitProducerIdRequest, producer=NEXT)
    finish(abort)
    assert driver.state.name == "READY"


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
    finish(abort)
    assert driver.state.name == "READY"


@pytest.mark.conformance("4.55")
@pytest.mark.trap(33)
def test_an_error_during_the_commit_raises_the_epoch_after_the_abort():
    # In Java it stays: where the broker has lost the end of its log, every later transaction of
    # `send(); commit()` goes on with the same number, and fails.
    driver = with_partition(version=1)
    commit = driver.manager.begin_commit()
    driver.manager.progress.maybe_transition_to_error_state(OutOfOrderSequenceError())
    assert driver.take() is None
    commit.acknowledge()
    abort = driver.manager.begin_abort()
    driver.expect(EndTxnRequest)
    driver.expect(InitProducerIdRequest, producer=NEXT)
    finish(abort)
    assert driver.state is S.READY


@pytest.mark.conformance("3.45")
@pytest.mark.parametrize("can_bump", [True, False])
def test_v2_leaves_the_epoch_to_the_coordinator_in_all_versions(can_bump):
    driver = with_partition(version=2, can_bump=can_bump)
    driver.manager.progress.maybe_transition_to_error_state(TopicAuthorizationError())
    assert driver.manager.identity.can_handle_abortable_error
    abort = driver.manager.begin_abort()
    driver.expect(EndTxnRequest, producer=NEXT)
    finish(abort)
    assert driver.take() is None


@pytest.mark.conformance("3.45")
def test_in_v2_an_answer_that_was_lost_makes_the_client_raise_no_epoch():
    driver = with_partition(version=2)
    commit = driver.manager.begin_commit()
    driver.take()
    driver.fail()
    driver.expect(FindCoordinatorRequest)
    driver.expect(EndTxnRequest, producer=NEXT)
    finish(commit)
    assert driver.take() is None
    driver.manager.begin_transaction()


@pytest.mark.conformance("3.33")
@pytest.mark.quirk("D8")
def test_a_failed_epoch_bump_is_raised_at_the_next_begin():
    driver = with_partition(version=1)
    driver.manager.progress.maybe_transition_to_error_state(TopicAuthorizationError())
    abort = driver.manager.begin_abort()
    driver.expect(EndTxnRequest)
    driver.expect(InitProducerIdRequest, ErrorCode.PRODUCER_FENCED)
    finish(abort)
    with pytest.raises(ProducerFencedError):
        driver.manager.begin_transaction()


@pytest.mark.conformance("3.33")
def test_a_bump_that_is_refused_for_lack_of_rights_asks_for_a_new_init():
    driver = with_partition(version=1)
    driver.manager.progress.maybe_transition_to_error_state(TopicAuthorizationError())
    abort = driver.manager.begin_abort()
    driver.expect(EndTxnRequest)
    driver.expect(InitProducerIdRequest, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    finish(abort)
    assert driver.manager.progress.must_reinitialize
    driver.as_sender(
        driver.manager.progress.transition_to_uninitialized, driver.manager.machine.last_error
    )
    with pytest.raises(KafkaError, match="init_transactions") as caught:
        driver.manager.begin_transaction()
    assert isinstance(caught.value.__cause__, TransactionalIdAuthorizationError)
    again = driver.manager.initialize_transactions()
    driver.expect(InitProducerIdRequest, producer=ProducerIdAndEpoch(77, 4))
    finish(again)
    driver.manager.begin_transaction()


def test_a_bump_that_must_be_aborted_is_made_up_for_by_the_abort():
    driver = with_partition(version=1)
    driver.manager.progress.maybe_transition_to_error_state(TopicAuthorizationError())
    first = driver.manager.begin_abort()
    driver.expect(EndTxnRequest)
    driver.expect(InitProducerIdRequest, ErrorCode.TRANSACTION_ABORTABLE)
    finish(first)
    second = driver.manager.begin_abort()
    driver.expect(InitProducerIdRequest, producer=NEXT)
    finish(second)
    assert driver.manager.identity.producer_id_and_epoch == NEXT


@pytest.mark.conformance("3.34")
def test_a_fatal_end_raises_its_own_error():
    driver = with_partition(version=1)
    driver.manager.progress.maybe_transition_to_error_state(TopicAuthorizationError())
    abort = driver.manager.begin_abort()
    driver.refuse_end(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    assert driver.state is S.FATAL_ERROR
    assert type(abort.error) is type(driver.manager.machine.last_error)
    assert driver.take() is None


@pytest.mark.conformance("3.47")
@pytest.mark.trap(17)
def test_an_upgrade_is_seen_at_the_end_and_costs_a_bump():
    driver = with_partition(version=1)
    driver.client.set_transaction_version(2)
    assert not driver.manager.identity.is_transaction_v2_enabled
    commit = driver.manager.begin_commit()
    # The rest of this transaction is still written as it was begun.
    assert not driver.manager.identity.is_transaction_v2_enabled
    assert not driver.expect(EndTxnRequest).is_transaction_v2_enabled
    assert not commit.is_completed
    driver.expect(InitProducerIdRequest, producer=NEXT)
    finish(commit)
    assert driver.manager.identity.is_transaction_v2_enabled


@pytest.mark.parametrize("can_bump", [True, False])
@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("is_refused_before_it_is_sent", [True, False])
def test_the_bump_of_an_upgrade_that_fails_abortably_is_still_due(
    is_commit, is_refused_before_it_is_sent, can_bump
):
    driver = with_partition(version=1, can_bump=can_bump)
    driver.client.set_transaction_version(2)
    manager = driver.manager
    finished = manager.begin_commit() if is_commit else manager.begin_abort()
    driver.expect(EndTxnRequest)
    if is_refused_before_it_is_sent:
        manager.requests.handle_coordinator_disconnected(NODE.node_id)
        driver.expect(FindCoordinatorRequest, ErrorCode.TRANSACTION_ABORTABLE)
        assert driver.take() is None
    else:
        driver.expect(InitProducerIdRequest, ErrorCode.TRANSACTION_ABORTABLE)
    finish(finished)
    assert driver.state is S.ABORTABLE_ERROR
    with pytest.raises(KafkaError):
        manager.begin_transaction()
    abort = manager.begin_abort()
    # A transaction v2 under the epoch of a v1 one would be joined by what that left on its way.
    if is_refused_before_it_is_sent:
        driver.expect(FindCoordinatorRequest)
    bump = driver.expect(InitProducerIdRequest, producer=NEXT)
    assert (bump.producer_id, bump.producer_epoch) == (77, 0)
    finish(abort)
    assert manager.identity.producer_id_and_epoch == NEXT
    manager.begin_transaction()
    assert manager.identity.is_transaction_v2_enabled


@pytest.mark.conformance("3.50")
@pytest.mark.trap(17)
def test_a_downgrade_is_seen_at_the_end_and_adopts_the_last_v2_epoch():
    driver = with_partition(version=2)
    driver.client.set_transaction_version(1)
    commit = driver.manager.begin_commit()
    assert driver.expect(EndTxnRequest, producer=NEXT).is_transaction_v2_enabled
    finish(commit)
    assert not driver.manager.identity.is_transaction_v2_enabled
    assert driver.manager.identity.producer_id_and_epoch == NEXT
    assert driver.take() is None


@pytest.mark.conformance("3.48")
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_a_change_of_the_version_in_mid_transaction_waits_for_its_end(before, after):
    driver = with_partition(version=before)
    driver.client.set_transaction_version(after)
    driver.add_partition(TP1)  # v1 asks the coordinator, v2 does not
    driver.send_offsets()
    is_v2 = before == 2
    driver.expect(FindCoordinatorRequest if is_v2 else AddOffsetsToTxnRequest)
    if not is_v2:
        driver.expect(FindCoordinatorRequest)
    assert driver.expect(TxnOffsetCommitRequest).is_transaction_v2_enabled is is_v2
    assert driver.kinds().count("AddPartitionsToTxn") == (0 if is_v2 else 2)
    assert driver.manager.identity.is_transaction_v2_enabled is is_v2
    commit = driver.manager.begin_commit()
    next_one = NEXT if is_v2 else None
    assert driver.expect(EndTxnRequest, producer=next_one).is_transaction_v2_enabled is is_v2
    if not is_v2:
        driver.expect(InitProducerIdRequest, producer=NEXT)
    finish(commit)
    assert driver.manager.identity.is_transaction_v2_enabled is not is_v2


@pytest.mark.conformance("3.48")
def test_only_a_newer_reading_of_the_features_counts():
    driver = with_partition(version=1)
    driver.client.features = type(driver.client.features)(0, {"transaction.version": 2})
    commit = driver.manager.begin_commit()
    driver.expect(EndTxnRequest)
    finish(commit)
    assert not driver.manager.identity.is_transaction_v2_enabled
