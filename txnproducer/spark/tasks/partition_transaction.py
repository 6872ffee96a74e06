"""A task of atomicity "partition": one transaction with its rows and the ledger's entry.

Owns: the task's side of the protocol. Must not know: the driver, other partitions.

Rules:
* `InitProducerId` comes first: it fences every earlier attempt of this partition, and aborts the
  transaction that it left open. Only then is the ledger read: until then an older attempt could
  still commit.
* The plan is read with the ledger: a task of an earlier run of the sink writes nothing.
* If the batch is already in the ledger, the task writes nothing. It reads its rows, and compares
  their number and digest with the committed ones. Other rows are an error, never silence.
* To complete a batch, the driver has read all partitions, and each has its slot (`slots.py`). A
  task takes the id of its slot, and commits only the rows that the driver has read.
* The driver chooses the entries that are taken over, and names each of them to the tasks. A task
  that is left over from an earlier batch finds a later one of its own query, and stops.
* A task commits, or compares, a whole partition: rows that broke off look like their end.
* An attempt that loses its transaction (fenced, timed out) looks at the ledger before it fails.
  Another attempt may have committed the very same rows, and then all is well.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from txnproducer._core.transactions.transaction_loss import sign_of_loss
from txnproducer.errors import KafkaError
from txnproducer.ledger.topic_log import Snapshot
from txnproducer.producer import TransactionalProducer
from txnproducer.spark.errors import BatchFailedError, SinkError
from txnproducer.spark.ledger.entries import LedgerEntry, PlanEntry
from txnproducer.spark.ledger.rules import LedgerRules, check_run
from txnproducer.spark.ledger.slots import Content, Slot, check_replay
from txnproducer.spark.ledger.store import Ledger
from txnproducer.spark.reports import OnEvent, PartitionReport
from txnproducer.spark.rows.arrow_rows import ArrowRows
from txnproducer.spark.rows.record_sources import RecordSource, RowRecords
from txnproducer.spark.rows.schema import RowReader
from txnproducer.spark.session import attempt_number
from txnproducer.spark.tasks.task_rows import TaskRows
from txnproducer.spark.tasks.task_steps import own_producer, take_steps
from txnproducer.spark.tasks.worker_imports import forget_sparks_zips

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class BatchPlan:
    """The plan of a batch, sent to the tasks in their closure with everything that they need.

    Attributes:
        ledger: of the sink.
        rules: for entries that do not fit.
        producer: the producer's settings, by Java's names.
        reader: turns rows into records.
        batch_id: of the batch.
        query_id: of the query that the batch belongs to.
        writers: how many partitions write the batch.
        run: of the sink; a task of an earlier run writes nothing.
        on_event: called with the task's events, in the task's process.
        taken_over: the entries that are ignored, by slot.
        slots: of the partitions; a partition that is not named has the slot of its own number.
        decision: see `LedgerEntry`.
        run_id: see `LedgerBatch`.
    """

    ledger: Ledger
    rules: LedgerRules
    # Not in the repr: they may hold a password.
    producer: Mapping[str, Any] = field(repr=False)
    reader: RowReader
    batch_id: int
    query_id: str
    writers: int
    run: int
    on_event: OnEvent | None = None
    taken_over: Mapping[int, LedgerEntry] = field(default_factory=dict)
    slots: Mapping[int, Slot] = field(default_factory=dict)
    decision: int | None = None
    run_id: str | None = None

    def write(self, partition: int, source: RecordSource) -> PartitionReport:
        """Write a partition, exactly once.

        Raises:
            SinkError: refused; nothing was written by this call.
            KafkaError: failed; nothing of this call will be visible.
        """
        return take_steps(OwnTransaction(self, partition, source))

    def rows(self, rows: Iterable[Any]) -> RowRecords:
        """Return the records of Spark's rows."""
        return RowRecords(rows, self.reader)

    def arrow_rows(self, batches: Iterable[Any]) -> ArrowRows:
        """Return the records of Arrow batches."""
        return ArrowRows(batches, self.reader)


