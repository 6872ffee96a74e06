"""Whether a commit that did not succeed has failed, or nobody knows.

A commit is in doubt when an attempt at it was on the wire and got no answer that decides, and then
the producer, or the commit, ends. Everything else is certain. Java's producer says
neither: it tells the failure that came last.
"""

from __future__ import annotations

import pytest

from tests.core.txn_driver import TP0, TxnDriver
from txnproducer._core.transactions.state import TransactionState
from txnproducer._protocol.events import ResponseFailure
from txnproducer._protocol.messages import (
    AddPartitionsToTxnRequest,
    CoordinatorType,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
)
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    ErrorCode,
    IllegalStateError,
    KafkaError,
    TransactionAbortableError,
    TransactionAbortedError,
)
from txnproducer.records import ProducerIdAndEpoch

S = TransactionState
NEXT = ProducerIdAndEpoch(77, 1)

# Failures that leave a commit in doubt, and failures that do not.
IN_DOUBT = (
    ResponseFailure.DISCONNECTED,
    ResponseFailure.TIMED_OUT,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT,
)
REFUSED_AT_ONCE = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
ENDS = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
either_version = pytest.mark.parametrize("version", [1, 2])


def committing(version=2, *, can_bump=True):
    """Return a driver with a commit begun, and the commit's result."""
    driver = TxnDriver(version=version, can_bump=can_bump)
    driver.begin()
    driver.add_partition()
    return driver, driver.manager.begin_commit()


def committing_with_lost_request():
    """Return the same with v1, and with a request that may still begin another transaction."""
    driver = TxnDriver(version=1)
    driver.begin()
    driver.manager.maybe_add_partition(TP0)
    assert isinstance(driver.take(), AddPartitionsToTxnRequest)
    driver.fail(ResponseFailure.TIMED_OUT)
    driver.expect(FindCoordinatorRequest)
    driver.expect(AddPartitionsToTxnRequest)
    return driver, driver.manager.begin_commit()


def end_attempt(driver, way):
    """Let the commit's next attempt end in some way that has it repeated."""
    assert driver.take().is_commit
    if isinstance(way, ResponseFailure):
        driver.fail(way)
    else:
        driver.reply(way)


def find_coordinator_again(driver):
    if driver.manager.requests.coordinator(CoordinatorType.TRANSACTION) is None:
        driver.expect(FindCoordinatorRequest)


def aborted_unseen(driver, commit):
    """Make the commit fail before its caller looks, so that only an abort is possible."""
    driver.expect(FindCoordinatorRequest, ErrorCode.TRANSACTION_ABORTABLE)
    assert driver.take() is None
    assert driver.state is S.ABORTABLE_ERROR
    assert isinstance(commit.error, CommitOutcomeUnknownError)
    assert isinstance(commit.error.__cause__, TransactionAbortableError)


@pytest.mark.regression("class-2")
@either_version
@pytest.mark.parametrize("way", IN_DOUBT)
@pytest.mark.parametrize("end", ENDS)
def test_a_commit_that_lost_an_attempt_and_is_then_refused_is_in_doubt(version, way, end):
    driver, commit = committing(version)
    end_attempt(driver, way)
    find_coordinator_again(driver)
    driver.refuse_end(end)
    assert isinstance(commit.error, CommitOutcomeUnknownError)
    assert commit.error.recovery == "unknown"
    assert commit.error.__cause__ is driver.manager.machine.last_error
    assert driver.state is S.FATAL_ERROR


@either_version
@pytest.mark.parametrize("way", IN_DOUBT)
def test_a_commit_that_lost_an_attempt_is_in_doubt_when_the_producer_is_closed(version, way):
    driver, commit = committing(version)
    end_attempt(driver, way)
    driver.as_sender(driver.manager.progress.close, KafkaError("closed by force"))
    assert isinstance(commit.error, CommitOutcomeUnknownError)


@either_version
@pytest.mark.parametrize("way", [None, *REFUSED_AT_ONCE])
@pytest.mark.parametrize("end", ENDS)
def test_a_commit_of_which_every_attempt_was_answered_is_not_in_doubt(version, way, end):
    # KAFKA-20785: the transaction was aborted at its time-out, a moment before the commit came.
    driver, commit = committing(version)
    if way is not None:
        end_attempt(driver, way)
    driver.refuse_end(end)
    assert commit.error is not None
    assert not isinstance(commit.error, CommitOutcomeUnknownError)


