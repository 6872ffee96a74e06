"""The coordinators' error codes and their verdicts, as one table for each request.

Why it exists: the same code means different things in different answers, and exactly these
differences break naive ports. So they stand side by side here, as data.

Owns: the tables, the errors that verdicts turn into. Must not know: states, requests, how a
verdict is executed.

Rules:
* A code without a row is retried if its class is retriable. Otherwise the table's `other` decides.
  A code that this version does not know counts as UNKNOWN_SERVER_ERROR.
* INVALID_PRODUCER_EPOCH from a coordinator means fenced: older brokers use this code for it. From
  Produce it is not, see `TransactionProgress.maybe_transition_to_error_state`.
* For AddPartitionsToTxn an unforeseen error is abortable, for all other requests it is fatal.
* TRANSACTION_ABORTABLE in answer to an abort is fatal. Otherwise an application that aborts upon
  this code would do so for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType
from typing import Final, NamedTuple

from txnproducer.errors import (
    ClusterAuthorizationError,
    CommitFailedError,
    ErrorCode,
    GroupAuthorizationError,
    InvalidPidMappingError,
    InvalidTxnStateError,
    InvalidTxnTimeoutError,
    KafkaError,
    ProducerFencedError,
    RetriableError,
    TransactionalIdAuthorizationError,
    UnsupportedVersionError,
    class_for_code,
    error_for_code,
)


class Action(Enum):
    """The action that an answer asks for."""

    COMPLETE = auto()
    RETRY = auto()
    LOOK_UP = auto()  # forget the coordinator, look it up, and retry
    COLLECT = auto()  # go on with the next partition; abortable at the end
    ABORTABLE = auto()
    BUMP_OR_FATAL = auto()  # abortable if the epoch can be raised, otherwise fatal
    FATAL = auto()

    @property
    def is_retry(self) -> bool:
        """Whether the request is sent again."""
        return self in (Action.RETRY, Action.LOOK_UP)


class Form(Enum):
    """The class of error that a code is raised as."""

    RAW = auto()  # the code's own class
    FENCED = auto()  # ProducerFencedError
    UNEXPECTED = auto()  # KafkaError that names the code
    CAUSED = auto()  # KafkaError with the code's own error as its cause
    COMMIT_FAILED = auto()  # CommitFailedError
    TIMEOUT_TOO_LONG = auto()  # InvalidTxnTimeoutError


class Verdict(NamedTuple):
    """The action for an answer, and the form of its error."""

    action: Action
    form: Form = Form.RAW


@dataclass(frozen=True, slots=True)
class VerdictTable:
    """The verdicts on one request's answers.

    Attributes:
        request: the request's name, for messages.
        rows: the codes with a verdict of their own.
        other: the verdict on codes without a row that are not retriable.
    """

    request: str
    rows: Mapping[int, Verdict]
    other: Verdict

    def judge(self, code: int) -> Verdict:
        """Return the verdict on an error code."""
        row = self.rows.get(code)
        if row is not None:
            return row
        return _RETRY if issubclass(class_for_code(code), RetriableError) else self.other

    def error(
        self,
        verdict: Verdict,
        code: int,
        *,
        group_id: str | None = None,
        detail: str | None = None,
    ) -> KafkaError:
        """Return the error for an answer.

        Args:
            verdict: the verdict on the answer.
            code: the answer's code.
            group_id: the consumer group that the request was about.
            detail: the broker's own text.
        """
        if verdict.form is Form.FENCED:
            return ProducerFencedError()
        raw = error_for_code(code)
        if code == ErrorCode.GROUP_AUTHORIZATION_FAILED and verdict.form is Form.RAW:
            return GroupAuthorizationError(group_id=group_id)
        if verdict.form is Form.RAW:
            return raw
        name = raw.code.name if isinstance(raw.code, ErrorCode) else str(code)
        text = f"{detail or raw.default_message()} ({self.request} was answered {name} ({code}))"
        if verdict.form is Form.COMMIT_FAILED:
            return CommitFailedError(text)
        if verdict.form is Form.TIMEOUT_TOO_LONG:
            return InvalidTxnTimeoutError(text)
        # The wrapping error asks for the same recovery as the code's own class.
        wrapped = KafkaError(text, recovery="fix" if raw.recovery == "fix" else None)
        if verdict.form is Form.CAUSED:
            wrapped.__cause__ = raw
        return wrapped


_C = ErrorCode

_COMPLETE: Final = Verdict(Action.COMPLETE)
_RETRY: Final = Verdict(Action.RETRY)
_LOOK_UP: Final = Verdict(Action.LOOK_UP)
_COLLECT: Final = Verdict(Action.COLLECT)
_ABORTABLE: Final = Verdict(Action.ABORTABLE)
_BUMP_OR_FATAL: Final = Verdict(Action.BUMP_OR_FATAL)
_FATAL: Final = Verdict(Action.FATAL)
_FENCED: Final = Verdict(Action.FATAL, Form.FENCED)
_UNEXPECTED: Final = Verdict(Action.FATAL, Form.UNEXPECTED)
_CAUSED: Final = Verdict(Action.FATAL, Form.CAUSED)

_SUCCESS: Final = {_C.NONE: _COMPLETE}
_LOST_COORDINATOR: Final = {_C.COORDINATOR_NOT_AVAILABLE: _LOOK_UP, _C.NOT_COORDINATOR: _LOOK_UP}
# Older brokers answer INVALID_PRODUCER_EPOCH where newer ones say PRODUCER_FENCED (KIP-588).
_OUTDATED_PRODUCER: Final = {_C.INVALID_PRODUCER_EPOCH: _FENCED, _C.PRODUCER_FENCED: _FENCED}
_BROKEN_TRANSACTION: Final = {
    _C.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _FATAL,
    _C.INVALID_TXN_STATE: _FATAL,
    _C.INVALID_PRODUCER_ID_MAPPING: _FATAL,
}


def _table(request: str, other: Verdict, *rows: Mapping[ErrorCode, Verdict]) -> VerdictTable:
    merged = {int(code): verdict for part in (_SUCCESS, *rows) for code, verdict in part.items()}
    return VerdictTable(request, MappingProxyType(merged), other)


# This request is the look-up itself, so a lost coordinator has no row: its codes are retriable.
FIND_COORDINATOR: Final = _table(
    "FindCoordinator",
    _UNEXPECTED,
    {
        _C.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _FATAL,
        _C.GROUP_AUTHORIZATION_FAILED: _ABORTABLE,
        _C.TRANSACTION_ABORTABLE: _ABORTABLE,
    },
)

INIT_PRODUCER_ID: Final = _table(
    "InitProducerId",
    _UNEXPECTED,
    _LOST_COORDINATOR,
    _OUTDATED_PRODUCER,
    {
        # Once the right is granted, the application may initialize this producer again.
        _C.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _ABORTABLE,
        _C.CLUSTER_AUTHORIZATION_FAILED: _ABORTABLE,
        _C.TRANSACTION_ABORTABLE: _ABORTABLE,
        _C.INVALID_TRANSACTION_TIMEOUT: Verdict(Action.FATAL, Form.TIMEOUT_TOO_LONG),
    },
)

# Without transactions there is no coordinator to look up and nothing to abort.
INIT_PRODUCER_ID_IDEMPOTENT: Final = _table(
    "InitProducerId",
    _UNEXPECTED,
    _OUTDATED_PRODUCER,
    {
        _C.COORDINATOR_NOT_AVAILABLE: _RETRY,
        _C.NOT_COORDINATOR: _RETRY,
        _C.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _ABORTABLE,
        _C.CLUSTER_AUTHORIZATION_FAILED: _ABORTABLE,
    },
)

# If a partition is denied, the broker attempts none of the others: all of them are collected.
ADD_PARTITIONS_TO_TXN: Final = _table(
    "AddPartitionsToTxn",
    _COLLECT,
    _LOST_COORDINATOR,
    _OUTDATED_PRODUCER,
    _BROKEN_TRANSACTION,
    {
        _C.UNKNOWN_PRODUCER_ID: _BUMP_OR_FATAL,
        _C.TRANSACTION_ABORTABLE: _ABORTABLE,
    },
)

ADD_OFFSETS_TO_TXN: Final = _table(
    "AddOffsetsToTxn",
    _UNEXPECTED,
    _LOST_COORDINATOR,
    _OUTDATED_PRODUCER,
    _BROKEN_TRANSACTION,
    {
        _C.UNKNOWN_PRODUCER_ID: _BUMP_OR_FATAL,
        _C.GROUP_AUTHORIZATION_FAILED: _ABORTABLE,
        _C.TRANSACTION_ABORTABLE: _ABORTABLE,
    },
)

TXN_OFFSET_COMMIT: Final = _table(
    "TxnOffsetCommit",
    _UNEXPECTED,
    _LOST_COORDINATOR,
    _OUTDATED_PRODUCER,
    {
        # Only here: a group coordinator that cannot write its log in time may be about to move.
        _C.REQUEST_TIMED_OUT: _LOOK_UP,
        _C.GROUP_AUTHORIZATION_FAILED: _ABORTABLE,
        _C.FENCED_INSTANCE_ID: _ABORTABLE,
        _C.TRANSACTION_ABORTABLE: _ABORTABLE,
        # The group goes on without this member, and its partitions belong to another one
        # (KIP-447).
        _C.UNKNOWN_MEMBER_ID: Verdict(Action.ABORTABLE, Form.COMMIT_FAILED),
        _C.ILLEGAL_GENERATION: Verdict(Action.ABORTABLE, Form.COMMIT_FAILED),
        _C.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _FATAL,
        _C.UNSUPPORTED_FOR_MESSAGE_FORMAT: _FATAL,
        # The cause is the sign of a lost transaction (`transaction_loss`).
        _C.INVALID_PRODUCER_ID_MAPPING: _CAUSED,
    },
)

END_TXN_COMMIT: Final = _table(
    "EndTxn(commit)",
    _UNEXPECTED,
    _LOST_COORDINATOR,
    _OUTDATED_PRODUCER,
    _BROKEN_TRANSACTION,
    {
        _C.UNKNOWN_PRODUCER_ID: _BUMP_OR_FATAL,
        _C.TRANSACTION_ABORTABLE: _ABORTABLE,
    },
)

END_TXN_ABORT: Final = _table(
    "EndTxn(abort)",
    _UNEXPECTED,
    _LOST_COORDINATOR,
    _OUTDATED_PRODUCER,
    _BROKEN_TRANSACTION,
    {
        # Abortable, as Java has it, would leave the producer in ABORTING_TRANSACTION for ever.
        _C.UNKNOWN_PRODUCER_ID: _FATAL,
        # An application that aborts upon this code would otherwise do so for ever (KAFKA-19250).
        _C.TRANSACTION_ABORTABLE: _CAUSED,
    },
)

# Errors of a batch, or of a record that never reached one, that end the producer.
FATAL_PRODUCE_ERRORS: Final = (
    ClusterAuthorizationError,
    TransactionalIdAuthorizationError,
    ProducerFencedError,
    UnsupportedVersionError,
    InvalidPidMappingError,
)

# Errors after which the transaction cannot be completed. They are raised as
# TransactionAbortableError, so that no caller repeats the record alone and writes it twice
# (KIP-1050).
ABORTABLE_AFTER_RETRIES: Final = (RetriableError, InvalidTxnStateError)
