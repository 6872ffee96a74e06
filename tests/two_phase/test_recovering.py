"""A producer completes the transaction that was decided before it is initialized."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from tests.two_phase.prepared import DECISIONS, prepare, values
from txnproducer import (
    CommitOutcomeUnknownError,
    IllegalStateError,
)
from txnproducer.errors import (
    TransactionAbortedError,
)
from txnproducer.prepared import StoredDecision

# --- recovery ------------------------------------------------------------------------------------


@DECISIONS
def test_recovery_comes_before_the_initialization(kafka, producer, other, commit):
    text = str(prepare(producer))
    told: list[str] = []
    other.init_transactions(recover=lambda: StoredDecision(text, commit, told.append))
    assert told == ["committed" if commit else "aborted"]
    assert other.transaction_state == "READY"
    assert values(kafka) == ([b"1"] if commit else [])


def test_a_plain_pair_will_do(kafka, producer, other):
    prepared = prepare(producer)
    other.init_transactions(recover=lambda: (prepared, True))
    assert values(kafka) == [b"1"]


def test_without_a_stored_token_the_initialization_aborts_what_was_prepared(
    kafka, producer, other
):
    prepared = prepare(producer)
    other.init_transactions(recover=lambda: None)
    assert producer.complete(prepared, commit=True) == "lost"
    assert values(kafka) == []


def test_a_lost_transaction_stops_the_recovery_before_the_initialization(kafka, producer):
    prepared = prepare(producer)
    kafka.time_out_transaction("t")
    for _ in range(2):
        with kafka.producer("t") as other:
            with pytest.raises(TransactionAbortedError, match="Write its records again") as told:
                other.init_transactions(recover=lambda: (prepared, True))
            assert told.value.recovery == "fix"
            with pytest.raises(IllegalStateError, match="closed"):
                other.init_transactions()
    with kafka.producer("t") as other:
        other.init_transactions()
        assert other.complete(prepare(other), commit=True) == "committed"


@pytest.mark.parametrize(
    "found", ["v1:text", nullcontext("v1:text"), ("v1:text",), 7], ids=["text", "held", "one", "7"]
)
def test_a_recovery_that_returns_something_else_is_refused(other, found):
    with pytest.raises(TypeError, match=r"must return \(token, commit\)") as refused:
        other.init_transactions(recover=lambda: found)
    assert "make another one" in refused.value.__notes__[0]


def test_a_decision_that_is_no_bool_is_refused(kafka, producer, other):
    prepared = prepare(producer)
    with pytest.raises(TypeError, match="must be True or False, not 'False'"):
        other.init_transactions(recover=lambda: (str(prepared), "False"))
    assert producer.complete(prepared, commit=True) == "committed"


def test_an_outcome_that_the_program_has_dealt_with_does_not_stop_the_recovery(
    kafka, producer, other
):
    prepared = prepare(producer)
    kafka.time_out_transaction("t")
    told = []

    def deal_with(outcome):
        told.append(outcome)
        return True

    other.init_transactions(recover=lambda: StoredDecision(prepared, True, deal_with))
    assert told == ["lost"]
    assert other.transaction_state == "READY"


def test_an_unknown_outcome_stops_the_recovery(producer, other):
    first = prepare(producer)
    producer.complete(first, commit=True)
    producer.complete(prepare(producer), commit=True)
    with pytest.raises(CommitOutcomeUnknownError, match="Look for its records"):
        other.init_transactions(recover=lambda: (first, True))


def test_a_decision_to_abort_that_came_too_late_stops_the_recovery(producer, other):
    prepared = prepare(producer)
    producer.complete(prepared, commit=True)
    with pytest.raises(IllegalStateError, match="two parties have decided"):
        other.init_transactions(recover=lambda: (prepared, False))


def test_a_producer_that_is_initialized_recovers_nothing(producer):
    def never():
        raise AssertionError

    with pytest.raises(IllegalStateError):
        producer.init_transactions(recover=never)
