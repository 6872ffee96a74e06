"""Rules of the ledger: which entries fit a batch, and which stop it before a row is written.

Owns: the rules and their texts. Must not know: where the ledger is, how rows are written.

Rule: a ledger that does not fit stops the batch before a row is written. After a checkpoint was
deleted, batch ids begin again at 0: without this rule, the sink would drop those rows in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from txnproducer.spark.errors import (
    LedgerError,
    PartialReplayError,
    ReplayMismatchError,
    StaleRunError,
)
from txnproducer.spark.ledger.digest import total
from txnproducer.spark.ledger.entries import LedgerEntry, PlanEntry
from txnproducer.spark.ledger.torn_batches import check_not_torn

_TWO_QUERIES = (
    "Either two queries use one sink id, or the checkpoint was deleted or replaced. Ways out: "
    'another sink id; the old checkpoint; or on_foreign_ledger="take_over", if the old query is '
    "gone and its rows may be written once more."
)
_REWOUND = (
    "another driver of this query has gone on, and this one has to stop, or the checkpoint was "
    "rewound. Ways out of that: the newer checkpoint; another sink id; or "
    'on_foreign_ledger="take_over", if its rows, and those since then, may be written once more.'
)


@dataclass(frozen=True)
class LedgerRules:
    """The sink's options about a ledger that does not fit."""

    on_missing_ledger: str = "stop"
    on_foreign_ledger: str = "stop"
    first_batch_id: int = 0
    on_replay_mismatch: str = "stop"

    def fitting(
        self, entries: Mapping[int, LedgerEntry], batch_id: int, query_id: str
    ) -> dict[int, LedgerEntry]:
        """Return the entries that count for a batch, if all fit it.

        Raises:
            LedgerError: one is another query's, or ahead of the batch.
        """
        if self.takes_over:
            return {
                partition: entry
                for partition, entry in entries.items()
                if entry.query_id == query_id and entry.batch_id <= batch_id
            }
        for partition, entry in sorted(entries.items()):
            if entry.query_id != query_id:
                raise LedgerError(
                    f"partition {partition} of this sink belongs to another query: its ledger "
                    f"holds batch {entry.batch_id} of query {entry.query_id}, this is batch "
                    f"{batch_id} of query {query_id}. {_TWO_QUERIES}"
                )
            if entry.batch_id > batch_id:
                raise LedgerError(
                    f"partition {partition} has committed batch {entry.batch_id} already, this is "
                    f"batch {batch_id}: {_REWOUND}"
                )
        return dict(entries)

    @property
    def takes_over(self) -> bool:
        """Whether another query's ledger is no reason to stop."""
        return self.on_foreign_ledger == "take_over"

    def check_plan(self, plan: PlanEntry | None, query_id: str) -> None:
        """Check, on the driver, the plan before any task is fenced.

        Raises:
            LedgerError: it is another query's.
        """
        if plan is not None and plan.query_id != query_id and not self.takes_over:
            raise LedgerError(
                f"this sink belongs to another query: its plan is run {plan.run} of query "
                f"{plan.query_id}, this is query {query_id}. {_TWO_QUERIES}"
            )

    def check_any_cut(
        self,
        entries: Mapping[int, LedgerEntry],
        batch_id: int,
        query_id: str,
        taken_over: Mapping[int, LedgerEntry] | None = None,
    ) -> dict[int, LedgerEntry]:
        """Return the entries that count, if nothing stops the batch however it is cut.

        Raises:
            LedgerError: the ledger is missing, another query's, or ahead.
            TornBatchError: the batch before is not whole.
        """
        counting = {p: entry for p, entry in entries.items() if p not in (taken_over or {})}
        fitting = self.fitting(counting, batch_id, query_id)
        # All entries, the ignored ones too: a ledger that is taken over is not missing.
        self._check_missing(entries, batch_id)
        check_not_torn(
            entries, batch_id, query_id, passes_missing=self.on_missing_ledger == "write"
        )
        return fitting

    def check(
        self,
        entries: Mapping[int, LedgerEntry],
        batch_id: int,
        query_id: str,
        writers: int,
        taken_over: Mapping[int, LedgerEntry] | None = None,
        *,
        has_older_record: bool = False,
    ) -> dict[int, LedgerEntry]:
        """Check, on the driver, the ledgers against a batch before any row is written.

        Args:
            entries: of all partitions that have one.
            batch_id: of the batch.
            query_id: of the query that the batch belongs to.
            writers: how many partitions write it.
            taken_over: the entries among these that are ignored.
            has_older_record: whether another record is there that is older than any entry of the
                batch, so that no such entry can have expired.

        Returns:
            The entries that hold the batch already: none for a new batch, all of them for a
            replay (as many as there were then, see `is_whole`), some if it was broken off.

        Raises:
            LedgerError: the ledger is missing, another query's, or ahead.
            TornBatchError: the batch before is not whole.
            PartialReplayError: the batch was broken off, and had another number of partitions.
        """
        fitting = self.check_any_cut(entries, batch_id, query_id, taken_over)
        done = {p: entry for p, entry in fitting.items() if entry.batch_id == batch_id}
        # A whole batch may be cut otherwise now: its rows are compared all together, and none is
        # written.
        if is_whole(done) or all(entry.writers == writers for entry in done.values()):
            if done and not is_whole(done) and not has_older_record:
                self._check_lost(entries, batch_id, writers)
            return done
        raise cut_otherwise(batch_id, done, writers)

    def check_whole(
        self, entry: LedgerEntry | None, batch_id: int, query_id: str, *, is_taken_over: bool
    ) -> LedgerEntry | None:
        """Check the ledger of a sink that writes whole batches. Return this batch's entry, if any.

        Args:
            entry: of the last batch, or None.
            batch_id: of the batch.
            query_id: of the query that the batch belongs to.
            is_taken_over: whether the entry is ignored.

        Raises:
            LedgerError: the ledger is missing, another query's, or ahead.
        """
        if entry is None:
            self._check_missing({}, batch_id)
            return None
        if is_taken_over:
            return None
        check_owner(entry, str(batch_id), query_id)
        if entry.batch_id > batch_id:
            raise LedgerError(
                f"batch {entry.batch_id} is committed already, this is batch {batch_id}: "
                f"{_REWOUND}"
            )
        return entry if entry.batch_id == batch_id else None

    def _check_missing(self, entries: Mapping[int, LedgerEntry], batch_id: int) -> None:
        if entries or self._needs_no_ledger(batch_id):
            return
        raise LedgerError(
            f"this sink has no ledger, but this is batch {batch_id}: either it is the first that "
            "this sink writes, or the query wrote elsewhere before, or the ledger has expired "
            "(offsets.retention.minutes after the last batch) or was deleted with its topic. "
            "Whether the batch was written before cannot be known. Ways out: "
            f"first_batch_id={batch_id}, for good, if the sink begins with it; "
            'on_missing_ledger="write", for one start, if the batch was not written, or may be '
            "written once more."
        )

    def _needs_no_ledger(self, batch_id: int) -> bool:
        # An expired ledger and a sink that has never written look alike, so the program says which
        # it is. Brokers keep nothing else of a sink: transactional ids expire after the same seven
        # days, and an empty topic may be one that the query has changed to.
        return self.on_missing_ledger == "write" or batch_id == self.first_batch_id

    def _check_lost(self, entries: Mapping[int, LedgerEntry], batch_id: int, writers: int) -> None:
        """Raise if an entry of this batch may have expired, since its rows would be written again.

        A partition that this batch added has no entry either. If there is an entry of an earlier
        batch, nothing has expired: that one is older.
        """
        if self._needs_no_ledger(batch_id):
            return
        # Any earlier batch, and not the one before: ids that count by date have gaps.
        is_before_known = any(entry.batch_id < batch_id for entry in entries.values())
        lost = [p for p in range(writers) if p not in entries]
        if lost and not is_before_known:
            raise LedgerError(
                f"batch {batch_id} is committed in part, and the ledgers of {lost} are missing: "
                "either these partitions have not written it yet, or they have, and their entries "
                "have expired or were deleted. Nothing was written. Way out: "
                'on_missing_ledger="write", if the batch was not written there, or may be '
                "written once more."
            )


