"""What a driver takes over of another query's ledger: fixed once, at its first look.

Why it exists: `on_foreign_ledger="take_over"` has foreign and later entries count for nothing.
Were that so at every look, a driver that was paused while another one of its query went on would
take those batches over as well, write them once more, and set the ledger back.

Owns: which entries were taken over. Must not know: where the ledger is, how rows are written.

Rules:
* What is taken over is what the first look of a driver has found, before anybody was fenced:
  these very entries, and this plan. All that comes later is judged as without the option, also
  entries of the driver's own query that are ahead.
* One that is taken over counts again as soon as it fits: behind a rewound checkpoint the driver
  comes to the batches that it has seen ahead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from txnproducer.spark.ledger.entries import LedgerEntry, PlanEntry
from txnproducer.spark.ledger.rules import LedgerRules


@dataclass(frozen=True)
class _FirstLook:
    plan: PlanEntry | None
    entries: Mapping[int, LedgerEntry]


class TakeOver:
    """What one driver takes over, and its rules for all the rest.

    Args:
        rules: as the user has set them.

    Attributes:
        rules: for what is not taken over.
    """

    def __init__(self, rules: LedgerRules) -> None:
        self.rules = replace(rules, on_foreign_ledger="stop")
        self._is_wanted = rules.takes_over
        self._first_looks: dict[str, _FirstLook] = {}

    def look_at(
        self, plan: PlanEntry | None, entries: Mapping[int, LedgerEntry], query_id: str
    ) -> None:
        """Take what is there over, if that is wanted and this is the query's first look."""
        if self._is_wanted and query_id not in self._first_looks:
            self._first_looks[query_id] = _FirstLook(plan, dict(entries))

    def of(
        self, entries: Mapping[int, LedgerEntry], batch_id: int, query_id: str
    ) -> dict[int, LedgerEntry]:
        """Return the entries that count for nothing in a batch, since they were taken over."""
        first = self._first_looks.get(query_id)
        if first is None:
            return {}
        return {
            partition: entry
            for partition, entry in entries.items()
            if _is_same(first.entries.get(partition), entry)
            and (entry.query_id != query_id or entry.batch_id > batch_id)
        }

    def check_plan(self, plan: PlanEntry | None, query_id: str) -> None:
        """Check a plan that was not taken over.

        Raises:
            LedgerError: it is another query's.
        """
        first = self._first_looks.get(query_id)
        if first is None or plan != first.plan:
            self.rules.check_plan(plan, query_id)


def _is_same(one: LedgerEntry | None, other: LedgerEntry) -> bool:
    """Tell whether an entry was not written again meanwhile, be it with the same rows."""
    return one == other and one is not None and one.at_ms == other.at_ms