class OwnTransaction:
    """The work of one task that commits its own transaction."""

    def __init__(self, plan: BatchPlan, partition: int, source: RecordSource) -> None:
        self._plan = plan
        self._partition = partition
        # Only a batch that is completed has slots that differ from Spark's numbers.
        self._slot = plan.slots.get(partition) or Slot(partition)
        self.rows = TaskRows(source, plan.batch_id, partition, plan.on_event)
        self._began_s: float | None = None
        self._ended_s = 0.0

    def take(self) -> AbstractContextManager[TransactionalProducer]:
        """See `TaskSteps`."""
        plan = self._plan
        return own_producer(self.rows, plan.ledger, self._slot.number, plan.producer)

    def replay(self) -> PartitionReport | None:
        """See `TaskSteps`."""
        plan = self._plan
        with self.rows.timed("ledger"):
            run, entry = self._look()
            # A later run of the sink may have begun before this task took its id.
            check_run(run, plan.run, plan.query_id)
        if entry is not None:
            return self._compare(entry)
        if self._slot.is_committed:
            raise BatchFailedError(
                f"the driver has found batch {plan.batch_id} in the ledger of "
                f"{self._slot.number}, and now it is not there: the ledger was deleted "
                "meanwhile. This task has written nothing. Start the query again: its error names "
                "the ways to go on"
            )
        return None

    def _look(self) -> tuple[PlanEntry | None, LedgerEntry | None]:
        """Return the plan, and the entry of this task's slot if it is one of this batch."""
        plan = self._plan
        slot = self._slot.number
        run, entries = plan.ledger.read([slot])
        counting = {p: each for p, each in entries.items() if plan.taken_over.get(p) != each}
        # The driver has named all entries that are taken over: every other one must fit.
        rules = replace(plan.rules, on_foreign_ledger="stop")
        fitting = rules.fitting(counting, plan.batch_id, plan.query_id)
        entry = fitting.get(slot)
        return run, entry if entry is not None and entry.batch_id == plan.batch_id else None

    def write(self, writer: TransactionalProducer) -> PartitionReport:
        """See `TaskSteps`."""
        plan, rows = self._plan, self.rows
        try:
            self._began_s = time.monotonic()
            writer.begin_transaction()
            with rows.timed("write"):
                rows.send_to(writer)
            content = rows.content
            # The driver chose the slot by the rows that it has read: they must be these.
            self._slot.check(
                plan.batch_id, self._partition, content, plan.rules.on_replay_mismatch
            )
            with rows.timed("ledger"):
                # After the rows, whose number and digest it holds.
                self._write_entry(writer, content)
            self._before_commit()
            with rows.timed("commit"):
                writer.commit_transaction()
            self._ended_s = time.monotonic()
        except KafkaError as error:
            # Only a lost transaction can mean that another attempt has committed these rows.
            if sign_of_loss(error) is None:
                raise
            return self._after_loss(error)
        # Not inside the `try`: an error of the hook must not be taken for a failed commit.
        rows.tell("task_after_commit")
        return self._report(is_replay=False)

    def _write_entry(self, writer: TransactionalProducer, content: Content) -> None:
        plan = self._plan
        entry = LedgerEntry(
            plan.batch_id, plan.query_id, plan.writers, *content, decision=plan.decision
        )
        plan.ledger.write(writer, self._slot.number, entry)

    def _before_commit(self) -> None:
        self.rows.tell("task_before_commit")

    def _after_loss(self, error: KafkaError) -> PartitionReport:
        """Return the report of another attempt that has committed the rows, or raise the error."""
        with self.rows.timed("ledger"):
            # Without the run's check: rows that another attempt committed are there in whatever
            # run.
            _, entry = self._look()
        if entry is None:
            self._note_timeout(error)
            raise error
        _LOG.warning(
            "batch %d, partition %d: lost the transaction (%s), but another attempt committed it",
            self._plan.batch_id,
            self._partition,
            error,
        )
        return self._compare(entry)

    def _note_timeout(self, error: KafkaError) -> None:
        """Add a note if the transaction was open for too long. The broker's error has none."""
        timeout_ms = int(self._plan.producer["transaction.timeout.ms"])
        open_s = 0.0 if self._began_s is None else time.monotonic() - self._began_s
        if open_s * 1000 >= timeout_ms:
            # A note, since the error keeps its type and its `recovery`.
            error.add_note(
                f"partition {self._partition} of batch {self._plan.batch_id} was open for "
                f"{open_s:.1f} s, and transactionTimeout is {timeout_ms} ms: it has most likely "
                "timed out. Raise transactionTimeout, or make batches smaller"
            )

    def _compare(self, entry: LedgerEntry) -> PartitionReport:
        """Compare the committed rows with all rows, those after a half-way loss included."""
        plan = self._plan
        self.rows.read()
        content = self.rows.content
        check_replay(plan.batch_id, self._partition, entry, content, plan.rules.on_replay_mismatch)
        self.rows.tell("task_replayed", entry.rows)
        return self._report(is_replay=True)

    def _report(self, *, is_replay: bool) -> PartitionReport:
        open_s = 0.0 if is_replay or self._began_s is None else self._ended_s - self._began_s
        return PartitionReport(
            partition=self._partition,
            is_replay=is_replay,
            transaction_seconds=open_s,
            attempt=attempt_number(),
            **self.rows.measured,
        )


