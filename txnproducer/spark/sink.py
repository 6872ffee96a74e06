"""The sink as users hold it: a batch is checked on the driver, then written by its tasks.

Owns: the public class, the driver's side of the protocol, the reports. Must not know: how a task
writes (`tasks/partition_transaction.py`), what an entry of the ledger means (`ledger`).

Rules:
* Everything that can be refused is refused on the driver, before a task starts: also before the
  tasks of the frame's own shuffles, but for what depends on the number of partitions.
* The number of writers is fixed by the driver and sent along: a task can't learn it.
* The partitions that were counted are those that are run (`frames.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from txnproducer.errors import InvalidConfigurationError
from txnproducer.lease import TransactionLease
from txnproducer.spark import session
from txnproducer.spark.driver import checks
from txnproducer.spark.driver.frames import partitions_of
from txnproducer.spark.driver.runs import Runs
from txnproducer.spark.driver.whole_batch import WholeBatches
from txnproducer.spark.driver.write_or_upkeep import Turn
from txnproducer.spark.ledger import rights
from txnproducer.spark.ledger.digest import total
from txnproducer.spark.ledger.entries import Batch, LedgerEntry
from txnproducer.spark.ledger.rules import (
    added_up,
    check_whole_replay,
    check_without_frame,
    is_whole,
)
from txnproducer.spark.ledger.slots import assign_slots
from txnproducer.spark.ledger.store import Ledger, close_connections
from txnproducer.spark.options import read_settings
from txnproducer.spark.reports import (
    BatchReport,
    OnEvent,
    PartitionReport,
    SinkTotals,
    phases_since,
    report_found,
    report_partitions,
    report_whole,
    tell,
)
from txnproducer.spark.rows.placing import placed
from txnproducer.spark.rows.schema import check_schema, written_columns
from txnproducer.spark.rows.topic_partitions import partitions_of_topic
from txnproducer.spark.status import SinkStatus, read_status
from txnproducer.spark.tasks.participant import Part, ParticipantOrder, ParticipantTask
from txnproducer.spark.tasks.partition_transaction import (
    BatchPlan,
    PartitionOrder,
    PartitionTask,
    PartitionWriter,
    skip_rows,
)

_LOG = logging.getLogger(__name__)


class ExactlyOnceKafkaSink:
    """Write frames to Kafka, each row exactly once for readers at read_committed.

        sink = ExactlyOnceKafkaSink("localhost:9092", "orders-sink", topic="orders")
        frame.writeStream.foreachBatch(sink).option("checkpointLocation", ...).start()

    Atomicity "partition": each Spark partition is one transaction, under one transactional id that
    is the same for ever (`<sink_id>.p<partition>`). A reader may see some partitions of a batch
    before others. Atomicity "batch": the whole batch is one transaction (`<sink_id>.batch`), which
    all tasks write; a reader sees in each partition all of it or nothing.

    Each argument but `on_event` can be given as an option instead, in camelCase (`sinkId`);
    what is given as both has to be the same.

    Args:
        bootstrap_servers: "host:port", several separated by commas; as an option
            `kafka.bootstrap.servers`.
        sink_id: the sink's stable name; unique to one query on the cluster.
        topic: for all rows; None to take each row's column `topic`.
        atomicity: "partition" (the default), or "batch" (which needs `topic`).
        writers: how many partitions write; None for as many as the frame has. With atomicity
            "batch" the topic's partitions decide.
        query_id: whose batch ids these are; None to ask Spark (streaming queries only).
        ledger_topic: the topic whose partition 0 the ledger's offsets name; default `topic`.
        on_missing_ledger: "stop" (the default), or "write" where no ledger is expected.
        on_replay_mismatch: "stop" (the default), or "keep" to leave what was committed as it is.
        on_foreign_ledger: "stop" (the default), or "take_over" another query's ledger.
        first_batch_id: the one batch that needs no ledger; 0 by default.
        on_event: called in the tasks with the name of an event and a dict; must be picklable.
        options: Spark's options: `kafka.*`, `topic`, `includeHeaders`, `transactionTimeout`, and
            the arguments' counterparts.

    Attributes:
        last_report: of the batch written last, or None.
        totals: of all batches that this object has written.

    Raises:
        InvalidConfigurationError: an argument does not fit; names it and the way out.
    """

    def __init__(
        self,
        bootstrap_servers: str | None = None,
        sink_id: str | None = None,
        topic: str | None = None,
        atomicity: Literal["partition", "batch"] | None = None,
        writers: int | None = None,
        query_id: str | None = None,
        ledger_topic: str | None = None,
        on_missing_ledger: Literal["stop", "write"] | None = None,
        on_replay_mismatch: Literal["stop", "keep"] | None = None,
        on_foreign_ledger: Literal["stop", "take_over"] | None = None,
        first_batch_id: int | None = None,
        on_event: OnEvent | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        settings = read_settings(
            options,
            bootstrap_servers=bootstrap_servers,
            sink_id=sink_id,
            topic=topic,
            atomicity=atomicity,
            writers=writers,
            query_id=query_id,
            ledger_topic=ledger_topic,
            on_missing_ledger=on_missing_ledger,
            on_replay_mismatch=on_replay_mismatch,
            on_foreign_ledger=on_foreign_ledger,
            first_batch_id=first_batch_id,
        )
        self.last_report: BatchReport | None = None
        self.totals = SinkTotals()
        self._turn = Turn()
        self._last_query_id: str | None = None
        self._settings = settings
        self._ledger = Ledger(
            settings.bootstrap_servers, settings.sink_id, settings.ledger_topic, settings.security
        )
        self._rules = settings.rules
        self._on_event = on_event
        self._timeout_ms: int | None = None
        self._runs = Runs(self._ledger, self._rules)
        whole = WholeBatches(self._ledger, self._rules, partial(tell, on_event))
        self._whole = whole if settings.is_whole else None
        self._partitions = 0

    # --- writing --------------------------------------------------------------------------------

    def __call__(self, df: Any, batch_id: int) -> None:
        """Write a micro-batch; this is what `foreachBatch` calls."""
        self.write(df, batch_id)

    def write(self, df: Any, batch_id: int) -> BatchReport:
        """Write a frame as a batch.

        Args:
            df: the frame.
            batch_id: grows from batch to batch; the same id again is a replay of that batch.

        Returns:
            What became of it.

        Raises:
            SinkError: refused on the driver; nothing was written.
            StoppedError: the query or Spark was stopped.
            Exception: what Spark raises when a task has failed too often.
        """
        began = time.monotonic()
        checks.check_batch_id(batch_id)
        check_schema(df.dtypes, self._settings.topic)
        query_id = self._settings.query_id or session.query_of(df)
        checks.check_speculation(is_on=session.speculates(df), is_whole=self._whole is not None)
        self._last_query_id = query_id
        text = f"sink {self._settings.sink_id}, batch {batch_id}"
        with self._turn, session.described(df, text), session.brief_stop(df):
            # Before partitions are counted, which runs the frame's shuffles.
            self._producer_settings()
            (self._whole or self._runs).check(batch_id, query_id)
            if self._whole is not None:
                return self._write_whole(self._whole, df, batch_id, query_id, began)
            return self._write_partitions(df, batch_id, query_id, began)

    def _write_partitions(
        self, df: Any, batch_id: int, query_id: str, began: float
    ) -> BatchReport:
        wanted = self._settings.writers
        frame = written_columns(df, self._settings.topic, self._settings.include_headers)
        if wanted is not None:
            frame = frame.repartition(wanted)
        task = PartitionTask(self._batch_plan(Batch(batch_id, query_id, 0), run=0))
        partitions = partitions_of(frame, task, wanted)
        writers = partitions.count
        plan, done = self._plan(Batch(batch_id, query_id, max(1, writers)))
        reading = PartitionOrder(plan.run, writers, is_read_only=True)
        if is_whole(done):
            report = self._found(batch_id, added_up(done), began, lambda: partitions.run(reading))
            self._runs.batch_done()
            return self._tell_of(report)
        slots = {}
        if done:
            # The others may be written only if the rows are cut as they were then; a task would
            # find out too late, when its neighbour has written already.
            found = dict(enumerate(partitions.run(reading)))
            slots = assign_slots(batch_id, done, found, self._settings.on_replay_mismatch)
        checked = time.monotonic()
        if writers:
            order = PartitionOrder(plan.run, writers, taken_over=plan.taken_over, slots=slots)
            reports = partitions.run(order)
        else:  # a frame that is empty by its plan runs no task, but the batch must be recorded
            partitions.raise_if_stopped()
            reports = [plan.write(0, plan.rows(()))]
        self._runs.batch_done()
        phases = phases_since(began, checked)
        return self._tell_of(report_partitions(batch_id, reports, phases, self._timeout()))

    def _write_whole(
        self, whole: WholeBatches, df: Any, batch_id: int, query_id: str, began: float
    ) -> BatchReport:
        settings = self._producer_settings()
        topic, include_headers = self._settings.topic, self._settings.include_headers
        cut = placed(written_columns(df, topic, include_headers), self._partitions)
        task = ParticipantTask(
            settings, topic, include_headers, cut.places, batch_id, self._on_event
        )
        partitions = partitions_of(cut.frame, task, cut.count)
        batch = Batch(batch_id, query_id, partitions.count)

        def read() -> list[tuple[int, str]]:
            parts = partitions.run(ParticipantOrder(None)) if partitions.count else []
            return [(part.rows, part.digest) for part in parts]

        entry = whole.enter(batch, settings)
        if entry is not None:
            return self._tell_of(self._found(batch_id, entry, began, read))

        def run_tasks(lease: TransactionLease, is_last: bool) -> list[Part]:
            parts: list[Part] = partitions.run(ParticipantOrder(lease, seeks_cause=is_last))
            return parts

        checked = time.monotonic()
        parts, entry = whole.write(batch, run_tasks, partitions.raise_if_stopped)
        if entry is not None:
            return self._tell_of(self._found(batch_id, entry, began, read))
        reports = tuple(
            PartitionReport(number, part.rows, part.size_bytes, part.digest, False, part.seconds)
            for number, part in enumerate(parts)
        )
        phases = {**phases_since(began, checked), "driver.transaction": whole.transaction_s}
        report = report_whole(batch_id, reports, phases, self._timeout(), whole.runs)
        return self._tell_of(report)

    def _found(
        self,
        batch_id: int,
        entry: LedgerEntry,
        began: float,
        read: Callable[[], list[tuple[int, str]]],
    ) -> BatchReport:
        """Write nothing of a batch that is committed; its rows have to be those of then."""
        _LOG.info("batch %d is committed already; it is not written again", batch_id)
        if self._settings.on_replay_mismatch != "keep":
            # Else a checkpoint that was set back, or a batch id given twice, would lose new rows.
            found = read()
            rows, digest = sum(rows for rows, _ in found), total(digest for _, digest in found)
            check_whole_replay(entry, rows, digest)
        return report_found(batch_id, entry.rows, entry.writers, time.monotonic() - began)

    def partition_writer(self, batch_id: int, writers: int) -> Callable[[Iterable[Any]], None]:
        """Return what writes a partition, for `frame.foreachPartition`; made on the driver.

        Args:
            batch_id: as in `write`.
            writers: how many partitions the frame has; `frame.repartition(n)` makes sure.

        Raises:
            SinkError: refused; nothing was written.
        """
        checks.check_batch_id(batch_id)
        if self._whole is not None:
            raise InvalidConfigurationError(
                "partition_writer has no driver that could commit a whole batch: use `write`, or "
                'atomicity="partition"'
            )
        checks.check_writers(writers)
        query_id = self._settings.query_id or session.query_of(None)
        if self._timeout_ms is None:  # the first time, before anybody is fenced
            session.check_interpreter()
        with self._turn:
            plan, done = self._plan(Batch(batch_id, query_id, writers))
        if self._settings.on_replay_mismatch != "keep":
            check_without_frame(batch_id, done, writers)
        if is_whole(done) and len(done) != writers:
            self._runs.batch_done()
            return skip_rows
        return PartitionWriter(plan)

    def close(self) -> None:
        """Let go of the cluster: connections are kept between batches, and a producer."""
        if self._whole is not None:
            self._whole.close()
        close_connections()

    # --- upkeep ---------------------------------------------------------------------------------

    @property
    def query_id(self) -> str | None:
        """The query id that the sink was given; None if Spark is asked for it."""
        return self._settings.query_id

    def status(self) -> SinkStatus:
        """Return what the ledger holds, and which transactions are open; nobody is disturbed."""
        return read_status(self._ledger)

    def refresh_ledger(self, query_id: str | None = None) -> int:
        """Commit the ledger's entries again as they are, so that they do not expire.

        Brokers forget offsets seven days after the last commit (`offsets.retention.minutes`), and
        a query that finds no ledger stops. `SinkListener` calls this while a query is idle.

        Args:
            query_id: whose sink this is; None for the sink's own `query_id`, or that of the last
                batch.

        Returns:
            How many entries were committed again. None is while a batch is written or was broken
            off (it would fence the batch's tasks), or if the sink is another query's.

        Raises:
            StaleRunError: another driver writes with this sink id.
            KafkaError: the cluster refused.
        """
        name = query_id or self._settings.query_id or self._last_query_id
        if name is None or not self._turn.try_to_take():
            return 0
        try:
            upkeep = self._runs if self._whole is None else self._whole
            return upkeep.refresh(name, self._producer_settings())
        finally:
            self._turn.give_back()

    # --- what is checked before a task starts ---------------------------------------------------

    def _producer_settings(self) -> dict[str, str]:
        """Return the producers' settings, after the first look at the cluster."""
        if self._timeout_ms is None:
            self._partitions = rights.check_topics(self._ledger, self._settings.topic)
            if self._whole is not None:
                ledger = self._ledger
                groups = [ledger.whole_group, ledger.plan_group, ledger.group(0)]
                rights.check_groups(ledger, groups)
            wanted = self._settings.transaction_timeout_ms
            self._timeout_ms = checks.choose_timeout_ms(self._ledger, wanted)
        return {"transaction.timeout.ms": str(self._timeout_ms), **self._settings.producer}

    def _plan(self, batch: Batch) -> tuple[BatchPlan, dict[int, LedgerEntry]]:
        """Return what the tasks are told, and which partitions hold the batch already."""
        run, done = self._runs.enter(batch, self._producer_settings())
        if len(done) == batch.writers:
            _LOG.info("batch %d is committed already; its rows are compared", batch.batch_id)
        return self._batch_plan(batch, run), done

    def _batch_plan(self, batch: Batch, run: int) -> BatchPlan:
        return BatchPlan(
            self._ledger,
            self._rules,
            self._producer_settings(),
            self._settings.topic,
            batch.batch_id,
            batch.query_id,
            batch.writers,
            run,
            self._settings.on_replay_mismatch,
            self._on_event,
            self._settings.include_headers,
            self._runs.taken_over,
            partitions_of_topic(self._ledger, self._settings.topic, self._partitions),
        )

    # --- reports --------------------------------------------------------------------------------

    def _timeout(self) -> int:
        return int(self._producer_settings()["transaction.timeout.ms"])

    def _tell_of(self, report: BatchReport) -> BatchReport:
        self.last_report = report
        self.totals = self.totals.plus(report)
        report.tell(self._settings.sink_id, self._timeout())
        if self._on_event is not None:
            self._on_event("batch_done", {"batch_id": report.batch_id, "report": replace(report)})
        return report


__all__ = ["ExactlyOnceKafkaSink"]
