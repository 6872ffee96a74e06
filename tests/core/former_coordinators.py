"""Ends of transactions v1 that were repeated at another coordinator."""

from __future__ import annotations

import pytest

from tests.core.txn_driver import PRODUCER, TxnDriver
from txnproducer._protocol.messages import (
    BrokerNode,
    Coordinator,
    EndTxnRequest,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from txnproducer.errors import ErrorCode
from txnproducer.records import ProducerIdAndEpoch

OTHER = BrokerNode(1, "other", 9092)
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
