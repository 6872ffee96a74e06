"""Atomicity "partition", where each Spark partition of a batch is a transaction of its own.

Why it exists: partitions commit one by one, so a batch can be broken off half-way. The driver
completes such a batch only if the rows are cut as they were; it reads all of them once before it
has any task write.

Owns: the driver's side of such a batch: its passes over the frame. Must not know: how ids are
taken (`runs.py`), how a task writes.

Rule: the driver fixes the number of writers and sends it along: a task cannot find it out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from txnproducer.spark.driver.checks import ClusterChecks
from txnproducer.spark.driver.frames import Partitions, partitions_of
from txnproducer.spark.driver.replay import report_replay
from txnproducer.spark.driver.runs import Runs
from txnproducer.spark.ledger.entries import LedgerBatch, LedgerEntry
from txnproducer.spark.ledger.rules import added_up, check_without_frame, is_whole
from txnproducer.spark.ledger.slots import assign_slots
from txnproducer.spark.ledger.store import Ledger
from txnproducer.spark.options import SinkSettings
from txnproducer.spark.reports import (
    BatchReport,
    OnEvent,
    PartitionReport,
    phases_since,
    report_partitions,
)
from txnproducer.spark.rows.schema import written_columns
from txnproducer.spark.tasks.partition_transaction import (
    BatchPlan,
    PartitionOrder,
    PartitionTask,
    PartitionWriter,
    skip_rows,
)

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
        self.runs = Runs(ledger, settings.rules)

    def check(self, batch_id: int, query_id: str) -> None:
        """Check, before the frame is planned, that the batch may be written. See `Runs.check`."""
        self.runs.check(batch_id, query_id)

    def write(self, frame: Any, batch_id: int, query_id: str, began_s: float) -> BatchReport:
        """Write a batch, and return its report.

        Args:
            frame: of Spark's, with a schema that was checked.
            batch_id: of the batch.
            query_id: of the query that it belongs to.
            began_s: when the call began, by `time.monotonic`.

        Raises:
            SinkError: refused by the driver; nothing was written by this call.
            Exception: raised by Spark where a task has failed too often.
        """
        wanted = self._settings.writers
        frame = written_columns(frame, self._settings.reader())
        if wanted is not None:
            frame = frame.repartition(wanted)
        # The number of writers and the run are known only later: they are in the orders.
        task = PartitionTask(self._batch_plan(LedgerBatch(batch_id, query_id, 0), run=0))
        partitions = partitions_of(frame, task, wanted)
        plan, done = self.plan(LedgerBatch(batch_id, query_id, max(1, partitions.count)))
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
            slots = assign_slots(batch_id, done, found, on_mismatch)
        checked_s = time.monotonic()
        order = PartitionOrder(plan.run, partitions.count, taken_over=plan.taken_over, slots=slots)
        reports = _run_tasks(partitions, plan, order)
        # Not after an error: then the ledger shows whether the run can go on.
        self.runs.batch_done()
        phases = phases_since(began_s, checked_s)
        return report_partitions(batch_id, reports, phases, self._cluster.timeout_ms())

    def partition_writer(
        self, batch_id: int, query_id: str, writers: int
    ) -> Callable[[Iterable[Any]], None]:
        """Return the function for `foreachPartition`. See `ExactlyOnceKafkaSink`."""
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
        return self._batch_plan(batch, run), done

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
        )

    def refresh(self, query_id: str, settings: Mapping[str, str]) -> int:
        """Commit plan and entries again as they are. See `Runs.refresh`."""
        return self.runs.refresh(query_id, settings)

    def close(self) -> None:
        """Do nothing. No producer of the driver's lives longer than a call."""


def _run_tasks(
    partitions: Partitions, plan: BatchPlan, order: PartitionOrder
) -> list[PartitionReport]:
    """Have the tasks write, or write the one entry of a frame that has none."""
    if partitions.count:
        return partitions.run(order)
    # A frame that is empty by its plan runs no task, but the batch must be recorded.
    partitions.raise_if_stopped()
    return [plan.write(0, plan.rows(()))]
