"""The cause of a lost transaction: the coordinator's time-out, or a newer producer of its id.

Why it exists: brokers answer both with the same codes (INVALID_PRODUCER_EPOCH to a Produce
request; PRODUCER_FENCED, INVALID_TXN_STATE or INVALID_PRODUCER_ID_MAPPING to the others), but the
two need different repairs: a longer time-out, or the end of one of two programs.
Owns: the table of evidence, the texts. Must not know: how the coordinator is asked.

The evidence is the coordinator's description of the id (DescribeTransactions, KIP-664). Its
time-out aborts the transaction under the next epoch, with transactions v1 and v2 alike. A newer
producer that found the transaction open has a still later epoch: the coordinator aborts that
transaction under the next epoch first, and for this moment only the transaction's age tells the
two apart. A newer producer that found nothing open has the next epoch, and then the state is not
the end of this transaction. With v2 a commit takes the next epoch too, so it may be this
producer's own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from txnproducer._core.transactions.commit_evidence import LAST_EPOCH
from txnproducer._protocol.messages import TransactionDescription
from txnproducer.errors import (
    ErrorCode,
    InvalidPidMappingError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortableError,
)
from txnproducer.records import ProducerIdAndEpoch

_TAKEN_OVER: Final = re.compile(r": a newer producer of this id(, epoch \d+,)? has taken over \(")


class Cause(Enum):
    """The cause of a loss."""

    TIMED_OUT = "the time-out"
    TAKEN_OVER = "a newer producer"
    FORGOTTEN = "the id has expired"
    UNCERTAIN = "not certain"


class Step(Enum):
    """The step from the transaction's epoch to the coordinator's."""

    NEXT = "the next one"
    LATER = "a later one, or another producer id"


class Evidence(NamedTuple):
    """A row of the table.

    Attributes:
        versions: of transactions, for which it holds.
        step: the coordinator's epoch.
        states: the coordinator's states of the id.
        younger: the cause if the transaction was open for less than its time-out.
        older: the cause if it was open for longer.
    """

    versions: tuple[int, ...]
    step: Step
    states: tuple[str, ...]
    younger: Cause
    older: Cause


_ABORTS: Final = ("PrepareAbort", "CompleteAbort")
_COMMITS: Final = ("PrepareCommit", "CompleteCommit")
_BEGINNINGS: Final = ("Empty", "Ongoing")
_OVER: Final = Cause.TAKEN_OVER

EVIDENCE: Final = (
    # Both the coordinator's time-out and a newer producer abort it under the next epoch.
    Evidence((1, 2), Step.NEXT, _ABORTS, _OVER, Cause.TIMED_OUT),
    # A newer producer that found nothing open has the next epoch itself.
    Evidence((1, 2), Step.NEXT, _BEGINNINGS, _OVER, _OVER),
    # Not for v2, where this producer's own commit takes the next epoch.
    Evidence((1,), Step.NEXT, _COMMITS, _OVER, _OVER),
    # Only a newer producer gets beyond the next epoch.
    Evidence((1, 2), Step.LATER, (*_BEGINNINGS, *_ABORTS, *_COMMITS), _OVER, _OVER),
)
"""The cause that the coordinator's state of the id proves; if no row fits, it proves none."""

# The answers of brokers to a producer that does not own the transaction any more.
_SIGNS: Final = (
    InvalidPidMappingError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    ProducerFencedError,
)
_TOLD_AS: Final = (*_SIGNS, TransactionAbortableError, KafkaError)

_WAY_OUT: Final = {
    Cause.TIMED_OUT: "Make transactions shorter, or raise transaction_timeout_ms",
    Cause.TAKEN_OVER: (
        "If nobody took over on purpose, look for a second program with this transactional_id"
    ),
    Cause.FORGOTTEN: "Make a new producer",
    Cause.UNCERTAIN: (
        "Look for a second program with this transactional_id, or raise transaction_timeout_ms"
    ),
}


def is_taken_over(error: BaseException) -> bool:
    """Return whether a producer's own error says for certain that a newer one has its id."""
    # The errors have the cause of a loss in their text alone. A likely cause has other words, and
    # so has a request of the producer's own that may have come late.
    return _TAKEN_OVER.search(str(error)) is not None


def sign_of_loss(error: BaseException | None) -> KafkaError | None:
    """Return the error in a chain of causes that shows a lost transaction, or None."""
    while error is not None:
        if isinstance(error, _SIGNS):
            return error
        error = error.__cause__
    return None