def check_owner(entry: LedgerEntry, name: str, query_id: str) -> None:
    """Check that an entry of whole batches is one of this query.

    Args:
        entry: the entry.
        name: of the batch that is to be written.
        query_id: of the query that it belongs to.

    Raises:
        LedgerError: it is another query's.
    """
    if entry.query_id != query_id:
        raise LedgerError(
            f"this sink belongs to another query: its ledger holds batch {entry.name} of query "
            f"{entry.query_id}, this is batch {name} of query {query_id}. {_TWO_QUERIES}"
        )


def may_be_committed(name: str) -> str:
    """Return the sentence about a batch that another driver may have completed."""
    return f"Batch {name} may be committed: do not write its rows by another way"


def check_run(
    plan: PlanEntry | None, run: int, query_id: str, outcome: str = "Nothing was written"
) -> None:
    """Check that a run is still the current one.

    Args:
        plan: the sink's latest.
        run: the number of this run.
        query_id: of its query.
        outcome: the sentence about what was written.

    Raises:
        StaleRunError: another run has begun, or the plan is gone.
    """
    # A plan can be gone only if it was deleted, or if it has expired: each run begins with one.
    if plan is None:
        raise StaleRunError(
            f"run {run} of this sink finds no plan any more: its ledger was deleted, or has "
            "expired. Start the query again"
        )
    if (plan.run, plan.query_id) != (run, query_id):
        raise StaleRunError(
            f"this is run {run} of query {query_id}, but run {plan.run} of query {plan.query_id} "
            "has begun: another driver writes with this sink id, or this task is left over from "
            f"an earlier attempt. {outcome}. If two queries run, end one, or give it a sink "
            "id of its own"
        )


