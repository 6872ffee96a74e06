"""A coordinator's description proves or leaves open the outcome of a commit without an answer."""

from __future__ import annotations

import pytest

from txnproducer._core.transactions.commit_evidence import SentCommit, resolve
from txnproducer.records import ProducerIdAndEpoch

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
ENDS = dict(zip(STATES[2:], ("committed", "aborted") * 2, strict=True))
MINE = ProducerIdAndEpoch(7, 3)
NEXT, LATER, OLDER = (ProducerIdAndEpoch(7, epoch) for epoch in (4, 5, 2))
FOREIGN = ProducerIdAndEpoch(8, 0)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("described", [MINE, NEXT, LATER, OLDER, FOREIGN])
def test_with_v1_only_an_end_under_the_transactions_own_epoch_proves_something(state, described):
    expected = ENDS.get(state, "unknown") if described == MINE else "unknown"
    assert resolve(SentCommit(MINE, is_transaction_v2=False), state, described) == expected


@pytest.mark.parametrize("is_given_up", [False, True])
@pytest.mark.parametrize("state", STATES)
def test_if_a_delayed_request_may_have_begun_something_only_a_commit_without_abort_is_a_proof(
    state, is_given_up
):
    commit = SentCommit(MINE, is_transaction_v2=False, is_given_up=is_given_up)
    expected = "committed" if "Commit" in state and not is_given_up else "unknown"
    assert resolve(commit, state, MINE, may_begin_again=True) == expected
    assert resolve(commit, state, MINE) == ENDS.get(state, "unknown")


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("described", [MINE, NEXT, LATER, OLDER, FOREIGN])
def test_with_v2_only_an_end_under_the_next_epoch_proves_something(state, described):
    expected = ENDS.get(state, "unknown") if described == NEXT else "unknown"
    assert resolve(SentCommit(MINE, is_transaction_v2=True), state, described) == expected


@pytest.mark.parametrize(
    ("is_v2", "epoch", "expected"),
    [(True, 32766, "committed"), (True, 32765, "unknown"), (False, 32766, "unknown")],
)
def test_the_end_under_the_last_epoch_goes_on_under_a_new_producer_id(is_v2, epoch, expected):
    # KAFKA-18660, KAFKA-19367: after epoch 32766 comes epoch 0 of another id.
    commit = SentCommit(ProducerIdAndEpoch(7, epoch), is_v2)
    assert resolve(commit, "CompleteCommit", FOREIGN) == expected


def test_while_the_last_end_is_prepared_it_stands_under_the_epoch_for_fencing():
    commit = SentCommit(ProducerIdAndEpoch(7, 32766), is_transaction_v2=True)
    assert resolve(commit, "PrepareAbort", ProducerIdAndEpoch(7, 32767)) == "aborted"
