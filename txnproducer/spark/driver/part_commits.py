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
* A part that cannot be ended is looked up in the ledger. If its entry is there, it is committed.
  If not, the next attempt finds the others committed, and completes the batch.
* An abort is best effort. It touches only transactions of this query.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from txnproducer.errors import IllegalStateError, KafkaError
from txnproducer.lease import TransactionLease
from txnproducer.producer import TransactionalProducer
from txnproducer.spark.driver.runs import MOST_AT_ONCE, Runs
from txnproducer.spark.errors import BatchFailedError, CommitIncompleteError
from txnproducer.spark.ledger.digest import total
from txnproducer.spark.ledger.entries import LedgerBatch, LedgerEntry
from txnproducer.spark.ledger.producers import closing, config_for
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

_In = TypeVar("_In")
_Out = TypeVar("_Out")


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
        if is_whole(done):
            self._leave(ours, done)
            return
        found = {part.partition: (part.rows, part.digest) for part in ours}
        slots = assign_slots(batch_id, done, found, self.rules.on_replay_mismatch)
        # All entries are added before the first transaction ends: a part that is lost shows here.
        prepared = _at_once(lambda part: self._prepare(part, batch, slots[part.partition]), ours)
        # The rows of these are committed already, by an earlier attempt.
        _at_once(self._abort, [part for part in prepared if part.slot.is_committed])
        self._tell("batch_before_commit", ours)
        left = [part for part in prepared if not part.slot.is_committed]
        _at_once(self._end, left)
        self._tell("batch_after_commit", ours)
        _LOG.info(
            "batch %d of query %s: %d rows, %d transactions, %d replayed",
            batch_id,
            batch.query_id,
            sum(part.rows for part in ours),
            len(left),
            len(done),
        )

    def _leave(self, parts: Sequence[OpenPart], done: Mapping[int, LedgerEntry]) -> None:
        """Leave a committed batch as it is, for any cut and numbers of its partitions now."""
        if self.rules.on_replay_mismatch != "keep":
            rows = sum(part.rows for part in parts)
            check_whole_replay(added_up(done), rows, total(part.digest for part in parts))
        # Tasks that did not see the whole batch yet have written their rows once more.
        _at_once(self._abort, parts)
        _LOG.info("batch %d is committed already, by %d tasks", parts[0].batch_id, len(done))

    def _prepare(self, part: OpenPart, batch: LedgerBatch, slot: Slot) -> _Prepared:
        """Add the ledger's entry to a part, which also shows that the part is still alive."""
        if part.lease is None:
            raise BatchFailedError(
                f"partition {part.partition} found all of batch {part.batch_id} in the ledger, and"
                " now some of it is not there: the ledger was deleted meanwhile. Nothing was"
                " committed"
            )
        entry = LedgerEntry(part.batch_id, part.query_id, batch.writers, part.rows, part.digest)
        try:
            with self._resumed(part.lease) as producer:
                self.ledger.write(producer, slot.number, entry)
                return _Prepared(part.partition, slot, producer.lease(claims=0), entry)
        except KafkaError as error:
            if error.recovery == "fix":
                raise
            raise BatchFailedError(
                f"batch {part.batch_id}: the transaction of partition {part.partition} is lost"
                f" ({type(error).__name__}: {error}), and nothing was committed. It took longer"
                f" than transactionTimeout ({self.settings['transaction.timeout.ms']} ms), or"
                " another attempt of the task or another driver has taken its id"
                " (spark.speculation=true does not go with this data source). Start the query"
                " again",
                recovery="restart",
            ) from error

    def _end(self, part: _Prepared) -> None:
        entry, slot = part.entry, part.slot.number
        tell(self.on_event, "partition_before_commit", entry.batch_id, entry.rows, part.partition)
        try:
            with self._resumed(part.lease) as producer:
                producer.commit_transaction()
        except KafkaError as error:
            # An answer may be lost after the commit; the read waits until the transaction is
            # decided.
            if self.ledger.read_entries([slot]).get(slot) != entry:
                raise CommitIncompleteError(
                    f"batch {entry.batch_id}: partition {part.partition} could not be committed"
                    f" ({type(error).__name__}: {error}); others of the batch may be. Start the"
                    " query again: it completes the batch",
                    recovery="restart",
                ) from error
            _LOG.warning(
                "batch %d, partition %d is committed, though the commit said: %s",
                entry.batch_id,
                part.partition,
                error,
            )
        tell(self.on_event, "partition_committed", entry.batch_id, entry.rows, part.partition)

    # --- abort ----------------------------------------------------------------------------------

    def abort(self, parts: Sequence[OpenPart | None], query_id: str | None = None) -> None:
        """Abort the open transactions of a batch, as far as they are known. It never raises.

        Args:
            parts: of the tasks; None for each task without a message.
            query_id: of the query that the batch belongs to, if it is known.
        """
        _at_once(self._abort, [part for part in parts if part is not None])
        queries = {part.query_id for part in parts if part is not None} | ({query_id} - {None})
        silent = [number for number, part in enumerate(parts) if part is None]
        # Taking an id of another query's sink would fence that query's task.
        if not silent or not self._is_ours(queries):
            return  # their transactions end by the time-out, or at the next start
        _at_once(self._fence, silent)

    def _abort(self, part: OpenPart | _Prepared) -> None:
        if part.lease is None:
            return
        with _best_effort(f"partition {part.partition}: not aborted"):
            with self._resumed(part.lease) as producer:
                producer.abort_transaction()

    def _is_ours(self, queries: Iterable[str | None]) -> bool:
        """Return whether the sink is this query's. The tasks of another one must not be fenced."""
        plan = None
        with _best_effort("the plan cannot be read"):
            plan, _ = self.ledger.read(waits_for_undecided=False)
        return plan is not None and set(queries) == {plan.query_id}

    def _fence(self, partition: int) -> None:
        with _best_effort(f"partition {partition}: not fenced"):
            Runs(self.ledger, self.rules).take(partition, self.settings)

    # --- both -----------------------------------------------------------------------------------

    @contextmanager
    def _resumed(self, lease: TransactionLease) -> Iterator[TransactionalProducer]:
        config = config_for(self.settings, lease.transactional_id)
        with closing(TransactionalProducer.resume_from_config(lease, config)) as producer:
            yield producer

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


def _at_once(call: Callable[[_In], _Out], inputs: Iterable[_In]) -> list[_Out]:
    """Call for all inputs, some at once. No call is under way when this returns or raises."""
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        # The list reads every result, so that an error in one of the threads is raised here.
        return list(pool.map(call, inputs))


@contextmanager
def _best_effort(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - an abort that raises would hide why it is one
        _LOG.info("abort: %s: %s", what, error)