def is_whole(done: Mapping[int, LedgerEntry]) -> bool:
    """Return whether the entries of partitions hold the whole batch.

    If they do, the rows of the batch can be compared, for any number of partitions that it has
    now.
    """
    writers = {entry.writers for entry in done.values()}
    # By the entries' own number of writers: the batch's number of now says nothing about then.
    return writers == {len(done)} and set(done) == set(range(len(done)))


def added_up(done: Mapping[int, LedgerEntry]) -> LedgerEntry:
    """Return the entries of a batch's partitions as one entry."""
    one = next(iter(done.values()))
    rows = sum(entry.rows for entry in done.values())
    # Digests add up, so rows can be compared however the batch is cut now.
    digest = total(entry.digest for entry in done.values())
    return LedgerEntry(one.batch_id, one.query_id, len(done), rows, digest)


def check_without_frame(batch_id: int, done: Mapping[int, LedgerEntry], writers: int) -> None:
    """Refuse a committed batch that cannot be compared with its rows, without the frame.

    Raises:
        ReplayMismatchError: the batch is wholly committed, by another number of partitions.
        PartialReplayError: the batch was broken off.
    """
    # Each task compares its rows with the entry of its own number, which needs the same cut.
    if is_whole(done) and len(done) != writers:
        raise ReplayMismatchError(
            f"batch {batch_id} is wholly committed, by {len(done)} partitions, and now there are "
            f"{writers}. Nothing was written: whether the rows are the same again cannot be "
            f"checked here, without the frame. Ways out: writers={len(done)}, as then; `write`, "
            'which can; on_replay_mismatch="keep", to leave the batch as it was committed'
        )
    if 0 < len(done) < writers:
        raise PartialReplayError(
            f"{in_part(batch_id, done)}. Nothing was written: whether the same partitions have the"
            " same rows again cannot be checked here, without the frame. Ways out: `write`, which"
            " checks it, also if the partitions have other numbers now;"
            ' on_replay_mismatch="keep", if you know that the rows are the same; another sink id'
        )


def check_whole_replay(entry: LedgerEntry, rows: int, digest: str) -> None:
    """Compare a committed batch with its rows of now.

    Args:
        entry: of this batch.
        rows: how many the frame has.
        digest: of all rows, in any partitions.

    Raises:
        ReplayMismatchError: they differ.
    """
    # Not taken for written by its id alone: with a checkpoint that was set back by one batch, or
    # an id that was given twice, these are new rows, and would be lost in silence.
    if (rows, digest) == (entry.rows, entry.digest):
        return
    raise ReplayMismatchError(
        f"batch {entry.name} comes again with other rows: {entry.rows} rows (digest "
        f"{entry.digest}) were committed, now there are {rows} (digest {digest}). Nothing was "
        "written, and the committed rows stay. Either the frame does not give the same rows "
        'again: then leave the batch as it was committed, by on_replay_mismatch="keep". Or the '
        "checkpoint was set back or replaced, or the batch id was given twice, and there are rows "
        "that were never written: then the way out is the checkpoint as it was, the next batch "
        "id, or another sink id."
    )


def cut_otherwise(
    batch: int | str, done: Mapping[int, LedgerEntry], writers: int
) -> PartialReplayError:
    """Return the refusal of a batch that was broken off, and had other partitions."""
    return PartialReplayError(
        f"{in_part(batch, done)}, written by "
        f"{sorted({entry.writers for entry in done.values()})} writers; now there are "
        f"{writers}. Nothing was written: the rest would be cut in another way, and rows be "
        'lost or doubled; on_replay_mismatch="keep" does not help here. Ways out: as many '
        "partitions as then; another sink id with a new topic; or another sink id on the same "
        "topic, when the rows of the partitions named above may be written once more."
    )


def in_part(batch: int | str, done: Mapping[int, LedgerEntry]) -> str:
    """Return a sentence that names the partitions that hold a batch."""
    rows = sum(entry.rows for entry in done.values())
    return (
        f"batch {batch} is committed in part: {len(done)} partition(s) "
        f"({', '.join(map(str, sorted(done)))}) hold {rows} rows of it"
    )