@dataclass(frozen=True)
class PartitionOrder:
    """The driver's order to the tasks of one pass over the frame.

    Attributes:
        run: of the sink.
        writers: how many partitions write.
        is_read_only: whether the tasks only read, and write nothing.
        taken_over: see `BatchPlan`.
        slots: see `BatchPlan`.
        known: of the ledger, as the driver has read it. The ledger itself is in the plan, since
            an order must hold no password.
    """

    run: int
    writers: int
    is_read_only: bool = False
    taken_over: Mapping[int, LedgerEntry] = field(default_factory=dict)
    slots: Mapping[int, Slot] = field(default_factory=dict)
    known: Snapshot | None = None


@dataclass(frozen=True)
class PartitionTask:
    """The work of a task with its Arrow batches. See `frames.Work`.

    Attributes:
        plan: of the batch; the order brings the run and the number of writers.
    """

    plan: BatchPlan

    def __call__(
        self, order: PartitionOrder, partition: int, batches: Iterable[Any]
    ) -> PartitionReport | Content:
        """Write a partition and return its report, or read it and return rows and digest."""
        plan = replace(
            self.plan,
            run=order.run,
            writers=order.writers,
            taken_over=order.taken_over,
            slots=order.slots,
            ledger=self.plan.ledger.knowing(order.known),
        )
        source = plan.arrow_rows(batches)
        if not order.is_read_only:
            return plan.write(partition, source)
        rows = TaskRows(source, plan.batch_id, partition, plan.on_event)
        rows.read()
        return rows.content


@dataclass(frozen=True)
class PartitionWriter:
    """A `BatchPlan` as a function for Spark's `foreachPartition`."""

    plan: BatchPlan

    def __call__(self, rows: Iterable[Any]) -> None:
        """Write the partition of the calling task."""
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            raise RuntimeError("a partition writer works inside a Spark task only")
        number = context.partitionId()
        # An id above the plan's number of writers may be one that the next run does not fence.
        if number >= self.plan.writers:
            raise SinkError(
                f"partition {number} is one too many: partition_writer got writers="
                f"{self.plan.writers}. This task has written nothing. Way out: "
                "frame.repartition(n).foreachPartition(sink.partition_writer(batch_id, writers=n))"
            )
        self.plan.write(number, self.plan.rows(rows))
        # Last: the next task of this worker begins with a look at all importers.
        forget_sparks_zips()


def skip_rows(rows: Iterable[Any]) -> None:
    """Write nothing. It is the function for `foreachPartition` if the batch is committed."""
    del rows
