"""Reports of a sink's batches, and the events on the way: for the caller, the log and the hook.

Owns: the reports of partitions and batches, their sums, the line in the log, the warning of a
time-out that is near; the type of the hook `on_event`, and how it is called. Must not know: how a
batch is written, what the hook does.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

_LOG = logging.getLogger(__name__)
_NEAR_TIMEOUT: Final = 0.8

OnEvent: TypeAlias = Callable[[str, dict[str, Any]], None]


def tell(
    on_event: OnEvent | None, name: str, batch_id: int, rows: int, partition: int | None = None
) -> None:
    """Call the hook, if there is one, with an event. Events of the driver have no partition."""
    if on_event is None:
        return
    info = {"batch_id": batch_id, "rows": rows}
    on_event(name, info if partition is None else {**info, "partition": partition})


@dataclass(frozen=True)
class PartitionReport:
    """The report of one task.

    Attributes:
        partition: Spark's number of the partition.
        rows: how many the task wrote, or found committed.
        size_bytes: of keys and values.
        digest: of the rows.
        is_replay: whether they were committed before.
        seconds: by phase: init, ledger, write, commit; with atomicity "batch" claim, write,
            receipt.
        transaction_seconds: how long the task's own transaction was open; 0 if it had none.
        attempt: how often Spark had tried the task before.
    """

    partition: int
    rows: int
    size_bytes: int
    digest: str
    is_replay: bool
    seconds: Mapping[str, float]
    transaction_seconds: float = 0.0
    attempt: int = 0


@dataclass(frozen=True)
class BatchReport:
    """The report of a batch.

    Attributes:
        batch_id: of the batch.
        rows: how many were written, or found committed.
        size_bytes: of keys and values.
        transactions: committed by this call.
        replayed: partitions that had committed before.
        seconds: from the first check to the last commit.
        partitions: the tasks' reports.
        phases: seconds by phase: of the tasks, added up; of the driver as `driver.check` (before
            the tasks), `driver.tasks` and, with atomicity "batch", `driver.transaction`; with
            "prepared" `driver.ends`, the decision and the ends of all parts.
        retries: attempts of tasks and of the batch after the first one.
        timeout_share: the part of the transaction time-out that was used, by the slowest
            transaction; above 1 it would have been aborted.
        slowest: the partition that took longest, or None.
        is_by_driver: whether the driver has written the rows itself.
        has_other_rows: whether the batch was committed before, with other rows than it has now.
        run_id: the name of the run, if it has one; `batch_id` is 0 then.
    """

    batch_id: int
    rows: int
    size_bytes: int
    transactions: int
    replayed: int
    seconds: float
    partitions: tuple[PartitionReport, ...]
    phases: Mapping[str, float] = field(default_factory=dict)
    retries: int = 0
    timeout_share: float = 0.0
    slowest: int | None = None
    is_by_driver: bool = False
    has_other_rows: bool = False
    run_id: str | None = None

    @property
    def _name(self) -> str:
        return str(self.batch_id) if self.run_id is None else self.run_id

    def tell(self, sink_id: str, timeout_ms: int) -> None:
        """Write a line to the log, and a warning if the time-out has come near."""
        _LOG.info(
            "sink %s, batch %s: %d rows, %d bytes, %d transactions, %d replayed, %d retries, "
            "%.2f s (%s), %.0f %% of the transaction time-out",
            sink_id,
            self._name,
            self.rows,
            self.size_bytes,
            self.transactions,
            self.replayed,
            self.retries,
            self.seconds,
            ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in self.phases.items()),
            self.timeout_share * 100,
        )
        # A warning before it happens: the broker aborts a batch that is too late without asking,
        # and the same batch again takes as long.
        if self.timeout_share > _NEAR_TIMEOUT:
            part = "" if self.slowest is None else f"; the slowest part was {self.slowest}"
            _LOG.warning(
                "sink %s, batch %s used %.0f %% of the transaction time-out (transactionTimeout="
                "%d ms)%s. After that time the broker aborts the batch: raise transactionTimeout,"
                " or make batches smaller",
                sink_id,
                self._name,
                self.timeout_share * 100,
                timeout_ms,
                part,
            )


@dataclass(frozen=True)
class SinkTotals:
    """All reports of a sink, added up.

    Attributes:
        batches: how many, replays included.
        rows: see `BatchReport`, also for the other sums.
    """

    batches: int = 0
    rows: int = 0
    size_bytes: int = 0
    transactions: int = 0
    replayed: int = 0
    retries: int = 0
    seconds: float = 0.0

    def plus(self, report: BatchReport) -> SinkTotals:
        """Return the totals with one more report."""
        return SinkTotals(
            self.batches + 1,
            self.rows + report.rows,
            self.size_bytes + report.size_bytes,
            self.transactions + report.transactions,
            self.replayed + report.replayed,
            self.retries + report.retries,
            self.seconds + report.seconds,
        )


def phases_since(began: float, checked: float) -> dict[str, float]:
    """Return the driver's phases, in seconds, when the tasks of a batch have ended.

    Args:
        began: when the batch began, by `time.monotonic`.
        checked: when its tasks began.
    """
    return {"driver.check": checked - began, "driver.tasks": time.monotonic() - checked}


def report_partitions(
    batch_id: int,
    reports: Iterable[PartitionReport],
    phases: Mapping[str, float],
    timeout_ms: int,
    *,
    is_by_driver: bool = False,
) -> BatchReport:
    """Return the report of a batch with a transaction for each partition.

    Args:
        batch_id: of the batch.
        reports: of all partitions, in any order.
        phases: seconds of the driver, by phase.
        timeout_ms: of each transaction.
        is_by_driver: whether the driver has written the rows itself.
    """
    parts = tuple(sorted(reports, key=lambda one: one.partition))
    replayed = sum(part.is_replay for part in parts)
    # A default, since Spark runs no task at all for a frame that is empty by its plan.
    slowest = max(parts, key=lambda one: one.transaction_seconds, default=None)
    longest_s = 0.0 if slowest is None else slowest.transaction_seconds
    return BatchReport(
        batch_id,
        sum(part.rows for part in parts),
        sum(part.size_bytes for part in parts),
        # A replayed partition committed nothing in this call.
        len(parts) - replayed,
        replayed,
        # Before the tasks' phases are added: those run at the same time, and their sum exceeds the
        # clock.
        sum(phases.values()),
        parts,
        {**phases, **_added_up(parts)},
        sum(part.attempt for part in parts),
        longest_s * 1000 / timeout_ms,
        slowest.partition if slowest is not None and longest_s else None,
        is_by_driver,
    )


def report_whole(
    batch_id: int,
    parts: tuple[PartitionReport, ...],
    phases: Mapping[str, float],
    timeout_ms: int,
    attempts: int,
    *,
    is_by_driver: bool = False,
) -> BatchReport:
    """Return the report of a batch that this call has committed in one transaction.

    Args:
        batch_id: of the batch.
        parts: of the attempt that was committed.
        phases: seconds of the driver, by phase; of them `driver.transaction` of that attempt.
        timeout_ms: of the transaction.
        attempts: how often the batch was tried.
        is_by_driver: whether the driver has written the rows itself.
    """
    open_s = phases.get("driver.transaction", 0.0)
    slowest = max(parts, key=lambda one: sum(one.seconds.values()), default=None)
    return BatchReport(
        batch_id,
        sum(part.rows for part in parts),
        sum(part.size_bytes for part in parts),
        1,
        0,
        # Without `driver.transaction`, which is a part of `driver.tasks`.
        phases.get("driver.check", 0.0) + phases.get("driver.tasks", 0.0),
        parts,
        {**phases, **_added_up(parts)},
        max(0, attempts - 1),
        open_s * 1000 / timeout_ms,
        None if slowest is None else slowest.partition,
        is_by_driver,
    )


def report_found(batch_id: int, rows: int, writers: int, seconds: float) -> BatchReport:
    """Return the report of a batch that was committed before this call."""
    return BatchReport(batch_id, rows, 0, 0, writers, seconds, (), {"driver.check": seconds})


def _added_up(parts: Iterable[PartitionReport]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part.seconds)
    return dict(total)
