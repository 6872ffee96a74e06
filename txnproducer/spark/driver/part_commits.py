"""The commit of a data source. It ends the transactions that tasks left open, all or none.

Owns: the order of steps in a commit and in an abort. Must not know: Spark's classes, how a part
was written, rows.

Each call may be in a process of its own, without memory of earlier calls. So everything that has
to be remembered is in the ledger.

Rules:
* Before the first transaction is ended, the plan names the number of partitions, and the ids above
  them are taken: a commit of an earlier attempt with more partitions may still be under way.
* A batch that is committed in part must be the same again: with as many partitions, and the
  committed ones among them, by rows and digest, in any order. Otherwise nothing is ended.
* Parts whose rows are committed are aborted. Each other part puts its entry into a free slot, so
  slot and transactional id may differ (`slots.py`).
* A batch that is wholly committed must have the same rows in all.
* Every part gets a ledger entry before the first one is ended, even a part that is to be aborted.
  It proves that this attempt had all of the ids when it looked at the ledger. So it has seen all
  that an earlier attempt had ended, and that attempt can end nothing more.
* All ends of a call have one deadline. Parts are ended some at once, and after a quarter of the
  time the rest by one call.
* A part that cannot be ended is looked up in the ledger. If its entry is there, it is committed.
  If not, the next attempt finds the others committed, and completes the batch.
* An abort is best effort. It touches only transactions of this query.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from txnproducer.admin import some
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
)
from txnproducer.lease import TransactionLease
from txnproducer.spark.driver.parallel_calls import at_once
from txnproducer.spark.driver.part_ends import PartEnds, ends_of
from txnproducer.spark.driver.runs import Runs
from txnproducer.spark.errors import BatchFailedError, CommitIncompleteError, naming_prepared
from txnproducer.spark.ledger.digest import total
from txnproducer.spark.ledger.entries import LedgerBatch, LedgerEntry
from txnproducer.spark.ledger.producers import config_for
from txnproducer.spark.ledger.rules import (
    LedgerRules,
    added_up,
    check_whole_replay,
    is_whole,
)
from txnproducer.spark.ledger.slots import Slot, assign_slots
from txnproducer.spark.ledger.store import Ledger
from txnproducer.spark.reports import OnEvent, tell
from txnproducer.spark.tasks.open_part import OpenPart

_LOG = logging.getLogger(__name__)

# The least time of a look at the ledger after failed commits.
_LOOK_S: Final = 10.0


@dataclass(frozen=True)
class _Prepared:
    """A part with its ledger entry in its transaction. Only its end is left to do."""

    partition: int
    slot: Slot
    lease: TransactionLease
    entry: LedgerEntry


@dataclass(frozen=True)
class PartCommits:
    """The commit or abort of the parts of batches.

    Attributes:
        ledger: of the sink.
        rules: for entries that do not fit.
        settings: the producer's, by Java's names.
        on_event: called with the events of the commit.
    """

    ledger: Ledger
    rules: LedgerRules
    settings: Mapping[str, Any] = field(repr=False)
    on_event: OnEvent | None = None

    # --- commit ---------------------------------------------------------------------------------

    @naming_prepared("partition")
    def commit(self, parts: Sequence[OpenPart | None], batch_id: int) -> None:
        """Commit all parts of a batch that the ledger does not hold already.

        Raises:
            SinkError: the ledger stops the batch; nothing was committed by this call.
            BatchFailedError: a part was lost before; nothing was committed by this call.
            CommitIncompleteError: a part was lost on the way, and others are committed.
            KafkaError: the cluster refused, or did not answer.
        """
        # Before any id is touched: a commit without one of its parts would lose that part's rows.
        ours = _checked(parts, batch_id)
        batch = LedgerBatch(batch_id, ours[0].query_id, len(ours))
        done = Runs(self.ledger, self.rules).enter_commit(batch, self.settings)
        with self._ends() as ends:
            if is_whole(done):
                self._leave(ours, done, ends)
                return
            found = {part.partition: (part.rows, part.digest) for part in ours}
            slots = assign_slots(batch_id, done, found, self.rules.on_replay_mismatch)
            # All entries are added before the first transaction ends: a part that is lost shows
            # here.
            prepared = self._prepare(ours, batch, slots, ends)
            # The rows of these are committed already, by an earlier attempt.
            self._abort_committed([part for part in prepared if part.slot.is_committed], ends)
            self._tell("batch_before_commit", ours)
            left = [part for part in prepared if not part.slot.is_committed]
            self._commit_each(left, ends)
        self._tell("batch_after_commit", ours)
        _LOG.info(
            "batch %d of query %s: %d rows, %d transactions, %d replayed",
            batch_id,
            batch.query_id,
            sum(part.rows for part in ours),
            len(left),
            len(done),
        )

    def _leave(
        self, parts: Sequence[OpenPart], done: Mapping[int, LedgerEntry], ends: PartEnds
    ) -> None:
        """Leave a committed batch as it is, for any cut and numbers of its partitions now."""
        if self.rules.on_replay_mismatch != "keep":
            rows = sum(part.rows for part in parts)
            check_whole_replay(added_up(done), rows, total(part.digest for part in parts))
        # Tasks that did not see the whole batch yet have written their rows once more.
        self._abort_committed(parts, ends)
        _LOG.info("batch %d is committed already, by %d tasks", parts[0].batch_id, len(done))

    def _abort_committed(self, parts: Sequence[OpenPart | _Prepared], ends: PartEnds) -> None:
        """Abort parts with rows that are committed already. A failure changes nothing there."""
        with _best_effort("not all parts are aborted"):
            ends.begin()
            self._abort_each(parts, ends)

    def _prepare(
        self,
        parts: Sequence[OpenPart],
        batch: LedgerBatch,
        slots: Mapping[int, Slot],
        ends: PartEnds,
    ) -> list[_Prepared]:
        """Add the ledger's entry to each part, which also shows that the part is still alive."""
        prepared = [_prepared(part, batch, slots[part.partition]) for part in parts]
        place = self.ledger.place
        failed = ends.write_all(
            (part.lease, group, place, offset)
            for part in prepared
            for group, offset in [self.ledger.offset_of(part.slot.number, part.entry)]
        )
        for part in prepared:
            error = failed.get(part.lease.transactional_id)
            if error is not None:
                raise self._lost(part, error) from error
        return prepared

    def _lost(self, part: _Prepared, error: KafkaError) -> KafkaError:
        """Return the error of a batch with a part that got no entry."""
        if error.recovery == "fix":
            return error
        return BatchFailedError(
            f"batch {part.entry.batch_id}: the transaction of partition {part.partition} is lost"
            f" ({type(error).__name__}: {error}), and nothing was committed. It took longer"
            f" than transactionTimeout ({self.settings['transaction.timeout.ms']} ms), or"
            " another attempt of the task or another driver has taken its id"
            " (spark.speculation=true does not go with this data source). Start the query"
            " again",
            recovery="restart",
        )

    def _commit_each(self, parts: Sequence[_Prepared], ends: PartEnds) -> None:
        ends.begin()
        failed = self._end_each(ends, parts)
        lost = [part for part in parts if _needs_abort(failed.get(part.partition))]
        self._abort_each(lost, ends)
        if failed:
            self._judge({part: failed.get(part.partition) for part in parts}, ends)

    def _end_each(self, ends: PartEnds, parts: Sequence[_Prepared]) -> dict[int, KafkaError]:
        """Commit parts. Return the error of each that is not, or perhaps not, committed."""
        begun: set[int] = set()
        failed: dict[int, KafkaError] = {}

        def commit(part: _Prepared) -> None:
            if ends.is_slow:
                return
            begun.add(part.partition)
            self._tell_part("partition_before_commit", part)
            error = ends.end_one(part.lease)
            if error is None:
                self._tell_part("partition_committed", part)
            else:
                failed[part.partition] = error

        at_once(commit, parts)
        # A commit may be repeated under its lease.
        again = [part for part in parts if _is_open_question(part, begun, failed)]
        for part in again:
            if part.partition not in begun:
                self._tell_part("partition_before_commit", part)
        errors = ends.end_all([part.lease for part in again], is_commit=True) if again else {}
        for part in again:
            error = errors.get(part.lease.transactional_id)
            if error is None:
                failed.pop(part.partition, None)
                self._tell_part("partition_committed", part)
            else:
                failed[part.partition] = error
        return failed

    def _judge(self, ends: Mapping[_Prepared, KafkaError | None], by: PartEnds) -> None:
        """Find the parts in the ledger of which the commit has failed.

        An answer may be lost after the commit.

        Raises:
            CommitIncompleteError: some are not there.
        """
        doubtful = [part for part, error in ends.items() if error is not None]
        entries = self._entries_of(doubtful, max(_LOOK_S, by.left_ms / 1000))
        left = [part for part in doubtful if entries.get(part.slot.number) != part.entry]
        for part in doubtful:
            if part not in left:
                text = "batch %d, partition %d is committed, though the commit said: %s"
                _LOG.warning(text, part.entry.batch_id, part.partition, ends[part])
                self._tell_part("partition_committed", part)
        if not left:
            return
        error = ends[left[0]]
        raise CommitIncompleteError(
            f"batch {left[0].entry.batch_id}: partition {left[0].partition} could not be committed"
            f" ({type(error).__name__}: {error}). In all {len(left)} of {len(ends)} partitions"
            f" ({some([part.partition for part in left])}) are not committed, or it is not known;"
            " the others are. Start the query again with the same rows: it completes the batch."
            f" {self._left_open()}",
            recovery="restart",
        ) from error

    def _entries_of(
        self, parts: Sequence[_Prepared], timeout_s: float
    ) -> Mapping[int, LedgerEntry]:
        slots = [part.slot.number for part in parts]
        # One that is still open keeps the first question waiting, for all of them.
        for waits, limit_s in ((True, timeout_s), (False, _LOOK_S)):
            try:
                return self.ledger.read_entries(
                    slots, waits_for_undecided=waits, timeout_s=limit_s
                )
            except KafkaError as error:
                _LOG.warning("the ledger does not show %d partitions: %s", len(slots), error)
        return {}

    # --- abort ----------------------------------------------------------------------------------

    def abort(self, parts: Sequence[OpenPart | None], query_id: str | None = None) -> None:
        """Abort the open transactions of a batch, as far as they are known. It never raises.

        All of it has the time of one call that blocks (`max.block.ms`).

        Args:
            parts: of the tasks; None for each task without a message.
            query_id: of the query that the batch belongs to, if it is known.
        """
        ours = [part for part in parts if part is not None]
        queries = {part.query_id for part in ours} | ({query_id} - {None})
        silent = [number for number, part in enumerate(parts) if part is None]
        with _best_effort("not all parts are aborted"), self._ends() as ends:
            self._abort_each(ours, ends)
            # Taking an id of another query's sink would fence that query's task. The others'
            # transactions end by the time-out, or at the next start.
            if silent and ends.left_ms and self._is_ours(queries, ends.left_ms / 1000):
                errors = ends.take_all(map(self.ledger.transactional_id, silent))
                self._log_left(errors, len(silent))

    def _abort_each(self, parts: Sequence[OpenPart | _Prepared], ends: PartEnds) -> None:
        leases = [part.lease for part in parts if part.lease is not None]
        if leases:
            errors = ends.end_all(leases, is_commit=False)
            self._log_left(errors, len(leases))

    def _log_left(self, errors: Mapping[str, KafkaError], count: int) -> None:
        if not errors:
            return
        name, error = next(iter(errors.items()))
        _LOG.warning(
            "%d of %d transactions were not aborted, the first one that of %s (%s: %s). %s",
            len(errors),
            count,
            name,
            type(error).__name__,
            error,
            self._left_open(),
        )

    def _left_open(self) -> str:
        return (
            "Nothing has to be done about open transactions: the next start ends them, or the "
            f"broker does after transactionTimeout ({self.settings['transaction.timeout.ms']} ms)"
        )

    def _is_ours(self, queries: Iterable[str | None], timeout_s: float) -> bool:
        """Return whether the sink is this query's. The tasks of another one must not be fenced."""
        plan = None
        with _best_effort("the plan cannot be read"):
            plan, _ = self.ledger.read(waits_for_undecided=False, timeout_s=timeout_s)
        return plan is not None and set(queries) == {plan.query_id}

    # --- both -----------------------------------------------------------------------------------

    def _ends(self) -> AbstractContextManager[PartEnds]:
        # The configuration needs an id, and any one of the sink will do.
        return ends_of(config_for(self.settings, self.ledger.plan_id))

    def _tell_part(self, name: str, part: _Prepared) -> None:
        tell(self.on_event, name, part.entry.batch_id, part.entry.rows, part.partition)

    def _tell(self, name: str, parts: Sequence[OpenPart]) -> None:
        tell(self.on_event, name, parts[0].batch_id, sum(part.rows for part in parts))


