"""The sink for users: its options, one call for each batch, its reports.

Owns: the public class, the reports. Must not know: how a batch is written
(`driver/partition_batch.py`, `driver/whole_batch.py`, `driver/prepared_batch.py`), which atomicity
a sink has that names none (`driver/atomicity.py`).

Rule: everything that can be refused is refused on the driver, before a task starts. Most of it is
refused even before the tasks of the frame's own shuffles; only a check that needs the number of
partitions comes later.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, Literal, TypeAlias

from txnproducer.errors import InvalidConfigurationError
from txnproducer.spark import session
from txnproducer.spark.driver import atomicity as atomicities
from txnproducer.spark.driver import checks
from txnproducer.spark.driver.atomicity import Choice
from txnproducer.spark.driver.checks import ClusterChecks
from txnproducer.spark.driver.partition_batch import PartitionBatches
from txnproducer.spark.driver.prepared_batch import PreparedBatches
from txnproducer.spark.driver.sink_lock import SinkLock
from txnproducer.spark.driver.whole_batch import WholeBatches
from txnproducer.spark.errors import SinkError, naming_prepared
from txnproducer.spark.interpreters import check_interpreter
from txnproducer.spark.ledger.store import close_connections
from txnproducer.spark.options import ARGUMENTS, read_settings
from txnproducer.spark.reports import BatchReport, OnEvent, SinkTotals
from txnproducer.spark.rows.schema import check_schema
from txnproducer.spark.spark_metrics import SinkGauges
from txnproducer.spark.status import SinkStatus, read_status

_LOG = logging.getLogger(__name__)
_Batches: TypeAlias = PartitionBatches | WholeBatches
_BATCHES: Final[Mapping[str, type[_Batches]]] = {
    "partition": PartitionBatches,
    "batch": WholeBatches,
    "prepared": PreparedBatches,
}


class ExactlyOnceKafkaSink:
    """Write frames to Kafka, each row exactly once for readers at read_committed.

    A streaming query takes the sink as its `foreachBatch`::

        sink = ExactlyOnceKafkaSink("localhost:9092", "orders-sink", topic="orders")
        frame.writeStream.foreachBatch(sink).option("checkpointLocation", ...).start()

    Atomicity "partition": each Spark partition is one transaction, under a transactional id that
    never changes (`<sink_id>.p<partition>`). A reader may see some partitions of a batch before
    others. Atomicity "batch": the whole batch is one transaction (`<sink_id>.batch`), which all
    tasks write. In each partition of the topic a reader sees all of it or nothing. Atomicity
    "prepared": the tasks leave their transactions open, the driver decides about all of them at
    once, and ends them within milliseconds. A batch that was decided needs its frame no more.

    Without an atomicity the first batch chooses it: a sink id that was used goes on with the one
    that its ledger shows, and a new one gets "prepared". It gets "partition" if
    `spark.speculation` is on, if the transaction time-out is below 40 s, and with
    `partition_writer`; a named run gets "batch" with such a time-out. The log says which one it is
    and why.

    Each argument but `on_event` can be given as an option instead, in camelCase (`sinkId`). If
    both are given, they have to be equal.

    Args:
        bootstrap_servers: "host:port", several separated by commas; as an option
            `kafka.bootstrap.servers`.
        sink_id: the sink's stable name; one query on the cluster uses it.
        topic: for all rows; None to take the column `topic` of each row.
        atomicity: "partition", "batch" (which needs `topic`), or "prepared"; None to choose it as
            above.
        writers: how many partitions write; None for as many as the frame has. With atomicity
            "batch" the topic's partitions decide.
        query_id: of the query that the batch ids belong to; None to ask Spark (streaming queries
            only).
        ledger_topic: the topic that the ledger's offsets name; default `topic`.
        ledger: "offsets" (the default), or "topic" for a compacted topic of the sink's own, where
            entries do not expire; "topic:NAME" for another name than `<sink_id>.ledger`.
        ledger_keeps: with "topic", for how many days named runs are remembered; default 400.
        on_missing_ledger: "stop" (the default), or "write" if no ledger is expected.
        on_replay_mismatch: for a batch that comes again with other rows. "stop" refuses it, and
            "keep" leaves committed rows as they are. With "prepared" the default is "warn": a
            batch that is wholly committed stays as it is, and the report and the log say so.
        on_foreign_ledger: "stop" (the default), or "take_over" another query's ledger.
        max_runs: how many runs of a batch may fail; 3 by default. With "partition" it counts only
            for a batch that the driver writes.
        max_losses: likewise, how many runs of a batch may lose an executor; 20 by default.
        driver_rows: the most rows of a batch that the driver writes itself, mostly after one
            that was not larger; 0 for none, default 10,000. See docs/spark.md, "Small batches".
        first_batch_id: the one batch that needs no ledger; 0 by default.
        on_event: called in the tasks with the name of an event and a dict; must be picklable.
        options: Spark's options: `kafka.*`, `topic`, `includeHeaders`, `transactionTimeout`, and
            the arguments' counterparts.

    Attributes:
        last_report: of the last batch, or None.
        totals: of all batches that this object has written.

    Raises:
        InvalidConfigurationError: an argument is wrong; names it and the way out.
    """

    def __init__(
        self,
        bootstrap_servers: str | None = None,
        sink_id: str | None = None,
        topic: str | None = None,
        atomicity: Literal["partition", "batch", "prepared"] | None = None,
        writers: int | None = None,
        query_id: str | None = None,
        ledger_topic: str | None = None,
        ledger: str | None = None,
        ledger_keeps: int | None = None,
        on_missing_ledger: Literal["stop", "write"] | None = None,
        on_replay_mismatch: Literal["stop", "keep", "warn"] | None = None,
        on_foreign_ledger: Literal["stop", "take_over"] | None = None,
        max_runs: int | None = None,
        max_losses: int | None = None,
        driver_rows: int | None = None,
        first_batch_id: int | None = None,
        on_event: OnEvent | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        # First, before another name is bound: only the arguments are local here.
        given = locals()  # the arguments, by name
        arguments = {name: given[name] for name in ARGUMENTS if name in given}
        settings = read_settings(options, **arguments)
        self.last_report: BatchReport | None = None
        self.totals = SinkTotals()
        self._lock = SinkLock()
        self._last_query_id: str | None = None
        self._settings = settings
        self._ledger = settings.sink_ledger
        self._on_event = on_event
        self._asks_speculation = True
        self._gauges = SinkGauges(settings.sink_id)
        # Of the other two the first look checks the rights on groups, as it knows how many there
        # are. Without an atomicity the ledger is looked at before.
        checks_groups = settings.atomicity in (None, "batch")
        self._cluster = ClusterChecks(settings, self._ledger, checks_groups=checks_groups)
        self._batches: _Batches | None = None
        if settings.atomicity is not None:
            self._batches = self._made(settings.atomicity)

    def _made(self, atomicity: str) -> _Batches:
        return _BATCHES[atomicity](self._settings, self._ledger, self._cluster, self._on_event)

    def _begin(self, choice: Choice, *, is_speculating: bool = False) -> _Batches:
        """Settle the atomicity of a sink that names none. The lock must be held."""
        self._settings = atomicities.chosen(
            self._settings, choice, self._cluster.timeout_ms(), is_speculating=is_speculating
        )
        _LOG.info(
            "sink %s: no atomicity was given; it is %r, since %s",
            self._settings.sink_id,
            choice.atomicity,
            choice.reason,
        )
        self._batches = self._made(choice.atomicity)
        return self._batches

    def _choice(self, *, is_speculating: bool, is_named: bool) -> Choice:
        return atomicities.of_ledger(self._ledger) or atomicities.for_new_id(
            self._cluster.timeout_ms(), is_speculating=is_speculating, is_named=is_named
        )

    # --- writing --------------------------------------------------------------------------------

    def __call__(self, df: Any, batch_id: int) -> None:
        """Write a micro-batch. `foreachBatch` calls this."""
        try:
            self.write(df, batch_id)
        except SinkError as error:
            # Spark shows the traceback of a query three times over. Nobody would find the sentence
            # that matters below the sink's own calls, which tell nothing of a refusal.
            error.__traceback__ = None
            raise

    def write(
        self, df: Any, batch_id: int | None = None, *, run_id: str | None = None
    ) -> BatchReport:
        """Write a frame as a batch, which has a number or a name.

        Args:
            df: the frame.
            batch_id: grows from batch to batch; the same id again is a replay of that batch.
            run_id: any text, such as a scheduler's logical date, in any order; the same text again
                is a replay. It needs `ledger="topic"` and atomicity "prepared" or "batch".

        Returns:
            The report of the batch.

        Raises:
            InvalidConfigurationError: an argument or a setting does not fit, the query's id is not
                known, or Spark Connect needs `writers`; nothing was written.
            SinkError: refused on the driver; nothing was written.
            StoppedError: the query or Spark was stopped.
            BatchFailedError: nothing of the batch is visible.
            KafkaError: an error of the sink in a task.
            Exception: an error of the frame, by which Spark fails a task.
        """
        began = time.monotonic()
        named: dict[str, str] = {}
        if run_id is None:
            number = checks.check_batch_id(batch_id)
        else:
            checks.check_named(self._settings, run_id, batch_id)
            number, named = 0, {"run_id": run_id}
        # Before the cluster is asked: a frame that does not fit needs no connection to be refused.
        check_schema(df.dtypes, self._settings.topic)
        query_id = self._settings.query_id or session.query_of(df)
        # Once: the setting is one of Spark's start, and cannot change.
        is_speculating = self._asks_speculation and session.speculates(df)
        if self._settings.atomicity is not None:
            checks.check_speculation(self._settings.atomicity, is_on=is_speculating)
        # Kept for `refresh_ledger`, which has no frame to ask.
        self._last_query_id = query_id
        text = f"sink {self._settings.sink_id}, batch {number if run_id is None else run_id}"
        # The lock first: a listener may refresh the ledger in its own thread, and would fence the
        # tasks.
        with self._lock, session.described(df, text), session.brief_stop(df):
            # First, since counting the partitions runs the frame's shuffles.
            self._cluster.producer_settings()
            batches = self._batches
            if batches is None:
                choice = self._choice(is_speculating=is_speculating, is_named=bool(named))
                batches = self._begin(choice, is_speculating=is_speculating)
                if run_id is not None:
                    checks.check_named(self._settings, run_id, batch_id)
            self._asks_speculation = False
            with naming_prepared(self._settings.atomicity):
                batches.check(number, query_id, **named)
                report = batches.write(df, number, query_id, began, **named)
            return self._publish(report)

    def partition_writer(self, batch_id: int, writers: int) -> Callable[[Iterable[Any]], None]:
        """Return a function for `frame.foreachPartition`, which writes a partition.

        It is made on the driver, for one batch.

        Args:
            batch_id: see `write`.
            writers: how many partitions the frame has; `frame.repartition(n)` makes sure.

        Raises:
            InvalidConfigurationError: atomicity is not "partition", an argument or a setting does
                not fit, or the query's id is not known.
            SinkError: refused; nothing was written.
        """
        checks.check_batch_id(batch_id)
        if self._settings.atomicity not in (None, "partition"):
            raise self._without_driver()
        checks.check_writers(writers)
        query_id = self._settings.query_id or session.query_of(None)
        # The user starts these tasks, so there is no job of ours whose failure would name the
        # interpreter.
        if not self._cluster.are_made:  # the first time, before any task is fenced
            check_interpreter()
        with self._lock:
            batches = self._batches
            if batches is None:
                self._cluster.producer_settings()
                found = atomicities.of_ledger(self._ledger)
                batches = self._begin(found or atomicities.BY_USERS_TASKS)
            if self._settings.atomicity != "partition" or isinstance(batches, WholeBatches):
                raise self._without_driver()
            with naming_prepared(self._settings.atomicity):
                return batches.partition_writer(batch_id, query_id, writers)

    def _without_driver(self) -> InvalidConfigurationError:
        return InvalidConfigurationError(
            "partition_writer has no driver that could commit a whole batch, and this sink has "
            f"atomicity={self._settings.atomicity!r}: use `write`, or, with a new sink_id, "
            'atomicity="partition"'
        )

    def close(self) -> None:
        """Close the connections that are kept between batches, and the producer."""
        if self._batches is not None:
            self._batches.close()
        if self.last_report is not None:
            self._gauges.tell(self.totals, self.last_report.timeout_share, is_last=True)
        # Those of the whole process: another sink in it opens one with its next question.
        close_connections()

    # --- upkeep ---------------------------------------------------------------------------------

    @property
    def query_id(self) -> str | None:
        """The query id that the sink was given, or None if Spark is asked for it."""
        return self._settings.query_id

    def status(self) -> SinkStatus:
        """Return the content of the ledger, and which transactions are open. It fences no task.

        Of named runs it has the 20 newest, and the number of the others.
        """
        return read_status(self._ledger)

    def refresh_ledger(self, query_id: str | None = None) -> int:
        """Commit the ledger's entries again as they are, so that they do not expire.

        Brokers forget offsets seven days after the last commit (`offsets.retention.minutes`), and
        a query that finds no ledger stops. `SinkListener` calls this while a query is idle.

        Args:
            query_id: of the query that the sink belongs to; None for the sink's own `query_id`,
                or that of the last batch.

        Returns:
            How many entries were committed again. It is 0 if they do not expire
            (`ledger="topic"`), while a batch is being written or was broken off (a refresh would
            fence its tasks), and if the sink is another query's.

        Raises:
            StaleRunError: another driver writes with this sink id.
            KafkaError: the cluster refused.
        """
        name = query_id or self._settings.query_id or self._last_query_id
        if not self._ledger.expires:
            return 0
        # Not waited for: a batch that is being written keeps its part of the ledger alive itself.
        if name is None or not self._lock.acquire_if_free():
            return 0
        try:
            settings = self._cluster.producer_settings()
            batches = self._batches
            if batches is None:
                found = atomicities.of_ledger(self._ledger)
                if found is None:
                    return 0  # nothing can expire, and the first batch chooses
                batches = self._begin(found)
            return batches.refresh(name, settings)
        finally:
            self._lock.release()

    # --- reports --------------------------------------------------------------------------------

    def _publish(self, report: BatchReport) -> BatchReport:
        self.last_report = report
        self.totals = self.totals.plus(report)
        # The log before the hook, which may raise, or in a test of crashes end this process.
        report.tell(self._settings.sink_id, self._cluster.timeout_ms())
        self._gauges.tell(self.totals, report.timeout_share)
        if self._on_event is not None:
            self._on_event("batch_done", {"batch_id": report.batch_id, "report": replace(report)})
        return report


__all__ = ["ExactlyOnceKafkaSink"]
