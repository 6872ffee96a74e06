"""The end of an operation: it comes once, and is seen or not."""

from __future__ import annotations

import pytest

from txnproducer._core.transactions.operation import (
    PendingOperation,
    PendingOperations,
    TransactionalRequestResult,
)
from txnproducer._core.transactions.state import TransactionState
from txnproducer.errors import KafkaError, ProducerFencedError


@pytest.mark.conformance("2.13")
def test_a_success_is_never_overwritten_by_a_later_error():
    result = TransactionalRequestResult("commit_transaction")
    result.done()
    result.fail(ProducerFencedError())
    assert result.is_successful
    assert result.error is None


def test_the_first_error_stays():
    result = TransactionalRequestResult("commit_transaction")
    first = KafkaError("first")
    result.fail(first)
    result.fail(KafkaError("second"))
    result.done()
    assert result.is_completed
    assert not result.is_successful
    assert result.error is first


@pytest.mark.conformance("2.08")
@pytest.mark.trap(2)
def test_a_result_is_acknowledged_only_by_its_caller():
    result = TransactionalRequestResult("commit_transaction")
    result.done()
    assert not result.is_acked
    result.acknowledge()
    assert result.is_acked


def test_a_look_for_an_unseen_end_changes_nothing():
    """A pool looks without the lock, while another call may begin an operation."""
    operations = PendingOperations("producer")
    result = TransactionalRequestResult("commit_transaction")
    pending = PendingOperation(TransactionState.COMMITTING_TRANSACTION, result, None)
    operations.held = pending
    result.done()
    assert operations.unseen_end == "commit_transaction"
    result.acknowledge()
    assert operations.unseen_end is None
    assert operations.held is pending
