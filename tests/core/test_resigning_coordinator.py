"""A broker that does not know that it is the coordinator no more may refuse a sound end."""

from __future__ import annotations

import pytest

from tests.core.txn_driver import NODE, TxnDriver
from tests.scripted_client import INVALID_TXN_STATE, OTHER_IDENTITY
from txnproducer._core.transactions.state import TransactionState as S
from txnproducer._protocol.events import ResponseFailure
from txnproducer._protocol.messages import (
    BrokerNode,
    Coordinator,
    EndTxnRequest,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    ErrorCode,
    KafkaError,
    ProducerFencedError,
    TransactionAbortedError,
)
from txnproducer.records import ProducerIdAndEpoch

OTHER_NODE = BrokerNode(NODE.node_id + 1, "other", 9092)
NEXT = ProducerIdAndEpoch(77, 1)

each_refusal = pytest.mark.parametrize(
    ("version", "is_commit", "code"),
    [
        *((2, end, code) for end in (True, False) for code in OTHER_IDENTITY),
        (2, True, INVALID_TXN_STATE),
        *(
            (1, end, code)
            for end in (True, False)
            for code in (*OTHER_IDENTITY, INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH)
        ),
    ],
)
either_end = pytest.mark.parametrize("is_commit", [True, False])


def ending(is_commit, version=2):
    """Return a driver with an end begun, and the end's result."""
    driver = TxnDriver(version=version)
    driver.begin()
    driver.add_partition()
    manager = driver.manager
    return driver, manager.begin_commit() if is_commit else manager.begin_abort()


@each_refusal
def test_an_end_that_only_the_old_coordinator_refuses_succeeds(version, is_commit, code):
    driver, end = ending(is_commit, version)
    first = driver.expect(EndTxnRequest, code)
    assert not end.is_completed
    driver.expect(FindCoordinatorRequest)
    assert driver.expect(EndTxnRequest, producer=NEXT if version == 2 else None) == first
    assert end.is_successful
    assert driver.state is S.READY
    assert driver.manager.progress.outcome == ("committed" if is_commit else "aborted")
    assert (driver.manager.identity.producer_id_and_epoch == NEXT) == (version == 2)


@each_refusal
def test_an_end_that_the_next_coordinator_refuses_as_well_is_fatal(version, is_commit, code):
    driver, end = ending(is_commit, version)
    driver.expect(EndTxnRequest, code)
    driver.expect(FindCoordinatorRequest)
    driver.expect(EndTxnRequest, code)
    assert not isinstance(end.error, CommitOutcomeUnknownError)  # both answers were refusals
    is_fence = code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
    assert isinstance(end.error, ProducerFencedError) == is_fence
    assert driver.state is S.FATAL_ERROR
    assert driver.take() is None


def look_up(driver, node):
    """Answer the look-up of the coordinator with a node."""
    request = driver.take()
    assert isinstance(request, FindCoordinatorRequest)
    driver.answer(FindCoordinatorResponse((Coordinator(request.key, node, 0),)))


@either_end
def test_each_coordinator_that_resigns_is_doubted(is_commit):
    driver, end = ending(is_commit)
    for node in (OTHER_NODE, NODE, OTHER_NODE):
        driver.expect(EndTxnRequest, ErrorCode.PRODUCER_FENCED)
        look_up(driver, node)
        driver.expect(EndTxnRequest, ErrorCode.CONCURRENT_TRANSACTIONS)
    driver.expect(EndTxnRequest, producer=NEXT)
    assert end.is_successful


@either_end
def test_a_coordinator_that_came_back_and_resigned_again_is_doubted(is_commit):
    driver, end = ending(is_commit)
    driver.expect(EndTxnRequest, ErrorCode.PRODUCER_FENCED)
    look_up(driver, OTHER_NODE)
    driver.expect(EndTxnRequest, ErrorCode.NOT_COORDINATOR)
    look_up(driver, NODE)
    driver.expect(EndTxnRequest, ErrorCode.PRODUCER_FENCED)
    look_up(driver, OTHER_NODE)
    driver.expect(EndTxnRequest, producer=NEXT)
    assert end.is_successful


