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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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
from txnproducer.spark.digest import Digest
from txnproducer.spark.errors import SinkError
from txnproducer.spark.partition_writer import OnEvent
from txnproducer.spark.placing import Placed
from txnproducer.spark.schema import RowReader

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
    """

    receipt: TransactionReceipt | None
    rows: int
    size_bytes: int
    digest: str
    failure: str
    recovery: Recovery
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class ParticipantTask:
    """Writes a part of a batch, as Spark's `mapPartitionsWithIndex` calls it.

    Attributes:
        lease: of the transaction.
        settings: of the producer, by Java's names.
        reader: turns rows into records.
        is_placed: whether rows come with the Kafka partition that each belongs to.
        batch_id: of the batch, for `on_event`.
        on_event: told what happens, in the task's process.
    """

    lease: TransactionLease
    settings: Mapping[str, str]
    reader: RowReader
    is_placed: bool
    batch_id: int
    on_event: OnEvent | None = None

    def __call__(self, partition: int, rows: Iterable[Any]) -> Iterator[Part]:
        """Write a part, and tell how that went."""
        yield _Writing(self, partition).run(rows)

    def tell(self, name: str, partition: int, rows: int) -> None:
        """Tell the hook of an event."""
        if self.on_event is not None:
            info = {"batch_id": self.batch_id, "partition": partition, "rows": rows}
            self.on_event(name, info)


class _Writing:
    """One task's work."""

    def __init__(self, task: ParticipantTask, partition: int) -> None:
        self._task = task
        self._partition = partition
        self._digest = Digest()
        self._seconds: dict[str, float] = {}

    def run(self, rows: Iterable[Any]) -> Part:
        task = self._task
        try:
            _refuse_later_attempts()
            task.tell("task_before_claim", self._partition, 0)
            participant = self._timed("claim", self._join)
        except KafkaError as error:
            return self._failed(error)
        try:
            self._timed("write", lambda: self._send(participant, rows))
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
        lease = self._task.lease
        settings = {**self._task.settings, "transactional.id": lease.transactional_id}
        config = ProducerConfig.from_properties(settings)
        return TransactionParticipant.from_config(lease, self._partition, config)

    def _send(self, participant: TransactionParticipant, rows: Iterable[Any]) -> None:
        own, digest = self._partition, self._digest
        if self._task.is_placed:
            rows = _own_rows(own, rows)
        for topic, partition, key, value, headers in self._task.reader.records(rows):
            digest.add(topic, partition, key, value, headers)
            participant.send(topic, value, key, headers, own)

    def _timed(self, phase: str, action: Callable[[], Any]) -> Any:
        began = time.monotonic()
        try:
            return action()
        finally:
            self._seconds[phase] = time.monotonic() - began

    def _failed(self, error: KafkaError) -> Part:
        text = f"partition {self._partition}: {type(error).__name__}: {error}"
        return self._part(None, text, "fix" if _is_users(error) else error.recovery)

    def _part(self, receipt: TransactionReceipt | None, failure: str, recovery: Recovery) -> Part:
        digest, seconds = self._digest, self._seconds
        rows, size_bytes, total = digest.count, digest.size_bytes, digest.hex()
        return Part(receipt, rows, size_bytes, total, failure, recovery, seconds)


def _own_rows(own: int, rows: Iterable[Placed]) -> Iterator[Any]:
    for place, row in rows:
        if place != own:
            raise SinkError(
                f"a row for partition {place} is in task {own}: rows were shuffled otherwise than"
                " they were to be"
            )
        yield row


def _is_users(error: BaseException | None) -> bool:
    """Tell whether another run would fail alike: for a record's own error, whatever followed."""
    while error is not None:
        if isinstance(error, _OF_THE_USER):
            return True
        error = error.__cause__
    return False


def _refuse_later_attempts() -> None:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        raise KafkaError(
            f"this is attempt {context.attemptNumber()} of the task: an earlier one may have"
            " written under its claim (why that failed is in Spark's log)",
            recovery="abort",
        )
