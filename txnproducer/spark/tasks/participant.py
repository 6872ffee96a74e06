"""A task of a whole batch. It takes its claim, and writes into the driver's transaction.

Owns: the task's side of atomicity "batch". Must not know: the transaction's end, other tasks.

Rules:
* The claim comes first, even for a task without rows. A process that the lease does not expect
  writes nothing. Spark runs work again without saying so, even while its first run sleeps.
* A task returns the reason why it could not write, and does not raise it. Spark would run a task
  that raises again, without success: only the first attempt has a claim. Errors of the frame
  itself are raised.
* A part is complete before its receipt is made: after the last acknowledgement, only the way back
  to the driver can fail.
* A Kafka partition has one writer: task i writes partition i, and refuses a row of another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from txnproducer._core.transactions.transaction_loss import sign_of_loss
from txnproducer.errors import (
    IllegalStateError,
    InvalidConfigurationError,
    InvalidRecordError,
    KafkaError,
    RecordTooLargeError,
    Recovery,
    SerializationError,
)
from txnproducer.lease import TransactionLease, TransactionParticipant, TransactionReceipt
from txnproducer.spark.errors import SinkError
from txnproducer.spark.ledger.producers import closing, config_for
from txnproducer.spark.reports import OnEvent
from txnproducer.spark.rows.arrow_rows import ArrowRows
from txnproducer.spark.rows.placing import own_batches
from txnproducer.spark.rows.schema import RowReader
from txnproducer.spark.session import attempt_number
from txnproducer.spark.tasks.task_rows import TaskRows
from txnproducer.spark.tasks.task_steps import take_steps

# Another attempt would send the same rows, and fail in the same way.
_OF_THE_USER = (
    InvalidConfigurationError,
    InvalidRecordError,
    RecordTooLargeError,
    SerializationError,
    SinkError,
)


@dataclass(frozen=True)
class Part:
    """A task's part of the batch.

    Attributes:
        receipt: of all its records; None if it could not be written.
        rows: how many.
        size_bytes: of keys and values.
        digest: of the rows.
        failure: the reason why it could not be written, for people; empty if it was.
        recovery: from that failure; see `KafkaError`.
        seconds: by phase: claim, write, receipt.
        is_lost: whether it failed because another driver has the transaction, or it timed out.
        lease: by which a part that is a transaction of its own is ended; None in a whole batch.
    """

    receipt: TransactionReceipt | None
    rows: int
    size_bytes: int
    digest: str
    failure: str
    recovery: Recovery
    seconds: Mapping[str, float]
    is_lost: bool = False
    lease: TransactionLease | None = None


def is_failed(report: object) -> bool:
    """Return whether a task's report is that of a part which could not be written."""
    return isinstance(report, Part) and bool(report.failure)


@dataclass(frozen=True)
class ParticipantOrder:
    """The driver's order to the tasks of an attempt at the batch.

    Attributes:
        lease: of the transaction; None to only read the rows of a batch that is committed.
        seeks_cause: whether a later attempt of a task, which may not write, reads its rows
            nevertheless. An error of the frame itself fails it then like the first attempt, and
            reaches the user.
    """

    lease: TransactionLease | None
    seeks_cause: bool = False


@dataclass(frozen=True)
class ParticipantTask:
    """The work of a task of a whole batch. See `frames.Work`.

    Attributes:
        settings: of the producer, by Java's names.
        reader: turns rows into records.
        places: see `placing.Placed`.
        batch_id: of the batch, for `on_event`.
        on_event: called with the task's events, in the task's process.
    """

    # Not in the repr: they may hold a password.
    settings: Mapping[str, Any] = field(repr=False)
    reader: RowReader
    places: tuple[int, ...]
    batch_id: int
    on_event: OnEvent | None = None

    def __call__(self, order: ParticipantOrder, partition: int, batches: Iterable[Any]) -> Part:
        """Write a part into the leased transaction, or only read it, and return the result."""
        if self.places:
            # Checked in the task: two writers of one Kafka partition would break the order of
            # keys.
            batches = own_batches(partition, self.places, batches)
        rows = ArrowRows(batches, self.reader)
        own = TaskRows(rows, self.batch_id, partition, self.on_event)
        # The batch is committed already, and the driver compares it with these rows.
        if order.lease is None:
            own.read()
            return Part(None, failure="", recovery="resume", **own.measured)
        writing = ParticipantWriting(
            self.settings, order.lease, partition, own, seeks_cause=order.seeks_cause
        )
        return writing.run(partition)


