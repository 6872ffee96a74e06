"""A small named run, which the driver writes itself, in one transaction under the id of part 0.

Owns: the entry of such a run. Must not know: the decision: its own commit decides.
"""

from __future__ import annotations

from txnproducer.producer import TransactionalProducer
from txnproducer.spark.driver.partition_batch import KeptTransaction
from txnproducer.spark.ledger.entries import LedgerEntry, PlanEntry
from txnproducer.spark.ledger.named_runs import read_run, topic_ledger, write_run
from txnproducer.spark.ledger.slots import Content


class SmallRun(KeptTransaction):
    """The transaction of a small named run."""

    def _look(self) -> tuple[PlanEntry | None, LedgerEntry | None]:
        plan = self._plan
        found, _ = plan.ledger.read()
        entry = read_run(topic_ledger(plan.ledger), self._run_id)
        # Only an attempt like this one can have written it since the driver has looked. Another
        # query's run of this name is taken over, and of one that was decided nothing is left.
        is_ours = entry is not None and (entry.query_id, entry.decision) == (plan.query_id, 0)
        return found, entry if is_ours else None

    def _write_entry(self, writer: TransactionalProducer, content: Content) -> None:
        plan = self._plan
        entry = LedgerEntry(plan.batch_id, plan.query_id, 1, *content, decision=0)
        write_run(topic_ledger(plan.ledger), writer, self._run_id, entry)

    @property
    def _run_id(self) -> str:
        return self._plan.run_id or ""
