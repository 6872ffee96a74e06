"""Single error codes of coordinators and their effects, request by request.

All codes at all points are compared with the Java client in `test_oracle.py`; here stand those
that an application has to know, each with what it means.
"""

from __future__ import annotations

import pytest

from tests.core.txn_driver import PRODUCER, TxnDriver, with_partition
from tests.core.txn_points import POINTS
from tests.harness import CoreHarness
from txnproducer._core.transactions.state import TransactionState
from txnproducer._protocol.events import ResponseFailure
from txnproducer._protocol.messages import (
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
)
from txnproducer.errors import (
    ClusterAuthorizationError,
    CommitFailedError,
    CommitOutcomeUnknownError,
    ErrorCode,
    FencedInstanceIdError,
    GroupAuthorizationError,
    InvalidTxnStateError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionalIdAuthorizationError,
    UnknownProducerIdError,
    UnsupportedForMessageFormatError,
)

S = TransactionState
RETRIED = [
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
]


def answered(point, code, version=1):
    """Bring a driver to a point and answer its request with a code."""
    scene = POINTS[point](TxnDriver(version=version))
    scene.driver.reply(code)
    return scene


def refused(point, code):
    """Refuse the request at a point. An end is refused twice: the first may be from memory."""
    scene = answered(point, code)
    if point.startswith("EndTxn"):
        scene.driver.expect(FindCoordinatorRequest)
        scene.driver.expect(EndTxnRequest, code)
    return scene


@pytest.mark.conformance("3.11")
@pytest.mark.parametrize("code", RETRIED)
@pytest.mark.parametrize(
    "point",
    [point for point in POINTS if point != "InitProducerId(idempotent)"],
)
def test_every_request_is_retried_after_a_passing_error(point, code):
    scene = POINTS[point](TxnDriver(version=1))
    before = scene.driver.state
    asked = scene.driver.sent[-1]
    scene.driver.reply(code)
    assert scene.driver.state is before
    assert scene.result is None or not scene.result.is_completed or "bump" in point
    if (point, code) == ("TxnOffsetCommit", ErrorCode.REQUEST_TIMED_OUT):
        scene.driver.expect(FindCoordinatorRequest)  # it may be about to move
    assert scene.driver.take() == asked


@pytest.mark.conformance("3.12")
@pytest.mark.trap(10)
@pytest.mark.parametrize(
    "point",
    [
        "InitProducerId(init)",
        "AddPartitionsToTxn",
        "AddOffsetsToTxn",
        "TxnOffsetCommit",
        "EndTxn(commit)",
        "EndTxn(abort)",
    ],
)
def test_an_old_epoch_in_a_coordinators_answer_means_fenced(point):
    scene = refused(point, ErrorCode.INVALID_PRODUCER_EPOCH)
    assert scene.driver.state is S.FATAL_ERROR
    assert type(scene.driver.manager.machine.last_error) is ProducerFencedError


@pytest.mark.conformance("3.14")
@pytest.mark.trap(11)
@pytest.mark.parametrize(
    "point", ["AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn(commit)", "EndTxn(abort)"]
)
def test_an_impossible_transaction_state_is_fatal_from_a_coordinator(point):
    scene = refused(point, ErrorCode.INVALID_TXN_STATE)
    assert scene.driver.state is S.FATAL_ERROR
    assert type(scene.driver.manager.machine.last_error) is InvalidTxnStateError


@pytest.mark.conformance("3.14")
@pytest.mark.trap(11)
def test_an_impossible_transaction_state_is_abortable_from_produce():
    driver = TxnDriver()
    driver.begin()
    driver.add_partition()
    driver.manager.progress.maybe_transition_to_error_state(InvalidTxnStateError())
    assert driver.state is S.ABORTABLE_ERROR


@pytest.mark.conformance("3.21")
@pytest.mark.parametrize(
    ("code", "state", "kind"),
    [
        (ErrorCode.FENCED_INSTANCE_ID, S.ABORTABLE_ERROR, FencedInstanceIdError),
        (ErrorCode.UNKNOWN_MEMBER_ID, S.ABORTABLE_ERROR, CommitFailedError),
        (ErrorCode.ILLEGAL_GENERATION, S.ABORTABLE_ERROR, CommitFailedError),
        (ErrorCode.PRODUCER_FENCED, S.FATAL_ERROR, ProducerFencedError),
        (ErrorCode.INVALID_PRODUCER_EPOCH, S.FATAL_ERROR, ProducerFencedError),
        (
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            S.FATAL_ERROR,
            TransactionalIdAuthorizationError,
        ),
        (
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            S.FATAL_ERROR,
            UnsupportedForMessageFormatError,
        ),
    ],
)
def test_a_group_that_has_moved_on_is_abortable_and_a_lost_identity_fatal(code, state, kind):
    scene = answered("TxnOffsetCommit", code)
    assert scene.driver.state is state
    assert type(scene.result.error) is kind


