"""The ledger's side of a whole batch: the look at its entry, and the entry in its transaction.

Owns: whose record it is in a leased transaction, and the entries that are taken over. Must not
know: how the transaction is held and ended, rows.

Rule: while a transaction is leased, its holder writes no records. An entry that is a record is
then written as a part of the batch, with a claim of the driver's own after those of the tasks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from txnproducer._shell.record_writer import RecordWriter
from txnproducer.lease import TransactionLease, TransactionParticipant
from txnproducer.producer import TransactionalProducer
from txnproducer.spark.ledger.entries import LedgerBatch, LedgerEntry
from txnproducer.spark.ledger.named_runs import read_run, topic_ledger, write_run
from txnproducer.spark.ledger.one_atomicity import check_one_atomicity
from txnproducer.spark.ledger.producers import closing, config_for
from txnproducer.spark.ledger.rules import LedgerRules, check_owner
from txnproducer.spark.ledger.store import REFRESH_AFTER_S, Ledger, LedgerView
from txnproducer.spark.ledger.take_over import TakeOver


class WholeLedger:
    """The entries of a sink's whole batches.

    Args:
        ledger: of the sink.
        rules: for an entry that does not fit.

    Attributes:
        last: the entry of the last whole batch that a look has found: a named one for a named
            run, a numbered one otherwise.
    """

    def __init__(self, ledger: Ledger, rules: LedgerRules) -> None:
        self._ledger = ledger
        self._taking = TakeOver(rules)
        self._takes_over = rules.takes_over
        self.last: LedgerEntry | None = None
        self._marked_until_s = -math.inf

    def look(self, batch: LedgerBatch, *, waits_for_undecided: bool = True) -> LedgerEntry | None:
        """Return the entry of a batch if it is committed.

        Raises:
            SinkError: the ledger stops the batch.
            KafkaError: the cluster refused, or did not answer.
        """
        # The other atomicity has a plan, and an entry of partition 0, as every batch has one.
        view = self._ledger.look([0], waits_for_undecided=waits_for_undecided)
        check_one_atomicity(self._ledger, view, "batch")
        self.last = view.whole if batch.run_id is None else view.run
        if batch.run_id is not None or view.run is not None:
            self._check_owner(view, batch)
        if batch.run_id is not None:
            return self._look_for_run(batch, batch.run_id, waits_for_undecided)
        entries = {} if view.whole is None else {0: view.whole}
        self._taking.look_at(None, entries, batch.query_id)
        is_taken_over = bool(self._taking.of(entries, batch.batch_id, batch.query_id))
        return self._taking.rules.check_whole(
            view.whole, batch.batch_id, batch.query_id, is_taken_over=is_taken_over
        )

    def _check_owner(self, view: LedgerView, batch: LedgerBatch) -> None:
        for entry in (view.whole, view.run):
            if entry is not None and not self._takes_over:
                check_owner(entry, batch.name, batch.query_id)

    def _look_for_run(
        self, batch: LedgerBatch, run_id: str, waits_for_undecided: bool
    ) -> LedgerEntry | None:
        entry = read_run(
            topic_ledger(self._ledger), run_id, waits_for_undecided=waits_for_undecided
        )
        if entry is None or entry.query_id == batch.query_id:
            return entry
        if not self._takes_over:
            check_owner(entry, batch.name, batch.query_id)
        return None  # another query's run of this name, which is written once more

    def claims(self, batch: LedgerBatch) -> int:
        """Return how many claims the transaction of a batch needs."""
        return batch.writers + self._ledger.own_claims

    def write(
        self,
        producer: TransactionalProducer,
        lease: TransactionLease | None,
        settings: Mapping[str, str],
        batch: LedgerBatch,
        entry: LedgerEntry,
    ) -> None:
        """Add the entry of a batch to its transaction.

        Args:
            producer: holds the transaction.
            lease: of it; None if no task writes into it.
            settings: of the sink's producers, by Java's names.
            batch: the batch.
            entry: of all its rows.

        Raises:
            KafkaError: refused, or failed; abort.
        """
        if time.monotonic() >= self._marked_until_s:
            # If the transaction is aborted, the next mark comes hours later. One lives for days.
            self._ledger.mark_whole(producer)
            self._marked_until_s = time.monotonic() + REFRESH_AFTER_S
        if lease is None or not self._ledger.own_claims:
            self._write(producer, entry)
            return
        config = config_for(settings, self._ledger.whole_id)
        with closing(TransactionParticipant.from_config(lease, batch.writers, config)) as writer:
            self._write(writer, entry)
            receipt = writer.receipt()
        producer.adopt([receipt])

    def _write(self, writer: RecordWriter, entry: LedgerEntry) -> None:
        if entry.run_id is None:
            self._ledger.write_whole(writer, entry)
        else:
            write_run(topic_ledger(self._ledger), writer, entry.run_id, entry)
