"""What a task does where a whole batch is one transaction: it takes its claim and writes.

Owns: the task's side of atomicity "batch". Must not know: the transaction's end, other tasks.

Rules:
* The claim comes first, also for a task without rows: whoever is not the one that the lease
  expects writes nothing. Spark runs work again without telling, also while its first run sleeps.
* A task returns why it could not write, and does not raise it: Spark would run it again, in vain,
  since an attempt that is not the first has no claim. What the frame itself raises passes through.
* The part is complete before its receipt is: nothing can fail behind the last acknowledgement but
  the way back to the driver.
* A Kafka partition has one writer: task i writes partition i, and refuses a row that is not its.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

_OF_THE_USER = (
    InvalidConfigurationError,
    InvalidRecordError,
    RecordTooLargeError,
    SerializationError,
    SinkError,
)


@dataclass(frozen=True)
class Part:
    """What a task wrote of the batch.

    Attributes:
        receipt: of all of it; None if it could not be written.
        rows: how many.
        size_bytes: of keys and values.
        digest: of the rows.
        failure: why it could not be written, for people; empty if it was.
        recovery: what can be done about that, as of `KafkaError`.
        seconds: by phase: claim, write, receipt.
        is_lost: whether it failed because the transaction is somebody else's now, or timed out.
    """

    receipt: TransactionReceipt | None
    rows: int
    size_bytes: int
    digest: str
    failure: str
    recovery: Recovery
    seconds: Mapping[str, float]
    is_lost: bool = False


@dataclass(frozen=True)
class ParticipantOrder:
    """What a run of the batch tells its tasks.

    Attributes:
        lease: of the transaction; None: only read the rows, for a batch that is committed.
        seeks_cause: whether a later attempt, which may not write, reads its rows all the same:
            what failed the first attempt in the frame itself fails this one too, and so is told.
    """

    lease: TransactionLease | None
    seeks_cause: bool = False


@dataclass(frozen=True)
class ParticipantTask:
    """Writes a part of a batch, of Arrow's batches; see `frames.Work`.

    Attributes:
        settings: of the producer, by Java's names.
        reader: turns rows into records.
        places: what the rows of each task have for a place; empty if they have none.
        batch_id: of the batch, for `on_event`.
        on_event: told what happens, in the task's process.
    """

    settings: Mapping[str, Any] = field(repr=False)
    reader: RowReader
    places: tuple[int, ...]
    batch_id: int
    on_event: OnEvent | None = None

    def __call__(self, order: ParticipantOrder, partition: int, batches: Iterable[Any]) -> Part:
        """Write a part into the leased transaction, or only read it, and tell how that went."""
        if self.places:
            batches = own_batches(partition, self.places, batches)
        rows = ArrowRows(batches, self.reader)
        own = TaskRows(rows, self.batch_id, partition, self.on_event)
        if order.lease is None:
            own.read()
            return Part(None, failure="", recovery="resume", **own.measured)
        return _Writing(self, order, order.lease, partition, own).run()


class _Writing:
    """One task's work."""

    def __init__(
        self,
        task: ParticipantTask,
        order: ParticipantOrder,
        lease: TransactionLease,
        partition: int,
        rows: TaskRows,
    ) -> None:
        self._task = task
        self._order = order
        self._lease = lease
        self._partition = partition
        self._rows = rows

    def run(self) -> Part:
        rows = self._rows
        try:
            self._refuse_later_attempts()
            rows.tell("task_before_claim", 0)
            with rows.timed("claim"):
                participant = self._join()
        except KafkaError as error:
            return self._failed(error)
        with closing(participant):
            try:
                receipt = self._write(participant)
            except KafkaError as error:
                return self._failed(error)
        rows.tell("task_after_receipt")
        return Part(receipt, failure="", recovery="resume", **rows.measured)

    def _write(self, participant: TransactionParticipant) -> TransactionReceipt:
        rows = self._rows
        with rows.timed("write"):
            rows.send_to(participant, self._partition)
        rows.tell("task_before_receipt")
        with rows.timed("receipt"):
            receipt = participant.receipt()
        if receipt.record_count != rows.count:
            raise IllegalStateError(
                f"{rows.count} rows were sent, and {receipt.record_count} records acknowledged"
            )
        return receipt

    def _join(self) -> TransactionParticipant:
        config = config_for(self._task.settings, self._lease.transactional_id)
        return TransactionParticipant.from_config(self._lease, self._partition, config)

    def _failed(self, error: KafkaError) -> Part:
        text = f"partition {self._partition}: {type(error).__name__}: {error}"
        recovery: Recovery = "fix" if _is_users(error) else error.recovery
        is_lost = sign_of_loss(error) is not None
        return Part(None, failure=text, recovery=recovery, is_lost=is_lost, **self._rows.measured)

    def _refuse_later_attempts(self) -> None:
        attempt = attempt_number()
        if attempt == 0:
            return
        if self._order.seeks_cause:
            self._rows.source.read()
        raise KafkaError(
            f"this is attempt {attempt} of the task: an earlier one may have written under its"
            " claim (why that failed is in Spark's log)",
            recovery="abort",
        )


def _is_users(error: BaseException | None) -> bool:
    """Tell whether another run would fail alike: for a record's own error, whatever followed."""
    while error is not None:
        if isinstance(error, _OF_THE_USER):
            return True
        error = error.__cause__
    return False
