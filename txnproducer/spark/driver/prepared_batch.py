"""Atomicity "prepared": tasks leave their parts open, and the driver decides about all of them.

Why it exists: readers see a batch whole but for the milliseconds in which its parts are ended, and
a batch that was decided never needs its frame again. Rows with keys need no shuffle.

Owns: the driver's side of such a batch: the runs over its frame, the time that is left, the ends.
Must not know: the decision's record (`prepared_runs.py`), how a task writes.

Rules:
* All parts are written, have their entry of the ledger, and have time left to be ended, before
  the driver decides. Otherwise it aborts them all and begins again. The entry alone shows later
  whether a part was committed, also when its id has moved on.
* Nothing is aborted once the driver has begun to decide.
* A batch of one part needs no decision: its own commit is one.
* A part whose time was over before it was ended comes by replay, from the same rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from txnproducer.errors import KafkaError
from txnproducer.spark.driver.batch_retries import RunBounds, retrying
from txnproducer.spark.driver.checks import LEAST_LEFT_S
from txnproducer.spark.driver.frames import Partitions, partitions_of
from txnproducer.spark.driver.partition_batch import PartitionBatches
from txnproducer.spark.driver.prepared_runs import PreparedRuns
from txnproducer.spark.driver.replay import report_replay
from txnproducer.spark.driver.small_run import SmallRun
from txnproducer.spark.driver.whole_parts import entry_of, refuse_failed, slowest
from txnproducer.spark.errors import (
    BatchTimedOutError,
    CommitIncompleteError,
    PartialReplayError,
    ReplayMismatchError,
    StaleRunError,
    StoppedError,
    TornBatchError,
)
from txnproducer.spark.ledger.digest import total
from txnproducer.spark.ledger.entries import LedgerBatch, LedgerEntry
from txnproducer.spark.ledger.producers import CLOSE_AT_STOP_S
from txnproducer.spark.ledger.slots import Content, Slot, assign_slots
from txnproducer.spark.ledger.store import Ledger
from txnproducer.spark.options import SinkSettings
from txnproducer.spark.reports import (
    BatchReport,
    OnEvent,
    PartitionReport,
    phases_since,
    report_partitions,
    tell,
)
from txnproducer.spark.session import losses_of, stop_raiser, tells_of_stop
from txnproducer.spark.tasks.participant import Part, is_failed
from txnproducer.spark.tasks.partition_transaction import BatchPlan, OwnTransaction
from txnproducer.spark.tasks.prepared_part import PreparedOrder, PreparedTask

_LOG = logging.getLogger(__name__)

_LEAST_SHARE: Final = 0.2


class PreparedBatches(PartitionBatches):
    """The batches of a sink of atomicity "prepared". The arguments: see `PartitionBatches`."""

    runs: PreparedRuns

    def _runs_of(self, ledger: Ledger, settings: SinkSettings) -> PreparedRuns:
        return PreparedRuns(ledger, settings.rules)

    def check(self, batch_id: int, query_id: str, run_id: str | None = None) -> None:
        """See `PartitionBatches.check`."""
        if run_id is None:
            super().check(batch_id, query_id)
            return
        self._needs_tasks = False
        last = self.runs.check_named(LedgerBatch(batch_id, query_id, 0, run_id))
        if last is not None:
            self._small.note_entry(last.rows)

    def write(
        self,
        frame: Any,
        batch_id: int,
        query_id: str,
        began_s: float,
        run_id: str | None = None,
    ) -> BatchReport:
        """See `PartitionBatches.write`."""
        report = super().write(frame, batch_id, query_id, began_s, run_id)
        return replace(report, run_id=run_id)

    def _committed(self, done: Mapping[int, LedgerEntry]) -> LedgerEntry | None:
        return self.runs.committed(done)

    def _transaction(self, plan: BatchPlan, batches: list[Any], *more: Any) -> OwnTransaction:
        if plan.run_id is None:
            return super()._transaction(plan, batches, *more)
        return SmallRun(plan, batches, self._kept, *more)

    def _batch_plan(self, batch: LedgerBatch, run: int) -> BatchPlan:
        return replace(super()._batch_plan(batch, run), decision=0)

    def _attempt(self, *args: Any) -> PartitionReport:
        # The driver writes a small batch by a producer of its own, which takes this id.
        self.runs.ids.forget([0])
        if not self._kept.is_held:
            # To take the id aborts its open part, which may be another driver's.
            self.runs.check_not_replaced()
        return super()._attempt(*args)

    def _renew(self, query_id: str) -> None:
        """Do nothing: the decision about a batch is older than its entries, and shows the same."""

    def close(self) -> None:
        """Let go of all ids."""
        super().close()
        self.runs.close()

    def _write_by_tasks(self, frame: Any, batch: LedgerBatch, began_s: float) -> BatchReport:
        settings = self._settings
        task = PreparedTask(
            self._ledger,
            self._cluster.producer_settings(),
            settings.reader(self._cluster.partitions),
            batch.batch_id,
            batch.query_id,
            settings.on_replay_mismatch,
            self._on_event,
            batch.run_id,
        )
        partitions = partitions_of(frame, task, settings.writers, is_failed)
        batch = replace(batch, writers=max(1, partitions.count))
        if not partitions.count:
            # A frame that is empty by its plan runs no task, but the batch must be recorded.
            report = self._write_small([], batch, began_s, stop_raiser(frame))
            if report is not None:
                return report
        bounds = RunBounds(settings.max_runs, settings.max_losses, losses_of(frame))
        runs = _BatchRuns(
            self.runs,
            task.settings,
            settings.on_replay_mismatch,
            self._on_event,
            partitions,
            batch,
            bounds,
            began_s,
        )
        report = retrying(partitions.raise_if_stopped, bounds)(runs.attempt)
        self.runs.batch_done()
        self._small.note_report(report)
        return report


class _BatchRuns:
    """The runs over the frame of one batch, until it is committed."""

    def __init__(
        self,
        runs: PreparedRuns,
        settings: Mapping[str, Any],
        on_replay_mismatch: str,
        on_event: OnEvent | None,
        partitions: Partitions,
        batch: LedgerBatch,
        bounds: RunBounds,
        began_s: float,
    ) -> None:
        self._runs = runs
        self._settings = settings
        self._timeout_ms = int(settings["transaction.timeout.ms"])
        self._on_replay_mismatch = on_replay_mismatch
        self._on_event = on_event
        self._partitions = partitions
        self._batch = batch
        self._bounds = bounds
        self._began_s = began_s
        self._attempts = 0
        # When the parts were leased, which is when the first of them can begin.
        self._leased_s = 0.0
        # Of the attempt that may be decided.
        self._parts: list[Part] | None = None

    def attempt(self) -> BatchReport:
        """Write the batch and commit it, or find it committed, and return its report.

        Raises:
            SinkError: the ledger stops the batch.
            KafkaError, Exception: the attempt failed; nothing of it is visible, or it is decided.
        """
        self._bounds.begin()
        self._attempts += 1
        done: Mapping[int, LedgerEntry] = {}
        try:
            _, done = self._runs.enter(self._batch, self._settings)
            committed = self._runs.committed(done)
            order = PreparedOrder() if committed is not None else self._order(done)
        except StaleRunError:
            self._runs.leave()
            raise
        except (PartialReplayError, ReplayMismatchError, TornBatchError) as error:
            raise type(error)(f"{self._time_was_over()} {error}") from None
        if committed is not None:
            return self._found(committed)
        try:
            parts = self._write(order)
        except BaseException as error:
            self._abort(order, error)
            raise
        self._parts = parts
        ends_s = time.monotonic()
        self._end(order, parts)
        return self._report(parts, order, time.monotonic() - ends_s)

    def _order(self, done: Mapping[int, LedgerEntry]) -> PreparedOrder:
        """Lease a transaction to each task that has to write."""
        writers = self._batch.writers
        slots: Mapping[int, Slot] = {}
        if done:
            # The time of a decided part was over before it was ended. Its rows are needed again,
            # and the entries of the others show whether the frame gives the same ones.
            found: list[Content] = self._partitions.run(PreparedOrder())
            # Of a named run the sums are known, and so those of the parts that were lost.
            self._runs.state.check_rows(found, self._on_replay_mismatch)
            slots = assign_slots(
                self._batch.name, done, dict(enumerate(found)), self._on_replay_mismatch
            )
        free = [slot for slot in range(writers) if slot not in done]
        leases = self._runs.lease(free, self._settings)
        self._leased_s = time.monotonic()
        # A single part's own commit decides. The entry of a named run needs a decision to be in.
        needs_one = len(free) > 1 or self._batch.run_id is not None
        decision = self._runs.next_decision if needs_one else 0
        return PreparedOrder(leases, writers, decision, slots, self._bounds.is_last)

    def _time_was_over(self) -> str:
        return (
            "The time of transactions was over before all parts of a decided batch were ended "
            f"(transactionTimeout={self._timeout_ms} ms), and only then its rows are needed again:"
        )

    def _write(self, order: PreparedOrder) -> list[Part]:
        """Have the tasks write, and return their parts, by partition, if all can be decided."""
        parts: list[Part] = self._partitions.run(order)
        failed = [part for part in parts if is_failed(part)]
        if any(part.is_lost for part in failed):
            self._refuse_late(parts)  # a time-out has other ways out than a lost task
        refuse_failed(self._batch, failed)
        ours = _by_slot(order, parts)
        self._tell("batch_before_commit", ours)
        self._partitions.raise_if_stopped()  # Spark reports a stop only to a thread that waits
        self._refuse_late(list(ours.values()))
        return parts

    def _refuse_late(self, parts: list[Part]) -> None:
        seconds = time.monotonic() - self._leased_s
        timeout_s = self._timeout_ms / 1000
        if timeout_s - seconds >= max(LEAST_LEFT_S, _LEAST_SHARE * timeout_s):
            return
        raise BatchTimedOutError(
            f"batch {self._batch.name} was aborted, and nothing of it is visible: its parts "
            f"were open for {seconds:.1f} s{slowest(parts)}, and "
            f"transactionTimeout={self._timeout_ms} (ms) leaves too little time to end them "
            'safely. With atomicity="prepared" the first part is open from the first task on to '
            "the last one. Ways out: a larger transactionTimeout (up to the broker's "
            "transaction.max.timeout.ms); smaller batches; more cores; or, for a new sink_id, "
            'atomicity="partition", where each part has a time of its own'
        )

    def _abort(self, order: PreparedOrder, error: BaseException) -> None:
        """Abort all parts of an attempt that nobody has decided."""
        leases = order.leases or {}
        try:
            # Somebody waits for this: after Ctrl-C, or in `query.stop()`.
            if not isinstance(error, Exception) or tells_of_stop(error):
                timeout_ms = int(CLOSE_AT_STOP_S * 1000)
                self._runs.ids.end(leases, self._settings, is_commit=False, timeout_ms=timeout_ms)
                return
            self._runs.ids.end(leases, self._settings, is_commit=False)
            self._partitions.raise_if_stopped()  # a broker may not have answered for long
            self._runs.check_not_replaced()
        except (StaleRunError, StoppedError):
            raise
        except KafkaError as found:
            _LOG.warning(
                "not all parts of batch %s could be aborted (%s). The next run aborts them, or "
                "the broker after transactionTimeout=%d ms",
                self._batch.name,
                found,
                self._timeout_ms,
            )
        finally:
            self._runs.leave()

    def _end(self, order: PreparedOrder, parts: list[Part]) -> None:
        """Decide about the parts of a batch, and end them."""
        ours = _by_slot(order, parts)
        leases = {slot: part.lease for slot, part in ours.items() if part.lease is not None}
        try:
            if order.decision:
                self._runs.decide(self._batch, leases, self._settings, self._run_entry(ours))
                self._tell("batch_decided", ours)
            over = self._runs.ids.end(leases, self._settings, is_commit=True)
        except BaseException as error:
            self._runs.leave()  # the next run reads the decision, and ends what is left
            if isinstance(error, KafkaError):
                self._partitions.raise_if_stopped()  # the question may wait as long once more
                self._runs.check_not_replaced(decided=self._batch.name)
            raise
        if over:
            self._runs.leave()
            self._runs.check_not_replaced(decided=self._batch.name)
            slot, loss = next(iter(over.items()))
            raise CommitIncompleteError(
                f"batch {self._batch.name}: the transaction of part {slot} was over before "
                f"its end ({loss}), and that of {len(over) - 1} others; the same batch again "
                "completes it",
                recovery="restart",
            ) from loss
        self._tell("batch_after_commit", ours)

    def _run_entry(self, ours: Mapping[int, Part]) -> LedgerEntry | None:
        """Return the entry of all rows of a named run; None for a batch with a number."""
        if self._batch.run_id is None:
            return None
        # An earlier decision may have committed the other parts.
        return entry_of(self._batch, [*ours.values(), *self._runs.state.done.values()])

    def _found(self, entry: LedgerEntry) -> BatchReport:
        """Return the report of a batch that is committed already."""
        parts = self._parts
        if parts is not None and _content(parts) == (entry.rows, entry.digest):
            _LOG.warning("batch %s is committed, though its end said otherwise", entry.name)
            return self._report(parts, None, 0.0)

        def read() -> list[Content]:
            found: list[Content] = self._partitions.run(PreparedOrder())
            return found

        return report_replay(entry, read, self._on_replay_mismatch, self._began_s)

    def _report(
        self, parts: list[Part], order: PreparedOrder | None, ends_s: float
    ) -> BatchReport:
        open_s = time.monotonic() - self._leased_s
        replayed = (
            {}
            if order is None
            else {
                partition: slot.found
                for partition, slot in order.slots.items()
                if slot.is_committed
            }
        )
        reports = [
            _report_of(number, part, replayed.get(number), open_s)
            for number, part in enumerate(parts)
        ]
        phases = {**phases_since(self._began_s, self._leased_s)}
        report = report_partitions(self._batch.batch_id, reports, phases, self._timeout_ms)
        is_decided = len(parts) - len(replayed) > 1 or self._batch.run_id is not None
        return replace(
            report,
            transactions=report.transactions + is_decided,
            # Its own sum, since it is a part of `driver.tasks`.
            phases={**report.phases, "driver.ends": ends_s},
            retries=self._attempts - 1,
        )

    def _tell(self, event: str, parts: Mapping[int, Part]) -> None:
        rows = sum(part.rows for part in parts.values())
        tell(self._on_event, event, self._batch.batch_id, rows)


def _by_slot(order: PreparedOrder, parts: list[Part]) -> dict[int, Part]:
    """Return the parts that the order's leases are for, by slot."""
    slots = [(order.slots.get(number) or Slot(number)).number for number in range(len(parts))]
    by_slot = dict(zip(slots, parts, strict=True))
    return {slot: by_slot[slot] for slot in order.leases or ()}


def _content(parts: list[Part]) -> Content:
    return sum(part.rows for part in parts), total(part.digest for part in parts)


def _report_of(
    number: int, part: Part, committed: Content | None, open_s: float
) -> PartitionReport:
    if committed is not None:
        rows, digest = committed
        return PartitionReport(number, rows, 0, digest, True, part.seconds)
    return PartitionReport(
        number, part.rows, part.size_bytes, part.digest, False, part.seconds, open_s
    )
