"""The rule that a sink id belongs to one atomicity for good.

Why it exists: each atomicity keeps a ledger of its own, or reads one by rules of its own. A sink
that looked only into its own ledger would take every batch of another atomicity for a new one, and
write it once more.

Owns: the rule and its text. Must not know: where the ledger is, how rows are written.

Rule: neither `on_missing_ledger` nor `on_foreign_ledger` overrides it. Both are about a ledger of
the sink's own atomicity. Here two ledgers would grow side by side, and the next look at the wrong
one would double rows again.
"""

from __future__ import annotations

from txnproducer.spark.errors import LedgerError
from txnproducer.spark.ledger.store import Ledger, LedgerView


def check_one_atomicity(ledger: Ledger, view: LedgerView, atomicity: str) -> None:
    """Check that a sink id was never used with another atomicity.

    Args:
        ledger: of the sink.
        view: the entries of all atomicities.
        atomicity: of this sink: "partition", "batch" or "prepared".

    Raises:
        LedgerError: it was.
    """
    found = atomicities_of(view)
    ours = found.pop(atomicity, None)
    for theirs, there in found.items():
        go_on = f'go on with atomicity="{theirs}"; or '
        raise LedgerError(
            f'the sink id {ledger.sink_id!r} was used with atomicity="{theirs}", and this is '
            f'atomicity="{atomicity}": there the ledger holds {there}. Each keeps a ledger of its '
            "own and does not see the commits of another, so this batch could be written twice. "
            f"Nothing was written. {'Ways out' if ours is None else 'Way out'}: "
            f"{go_on if ours is None else '(both ledgers have entries) '}"
            'a new sink_id, with on_missing_ledger="write" for its first start, once you have '
            f'made sure that the last batch is wholly committed with atomicity="{theirs}". '
            "Otherwise rows of that batch would be doubled or lost."
        )


def atomicities_of(view: LedgerView) -> dict[str, str]:
    """Return the atomicities with which a sink was used, and the last batch or run of each."""
    found: dict[str, str] = {}
    if view.entries:
        last = max(view.entries.values(), key=lambda entry: entry.batch_id)
        kind = "partition" if last.decision is None else "prepared"
        found[kind] = f"batch {last.batch_id} of query {last.query_id}"
    # The look may have asked for partition 0 alone. A plan shows the sink even if it has no entry
    # there.
    elif view.plan is not None:
        kind = "prepared" if view.plan.is_prepared else "partition"
        run = f"run {view.plan.run} of query {view.plan.query_id}"
        found[kind] = f"{run}, without a batch in partition 0"
    for whole in (view.run, view.whole):
        if whole is not None:
            kind = "batch" if whole.decision is None else "prepared"
            found[kind] = f"batch {whole.name} of query {whole.query_id}"
    return found
