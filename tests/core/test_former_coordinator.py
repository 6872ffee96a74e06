"""With transactions v1 the word of another coordinator than the transaction began at is proven."""

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
from tests.core.txn_driver import NODE, PRODUCER, TP0, TP1, TxnDriver, response_to
from txnproducer._core.transactions.state import TransactionState
from txnproducer._protocol.events import (
    ClientRequest,
    ClientResponse,
    ConnectionId,
    ResponseFailure,
)
from txnproducer._protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    EndTxnResponse,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from txnproducer.errors import (
    ErrorCode,
    IllegalStateError,
)
from txnproducer.records import TransactionLease

S = TransactionState
DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


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
    end_of_proof = ClientResponse(ClientRequest(1, ConnectionId(0), proof, 0, 1_000), answer)
    # In this order, as the sender does it.
    driver.answer(answer)
    handler.note_refusal(end_of_proof, 0)
    assert handler.refusal.request == "InitProducerId"
    find(driver, NODE)
    driver.expect(EndTxnRequest, ErrorCode.NOT_COORDINATOR)
    handler.note_refusal(end_of_proof, 0)
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


def abort_of_a_begin_in_doubt(*, was_commit):
    """Return a driver and the abort, which asks another broker than the begin without an answer.

    Args:
        was_commit: how the transaction before has ended.
    """
    driver = TxnDriver(version=1)
    driver.begin()
    transact(driver, is_commit=was_commit)
    driver.manager.maybe_add_partition(TP0)
    assert isinstance(driver.take(), AddPartitionsToTxnRequest)
    driver.fail(ResponseFailure.TIMED_OUT)
    abort = driver.manager.begin_abort()
    find(driver, OTHER)
    driver.expect(AddPartitionsToTxnRequest, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return driver, abort


def test_a_partition_in_doubt_keeps_the_way_by_which_nothing_may_have_begun():
    driver, abort = abort_of_a_begin_in_doubt(was_commit=False)
    driver.expect(EndTxnRequest)
    driver.expect(InitProducerIdRequest, producer=NEXT)
    assert abort.is_successful


@either_end
def test_a_broker_that_knows_no_begin_that_is_in_doubt_has_to_prove_it(is_commit):
    # The next epoch would be asked of the coordinator that has the begin, and fence the producer.
    driver, abort = abort_of_a_begin_in_doubt(was_commit=is_commit)
    # It remembers the end before: an abort, which it repeats, or a commit.
    driver.expect(EndTxnRequest, ErrorCode.INVALID_TXN_STATE if is_commit else ErrorCode.NONE)
    driver.expect(InitProducerIdRequest, ErrorCode.NOT_COORDINATOR)
    find(driver, NODE)
    driver.expect(EndTxnRequest)
    assert driver.manager.identity.producer_id_and_epoch == PRODUCER
    driver.expect(InitProducerIdRequest, producer=NEXT)
    assert abort.is_successful
    assert driver.state is S.READY


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_two_refusals_that_differ_are_of_two_terms(code):
    # No memory of a broker refuses one identity in two ways.
    driver = TxnDriver(version=1)
    driver.begin()
    driver.add_partition()
    commit = end(driver, is_commit=True)
    assert isinstance(driver.take(), EndTxnRequest)
    abort = end(driver, is_commit=False)
    driver.reply(code)
    find(driver, NODE)
    driver.expect(EndTxnRequest, ErrorCode.INVALID_TXN_STATE)
    find(driver, NODE)
    driver.expect(EndTxnRequest, ErrorCode.NOT_COORDINATOR)
    assert not commit.is_completed
    assert not abort.is_completed
