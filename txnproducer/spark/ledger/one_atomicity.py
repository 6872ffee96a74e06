"""The rule that a sink id belongs to one atomicity for good.

Why it exists: each atomicity keeps a ledger of its own. A sink that looked only into its own
ledger would take every batch of the other atomicity for a new one, and write it once more.

Owns: the rule and its text. Must not know: where the ledger is, how rows are written.

Rule: neither `on_missing_ledger` nor `on_foreign_ledger` overrides it. Both are about a ledger of
the sink's own atomicity. Here two ledgers would grow side by side, and the next look at the wrong
one would double rows again.
"""

from __future__ import annotations

from txnproducer.spark.errors import LedgerError
from txnproducer.spark.ledger.store import Ledger, LedgerView


def check_one_atomicity(ledger: Ledger, view: LedgerView, *, is_whole: bool) -> None:
    """Check that a sink id was never used with the other atomicity.

    Args:
        ledger: of the sink.
        view: the entries of both atomicities.
        is_whole: whether this sink writes whole batches.

    Raises:
        LedgerError: it was.
    """
    ours, theirs = ("batch", "partition") if is_whole else ("partition", "batch")
    there = _of_partitions(view) if is_whole else _of_whole_batches(view)
    if there is None:
        return
    is_ours_as_well = (_of_whole_batches(view) if is_whole else _of_partitions(view)) is not None
    go_on = f'go on with atomicity="{theirs}"; or '
    raise LedgerError(
        f'the sink id {ledger.sink_id!r} was used with atomicity="{theirs}", and this is '
        f'atomicity="{ours}": there the ledger holds {there}. Each keeps a ledger of its own '
        "and does not see the commits of the other, so this batch could be written twice. "
        f"Nothing was written. {'Way out' if is_ours_as_well else 'Ways out'}: "
        f"{'(both ledgers have entries) ' if is_ours_as_well else go_on}"
        'a new sink_id, with on_missing_ledger="write" for its first start, once you have made '
        f'sure that the last batch is wholly committed with atomicity="{theirs}". Otherwise '
        "rows of that batch would be doubled or lost."
    )


def _of_whole_batches(view: LedgerView) -> str | None:
    whole = view.whole
    return None if whole is None else f"batch {whole.batch_id} of query {whole.query_id}"


def _of_partitions(view: LedgerView) -> str | None:
    if view.entries:
        last = max(view.entries.values(), key=lambda entry: entry.batch_id)
        return f"batch {last.batch_id} of query {last.query_id}"
    # The look may have asked for partition 0 alone. A plan shows the sink even if it has no entry
    # there.
    if view.plan is None:
        return None
    return f"run {view.plan.run} of query {view.plan.query_id}, without a batch in partition 0"
