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
* What is taken over of another query is what the first look has found; see `take_over.py`.
* What belongs to another query stops a run before anybody is fenced.
* The plan is committed again before it could expire, also by a driver that runs for months.
* A task or a refresh takes the id of a slot, and then reads the plan: it commits nothing in a run
  that is over. A data source's commit begins a run, and then makes sure of all ids. Its entries
  may lie under the ids of other slots; even so only one of the two can commit an entry of a slot.
* Until a partition has an entry, a plan shuts out a driver that writes whole batches: its first
  one leaves no trace before it is committed, and nothing that comes later would keep it from it.
  (Not with the first plan alone: a driver may die behind that, or have no right to the id.)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final, TypeAlias

from txnproducer.errors import KafkaTimeoutError, UnstableOffsetCommitError
from txnproducer.producer import TransactionalProducer
from txnproducer.spark.ledger.entries import Batch, LedgerEntry, PlanEntry
from txnproducer.spark.ledger.first_look import DECIDED_WITHIN_S, FirstLook
from txnproducer.spark.ledger.producers import holding
from txnproducer.spark.ledger.rules import LedgerRules, check_run
from txnproducer.spark.ledger.store import Ledger

_LOG = logging.getLogger(__name__)
MOST_AT_ONCE: Final = 8
_PLAN_LASTS_S: Final = 6 * 3600.0  # much less than brokers keep offsets: seven days

_Entries: TypeAlias = dict[int, LedgerEntry]


