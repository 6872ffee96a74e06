"""What a coordinator's description of a transactional id proves about a commit without an answer.

Why it exists: after `CommitOutcomeUnknownError` the coordinator still knows what became of the
transaction, until the next producer of the id overwrites it.
Owns: the table of evidence. Must not know: how it was asked for.

With transactions v2 the end of a transaction raises the epoch by one (and, when the epochs are
used up, goes on under a new producer id with epoch 0), so that the next epoch and a state of the
end belong to this transaction and to no other. With v1 the epoch stays; a state of the end under
this very epoch is this transaction's, since nothing was begun after it; but an abort is not, if a
delayed request may have begun something. An abort under the next epoch proves nothing with v1: it
may be the fence that hit this transaction, or a later transaction's.

"Ongoing" is no "aborted": a copy of the commit may still be on its way. Nor is what belongs to a
later producer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from txnproducer.records import ProducerIdAndEpoch

ResolvedOutcome: TypeAlias = Literal["committed", "aborted", "unknown"]

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
    """

    producer: ProducerIdAndEpoch
    is_transaction_v2: bool


def resolve(
    commit: SentCommit, state: str, described: ProducerIdAndEpoch, *, may_begin_again: bool = False
) -> ResolvedOutcome:
    """Return what a description proves.

    Args:
        commit: whose outcome is asked for.
        state: of the transactional id, by DescribeTransactions' names (KIP-664).
        described: its producer id and epoch.
        may_begin_again: whether a delayed request may have begun another transaction in the epoch
            of this one, so that an abort may be of that.
    """
    outcome = _ENDS.get(state, "unknown") if _is_its_end(commit, described) else "unknown"
    return "unknown" if outcome == "aborted" and may_begin_again else outcome


def _is_its_end(commit: SentCommit, described: ProducerIdAndEpoch) -> bool:
    producer_id, epoch = commit.producer.producer_id, commit.producer.producer_epoch
    if not commit.is_transaction_v2:
        return described == commit.producer
    if described == ProducerIdAndEpoch(producer_id, epoch + 1):
        return True
    has_rotated = described.producer_id != producer_id and described.producer_epoch == 0
    return epoch == LAST_EPOCH and has_rotated
