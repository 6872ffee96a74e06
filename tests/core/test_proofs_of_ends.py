"""The proof of an end that is lost or refused (transactions v1)."""

from __future__ import annotations

import pytest

from tests.core.former_coordinators import (
    NEXT,
    OTHER,
    either_end,
    end,
    find,
    moved,
    outcome_of,
    transact,
)
from tests.core.txn_driver import NODE, PRODUCER, TxnDriver
from txnproducer._core.transactions.state import TransactionState
from txnproducer._protocol.events import ResponseFailure
from txnproducer._protocol.messages import (
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
)
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    ErrorCode,
    IllegalStateError,
    ProducerFencedError,
    TransactionalIdAuthorizationError,
)
from txnproducer.records import TransactionLease

S = TransactionState
DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@either_end
def test_a_lost_proof_is_repeated_by_the_same_broker(is_commit):
    driver, result = moved(is_commit=is_commit, before=(is_commit,))
    for way in (ResponseFailure.TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE):
        assert isinstance(driver.take(), InitProducerIdRequest)
        if isinstance(way, ResponseFailure):
            driver.fail(way)
        else:
            driver.reply(way)
        find(driver, OTHER)
    driver.expect(InitProducerIdRequest, ErrorCode.CONCURRENT_TRANSACTIONS)
    driver.expect(InitProducerIdRequest, producer=NEXT)
    assert result.is_successful
    assert driver.manager.progress.outcome == outcome_of(is_commit)


def test_a_lost_proof_is_not_sent_to_another_broker_since_it_could_abort_the_transaction():
    driver, result = moved(is_commit=True)
    assert isinstance(driver.take(), InitProducerIdRequest)
    driver.fail(ResponseFailure.TIMED_OUT)
    find(driver, NODE)
    driver.expect(EndTxnRequest)
    driver.expect(InitProducerIdRequest, producer=NEXT)  # the lost one may come late
    assert result.is_successful


def lost_proof(is_commit):
    """Return a driver and the result of its end. The proof was lost at OTHER, found once more."""
    driver, result = moved(is_commit=is_commit, before=(is_commit,))
    assert isinstance(driver.take(), InitProducerIdRequest)
    driver.fail(ResponseFailure.TIMED_OUT)
    find(driver, NODE)
    driver.expect(EndTxnRequest, ErrorCode.NOT_COORDINATOR)
    find(driver, OTHER)
    return driver, result


@either_end
@pytest.mark.parametrize("is_turned", [False, True])
def test_an_identity_that_a_lost_proof_has_written_is_asked_for_again(is_commit, is_turned):
    driver, result = lost_proof(is_commit)
    if is_turned and is_commit:
        end(driver, is_commit=False)
    driver.expect(EndTxnRequest, ErrorCode.PRODUCER_FENCED)
    proof = driver.expect(InitProducerIdRequest, producer=NEXT)
    assert proof.producer_epoch == PRODUCER.producer_epoch
    if driver.take() is not None:  # the lost one may come late
        driver.reply(producer=NEXT)
    assert result.is_successful
    assert driver.manager.progress.outcome == outcome_of(is_commit)


def sent_proof(*, is_of_abort):
    """Return a driver, and the results of a commit and of the abort after it.

    The proof of one of the two ends is on its way. The other end may be written.
    """
    if is_of_abort:
        driver, commit, abort = abort_of_a_lost_commit()
        assert isinstance(driver.take(), InitProducerIdRequest)
    else:
        driver, commit = moved(is_commit=True)
        assert isinstance(driver.take(), InitProducerIdRequest)
        abort = end(driver, is_commit=False)
    return driver, commit, abort


@pytest.mark.parametrize("is_of_abort", [False, True], ids=["of commit", "of abort"])
def test_a_lost_proof_proves_nothing_if_the_other_end_may_be_written(is_of_abort):
    # Another coordinator may have written it, before this one accepted the proof that came late.
    driver, commit, abort = sent_proof(is_of_abort=is_of_abort)
    driver.fail(ResponseFailure.TIMED_OUT)
    find(driver, NODE)
    assert not driver.expect(EndTxnRequest, ErrorCode.NOT_COORDINATOR).is_commit
    find(driver, OTHER)
    driver.expect(EndTxnRequest, ErrorCode.PRODUCER_FENCED)
    find(driver, OTHER)
    driver.expect(EndTxnRequest, ErrorCode.PRODUCER_FENCED)
    assert isinstance(commit.error, CommitOutcomeUnknownError)
    assert isinstance(abort.error, CommitOutcomeUnknownError)


def test_a_lost_proof_of_a_commit_that_was_given_up_meanwhile_proves_the_commit():
    driver, commit = moved(is_commit=True)
    assert isinstance(driver.take(), InitProducerIdRequest)
    abort = end(driver, is_commit=False)
    driver.fail(ResponseFailure.TIMED_OUT)
    find(driver, OTHER)
    driver.expect(InitProducerIdRequest, producer=NEXT)
    assert driver.manager.progress.outcome == "committed"
    assert commit.is_successful
    assert isinstance(abort.error, IllegalStateError)


