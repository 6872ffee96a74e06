"""The states of a transactional producer, and every way from one to another.

Why it exists: the table below *is* the state machine; nothing else in the package changes a state.

Owns: `TransactionState`, `TRANSITIONS`, `Role`, the machine that obeys them, and the `recovery`
that an error asks for in each state. Must not know: requests, partitions, sequences.

Theory of operation
-------------------
A transactional producer gets its identity once (UNINITIALIZED, INITIALIZING, READY) and then goes
round: READY, IN_TRANSACTION, COMMITTING_TRANSACTION or ABORTING_TRANSACTION, READY. An epoch that
has to be raised at the end of a transaction puts INITIALIZING between the last two.

There are two kinds of failure. ABORTABLE_ERROR: this transaction is lost, the producer is sound;
the way out is an abort. FATAL_ERROR: the producer is at its end; there is no way out.
ABORTING_TRANSACTION has no way to ABORTABLE_ERROR, since the transaction is being aborted already.
UNINITIALIZED after ABORTABLE_ERROR is for refusals that came before there was an identity: once
the right is granted, the application may initialize again with this producer.

An idempotent producer (no transactional id) uses UNINITIALIZED, INITIALIZING, READY and the two
error states; from READY it goes back to UNINITIALIZED when its epochs are used up.

PREPARED_TRANSACTION belongs to two-phase commit (KIP-939): all is written, and only a decision of
another system, perhaps in another process, ends the transaction. A close leaves it as it is.

Two parties ask for transitions, and an illegal one has a different meaning for each (KAFKA-14831):

* the application made a mistake: it gets an `IllegalStateError`, and nothing has changed;
* the sender expected another state: going on could break a transaction, so the producer is
  poisoned (FATAL_ERROR) before the error is raised.

`role` says which of the two is asking, since the core has no threads by which to tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final, Protocol

from txnproducer._sync.held_logs import held_logger
from txnproducer.errors import (
    IllegalStateError,
    InvalidConfigurationError,
    KafkaError,
    Recovery,
)

_LOG = held_logger(__name__)


class Role(Enum):
    """The party that calls."""

    APPLICATION = auto()
    SENDER = auto()


class TransactionState(Enum):
    """The producer's state, by Java's names."""

    UNINITIALIZED = auto()
    INITIALIZING = auto()
    READY = auto()
    IN_TRANSACTION = auto()
    PREPARED_TRANSACTION = auto()
    COMMITTING_TRANSACTION = auto()
    ABORTING_TRANSACTION = auto()
    ABORTABLE_ERROR = auto()
    FATAL_ERROR = auto()

    # An Enum's own is Python code, and each transaction makes three transitions.
    __hash__ = object.__hash__

    # For the lines of the log, which are seldom written: `name` is Python code, too.
    def __str__(self) -> str:
        return self.name


_S = TransactionState

_TARGETS: dict[TransactionState, set[TransactionState]] = {
    _S.UNINITIALIZED: {_S.INITIALIZING},
    _S.INITIALIZING: {_S.READY, _S.PREPARED_TRANSACTION, _S.ABORTABLE_ERROR},
    # UNINITIALIZED is for an idempotent producer whose epochs are used up.
    _S.READY: {_S.UNINITIALIZED, _S.IN_TRANSACTION},
    _S.IN_TRANSACTION: {
        _S.PREPARED_TRANSACTION,
        _S.COMMITTING_TRANSACTION,
        _S.ABORTING_TRANSACTION,
        _S.ABORTABLE_ERROR,
    },
    _S.PREPARED_TRANSACTION: {_S.COMMITTING_TRANSACTION, _S.ABORTING_TRANSACTION},
    _S.COMMITTING_TRANSACTION: {_S.INITIALIZING, _S.READY, _S.ABORTABLE_ERROR},
    # Not ABORTABLE_ERROR, since the transaction is being aborted already.
    _S.ABORTING_TRANSACTION: {_S.INITIALIZING, _S.READY},
    # From ABORTABLE_ERROR to itself, since other batches may fail before the abort begins.
    _S.ABORTABLE_ERROR: {_S.UNINITIALIZED, _S.ABORTING_TRANSACTION, _S.ABORTABLE_ERROR},
    _S.FATAL_ERROR: set(),
}

TRANSITIONS: Final[Mapping[TransactionState, frozenset[TransactionState]]] = MappingProxyType(
    {source: frozenset(targets | {_S.FATAL_ERROR}) for source, targets in _TARGETS.items()}
)
"""Each state's legal targets. FATAL_ERROR is one of them everywhere."""

# They are checked in every step: a tuple finds a member by identity, which is faster than a hash.
ERROR_STATES: Final = (_S.ABORTABLE_ERROR, _S.FATAL_ERROR)
COMPLETING_STATES: Final = (_S.COMMITTING_TRANSACTION, _S.ABORTING_TRANSACTION)
ONGOING_STATES: Final = (*COMPLETING_STATES, _S.IN_TRANSACTION, _S.ABORTABLE_ERROR)