@either_version
@pytest.mark.parametrize("way", IN_DOUBT)
def test_a_commit_that_lost_an_attempt_and_is_then_answered_has_succeeded(version, way):
    driver, commit = committing(version)
    end_attempt(driver, way)
    find_coordinator_again(driver)
    driver.expect(EndTxnRequest, producer=NEXT if version == 2 else None)
    if driver.state is S.INITIALIZING:
        driver.expect(InitProducerIdRequest, producer=NEXT)
    assert commit.is_successful
    assert driver.manager.progress.outcome == "committed"


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_SERVER_ERROR, 31_000, -2])
def test_a_commit_that_broke_the_coordinator_is_in_doubt_without_a_lost_answer(code):
    # It may have broken before the decision was in its log, or after. A code that only newer
    # brokers know may say the same.
    driver, commit = committing()
    driver.expect(EndTxnRequest, code)
    assert isinstance(commit.error, CommitOutcomeUnknownError)
    assert driver.state is S.FATAL_ERROR


def test_a_commit_that_no_version_of_the_broker_can_carry_is_not_in_doubt():
    driver, commit = committing()
    driver.take()
    driver.fail(ResponseFailure.UNSUPPORTED_VERSION)
    assert not isinstance(commit.error, CommitOutcomeUnknownError)


@either_version
def test_an_abort_reports_the_doubt_about_an_unseen_commit_before_its_own_refusal(version):
    driver, commit = committing(version)
    end_attempt(driver, ResponseFailure.TIMED_OUT)
    driver.expect(FindCoordinatorRequest)
    driver.refuse_end(ErrorCode.PRODUCER_FENCED)
    with pytest.raises(CommitOutcomeUnknownError) as told:
        driver.manager.begin_abort()
    assert told.value is commit.error
    with pytest.raises(KafkaError) as later:
        driver.manager.begin_abort()
    assert not isinstance(later.value, CommitOutcomeUnknownError)


@either_version
@pytest.mark.parametrize("is_committed", [True, False])
def test_an_abort_inherits_the_doubt_about_a_commit_that_failed_and_settles_it(
    version, is_committed
):
    driver, commit = committing(version)
    end_attempt(driver, ResponseFailure.DISCONNECTED)
    aborted_unseen(driver, commit)
    abort = driver.manager.begin_abort()
    driver.expect(FindCoordinatorRequest)
    answer = NEXT if version == 2 else None
    if is_committed:
        assert not driver.refuse_end(ErrorCode.INVALID_TXN_STATE).is_commit
        assert driver.expect(EndTxnRequest, producer=answer).is_commit
    else:
        assert not driver.expect(EndTxnRequest, producer=answer).is_commit
    if version == 1:
        driver.expect(InitProducerIdRequest, producer=NEXT)
    assert isinstance(abort.error, IllegalStateError) is is_committed
    assert abort.is_successful is not is_committed
    assert driver.manager.progress.outcome == ("committed" if is_committed else "aborted")
    assert driver.state is S.READY


@pytest.mark.parametrize("is_committed", [True, False])
def test_an_abort_settles_no_doubt_if_a_lost_request_may_begin_a_new_transaction(
    is_committed,
):
    # The coordinator may have carried the commit out, begun an empty transaction with the lost
    # request, which came late, and aborted that.
    driver, commit = committing_with_lost_request()
    end_attempt(driver, ResponseFailure.TIMED_OUT)
    abort = driver.manager.begin_abort()
    driver.expect(FindCoordinatorRequest)
    if is_committed:
        driver.refuse_end(ErrorCode.INVALID_TXN_STATE)
    driver.expect(EndTxnRequest)
    driver.expect(InitProducerIdRequest, producer=NEXT)
    assert driver.state is S.READY
    if is_committed:
        assert driver.manager.progress.outcome == "committed"
        assert commit.is_successful
        return
    assert driver.manager.progress.outcome == "unknown"
    assert isinstance(commit.error, CommitOutcomeUnknownError)
    assert isinstance(abort.error, CommitOutcomeUnknownError)
    abort.acknowledge()
    driver.manager.begin_transaction()
    driver.manager.maybe_add_partition(TP0)
    driver.expect(AddPartitionsToTxnRequest)
    later = driver.manager.begin_commit()
    end_attempt(driver, ResponseFailure.TIMED_OUT)
    again = driver.manager.begin_abort()
    driver.expect(FindCoordinatorRequest)
    driver.expect(EndTxnRequest)
    driver.expect(InitProducerIdRequest, producer=ProducerIdAndEpoch(77, 2))
    assert isinstance(later.error, TransactionAbortedError)  # the lost copy is fenced
    assert again.is_successful


