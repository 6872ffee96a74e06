"""With transactions v1 the word of another coordinator than the transaction began at is proven."""

from __future__ import annotations

import pytest

from tests.core.txn_driver import NODE, PRODUCER, TP0, TP1, TxnDriver, response_to
from txnproducer._core.transactions.state import TransactionState
from txnproducer._protocol.events import ResponseFailure
from txnproducer._protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    BrokerNode,
    Coordinator,
    EndTxnRequest,
    EndTxnResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    ErrorCode,
    IllegalStateError,
    TransactionalIdAuthorizationError,
)
from txnproducer.records import ProducerIdAndEpoch, TransactionLease

S = TransactionState
OTHER = BrokerNode(1, "other", 9092)
DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
NEXT = ProducerIdAndEpoch(PRODUCER.producer_id, PRODUCER.producer_epoch + 1)


def find(driver, node):
    """Answer the look-up of the coordinator that is due."""
    request = driver.take()
    assert isinstance(request, FindCoordinatorRequest)
    found = Coordinator(request.key, node, ErrorCode.NONE)
    driver.answer(FindCoordinatorResponse((found,)))


def end(driver, *, is_commit):
    manager = driver.manager
    return manager.begin_commit() if is_commit else manager.begin_abort()


def transact(driver, *, is_commit):
    """Write a whole transaction, and begin the next one."""
    driver.add_partition()
    result = end(driver, is_commit=is_commit)
    driver.expect(EndTxnRequest)
    assert result.is_successful
    result.acknowledge()
    driver.manager.begin_transaction()


def moved(*, is_commit, before=(True,), version=1, can_bump=True):
    """Return a driver and the result of its end. The end was repeated at another coordinator.

    Args:
        is_commit: whether to commit.
        before: whether each transaction before was a commit.
        version: of transactions.
        can_bump: whether the coordinator raises epochs.
    """
    driver = TxnDriver(version=version, can_bump=can_bump)
    driver.begin()
    for each in before:
        transact(driver, is_commit=each)
    driver.add_partition()
    result = end(driver, is_commit=is_commit)
    assert isinstance(driver.take(), EndTxnRequest)
    driver.reply(ErrorCode.NOT_COORDINATOR)
    find(driver, OTHER)
    assert driver.expect(EndTxnRequest).is_commit is is_commit
    return driver, result


def outcome_of(is_commit):
    return "committed" if is_commit else "aborted"


either_end = pytest.mark.parametrize("is_commit", [True, False])


@either_end
def test_an_end_is_believed_once_the_broker_has_written_the_next_epoch(is_commit):
    driver, result = moved(is_commit=is_commit, before=(is_commit,))
    assert not result.is_completed
    proof = driver.expect(InitProducerIdRequest, producer=NEXT)
    assert (proof.producer_id, proof.producer_epoch) == (
        PRODUCER.producer_id,
        PRODUCER.producer_epoch,
    )
    assert result.is_successful
    assert driver.manager.progress.outcome == outcome_of(is_commit)
    assert driver.manager.identity.producer_id_and_epoch == NEXT
    assert driver.state is S.READY
    result.acknowledge()
    # Nothing has ended under the new epoch, so the next answer needs no proof.
    driver.manager.begin_transaction()
    driver.add_partition()
    again = end(driver, is_commit=is_commit)
    driver.expect(EndTxnRequest)
    assert again.is_successful


@either_end
@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
)
def test_a_broker_that_cannot_write_is_not_believed_and_the_end_is_asked_for_again(
    is_commit, code
):
    driver, result = moved(is_commit=is_commit, before=(is_commit,))
    driver.expect(InitProducerIdRequest, code)
    if code == ErrorCode.NOT_COORDINATOR:
        find(driver, NODE)
    assert driver.expect(EndTxnRequest).is_commit is is_commit
    if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        driver.expect(InitProducerIdRequest, producer=NEXT)
    assert result.is_successful
    assert driver.manager.progress.outcome == outcome_of(is_commit)


