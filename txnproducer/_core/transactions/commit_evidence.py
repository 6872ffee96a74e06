"""Evidence about a commit without an answer, from the coordinator's description of the id.

Why it exists: after `CommitOutcomeUnknownError` the coordinator still knows the outcome of the
transaction, until the next producer of the id overwrites it.
Owns: the table of evidence. Must not know: how the description was asked for.

With transactions v2 the end of a transaction raises the epoch by one. When the epochs are used up,
the id goes on under a new producer id with epoch 0. So an end state under the next epoch belongs
to this transaction and to no other.

With v1 the epoch stays. An end state under this very epoch is this transaction's, since no other
was begun after it. The exception is a delayed request that may have begun another transaction. An
abort may be that one's then, and so may a commit, once the caller has given up the commit and
aborts: the abort may have ended this transaction, and the lost commit the other one. An abort
under the next epoch proves nothing: it may be the fence that hit this transaction, or a later
transaction's.

"Ongoing" does not mean aborted: a copy of the commit may still be on its way. A description of a
later producer proves nothing either.

With v1 a broker that was replaced as the coordinator, and does not know it, may describe the
transaction before. Nothing in a description tells, and to ask for a proof would be a write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from txnproducer.records import ProducerIdAndEpoch

ResolvedOutcome: TypeAlias = Literal["committed", "aborted", "unknown"]

# "Prepare" is decided as well: the coordinator, or its successor, completes it in any case.
_ENDS: Final[dict[str, ResolvedOutcome]] = {
    "PrepareCommit": "committed",
    "CompleteCommit": "committed",
    "PrepareAbort": "aborted",
    "CompleteAbort": "aborted",
}
# The last epoch that a producer gets. The one above is for fencing, and for v2's last end; after
# it the coordinator goes on under another producer id.
LAST_EPOCH: Final = 2**15 - 2


@dataclass(frozen=True, slots=True)
class SentCommit:
    """A commit that was begun.

    Attributes:
        producer: the identity of the transaction.
        is_transaction_v2: with which version it was written.
        is_given_up: whether the caller has begun an abort since.
    """

    producer: ProducerIdAndEpoch
    is_transaction_v2: bool
    is_given_up: bool = False


def resolve(
    commit: SentCommit, state: str, described: ProducerIdAndEpoch, *, may_begin_again: bool = False
) -> ResolvedOutcome:
    """Return the outcome that a description proves.

    Args:
        commit: the commit in question.
        state: of the transactional id, by DescribeTransactions' names (KIP-664).
        described: the producer id and epoch of the description.
        may_begin_again: whether a delayed request may have begun another transaction under the
            same epoch, to which the end could belong.
    """
    outcome = _ENDS.get(state, "unknown") if _is_its_end(commit, described) else "unknown"
    is_certain = outcome == "committed" and not commit.is_given_up
    return "unknown" if may_begin_again and not is_certain else outcome


def _is_its_end(commit: SentCommit, described: ProducerIdAndEpoch) -> bool:
    producer_id, epoch = commit.producer.producer_id, commit.producer.producer_epoch
    if not commit.is_transaction_v2:
        # With v1 the epoch stays, and no other transaction was begun after this one.
        return described == commit.producer
    # An epoch two steps ahead belongs to a later transaction, so only the next one counts.
    if described == ProducerIdAndEpoch(producer_id, epoch + 1):
        return True
    has_rotated = described.producer_id != producer_id and described.producer_epoch == 0
    return epoch == LAST_EPOCH and has_rotated
