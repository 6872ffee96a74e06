"""Atomicity "batch", where the tasks of a frame write one transaction, which the driver holds.

Owns: the driver's side of such a batch: the frame's cut by Kafka partition, the passes over it.
Must not know: how the transaction is held, lost and decided (`batch_transactions.py`), how a task
writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from txnproducer.lease import TransactionLease
from txnproducer.producer import TransactionalProducer
from txnproducer.spark.driver.batch_retries import RunBounds
from txnproducer.spark.driver.batch_transactions import BatchTransactions
from txnproducer.spark.driver.checks import ClusterChecks
from txnproducer.spark.driver.frames import partitions_of
from txnproducer.spark.driver.replay import report_replay
from txnproducer.spark.driver.small_batches import SmallBatches
from txnproducer.spark.ledger.entries import LedgerBatch, LedgerEntry
from txnproducer.spark.ledger.slots import Content
from txnproducer.spark.ledger.store import Ledger
from txnproducer.spark.options import SinkSettings
from txnproducer.spark.reports import (
    BatchReport,
    OnEvent,
    PartitionReport,
    phases_since,
    report_whole,
    tell,
)
from txnproducer.spark.rows.arrow_rows import ArrowRows
from txnproducer.spark.rows.placing import placed
from txnproducer.spark.rows.schema import written_columns
from txnproducer.spark.session import losses_of, stop_raiser
from txnproducer.spark.tasks.participant import Part, ParticipantOrder, ParticipantTask, is_failed
from txnproducer.spark.tasks.task_rows import TaskRows

_Written: TypeAlias = tuple[list[Part], LedgerEntry | None]


class WholeBatches:
    """The batches of a sink of atomicity "batch".

    Args:
        settings, ledger: of the sink.
        cluster: gives the producer's settings, and the number of the topic's partitions.
        on_event: called on the driver and in the tasks.

    Attributes:
        transactions: the driver's hold on the one id of whole batches.
    """

    def __init__(
        self,
        settings: SinkSettings,
        ledger: Ledger,
        cluster: ClusterChecks,
        on_event: OnEvent | None,
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._on_event = on_event
        self.transactions = BatchTransactions(ledger, settings.rules, partial(tell, on_event))
        self._small = SmallBatches(settings.driver_rows)

    def check(self, batch_id: int, query_id: str, run_id: str | None = None) -> None:
        """Check, before the frame is planned, that the batch may be written."""
        self.transactions.check(LedgerBatch(batch_id, query_id, 0, run_id))
        if self.transactions.last is not None:
            self._small.note_entry(self.transactions.last.rows)

    def write(
        self,
        frame: Any,
        batch_id: int,
        query_id: str,
        began_s: float,
        run_id: str | None = None,
    ) -> BatchReport:
        """Write a batch, and return its report. The arguments: see `PartitionBatches.write`.

        Raises:
            SinkError, KafkaError: refused, or failed for good; nothing of it will be visible.
            Exception: raised by Spark for the frame itself.
        """
        settings = self._cluster.producer_settings()
        transactions, reader = self.transactions, self._settings.reader()
        # Columns that are not written are dropped before the shuffle, which would carry them
        # along.
        frame = written_columns(frame, reader)
        batches = self._small.read(frame)
        if batches is not None:
            stop = stop_raiser(frame)
            small = LedgerBatch(batch_id, query_id, 1, run_id)
            return self._write_small(batches, small, began_s, stop)
        cut = placed(frame, self._cluster.partitions)
        task = ParticipantTask(settings, reader, cut.places, batch_id, self._on_event)
        # Before the transaction begins: counting runs the frame's shuffles, and its time-out would
        # run.
        partitions = partitions_of(cut.frame, task, cut.count, is_failed)
        batch = LedgerBatch(batch_id, query_id, partitions.count, run_id)

        def read() -> list[Content]:
            parts = partitions.run(ParticipantOrder(None)) if partitions.count else []
            return [(part.rows, part.digest) for part in parts]

        def run_tasks(lease: TransactionLease, is_last: bool) -> list[Part]:
            parts: list[Part] = partitions.run(ParticipantOrder(lease, seeks_cause=is_last))
            return parts

        own = self._settings
        bounds = RunBounds(own.max_runs, own.max_losses, losses_of(frame))

        def write() -> _Written:
            return transactions.write(batch, run_tasks, partitions.raise_if_stopped, bounds)

        return self._write(batch, began_s, write, read, is_by_driver=False)

    def _write_small(
        self,
        batches: list[Any],
        batch: LedgerBatch,
        began_s: float,
        raise_if_stopped: Callable[[], None],
    ) -> BatchReport:
        """Write the rows of a small batch, and return its report."""
        reader = self._settings.reader(self._cluster.partitions)

        # The rows are here, so another attempt does not evaluate the frame again.
        def rows() -> TaskRows:
            return TaskRows(ArrowRows(batches, reader), batch.batch_id, 0, self._on_event)

        def read() -> list[Content]:
            found = rows()
            found.read()
            return [found.content]

        def send(producer: TransactionalProducer) -> Part:
            found = rows()
            with found.timed("write"):
                found.send_to(producer)
            return Part(None, failure="", recovery="abort", **found.measured)

        def write() -> _Written:
            bounds = RunBounds(self._settings.max_runs)
            return self.transactions.write_rows(batch, send, raise_if_stopped, bounds)

        return self._write(batch, began_s, write, read, is_by_driver=True)

    def _write(
        self,
        batch: LedgerBatch,
        began_s: float,
        write: Callable[[], _Written],
        read: Callable[[], list[Content]],
        *,
        is_by_driver: bool,
    ) -> BatchReport:
        transactions = self.transactions
        parts: list[Part] = []
        entry = None
        if not (is_by_driver and transactions.goes_on(batch)):
            entry = transactions.enter(batch, self._cluster.producer_settings())
        checked_s = time.monotonic()
        if entry is None:
            parts, entry = write()
        # Not an `else`: the commit in doubt of an earlier attempt may turn out to have succeeded.
        if entry is not None:
            report = report_replay(entry, read, self._settings.on_replay_mismatch, began_s)
        else:
            phases = {
                **phases_since(began_s, checked_s),
                "driver.transaction": transactions.transaction_s,
            }
            report = report_whole(
                batch.batch_id,
                _reports(parts),
                phases,
                self._cluster.timeout_ms(),
                transactions.attempts,
                is_by_driver=is_by_driver,
            )
        self._small.note_report(report)
        return replace(report, run_id=batch.run_id)

    def refresh(self, query_id: str, settings: Mapping[str, str]) -> int:
        """Commit the entry again as it is. See `BatchTransactions.refresh`."""
        return self.transactions.refresh(query_id, settings)

    def close(self) -> None:
        """Close the producer that is kept between batches."""
        self.transactions.close()


def _reports(parts: list[Part]) -> tuple[PartitionReport, ...]:
    return tuple(
        PartitionReport(number, part.rows, part.size_bytes, part.digest, False, part.seconds)
        for number, part in enumerate(parts)
    )