@pytest.mark.conformance("3.25")
@pytest.mark.parametrize(
    "point",
    [
        "AddPartitionsToTxn",
        "AddOffsetsToTxn",
        "FindCoordinator(group)",
        "TxnOffsetCommit",
        "EndTxn(commit)",
        "InitProducerId(bump)",
    ],
)
def test_transaction_abortable_is_obeyed_from_every_request(point):
    scene = answered(point, ErrorCode.TRANSACTION_ABORTABLE)
    assert scene.driver.state is S.ABORTABLE_ERROR
    assert type(scene.driver.manager.machine.last_error) is TransactionAbortableError


@pytest.mark.trap(12)
def test_an_unknown_error_is_abortable_for_add_partitions_and_fatal_otherwise():
    code = ErrorCode.UNKNOWN_SERVER_ERROR
    for point in ("AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn(commit)", "EndTxn(abort)"):
        assert answered(point, code).driver.state is S.FATAL_ERROR
    assert answered("AddPartitionsToTxn", code).driver.state is S.ABORTABLE_ERROR


@pytest.mark.trap(13)
@pytest.mark.parametrize(
    ("point", "next_request"),
    [
        ("TxnOffsetCommit", "FindCoordinator"),
        ("AddOffsetsToTxn", "AddOffsetsToTxn"),
        ("AddPartitionsToTxn", "AddPartitionsToTxn"),
        ("EndTxn(commit)", "EndTxn"),
    ],
)
def test_only_offsets_look_for_another_coordinator_after_request_timed_out(point, next_request):
    driver = answered(point, ErrorCode.REQUEST_TIMED_OUT).driver
    driver.take()
    assert driver.kinds()[-1] == next_request


@pytest.mark.conformance("3.25")
@pytest.mark.parametrize("version", [1, 2])
def test_transaction_abortable_is_obeyed_from_produce(version):
    driver = with_partition(version=version)
    error = TransactionAbortableError()
    driver.manager.progress.maybe_transition_to_error_state(error)
    assert driver.state is S.ABORTABLE_ERROR
    assert driver.manager.machine.last_error is error


@pytest.mark.conformance("3.25")
@pytest.mark.quirk("Q8", "O1")
@pytest.mark.parametrize("point", ["FindCoordinator(txn)", "InitProducerId(init)"])
def test_a_request_to_abort_while_initializing_leads_back_to_the_start(point):
    driver = answered(point, ErrorCode.TRANSACTION_ABORTABLE).driver
    assert driver.state is S.ABORTABLE_ERROR
    assert driver.manager.progress.must_reinitialize  # what the sender asks in its next step
    driver.as_sender(
        driver.manager.progress.transition_to_uninitialized, driver.manager.machine.last_error
    )
    assert driver.state.name == "UNINITIALIZED"


@pytest.mark.conformance("3.27")
@pytest.mark.trap(15)
@pytest.mark.parametrize(
    ("point", "state"),
    [
        ("FindCoordinator(txn)", S.FATAL_ERROR),
        ("InitProducerId(init)", S.ABORTABLE_ERROR),  # and the sender begins again
        ("AddPartitionsToTxn", S.FATAL_ERROR),
        ("AddOffsetsToTxn", S.FATAL_ERROR),
        ("TxnOffsetCommit", S.FATAL_ERROR),
        ("EndTxn(commit)", S.FATAL_ERROR),
        ("EndTxn(abort)", S.FATAL_ERROR),
    ],
)
def test_a_denied_transactional_id_can_be_mended_while_initializing_alone(point, state):
    driver = answered(point, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED).driver
    assert driver.state is state
    assert isinstance(driver.manager.machine.last_error, TransactionalIdAuthorizationError)
    assert driver.manager.progress.must_reinitialize is (state is S.ABORTABLE_ERROR)


@pytest.mark.conformance("3.06")
def test_a_coordinator_that_has_moved_is_looked_up_and_the_same_call_goes_on():
    driver = TxnDriver()
    result = driver.manager.initialize_transactions()
    driver.expect(FindCoordinatorRequest)
    driver.expect(InitProducerIdRequest, ErrorCode.NOT_COORDINATOR)
    driver.expect(FindCoordinatorRequest)
    driver.expect(InitProducerIdRequest, producer=PRODUCER)
    assert result.is_successful
    assert driver.manager.initialize_transactions() is result


# --- where the Java client does not find a way out --------------------------------------------


