"""How the transaction manager finds its coordinators, each request answered by hand."""

from __future__ import annotations

from functools import partial

import pytest

from tests.core.txn_driver import (
    GROUP,
    NODE,
    PRODUCER,
    TP0,
    TP1,
    TxnDriver,
    begun,
    finish,
    with_partition,
)
from txnproducer._core.transactions.state import TransactionState
from txnproducer._protocol.events import ResponseFailure
from txnproducer._protocol.messages import (
    AddOffsetsToTxnRequest,
    Coordinator,
    CoordinatorType,
    EndTxnRequest,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from txnproducer.errors import (
    ErrorCode,
    IllegalStateError,
    KafkaError,
    SaslAuthenticationError,
    TopicAuthorizationError,
    UnsupportedVersionError,
)
from txnproducer.records import OffsetAndMetadata, ProducerIdAndEpoch

S = TransactionState
NEXT = ProducerIdAndEpoch(77, 1)


@pytest.mark.conformance("3.05")
@pytest.mark.parametrize("failure", [ResponseFailure.DISCONNECTED, ResponseFailure.TIMED_OUT])
def test_a_request_without_an_answer_is_sent_again_after_a_look_up(failure):
    driver = TxnDriver()
    result = driver.manager.initialize_transactions()
    driver.expect(FindCoordinatorRequest)
    driver.take()
    driver.fail(failure)
    assert driver.manager.requests.coordinator(CoordinatorType.TRANSACTION) is None
    driver.expect(FindCoordinatorRequest)
    driver.expect(InitProducerIdRequest, ErrorCode.NOT_COORDINATOR)
    driver.expect(FindCoordinatorRequest)
    driver.expect(InitProducerIdRequest, producer=PRODUCER)
    finish(result)


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
    manager.requests.lookup_coordinator(handler)
    driver.expect(FindCoordinatorRequest)
    driver.expect(AddOffsetsToTxnRequest)
    assert driver.kinds().count("FindCoordinator") == 2


def test_a_broker_that_goes_is_no_longer_any_coordinator():
    driver = begun()
    driver.send_offsets()
    driver.expect(FindCoordinatorRequest)
    driver.manager.requests.handle_coordinator_disconnected(5)
    assert driver.manager.requests.coordinator(CoordinatorType.GROUP) is not None
    driver.manager.requests.handle_coordinator_disconnected(0)
    assert driver.manager.requests.coordinator(CoordinatorType.GROUP) is None
    assert driver.manager.requests.coordinator(CoordinatorType.TRANSACTION) is None


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
    driver.manager.progress.maybe_transition_to_error_state(error)
    driver.expect(FindCoordinatorRequest)
    assert driver.take() is None
    assert offsets.error.__cause__ is error
    abort = driver.manager.begin_abort()
    driver.expect(EndTxnRequest)
    driver.expect(InitProducerIdRequest, producer=NEXT)
    finish(abort)


def test_a_request_to_any_broker_has_no_coordinator_to_look_up():
    driver = TxnDriver(None)
    driver.as_sender(driver.manager.progress.bump_idempotent_epoch_and_reset_id_if_needed)
    driver.take()
    assert driver.handler is not None
    with pytest.raises(IllegalStateError, match="any broker"):
        driver.manager.requests.lookup_coordinator(driver.handler)


@pytest.mark.conformance("3.38")
@pytest.mark.parametrize("count", [0, 2])
def test_an_answer_with_anything_but_one_coordinator_is_fatal(count):
    driver = TxnDriver()
    result = driver.manager.initialize_transactions()
    driver.take()
    driver.answer(FindCoordinatorResponse((Coordinator("t", NODE, 0),) * count))
    assert driver.state is S.FATAL_ERROR
    assert isinstance(result.error, IllegalStateError)


@pytest.mark.conformance("3.36")
def test_a_refused_login_fails_every_request_that_is_queued_and_the_call_that_waits():
    driver = with_partition(version=1)
    offsets = [driver.send_offsets(), driver.send_offsets(TP1)]
    commit = driver.manager.begin_commit()
    error = SaslAuthenticationError()
    driver.as_sender(driver.manager.progress.authentication_failed, error)
    assert [result.error for result in (*offsets, commit)] == [error] * 3
    assert not driver.manager.requests.has_pending_requests
    assert driver.state is S.FATAL_ERROR


@pytest.mark.conformance("3.37")
def test_a_refused_login_fails_the_request_in_hand_too():
    driver = TxnDriver()
    result = driver.manager.initialize_transactions()
    driver.expect(FindCoordinatorRequest)
    driver.take()
    in_hand, driver.handler = driver.handler, None
    assert in_hand is not None
    error = SaslAuthenticationError()
    refused = partial(driver.manager.progress.authentication_failed, has_request_in_hand=True)
    driver.as_sender(refused, error)
    assert driver.state is S.FATAL_ERROR
    assert result.error is error
    assert in_hand.result.error is error


def test_a_refused_login_does_not_fail_a_producer_with_nothing_to_send():
    driver = begun()
    driver.as_sender(driver.manager.progress.authentication_failed, SaslAuthenticationError())
    assert driver.state is S.IN_TRANSACTION


@pytest.mark.conformance("3.35")
@pytest.mark.trap(16)
@pytest.mark.parametrize(
    ("version", "can_bump", "must_bump", "can_abort"),
    [(1, True, True, True), (1, False, False, False), (2, True, False, True)],
)
def test_the_side_that_raises_the_epoch_is_remembered_while_the_coordinator_is_away(
    version, can_bump, must_bump, can_abort
):
    driver = begun(version=version, can_bump=can_bump)
    driver.manager.requests.handle_coordinator_disconnected(0)
    assert driver.manager.identity.must_bump_from_client is must_bump
    assert driver.manager.identity.can_handle_abortable_error is can_abort
