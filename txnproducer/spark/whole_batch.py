"""Atomicity "batch": a whole micro-batch is one transaction, written by all tasks.

Why it exists: readers see all of a batch or nothing, whatever dies. The driver holds the
transaction and leases it; tasks write into it; one EndTxn commits rows and ledger. A batch that
was not finished is aborted and run again, so that nothing has to be the same the second time.

Owns: the driver's side. Must not know: how a task writes, what a frame is.

Rules:
* Whoever begins with a sink takes its id first (that fences an earlier driver, and aborts what it
  left open), and then reads the ledger: until then an earlier commit could still be on its way.
* After any failure: abort, lease anew, run again; a few times, and not if the user has to do
  something first.
* A commit without a clear success is decided by the id and the ledger: a new producer takes the
  id, and then the ledger has the batch, or never will.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from txnproducer.config import ProducerConfig
from txnproducer.errors import IllegalStateError, KafkaError
from txnproducer.lease import TransactionLease
from txnproducer.producer import TransactionalProducer
from txnproducer.spark.digest import total
from txnproducer.spark.entries import LedgerEntry
from txnproducer.spark.errors import BatchFailedError
from txnproducer.spark.ledger import Ledger
from txnproducer.spark.ledger_rules import LedgerRules
from txnproducer.spark.participant_task import Part
from txnproducer.spark.runs import Batch

_LOG = logging.getLogger(__name__)
_CLOSE_S: Final = 30.0
_MOST_RUNS: Final = 3

RunTasks: TypeAlias = Callable[[TransactionLease], list[Part]]


class WholeBatches:
    """The driver's hold on the one id of a sink that writes whole batches.

    Args:
        ledger: where the entry is.
        rules: what to do about an entry that does not fit.
        tell: told of events: a name, the batch and the number of rows.
    """

    def __init__(
        self, ledger: Ledger, rules: LedgerRules, tell: Callable[[str, int, int], None]
    ) -> None:
        self._ledger = ledger
        self._rules = rules
        self._tell = tell
        self._producer: TransactionalProducer | None = None
        self._settings: Mapping[str, str] = {}

    def enter(self, batch: Batch, settings: Mapping[str, str]) -> LedgerEntry | None:
        """Take hold of the sink, and return the batch's entry if it is committed already.

        Raises:
            SinkError: what the ledger holds stops the batch; nobody was fenced.
            KafkaError: the cluster did.
        """
        self._settings = settings
        if self._producer is None:
            # Before anybody is harmed; what an old driver left open is not decided yet.
            self._look(batch, waits_for_undecided=False)
            return self._open(batch)
        return self._look(batch)

    def _open(self, batch: Batch) -> LedgerEntry | None:
        """Take the id, and then look; who could not look has not taken it, and begins again."""
        producer = self._take()
        try:
            entry = self._look(batch)
        except BaseException:
            producer.close(0)
            raise
        self._producer = producer
        return entry

    def write(self, batch: Batch, run_tasks: RunTasks) -> tuple[list[Part], LedgerEntry | None]:
        """Write a batch, and commit it.

        Args:
            batch: which one.
            run_tasks: has the tasks write under a lease, and returns what they wrote.

        Returns:
            The parts; and the ledger's entry where the batch was found committed already.

        Raises:
            SinkError, KafkaError: refused, or failed for good; nothing of it will be visible.
            Exception: what Spark raises for the frame itself.
        """
        retrying = Retrying(
            stop=stop_after_attempt(_MOST_RUNS),
            wait=wait_exponential(multiplier=0.5, max=10),
            retry=retry_if_exception(_is_worth_another_run),
            reraise=True,
        )
        parts, entry = retrying(self._run, batch, run_tasks)
        if entry is None:  # behind the retries: nothing that is committed may be run again
            self._tell("batch_after_commit", batch.batch_id, sum(part.rows for part in parts))
        return parts, entry

    def _run(self, batch: Batch, run_tasks: RunTasks) -> tuple[list[Part], LedgerEntry | None]:
        if self._producer is None:
            entry = self._open(batch)
            if entry is not None:
                return [], entry
        producer = self._producer
        if producer is None:
            raise IllegalStateError("a sink without a producer")
        try:
            producer.begin_transaction()
            parts = self._fill(producer, batch, run_tasks)
            self._tell("batch_before_commit", batch.batch_id, sum(part.rows for part in parts))
        except BaseException:
            self._abort(producer)
            raise
        return self._commit(producer, batch, parts)

    def _fill(
        self, producer: TransactionalProducer, batch: Batch, run_tasks: RunTasks
    ) -> list[Part]:
        parts: list[Part] = []
        if batch.writers:
            lease = producer.lease(batch.writers)
            parts = run_tasks(lease)
            _refuse_failed(batch, parts)
            producer.adopt(part.receipt for part in parts if part.receipt is not None)
        rows = sum(part.rows for part in parts)
        digest = total(part.digest for part in parts)
        entry = LedgerEntry(batch.batch_id, batch.query_id, batch.writers, rows, digest)
        self._ledger.write_whole(producer, entry)
        return parts

    def _commit(
        self, producer: TransactionalProducer, batch: Batch, parts: list[Part]
    ) -> tuple[list[Part], LedgerEntry | None]:
        try:
            producer.commit_transaction()
        except KafkaError as error:
            self._give_up()
            if self._open(batch) is None:
                raise _as_failed(batch, error) from error
            _LOG.warning(
                "batch %d is committed, though the commit said: %s", batch.batch_id, error
            )
            return parts, None
        except BaseException:
            self._give_up(0)  # interrupted: the next batch asks the ledger
            raise
        return parts, None

    def _abort(self, producer: TransactionalProducer) -> None:
        try:
            producer.abort_transaction()
        except KafkaError as error:
            _LOG.info("a new producer is needed: %s", error)
            self._give_up()
        except BaseException:
            self._give_up(0)
            raise

    def _give_up(self, timeout_s: float = _CLOSE_S) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close(timeout_s)

    def close(self) -> None:
        """Let go of the sink."""
        self._give_up()

    def _take(self) -> TransactionalProducer:
        name = self._ledger.whole_id
        config = ProducerConfig.from_properties({**self._settings, "transactional.id": name})
        producer = TransactionalProducer.from_config(config)
        try:
            producer.init_transactions()
        except BaseException:
            producer.close(0)
            raise
        return producer

    def _look(self, batch: Batch, *, waits_for_undecided: bool = True) -> LedgerEntry | None:
        entry = self._ledger.read_whole(waits_for_undecided=waits_for_undecided)
        return self._rules.check_whole(entry, batch.batch_id, batch.query_id)


def _refuse_failed(batch: Batch, parts: list[Part]) -> None:
    failed = [part for part in parts if part.receipt is None]
    if not failed:
        return
    text = "; ".join(part.failure for part in failed)
    is_users = any(part.recovery == "fix" for part in failed)
    raise BatchFailedError(
        f"batch {batch.batch_id} could not be written, and nothing of it is visible: {text}",
        recovery="fix" if is_users else "abort",
    )


def _as_failed(batch: Batch, error: KafkaError) -> BatchFailedError:
    return BatchFailedError(
        f"batch {batch.batch_id} was not committed, and nothing of it is visible: {error}",
        recovery="fix" if error.recovery == "fix" else "abort",
    )


def _is_worth_another_run(error: BaseException) -> bool:
    if isinstance(error, KafkaError):
        return error.recovery != "fix"
    return isinstance(error, Exception)  # Spark's: an executor was lost, or the frame itself fails