def test_a_refusal_of_a_proof_names_the_proofs_request():
    driver, _ = moved(is_commit=True)
    proof = driver.take()
    handler, answer = driver.handler, response_to(proof, ErrorCode.NOT_COORDINATOR)
    # In this order, as the sender does it.
    driver.answer(answer)
    handler.note_refusal(answer, NODE.node_id, 0)
    assert handler.refusal.request == "InitProducerId"
    find(driver, NODE)
    driver.expect(EndTxnRequest, ErrorCode.NOT_COORDINATOR)
    handler.note_refusal(answer, NODE.node_id, 0)
    assert handler.refusal.request == "EndTxn"


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
)
def test_a_broker_that_forgets_at_the_proof_has_not_refused_before(code):
    driver = TxnDriver(version=1)
    driver.begin()
    transact(driver, is_commit=False)
    driver.add_partition()
    end(driver, is_commit=True)
    driver.manager.requests.handle_coordinator_disconnected(NODE.node_id)
    find(driver, OTHER)
    assert driver.expect(EndTxnRequest, ErrorCode.INVALID_TXN_STATE).is_commit
    abort = end(driver, is_commit=False)
    find(driver, OTHER)
    assert not driver.expect(EndTxnRequest).is_commit
    driver.expect(InitProducerIdRequest, code)
    if code == ErrorCode.NOT_COORDINATOR:
        find(driver, OTHER)
    driver.expect(EndTxnRequest, ErrorCode.INVALID_TXN_STATE)
    assert not abort.is_completed


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


