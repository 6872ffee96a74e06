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

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from txnproducer._core.transactions.transaction_loss import sign_of_loss
from txnproducer.config import ProducerConfig
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
from txnproducer.spark.reports import OnEvent, tell
from txnproducer.spark.rows.arrow_rows import ArrowRows
from txnproducer.spark.rows.placing import own_batches
from txnproducer.spark.rows.record_sources import RecordSource
from txnproducer.spark.rows.whole_input import check_input_is_whole
from txnproducer.spark.session import attempt_number

_CLOSE_S = 30.0
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
        topic: of all rows.
        include_headers: whether the column `headers` is written.
        places: what the rows of each task have for a place; empty if they have none.
        batch_id: of the batch, for `on_event`.
        on_event: told what happens, in the task's process.
    """

    settings: Mapping[str, Any] = field(repr=False)
    topic: str | None
    include_headers: bool
    places: tuple[int, ...]
    batch_id: int
    on_event: OnEvent | None = None

    def __call__(self, order: ParticipantOrder, partition: int, batches: Iterable[Any]) -> Part:
        """Write a part into the leased transaction, or only read it, and tell how that went."""
        if self.places:
            batches = own_batches(partition, self.places, batches)
        rows = ArrowRows(batches, self.topic, include_headers=self.include_headers)
        if order.lease is None:
            rows.read()
            check_input_is_whole()
            digest = rows.digest
            return Part(None, digest.count, digest.size_bytes, digest.hex(), "", "resume", {})
        return _Writing(self, order, order.lease, partition, rows).run()

    def tell(self, name: str, partition: int, rows: int) -> None:
        """Tell the hook of an event."""
        tell(self.on_event, name, self.batch_id, rows, partition)


class _Writing:
    """One task's work."""

    def __init__(
        self,
        task: ParticipantTask,
        order: ParticipantOrder,
        lease: TransactionLease,
        partition: int,
        rows: RecordSource,
    ) -> None:
        self._task = task
        self._order = order
        self._lease = lease
        self._partition = partition
        self._rows = rows
        self._digest = rows.digest
        self._seconds: dict[str, float] = {}

    def run(self) -> Part:
        task = self._task
        try:
            self._refuse_later_attempts()
            task.tell("task_before_claim", self._partition, 0)
            participant = self._timed("claim", self._join)
        except KafkaError as error:
            return self._failed(error)
        try:
            self._timed("write", lambda: self._send(participant))
            task.tell("task_before_receipt", self._partition, self._digest.count)
            receipt = self._timed("receipt", participant.receipt)
            if receipt.record_count != self._digest.count:
                raise IllegalStateError(
                    f"{self._digest.count} rows were sent, and {receipt.record_count} records"
                    " acknowledged"
                )
        except KafkaError as error:
            return self._failed(error)
        finally:
            participant.close(_CLOSE_S)
        task.tell("task_after_receipt", self._partition, self._digest.count)
        return self._part(receipt, "", "resume")

    def _join(self) -> TransactionParticipant:
        settings = {**self._task.settings, "transactional.id": self._lease.transactional_id}
        config = ProducerConfig.from_properties(settings)
        return TransactionParticipant.from_config(self._lease, self._partition, config)

    def _send(self, participant: TransactionParticipant) -> None:
        self._rows.send_to(participant, self._partition)
        check_input_is_whole()

    def _timed(self, phase: str, action: Callable[[], Any]) -> Any:
        began = time.monotonic()
        try:
            return action()
        finally:
            self._seconds[phase] = time.monotonic() - began

    def _failed(self, error: KafkaError) -> Part:
        text = f"partition {self._partition}: {type(error).__name__}: {error}"
        recovery: Recovery = "fix" if _is_users(error) else error.recovery
        return self._part(None, text, recovery, is_lost=sign_of_loss(error) is not None)

    def _part(
        self,
        receipt: TransactionReceipt | None,
        failure: str,
        recovery: Recovery,
        *,
        is_lost: bool = False,
    ) -> Part:
        digest, seconds = self._digest, self._seconds
        rows, size_bytes, total = digest.count, digest.size_bytes, digest.hex()
        return Part(receipt, rows, size_bytes, total, failure, recovery, seconds, is_lost)

    def _refuse_later_attempts(self) -> None:
        attempt = attempt_number()
        if attempt == 0:
            return
        if self._order.seeks_cause:
            self._rows.read()
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
