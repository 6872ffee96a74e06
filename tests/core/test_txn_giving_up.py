"""Commits that are given up, and those of unknown outcome, each request answered by hand."""

from __future__ import annotations

import pytest

from tests.core.txn_driver import (
    finish,
    with_partition,
)
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
    InvalidTxnStateError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    TopicAuthorizationError,
    TransactionAbortedError,
)
from txnproducer.records import ProducerIdAndEpoch

S = TransactionState
NEXT = ProducerIdAndEpoch(77, 1)


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
    finish(abort)
    assert isinstance(commit.error, TransactionAbortedError)
    assert driver.manager.progress.outcome == "aborted"
    assert driver.state.name == "READY"
    assert driver.take() is None


def test_an_abort_is_certain_and_unseen_from_its_begin_to_its_end():
    driver = with_partition()
    manager = driver.manager
    before = manager.unseen_abort
    assert before is None
    assert not manager.is_abort_certain
    abort = manager.begin_abort()
    assert manager.unseen_abort is abort
    assert manager.is_abort_certain
    driver.expect(EndTxnRequest)
    assert not manager.is_abort_certain  # by then the outcome itself tells
    assert manager.progress.outcome == "aborted"
    abort.acknowledge()
    assert manager.unseen_abort is None


def test_an_abort_after_a_commit_that_was_sent_is_not_certain():
    driver = with_partition()
    driver.manager.begin_commit()
    assert driver.manager.unseen_abort is None  # the pending operation is a commit
    assert driver.take()
    driver.manager.begin_abort()
    assert not driver.manager.is_abort_certain


@pytest.mark.conformance("2.12")
@pytest.mark.trap(3)
def test_a_commit_that_failed_unseen_can_be_aborted_at_once():
    driver = with_partition()
    commit = driver.manager.begin_commit()
    driver.expect(EndTxnRequest, ErrorCode.TRANSACTION_ABORTABLE)
    assert commit.error is not None
    abort = driver.manager.begin_abort()
    driver.expect(EndTxnRequest, producer=NEXT)
    finish(abort)


@pytest.mark.conformance("2.12")
def test_a_commit_that_is_about_to_fail_can_be_aborted_at_once():
    driver = with_partition()
    commit = driver.manager.begin_commit()
    error = TopicAuthorizationError()
    driver.manager.progress.maybe_transition_to_error_state(error)
    abort = driver.manager.begin_abort()
    assert commit.error.__cause__ is error
    assert not driver.expect(EndTxnRequest, producer=NEXT).is_commit
    finish(abort)


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
def test_an_abort_after_a_lost_commit_learns_that_it_did_not_take_effect(version):
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
    finish(abort)
    assert isinstance(commit.error, TransactionAbortedError)
    assert driver.manager.progress.outcome == "aborted"
    assert driver.manager.identity.producer_id_and_epoch == NEXT


@pytest.mark.quirk("D7")
@pytest.mark.parametrize("version", [1, 2])
def test_an_abort_after_a_lost_commit_learns_that_it_took_effect(version):
    driver = with_partition(version=version)
    commit = driver.manager.begin_commit()
    driver.take()
    driver.fail(ResponseFailure.TIMED_OUT)
    abort = driver.manager.begin_abort()
    driver.expect(FindCoordinatorRequest)
    assert not driver.refuse_end(ErrorCode.INVALID_TXN_STATE).is_commit
    assert driver.expect(EndTxnRequest, producer=NEXT if version == 2 else None).is_commit
    if version == 1:  # the copy that was lost must not hit the next transaction
        driver.expect(InitProducerIdRequest, producer=NEXT)
    assert commit.is_successful
    assert isinstance(abort.error, IllegalStateError)
    assert driver.manager.progress.outcome == "committed"
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
    assert (driver.state, driver.manager.progress.outcome) == (S.READY, "committed")


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
    if code == ErrorCode.INVALID_TXN_STATE:
        driver.expect(FindCoordinatorRequest)  # it may be an old coordinator's
    assert not driver.expect(EndTxnRequest, producer=NEXT).is_commit
    finish(abort)
    assert driver.manager.progress.outcome == "aborted"


def test_a_lost_commit_of_a_fenced_producer_stays_unknown():
    driver = with_partition()
    commit = driver.manager.begin_commit()
    driver.take()
    driver.fail()
    abort = driver.manager.begin_abort()
    driver.expect(FindCoordinatorRequest)
    driver.refuse_end(ErrorCode.PRODUCER_FENCED)
    for result in (commit, abort):
        assert isinstance(result.error, CommitOutcomeUnknownError)
        assert isinstance(result.error.__cause__, ProducerFencedError)
        assert result.error.recovery == "unknown"
    assert isinstance(driver.manager.machine.last_error, ProducerFencedError)


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
    driver.as_sender(driver.manager.progress.close, KafkaError("closed"))
    assert isinstance(commit.error, CommitOutcomeUnknownError)


def test_a_commit_that_was_never_sent_has_failed_when_the_producer_closes():
    driver = with_partition()
    commit = driver.manager.begin_commit()
    driver.as_sender(driver.manager.progress.close, KafkaError("closed"))
    assert type(commit.error) is KafkaError


@pytest.mark.parametrize(
    "code",
    [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.REQUEST_TIMED_OUT],
)
def test_a_commit_answered_with_a_passing_error_may_have_taken_effect(code):
    # The coordinator answers so, too, when its log was too slow: the commit may be in it.
    driver = with_partition()
    commit = driver.manager.begin_commit()
    driver.expect(EndTxnRequest, code)
    driver.as_sender(driver.manager.progress.close, KafkaError("closed"))
    assert isinstance(commit.error, CommitOutcomeUnknownError)


@pytest.mark.parametrize(
    "code", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS]
)
def test_a_commit_refused_before_the_coordinators_log_has_failed_for_certain(code):
    driver = with_partition()
    commit = driver.manager.begin_commit()
    driver.expect(EndTxnRequest, code)
    driver.as_sender(driver.manager.progress.close, KafkaError("closed"))
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


def test_a_repeated_commit_that_is_finally_refused_has_an_unknown_outcome():
    driver = with_partition()
    commit = driver.manager.begin_commit()
    driver.take()
    driver.fail()
    driver.expect(FindCoordinatorRequest)
    driver.refuse_end(ErrorCode.PRODUCER_FENCED)
    assert isinstance(commit.error, CommitOutcomeUnknownError)


def test_a_commit_that_the_coordinator_aborted_before_it_came_is_known_to_have_failed():
    driver = with_partition()
    commit = driver.manager.begin_commit()
    driver.refuse_end(ErrorCode.INVALID_TXN_STATE)
    assert type(commit.error) is InvalidTxnStateError
    assert commit.error.recovery == "restart"


@pytest.mark.quirk("O6")
def test_a_send_that_fails_beside_a_sent_commit_does_not_decide_over_it():
    driver = with_partition()
    commit = driver.manager.begin_commit()
    driver.take()
    driver.manager.progress.maybe_transition_to_error_state(KafkaTimeoutError())
    assert driver.state is S.COMMITTING_TRANSACTION
    driver.reply(0, NEXT)
    finish(commit)
