"""The ledger's side of a whole batch: the look at its entry, and the entry in its transaction.

Owns: whose record it is in a leased transaction, and the entries that are taken over. Must not
know: how the transaction is held and ended, rows.

Rule: while a transaction is leased, its holder writes no records. An entry that is a record is
then written as a part of the batch, with a claim of the driver's own after those of the tasks.
"""

from __future__ import annotations

from collections.abc import Mapping

from txnproducer.lease import TransactionLease, TransactionParticipant
from txnproducer.producer import TransactionalProducer
from txnproducer.spark.ledger.entries import LedgerBatch, LedgerEntry
from txnproducer.spark.ledger.one_atomicity import check_one_atomicity
from txnproducer.spark.ledger.producers import closing, config_for
from txnproducer.spark.ledger.rules import LedgerRules
from txnproducer.spark.ledger.store import Ledger
from txnproducer.spark.ledger.take_over import TakeOver


class WholeLedger:
    """The entries of a sink's whole batches.

    Args:
        ledger: of the sink.
        rules: for an entry that does not fit.

    Attributes:
        last: the entry of the last whole batch that a look has found.
    """

    def __init__(self, ledger: Ledger, rules: LedgerRules) -> None:
        self._ledger = ledger
        self._taking = TakeOver(rules)
        self.last: LedgerEntry | None = None

    def look(self, batch: LedgerBatch, *, waits_for_undecided: bool = True) -> LedgerEntry | None:
        """Return the entry of a batch if it is committed.

        Raises:
            SinkError: the ledger stops the batch.
            KafkaError: the cluster refused, or did not answer.
        """
        # The other atomicity has a plan, and an entry of partition 0, as every batch has one.
        view = self._ledger.look([0], waits_for_undecided=waits_for_undecided)
        check_one_atomicity(self._ledger, view, is_whole=True)
        self.last = view.whole
        entries = {} if view.whole is None else {0: view.whole}
        self._taking.look_at(None, entries, batch.query_id)
        is_taken_over = bool(self._taking.of(entries, batch.batch_id, batch.query_id))
        return self._taking.rules.check_whole(
            view.whole, batch.batch_id, batch.query_id, is_taken_over=is_taken_over
        )

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
        if lease is None or not self._ledger.own_claims:
            self._ledger.write_whole(producer, entry)
            return
        config = config_for(settings, self._ledger.whole_id)
        with closing(TransactionParticipant.from_config(lease, batch.writers, config)) as writer:
            self._ledger.write_whole(writer, entry)
            receipt = writer.receipt()
        producer.adopt([receipt])