def test_a_lost_proof_that_does_not_repeat_its_answer_may_have_aborted_the_transaction():
    driver, commit = lost_proof(is_commit=True)
    driver.expect(EndTxnRequest, ErrorCode.PRODUCER_FENCED)
    driver.expect(InitProducerIdRequest, ErrorCode.PRODUCER_FENCED)
    assert isinstance(commit.error, CommitOutcomeUnknownError)


@either_end
def test_a_later_identity_at_another_broker_than_that_of_the_lost_proof_is_a_refusal(is_commit):
    driver, _ = moved(is_commit=is_commit, before=(is_commit,))
    assert isinstance(driver.take(), InitProducerIdRequest)
    driver.fail(ResponseFailure.TIMED_OUT)
    find(driver, NODE)
    driver.expect(EndTxnRequest, ErrorCode.PRODUCER_FENCED)
    assert isinstance(driver.take(), FindCoordinatorRequest)


@either_end
@pytest.mark.parametrize("is_at_proof", [False, True])
def test_a_broker_that_has_loaded_its_log_knows_no_lost_proof(is_commit, is_at_proof):
    driver, _ = lost_proof(is_commit)
    if is_at_proof:
        driver.expect(EndTxnRequest, ErrorCode.PRODUCER_FENCED)
        driver.expect(InitProducerIdRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    else:
        driver.expect(EndTxnRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    driver.expect(EndTxnRequest, ErrorCode.PRODUCER_FENCED)
    assert isinstance(driver.take(), FindCoordinatorRequest)


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_commit_without_a_proof_is_in_doubt(is_closed):
    driver, commit = moved(is_commit=True)
    if is_closed:
        driver.as_sender(driver.manager.progress.close, IllegalStateError("closed by force"))
    else:
        driver.expect(InitProducerIdRequest, DENIED)
    assert isinstance(commit.error, CommitOutcomeUnknownError)
    assert driver.state is S.FATAL_ERROR


def test_an_abort_without_a_proof_ends_the_producer():
    driver, abort = moved(is_commit=False, before=(False,))
    driver.expect(InitProducerIdRequest, DENIED)
    assert isinstance(abort.error, TransactionalIdAuthorizationError)
    assert driver.state is S.FATAL_ERROR


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ],
)
@either_end
def test_a_later_identity_at_the_proof_leaves_a_commit_in_doubt(is_commit, code):
    # The broker may have become the coordinator again, after another producer has taken the id.
    driver, result = moved(is_commit=is_commit, before=(is_commit,))
    driver.expect(InitProducerIdRequest, code)
    if is_commit:
        assert isinstance(result.error, CommitOutcomeUnknownError)
    else:
        driver.expect(InitProducerIdRequest, code)  # the bump that is due
        assert result.is_successful
        assert driver.manager.progress.outcome == "aborted"
    assert driver.state is S.FATAL_ERROR


def abort_of_a_lost_commit():
    """Return a driver that must prove an abort now, and the results of commit and abort."""
    driver = TxnDriver(version=1)
    driver.begin()
    transact(driver, is_commit=False)
    driver.add_partition()
    commit = end(driver, is_commit=True)
    assert isinstance(driver.take(), EndTxnRequest)
    driver.fail(ResponseFailure.TIMED_OUT)
    abort = end(driver, is_commit=False)
    find(driver, OTHER)
    assert not driver.expect(EndTxnRequest).is_commit
    return driver, commit, abort


def test_a_later_identity_at_the_proof_of_an_abort_leaves_a_lost_commit_in_doubt():
    driver, commit, abort = abort_of_a_lost_commit()
    driver.expect(InitProducerIdRequest, ErrorCode.PRODUCER_FENCED)
    assert isinstance(commit.error, CommitOutcomeUnknownError)
    assert isinstance(abort.error, CommitOutcomeUnknownError)
    assert driver.state is S.FATAL_ERROR


@either_end
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_later_identity_may_be_of_the_first_proof_if_that_has_aborted_the_transaction(
    is_commit, is_lost
):
    # The broker has become the coordinator again, and has loaded the transaction as open.
    driver, result = moved(is_commit=is_commit, before=(is_commit,))
    if is_lost:
        assert isinstance(driver.take(), InitProducerIdRequest)
        driver.fail(ResponseFailure.TIMED_OUT)
        find(driver, OTHER)
    else:
        driver.expect(InitProducerIdRequest, ErrorCode.CONCURRENT_TRANSACTIONS)
    driver.expect(InitProducerIdRequest, ErrorCode.PRODUCER_FENCED)
    if is_commit:
        assert isinstance(result.error, CommitOutcomeUnknownError)
    else:
        driver.expect(InitProducerIdRequest, ErrorCode.PRODUCER_FENCED)  # the bump that is due
        assert result.is_successful
    assert driver.state is S.FATAL_ERROR


def test_a_later_identity_at_the_proof_proves_no_abort_of_a_shared_transaction():
    # The other process may have committed, and a third one have taken the id since.
    driver = TxnDriver(version=1)
    lease = TransactionLease("t", PRODUCER, False, (), is_started=True, cluster_id=None)
    driver.manager.leasing.resume(lease)
    abort = end(driver, is_commit=False)
    driver.expect(FindCoordinatorRequest)
    driver.expect(EndTxnRequest)
    driver.expect(InitProducerIdRequest, ErrorCode.PRODUCER_FENCED)
    assert isinstance(abort.error, ProducerFencedError)
    assert driver.state is S.FATAL_ERROR
