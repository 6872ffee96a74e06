"""Atomicity "partition", where each Spark partition of a batch is a transaction of its own.

Why it exists: partitions commit one by one, so a batch can be broken off half-way. The driver
completes such a batch only if the rows are cut as they were; it reads all of them once before it
has any task write. A small batch is one transaction of partition 0, which the driver writes
itself.

Owns: the driver's side of such a batch: its passes over the frame. Must not know: how ids are
taken (`runs.py`), how a task writes.

Rule: the driver fixes the number of writers and sends it along: a task cannot find it out.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from txnproducer.errors import IllegalStateError, KafkaError
from txnproducer.producer import TransactionalProducer
from txnproducer.spark.driver.batch_retries import RunBounds, retrying
from txnproducer.spark.driver.checks import ClusterChecks
from txnproducer.spark.driver.frames import Partitions, partitions_of
from txnproducer.spark.driver.kept_producer import KeptProducer
from txnproducer.spark.driver.replay import report_replay
from txnproducer.spark.driver.runs import Runs
from txnproducer.spark.driver.small_batches import SmallBatches
from txnproducer.spark.errors import PartialReplayError
from txnproducer.spark.ledger.entries import LedgerBatch, LedgerEntry
from txnproducer.spark.ledger.rules import (
    added_up,
    check_run,
    check_without_frame,
    is_whole,
    may_be_committed,
)
from txnproducer.spark.ledger.slots import Content, assign_slots
from txnproducer.spark.ledger.store import REFRESH_AFTER_S, Ledger
from txnproducer.spark.options import SinkSettings
from txnproducer.spark.reports import (
    BatchReport,
    OnEvent,
    PartitionReport,
    phases_since,
    report_partitions,
)
from txnproducer.spark.rows.schema import written_columns
from txnproducer.spark.session import stop_raiser
from txnproducer.spark.tasks.partition_transaction import (
    BatchPlan,
    OwnTransaction,
    PartitionOrder,
    PartitionTask,
    PartitionWriter,
    skip_rows,
)
from txnproducer.spark.tasks.task_rows import TaskRows
from txnproducer.spark.tasks.task_steps import take_steps

_LOG = logging.getLogger(__name__)


class PartitionBatches:
    """The batches of a sink of atomicity "partition".

    Args:
        settings, ledger: of the sink.
        cluster: gives the producers' settings.
        on_event: called in the tasks.

    Attributes:
        runs: the driver's hold on the ids of the partitions.
    """

    def __init__(
        self,
        settings: SinkSettings,
        ledger: Ledger,
        cluster: ClusterChecks,
        on_event: OnEvent | None,
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._cluster = cluster
        self._on_event = on_event
        self.runs = self._runs_of(ledger, settings)
        self._small = SmallBatches(settings.driver_rows)
        self._kept = KeptProducer(ledger, ledger.transactional_id(0))
        self._needs_tasks = False
        # When every partition had its entry written, by `time.monotonic`.
        self._renewed_s = -math.inf

    def _runs_of(self, ledger: Ledger, settings: SinkSettings) -> Runs:
        return Runs(ledger, settings.rules)

    def check(self, batch_id: int, query_id: str, run_id: str | None = None) -> None:
        """Check, before the frame is planned, that the batch may be written. See `Runs.check`."""
        if run_id is not None:
            raise IllegalStateError("parts that commit one by one have no named runs")
        found = self.runs.check(batch_id, query_id)
        taken_over = (
            self.runs.taken_over
            if found is None
            else self.runs.takes_over(found, batch_id, query_id)
        )
        # What is taken over in the other slots ends only with a batch of as many tasks.
        self._needs_tasks = any(taken_over)
        if found:
            last = max(entry.batch_id for entry in found.values())
            rows = sum(entry.rows for entry in found.values() if entry.batch_id == last)
            self._small.note_entry(rows)
            # A part of a batch that tasks have begun can be completed by tasks alone.
            self._needs_tasks |= last == batch_id

    def write(
        self,
        frame: Any,
        batch_id: int,
        query_id: str,
        began_s: float,
        run_id: str | None = None,
    ) -> BatchReport:
        """Write a batch, and return its report.

        Args:
            frame: of Spark's, with a schema that was checked.
            batch_id: of the batch.
            query_id: of the query that it belongs to.
            began_s: when the call began, by `time.monotonic`.
            run_id: see `LedgerBatch`; None but with prepared parts.

        Raises:
            SinkError: refused by the driver; nothing was written by this call.
            Exception: raised by Spark where a task has failed too often.
        """
        wanted = self._settings.writers
        frame = written_columns(frame, self._settings.reader())
        batches = None if self._needs_tasks else self._small.read(frame)
        batch = LedgerBatch(batch_id, query_id, 1, run_id)
        if batches is not None:
            report = self._write_small(batches, batch, began_s, stop_raiser(frame))
            if report is not None:
                return report
        # A task takes the id of partition 0 now.
        self._kept.let_go()
        if wanted is not None:
            frame = frame.repartition(wanted)
        return self._write_by_tasks(frame, batch, began_s)

    def _write_by_tasks(self, frame: Any, batch: LedgerBatch, began_s: float) -> BatchReport:
        """Write a batch by tasks. Their number is known when the frame is planned."""
        # The number of writers and the run are known only later: they are in the orders.
        wanted = self._settings.writers
        task = PartitionTask(self._batch_plan(batch, run=0))
        partitions = partitions_of(frame, task, wanted)
        plan, done = self.plan(replace(batch, writers=max(1, partitions.count)))
        reading = PartitionOrder(plan.run, partitions.count, is_read_only=True)
        on_mismatch = self._settings.on_replay_mismatch
        if is_whole(done):
            entry = added_up(done)
            report = report_replay(entry, lambda: partitions.run(reading), on_mismatch, began_s)
            self.runs.batch_done()
            return report
        slots = {}
        if done:
            # The rest may be written only if the rows are cut as they were then. A task would find
            # out too late: its neighbour may have written already.
            found = dict(enumerate(partitions.run(reading)))
            slots = assign_slots(batch.batch_id, done, found, on_mismatch)
        checked_s = time.monotonic()
        order = PartitionOrder(
            plan.run,
            partitions.count,
            taken_over=plan.taken_over,
            slots=slots,
            known=self._ledger.read_so_far(),
        )
        reports = _run_tasks(partitions, plan, order)
        # Not after an error: then the ledger shows whether the run can go on.
        self.runs.batch_done()
        self._renewed_s = time.monotonic()
        phases = phases_since(began_s, checked_s)
        report = report_partitions(batch.batch_id, reports, phases, self._cluster.timeout_ms())
        self._small.note_report(report)
        return report

    def _write_small(
        self,
        batches: list[Any],
        batch: LedgerBatch,
        began_s: float,
        raise_if_stopped: Callable[[], None],
    ) -> BatchReport | None:
        """Write the rows of a small batch, and return its report.

        Returns:
            None if tasks have begun the batch, and it is not whole.
        """
        done: Mapping[int, LedgerEntry] = {}
        if self._kept.is_held and self.runs.goes_on(batch):
            plan = self._batch_plan(batch, self.runs.go_on(batch))
        else:
            self._kept.let_go()  # a run that begins takes the id
            try:
                plan, done = self.plan(batch)
            except PartialReplayError:
                # Its entries were not decided yet when `check` looked.
                return None
        entry = self._committed(done)
        if entry is not None:

            def read() -> list[Content]:
                rows = TaskRows(plan.arrow_rows(batches), batch.batch_id, 0, None)
                rows.read()
                return [rows.content]

            on_mismatch = self._settings.on_replay_mismatch
            report = report_replay(entry, read, on_mismatch, began_s)
        else:
            checked_s = time.monotonic()
            # The rows are here, so another attempt does not evaluate the frame again.
            retry = retrying(raise_if_stopped, RunBounds(self._settings.max_runs))
            part = retry(self._attempt, plan, batches, raise_if_stopped)
            part = replace(part, attempt=retry.statistics["attempt_number"] - 1)
            phases = phases_since(began_s, checked_s)
            report = report_partitions(
                batch.batch_id, [part], phases, self._cluster.timeout_ms(), is_by_driver=True
            )
        self.runs.batch_done()
        self._small.note_report(report)
        self._renew(batch.query_id)
        return report

    def _renew(self, query_id: str) -> None:
        """Commit all entries again, if only this driver has written for long.

        A small batch writes one entry, and the others would expire. Without an older entry nobody
        could tell later whether a partition has written a batch that was broken off.
        """
        now_s = time.monotonic()
        is_recent = now_s - self._renewed_s < REFRESH_AFTER_S
        if is_recent or not self._ledger.expires or self.runs.most_writers < 2:
            return
        self._renewed_s = now_s
        try:
            self.refresh(query_id, self._cluster.producer_settings())
        # The batch is committed, and entries last for days.
        except KafkaError as error:
            _LOG.warning("the ledger could not be refreshed; it is tried again: %s", error)

    def _committed(self, done: Mapping[int, LedgerEntry]) -> LedgerEntry | None:
        """Return the entry of the batch that was entered, if it is wholly committed."""
        return added_up(done) if is_whole(done) else None

    def _attempt(
        self, plan: BatchPlan, batches: list[Any], raise_if_stopped: Callable[[], None]
    ) -> PartitionReport:
        # Before the id is taken: Spark reports a stop only to a thread that waits for a job. With
        # an id that is held, nothing lasts until the next look, which comes before the commit.
        if not self._kept.is_held:
            raise_if_stopped()
        return take_steps(self._transaction(plan, batches, raise_if_stopped))

    def _transaction(
        self, plan: BatchPlan, batches: list[Any], raise_if_stopped: Callable[[], None]
    ) -> OwnTransaction:
        return KeptTransaction(plan, batches, self._kept, raise_if_stopped)

    def partition_writer(
        self, batch_id: int, query_id: str, writers: int
    ) -> Callable[[Iterable[Any]], None]:
        """Return the function for `foreachPartition`. See `ExactlyOnceKafkaSink`."""
        self._kept.let_go()
        plan, done = self.plan(LedgerBatch(batch_id, query_id, writers))
        if self._settings.on_replay_mismatch != "keep":
            check_without_frame(batch_id, done, writers)
        # A task would compare its rows with the entry of its number, and the cut is another one
        # now.
        if is_whole(done) and len(done) != writers:
            self.runs.batch_done()
            return skip_rows
        return PartitionWriter(plan)

    def plan(self, batch: LedgerBatch) -> tuple[BatchPlan, dict[int, LedgerEntry]]:
        """Take the sink's ids for a batch.

        Returns:
            The plan for the tasks, and the entries of partitions that hold the batch already.
        """
        run, done = self.runs.enter(batch, self._cluster.producer_settings())
        if len(done) == batch.writers:
            _LOG.info("batch %d is committed already; its rows are compared", batch.batch_id)
        # After the look: tasks read only what has been written since.
        plan = replace(
            self._batch_plan(batch, run), ledger=self._ledger.knowing(self._ledger.read_so_far())
        )
        return plan, done

    def _batch_plan(self, batch: LedgerBatch, run: int) -> BatchPlan:
        return BatchPlan(
            self._ledger,
            self._settings.rules,
            self._cluster.producer_settings(),
            self._settings.reader(self._cluster.partitions),
            batch.batch_id,
            batch.query_id,
            batch.writers,
            run,
            self._on_event,
            self.runs.taken_over,
            run_id=batch.run_id,
        )

    def refresh(self, query_id: str, settings: Mapping[str, str]) -> int:
        """Commit plan and entries again as they are. See `Runs.refresh`."""
        self._kept.let_go()
        return self.runs.refresh(query_id, settings)

    def close(self) -> None:
        """Close the producer that is kept between small batches."""
        self._kept.let_go()


class KeptTransaction(OwnTransaction):
    """The work of a task, done on the driver with a producer that is kept."""

    def __init__(
        self,
        plan: BatchPlan,
        batches: list[Any],
        kept: KeptProducer,
        raise_if_stopped: Callable[[], None],
    ) -> None:
        super().__init__(plan, 0, plan.arrow_rows(batches))
        self._kept = kept
        self._raise_if_stopped = raise_if_stopped
        self._settings = plan.producer
        self._was_held = kept.is_held

    def take(self) -> AbstractContextManager[TransactionalProducer]:
        """See `TaskSteps`."""
        return self._kept.held(self._settings)

    def replay(self) -> PartitionReport | None:
        """See `TaskSteps`."""
        # The ledger is as the driver has read or left it while it held the id.
        return None if self._was_held else super().replay()

    def _before_commit(self) -> None:
        super()._before_commit()
        self._raise_if_stopped()  # rows without a commit are not written

    def _after_loss(self, error: KafkaError) -> PartitionReport:
        self._kept.let_go()  # its id is somebody else's
        # Another driver may have begun a run. A task leaves that to its driver.
        outcome = may_be_committed(str(self._plan.batch_id))
        check_run(self._look()[0], self._plan.run, self._plan.query_id, outcome)
        return super()._after_loss(error)


def _run_tasks(
    partitions: Partitions, plan: BatchPlan, order: PartitionOrder
) -> list[PartitionReport]:
    """Have the tasks write, or write the one entry of a frame that has none."""
    if partitions.count:
        return partitions.run(order)
    # A frame that is empty by its plan runs no task, but the batch must be recorded.
    partitions.raise_if_stopped()
    return [plan.write(0, plan.rows(()))]
