"""The rule that a new batch does not overtake a torn one, which is committed only in part.

Why it exists: with atomicity "partition" a job can die when some of its partitions have committed.
The same batch again completes it. A newer batch would move the ledger on, and the torn batch would
then be older than the ledger, where nothing can complete it.

Owns: the rule and its text. Must not know: where the ledger is, how rows are written.

Rules:
* The newest earlier batch of the query counts. It is whole if each of its partitions holds it, or
  a later batch.
* If a partition holds the new batch already, that batch has overtaken the earlier ones. It is
  completed.
* A missing entry may have expired: `on_missing_ledger="write"` lets the batch pass then. No option
  lets it pass an entry that is older than the torn batch.
"""

from __future__ import annotations

from collections.abc import Mapping

from txnproducer.spark.errors import TornBatchError
from txnproducer.spark.ledger.entries import LedgerEntry


def check_not_torn(
    entries: Mapping[int, LedgerEntry],
    batch_id: int,
    query_id: str,
    *,
    passes_missing: bool,
) -> None:
    """Check that the newest batch before a new one is whole.

    Args:
        entries: of all partitions that have one.
        batch_id: of the batch to be written.
        query_id: of the query that it belongs to.
        passes_missing: whether partitions without an entry count as committed.

    Raises:
        TornBatchError: that batch is committed only in part.
    """
    ours = {p: entry for p, entry in entries.items() if entry.query_id == query_id}
    earlier = [entry for entry in ours.values() if entry.batch_id < batch_id]
    # An earlier batch that this one has overtaken cannot be completed. This one still can.
    if not earlier or any(entry.batch_id == batch_id for entry in ours.values()):
        return
    last = max(earlier, key=lambda entry: entry.batch_id)
    torn = {p: entry for p, entry in ours.items() if entry.batch_id == last.batch_id}
    # By the number of writers of that batch: the one to be written may be cut otherwise.
    lacking = [p for p in range(last.writers) if p not in ours or ours[p].batch_id < last.batch_id]
    # Among all entries: one of another query shows that the slot's ledger has not expired.
    has_expired = all(p not in entries for p in lacking)
    if not lacking or (has_expired and passes_missing):
        return
    raise TornBatchError(_text(torn, lacking, batch_id, has_expired=has_expired))


def _text(
    torn: Mapping[int, LedgerEntry], lacking: list[int], batch_id: int, *, has_expired: bool
) -> str:
    last = next(iter(torn.values()))
    rows = sum(entry.rows for entry in torn.values())
    text = (
        f"batch {last.batch_id} is committed in part: {len(torn)} of its {last.writers} "
        f"partitions ({', '.join(map(str, sorted(torn)))}) hold {rows} rows of it, and "
        f"{lacking} do not. It was broken off, or another driver still writes it. "
        f"Nothing of batch {batch_id} was written, since nothing could complete batch "
        f"{last.batch_id} after that. Way out: write batch {last.batch_id} again first, with the "
        f"same rows in {last.writers} partitions. What is committed is recognised, the rest is "
        'written, and no row twice. If these rows are gone: on_replay_mismatch="keep" for that '
        "one write leaves what is committed, and writes what the other partitions hold now."
    )
    if not has_expired:
        return text
    return (
        f"{text} If batch {last.batch_id} was whole, the ledgers of {lacking} have expired or "
        "were deleted, or partition_writer got more writers than its frame had partitions: "
        'on_missing_ledger="write" for one start.'
    )
