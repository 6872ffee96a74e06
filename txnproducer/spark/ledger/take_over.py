"""The entries that a driver takes over from another query. They are fixed once, at its first look.

Why it exists: `on_foreign_ledger="take_over"` ignores foreign entries, and entries that are ahead.
If every look did so, a driver that was paused while another driver of its query went on would
ignore those batches too, write them once more, and set the ledger back.

Owns: which entries were taken over. Must not know: where the ledger is, how rows are written.

Rules:
* A driver takes over the very entries and the plan that its first look finds, before any id is
  taken. All later entries are judged as without the option, even those of its own query that are
  ahead.
* An entry of its own query that is younger than the driver is never taken over. It is no rest of a
  checkpoint that was rewound: another driver of the query has written it, while this one stood
  still before its first look.
* An entry that was taken over counts again as soon as it fits: after a checkpoint was rewound, the
  driver reaches the batches that it has seen ahead.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from txnproducer.spark.ledger.entries import LedgerEntry, PlanEntry
from txnproducer.spark.ledger.rules import LedgerRules


@dataclass(frozen=True)
class _Seen:
    """The plan and the entries that the first look has found."""

    plan: PlanEntry | None
    entries: Mapping[int, LedgerEntry]


class TakeOver:
    """The entries that one driver takes over, and its rules for all others.

    Args:
        rules: as the user has set them.

    Attributes:
        rules: for the entries that are not taken over.
        is_wanted: whether the user wants that at all.
    """

    def __init__(self, rules: LedgerRules) -> None:
        # The option is answered here, once: rules that kept it would pass every later entry as
        # well.
        self.rules = replace(rules, on_foreign_ledger="stop")
        self.is_wanted = rules.takes_over
        self._first_looks: dict[str, _Seen] = {}
        # By the clocks of two machines, which may differ. If ours is late, a checkpoint that was
        # rewound within that difference is refused, and a later start passes.
        self._began_ms = int(time.time() * 1000)

    def look_at(
        self, plan: PlanEntry | None, entries: Mapping[int, LedgerEntry], query_id: str
    ) -> None:
        """Take over plan and entries, if the user wants that and this is the first look."""
        if self.is_wanted and query_id not in self._first_looks:
            # By query: one sink object may be given to a second query, whose first look is its
            # own.
            self._first_looks[query_id] = _Seen(plan, dict(entries))

    def of(
        self, entries: Mapping[int, LedgerEntry], batch_id: int, query_id: str
    ) -> dict[int, LedgerEntry]:
        """Return the entries that a batch ignores, since they were taken over."""
        first = self._first_looks.get(query_id)
        if first is None:
            return {}
        return {
            partition: entry
            for partition, entry in entries.items()
            if _is_same(first.entries.get(partition), entry)
            # An own entry that is not ahead fits again. If it were still ignored, a replay would
            # be doubled.
            and (entry.query_id != query_id or entry.batch_id > batch_id)
            and not (entry.query_id == query_id and self._is_younger(entry))
        }

    def _is_younger(self, entry: LedgerEntry) -> bool:
        return entry.at_ms is not None and entry.at_ms > self._began_ms

    def check_plan(self, plan: PlanEntry | None, query_id: str) -> None:
        """Check a plan that was not taken over.

        Raises:
            LedgerError: it is another query's.
        """
        first = self._first_looks.get(query_id)
        if first is None or plan != first.plan:
            self.rules.check_plan(plan, query_id)


def _is_same(one: LedgerEntry | None, other: LedgerEntry) -> bool:
    """Return whether an entry was not written again meanwhile, not even with the same rows."""
    # `==` leaves the time out, but a driver that wrote the same entry again is alive and counts.
    return one == other and one is not None and one.at_ms == other.at_ms
