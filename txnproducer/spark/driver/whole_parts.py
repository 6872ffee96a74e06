"""The parts of a whole batch, added up and judged.

Owns: the ledger's entry of the parts, the refusal of a batch of which one failed. Must not know:
transactions, tasks.
"""

from __future__ import annotations

from collections.abc import Collection

from txnproducer._core.transactions.transaction_loss import sign_of_loss
from txnproducer.errors import KafkaError
from txnproducer.spark.errors import BatchFailedError
from txnproducer.spark.ledger.digest import total
from txnproducer.spark.ledger.entries import LedgerBatch, LedgerEntry
from txnproducer.spark.tasks.participant import Part


def entry_of(batch: LedgerBatch, parts: Collection[Part | LedgerEntry]) -> LedgerEntry:
    """Return the ledger's entry of a batch with these parts."""
    rows = sum(part.rows for part in parts)
    digest = total(part.digest for part in parts)
    return LedgerEntry(
        batch.batch_id, batch.query_id, batch.writers, rows, digest, run_id=batch.run_id
    )


def is_lost(parts: list[Part], error: BaseException) -> bool:
    """Return whether the transaction is lost, by an error on the driver or in a part."""
    return sign_of_loss(error) is not None or any(part.is_lost for part in parts)


def refuse_failed(batch: LedgerBatch, parts: list[Part]) -> None:
    """Check that every part was written.

    Raises:
        BatchFailedError: one was not.
    """
    failed = [part for part in parts if part.receipt is None]
    if not failed:
        return
    text = "; ".join(part.failure for part in failed)
    is_users = any(part.recovery == "fix" for part in failed)
    raise BatchFailedError(
        f"batch {batch.name} could not be written, and nothing of it is visible: {text}",
        recovery="fix" if is_users else "abort",
    )


def slowest(parts: list[Part]) -> str:
    """Return a note for people that names the part that took longest, or nothing."""
    if not parts:
        return ""
    seconds = [sum(part.seconds.values()) for part in parts]
    number = seconds.index(max(seconds))
    return f" (the slowest part was partition {number}, {seconds[number]:.1f} s)"


def as_failed(batch: LedgerBatch, error: KafkaError) -> BatchFailedError:
    """Return the error of a batch that its commit has refused."""
    return BatchFailedError(
        f"batch {batch.name} was not committed, and nothing of it is visible: {error}",
        recovery="fix" if error.recovery == "fix" else "abort",
    )
