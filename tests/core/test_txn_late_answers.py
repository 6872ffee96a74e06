"""Closing, answers that come late, and batches, as the transaction manager sees them."""

from __future__ import annotations

import pytest

from tests.core.numbered import FakeBatch
from tests.core.txn_driver import (
    PRODUCER,
    TP0,
    TP1,
    TxnDriver,
    begun,
    with_partition,
)
from txnproducer._core.transactions.state import Role, TransactionState
from txnproducer._protocol.messages import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    MetadataResponse,
)
from txnproducer.errors import (
    ClusterAuthorizationError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    TopicAuthorizationError,
    TransactionAbortableError,
)
from txnproducer.records import ProducerIdAndEpoch

S = TransactionState
Find, AddOffsets = FindCoordinatorRequest, AddOffsetsToTxnRequest
NEXT = ProducerIdAndEpoch(77, 1)


# --- closing, late answers --------------------------------------------------------------------


@pytest.mark.conformance("6.22")
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_closing_fails_every_call_that_still_waits(steps):
    driver = TxnDriver()
    result = driver.manager.initialize_transactions()
    for _ in range(steps):
        driver.take()
        if driver.handler is not None and len(driver.sent) < 2:
            driver.reply()
    error = KafkaError("closed by force")
    driver.as_sender(driver.manager.progress.close, error)
    assert result.error is error
    assert driver.state is S.FATAL_ERROR


def test_closing_an_idle_producer_is_no_error():
    driver = TxnDriver()
    driver.initialize()
    driver.as_sender(driver.manager.progress.close, KafkaError("closed"))
    assert driver.state is S.READY


def test_closing_in_the_midst_of_a_transaction_ends_it_for_certain():
    # No commit was begun, and none can be.
    driver = with_partition()
    driver.as_sender(driver.manager.progress.close, KafkaError("closed"))
    assert driver.state is S.FATAL_ERROR


def test_an_answer_after_a_fatal_error_changes_nothing():
    driver = with_partition(version=1)
    driver.manager.maybe_add_partition(TP1)
    driver.take()
    error = ClusterAuthorizationError()
    driver.manager.progress.transition_to_fatal_error(error)
    driver.reply()
    assert (driver.state, driver.manager.machine.last_error) == (S.FATAL_ERROR, error)
    assert driver.take() is None


@pytest.mark.parametrize("call", ["begin_commit", "begin_abort"])
def test_an_end_that_is_answered_after_a_fatal_error_does_not_bring_the_producer_back(call):
    driver = with_partition()
    getattr(driver.manager, call)()
    driver.take()
    error = ClusterAuthorizationError()
    driver.manager.progress.transition_to_fatal_error(error)
    driver.reply(0, NEXT)
    assert (driver.state, driver.manager.machine.last_error) == (S.FATAL_ERROR, error)


def test_no_answer_after_a_fatal_error_is_not_asked_for_again():
    driver = with_partition()
    driver.manager.begin_abort()
    driver.take()
    driver.manager.progress.transition_to_fatal_error(ClusterAuthorizationError())
    driver.fail()
    assert not driver.manager.requests.has_pending_requests


def test_an_answer_in_an_impossible_state_fails_every_call_that_waits():
    driver = with_partition()
    commit = driver.manager.begin_commit()
    driver.take()
    driver.manager.machine.state = S.IN_TRANSACTION
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
    driver.manager.progress.transition_to_fatal_error(first)
    driver.manager.progress.transition_to_fatal_error(ClusterAuthorizationError())
    driver.manager.progress.maybe_transition_to_error_state(TopicAuthorizationError())
    assert driver.manager.machine.last_error is first


# --- batches ----------------------------------------------------------------------------------


@pytest.mark.conformance("1.03")
@pytest.mark.trap(6)
def test_a_batch_that_fails_outside_a_transaction_poisons():
    driver = TxnDriver()
    driver.initialize()
    with pytest.raises(IllegalStateError):
        driver.as_sender(
            driver.manager.progress.handle_failed_batch,
            FakeBatch(0),
            TopicAuthorizationError(),
            True,
        )
    assert driver.state is S.FATAL_ERROR


