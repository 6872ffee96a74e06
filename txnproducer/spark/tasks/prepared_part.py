"""A task of atomicity "prepared". It writes a transaction of its own, and leaves it open.

Why it exists: the driver decides about all parts of a batch at once, when each of them is written.
Until then a part can be aborted, and after that it can be ended by its lease alone.

Owns: the task's side of the protocol. Must not know: the decision, the driver, other parts.

Rules: those of `participant.py`. The claim keeps every later attempt out, and with its receipt the
task has written all that it ever will.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from txnproducer.lease import TransactionLease, TransactionParticipant, TransactionReceipt
from txnproducer.spark.ledger.slots import Content, Slot
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
        slots: of the partitions, where the driver has matched them; see `slots.py`.
        seeks_cause: see `ParticipantOrder`.
    """

    leases: Mapping[int, TransactionLease] | None = None
    slots: Mapping[int, Slot] = field(default_factory=dict)
    seeks_cause: bool = False


@dataclass(frozen=True)
class PreparedTask:
    """The work of a task. See `frames.Work`.

    Attributes:
        settings: of the producer, by Java's names.
        reader: turns rows into records.
        batch_id: of the batch.
        on_replay_mismatch: see `SinkSettings`.
        on_event: called with the task's events, in the task's process.
    """

    # Not in the repr: they may hold a password.
    settings: Mapping[str, Any] = field(repr=False)
    reader: RowReader
    batch_id: int
    on_replay_mismatch: str
    on_event: OnEvent | None = None

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
        self._slot = slot

    def write(self, writer: TransactionParticipant) -> TransactionReceipt:
        """See `TaskSteps`."""
        task, rows = self._task, self._rows
        receipt = super().write(writer)
        # The driver chose the slot by the rows that it has read: they must be these.
        self._slot.check(task.batch_id, rows.partition, rows.content, task.on_replay_mismatch)
        return receipt
