"""The outcome of a commit without an answer, which the producer asks of the coordinator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.live_client import commits_sent, impatient
from tests.scripted_client import PRODUCER_EPOCH, PRODUCER_ID
from txnproducer._protocol.events import ResponseFailure
from txnproducer._protocol.messages import ApiKey, BrokerNode, TransactionDescription
from txnproducer._shell import outcomes
from txnproducer._wire.platform import SYSTEM
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    ErrorCode,
    IllegalStateError,
    KafkaTimeoutError,
    UnsupportedVersionError,
)


@pytest.fixture
def in_doubt(ready, client):
    """Return a producer with a commit in doubt, and its transaction."""
    client.prepare_failure(ApiKey.END_TXN, ResponseFailure.DISCONNECTED)
    client.prepare_refused_end(ErrorCode.PRODUCER_FENCED)
    txn = ready.transaction()
    with pytest.raises(CommitOutcomeUnknownError):
        with txn:
            ready.send("topic", b"value")
    return ready, txn


def describes(monkeypatch, state, epoch):
    asked = []

    def describe_transaction(config, platform, timeout_s, known, *, call):
        assert call == "resolve_outcome"
        asked.append((config, platform, timeout_s, known))
        if isinstance(state, Exception):
            raise state
        if state is None:
            return None
        return TransactionDescription(0, config.transactional_id, state, PRODUCER_ID, epoch)

    monkeypatch.setattr(outcomes, "describe_transaction", describe_transaction)
    return asked


@pytest.mark.parametrize(
    ("state", "epoch", "outcome"),
    [
        ("CompleteCommit", PRODUCER_EPOCH + 1, "committed"),
        ("CompleteAbort", PRODUCER_EPOCH + 1, "aborted"),
        ("Ongoing", PRODUCER_EPOCH, "unknown"),
        ("Empty", PRODUCER_EPOCH + 2, "unknown"),
        (None, 0, "unknown"),
        (UnsupportedVersionError("too old"), 0, "unknown"),
    ],
)
@pytest.mark.parametrize("is_closed", [False, True])
def test_the_coordinator_is_asked_for_an_outcome_in_doubt(
    in_doubt, monkeypatch, state, epoch, outcome, is_closed
):
    one, txn = in_doubt
    if is_closed:
        one.close(0)
    asked = describes(monkeypatch, state, epoch)
    assert one.resolve_outcome() == outcome
    assert txn.outcome == outcome
    assert asked == [(one._config, SYSTEM, 10.0, [BrokerNode(0, "broker-0", 9092)])]


def test_an_outcome_that_is_known_is_not_asked_for(ready, monkeypatch):
    asked = describes(monkeypatch, None, 0)
    with ready.transaction():
        ready.send("topic", b"value")
    assert ready.resolve_outcome() == "committed"
    assert asked == []


def test_without_a_commit_that_has_ended_there_is_no_outcome_to_resolve(ready, make, client):
    with pytest.raises(IllegalStateError, match="no commit has ended"):
        ready.resolve_outcome()
    # Closed before the other goes on: a scripted client wakes one of its producers, not both.
    with make(None) as idempotent, pytest.raises(IllegalStateError, match="no commit has ended"):
        idempotent.resolve_outcome()
    client.held.add(ApiKey.PRODUCE)
    impatient(ready)
    with pytest.raises(KafkaTimeoutError), ready.transaction():
        ready.send("topic", b"value")
    # With v1 the coordinator may still describe the end of the transaction before this one.
    with pytest.raises(IllegalStateError, match="no commit has ended"):
        ready.resolve_outcome()


def test_an_outcome_that_was_resolved_stays_so(in_doubt, monkeypatch):
    one, txn = in_doubt
    asked = describes(monkeypatch, "CompleteCommit", PRODUCER_EPOCH + 1)
    assert one.resolve_outcome() == "committed"
    one.close(0)
    assert txn.outcome == "committed"
    assert one.resolve_outcome() == "committed"
    assert len(asked) == 1


@pytest.fixture
def of_version_1(in_doubt):
    """Return the same with transactions v1, and after a lost request that may begin another."""
    one, txn = in_doubt
    manager = one._core.transaction_manager
    manager.last_commit = replace(manager.last_commit, is_transaction_v2=False)
    manager.identity.may_begin_again = True
    return one, txn, manager


@pytest.mark.parametrize(
    ("meanwhile", "outcome"),
    [("nothing", "committed"), ("an abort", "unknown"), ("the next transaction", "unknown")],
)
def test_an_abort_on_another_thread_during_the_question_is_taken_into_account(
    of_version_1, monkeypatch, meanwhile, outcome
):
    one, txn, manager = of_version_1

    def describe_transaction(config, *_, **__):
        # The abort ends with a new epoch, under which nothing can begin again.
        if meanwhile != "nothing":
            manager.last_commit = replace(manager.last_commit, is_given_up=True)
            manager.identity.may_begin_again = False
        if meanwhile == "the next transaction":
            manager.commit_result = None
        mine = (PRODUCER_ID, PRODUCER_EPOCH)
        return TransactionDescription(0, config.transactional_id, "CompleteCommit", *mine)

    monkeypatch.setattr(outcomes, "describe_transaction", describe_transaction)
    assert one.resolve_outcome() == outcome
    if meanwhile != "the next transaction":
        assert txn.outcome == outcome


@pytest.mark.parametrize("state", ["CompleteCommit", "CompleteAbort"])
def test_no_description_settles_a_doubt_that_an_abort_has_left(of_version_1, monkeypatch, state):
    one, _, manager = of_version_1
    manager.last_commit = replace(manager.last_commit, is_given_up=True)
    manager.progress.outcome = "unknown"
    manager.identity.may_begin_again = False  # by the new epoch
    describes(monkeypatch, state, PRODUCER_EPOCH)
    assert one.resolve_outcome() == "unknown"


@pytest.mark.parametrize("is_committed", [True, False])
def test_an_abort_settles_a_doubt_that_the_commit_has_raised(ready, client, is_committed):
    # The coordinator can be asked again, but something forbids to repeat the commit.
    client.prepare_failure(ApiKey.END_TXN, ResponseFailure.DISCONNECTED)
    client.prepare_find_coordinator(ErrorCode.TRANSACTION_ABORTABLE)
    txn = ready.transaction()
    with pytest.raises(CommitOutcomeUnknownError), txn:
        ready.send("topic", b"value")
    assert txn.outcome == "unknown"
    if is_committed:
        client.prepare_end_txn(ErrorCode.INVALID_TXN_STATE)
        with pytest.raises(IllegalStateError, match="has succeeded"):
            ready.abort_transaction()
    else:
        ready.abort_transaction()
    assert txn.outcome == ("committed" if is_committed else "aborted")
    assert commits_sent(client) == ([True, False, True] if is_committed else [True, False])


def test_a_cluster_that_does_not_answer_raises(in_doubt, monkeypatch):
    one, txn = in_doubt
    describes(monkeypatch, KafkaTimeoutError("no answer"), 0)
    with pytest.raises(KafkaTimeoutError):
        one.resolve_outcome()
    assert txn.outcome == "unknown"