@either_end
def test_a_coordinator_that_loaded_after_its_refusal_is_doubted(is_commit):
    driver, end = ending(is_commit)
    driver.expect(EndTxnRequest, ErrorCode.PRODUCER_FENCED)
    look_up(driver, NODE)
    driver.expect(EndTxnRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    driver.expect(EndTxnRequest, ErrorCode.PRODUCER_FENCED)
    look_up(driver, NODE)
    driver.expect(EndTxnRequest, producer=NEXT)
    assert end.is_successful


@either_end
def test_a_coordinator_that_was_away_after_its_refusal_is_doubted(is_commit):
    driver, end = ending(is_commit)
    driver.expect(EndTxnRequest, ErrorCode.PRODUCER_FENCED)
    look_up(driver, NODE)
    driver.expect(EndTxnRequest, ErrorCode.NOT_COORDINATOR)
    look_up(driver, NODE)
    driver.expect(EndTxnRequest, ErrorCode.PRODUCER_FENCED)
    look_up(driver, NODE)
    driver.expect(EndTxnRequest, producer=NEXT)
    assert end.is_successful


@either_end
@pytest.mark.parametrize("failure", [ResponseFailure.DISCONNECTED, ResponseFailure.TIMED_OUT])
def test_a_coordinator_that_was_lost_after_its_refusal_is_doubted(is_commit, failure):
    driver, end = ending(is_commit)
    driver.expect(EndTxnRequest, ErrorCode.PRODUCER_FENCED)
    look_up(driver, NODE)
    driver.take()
    driver.fail(failure)
    look_up(driver, NODE)
    driver.expect(EndTxnRequest, ErrorCode.PRODUCER_FENCED)
    assert not end.is_completed
    look_up(driver, NODE)
    driver.expect(EndTxnRequest, producer=NEXT)
    assert end.is_successful


@either_end
def test_concurrent_transactions_does_not_take_a_fence_back(is_commit):
    driver, end = ending(is_commit)
    driver.expect(EndTxnRequest, ErrorCode.PRODUCER_FENCED)
    look_up(driver, NODE)
    driver.expect(EndTxnRequest, ErrorCode.CONCURRENT_TRANSACTIONS)
    driver.expect(EndTxnRequest, ErrorCode.PRODUCER_FENCED)
    assert isinstance(end.error, ProducerFencedError)


@either_end
def test_the_next_transaction_is_asked_for_twice_as_well(is_commit):
    driver, end = ending(is_commit)
    driver.expect(EndTxnRequest, ErrorCode.PRODUCER_FENCED)
    driver.expect(FindCoordinatorRequest)
    driver.expect(EndTxnRequest, producer=NEXT)
    end.acknowledge()
    driver.manager.begin_transaction()
    driver.add_partition()
    later = driver.manager.begin_commit()
    driver.expect(EndTxnRequest, ErrorCode.PRODUCER_FENCED)
    assert not later.is_completed


@pytest.mark.parametrize("code", [INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_with_v2_an_abort_is_refused_for_good_by_what_no_memory_makes_a_broker_say(code):
    driver, end = ending(False)
    driver.expect(EndTxnRequest, code)
    assert isinstance(end.error, KafkaError)
    assert driver.state is S.FATAL_ERROR


def test_an_abort_in_the_place_of_a_lost_commit_succeeds():
    driver, commit = ending(True)
    driver.take()
    driver.fail(ResponseFailure.TIMED_OUT)
    abort = driver.manager.begin_abort()
    driver.expect(FindCoordinatorRequest)
    assert not driver.expect(EndTxnRequest, ErrorCode.PRODUCER_FENCED).is_commit
    driver.expect(FindCoordinatorRequest)
    assert not driver.expect(EndTxnRequest, producer=NEXT).is_commit
    assert isinstance(commit.error, TransactionAbortedError)
    assert abort.is_successful
    assert driver.state is S.READY