# Compared by identity: two losses with equal values are two questions.
@dataclass(slots=True, eq=False)
class TransactionLoss:
    """One loss, and the evidence of its cause.

    Attributes:
        producer: the identity that the transaction was written with.
        version: of its transactions, 1 or 2.
        age_ms: how long it was open when the loss was noticed; None if other processes wrote in it
            before, so that only the coordinator knows.
        timeout_ms: `transaction_timeout_ms`.
        noticed_ms: when the loss was noticed.
        is_open: whether a transaction was open; an end before may have succeeded.
        may_be_own: whether an InitProducerId of this producer has no answer, and may have arrived
            late: it cannot be told from a newer producer's.
        cause: by the evidence.
        epoch: the newer producer's; -1 if it is not known.
        is_explained: whether the coordinator was asked, or cannot be.
    """

    producer: ProducerIdAndEpoch
    version: int
    age_ms: int | None
    timeout_ms: int
    noticed_ms: int
    is_open: bool = True
    may_be_own: bool = False
    cause: Cause = Cause.UNCERTAIN
    epoch: int = -1
    is_explained: bool = False

    def may_be_to_newer(self, *, has_aborted: bool) -> bool:
        """Return whether a newer producer has the id, or may have.

        It has not after the coordinator's time-out, nor if the coordinator has forgotten the id.

        Args:
            has_aborted: whether the producer could abort the transaction all the same. Then only
                certain evidence counts.
        """
        if self.cause is Cause.TAKEN_OVER and not self.may_be_own:
            return True
        return not has_aborted and self.cause not in (Cause.TIMED_OUT, Cause.FORGOTTEN)

    def end_inquiry(self) -> None:
        """Note that nothing more will be learned from the coordinator."""
        self.is_explained = True

    def take(self, description: TransactionDescription) -> None:
        """Take in the coordinator's description of the id."""
        self.is_explained = True
        if description.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            self.cause = Cause.FORGOTTEN
        elif not description.error_code:
            self._judge(description)

    def _judge(self, description: TransactionDescription) -> None:
        step = self._step_to(description)
        for row in EVIDENCE:
            fits = self.version in row.versions and description.state in row.states
            if fits and step is row.step:
                self.cause = self._by_age(row)
                # An abort under the next epoch clears the way for a newer producer; the epoch of
                # that one is not known yet.
                is_its_own = step is Step.LATER or description.state not in _ABORTS
                self.epoch = description.producer_epoch if is_its_own else -1

    def _by_age(self, row: Evidence) -> Cause:
        if row.younger is row.older:
            return row.older
        if self.age_ms is None:
            return Cause.UNCERTAIN
        return row.older if self.age_ms >= self.timeout_ms else row.younger

    def _step_to(self, description: TransactionDescription) -> Step | None:
        producer_id, epoch = self.producer.producer_id, self.producer.producer_epoch
        if description.producer_id != producer_id:
            # With v2 the end of a transaction goes on under another producer id when the epochs
            # are used up.
            is_rotated = epoch == LAST_EPOCH and description.producer_epoch == 0
            return Step.NEXT if is_rotated and self.version == 2 else Step.LATER
        # The coordinator has not moved on from this transaction's epoch, so it proves nothing yet.
        if description.producer_epoch <= epoch:
            return None
        return Step.NEXT if description.producer_epoch == epoch + 1 else Step.LATER

    # --- in words -------------------------------------------------------------------------------

    def text(self, producer_name: str) -> str:
        """Return the loss and its likely cause, as the text of an error.

        Args:
            producer_name: how its log lines name it.
        """
        loss = "the transaction is lost" if self.is_open else "the producer cannot go on"
        return f"{loss}: {self._reason()} ({producer_name}). {_WAY_OUT[self.cause]}"

    def _reason(self) -> str:
        limit = f"transaction_timeout_ms={self.timeout_ms}"
        if self.cause is Cause.TIMED_OUT:
            return f"the coordinator aborted it after {self._seconds()} s ({limit})"
        if self.cause is Cause.FORGOTTEN:
            return (
                "the coordinator does not know this id any more; ids that are not used expire"
                " (transactional.id.expiration.ms of the brokers)"
            )
        newer = "a newer producer of this id"
        own = ", or a delayed request of this producer came in" if self.may_be_own else ""
        if self.cause is Cause.TAKEN_OVER:
            epoch = "" if self.epoch < 0 else f", epoch {self.epoch},"
            return f"{newer}{epoch} has taken over{own}"
        if not self.is_open:
            return f"{newer} has taken over, or a delayed request of this producer came in"
        if self.age_ms is None:
            return (
                f"the coordinator aborted it at its time-out ({limit}), or {newer} has taken over"
            )
        # Likely only: the coordinator looks for expired transactions every ten seconds by default.
        if self.age_ms >= self.timeout_ms:
            return (
                "most likely the coordinator aborted it at its time-out, since it was open for"
                f" {self._seconds()} s ({limit}); otherwise {newer} has taken over{own}"
            )
        return (
            f"most likely {newer} has taken over, or a delayed request of this producer came in;"
            f" a time-out is unlikely, since it was open for {self._seconds()} s ({limit})"
        )

    def _seconds(self) -> str:
        return f"{(self.age_ms or 0) / 1000:.0f}"

    def explain(self, error: KafkaError, producer_name: str) -> KafkaError:
        """Return a call's error with this text. An error without a sign of loss stays as it is."""
        # Subclasses say more than this text, so they keep their own.
        if sign_of_loss(error) is None or type(error) not in _TOLD_AS:
            return error
        explained = type(error)(self.text(producer_name), recovery=error.recovery)
        explained.__cause__ = error.__cause__
        return explained