@pytest.mark.quirk("Q6")
def test_an_abort_of_a_producer_unknown_to_the_coordinator_ends_in_the_fatal_state():
    """Java's call fails, its state stays ABORTING_TRANSACTION, and no call is legal any more."""
    for version in (1, 2):
        scene = answered("EndTxn(abort)", ErrorCode.UNKNOWN_PRODUCER_ID, version)
        assert scene.driver.state is S.FATAL_ERROR
        assert isinstance(scene.result.error, UnknownProducerIdError)


@pytest.mark.quirk("Q8")
def test_an_init_can_be_called_again_after_transaction_abortable():
    """Java's abort then "succeeds" into READY without a producer id, and every send is illegal."""
    scene = answered("InitProducerId(init)", ErrorCode.TRANSACTION_ABORTABLE)
    driver, manager = scene.driver, scene.driver.manager
    assert type(scene.result.error) is TransactionAbortableError
    assert manager.progress.must_reinitialize
    driver.as_sender(manager.progress.transition_to_uninitialized, manager.machine.last_error)
    scene.result.acknowledge()
    again = manager.initialize_transactions()
    driver.expect(InitProducerIdRequest, producer=PRODUCER)
    assert again.is_successful


@pytest.mark.quirk("O1")
@pytest.mark.parametrize(
    "code", [ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.GROUP_AUTHORIZATION_FAILED]
)
def test_an_init_can_be_called_again_after_an_abortable_look_up(code):
    """Java's producer is in an abortable error without an identity, as after Q8."""
    driver = answered("FindCoordinator(txn)", code).driver
    assert driver.manager.progress.must_reinitialize
    assert driver.manager.machine.last_error.code == code


@pytest.mark.quirk("O2")
def test_offsets_whose_coordinator_cannot_be_found_for_good_fail_at_once():
    """Java's call waits for its time-out, though its request will never be sent."""
    for version in (1, 2):
        scene = answered("FindCoordinator(group)", ErrorCode.CLUSTER_AUTHORIZATION_FAILED, version)
        assert scene.driver.state is S.FATAL_ERROR
        assert scene.result.error is scene.driver.manager.machine.last_error


@pytest.mark.quirk("O3")
@pytest.mark.parametrize("code", [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR])
def test_an_idempotent_producer_asks_again_and_looks_for_no_coordinator(code):
    """Java looks up a transaction coordinator, with no key to look for."""
    driver = POINTS["InitProducerId(idempotent)"](TxnDriver(None)).driver
    driver.reply(code)
    driver.expect(InitProducerIdRequest, producer=PRODUCER)
    assert driver.kinds() == ["InitProducerId", "InitProducerId"]


@pytest.mark.quirk("O4")
def test_an_idempotent_producer_fails_after_transaction_abortable():
    """Java goes to an abortable state, and every turn of its loop raises from then on."""
    harness = CoreHarness(transactional_id=None)
    harness.know_topics()
    future = harness.send()
    harness.client.prepare_init_producer_id(ErrorCode.TRANSACTION_ABORTABLE)
    harness.run_until(future.done)
    assert isinstance(future.exception(), KafkaError)
    assert harness.state is S.FATAL_ERROR
    harness.run_for(1_000)


@pytest.mark.quirk("O5")
def test_a_commit_that_broke_the_coordinator_may_have_taken_effect():
    """Java reports a failed commit, though the coordinator may have written it before it broke."""
    scene = answered("EndTxn(commit)", ErrorCode.UNKNOWN_SERVER_ERROR)
    assert isinstance(scene.result.error, CommitOutcomeUnknownError)


# --- without an answer ------------------------------------------------------------------------


@pytest.mark.conformance("3.05")
@pytest.mark.parametrize("failure", [ResponseFailure.DISCONNECTED, ResponseFailure.TIMED_OUT])
def test_a_look_up_without_an_answer_is_made_again(failure):
    driver = POINTS["FindCoordinator(txn)"](TxnDriver()).driver
    driver.fail(failure)
    driver.expect(FindCoordinatorRequest)
    driver.expect(InitProducerIdRequest, producer=PRODUCER)


@pytest.mark.conformance("3.19")
@pytest.mark.parametrize("point", ["FindCoordinator(group)", "AddOffsetsToTxn", "TxnOffsetCommit"])
def test_a_group_that_may_not_be_used_is_abortable_and_named(point):
    scene = answered(point, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    assert scene.driver.state is S.ABORTABLE_ERROR
    error = scene.driver.manager.machine.last_error
    assert isinstance(error, GroupAuthorizationError)
    assert error.group_id == "g"


@pytest.mark.conformance("1.18")
def test_a_fatal_error_reaches_the_call_whose_request_still_waits():
    driver = TxnDriver()
    result = driver.manager.initialize_transactions()
    error = ClusterAuthorizationError()
    driver.manager.progress.transition_to_fatal_error(error)
    assert result.error is error
    assert isinstance(error, KafkaError)
