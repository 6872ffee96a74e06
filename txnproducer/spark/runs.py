"""The runs of a sink: how its driver shuts out whatever an earlier driver left behind.

Why it exists: a task takes the id of its own partition, and so fences earlier attempts at it. It
does not fence a task of a run with more partitions, whose id nobody takes any more: that one could
still commit rows that this run writes as well. So the plan remembers how many partitions the sink
has ever had, and a run begins by taking all of their ids.

Owns: the beginning of a run. Must not know: Spark's frames, how rows are written.

Rules:
* The plan is committed before ids are taken: an old task that takes one of them back reads, after
  that, a run that is not its own, and refuses.
* A batch with more writers than ever is not begun before the plan says so.
* What belongs to another query stops a run before anybody is fenced.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from txnproducer.config import ProducerConfig
from txnproducer.producer import TransactionalProducer
from txnproducer.spark.entries import LedgerEntry, PlanEntry
from txnproducer.spark.errors import StaleRunError
from txnproducer.spark.ledger import Ledger
from txnproducer.spark.ledger_rules import LedgerRules

_LOG = logging.getLogger(__name__)
_CLOSE_S: Final = 30.0
_MOST_AT_ONCE: Final = 8

_Entries: TypeAlias = dict[int, LedgerEntry]


@dataclass(frozen=True)
class Batch:
    """A batch, as far as the ledger is about it.

    Attributes:
        batch_id: Spark's micro-batch.
        query_id: whose.
        writers: how many partitions write it.
    """

    batch_id: int
    query_id: str
    writers: int


class Runs:
    """The driver's hold on a sink.

    Args:
        ledger: where plan and entries are.
        rules: what to do about entries that do not fit.
    """

    def __init__(self, ledger: Ledger, rules: LedgerRules) -> None:
        self._ledger = ledger
        self._rules = rules
        self._plan: PlanEntry | None = None
        self._last: Batch | None = None
        self._is_last_reported = False

    def enter(self, batch: Batch, settings: Mapping[str, str]) -> tuple[int, _Entries]:
        """Make sure, before a batch, that nobody but this run's tasks can commit.

        Args:
            batch: which one.
            settings: the producer's, by Java's names.

        Returns:
            The run, and the entries of partitions that hold the batch already.

        Raises:
            SinkError: what the ledger holds stops the batch.
            KafkaError: the cluster did.
        """
        # Tasks of a batch that failed may still run; nobody tells.
        plan = self._plan if self._is_last_done() else None
        self._last, self._is_last_reported = batch, False
        if plan is None or plan.query_id != batch.query_id:
            plan = self._begin_run(batch, settings)
        elif batch.writers > plan.most_writers:
            plan = self._raise_most_writers(plan, batch, settings)
        found, entries = self._ledger.read(range(plan.most_writers))
        check_run(found, plan.run, plan.query_id)
        self._plan = plan
        return plan.run, self._check(batch, entries)

    def batch_done(self) -> None:
        """Note that every partition has committed the batch: the run can go on."""
        self._is_last_reported = True

    def _is_last_done(self) -> bool:
        """Tell whether every partition has committed the last batch."""
        last = self._last
        if last is None or self._is_last_reported:
            return self._is_last_reported
        # Who calls `foreachPartition` does not tell us how it ended.
        _, entries = self._ledger.read(range(last.writers))
        holders = [
            partition
            for partition, entry in entries.items()
            if (entry.batch_id, entry.query_id) == (last.batch_id, last.query_id)
        ]
        return len(holders) == last.writers

    def _check(self, batch: Batch, entries: _Entries) -> _Entries:
        """Return the entries that hold the batch; raise if one does not fit."""
        return self._rules.check(entries, batch.batch_id, batch.query_id, batch.writers)

    def _check_before_harm(self, batch: Batch, partitions: int) -> None:
        """Raise if this query has to stop; what an old task left open is not decided yet."""
        plan, entries = self._ledger.read(
            range(max(partitions, batch.writers)), waits_for_undecided=False
        )
        self._rules.check_plan(plan, batch.query_id)
        self._check(batch, entries)

    def _begin_run(self, batch: Batch, settings: Mapping[str, str]) -> PlanEntry:
        known = max(self._ledger.known_partitions(), default=-1) + 1
        self._check_before_harm(batch, known)
        with self._planning(settings) as producer:
            # Nobody else can commit a plan from here on; one may just have done so.
            before, _ = self._ledger.read()
            self._rules.check_plan(before, batch.query_id)
            run, most = (0, 0) if before is None else (before.run, before.most_writers)
            plan = PlanEntry(run + 1, batch.query_id, max(most, known, batch.writers))
            self._commit(producer, plan)
        self._fence(plan.most_writers, settings)
        _LOG.info("run %d begins: %d id(s) taken", plan.run, plan.most_writers)
        return plan

    def _raise_most_writers(
        self, plan: PlanEntry, batch: Batch, settings: Mapping[str, str]
    ) -> PlanEntry:
        with self._planning(settings) as producer:
            check_run(self._ledger.read()[0], plan.run, plan.query_id)
            more = replace(plan, most_writers=batch.writers)
            self._commit(producer, more)
        return more

    @contextlib.contextmanager
    def _planning(self, settings: Mapping[str, str]) -> Iterator[TransactionalProducer]:
        producer = _producer(self._ledger.plan_id, settings)
        try:
            producer.init_transactions()
            yield producer
        finally:
            producer.close(_CLOSE_S)

    def _commit(self, producer: TransactionalProducer, plan: PlanEntry) -> None:
        with producer.transaction():
            self._ledger.write_plan(producer, plan)

    def _fence(self, count: int, settings: Mapping[str, str]) -> None:
        ids = [self._ledger.transactional_id(partition) for partition in range(count)]
        with ThreadPoolExecutor(min(count, _MOST_AT_ONCE)) as pool:
            for _ in pool.map(lambda name: _take(name, settings), ids):
                pass


def check_run(plan: PlanEntry | None, run: int, query_id: str) -> None:
    """Check that a run is still the one that counts.

    Raises:
        StaleRunError: another one has begun, or the plan is gone.
    """
    if plan is None:
        raise StaleRunError(
            f"run {run} of this sink finds no plan any more: its ledger was deleted, or has "
            "expired. Start the query anew"
        )
    if (plan.run, plan.query_id) != (run, query_id):
        raise StaleRunError(
            f"this is run {run} of query {query_id}, but run {plan.run} of query {plan.query_id} "
            "has begun: another driver writes with this sink id, or this task is left over from "
            "an earlier attempt. Nothing was written"
        )


def _take(name: str, settings: Mapping[str, str]) -> None:
    """Fence whoever has an id, and abort what it left open."""
    producer = _producer(name, settings)
    try:
        producer.init_transactions()
    finally:
        producer.close(_CLOSE_S)


def _producer(name: str, settings: Mapping[str, str]) -> TransactionalProducer:
    return TransactionalProducer.from_config(
        ProducerConfig.from_properties({**settings, "transactional.id": name})
    )
