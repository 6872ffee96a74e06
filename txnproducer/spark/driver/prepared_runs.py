"""The runs of a sink of atomicity "prepared": the decision, and its roll-forward.

Why it exists: between the decision about a batch and the end of its last part anything may happen.
The record of the decision is all that is needed to go on: the parts are ended by their leases, by
whichever driver finds it, without the frame.

Owns: the plan's id while batches go on, the decision, the order of a take-over. Must not know:
Spark's frames, how a part is written.

Rules (beside those of `runs.py`):
* A take-over takes the plan's id, reads the decision, ends every decided part by its lease, and
  only then takes the parts' ids, which aborts what nobody has decided.
* As long as it is not clear of a decided part that it was ended, no id is taken.
* A decision without a clear answer is nobody's to undo: the parts are left as they are, and the
  next take-over reads what was decided.
* The entry of a named run is written with its decision. Nothing else is written until all parts of
  a decided run are committed, see `decided_runs.py`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from txnproducer.lease import TransactionLease
from txnproducer.producer import TransactionalProducer
from txnproducer.spark.driver.kept_producer import KeptProducer
from txnproducer.spark.driver.part_ids import PartIds
from txnproducer.spark.driver.runs import Runs
from txnproducer.spark.errors import PartialReplayError, TornBatchError
from txnproducer.spark.ledger.decided_runs import (
    RunState,
    check_nothing_torn,
    open_parts,
    state_of,
)
from txnproducer.spark.ledger.decisions import Decision
from txnproducer.spark.ledger.entries import LedgerBatch, LedgerEntry, PlanEntry
from txnproducer.spark.ledger.named_runs import topic_ledger, write_run
from txnproducer.spark.ledger.rules import (
    LedgerRules,
    added_up,
    check_run,
    is_whole,
    may_be_committed,
)
from txnproducer.spark.ledger.store import Ledger

_LOG = logging.getLogger(__name__)


class PreparedRuns(Runs):
    """The driver's hold on the plan of a sink and on the ids of its parts.

    Args:
        ledger: of the sink.
        rules: for entries that do not fit.

    Attributes:
        ids: of the parts.
        next_decision: the number of the decision to come.
        state: of the named run that was entered last; empty for a batch with a number.
    """

    atomicity = "prepared"

    def __init__(self, ledger: Ledger, rules: LedgerRules) -> None:
        super().__init__(ledger, rules)
        self.ids = PartIds(ledger)
        self.next_decision = 1
        self.state = RunState()
        # As the last take-over has found it.
        self._decision: Decision | None = None
        self._planner = KeptProducer(ledger, ledger.plan_id)
        # Kept when the ids are let go, to notice another driver.
        self._begun: PlanEntry | None = None

    def enter(
        self, batch: LedgerBatch, settings: Mapping[str, str]
    ) -> tuple[int, dict[int, LedgerEntry]]:
        """See `Runs.enter`. A batch that goes on asks nothing.

        If the batch before was not finished, nothing that this driver remembers counts.
        """
        if self._planner.is_held and self.goes_on(batch):
            return self.go_on(batch), {}
        if batch.run_id is not None:
            # A job of its own. Its scheduler has chosen this driver, and may have had others.
            self._planner.let_go()
        elif self._is_last_reported:
            # A run that only grows. After a failure this driver takes the sink back.
            self.check_not_replaced()
        self._plan = self._begun = None
        run = super().enter(batch, settings)
        self._begun = self._plan
        return run

    def goes_on(self, batch: LedgerBatch) -> bool:
        """See `Runs.goes_on`. Names have no order, so the ledger is asked about each."""
        if batch.run_id is not None or (self._last is not None and self._last.run_id is not None):
            return False
        return super().goes_on(batch)

    def check_named(self, batch: LedgerBatch) -> LedgerEntry | None:
        """Check, before a run of the sink begins, that a named run may be written.

        Returns:
            The entry of the named run that was committed last, whichever it is.

        Raises:
            SinkError: the ledger stops the run.
            KafkaError: the cluster refused, or did not answer.
        """
        return self._first_look.check_named(batch).run

    def committed(self, done: Mapping[int, LedgerEntry]) -> LedgerEntry | None:
        """Return the entry of the batch that was entered, if it is wholly committed.

        Args:
            done: as `enter` has returned it.
        """
        if self.state.entry is not None:
            return self.state.whole
        return added_up(done) if is_whole(done) else None

    def lease(
        self, slots: Iterable[int], settings: Mapping[str, str]
    ) -> dict[int, TransactionLease]:
        """Lease the next transactions of slots. See `PartIds.lease`.

        Raises:
            StaleRunError: another driver has begun a run.
            KafkaError: the cluster refused, or did not answer.
        """
        wanted = list(slots)
        missing = self.ids.missing(wanted)
        if missing:
            # To take an id aborts its open part, which would be the other driver's. And after
            # that a driver that was replaced before could commit a batch of one part, which
            # needs no decision.
            self.check_not_replaced()
            self.ids.take(missing, settings)
            self.check_not_replaced()
        return self.ids.lease(wanted, settings)

    def decide(
        self,
        batch: LedgerBatch,
        leases: Mapping[int, TransactionLease],
        settings: Mapping[str, str],
        entry: LedgerEntry | None = None,
    ) -> None:
        """Commit the decision that all these parts are committed.

        Args:
            batch: the batch.
            leases: of the parts that are written, by slot.
            settings: the producer's, by Java's names.
            entry: of all rows of a named run; None for a batch with a number.

        Raises:
            KafkaError: it is not certain whether it is decided; every id was let go.
        """
        is_v2 = next(iter(leases.values())).is_transaction_v2
        parts = {slot: lease.producer for slot, lease in leases.items()}
        decision = Decision(self.next_decision, batch, is_v2, parts)
        plan = self._plan
        try:
            with self._planning(settings) as producer, producer.transaction():
                # The plan as well, so that it expires no sooner than the decision.
                if plan is not None:
                    self._ledger.write_plan(producer, plan)
                self._ledger.write_decision(producer, decision)
                if entry is not None:
                    log, name = topic_ledger(self._ledger), entry.name
                    write_run(log, producer, name, replace(entry, decision=decision.number))
        except BaseException:
            self.leave()  # the next run reads whether it is decided
            raise
        self.next_decision += 1
        self._planned_s = time.monotonic()

    def check_not_replaced(self, decided: str | None = None) -> None:
        """Check that no other driver has begun a run.

        Args:
            decided: the name of a batch that may be decided, and so committed by the other one.

        Raises:
            StaleRunError: one has.
            KafkaError: the cluster refused, or did not answer.
        """
        outcome = {} if decided is None else {"outcome": may_be_committed(decided)}
        self._check_last(self._begun, **outcome)

    def _check_last(self, plan: PlanEntry | None, **outcome: str) -> None:
        """Check that no other driver has committed a plan since this one."""
        if plan is not None:
            # Waits for a plan that is undecided: it may be the other driver's.
            found, _ = self._ledger.read()
            check_run(found, plan.run, plan.query_id, **outcome)

    def leave(self) -> None:
        """Hold no id any more, and abort nothing: the parts may be decided."""
        self._plan = None
        self.ids.forget()
        self._planner.let_go(0)

    def close(self) -> None:
        """Hold no id any more, and close all connections."""
        self.leave()
        self.ids.close()

    def refresh(self, query_id: str, settings: Mapping[str, str]) -> int:
        """See `Runs.refresh`. Decided parts are ended first."""
        if not self._is_last_done():
            return 0
        # Before the plan's id is taken, which would fence the driver of another query.
        found, _ = self._ledger.read(waits_for_undecided=False)
        if found is None or found.query_id != query_id:
            return 0
        self.check_not_replaced()
        self.leave()
        # A run that another driver begins from here on must not be taken for this one's.
        self._plan = self._begun
        try:
            with self._planning(settings):
                self._roll_forward(settings)
            # The plan's id is held until the plan is written again, so that nobody can decide
            # after the look at the decision.
            return super().refresh(query_id, settings)
        finally:
            self._plan = None
            self._planner.let_go()

    # --- steps of `Runs`, done by ids that are kept ---------------------------------------------

    def _is_last_done(self, *, waits_for_undecided: bool = True) -> bool:
        del waits_for_undecided
        return self._last is None or self._is_last_reported

    def _next_plan(self, before: PlanEntry | None, batch: LedgerBatch, known: int) -> PlanEntry:
        return replace(super()._next_plan(before, batch, known), is_prepared=True)

    def _check(
        self, batch: LedgerBatch, entries: dict[int, LedgerEntry]
    ) -> dict[int, LedgerEntry]:
        self.state = RunState()
        try:
            check_nothing_torn(self._ledger, self._decision, batch)
            if batch.run_id is not None:
                takes_over = self._rules.takes_over
                self.state = state_of(self._ledger, self._decision, batch, takes_over=takes_over)
        except (TornBatchError, PartialReplayError):
            self._check_last(self._plan)
            raise
        if batch.run_id is None:
            return super()._check(batch, entries)
        if self.state.entry is not None:
            # Since the look at the plan another driver may have taken the ids, and written its
            # entries over those of the decision. Or it has decided this run, and its parts are
            # open still: then the run is not whole, although this driver knows of no part that is
            # missing.
            self._check_last(self._plan)
        return dict(self.state.done)

    def _has_older_record(self, batch: LedgerBatch) -> bool:
        # Parts are ended after their decision. One that has no entry was lost before that.
        decided = self._decision
        return decided is not None and (
            (decided.batch.query_id, decided.batch.run_id, decided.batch.batch_id)
            == (batch.query_id, None, batch.batch_id)
        )

    def _check_before_harm(self, batch: LedgerBatch, partitions: int) -> dict[int, LedgerEntry]:
        if batch.run_id is not None:
            return self._first_look.check_named(batch).entries
        # A batch that is committed in part may be decided, and then it is whole in a moment.
        most = max(partitions, batch.writers)
        return self._first_look.check_any_cut(most, batch.batch_id, batch.query_id)

    def _before_commit(self, settings: Mapping[str, str]) -> None:
        self._roll_forward(settings)

    def _fence(self, slots: Iterable[int], plan: PlanEntry, settings: Mapping[str, str]) -> None:
        wanted = list(slots)
        if self._ledger.is_moving:
            super()._fence(wanted, plan, settings)  # moves the entries; what was decided is ended
        # The moves took time, or the question whether there are any.
        self._check_last(plan)
        self.ids.take(wanted, settings)

    def _refresh(self, slot: int, plan: PlanEntry, settings: Mapping[str, str]) -> None:
        # Right before the id is taken, which aborts its open part: another driver may have begun
        # a run while the slots before were refreshed, and have decided.
        found, _ = self._ledger.read()
        check_run(found, plan.run, plan.query_id)
        super()._refresh(slot, plan, settings)

    @contextmanager
    def _planning(self, settings: Mapping[str, str]) -> Iterator[TransactionalProducer]:
        with self._planner.held(settings) as producer:
            yield producer

    def _roll_forward(self, settings: Mapping[str, str]) -> None:
        """End the parts that are decided and still open. The plan's id must be held.

        Raises:
            KafkaError: it is not clear of a part that it was ended. No id may be taken then.
        """
        decision = self._decision = self._ledger.read_decision()
        if decision is None:
            self.next_decision = 1
            return
        self.next_decision = decision.number + 1
        # Not waited for: a part of a later batch, which nobody has decided, would keep its entry
        # undecided until its id is taken.
        slots = open_parts(self._ledger, decision, waits_for_undecided=False)
        if not slots:
            return
        leases = decision.leases(self._ledger.transactional_id)
        left = {slot: leases[slot] for slot in slots}
        _LOG.info(
            "batch %s is decided, and %d of its %d parts are not ended yet",
            decision.batch.name,
            len(left),
            len(decision.parts),
        )
        for slot, error in self.ids.end(left, settings, is_commit=True).items():
            _LOG.warning("part %d of batch %s: %s", slot, decision.batch.name, error)