def test_a_proof_follows_the_word_at_once_and_its_repetition_waits():
    driver, _ = moved(is_commit=True)
    assert isinstance(driver.take(), InitProducerIdRequest)
    handler = driver.handler
    assert handler.retry_backoff_ms > 0
    driver.reply(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert isinstance(driver.take(), EndTxnRequest)
    assert handler.retry_backoff_ms > 0
    driver.reply()
    assert handler.retry_backoff_ms == 0


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


def test_a_lost_proof_of_a_commit_proves_nothing_after_an_abort_that_may_be_written():
    # Another coordinator may have aborted, before this one accepted the proof that came late.
    driver, commit = moved(is_commit=True)
    assert isinstance(driver.take(), InitProducerIdRequest)
    abort = end(driver, is_commit=False)
    driver.fail(ResponseFailure.TIMED_OUT)
    find(driver, NODE)
    assert not driver.expect(EndTxnRequest, ErrorCode.NOT_COORDINATOR).is_commit
    find(driver, OTHER)
    driver.expect(EndTxnRequest, ErrorCode.PRODUCER_FENCED)
    find(driver, OTHER)
    driver.expect(EndTxnRequest, ErrorCode.PRODUCER_FENCED)
    assert isinstance(commit.error, CommitOutcomeUnknownError)
    assert isinstance(abort.error, CommitOutcomeUnknownError)


def test_a_lost_proof_of_an_abort_proves_nothing_after_a_commit_that_may_be_written():
    driver, commit, abort = abort_of_a_lost_commit()
    assert isinstance(driver.take(), InitProducerIdRequest)
    driver.fail(ResponseFailure.TIMED_OUT)
    find(driver, NODE)
    driver.expect(EndTxnRequest, ErrorCode.NOT_COORDINATOR)
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
    """Return a driver whose proof of an abort is due, and the results of commit and abort."""
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


def test_an_answer_of_another_kind_than_was_asked_for_is_refused():
    driver, _ = moved(is_commit=True)
    assert isinstance(driver.take(), InitProducerIdRequest)
    with pytest.raises(IllegalStateError, match="not the answer"):
        driver.answer(EndTxnResponse(0, -1, -1))


def test_a_proof_that_the_broker_cannot_give_now_is_asked_for_again():
    driver, result = moved(is_commit=True)
    driver.expect(InitProducerIdRequest, ErrorCode.TRANSACTION_ABORTABLE)
    driver.expect(InitProducerIdRequest, producer=NEXT)
    assert result.is_successful


def test_an_abort_during_the_proof_of_a_commit_finds_out_that_it_has_succeeded():
    driver, commit = moved(is_commit=True)
    abort = driver.manager.begin_abort()
    driver.expect(InitProducerIdRequest, producer=NEXT)
    assert commit.is_successful
    assert isinstance(abort.error, IllegalStateError)
    assert driver.manager.progress.outcome == "committed"


def test_an_abort_after_a_disproof_aborts():
    driver, _ = moved(is_commit=True)
    abort = driver.manager.begin_abort()
    driver.expect(InitProducerIdRequest, ErrorCode.NOT_COORDINATOR)
    find(driver, NODE)
    assert not driver.expect(EndTxnRequest).is_commit
    driver.expect(InitProducerIdRequest, producer=NEXT)  # the lost word may be a lost commit
    assert abort.is_successful
    assert driver.manager.progress.outcome == "aborted"


@pytest.mark.parametrize(
    ("before", "is_commit"),
    [((), True), ((), False), ((False,), True), ((True, True), False)],
    ids=["first commit", "first abort", "commit after aborts", "abort after commits"],
)
def test_an_end_that_no_memory_can_hold_needs_no_proof(before, is_commit):
    driver, result = moved(is_commit=is_commit, before=before)
    # The outcome is known, whatever becomes of the bump: the broker at which the transaction has
    # begun may remember it as open, and take a later one of the epoch for it.
    assert driver.manager.progress.outcome == outcome_of(is_commit)
    driver.expect(InitProducerIdRequest, producer=NEXT)
    assert result.is_successful


def test_not_only_the_last_end_may_be_remembered():
    driver, result = moved(is_commit=True, before=(True, False))
    assert not result.is_completed
    driver.expect(InitProducerIdRequest, producer=NEXT)
    assert result.is_successful


def test_with_version_2_each_transaction_has_an_epoch():
    _, result = moved(is_commit=True, version=2)
    assert result.is_successful


def test_where_epochs_cannot_be_raised_the_word_is_believed():
    _, result = moved(is_commit=True, can_bump=False)
    assert result.is_successful


@pytest.mark.parametrize("is_by_offsets", [False, True])
def test_a_broker_that_has_answered_for_this_transaction_is_believed(is_by_offsets):
    driver = TxnDriver(version=1)
    driver.begin()
    transact(driver, is_commit=True)
    if is_by_offsets:
        offsets = driver.send_offsets()
        assert isinstance(driver.take(), AddOffsetsToTxnRequest)
    else:
        driver.manager.maybe_add_partition(TP1)
        assert isinstance(driver.take(), AddPartitionsToTxnRequest)
    driver.reply(ErrorCode.NOT_COORDINATOR)
    find(driver, OTHER)
    driver.expect(AddOffsetsToTxnRequest if is_by_offsets else AddPartitionsToTxnRequest)
    if is_by_offsets:
        driver.expect(FindCoordinatorRequest)
        driver.expect(TxnOffsetCommitRequest)
        offsets.acknowledge()
    commit = driver.manager.begin_commit()
    driver.expect(EndTxnRequest)
    assert commit.is_successful


def test_a_transaction_that_another_process_has_begun_is_proven():
    driver = TxnDriver(version=1)
    lease = TransactionLease("t", PRODUCER, False, (), is_started=True, cluster_id=None)
    driver.manager.leasing.resume(lease)
    commit = driver.manager.begin_commit()
    driver.expect(FindCoordinatorRequest)
    driver.expect(EndTxnRequest)
    assert not commit.is_completed
    driver.expect(InitProducerIdRequest, producer=NEXT)
    assert commit.is_successful


def test_a_partition_in_doubt_keeps_the_way_by_which_nothing_may_have_begun():
    driver = TxnDriver(version=1)
    driver.begin()
    transact(driver, is_commit=False)
    driver.manager.maybe_add_partition(TP0)
    assert isinstance(driver.take(), AddPartitionsToTxnRequest)
    driver.fail(ResponseFailure.TIMED_OUT)
    abort = driver.manager.begin_abort()
    find(driver, OTHER)
    driver.expect(AddPartitionsToTxnRequest, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    driver.expect(EndTxnRequest)
    driver.expect(InitProducerIdRequest, producer=NEXT)
    assert abort.is_successful
