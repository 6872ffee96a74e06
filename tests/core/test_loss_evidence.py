"""The table that decides by a coordinator's description why a transaction was lost."""

from __future__ import annotations

import pytest

from tests.core.on_cluster import OnCluster, make_cluster
from tests.lost_transactions_page import PAGE, written
from txnproducer._core.transactions.transaction_loss import EVIDENCE, Cause, Step, TransactionLoss
from txnproducer._protocol.events import ResponseFailure
from txnproducer._protocol.messages import TransactionDescription
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    ErrorCode,
    InvalidPidMappingError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortableError,
)
from txnproducer.records import ProducerIdAndEpoch

PRODUCER = ProducerIdAndEpoch(7, 6)


def loss(version=2, age_ms=1000, producer=PRODUCER, **more):
    return TransactionLoss(producer, version, age_ms, 60_000, 0, **more)


def described(state, producer_id=7, epoch=7, code=0):
    return TransactionDescription(code, "txn", state, producer_id, epoch)


@pytest.mark.parametrize(
    "row", EVIDENCE, ids=lambda row: f"{row.step.name}-{row.states[0]}-{row.versions}"
)
def test_each_row_of_the_table_decides_by_age(row):
    epoch = {Step.NEXT: 7, Step.LATER: 9}[row.step]
    for version in row.versions:
        for state in row.states:
            for age_ms, cause in ((59_999, row.younger), (60_000, row.older)):
                seen = loss(version, age_ms)
                seen.take(described(state, epoch=epoch))
                assert seen.cause is cause


@pytest.mark.parametrize(
    ("version", "description"),
    [
        (2, described("CompleteCommit")),  # perhaps its own
        (2, described("Ongoing", epoch=6)),
        (1, described("CompleteAbort", epoch=6)),
        (1, described("Dead")),
        (1, described("", code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)),
    ],
)
def test_a_description_that_fits_no_row_proves_nothing(version, description):
    seen = loss(version, 61_000)
    seen.take(description)
    assert seen.cause is Cause.UNCERTAIN
    assert seen.is_explained
    assert "coordinator aborted it at its time-out" in seen.text("me")
    assert "otherwise a newer producer" in seen.text("me")


def test_the_age_of_a_shared_transaction_is_not_known():
    seen = loss(age_ms=None)
    seen.take(described("CompleteAbort"))
    assert seen.cause is Cause.UNCERTAIN
    text = seen.text("me")
    assert "aborted it at its time-out (transaction_timeout_ms=60000), or a newer" in text


def test_another_producer_id_is_a_newer_producers():
    seen = loss(1, 61_000)
    seen.take(described("Empty", producer_id=8, epoch=0))
    assert "epoch 0, has taken over" in seen.text("me")


@pytest.mark.parametrize(("version", "cause"), [(2, Cause.TIMED_OUT), (1, Cause.TAKEN_OVER)])
def test_after_the_last_epoch_v2_goes_on_under_another_producer_id(version, cause):
    seen = loss(version, 61_000, ProducerIdAndEpoch(7, 2**15 - 2))
    seen.take(described("CompleteAbort", producer_id=8, epoch=0))
    assert seen.cause is cause


@pytest.mark.parametrize(
    ("cause", "is_refused", "has_aborted"),
    [
        (Cause.TAKEN_OVER, True, True),
        (Cause.UNCERTAIN, True, False),
        (Cause.TIMED_OUT, False, False),
        (Cause.FORGOTTEN, False, False),
    ],
)
def test_the_id_may_be_a_newer_producers_unless_the_cause_is_another(
    cause, is_refused, has_aborted
):
    seen = loss()
    seen.cause = cause
    assert seen.may_be_to_newer(has_aborted=False) is is_refused
    assert seen.may_be_to_newer(has_aborted=True) is has_aborted
    own = loss(may_be_own=True)
    own.cause = cause
    assert own.may_be_to_newer(has_aborted=False) is is_refused
    assert not own.may_be_to_newer(has_aborted=True)


def test_only_errors_of_a_loss_are_explained():
    other = KafkaError("another one")
    assert loss().explain(other, "me") is other
    unknown = CommitOutcomeUnknownError("lost")
    unknown.__cause__ = ProducerFencedError()
    assert loss().explain(unknown, "me") is unknown  # what it says is more than why
    wrapped = TransactionAbortableError("cannot be completed", recovery="abort")
    wrapped.__cause__ = InvalidPidMappingError()
    explained = loss().explain(wrapped, "me")
    assert isinstance(explained, TransactionAbortableError)
    assert explained.__cause__ is wrapped.__cause__
    assert explained.recovery == "abort"


def test_a_failure_that_was_not_sent_is_no_delayed_request():
    harness = OnCluster(make_cluster(2))
    harness.core.init_transactions()
    handler = harness.manager.requests.queue.peek()
    assert handler is not None
    handler.on_failure(ResponseFailure.UNSUPPORTED_VERSION, None)
    assert not harness.manager.progress._has_lost_init


def test_the_page_of_errors_has_the_table():
    page = PAGE.read_text("utf-8")
    assert page == written(page), "run: python -m tests.lost_transactions_page"