class Runs:
    """The driver's hold on a sink.

    Args:
        ledger: where plan and entries are.
        rules: what to do about entries that do not fit.

    Attributes:
        taken_over: the entries that the batch entered last takes over, by partition.
    """

    def __init__(self, ledger: Ledger, rules: LedgerRules) -> None:
        self._ledger = ledger
        self._rules = rules
        self._first_look = FirstLook(ledger, rules)
        self._taking = self._first_look.take_over
        self._plan: PlanEntry | None = None
        self._last: Batch | None = None
        self._is_last_reported = False
        self._planned_s = 0.0
        self.taken_over: _Entries = {}

    def check(self, batch_id: int, query_id: str) -> None:
        """Find out, before a run begins, whether the batch has to stop, however it will be cut.

        Nobody is harmed. A run that goes on asks nothing here.

        Args:
            batch_id: of the batch.
            query_id: whose.

        Raises:
            SinkError: what the ledger holds stops the batch.
            KafkaError: the cluster did.
        """
        if self._plan is None or not self._is_last_reported or self._plan.query_id != query_id:
            self._first_look.check(batch_id, query_id)

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
        self._first_look.check_groups(batch.writers)
        # Tasks of a batch that failed may still run; nobody tells.
        plan = self._plan if self._is_last_done() else None
        self._last, self._is_last_reported = batch, False
        if plan is None or plan.query_id != batch.query_id:
            plan = self._begin_run(batch, settings)
        elif batch.writers > plan.most_writers or self._is_plan_old():
            most = max(plan.most_writers, batch.writers)
            plan = self._plan_again(replace(plan, most_writers=most), settings)
            # Nobody has the new ids yet; but whether they may be used is found out here, and not
            # in a task.
            self._fence(range(self._most_writers(), most), settings)
        view = self._first_look.view(range(plan.most_writers))
        check_run(view.plan, plan.run, plan.query_id)
        self._plan, entries = plan, view.entries
        self.taken_over = self._taking.of(entries, batch.batch_id, batch.query_id)
        return plan.run, self._check(batch, entries)

    def enter_commit(self, batch: Batch, settings: Mapping[str, str]) -> _Entries:
        """Make sure, before open parts of a batch are committed, that nobody commits others.

        Each commit is a run of its own. The ids of its partitions are not taken: its tasks have
        done that, and the parts that they have left open must live.

        Args:
            batch: which one.
            settings: the producer's, by Java's names.

        Returns:
            The entries of partitions that hold the batch already.

        Raises:
            SinkError: what the ledger holds stops the batch.
            KafkaError: the cluster did.
        """
        self._first_look.check_groups(batch.writers)
        view = self._first_look.view(range(batch.writers), waits_for_undecided=False)
        self._rules.check_plan(view.plan, batch.query_id)
        self._rules.fitting(view.entries, batch.batch_id, batch.query_id)
        with self._planning(settings) as producer:
            before = self._first_look.view().plan
            self._rules.check_plan(before, batch.query_id)
            known = self._first_look.known_partitions() if before is None else 0
            plan = self._next_plan(before, batch, known)
            self._commit(producer, plan)
        if before is None or not view.entries:
            self._shut_out_whole_batches(settings)
        self._fence(range(batch.writers, plan.most_writers), settings)
        entries = self._first_look.view(range(plan.most_writers), asks_for_plan=False).entries
        return self._rules.check(entries, batch.batch_id, batch.query_id, batch.writers)

    def batch_done(self) -> None:
        """Note that every partition has committed the batch: the run can go on."""
        self._is_last_reported = True

    def _is_last_done(self, *, waits_for_undecided: bool = True) -> bool:
        """Tell whether every partition has committed the last batch."""
        last = self._last
        if last is None or self._is_last_reported:
            return self._is_last_reported
        # Who calls `foreachPartition` does not tell us how it ended.
        try:
            _, entries = self._ledger.read(
                range(last.writers),
                waits_for_undecided=waits_for_undecided,
                timeout_s=DECIDED_WITHIN_S,
            )
        except (UnstableOffsetCommitError, KafkaTimeoutError) as error:
            # A task that died leaves its entry undecided until its transaction times out; taking
            # its id, as a new run does, ends that at once.
            _LOG.info("batch %d may not be whole: %s", last.batch_id, error)
            return False
        holders = [
            partition
            for partition, entry in entries.items()
            if (entry.batch_id, entry.query_id) == (last.batch_id, last.query_id)
        ]
        return len(holders) == last.writers

    def _check(self, batch: Batch, entries: _Entries) -> _Entries:
        """Return the entries that hold the batch; raise if one does not fit."""
        batch_id, query_id = batch.batch_id, batch.query_id
        taken_over = self._taking.of(entries, batch_id, query_id)
        return self._taking.rules.check(entries, batch_id, query_id, batch.writers, taken_over)

    def _check_before_harm(self, batch: Batch, partitions: int) -> _Entries:
        """Raise if this query has to stop, else return what partitions have.

        What an old task left open is not decided yet.
        """
        most = max(partitions, batch.writers)
        entries = self._first_look.check_any_cut(most, batch.batch_id, batch.query_id)
        self._check(batch, entries)
        return entries

    def _begin_run(self, batch: Batch, settings: Mapping[str, str]) -> PlanEntry:
        known = self._first_look.known_partitions()
        entries = self._check_before_harm(batch, known)
        with self._planning(settings) as producer:
            # Nobody else can commit a plan from here on; one may just have done so.
            before = self._first_look.view().plan
            self._taking.check_plan(before, batch.query_id)
            plan = self._next_plan(before, batch, known)
            self._commit(producer, plan)
        if before is None or not entries:
            self._shut_out_whole_batches(settings)
        self._fence(range(plan.most_writers), settings)
        _LOG.info("run %d begins: %d id(s) taken", plan.run, plan.most_writers)
        return plan

    def _shut_out_whole_batches(self, settings: Mapping[str, str]) -> None:
        """Make sure, behind a plan, that no whole batch of this sink id is committed.

        Who takes that id from here on sees the plan, and stops.

        Raises:
            LedgerError: one was.
        """
        with self._holding(self._ledger.whole_id, settings):
            pass
        self._first_look.view()

    def _next_plan(self, before: PlanEntry | None, batch: Batch, known: int) -> PlanEntry:
        run, most = (0, 0) if before is None else (before.run, before.most_writers)
        return PlanEntry(run + 1, batch.query_id, max(most, known, batch.writers))

    def _plan_again(self, plan: PlanEntry, settings: Mapping[str, str]) -> PlanEntry:
        with self._planning(settings) as producer:
            check_run(self._ledger.read()[0], plan.run, plan.query_id)
            self._commit(producer, plan)
        return plan

    def _most_writers(self) -> int:
        return 0 if self._plan is None else self._plan.most_writers

    def _is_plan_old(self) -> bool:
        """Tell whether the plan has to be committed again, since offsets expire."""
        return time.monotonic() - self._planned_s > _PLAN_LASTS_S

    def refresh(self, query_id: str, settings: Mapping[str, str]) -> int:
        """Commit plan and entries again as they are, so that they do not expire.

        Each entry under its own id: whoever could still commit another one is shut out before it
        is read. That would fence the tasks of a batch; so nothing is done while one may run.

        Args:
            query_id: whose sink this is.
            settings: the producer's, by Java's names.

        Returns:
            How many entries were committed again; 0 if there are none, while the last batch is
            not whole, or if the sink is another query's.

        Raises:
            StaleRunError: another driver writes with this sink.
            KafkaError: the cluster refused.
        """
        if self._last is not None and not self._is_last_done(waits_for_undecided=False):
            return 0
        found, _ = self._ledger.read(waits_for_undecided=False)
        if found is None or found.query_id != query_id:
            return 0
        plan = self._plan or found
        check_run(found, plan.run, plan.query_id)
        self._plan_again(plan, settings)
        _, entries = self._ledger.read(range(plan.most_writers), waits_for_undecided=False)
        if entries:
            with ThreadPoolExecutor(min(len(entries), MOST_AT_ONCE)) as pool:
                list(pool.map(lambda slot: self._refresh(slot, plan, settings), entries))
        return len(entries)

    def _refresh(self, slot: int, plan: PlanEntry, settings: Mapping[str, str]) -> None:
        with self._holding(self._ledger.transactional_id(slot), settings) as producer:
            present, entries = self._ledger.read([slot])
            check_run(present, plan.run, plan.query_id)
            if slot in entries:
                with producer.transaction():
                    self._ledger.write(producer, slot, entries[slot])

    def _planning(
        self, settings: Mapping[str, str]
    ) -> AbstractContextManager[TransactionalProducer]:
        return self._holding(self._ledger.plan_id, settings)

    def _holding(
        self, name: str, settings: Mapping[str, str]
    ) -> AbstractContextManager[TransactionalProducer]:
        return holding(self._ledger, name, settings)

    def _commit(self, producer: TransactionalProducer, plan: PlanEntry) -> None:
        with producer.transaction():
            self._ledger.write_plan(producer, plan)
        self._planned_s = time.monotonic()

    def _fence(self, partitions: Iterable[int], settings: Mapping[str, str]) -> None:
        with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
            for _ in pool.map(lambda partition: self.take(partition, settings), partitions):
                pass

    def take(self, partition: int, settings: Mapping[str, str]) -> None:
        """Fence whoever has a partition's id, and abort what it left open.

        Raises:
            KafkaError: the cluster refused, or did not answer.
        """
        with self._holding(self._ledger.transactional_id(partition), settings):
            pass
