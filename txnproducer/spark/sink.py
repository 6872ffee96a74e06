"""The sink as users hold it: a batch is checked on the driver, then written by its tasks.

Owns: the public class, the driver's side of the protocol, the reports. Must not know: how a task
writes (`partition_writer.py`), what an entry of the ledger means (`ledger.py`).

Rules:
* Everything that can be refused is refused on the driver, before a task starts.
* The number of writers is fixed by the driver and sent along: a task can't learn it.
* The frame's own RDD is written, so that the partitions that were counted are those that are run.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from txnproducer.admin import broker_setting, partition_count
from txnproducer.errors import AuthorizationError, InvalidConfigurationError
from txnproducer.lease import TransactionLease
from txnproducer.spark import options as sink_options
from txnproducer.spark.entries import LedgerEntry
from txnproducer.spark.errors import PartialReplayError, SinkError
from txnproducer.spark.ledger import Ledger
from txnproducer.spark.ledger_rules import LedgerRules, in_part
from txnproducer.spark.participant_task import Part, ParticipantTask
from txnproducer.spark.partition_writer import (
    BatchPlan,
    DigestTask,
    OnEvent,
    PartitionReport,
    PartitionTask,
    PartitionWriter,
)
from txnproducer.spark.placing import placed
from txnproducer.spark.runs import Batch, Runs
from txnproducer.spark.schema import RowReader, check_schema
from txnproducer.spark.whole_batch import WholeBatches

_LOG = logging.getLogger(__name__)

_QUERY_ID_PROPERTY: Final = "sql.streaming.queryId"
_MAX_TIMEOUT_SETTING: Final = "transaction.max.timeout.ms"


@dataclass(frozen=True)
class BatchReport:
    """What became of a batch.

    Attributes:
        batch_id: which one.
        rows: written, or found written.
        size_bytes: of keys and values.
        transactions: committed by this call.
        replayed: partitions that had committed before.
        seconds: from the first check to the last commit.
        partitions: the tasks' reports.
    """

    batch_id: int
    rows: int
    size_bytes: int
    transactions: int
    replayed: int
    seconds: float
    partitions: tuple[PartitionReport, ...]


class ExactlyOnceKafkaSink:
    """Write frames to Kafka, each row exactly once for readers at read_committed.

        sink = ExactlyOnceKafkaSink("localhost:9092", "orders-sink", topic="orders")
        frame.writeStream.foreachBatch(sink).option("checkpointLocation", ...).start()

    Atomicity "partition": each Spark partition is one transaction, under one transactional id that
    is the same for ever (`<sink_id>.p<partition>`). A reader may see some partitions of a batch
    before others. Atomicity "batch": the whole batch is one transaction (`<sink_id>.batch`), which
    all tasks write; a reader sees all of it or nothing.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        sink_id: the sink's stable name; unique to one query on the cluster.
        topic: for all rows; None to take each row's column `topic`.
        atomicity: "partition", or "batch" (which needs `topic`).
        writers: how many partitions write; None for as many as the frame has. With atomicity
            "batch" the topic's partitions decide.
        query_id: whose batch ids these are; None to ask Spark (streaming queries only).
        ledger_topic: the topic whose partition 0 the ledger's offsets name; default `topic`.
        on_missing_ledger: "stop", or "write" where no ledger is expected.
        on_replay_mismatch: "stop", or "keep" to leave what was committed as it is.
        on_foreign_ledger: "stop", or "take_over" another query's ledger.
        on_event: called in the tasks with the name of an event and a dict; must be picklable.
        options: Spark's options: `kafka.*`, `topic`, `includeHeaders`, `transactionTimeout`.

    Attributes:
        last_report: of the batch written last, or None.

    Raises:
        InvalidConfigurationError: an argument does not fit; names it and the way out.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        sink_id: str,
        topic: str | None = None,
        atomicity: str = "partition",
        writers: int | None = None,
        query_id: str | None = None,
        ledger_topic: str | None = None,
        on_missing_ledger: Literal["stop", "write"] = "stop",
        on_replay_mismatch: Literal["stop", "keep"] = "stop",
        on_foreign_ledger: Literal["stop", "take_over"] = "stop",
        on_event: OnEvent | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        sink_options.check_sink_id(sink_id)
        choose = sink_options.check_choice
        choose("atomicity", atomicity, sink_options.ATOMICITIES)
        choose("on_missing_ledger", on_missing_ledger, ("stop", "write"))
        choose("on_replay_mismatch", on_replay_mismatch, ("stop", "keep"))
        choose("on_foreign_ledger", on_foreign_ledger, ("stop", "take_over"))
        if writers is not None and (type(writers) is not int or writers < 1):
            raise InvalidConfigurationError(f"writers={writers!r}: must be an integer above 0")
        settings = sink_options.read_options(bootstrap_servers, topic, options)
        if atomicity == "batch":
            sink_options.check_batch_atomicity(settings.topic, writers)
        place = ledger_topic or settings.topic
        if place is None:
            raise InvalidConfigurationError(
                "ledger_topic is needed when rows choose their topic: name a topic that lives as "
                "long as the query"
            )
        self.last_report: BatchReport | None = None
        self._sink_id = sink_id
        self._settings = settings
        self._writers = writers
        self._query_id = query_id
        self._ledger = Ledger(bootstrap_servers, sink_id, place, settings.security)
        self._rules = LedgerRules(on_missing_ledger, on_foreign_ledger)
        self._on_replay_mismatch = on_replay_mismatch
        self._on_event = on_event
        self._timeout_ms: int | None = None
        self._runs = Runs(self._ledger, self._rules)
        is_whole = atomicity == "batch"
        self._whole = WholeBatches(self._ledger, self._rules, self._tell) if is_whole else None
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
            Exception: what Spark raises when a task has failed too often.
        """
        began = time.monotonic()
        _check_batch_id(batch_id)
        check_schema(df.dtypes, self._settings.topic)
        query_id = self._query_of(df)
        if self._whole is not None:
            return self._write_whole(self._whole, df, batch_id, query_id, began)
        if self._speculates(df):
            _warn_of_speculation()
        frame = df if self._writers is None else df.repartition(self._writers)
        rdd = _rdd_of(frame)
        writers = rdd.getNumPartitions()
        plan, done = self._plan(Batch(batch_id, query_id, max(1, writers)))
        if writers and 0 < len(done) < writers:
            # The others may be written only if the rows are cut as they were then; a task would
            # find out too late, when its neighbour has written already.
            found = rdd.mapPartitionsWithIndex(DigestTask(plan, frozenset(done))).collect()
            plan.compare(done, dict(found))
        if writers:
            reports = rdd.mapPartitionsWithIndex(PartitionTask(plan)).collect()
        else:  # a frame that is empty by its plan runs no task, but the batch must be recorded
            reports = [plan.write(0, ())]
        return self._report(batch_id, reports, time.monotonic() - began)

    def _write_whole(
        self, whole: WholeBatches, df: Any, batch_id: int, query_id: str, began: float
    ) -> BatchReport:
        if self._speculates(df):
            raise SinkError(
                'spark.speculation=true: with atomicity="batch" a part has one writer, so that a '
                "second attempt of a task is refused, and the batch begins again. Switch "
                'speculation off, or use atomicity="partition"'
            )
        settings = self._producer_settings()
        rdd, is_placed = placed(df, _rdd_of(df), self._partitions)
        batch = Batch(batch_id, query_id, rdd.getNumPartitions())
        entry = whole.enter(batch, settings)
        if entry is not None:
            _LOG.info("batch %d is committed already; it is not written again", batch_id)
            return self._report_whole(batch, [], entry, began)
        reader = RowReader(self._settings.topic, self._settings.include_headers)

        def run_tasks(lease: TransactionLease) -> list[Part]:
            task = ParticipantTask(lease, settings, reader, is_placed, batch_id, self._on_event)
            parts: list[Part] = rdd.mapPartitionsWithIndex(task).collect()
            return parts

        parts, entry = whole.write(batch, run_tasks)
        return self._report_whole(batch, parts, entry, began)

    def _report_whole(
        self, batch: Batch, parts: list[Part], entry: LedgerEntry | None, began: float
    ) -> BatchReport:
        reports = [
            PartitionReport(number, part.rows, part.size_bytes, part.digest, False, part.seconds)
            for number, part in enumerate(parts)
        ]
        is_replay = entry is not None
        rows = entry.rows if entry is not None else sum(part.rows for part in parts)
        report = BatchReport(
            batch.batch_id,
            rows,
            sum(part.size_bytes for part in parts),
            0 if is_replay else 1,
            entry.writers if entry is not None else 0,
            time.monotonic() - began,
            tuple(reports),
        )
        return self._tell_of(report)

    def partition_writer(self, batch_id: int, writers: int) -> Callable[[Iterable[Any]], None]:
        """Return what writes a partition, for `frame.foreachPartition`; made on the driver.

        Args:
            batch_id: as in `write`.
            writers: how many partitions the frame has; `frame.repartition(n)` makes sure.

        Raises:
            SinkError: refused; nothing was written.
        """
        _check_batch_id(batch_id)
        if self._whole is not None:
            raise InvalidConfigurationError(
                "partition_writer has no driver that could commit a whole batch: use `write`, or "
                'atomicity="partition"'
            )
        if type(writers) is not int or writers < 1:
            raise InvalidConfigurationError(f"writers={writers!r}: must be an integer above 0")
        plan, done = self._plan(Batch(batch_id, self._query_of(None), writers))
        if 0 < len(done) < writers and self._on_replay_mismatch != "keep":
            raise PartialReplayError(
                f"{in_part(batch_id, done)}. Nothing was written: whether the rows are the same "
                "again can't be looked at here, without the frame. Ways out: `write`, which can; "
                'on_replay_mismatch="keep", if they are; another sink id'
            )
        return PartitionWriter(plan)

    def close(self) -> None:
        """Let go of the cluster: who writes whole batches keeps a producer between them."""
        if self._whole is not None:
            self._whole.close()

    def status(self) -> dict[int, LedgerEntry]:
        """Return the ledger entry of every partition that has one; of whole batches as -1."""
        if self._whole is not None:
            entry = self._ledger.read_whole()
            return {} if entry is None else {-1: entry}
        return self._ledger.read(self._ledger.known_partitions())[1]

    # --- what is checked before a task starts ---------------------------------------------------

    def _query_of(self, df: Any) -> str:
        if self._query_id is not None:
            return self._query_id
        found: Any = None
        try:
            context = _context_of(df)
            found = None if context is None else context.getLocalProperty(_QUERY_ID_PROPERTY)
        except Exception:  # noqa: BLE001 - Connect refuses the question in several ways
            _LOG.debug("Spark does not tell the query's id", exc_info=True)
        if not found:
            raise InvalidConfigurationError(
                "query_id is needed here: Spark tells it only in a streaming query's "
                "foreachBatch, and not under Spark Connect. Name what the batch ids belong to, "
                "such as query_id='nightly-load', and keep it"
            )
        return str(found)

    @staticmethod
    def _speculates(df: Any) -> bool:
        try:
            value = df.sparkSession.conf.get("spark.speculation", "false")
        except Exception:  # noqa: BLE001 - the setting is not visible everywhere
            _LOG.debug("Spark does not tell spark.speculation", exc_info=True)
            return False
        return str(value).lower() == "true"

    def _producer_settings(self) -> dict[str, str]:
        """Return the producers' settings, after the first look at the cluster."""
        if self._timeout_ms is None:
            self._check_topic()
            self._timeout_ms = self._choose_timeout_ms()
        return {"transaction.timeout.ms": str(self._timeout_ms), **self._settings.producer}

    def _plan(self, batch: Batch) -> tuple[BatchPlan, dict[int, LedgerEntry]]:
        """Return what the tasks are told, and which partitions hold the batch already."""
        settings = self._producer_settings()
        run, done = self._runs.enter(batch, settings)
        if len(done) == batch.writers:
            _LOG.info("batch %d is committed already; its rows are compared", batch.batch_id)
        plan = BatchPlan(
            self._ledger,
            self._rules,
            settings,
            self._settings.topic,
            batch.batch_id,
            batch.query_id,
            batch.writers,
            run,
            self._on_replay_mismatch,
            self._on_event,
            self._settings.include_headers,
        )
        return plan, done

    def _check_topic(self) -> None:
        for topic in {self._ledger.topic, self._settings.topic} - {None}:
            servers, security = self._ledger.bootstrap_servers, self._ledger.security
            count = partition_count(servers, str(topic), **security)
            if topic == self._settings.topic:
                self._partitions = count or 0
            if count is None:
                raise SinkError(
                    f"the topic {topic!r} does not exist: create it first, with as many "
                    "partitions as its readers need"
                )

    def _choose_timeout_ms(self) -> int:
        wanted = self._settings.transaction_timeout_ms
        servers, security = self._ledger.bootstrap_servers, self._ledger.security
        try:
            text = broker_setting(servers, _MAX_TIMEOUT_SETTING, **security)
        except AuthorizationError as error:
            _LOG.warning("can't ask the broker for %s: %s", _MAX_TIMEOUT_SETTING, error)
            text = None
        maximum = int(text) if text is not None else None
        if wanted is None:
            default = sink_options.DEFAULT_TRANSACTION_TIMEOUT_MS
            return default if maximum is None else min(default, maximum)
        if maximum is not None and wanted > maximum:
            raise InvalidConfigurationError(
                f"transactionTimeout={wanted}: the broker's {_MAX_TIMEOUT_SETTING} is {maximum}; "
                "lower the one or raise the other"
            )
        return wanted

    # --- reports --------------------------------------------------------------------------------

    def _report(
        self, batch_id: int, reports: list[PartitionReport], seconds: float
    ) -> BatchReport:
        replayed = sum(report.is_replay for report in reports)
        report = BatchReport(
            batch_id,
            sum(report.rows for report in reports),
            sum(report.size_bytes for report in reports),
            len(reports) - replayed,
            replayed,
            seconds,
            tuple(sorted(reports, key=lambda one: one.partition)),
        )
        self._runs.batch_done()
        return self._tell_of(report)

    def _tell_of(self, report: BatchReport) -> BatchReport:
        self.last_report = report
        _LOG.info(
            "sink %s, batch %d: %d rows, %d bytes, %d transactions, %d replayed, %.2f s",
            self._sink_id,
            report.batch_id,
            report.rows,
            report.size_bytes,
            report.transactions,
            report.replayed,
            report.seconds,
        )
        if self._on_event is not None:
            self._on_event("batch_done", {"batch_id": report.batch_id, "report": replace(report)})
        return report

    def _tell(self, name: str, batch_id: int, rows: int) -> None:
        if self._on_event is not None:
            self._on_event(name, {"batch_id": batch_id, "rows": rows})


def _warn_of_speculation() -> None:
    warnings.warn(
        "spark.speculation=true: two attempts of a task fence each other; nothing is lost "
        "or doubled, but it costs time and attempts",
        RuntimeWarning,
        stacklevel=5,
    )


def _check_batch_id(batch_id: int) -> None:
    if type(batch_id) is not int or batch_id < 0:
        raise InvalidConfigurationError(f"batch_id={batch_id!r}: must be an integer, 0 or above")


def _rdd_of(frame: Any) -> Any:
    try:
        return frame.rdd
    except Exception as error:
        raise SinkError(
            "this frame has no RDD: it is Spark Connect's. There, use "
            "frame.repartition(n).foreachPartition(sink.partition_writer(batch_id, writers=n)), "
            "and give the sink a query_id"
        ) from error


def _context_of(df: Any) -> Any:
    if df is not None:
        return df.sparkSession.sparkContext
    from pyspark import SparkContext

    return SparkContext._active_spark_context  # noqa: SLF001 - there is no public way to ask


__all__ = ["BatchReport", "ExactlyOnceKafkaSink"]