PREPARED_ADVICE: Final = "the transaction is prepared: complete() it, or close() the producer"

# The advice for an application's call that does not fit the state.
_ADVICE = {
    _S.UNINITIALIZED: "the producer is not initialized: call init_transactions() first",
    _S.INITIALIZING: "init_transactions() has not ended yet: call it again to wait for it",
    _S.READY: "the producer is initialized, and no transaction is open: call begin_transaction()",
    _S.IN_TRANSACTION: "a transaction is open: commit or abort it first",
    _S.PREPARED_TRANSACTION: PREPARED_ADVICE,
    _S.COMMITTING_TRANSACTION: "a commit is under way",
    _S.ABORTING_TRANSACTION: "an abort is under way",
}


class StateWatcher(Protocol):
    """A listener to errors that change the state."""

    def on_error(self, error: KafkaError) -> None:
        """Note an error before it becomes the state's. Its text may still be changed."""
        ...

    def on_fatal_error(self) -> None:
        """Note that the producer is in FATAL_ERROR."""
        ...

    def on_illegal_step(self, error: KafkaError) -> None:
        """Note that an illegal step of the sender has ended the producer."""
        ...


class TransactionStateMachine:
    """Hold the state, and change it only along `TRANSITIONS`.

    Args:
        name: the producer's, for messages.
        watcher: learns of errors.
        state: to begin with.

    Attributes:
        state: the present state.
        last_error: why it is in an error state; None in the others.
        role: the party that calls, which decides the effect of an illegal transition.
    """

    def __init__(
        self,
        name: str,
        watcher: StateWatcher | None = None,
        state: TransactionState = TransactionState.UNINITIALIZED,
    ) -> None:
        self.name = name
        self._watcher = watcher
        self.state = state
        self.last_error: KafkaError | None = None
        self.role = Role.APPLICATION

    def act_for(self, role: Role) -> None:
        """Note the party that calls."""
        self.role = role

    @property
    def has_error(self) -> bool:
        """Whether the producer is in either error state."""
        return self.state in ERROR_STATES

    @property
    def has_fatal_error(self) -> bool:
        """Whether the producer is at its end."""
        return self.state is _S.FATAL_ERROR

    @property
    def has_abortable_error(self) -> bool:
        """Whether the transaction can only be aborted."""
        return self.state is _S.ABORTABLE_ERROR

    @property
    def is_completing(self) -> bool:
        """Whether a commit or an abort is under way."""
        return self.state in COMPLETING_STATES

    @property
    def is_aborting(self) -> bool:
        """Whether an abort is under way."""
        return self.state is _S.ABORTING_TRANSACTION

    @property
    def has_ongoing_transaction(self) -> bool:
        """Whether a transaction was begun and has not ended. A fatal error ends it, too."""
        return self.state in ONGOING_STATES

    def transition_to(self, target: TransactionState, error: KafkaError | None = None) -> None:
        """Go to another state.

        Args:
            target: where to.
            error: why, for an error state; the others clear the last error.

        Raises:
            IllegalStateError: the table has no such transition. For the application nothing has
                changed; for the sender the producer is now in FATAL_ERROR.
            ValueError: an error state without an error; nothing has changed.
        """
        watcher = self._watcher
        # Before the error is logged and raised: the watcher may still change its text.
        if watcher is not None and error is not None:
            watcher.on_error(error)
        self.check_transition(target)
        if target in ERROR_STATES and error is None:
            raise ValueError(f"a transition to {target.name} needs the error that caused it")
        _LOG.debug("%s: %s -> %s", self.name, self.state, target, exc_info=error)
        self.state = target
        self.last_error = error
        if watcher is not None and target is _S.FATAL_ERROR:
            watcher.on_fatal_error()

    def go_to(self, state: TransactionState) -> None:
        """Go to a state, unless an interrupted call has done so already."""
        if self.state is not state:
            self.transition_to(state)

    def check_transition(self, target: TransactionState) -> None:
        """Refuse a state that cannot follow the present one. See `transition_to`."""
        if target not in TRANSITIONS[self.state]:
            self._refuse(target)

    def _refuse(self, target: TransactionState) -> None:
        states = f"invalid transition from state {self.state.name} to {target.name}"
        advice = _ADVICE.get(self.state) if self.role is Role.APPLICATION else None
        text = states if advice is None else f"{advice} ({states})"
        refusal = IllegalStateError(f"{self.name}: {text}")
        # A mistake of the application changes nothing, so only the sender's is fatal.
        if self.role is Role.SENDER:
            _LOG.error("%s; the producer cannot go on", refusal)
            refusal.recovery = "restart"
            self.state = _S.FATAL_ERROR
            self.last_error = refusal
            if self._watcher is not None:
                self._watcher.on_illegal_step(refusal)
        raise refusal


def recovery_when_fatal(error: KafkaError) -> Recovery:
    """Return the recovery that is left after an error has ended the producer."""
    if error.recovery in {"unknown", "fix"} or isinstance(error, InvalidConfigurationError):
        return "unknown" if error.recovery == "unknown" else "fix"
    return "restart"
