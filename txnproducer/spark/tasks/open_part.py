"""A task of the data source. It writes a transaction, and leaves it open for the commit.

Why it exists: a data source may commit only when Spark says so, and Spark says it in another
process. So a task hands its transaction over (see `txnproducer.lease`), with the number and digest
of its rows.

Owns: the task's side of the data source. Must not know: Spark's classes, how a part is ended.

Rules:
* A task checks whether the sink is another query's before it takes the id, which would fence that
  query.
* The task of partition 0 checks whether the batch has to stop however it is cut: an earlier batch
  may be torn, or the ledger be lost. Spark has no earlier place that knows the batch. Other tasks
  may write meanwhile; they are not committed, since this task has failed.
* `InitProducerId` comes next: it fences every earlier attempt of this partition, and aborts the
  transaction that it left open. Then the ledger is read: until then an older part could still be
  committed.
* A batch that is wholly committed is not written again: the task reads its rows, for the commit to
  compare. A batch that is committed in part is written by every task, since only the commit can
  find out which parts are committed: Spark may number them otherwise now.
* A task waits for no entry. An entry may be undecided until the task of another partition has
  taken its id, and that task may run after this one. The commit waits, when all ids are taken.
* A task that fails leaves nothing open. A task that is killed does, until its id is taken again or
  the transaction times out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from txnproducer.lease import TransactionLease
from txnproducer.producer import TransactionalProducer
from txnproducer.spark.errors import SinkError, naming_prepared
from txnproducer.spark.ledger.entries import LedgerEntry
from txnproducer.spark.ledger.first_look import FirstLook
from txnproducer.spark.ledger.one_atomicity import check_one_atomicity
from txnproducer.spark.ledger.rules import LedgerRules, is_whole
from txnproducer.spark.ledger.store import Ledger
from txnproducer.spark.reports import OnEvent
from txnproducer.spark.rows.arrow_rows import ArrowRows
from txnproducer.spark.rows.record_sources import RecordSource, RowRecords
from txnproducer.spark.rows.schema import RowReader
from txnproducer.spark.tasks.task_rows import TaskRows
from txnproducer.spark.tasks.task_steps import own_producer, take_steps


@dataclass(frozen=True)
class OpenPart:
    """A task's message to the commit: its open transaction and its rows.

    Attributes:
        partition: Spark's number of the partition.
        batch_id: of the batch.
        query_id: of the query that the batch belongs to.
        lease: of the open transaction with the rows; None if the whole batch was committed before.
        rows: how many the partition has.
        size_bytes: of keys and values.
        digest: of the rows.
        seconds: by phase: init, ledger, write.
    """

    partition: int
    batch_id: int
    query_id: str
    lease: TransactionLease | None
    rows: int
    size_bytes: int
    digest: str
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class PartWriter:
    """The writer of a part, sent to the tasks with everything that they need.

    Attributes:
        ledger: of the sink.
        rules: for entries that do not fit.
        settings: the producer's, by Java's names.
        reader: turns rows into records.
        on_event: called with the task's events, in the task's process.
        takes_arrow: whether Spark hands out Arrow batches, and not rows.
    """

    ledger: Ledger
    rules: LedgerRules
    # Not in the repr: they may hold a password.
    settings: Mapping[str, Any] = field(repr=False)
    reader: RowReader
    on_event: OnEvent | None = None
    takes_arrow: bool = False

    def write(self, partition: int, batch_id: int, query_id: str, rows: Iterable[Any]) -> OpenPart:
        """Write a partition into a transaction of its own, and leave the transaction open.

        Args:
            partition: Spark's number of the partition.
            batch_id: of the batch.
            query_id: of the query that the batch belongs to.
            rows: as Spark hands them out; see `takes_arrow`.

        Raises:
            SinkError: refused; nothing was written by this call.
            KafkaError: failed; nothing of this call will be visible.
        """
        source = self._source_of(rows)
        own = TaskRows(source, batch_id, partition, self.on_event)
        return _OpenPartWriting(self, partition, batch_id, query_id, own).run()

    def _source_of(self, rows: Iterable[Any]) -> RecordSource:
        return ArrowRows(rows, self.reader) if self.takes_arrow else RowRecords(rows, self.reader)


@dataclass
class _OpenPartWriting:
    """The work of one task that writes an open part."""

    writer: PartWriter
    partition: int
    batch_id: int
    query_id: str
    rows: TaskRows

    def run(self) -> OpenPart:
        # Before the id is taken, which fences its holder.
        with self.rows.timed("ledger"):
            self._refuse_before_harm()
        part = take_steps(self)
        self.rows.tell("task_replayed" if part.lease is None else "task_after_lease")
        return part

    def take(self) -> AbstractContextManager[TransactionalProducer]:
        writer = self.writer
        return own_producer(self.rows, writer.ledger, self.partition, writer.settings)

    def replay(self) -> OpenPart | None:
        with self.rows.timed("ledger"):
            is_committed = self._is_batch_committed()
        if not is_committed:
            return None
        with self.rows.timed("write"):
            # The commit compares the batch with the committed one: it needs number and digest.
            self.rows.read()
        return self._part(None)

    def write(self, writer: TransactionalProducer) -> OpenPart:
        rows = self.rows
        with rows.timed("write"):
            writer.begin_transaction()
            rows.send_to(writer)
            writer.flush()  # a lease does not hand over records that wait
            rows.tell("task_before_lease")
            # No claims: no process writes into it after this, it is only to be ended.
            lease = writer.lease(claims=0)
        return self._part(lease)

    def _part(self, lease: TransactionLease | None) -> OpenPart:
        return OpenPart(
            partition=self.partition,
            batch_id=self.batch_id,
            query_id=self.query_id,
            lease=lease,
            **self.rows.measured,
        )

    def _refuse_before_harm(self) -> None:
        writer = self.writer
        # Not waited for: the transaction of a killed attempt is undecided until this task takes
        # the id.
        view = writer.ledger.look([self.partition], waits_for_undecided=False)
        check_one_atomicity(writer.ledger, view, "partition")
        writer.rules.check_plan(view.plan, self.query_id)
        writer.rules.fitting(view.entries, self.batch_id, self.query_id)
        if self.partition == 0:  # every batch has this one, and one task is enough
            self._refuse_any_cut(0 if view.plan is None else view.plan.most_writers)

    def _refuse_any_cut(self, partitions: int) -> None:
        writer, batch_id, query_id = self.writer, self.batch_id, self.query_id
        view = writer.ledger.look(
            range(partitions), asks_for_plan=False, waits_for_undecided=False
        )
        try:
            writer.rules.check_any_cut(view.entries, batch_id, query_id)
        except SinkError:
            # The commits of the batch before may not be decided yet: this look waits for them.
            with naming_prepared("partition"):
                FirstLook(writer.ledger, writer.rules).check(batch_id, query_id)

    def _is_batch_committed(self) -> bool:
        """Return whether the ledger holds the whole batch. A commit under way may not be seen."""
        fitting = self._fitting([self.partition])
        entry = fitting.get(self.partition)
        if entry is None or entry.batch_id != self.batch_id:
            # The commit looks again when it has all ids; to write in doubt only costs an abort.
            return False
        # The entry's own number: the batch may have been cut into more or fewer partitions then.
        entries = self._fitting(range(entry.writers))
        return is_whole({p: e for p, e in entries.items() if e.batch_id == self.batch_id})

    def _fitting(self, slots: Iterable[int]) -> dict[int, LedgerEntry]:
        ledger = self.writer.ledger
        view = ledger.look(slots, asks_for_plan=False, waits_for_undecided=False)
        return self.writer.rules.fitting(view.entries, self.batch_id, self.query_id)
