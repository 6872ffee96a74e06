"""A whole batch loses its transaction to a time-out, or to another driver."""

from __future__ import annotations

import re
import time
from types import SimpleNamespace

import pytest

from tests.spark.whole_batches import BATCH, ENTRY, SETTINGS, FakeLedger, part
from txnproducer._protocol.messages import TransactionDescription
from txnproducer.errors import (
    InvalidPidMappingError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
)
from txnproducer.lease import TransactionLease
from txnproducer.records import ProducerIdAndEpoch
from txnproducer.spark.errors import BatchTimedOutError, StaleRunError
from txnproducer.spark.ledger import lost_transactions


@pytest.fixture
def clock(monkeypatch):
    """Make time pass as a test says, and fix the coordinator's description of the id."""
    state = SimpleNamespace(now=0.0, found=("CompleteAbort", 1, 6), questions=0)
    monkeypatch.setattr(time, "monotonic", lambda: state.now)

    def describe(*_, **__):
        state.questions += 1
        if state.found is None:
            return None
        if isinstance(state.found, BaseException):
            raise state.found
        name, producer_id, epoch = state.found
        return TransactionDescription(0, "sink.batch", name, producer_id, epoch, 60_000, -1, ())

    monkeypatch.setattr(lost_transactions, "describe_transaction", describe)
    return state


def run_for(clock, seconds, parts):
    def run(*_):
        clock.now += seconds
        return parts

    return run


def test_a_batch_that_outlasted_its_transaction_times_out_and_is_not_run_again(whole, clock):
    make, log = whole
    batches = make()
    batches.enter(BATCH, SETTINGS)
    parts = [part(), part("partition 1: 47", is_lost=True, seconds=60.5)]
    with pytest.raises(BatchTimedOutError) as caught:
        batches.write(BATCH, run_for(clock, 61, parts))
    assert log.count("abort") == 1
    told = "transactionTimeout=60000 .* 61.0 s .* slowest part was partition 1, 60.5 s"
    assert re.search(told, str(caught.value))
    assert caught.value.recovery == "fix"


def test_a_commit_after_the_time_out_reports_it_unless_the_ledger_has_the_batch(whole, clock):
    make, log = whole
    batches = make(commits=[InvalidTxnStateError()])
    batches.enter(BATCH, SETTINGS)
    with pytest.raises(BatchTimedOutError):
        batches.write(BATCH, run_for(clock, 61, [part(), part()]))
    assert log.count("commit") == 1
    batches = make(found=[None, None, ENTRY], commits=[InvalidTxnStateError()])
    batches.enter(BATCH, SETTINGS)
    assert len(batches.write(BATCH, run_for(clock, 61, [part(), part()]))[0]) == 2


@pytest.mark.parametrize(
    ("seconds", "is_lost", "found"),
    [
        (59, True, ("CompleteAbort", 1, 6)),  # too early for a time-out
        (61, False, ("CompleteAbort", 1, 6)),  # not lost, but failed
        (59, True, ("Ongoing", 1, 5)),  # still ours
    ],
)
def test_other_losses_are_run_again(whole, clock, seconds, is_lost, found):
    make, log = whole
    clock.found = found
    batches = make()
    batches.enter(BATCH, SETTINGS)
    tries = [[part("x", is_lost=is_lost), part()], [part(), part()]]
    batches.write(BATCH, lambda *told: run_for(clock, seconds, tries.pop(0))(*told))
    assert log.count("abort") == 1
    assert clock.questions == (1 if is_lost else 0)


ANOTHER_DRIVER = [
    ("CompleteAbort", 1, 7),  # it aborted its own
    ("CompleteAbort", 2, 6),
    ("Empty", 1, 7),
    ("Empty", 1, 6),  # nothing of ours had reached the coordinator yet
    ("Ongoing", 1, 7),
    ("CompleteCommit", 1, 7),
]


@pytest.mark.parametrize("seconds", [1, 61])
@pytest.mark.parametrize("found", ANOTHER_DRIVER)
def test_a_driver_that_another_one_has_fenced_stops_and_does_not_fence_it(
    whole, clock, seconds, found
):
    make, log = whole
    clock.found = found
    batches = make(aborts=[ProducerFencedError()])
    batches.enter(BATCH, SETTINGS)
    with pytest.raises(StaleRunError, match=r"another driver .* 'sink.batch' .* batch 3"):
        batches.write(BATCH, run_for(clock, seconds, [part("x", is_lost=True), part()]))
    assert log.count("take") == 1
    assert log[-3:] == ["abort", "close", "glance"]


def test_a_commit_that_another_driver_came_before_is_looked_up_and_not_taken_back(whole, clock):
    make, log = whole
    clock.found = ("Ongoing", 1, 7)
    for there, outcome in ((ENTRY, None), (None, StaleRunError)):
        batches = make(found=[None, None, there], commits=[ProducerFencedError()])
        batches.enter(BATCH, SETTINGS)
        if outcome is None:
            assert batches.write(BATCH, lambda *_: [part(), part()]) == ([], ENTRY)
        else:
            with pytest.raises(outcome):
                batches.write(BATCH, lambda *_: [part(), part()])
        assert log[-3:] == ["commit", "close", "glance"]
    assert log.count("take") == 2


@pytest.mark.parametrize("found", [None, KafkaTimeoutError("?")])
def test_a_coordinator_that_knows_nothing_shows_no_other_driver(whole, clock, found):
    make, _ = whole
    clock.found = found
    batches = make()
    batches.enter(BATCH, SETTINGS)
    with pytest.raises(BatchTimedOutError):
        batches.write(BATCH, run_for(clock, 61, [part("x", is_lost=True), part()]))


@pytest.mark.parametrize("error", [InvalidPidMappingError(), InvalidProducerEpochError()])
def test_a_lost_transaction_is_found_through_the_cause_of_an_error(whole, clock, error):
    make, _ = whole
    clock.found = ("Empty", 2, 0)
    stopped = KafkaError("cannot go on")
    stopped.__cause__ = error
    batches = make(commits=[stopped])
    batches.enter(BATCH, SETTINGS)
    with pytest.raises(StaleRunError):
        batches.write(BATCH, lambda *_: [part(), part()])


@pytest.mark.parametrize(
    ("found", "producer", "is_v2", "is_seen"),
    [
        # A commit of ours takes the next epoch with v2 alone.
        (("CompleteCommit", 1, 6), (1, 5), True, False),
        (("CompleteCommit", 1, 6), (1, 5), False, True),
        # With v2 a time-out after the last epoch aborts under the next producer id.
        (("CompleteAbort", 2, 0), (1, 2**15 - 2), True, False),
        (("CompleteAbort", 2, 0), (1, 2**15 - 2), False, True),
    ],
)
def test_whether_another_driver_is_seen_is_read_in_the_one_table_of_evidence(
    clock, found, producer, is_v2, is_seen
):
    clock.found = found
    lease = TransactionLease("sink.batch", ProducerIdAndEpoch(*producer), is_v2)
    seen = lost_transactions.is_another_driver_seen(FakeLedger([], []), lease, KafkaError())
    assert seen is is_seen