@pytest.mark.parametrize("has_lost_request", [True, False])
def test_a_repeated_abort_that_is_refused_settles_no_doubt_if_a_lost_request_may_begin_again(
    has_lost_request,
):
    # The coordinator may have carried the first abort out, begun an empty transaction with the
    # lost request, and committed that with the lost commit.
    driver, commit = committing_with_lost_request() if has_lost_request else committing(version=1)
    end_attempt(driver, ResponseFailure.TIMED_OUT)
    assert not driver.manager.last_commit.is_given_up
    abort = driver.manager.begin_abort()
    assert driver.manager.last_commit.is_given_up
    driver.expect(FindCoordinatorRequest)
    assert not driver.take().is_commit
    driver.fail(ResponseFailure.TIMED_OUT)
    driver.expect(FindCoordinatorRequest)
    assert not driver.refuse_end(ErrorCode.INVALID_TXN_STATE).is_commit
    assert driver.expect(EndTxnRequest).is_commit
    driver.expect(InitProducerIdRequest, producer=NEXT)
    assert driver.state is S.READY
    assert driver.manager.may_have_begun_again is has_lost_request
    if has_lost_request:
        assert driver.manager.progress.outcome == "unknown"
        assert isinstance(commit.error, CommitOutcomeUnknownError)
        assert isinstance(abort.error, CommitOutcomeUnknownError)
    else:
        assert driver.manager.progress.outcome == "committed"
        assert commit.is_successful
        assert isinstance(abort.error, IllegalStateError)


@either_version
def test_an_abort_that_inherits_a_doubt_and_fails_leaves_it_in_doubt(version):
    driver, commit = committing(version)
    end_attempt(driver, ResponseFailure.DISCONNECTED)
    aborted_unseen(driver, commit)
    abort = driver.manager.begin_abort()
    driver.expect(FindCoordinatorRequest)
    driver.refuse_end(ErrorCode.PRODUCER_FENCED)
    assert isinstance(abort.error, CommitOutcomeUnknownError)
    assert driver.manager.progress.outcome == "open"


def test_an_abort_after_a_commit_that_failed_for_certain_has_nothing_to_ask():
    driver, commit = committing()
    driver.expect(EndTxnRequest, ErrorCode.TRANSACTION_ABORTABLE)
    assert isinstance(commit.error, TransactionAbortableError)
    commit.acknowledge()
    abort = driver.manager.begin_abort()
    driver.expect(EndTxnRequest, producer=NEXT)
    assert abort.is_successful
    assert driver.manager.progress.outcome == "aborted"


@either_version
def test_a_commit_that_timed_out_before_it_was_sent_is_aborted_without_a_doubt(version):
    driver, commit = committing(version)
    abort = driver.manager.begin_abort()
    assert not driver.expect(EndTxnRequest, producer=NEXT if version == 2 else None).is_commit
    assert isinstance(commit.error, TransactionAbortedError)
    assert abort.is_successful


def test_where_epochs_cannot_be_raised_an_abort_cannot_settle_a_doubt():
    # The lost commit could still arrive, in the midst of the next transaction.
    driver, commit = committing(1, can_bump=False)
    end_attempt(driver, ResponseFailure.DISCONNECTED)
    with pytest.raises(CommitOutcomeUnknownError):
        driver.manager.begin_abort()
    assert isinstance(commit.error, CommitOutcomeUnknownError)
    assert driver.state is S.FATAL_ERROR