class ParticipantWriting:
    """The work of one task that writes into a transaction which the driver holds.

    Args:
        settings: of the producer, by Java's names.
        lease: of the transaction.
        claim: of this task.
        rows: of the task.
        seeks_cause: see `ParticipantOrder`.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        lease: TransactionLease,
        claim: int,
        rows: TaskRows,
        *,
        seeks_cause: bool,
    ) -> None:
        self._settings = settings
        self._lease = lease
        self._claim = claim
        self._rows = rows
        self._seeks_cause = seeks_cause

    def run(self, place: int | None) -> Part:
        """Write the rows, and return the part.

        Args:
            place: the partition of Kafka's for all rows; None: the column, key or load decide.
        """
        self._place = place
        rows = self._rows
        try:
            # Before the claim: only the first attempt has one, so the answer is known without the
            # cluster.
            self._refuse_later_attempts()
            rows.tell("task_before_claim", 0)
            receipt = take_steps(self)
        except KafkaError as error:
            return self._failed(error)
        # Not inside the `try`: an error of the hook must not be taken for a failed part.
        rows.tell("task_after_receipt")
        return self._written(receipt)

    def take(self) -> AbstractContextManager[TransactionParticipant]:
        """See `TaskSteps`."""
        with self._rows.timed("claim"):
            return closing(self._join())

    def replay(self) -> None:
        """Find nothing: the driver gives no lease for rows that are committed."""

    def write(self, writer: TransactionParticipant) -> TransactionReceipt:
        """See `TaskSteps`."""
        rows = self._rows
        with rows.timed("write"):
            rows.send_to(writer, self._place)
        own = self._write_own(writer)
        rows.tell("task_before_receipt")
        with rows.timed("receipt"):
            receipt = writer.receipt()
        # The last moment to notice a lost row: the driver commits what the receipts say.
        if receipt.record_count != rows.count + own:
            raise IllegalStateError(
                f"{rows.count} rows were sent, and {receipt.record_count} records acknowledged, "
                f"{own} of them of the ledger"
            )
        return receipt

    def _write_own(self, writer: TransactionParticipant) -> int:
        """Send records of the ledger's after the rows, and return how many."""
        del writer  # the driver writes the entry of a whole batch
        return 0

    def _join(self) -> TransactionParticipant:
        config = config_for(self._settings, self._lease.transactional_id)
        # Each task has a claim of its own, so a second process that writes the same part is
        # refused.
        return TransactionParticipant.from_config(self._lease, self._claim, config)

    def _written(self, receipt: TransactionReceipt) -> Part:
        return Part(receipt, failure="", recovery="resume", **self._rows.measured)

    def _failed(self, error: KafkaError) -> Part:
        # Returned and not raised: Spark would run the task again, and a later attempt has no
        # claim.
        text = f"partition {self._rows.partition}: {type(error).__name__}: {error}"
        recovery: Recovery = "fix" if _is_users(error) else error.recovery
        # Only then the driver has to find out whether another driver has taken the transaction, or
        # its time is up.
        is_lost = sign_of_loss(error) is not None
        return Part(None, failure=text, recovery=recovery, is_lost=is_lost, **self._rows.measured)

    def _refuse_later_attempts(self) -> None:
        attempt = attempt_number()
        if attempt == 0:
            return
        if self._seeks_cause:
            # Whether the input is whole does not matter: nothing is committed of it.
            self._rows.source.read()
        raise KafkaError(
            f"this is attempt {attempt} of the task: an earlier one may have written under its"
            " claim (why that failed is in Spark's log)",
            recovery="abort",
        )


def _is_users(error: BaseException | None) -> bool:
    """Return whether another attempt would fail alike, because a record itself is wrong."""
    # The error of the whole transaction has the record's own error as its cause.
    while error is not None:
        if isinstance(error, _OF_THE_USER):
            return True
        error = error.__cause__
    return False
