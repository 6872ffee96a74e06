"""The runs of a sink: how its driver shuts out all tasks of earlier drivers.

Why it exists: a task takes the id of its own partition, and so fences earlier attempts at it. It
does not fence a task of a run with more partitions: no task takes that id any more. The old task
could still commit rows that this run writes as well. So the plan remembers the largest number of
partitions that the sink ever had, and a run begins by taking all of their ids.

Owns: the beginning of a run, the refresh of the ledger. Must not know: Spark's frames, how rows
are written.

Rules:
* The plan is committed before ids are taken. An old task that takes its id back reads a plan of
  another run after that, and refuses.
* A batch with more writers than ever is not begun before the plan says so.
* A driver takes over only the entries that its first look finds; see `take_over.py`.
* A sink of another query stops a run before any task is fenced.
* The plan is committed again before it could expire, even by a driver that runs for months.
* A task or a refresh takes the id of a slot, and then reads the plan: it commits nothing in a run
  that is over. A data source's commit begins a run, and then takes or checks all ids. Its entries
  may be written under the ids of other slots; even so only one of the two can commit an entry of a
  slot.
* Until a partition has an entry, each plan shuts out a driver that writes whole batches. The first
  batch of such a driver leaves no trace before it is committed, and nothing later would keep it
  from committing. (The first plan alone is not enough: its driver may die right after it, or have
  no right to the id.)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TypeAlias

from txnproducer.errors import (
    IllegalStateError,
    KafkaTimeoutError,
    UnstableOffsetCommitError,
)
from txnproducer.producer import TransactionalProducer
from txnproducer.spark.driver.parallel_calls import at_once
from txnproducer.spark.ledger.entries import LedgerBatch, LedgerEntry, PlanEntry
from txnproducer.spark.ledger.first_look import DECIDED_WITHIN_S, FirstLook
from txnproducer.spark.ledger.producers import holding, take_ids
from txnproducer.spark.ledger.rules import LedgerRules, check_run
from txnproducer.spark.ledger.store import REFRESH_AFTER_S, Ledger

_LOG = logging.getLogger(__name__)

_Entries: TypeAlias = dict[int, LedgerEntry]
_Holding: TypeAlias = AbstractContextManager[TransactionalProducer]


class Runs:
    """The driver's hold on the ids of a sink's partitions.

    Args:
        ledger: of the sink.
        rules: for entries that do not fit.

    Attributes:
        taken_over: the entries that the last batch takes over, by partition.
        atomicity: of the sinks that have such runs.
    """

    atomicity = "partition"

    def __init__(self, ledger: Ledger, rules: LedgerRules) -> None:
        self._ledger = ledger
        self._rules = rules
        self._first_look = FirstLook(ledger, rules, self.atomicity)
        self._taking = self._first_look.take_over
        self._plan: PlanEntry | None = None
        self._last: LedgerBatch | None = None
        self._is_last_reported = False
        self._planned_s = 0.0
        self.taken_over: _Entries = {}

    @property
    def most_writers(self) -> int:
        """The most partitions that the sink ever had, as far as this run knows."""
        return 0 if self._plan is None else self._plan.most_writers

    def check(self, batch_id: int, query_id: str) -> _Entries | None:
        """Check, before a run begins, that a batch may be written, for any number of partitions.

        No task is fenced. A run that goes on asks nothing here.

        Args:
            batch_id: of the batch.
            query_id: of the query that it belongs to.

        Returns:
            The entries of partitions, or None if nothing was asked.

        Raises:
            SinkError: the ledger stops the batch.
            KafkaError: the cluster refused, or did not answer.
        """
        # A run that goes on holds all ids, so nothing can have changed that its own looks do not
        # see.
        if self._plan is None or not self._is_last_reported or self._plan.query_id != query_id:
            return self._first_look.check(batch_id, query_id)
        return None

    def takes_over(self, entries: _Entries, batch_id: int, query_id: str) -> _Entries:
        """Return the entries among these that a batch takes over, after `check`."""
        return self._taking.of(entries, batch_id, query_id)

    def enter(self, batch: LedgerBatch, settings: Mapping[str, str]) -> tuple[int, _Entries]:
        """Take the ids that a batch needs, so that only the tasks of this run can commit.

        Args:
            batch: the batch.
            settings: the producer's, by Java's names.

        Returns:
            The run, and the entries of partitions that hold the batch already.

        Raises:
            SinkError: the ledger stops the batch.
            KafkaError: the cluster refused, or did not answer.
        """
        # An entry of a partition that the last batch has not written may be taken over.
        if self.goes_on(batch) and self._last and batch.writers <= self._last.writers:
            return self._enter_next(batch), {}
        self._first_look.check_groups(batch.writers)
        # Tasks of a batch that failed may still run, and Spark does not say so.
        plan = self._plan if self._is_last_done() else None
        # Before anything can fail: after a batch that is not whole a new run begins.
        self._last, self._is_last_reported = batch, False
        if plan is None or plan.query_id != batch.query_id:
            plan = self._begin_run(batch, settings)
        elif batch.writers > plan.most_writers or self._is_plan_old():
            known, most = plan.most_writers, max(plan.most_writers, batch.writers)
            plan = self._plan_again(replace(plan, most_writers=most), settings)
            # The new ids are free, but the right to use them is checked here, and not in a task.
            self._fence(range(known, most), plan, settings)
        # All ids are taken: no task of another run can change an entry after this look. Another
        # driver may have begun a run, and fenced these ids, before it.
        view = self._first_look.view(range(plan.most_writers))
        check_run(view.plan, plan.run, plan.query_id)
        # Kept only after the check: a plan that failed must not let the next batch go on in its
        # run.
        self._plan, entries = plan, view.entries
        self.taken_over = self._taking.of(entries, batch.batch_id, batch.query_id)
        return plan.run, self._check(batch, entries)

    def _enter_next(self, batch: LedgerBatch) -> int:
        """Begin a batch that goes on, with a look at the plan alone. See `goes_on`.

        Raises:
            StaleRunError: another driver has begun a run.
            KafkaError: the cluster refused, or did not answer.
        """
        run = self.go_on(batch)
        # Waits for a plan that is undecided: it may be another driver's.
        check_run(self._first_look.view().plan, run, batch.query_id)
        # The last batch has written over what was taken over.
        self.taken_over = {}
        return run

    def goes_on(self, batch: LedgerBatch) -> bool:
        """Return whether a batch needs no look at the entries, if nobody has begun a run since.

        Whoever writes with this sink id begins a run, and so fences all ids. The plan says so, and
        a commit under an id that is held since the last batch. Until then the ledger is as that
        batch left it.
        """
        plan, last = self._plan, self._last
        if plan is None or last is None or not self._is_last_reported or self._is_plan_old():
            return False
        is_next = batch.batch_id > last.batch_id and batch.writers <= plan.most_writers
        return is_next and batch.query_id == last.query_id == plan.query_id

    def go_on(self, batch: LedgerBatch) -> int:
        """Begin a batch without a look at the ledger, and return the run. See `goes_on`."""
        if self._plan is None:
            raise IllegalStateError("a run that has not begun cannot go on")
        self._last, self._is_last_reported = batch, False
        return self._plan.run

    def enter_commit(self, batch: LedgerBatch, settings: Mapping[str, str]) -> _Entries:
        """Shut out other commits and tasks before the open parts of a batch are committed.

        Each commit is a run of its own. It does not take the ids of its partitions: its tasks have
        done so, and their open transactions must live.

        Args:
            batch: the batch.
            settings: the producer's, by Java's names.

        Returns:
            The entries of partitions that hold the batch already.

        Raises:
            SinkError: the ledger stops the batch.
            KafkaError: the cluster refused, or did not answer.
        """
        self._first_look.check_groups(batch.writers)
        # Before the plan is committed, which would end the run of another query.
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
        # An earlier commit, of an attempt with more partitions, may still end those.
        self._fence(range(batch.writers, plan.most_writers), plan, settings)
        entries = self._first_look.view(range(plan.most_writers), asks_for_plan=False).entries
        return self._rules.check(entries, batch.batch_id, batch.query_id, batch.writers)

    def batch_done(self) -> None:
        """Note that every partition has committed the batch, so that the run can go on."""
        self._is_last_reported = True

    def _is_last_done(self, *, waits_for_undecided: bool = True) -> bool:
        """Return whether every partition has committed the last batch."""
        last = self._last
        if last is None or self._is_last_reported:
            return self._is_last_reported
        # With `foreachPartition` the user starts the job: only the ledger shows how it ended.
        try:
            _, entries = self._ledger.read(
                range(last.writers),
                waits_for_undecided=waits_for_undecided,
                timeout_s=DECIDED_WITHIN_S,
            )
        except (UnstableOffsetCommitError, KafkaTimeoutError) as error:
            # A task that died leaves its entry undecided until its transaction times out. A new
            # run takes its id, which aborts the transaction at once.
            _LOG.info("batch %d may not be whole: %s", last.batch_id, error)
            return False
        held = (last.batch_id, last.query_id)
        holders = [one for one in entries.values() if (one.batch_id, one.query_id) == held]
        return len(holders) == last.writers

    def _check(self, batch: LedgerBatch, entries: _Entries) -> _Entries:
        """Return the entries that hold the batch. Raise if one does not fit."""
        batch_id, query_id = batch.batch_id, batch.query_id
        taken_over = self._taking.of(entries, batch_id, query_id)
        return self._taking.rules.check(
            entries,
            batch_id,
            query_id,
            batch.writers,
            taken_over,
            has_older_record=self._has_older_record(batch),
        )

    def _has_older_record(self, batch: LedgerBatch) -> bool:
        """Return whether the ledger has a record that is older than any entry of a batch."""
        del batch
        return False

    def _check_before_harm(self, batch: LedgerBatch, partitions: int) -> _Entries:
        """Return the entries of partitions. Raise if they stop the query.

        Transactions of earlier tasks may still be undecided.
        """
        most = max(partitions, batch.writers)
        entries = self._first_look.check_any_cut(most, batch.batch_id, batch.query_id)
        self._check(batch, entries)
        return entries

    def _begin_run(self, batch: LedgerBatch, settings: Mapping[str, str]) -> PlanEntry:
        known = self._first_look.known_partitions()
        entries = self._check_before_harm(batch, known)
        with self._planning(settings) as producer:
            # No other driver can commit a plan from here on, but one may just have done so.
            before = self._first_look.view().plan
            self._taking.check_plan(before, batch.query_id)
            self._before_commit(settings)
            plan = self._next_plan(before, batch, known)
            self._commit(producer, plan)
        if before is None or not entries:
            # Time has passed since the plan, and to take an id may abort another driver's part.
            check_run(self._shut_out_whole_batches(settings), plan.run, plan.query_id)
        self._fence(range(plan.most_writers), plan, settings)
        if self._ledger.is_moving:
            self._end_move(plan, settings)
        _LOG.info("run %d begins: %d id(s) taken", plan.run, plan.most_writers)
        return plan

    def _before_commit(self, settings: Mapping[str, str]) -> None:
        """Take the steps that come while the plan is held, before other ids are taken: none."""

    def _shut_out_whole_batches(self, settings: Mapping[str, str]) -> PlanEntry | None:
        """Take the id of whole batches, check that none was committed, and return the plan.

        Raises:
            LedgerError: a whole batch was committed.
        """
        # After a plan: a driver that takes that id later sees the plan, and stops.
        with self._holding(self._ledger.whole_id, settings) as producer:
            self._ledger.move(producer, self._ledger.whole_group)
        return self._first_look.view().plan

    def _end_move(self, plan: PlanEntry, settings: Mapping[str, str]) -> None:
        """Note in the ledger that the entries of all ids are in their new place."""
        with self._planning(settings) as producer:
            # Another driver that has begun a run meanwhile moves what is left itself.
            check_run(self._ledger.read()[0], plan.run, plan.query_id)
            self._ledger.move(producer, self._ledger.plan_group, is_last=True)

    def _next_plan(self, before: PlanEntry | None, batch: LedgerBatch, known: int) -> PlanEntry:
        run, most = (0, 0) if before is None else (before.run, before.most_writers)
        # `known` counts if the plan has expired: groups of partitions may have outlived it.
        return PlanEntry(run + 1, batch.query_id, max(most, known, batch.writers))

    def _plan_again(self, plan: PlanEntry, settings: Mapping[str, str]) -> PlanEntry:
        with self._planning(settings) as producer:
            check_run(self._ledger.read()[0], plan.run, plan.query_id)
            self._commit(producer, plan)
        return plan

    def _is_plan_old(self) -> bool:
        """Return whether the plan has to be committed again, since offsets expire."""
        return time.monotonic() - self._planned_s > REFRESH_AFTER_S

    def refresh(self, query_id: str, settings: Mapping[str, str]) -> int:
        """Commit plan and entries again as they are, so that they do not expire.

        Each entry is committed under its own id, which is taken before the entry is read: no task
        can commit another one then. That would fence the tasks of a batch, so nothing is done
        while a batch may be under way.

        Args:
            query_id: of the query that the sink belongs to.
            settings: the producer's, by Java's names.

        Returns:
            How many entries were committed again; 0 if there are none, if the last batch is not
            whole, or if the sink belongs to another query.

        Raises:
            StaleRunError: another driver writes with this sink.
            KafkaError: the cluster refused.
        """
        if self._last is not None and not self._is_last_done(waits_for_undecided=False):
            return 0
        found, _ = self._ledger.read(waits_for_undecided=False)
        if found is None or found.query_id != query_id:
            return 0
        plan = self._plan or found  # a driver without a batch begins no run
        check_run(found, plan.run, plan.query_id)
        # The plan first: it shows another driver before one of its tasks is fenced.
        self._plan_again(plan, settings)
        # Only to find the slots with an entry: each is read again when its id is taken.
        _, entries = self._ledger.read(range(plan.most_writers), waits_for_undecided=False)
        if entries:
            at_once(lambda slot: self._refresh(slot, plan, settings), entries)
        return len(entries)

    def _refresh(self, slot: int, plan: PlanEntry, settings: Mapping[str, str]) -> None:
        with self._holding(self._ledger.transactional_id(slot), settings) as producer:
            present, entries = self._ledger.read([slot])
            # After the id is taken: another driver's run may have begun meanwhile.
            check_run(present, plan.run, plan.query_id)
            if slot in entries:
                with producer.transaction():
                    self._ledger.write(producer, slot, entries[slot])

    def _planning(self, settings: Mapping[str, str]) -> _Holding:
        return self._holding(self._ledger.plan_id, settings)

    def _holding(self, name: str, settings: Mapping[str, str]) -> _Holding:
        return holding(self._ledger, name, settings)

    def _commit(self, producer: TransactionalProducer, plan: PlanEntry) -> None:
        with producer.transaction():
            self._ledger.write_plan(producer, plan)
        self._planned_s = time.monotonic()

    def _fence(self, slots: Iterable[int], plan: PlanEntry, settings: Mapping[str, str]) -> None:
        """Take partitions' ids. Fence their tasks, and abort the transactions they left open.

        Raises:
            KafkaError: the cluster refused one of them, or did not answer.
        """
        if self._ledger.is_moving:
            # Each entry moves in a transaction under its own id.
            at_once(lambda slot: self._move(slot, plan, settings), slots)
            return
        take_ids(self._ledger, map(self._ledger.transactional_id, slots), settings)

    def _move(self, slot: int, plan: PlanEntry, settings: Mapping[str, str]) -> None:
        """Take a partition's id, and move its entry to its new place."""
        # To take the id aborts its open part. Another driver may have begun that part meanwhile.
        check_run(self._ledger.read()[0], plan.run, plan.query_id)
        with self._holding(self._ledger.transactional_id(slot), settings) as producer:
            self._ledger.move(producer, self._ledger.group(slot))
