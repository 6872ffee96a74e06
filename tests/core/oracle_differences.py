"""Where this producer differs from the Java client on purpose: every outcome, with its reason.

Each entry names the tables of `tests/data/handler_oracle.json`, the outcomes (by the codes, or by
what the Java client was seen to do), and this package's own values. The comparison fails on a
difference that is not here, and on one that is here and does not occur. `docs/
oracle-differences.md` is generated from this list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from txnproducer._core.transactions.verdicts import FATAL_PRODUCE_ERRORS
from txnproducer.errors import ErrorCode, class_for_code


@dataclass(frozen=True)
class SameAs:
    """A value: that of another field of the outcome."""

    field: str


@dataclass(frozen=True)
class CausedByItsLike:
    """A value: the error that the outcome has in a field, caused by another one of its class."""

    field: str


@dataclass(frozen=True, eq=False)
class Difference:
    """One difference.

    Attributes:
        title: what is different, in a few words.
        tables: the tables it holds for, without the mode: then in all modes; or with it.
        values: the fields that differ and what they are here.
        reason: why.
        codes: the codes; empty for all.
        where: only outcomes in which the Java client was seen to have these values.
    """

    title: str
    tables: tuple[str, ...]
    values: Mapping[str, Any]
    reason: str
    codes: tuple[str, ...] = ()
    where: Mapping[str, Any] = field(default_factory=dict)

    def covers(self, table_name: str, code: str, outcome: Mapping[str, Any]) -> bool:
        """Return whether an outcome of the Java client is one that differs here."""
        point, _, _ = table_name.rpartition("/")
        return (
            (point in self.tables or table_name in self.tables)
            and (not self.codes or code in self.codes)
            and all(outcome.get(name) == value for name, value in self.where.items())
        )


def _error(kind: str, cause: str | None = None) -> dict[str, str | None]:
    return {"type": kind, "cause": cause}


_PRODUCE = "Produce(1 record, logStartOffset=0, first batch,{})"
_MAY_BE_WRITTEN = (
    "What went wrong in the broker may have gone wrong after it had written the batch. With its"
    " numbers used again a later record could be taken for it, acknowledged and not written."
)
_TOO_OLD = _MAY_BE_WRITTEN + (
    " A cluster that can raise no epoch leaves no other way out than a new producer."
)
_IN_DOUBT_FOR_GOOD = {
    "next_seq": 1,
    "settled_state": "FATAL_ERROR",
    "settled_last_error": _error("KafkaError"),
}

_TOO_LARGE = _error("RecordTooLargeError", "RecordTooLargeError")
_TOO_LARGE_CODES = ("MESSAGE_TOO_LARGE", "RECORD_LIST_TOO_LARGE")
_FIX_AND_ABORT = (
    "The record's own error says that the record has to be fixed, the transaction's that it has to"
    " be aborted: two errors, the one the cause of the other. In Java it is one error, from which"
    " an application cannot see that the same record fails again."
)

_TO_BE_FIXED_CODES = tuple(
    code.name
    for code in ErrorCode
    if code
    and class_for_code(code).recovery == "fix"
    and not issubclass(class_for_code(code), FATAL_PRODUCE_ERRORS)
    and code.name not in _TOO_LARGE_CODES
)


# The words for an end, its name in the tables, and the state until it is answered.
_COMMIT = ("a commit", "commit", "COMMITTING_TRANSACTION")
_ABORT = ("an abort", "abort", "ABORTING_TRANSACTION")
_V1 = ("TV1", "TV1nb")


def _caused_by_their_likes(*fields: str) -> dict[str, CausedByItsLike]:
    return {field: CausedByItsLike(field) for field in fields}


DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        title="A failed initialization can be tried again",
        tables=("FindCoordinator(txn)", "InitProducerId(init)"),
        where={"settled_state": "ABORTABLE_ERROR"},
        values={"settled_state": "UNINITIALIZED", "settled_last_error": None},
        reason=(
            "There is no transaction that could be aborted. In Java initTransactions() then raises"
            " on every call, and an abort leads to a producer that is ready and has no identity,"
            " so that its first send is an illegal state."
        ),
    ),
    Difference(
        title="An abort that is done does not fail because of the next epoch",
        tables=("InitProducerId(bump)",),
        where={"settled_result": "failed"},
        values={
            "result": "done",
            "result_error": None,
            "settled_result": "done",
            "settled_result_error": None,
        },
        reason=(
            "EndTxn was answered: the transaction is aborted, with or without a new epoch. The"
            " error is kept, and the next begin_transaction() raises it."
        ),
    ),
    Difference(
        title="An abort by an unknown producer id ends the producer",
        tables=("EndTxn(abort)/TV1", "EndTxn(abort)/TV2"),
        codes=("UNKNOWN_PRODUCER_ID",),
        values={
            "state": "FATAL_ERROR",
            "last_error": _error("UnknownProducerIdError"),
            "settled_state": "FATAL_ERROR",
            "settled_last_error": _error("UnknownProducerIdError"),
        },
        reason=(
            "Where it can raise the epoch, Java's producer stays in ABORTING_TRANSACTION with"
            " nothing to send: every later call is an illegal state, and nothing says that a new"
            " producer is needed."
        ),
    ),
    *(
        Difference(
            title=f"With {version} {call} asks once more before it believes a refusal from memory",
            tables=tuple(f"EndTxn({end})/{mode}" for mode in modes),
            codes=("PRODUCER_FENCED", "INVALID_PRODUCER_ID_MAPPING", *more),
            values={
                "state": state,
                "last_error": None,
                "result": "pending",
                "result_error": None,
                "next_request": "FindCoordinator(txn)",
                "settled_state": state,
                "settled_last_error": None,
                "settled_result": "pending",
                "settled_result_error": None,
            },
            reason=(
                "A broker that does not know yet that it is the coordinator no more gives this"
                " answer to a sound producer, if its log has refused to complete the previous"
                " transaction, or if the present one, or its epoch, has begun at the next"
                " coordinator. That one repeats the answer only if it is true."
            ),
        )
        for version, modes, call, end, state, more in (
            ("v1", _V1, *_COMMIT, ("INVALID_TXN_STATE", "INVALID_PRODUCER_EPOCH")),
            ("v1", _V1, *_ABORT, ("INVALID_TXN_STATE", "INVALID_PRODUCER_EPOCH")),
            ("v2", ("TV2",), *_COMMIT, ("INVALID_TXN_STATE",)),
            ("v2", ("TV2",), *_ABORT, ()),
        )
    ),
    Difference(
        title="A commit that broke the coordinator may have happened",
        tables=("EndTxn(commit)",),
        codes=("UNKNOWN_SERVER_ERROR",),
        values={
            "result_error": _error("CommitOutcomeUnknownError", "KafkaError"),
            "settled_result_error": _error("CommitOutcomeUnknownError", "KafkaError"),
        },
        reason=(
            "What went wrong in the coordinator may have gone wrong after it had written the"
            " commit. An application that takes the error for a refusal, and writes again, writes"
            " twice."
        ),
    ),
    Difference(
        title="No call waits for a producer that has failed",
        tables=("FindCoordinator(group)",),
        where={"settled_state": "FATAL_ERROR"},
        values={
            "result": "failed",
            "result_error": SameAs("last_error"),
            "settled_result": "failed",
            "settled_result_error": SameAs("settled_last_error"),
        },
        reason=(
            "The offsets can't be sent any more, and the error is known. Java's call waits until"
            " its time is up, and then tells of the time."
        ),
    ),
    Difference(
        title="A producer without transactions has no coordinator to look for",
        tables=("InitProducerId(idempotent)",),
        codes=("COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
        values={"next_request": "InitProducerId"},
        reason=(
            "Java sends a FindCoordinator whose key is null, for a producer that any broker can"
            " give an id to."
        ),
    ),
    Difference(
        title="A producer without transactions has nothing to abort",
        tables=("InitProducerId(idempotent)",),
        codes=("TRANSACTION_ABORTABLE",),
        values={
            "state": "FATAL_ERROR",
            "last_error": _error("KafkaError"),
            "settled_state": "FATAL_ERROR",
            "settled_last_error": _error("KafkaError"),
        },
        reason=(
            "Java takes it for an abortable error; from then on every step of its I/O thread"
            " raises an illegal state, and no record is sent or fails before its time is up."
        ),
    ),
    Difference(
        title="A batch that broke the broker keeps its numbers",
        tables=tuple(
            f"{_PRODUCE.format(when)}/{mode}"
            for when in ("inTxn", "committing", "aborting")
            for mode in ("TV1", "TV2")
        ),
        codes=("UNKNOWN_SERVER_ERROR",),
        values={"next_seq": 1},
        reason=_MAY_BE_WRITTEN,
    ),
    Difference(
        title="A batch that broke a broker which can raise no epoch ends the producer",
        tables=(f"{_PRODUCE.format('inTxn')}/TV1nb",),
        codes=("UNKNOWN_SERVER_ERROR",),
        values=_IN_DOUBT_FOR_GOOD,
        reason=_TOO_OLD,
    ),
    Difference(
        title="The same while a commit waits",
        tables=(f"{_PRODUCE.format('committing')}/TV1nb",),
        codes=("UNKNOWN_SERVER_ERROR",),
        values={**_IN_DOUBT_FOR_GOOD, "settled_result_error": _error("KafkaError")},
        reason=_TOO_OLD,
    ),
    Difference(
        title="The same while an abort waits",
        tables=(f"{_PRODUCE.format('aborting')}/TV1nb",),
        codes=("UNKNOWN_SERVER_ERROR",),
        values={
            **_IN_DOUBT_FOR_GOOD,
            "next_request": None,
            "settled_result": "failed",
            "settled_result_error": _error("KafkaError"),
        },
        reason=_TOO_OLD,
    ),
    Difference(
        title="A record that is too large has one class of error",
        tables=tuple(_PRODUCE.format(when) for when in ("inTxn", "committing", "aborting")),
        codes=("RECORD_LIST_TOO_LARGE",),
        values={"future_error": _error("RecordTooLargeError")},
        reason=(
            "Whichever limit of the broker it is above, the way out is the same. In Java it is a"
            " RecordBatchTooLargeException where the segment is too small for it."
        ),
    ),
    Difference(
        title="A record that is too large is to be fixed, and its transaction to be aborted",
        tables=tuple(f"{_PRODUCE.format('inTxn')}/{mode}" for mode in ("TV1", "TV1nb", "TV2")),
        codes=_TOO_LARGE_CODES,
        values={"last_error": _TOO_LARGE, "settled_last_error": _TOO_LARGE},
        reason=_FIX_AND_ABORT,
    ),
    Difference(
        title="Likewise while a commit waits",
        tables=tuple(
            f"{_PRODUCE.format('committing')}/{mode}" for mode in ("TV1", "TV1nb", "TV2")
        ),
        codes=_TOO_LARGE_CODES,
        values={
            "last_error": _TOO_LARGE,
            "settled_last_error": _TOO_LARGE,
            "settled_result_error": _TOO_LARGE,
        },
        reason=_FIX_AND_ABORT,
    ),
    Difference(
        title="A record that the broker refuses is to be fixed, and its transaction to be aborted",
        tables=tuple(f"{_PRODUCE.format('inTxn')}/{mode}" for mode in ("TV1", "TV1nb", "TV2")),
        codes=_TO_BE_FIXED_CODES,
        values=_caused_by_their_likes("last_error", "settled_last_error"),
        reason=_FIX_AND_ABORT,
    ),
    Difference(
        title="Likewise while a commit waits for it",
        tables=tuple(
            f"{_PRODUCE.format('committing')}/{mode}" for mode in ("TV1", "TV1nb", "TV2")
        ),
        codes=_TO_BE_FIXED_CODES,
        values=_caused_by_their_likes("last_error", "settled_last_error", "settled_result_error"),
        reason=_FIX_AND_ABORT,
    ),
    Difference(
        title="A transaction time-out that is too long has its own class",
        tables=("InitProducerId(init)",),
        codes=("INVALID_TRANSACTION_TIMEOUT",),
        values=dict.fromkeys(
            ("last_error", "result_error", "settled_last_error", "settled_result_error"),
            _error("InvalidTxnTimeoutError"),
        ),
        reason=(
            "A setting has to be changed, and the error names it with its value. In Java it is a"
            " KafkaException whose text has the code."
        ),
    ),
    Difference(
        title="The same where the epoch is raised",
        tables=("InitProducerId(bump)",),
        codes=("INVALID_TRANSACTION_TIMEOUT",),
        values=dict.fromkeys(
            ("last_error", "settled_last_error"), _error("InvalidTxnTimeoutError")
        ),
        reason="As above: the brokers' limit may have been lowered meanwhile.",
    ),
    Difference(
        title="Offsets refused because the producer id is unknown keep that refusal as the cause",
        tables=("TxnOffsetCommit",),
        codes=("INVALID_PRODUCER_ID_MAPPING",),
        values=dict.fromkeys(
            ("last_error", "result_error", "settled_last_error", "settled_result_error"),
            _error("KafkaError", "InvalidPidMappingError"),
        ),
        reason=(
            "The code is a sign that the transaction is lost. By the cause the producer finds it,"
            " asks the coordinator, and tells a time-out from a newer producer. In Java the error"
            " has only a text, which says neither."
        ),
    ),
)
