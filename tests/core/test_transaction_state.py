"""The state machine alone: every pair of states, for calls of the application and the sender."""

from __future__ import annotations

import itertools
import pickle
import re

import pytest

from txnproducer._core.transactions.state import (
    ERROR_STATES,
    TRANSITIONS,
    Role,
    TransactionState,
    TransactionStateMachine,
    recovery_when_fatal,
)
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    IllegalStateError,
    KafkaError,
    ProducerFencedError,
    RecordTooLargeError,
    TopicAuthorizationError,
    TransactionAbortableError,
)

S = TransactionState

# Written out once more, target by target, so that a slip in the table does not pass unseen.
SOURCES_OF = {
    S.UNINITIALIZED: {S.READY, S.ABORTABLE_ERROR},
    S.INITIALIZING: {S.UNINITIALIZED, S.COMMITTING_TRANSACTION, S.ABORTING_TRANSACTION},
    S.READY: {S.INITIALIZING, S.COMMITTING_TRANSACTION, S.ABORTING_TRANSACTION},
    S.IN_TRANSACTION: {S.READY},
    S.PREPARED_TRANSACTION: {S.IN_TRANSACTION, S.INITIALIZING},
    S.COMMITTING_TRANSACTION: {S.IN_TRANSACTION, S.PREPARED_TRANSACTION},
    S.ABORTING_TRANSACTION: {S.IN_TRANSACTION, S.PREPARED_TRANSACTION, S.ABORTABLE_ERROR},
    S.ABORTABLE_ERROR: {
        S.IN_TRANSACTION,
        S.COMMITTING_TRANSACTION,
        S.ABORTABLE_ERROR,
        S.INITIALIZING,
    },
    S.FATAL_ERROR: set(S),
}
PAIRS = list(itertools.product(S, S))


def machine_in(state, error=None, role=Role.APPLICATION):
    machine = TransactionStateMachine("transactional id 't'")
    machine.state, machine.last_error, machine.role = state, error, role
    return machine


def named(value):
    return value.name


def test_there_are_nine_states_and_every_one_has_its_row():
    assert len(S) == 9
    assert set(TRANSITIONS) == set(S)
    assert sum(len(targets) for targets in TRANSITIONS.values()) == 29


@pytest.mark.conformance("1.19")
@pytest.mark.parametrize(("source", "target"), PAIRS, ids=named)
def test_each_pair_of_states_is_legal_or_changes_nothing(source, target):
    earlier = KafkaError("earlier")
    machine = machine_in(source, earlier)
    error = KafkaError("new") if target in ERROR_STATES else None
    if source in SOURCES_OF[target]:
        machine.transition_to(target, error)
        assert (machine.state, machine.last_error) == (target, error)
        return
    with pytest.raises(IllegalStateError, match=f"{source.name} to {target.name}"):
        machine.transition_to(target, error)
    assert (machine.state, machine.last_error) == (source, earlier)


@pytest.mark.parametrize("source", [s for s in S if s not in ERROR_STATES], ids=named)
def test_an_illegal_call_raises_the_cause_and_the_way_out_before_the_states(source):
    target = next(target for target in S if source not in SOURCES_OF[target])
    with pytest.raises(IllegalStateError) as refusal:
        machine_in(source).check_transition(target)
    cause, states = str(refusal.value).removeprefix("transactional id 't': ").split(" (")
    assert states == f"invalid transition from state {source.name} to {target.name})"
    way_out = r"the producer is|init_transactions|an? \w+ is under"
    assert re.match(rf"{way_out}|(a|the) transaction is (open|prepared)", cause)


@pytest.mark.conformance("1.03")
@pytest.mark.trap(6)
@pytest.mark.parametrize(
    ("source", "target"), [p for p in PAIRS if p[0] not in SOURCES_OF[p[1]]], ids=named
)
def test_an_illegal_transition_by_the_sender_poisons(source, target):
    machine = machine_in(source, role=Role.SENDER)
    with pytest.raises(IllegalStateError) as caught:
        machine.transition_to(target, KafkaError("why"))
    assert machine.state is S.FATAL_ERROR
    assert machine.last_error is caught.value
    assert caught.value.recovery == "restart"


@pytest.mark.conformance("1.19")
@pytest.mark.parametrize("target", sorted(ERROR_STATES, key=named), ids=named)
def test_an_error_state_needs_its_error(target):
    machine = machine_in(S.IN_TRANSACTION)
    with pytest.raises(ValueError, match=target.name):
        machine.transition_to(target)
    assert (machine.state, machine.last_error) == (S.IN_TRANSACTION, None)


@pytest.mark.parametrize("state", S, ids=named)
def test_the_questions_about_the_state_agree_with_it(state):
    machine = machine_in(state)
    assert machine.has_error == (state in {S.ABORTABLE_ERROR, S.FATAL_ERROR})
    assert machine.has_fatal_error == (state is S.FATAL_ERROR)
    assert machine.has_abortable_error == (state is S.ABORTABLE_ERROR)
    assert machine.is_aborting == (state is S.ABORTING_TRANSACTION)
    assert machine.is_completing == (state in {S.COMMITTING_TRANSACTION, S.ABORTING_TRANSACTION})
    assert machine.has_ongoing_transaction == (
        state
        in {
            S.IN_TRANSACTION,
            S.COMMITTING_TRANSACTION,
            S.ABORTING_TRANSACTION,
            S.ABORTABLE_ERROR,
        }
    )


@pytest.mark.parametrize(
    ("error", "recovery"),
    [
        (ProducerFencedError(), "restart"),
        (TransactionAbortableError(), "restart"),
        (TopicAuthorizationError(), "fix"),
        (RecordTooLargeError(), "fix"),
        (TopicAuthorizationError(recovery="abort"), "fix"),
        (CommitOutcomeUnknownError(), "unknown"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_fatal_error_asks_for_a_new_producer_or_for_a_person(error, recovery):
    assert recovery_when_fatal(error) == recovery


def test_a_transition_is_logged_by_the_names_of_its_states(caplog):
    with caplog.at_level("DEBUG", logger="txnproducer"):
        machine_in(S.READY).transition_to(S.IN_TRANSACTION)
    assert caplog.messages == ["transactional id 't': READY -> IN_TRANSACTION"]


def test_a_state_is_the_same_key_after_a_copy():
    copied = pickle.loads(pickle.dumps(S.READY))
    assert {S.READY: "held"}[copied] == "held"