def _checked(parts: Sequence[OpenPart | None], batch_id: int) -> list[OpenPart]:
    """Return the parts of a batch in their order, if none is missing."""
    ours = sorted((p for p in parts if p is not None), key=lambda part: part.partition)
    numbers = [part.partition for part in ours]
    if not ours or len(ours) != len(parts) or numbers != list(range(len(ours))):
        raise IllegalStateError(
            f"batch {batch_id}: the commit needs one message from each of the {len(parts)} tasks, "
            f"and got those of partitions {numbers}; nothing was committed"
        )
    batches = {(part.batch_id, part.query_id) for part in ours}
    if batches != {(batch_id, ours[0].query_id)}:
        raise IllegalStateError(
            f"batch {batch_id}: its tasks were of {sorted(batches)}; nothing was committed"
        )
    return ours


def _prepared(part: OpenPart, batch: LedgerBatch, slot: Slot) -> _Prepared:
    """Return a part with the entry that it will have."""
    if part.lease is None:
        raise BatchFailedError(
            f"partition {part.partition} found all of batch {part.batch_id} in the ledger, and"
            " now some of it is not there: the ledger was deleted meanwhile. Nothing was"
            " committed. Start the query again: its error names the ways to go on"
        )
    entry = LedgerEntry(part.batch_id, part.query_id, batch.writers, part.rows, part.digest)
    return _Prepared(part.partition, slot, part.lease, entry)


def _needs_abort(error: KafkaError | None) -> bool:
    # Nothing of it is committed, and nobody else ends it.
    return error is not None and error.recovery == "abort"


def _is_open_question(
    part: _Prepared, begun: Collection[int], failed: Mapping[int, KafkaError]
) -> bool:
    """Return whether a part has to be committed by another call: it has no clear answer."""
    error = failed.get(part.partition)
    return part.partition not in begun or isinstance(
        error, (KafkaTimeoutError, CommitOutcomeUnknownError)
    )


@contextmanager
def _best_effort(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - an abort that raises would hide why it is one
        _LOG.info("abort: %s: %s", what, error)
