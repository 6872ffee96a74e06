"""The look at a ledger before any id is taken. It stops a batch while no task is fenced yet.

Why it exists: taking an id fences the task that has it, and aborts that task's transaction. A
driver that has to stop must find that out first: the sink may be another query's, an earlier batch
may be torn, the ledger may be lost.

Owns: these looks at the sink's ledger, and the check of the rights on its groups. Must not know:
who asks (a driver, or a task of the data source), how ids are taken.

Rules:
* Entries that an open transaction may still change are not waited for. If a batch seems torn, the
  look waits for seconds: the last commits of that batch may not be decided yet.
* The first look of a driver fixes the entries that it takes over from another query; see
  `take_over.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final, TypeAlias

from txnproducer.errors import KafkaTimeoutError, UnstableOffsetCommitError
from txnproducer.spark.errors import TornBatchError
from txnproducer.spark.ledger.decided_runs import find_run
from txnproducer.spark.ledger.entries import LedgerBatch, LedgerEntry
from txnproducer.spark.ledger.one_atomicity import check_one_atomicity
from txnproducer.spark.ledger.rights import check_groups
from txnproducer.spark.ledger.rules import LedgerRules, check_owner
from txnproducer.spark.ledger.store import Ledger, LedgerView
from txnproducer.spark.ledger.take_over import TakeOver

_LOG = logging.getLogger(__name__)
DECIDED_WITHIN_S: Final = 5.0  # markers take milliseconds

_Entries: TypeAlias = dict[int, LedgerEntry]


class FirstLook:
    """Checks of a sink of atomicity "partition" or "prepared" that fence no task.

    Args:
        ledger: of the sink.
        rules: for entries that do not fit.
        atomicity: of the sink.

    Attributes:
        take_over: the entries that this driver takes over from another query.
    """

    def __init__(self, ledger: Ledger, rules: LedgerRules, atomicity: str = "partition") -> None:
        self._ledger = ledger
        self._atomicity = atomicity
        self._checked_groups = 0
        self.take_over = TakeOver(rules)

    def check(self, batch_id: int, query_id: str) -> _Entries:
        """Return the entries of all partitions, if they let a batch be written, however it is cut.

        Raises:
            SinkError: the ledger stops the batch.
            KafkaError: the cluster refused, or did not answer.
        """
        self.check_groups(1)
        return self.check_any_cut(self.known_partitions(), batch_id, query_id)

    def check_named(self, batch: LedgerBatch) -> LedgerView:
        """Return the view of the ledger, if it lets a named run be written, however it is cut.

        The run may be torn, or another one: that is known when all ids are taken.

        Raises:
            SinkError: the ledger stops the run.
            KafkaError: the cluster refused, or did not answer.
        """
        self.check_groups(1)
        view = self.view(range(self.known_partitions()), waits_for_undecided=False)
        # For the batches with numbers too, which may follow.
        self.take_over.look_at(view.plan, view.entries, batch.query_id)
        self.take_over.check_plan(view.plan, batch.query_id)
        takes_over = self.take_over.is_wanted
        if view.run is not None and not takes_over:
            check_owner(view.run, batch.name, batch.query_id)
        find_run(self._ledger, batch, takes_over=takes_over, waits_for_undecided=False)
        return view

    def check_groups(self, writers: int) -> None:
        """Check the rights on the groups of the plan, of whole batches, and of partitions.

        Args:
            writers: how many partitions there are; those checked before are not asked again.

        Raises:
            MissingRightError: Read on one of the groups is missing.
        """
        # Each batch comes here, and rights do not have to be asked for again with each.
        if writers > self._checked_groups:
            more = map(self._ledger.group, range(self._checked_groups, writers))
            ledger = self._ledger
            own = [ledger.plan_group, ledger.whole_group]
            if self._atomicity == "prepared":
                own.append(ledger.decision_group(0))
            check_groups(ledger, [*own, *more])
            self._checked_groups = writers

    def check_any_cut(self, partitions: int, batch_id: int, query_id: str) -> _Entries:
        """Return the entries of partitions, if they let the batch be written.

        Args:
            partitions: how many, from 0.
            batch_id: of the batch.
            query_id: of the query that it belongs to.

        Raises:
            SinkError: an entry or the plan stops the batch, however it is cut into partitions.
            KafkaError: the cluster refused, or did not answer.
        """
        # An earlier run's open transaction is decided only when its id is taken, which comes
        # later.
        view = self.view(range(partitions), waits_for_undecided=False)
        entries = view.entries
        # Before the checks: what is taken over must not stop this very batch.
        self.take_over.look_at(view.plan, entries, query_id)
        self.take_over.check_plan(view.plan, query_id)
        if self._atomicity == "prepared" and view.plan is not None and not entries:
            # The first batch may be decided, and no part of it ended. The run looks again.
            return entries
        try:
            self._check_entries(entries, batch_id, query_id)
        except TornBatchError:
            # Parts that were decided are ended when the run begins, and looked at again then.
            if self._atomicity == "prepared":
                return entries
            # The last commits of the earlier batch may not be decided yet.
            entries = self._entries_when_decided(range(partitions)) or entries
            self._check_entries(entries, batch_id, query_id)
        return entries

    def view(self, partitions: Iterable[int] = (), **how: bool) -> LedgerView:
        """Look at the ledger. See `Ledger.look`.

        Raises:
            LedgerError: the sink id is one of another atomicity.
        """
        view = self._ledger.look(partitions, **how)
        check_one_atomicity(self._ledger, view, self._atomicity)
        return view

    def known_partitions(self) -> int:
        """Return how many partitions have ever had an entry, as far as the cluster knows."""
        # The highest number counts, not how many groups there are: groups in between may have
        # expired.
        return max(self._ledger.known_partitions(), default=-1) + 1

    def _check_entries(self, entries: _Entries, batch_id: int, query_id: str) -> None:
        taken_over = self.take_over.of(entries, batch_id, query_id)
        self.take_over.rules.check_any_cut(entries, batch_id, query_id, taken_over)

    def _entries_when_decided(self, partitions: Iterable[int]) -> _Entries | None:
        """Return the entries of partitions, or None if one stays undecided for seconds."""
        try:
            return self._ledger.read(partitions, timeout_s=DECIDED_WITHIN_S)[1]
        except (UnstableOffsetCommitError, KafkaTimeoutError) as error:
            _LOG.info("the ledger is not decided: %s", error)
            return None