@pytest.mark.conformance("1.03")
@pytest.mark.trap(6)
def test_every_call_says_that_the_producer_has_failed_after_an_illegal_sender_step():
    driver = TxnDriver()
    driver.initialize()
    manager = driver.manager
    with pytest.raises(IllegalStateError) as poison:
        driver.as_sender(
            manager.progress.handle_failed_batch, FakeBatch(0), TopicAuthorizationError(), True
        )
    for call in (
        manager.initialize_transactions,
        manager.begin_transaction,
        manager.begin_commit,
        manager.begin_abort,
        manager.check_can_append,
        driver.send_offsets,
    ):
        with pytest.raises(IllegalStateError) as caught:
            call()
        assert caught.value.__cause__ is poison.value
        assert driver.state is S.FATAL_ERROR


@pytest.mark.conformance("4.48")
def test_after_a_fatal_error_a_failed_batch_moves_no_numbers():
    driver = with_partition()
    sequences = driver.manager.sequences
    sequences.maybe_update_producer_id_and_epoch(TP0)
    sequences.partitions.get(TP0).increment_sequence(3)
    driver.manager.progress.transition_to_fatal_error(ProducerFencedError())
    batch = FakeBatch(0, 3, place=TP0, producer=PRODUCER)
    progress = driver.manager.progress
    driver.as_sender(progress.handle_failed_batch, batch, TopicAuthorizationError(), True)
    assert sequences.partitions.get_or_create(TP0).next_sequence == 3


def expired_batch(driver):
    sequences = driver.manager.sequences
    sequences.maybe_update_producer_id_and_epoch(TP0)
    sequences.partitions.get(TP0).increment_sequence(1)
    batch = FakeBatch(0, place=TP0, producer=PRODUCER)
    sequences.add_in_flight_batch(batch)
    batch.is_done = True
    progress = driver.manager.progress
    driver.as_sender(progress.handle_failed_batch, batch, KafkaTimeoutError(), False)
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
    first = driver.manager.machine.last_error
    assert type(first) is TransactionAbortableError
    driver.as_sender(driver.manager.progress.maybe_resolve_sequences)
    assert driver.state is state
    if state is S.ABORTABLE_ERROR:
        assert driver.manager.machine.last_error is first
        driver.manager.begin_abort()
        driver.expect(EndTxnRequest, producer=NEXT if version == 2 else None)
        is_bump = isinstance(driver.take(), InitProducerIdRequest)
        assert is_bump == (version == 1)


def test_an_idempotent_producer_gets_a_new_id_from_any_broker_after_the_last_epoch():
    driver = TxnDriver(None)
    manager = driver.manager
    step = manager.progress.bump_idempotent_epoch_and_reset_id_if_needed
    driver.as_sender(step)
    driver.as_sender(step)
    last = ProducerIdAndEpoch(77, 2**15 - 1)
    request = driver.expect(InitProducerIdRequest, producer=last)
    assert request.transactional_id is None
    assert request.transaction_timeout_ms == 2**31 - 1
    assert manager.machine.state is S.READY
    assert driver.take() is None
    manager.sequences.request_idempotent_epoch_bump_for_partition(TP0)
    driver.as_sender(step)
    assert (driver.state, manager.identity.has_producer_id) == (S.INITIALIZING, False)
    driver.expect(InitProducerIdRequest, producer=ProducerIdAndEpoch(78, 0))
    assert manager.identity.producer_id_and_epoch == ProducerIdAndEpoch(78, 0)
    assert driver.kinds() == ["InitProducerId", "InitProducerId"]


@pytest.mark.conformance("4.18")
def test_an_idempotent_producer_raises_its_epoch_by_itself():
    driver = TxnDriver(None)
    step = driver.manager.progress.bump_idempotent_epoch_and_reset_id_if_needed
    driver.as_sender(step)
    driver.expect(InitProducerIdRequest, producer=PRODUCER)
    driver.manager.sequences.request_idempotent_epoch_bump_for_partition(TP0)
    driver.as_sender(step)
    assert driver.manager.identity.producer_id_and_epoch == NEXT
    assert driver.take() is None


def test_the_role_is_the_applications_unless_the_sender_says_otherwise():
    assert TxnDriver().manager.machine.role is Role.APPLICATION
