"""The one transaction of a whole batch. The driver holds it, leases it to the tasks, commits once.

Why it exists: in each partition readers see all of a batch or nothing, whatever fails. The driver
holds the transaction and leases it; tasks write into it; one EndTxn commits rows and ledger. A
batch that was not finished is aborted and tried again, so its rows may differ the second time.

Owns: the transaction and its id, what follows from a loss or a commit in doubt. Must not know: how
a task writes, frames.

Rules:
* A driver takes the sink's id first. That fences an earlier driver, and aborts its open
  transaction. Then it reads the ledger: until then an earlier commit could still be on its way.
* After a failure: abort, lease again, try again. This ends after a few attempts, and at once if
  the user has to do something first.
* After a stop (`query.stop()`, a cancelled job, the end of Spark) the batch is aborted, and not
  tried again. Spark reports a stop only to a thread that waits for a job, so the driver asks
  before it commits.
* The driver takes over only the entries that its first look finds. If it is fenced, and takes
  its id again, it finds the later commits of its own query, and stops.
* A driver that sees another driver does not take the id back: the two would fence each other. It
  reads whether the batch is committed, and stops if not.
* A commit without a clear success is decided by the id and the ledger: a new producer takes the
  id, and then the ledger has the batch, or never will.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

from txnproducer.errors import IllegalStateError, KafkaError
from txnproducer.lease import TransactionLease
from txnproducer.producer import TransactionalProducer
from txnproducer.spark.driver.batch_retries import RunBounds, retrying
from txnproducer.spark.driver.whole_ledger import WholeLedger
from txnproducer.spark.driver.whole_parts import (
    as_failed,
    entry_of,
    is_lost,
    refuse_failed,
    slowest,
)
from txnproducer.spark.errors import BatchTimedOutError, StaleRunError
from txnproducer.spark.ledger.entries import LedgerBatch, LedgerEntry
from txnproducer.spark.ledger.leasing_producer import LeasingProducer
from txnproducer.spark.ledger.lost_transactions import is_another_driver_seen, timed_out
from txnproducer.spark.ledger.producers import CLOSE_AT_STOP_S, CLOSE_S, config_for
from txnproducer.spark.ledger.rights import taking
from txnproducer.spark.ledger.rules import LedgerRules
from txnproducer.spark.ledger.store import Ledger
from txnproducer.spark.session import tells_of_stop
from txnproducer.spark.tasks.participant import Part

_LOG = logging.getLogger(__name__)

# Takes the lease, and whether this is the last attempt.
RunTasks: TypeAlias = Callable[[TransactionLease, bool], list[Part]]
# Sends the rows itself.
SendRows: TypeAlias = Callable[[TransactionalProducer], Part]
# Fills the transaction, and adds the parts that it has, also if it raises.
_Fill: TypeAlias = Callable[[TransactionalProducer, list[Part]], None]


class BatchTransactions:
    """The driver's hold on the one id of a sink that writes whole batches.

    Args:
        ledger: of the sink.
        rules: for an entry that does not fit.
        tell: called with events: a name, the batch and the number of rows.

    Attributes:
        last: the entry that the last look has found, whoever had the id, or the last commit made.
        attempts: how often the last batch was tried.
        transaction_s: how long the transaction of the last batch was open, in seconds.
    """

    def __init__(
        self, ledger: Ledger, rules: LedgerRules, tell: Callable[[str, int, int], None]
    ) -> None:
        self._ledger = ledger
        self._entries = WholeLedger(ledger, rules)
        self._tell = tell
        self.last: LedgerEntry | None = None
        # As it was found or left while this driver has held the id without a break.
        self._left_at: LedgerEntry | None = None
        self.attempts = 0
        self.transaction_s = 0.0
        self._producer: TransactionalProducer | None = None
        self._settings: Mapping[str, str] = {}
        self._lease: TransactionLease | None = None
        self._bounds = RunBounds()
        self._raise_if_stopped: Callable[[], None] = lambda: None
        self._began_s = 0.0

    def check(self, batch: LedgerBatch) -> None:
        """Check that a batch may be written, before any id is taken.

        A transaction of an earlier driver may still be undecided. A driver that holds the sink
        asks nothing here.

        Raises:
            SinkError: the ledger stops the batch.
            KafkaError: the cluster refused, or did not answer.
        """
        if self._producer is None:
            self._look(batch, waits_for_undecided=False)

    def enter(self, batch: LedgerBatch, settings: Mapping[str, str]) -> LedgerEntry | None:
        """Take the sink's id, and return the batch's entry if it is committed already.

        Raises:
            SinkError: the ledger stops the batch; no driver was fenced.
            KafkaError: the cluster refused, or did not answer.
        """
        self._settings = settings
        if self._producer is None:
            self.check(batch)
            return self._open(batch)
        entry = self._look(batch)
        self._left_at = self.last
        return entry

    def goes_on(self, batch: LedgerBatch) -> bool:
        """Return whether a batch needs no look at the ledger.

        Whoever writes with this sink id takes the id, and a commit under an id that was taken is
        refused. Until then the ledger is as the last batch left it.
        """
        left = self._left_at
        if self._producer is None or left is None or left.run_id or batch.run_id:
            return False
        return left.query_id == batch.query_id and left.batch_id < batch.batch_id

    def _open(self, batch: LedgerBatch) -> LedgerEntry | None:
        """Take the id, and then read the ledger. If that fails, the id is let go again."""
        producer = self._take()
        try:
            # After the id is taken: until then an earlier driver's commit could still be on its
            # way.
            self._ledger.move(producer, self._ledger.whole_group, is_last=True)
            entry = self._look(batch)
        except BaseException:
            producer.close(0)
            raise
        self._producer, self._left_at = producer, self.last
        return entry

    def write(
        self,
        batch: LedgerBatch,
        run_tasks: RunTasks,
        raise_if_stopped: Callable[[], None] = lambda: None,
        bounds: RunBounds | None = None,
    ) -> tuple[list[Part], LedgerEntry | None]:
        """Have tasks write a batch, and commit it.

        Args:
            batch: the batch.
            run_tasks: has the tasks write under a lease, and returns their parts; its second
                argument says whether this is the last attempt.
            raise_if_stopped: raises if the query or Spark was stopped.
            bounds: of its runs; None for the default.

        Returns:
            The parts; and the ledger's entry if the batch was found committed already.

        Raises:
            SinkError, KafkaError: refused, or failed for good; nothing of it will be visible.
            BatchTimedOutError: it took longer than the transaction time-out.
            Exception: raised by Spark for the frame itself.
        """

        def fill(producer: TransactionalProducer, parts: list[Part]) -> None:
            self._fill_by_tasks(producer, batch, run_tasks, parts)

        return self._write(batch, fill, raise_if_stopped, bounds)

    def write_rows(
        self,
        batch: LedgerBatch,
        send: SendRows,
        raise_if_stopped: Callable[[], None],
        bounds: RunBounds | None = None,
    ) -> tuple[list[Part], LedgerEntry | None]:
        """Write a batch without tasks, and commit it. It returns and raises as `write` does.

        Args:
            batch: the batch.
            send: sends all rows with the driver's own producer, and returns them as a part.
            raise_if_stopped: raises if the query or Spark was stopped.
            bounds: of its runs; None for the default.
        """
        fill: _Fill = lambda producer, parts: parts.append(send(producer))  # noqa: E731
        return self._write(batch, fill, raise_if_stopped, bounds)

    def _write(
        self,
        batch: LedgerBatch,
        fill: _Fill,
        raise_if_stopped: Callable[[], None],
        bounds: RunBounds | None,
    ) -> tuple[list[Part], LedgerEntry | None]:
        self.attempts, self._bounds = 0, bounds or RunBounds()
        self._raise_if_stopped = raise_if_stopped
        parts, entry = retrying(raise_if_stopped, self._bounds)(self._attempt, batch, fill)
        if entry is None:  # after the retries: an error of the hook must not cause another attempt
            self._tell("batch_after_commit", batch.batch_id, sum(part.rows for part in parts))
        return parts, entry

    def _attempt(self, batch: LedgerBatch, fill: _Fill) -> tuple[list[Part], LedgerEntry | None]:
        if self._producer is None:
            entry = self._open(batch)
            if entry is not None:
                return [], entry
        producer = self._producer
        if producer is None:
            raise IllegalStateError("a sink without a producer")
        self.attempts += 1
        self._bounds.begin()
        # The old lease is dropped first: an error of this attempt must not be judged by it.
        self._began_s, self._lease = time.monotonic(), None
        parts: list[Part] = []
        try:
            producer.begin_transaction()
            fill(producer, parts)
            # In the same transaction as the rows, so that the two cannot disagree.
            entry = entry_of(batch, parts)
            self._entries.write(producer, self._lease, self._settings, batch, entry)
            self._tell("batch_before_commit", batch.batch_id, sum(part.rows for part in parts))
            self._raise_if_stopped()  # Spark reports a stop only to a thread that waits for a job
        except BaseException as error:
            self._give_up_if_stopped(error)
            # Asked before the abort, which changes the answer of the coordinator.
            is_replaced = self._is_replaced(parts, error)
            timeout = None if is_replaced else self._timed_out(batch, parts, error)
            self._abort(producer)
            if is_replaced:
                return [], self._left_to_another(batch, error)
            if timeout is not None:
                raise timeout from error
            raise
        return self._commit(producer, batch, parts)

    def _fill_by_tasks(
        self,
        producer: TransactionalProducer,
        batch: LedgerBatch,
        run_tasks: RunTasks,
        parts: list[Part],
    ) -> None:
        if batch.writers:
            # The lease takes ids of its own for the claims, and each needs the right to Write.
            with taking(self._ledger, f"{self._ledger.whole_id}.claim-0"):
                self._lease = producer.lease(self._entries.claims(batch))
            parts += run_tasks(self._lease, self._bounds.is_last)
            # Before the receipts are adopted: a commit with one part missing would tear the batch.
            refuse_failed(batch, parts)
            producer.adopt(part.receipt for part in parts if part.receipt is not None)

    def _commit(
        self, producer: TransactionalProducer, batch: LedgerBatch, parts: list[Part]
    ) -> tuple[list[Part], LedgerEntry | None]:
        try:
            producer.commit_transaction()
        except KafkaError as error:
            self._give_up_if_stopped(error)
            is_replaced = self._is_replaced(parts, error)  # before the id is taken again
            timeout = None if is_replaced else self._timed_out(batch, parts, error)
            self._give_up()
            if is_replaced:
                return [], self._left_to_another(batch, error)
            # A new producer takes the id: the commit is decided then, and the ledger shows it.
            if self._open(batch) is None:
                raise timeout or as_failed(batch, error) from error
            _LOG.warning("batch %s is committed, though the commit said: %s", batch.name, error)
            return parts, None
        except BaseException:
            self._give_up(0)  # interrupted: the next batch reads the ledger
            raise
        self.transaction_s = time.monotonic() - self._began_s
        self.last = self._left_at = entry_of(batch, parts)
        return parts, None

    def _give_up_if_stopped(self, error: BaseException) -> None:
        """Raise if an error tells of a stop, or if one has come while a broker did not answer."""
        try:
            if tells_of_stop(error):
                raise error
            if isinstance(error, Exception):
                self._raise_if_stopped()
        except Exception:
            self._give_up(CLOSE_AT_STOP_S)  # aborts, but does not wait for a dead broker
            raise

    def _timed_out(
        self, batch: LedgerBatch, parts: list[Part], error: BaseException
    ) -> BatchTimedOutError | None:
        """Return the error for a transaction that was too slow, or None."""
        timeout_ms = int(self._settings["transaction.timeout.ms"])
        seconds = time.monotonic() - self._began_s
        # The time alone proves nothing: a slow batch may fail for another reason, and may be
        # retried.
        if self._lease is None or not is_lost(parts, error) or seconds * 1000 < timeout_ms:
            return None
        return timed_out(batch.name, timeout_ms, seconds, slowest(parts))

    def _is_replaced(self, parts: list[Part], error: BaseException) -> bool:
        """Return whether the transaction is lost because another driver has taken the id."""
        return is_lost(parts, error) and is_another_driver_seen(self._ledger, self._lease, error)

    def _left_to_another(self, batch: LedgerBatch, error: BaseException) -> LedgerEntry:
        """Return the batch's entry if another driver has committed it. The id is not taken back.

        Raises:
            StaleRunError: it has not.
        """
        self._give_up()
        # The other driver may be in the midst of its batch, so a wait would last as long as that.
        entry = self._look(batch, waits_for_undecided=False)
        if entry is None:
            raise StaleRunError(
                f"another driver writes with this sink id: it has taken {self._ledger.whole_id!r} "
                f"while this one wrote batch {batch.name}. Nothing of that was committed by "
                "this driver, which stops and leaves the batch to the other one. If two queries "
                "run, end one of them, or give it a sink id of its own"
            ) from error
        return entry

    def _abort(self, producer: TransactionalProducer) -> None:
        try:
            producer.abort_transaction()
        except KafkaError as error:
            _LOG.info("a new producer is needed: %s", error)
            self._give_up()
        except BaseException:
            self._give_up(0)
            raise

    def _give_up(self, timeout_s: float = CLOSE_S) -> None:
        # Dropped before the close: if that is interrupted, no later batch uses a producer half
        # closed.
        producer, self._producer = self._producer, None
        self._left_at = None  # whoever takes the id now may commit
        if producer is not None:
            producer.close(timeout_s)

    def refresh(self, query_id: str, settings: Mapping[str, str]) -> int:
        """Commit the entry again as it is, so that it does not expire.

        It must not be called while a batch is being written.

        Returns:
            1; or 0 if there is no entry, or if it belongs to another query.

        Raises:
            KafkaError: the cluster refused; or another driver writes with this sink.
        """
        # Without the id, an earlier driver's open transaction could keep the entry undecided.
        entry = self._ledger.read_whole(waits_for_undecided=self._producer is not None)
        if entry is None or entry.query_id != query_id:
            return 0
        self._settings = settings
        if self._producer is None:
            self._producer = self._take()
        producer = self._producer
        try:
            entry = self._ledger.read_whole()  # after the id is taken: it cannot change any more
            if entry is None:
                return 0
            with producer.transaction():
                self._ledger.write_whole(producer, entry)
        except BaseException:
            self._give_up(0)
            raise
        return 1

    def close(self) -> None:
        """Close the producer, and so let go of the sink's id."""
        self._give_up()

    def _take(self) -> TransactionalProducer:
        name = self._ledger.whole_id
        config = config_for(self._settings, name)
        producer = LeasingProducer.from_config(config)
        try:
            with taking(self._ledger, name):
                producer.init_transactions()
        except BaseException:
            producer.close(0)
            raise
        return producer

    def _look(self, batch: LedgerBatch, *, waits_for_undecided: bool = True) -> LedgerEntry | None:
        try:
            return self._entries.look(batch, waits_for_undecided=waits_for_undecided)
        finally:
            self.last = self._entries.last
