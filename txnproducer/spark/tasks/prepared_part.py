"""A task of atomicity "prepared". It writes a transaction of its own, and leaves it open.

Why it exists: the driver decides about all parts of a batch at once, when each of them is written.
Until then a part can be aborted, and after that it can be ended by its lease alone.

Owns: the task's side of the protocol. Must not know: the decision, the driver, other parts.

Rules (beside those of `participant.py`, whose claim keeps every later attempt out):
* The part's entry of the ledger goes into the part's own transaction, before the decision. It
  alone shows later whether that transaction was committed, also when its id has moved on. As a
  record it is written beside the rows; an offset takes a producer that resumes the transaction.
* The lease that the task gives back is for the end alone: nobody can write into the part any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from txnproducer.lease import TransactionLease, TransactionParticipant, TransactionReceipt
from txnproducer.producer import TransactionalProducer
from txnproducer.spark.ledger.entries import LedgerEntry
from txnproducer.spark.ledger.named_runs import write_part
from txnproducer.spark.ledger.producers import closing, config_for
from txnproducer.spark.ledger.slots import Content, Slot
from txnproducer.spark.ledger.store import Ledger
from txnproducer.spark.reports import OnEvent
from txnproducer.spark.rows.arrow_rows import ArrowRows
from txnproducer.spark.rows.schema import RowReader
from txnproducer.spark.tasks.participant import Part, ParticipantWriting
from txnproducer.spark.tasks.task_rows import TaskRows


@dataclass(frozen=True)
class PreparedOrder:
    """The driver's order to the tasks of one pass over the frame.

    Attributes:
        leases: by slot; a partition whose slot has none writes nothing. None to only read the
            rows.
        writers: how many partitions write the batch.
        decision: the number of the decision to come; 0 if the part's own commit decides.
        slots: of the partitions, where the driver has matched them; see `slots.py`.
        seeks_cause: see `ParticipantOrder`.
    """

    leases: Mapping[int, TransactionLease] | None = None
    writers: int = 0
    decision: int = 0
    slots: Mapping[int, Slot] = field(default_factory=dict)
    seeks_cause: bool = False


@dataclass(frozen=True)
class PreparedTask:
    """The work of a task. See `frames.Work`.

    Attributes:
        ledger: of the sink.
        settings: of the producer, by Java's names.
        reader: turns rows into records.
        batch_id: of the batch.
        query_id: of the query that the batch belongs to.
        on_replay_mismatch: see `SinkSettings`.
        on_event: called with the task's events, in the task's process.
        run_id: see `LedgerBatch`.
    """

    ledger: Ledger
    # Not in the repr: they may hold a password.
    settings: Mapping[str, Any] = field(repr=False)
    reader: RowReader
    batch_id: int
    query_id: str
    on_replay_mismatch: str
    on_event: OnEvent | None = None
    run_id: str | None = None

    def __call__(
        self, order: PreparedOrder, partition: int, batches: Iterable[Any]
    ) -> Part | Content:
        """Write a part and leave it open, or read it and return rows and digest."""
        rows = TaskRows(ArrowRows(batches, self.reader), self.batch_id, partition, self.on_event)
        if order.leases is None:
            rows.read()
            return rows.content
        slot = order.slots.get(partition) or Slot(partition)
        lease = order.leases.get(slot.number)
        if lease is None:
            # Committed by an earlier decision, and compared by the driver before this pass.
            return Part(None, failure="", recovery="resume", **rows.measured)
        return _PreparedWriting(self, order, slot, lease, rows).run(None)


class _PreparedWriting(ParticipantWriting):
    """The work of one task that writes a prepared part."""

    def __init__(
        self,
        task: PreparedTask,
        order: PreparedOrder,
        slot: Slot,
        lease: TransactionLease,
        rows: TaskRows,
    ) -> None:
        super().__init__(task.settings, lease, 0, rows, seeks_cause=order.seeks_cause)
        self._task = task
        self._order = order
        self._slot = slot

    def write(self, writer: TransactionParticipant) -> TransactionReceipt:
        """See `TaskSteps`."""
        receipt = super().write(writer)
        with self._rows.timed("ledger"):
            self._lease = self._prepare()
        return receipt

    def _write_own(self, writer: TransactionParticipant) -> int:
        task, rows = self._task, self._rows
        # The driver chose the slot by the rows that it has read: they must be these.
        name = task.batch_id if task.run_id is None else task.run_id
        self._slot.check(name, rows.partition, rows.content, task.on_replay_mismatch)
        if task.ledger.records_topic is None:
            return 0
        with rows.timed("ledger"):
            write_part(task.ledger, writer, self._slot.number, self._entry())
        return 1

    def _entry(self) -> LedgerEntry:
        task, order = self._task, self._order
        content = self._rows.content
        return LedgerEntry(
            task.batch_id,
            task.query_id,
            order.writers,
            *content,
            decision=order.decision,
            run_id=task.run_id,
        )

    def _prepare(self) -> TransactionLease:
        """Return the lease to end the part by, with the ledger's entry in the part."""
        task = self._task
        # Without claims: the receipt shows that all is written, and there is nothing to adopt.
        lease = replace(self._lease, claims=())
        if task.ledger.records_topic is not None:
            return replace(lease, is_started=True)
        lease = replace(lease, is_started=self._rows.count > 0)
        config = config_for(task.settings, lease.transactional_id)
        with closing(TransactionalProducer.resume_from_config(lease, config)) as producer:
            task.ledger.write(producer, self._slot.number, self._entry())
            return producer.lease(claims=0)

    def _written(self, receipt: TransactionReceipt) -> Part:
        measured = self._rows.measured
        return Part(receipt, failure="", recovery="resume", lease=self._lease, **measured)
