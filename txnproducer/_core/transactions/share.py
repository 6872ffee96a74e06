"""The share that a producer has in a transaction which several processes write.

Why it exists: a transaction belongs to a producer id and epoch. So a process can hand these to
others (`TransactionLease`). Each of them writes under them, into partitions of its own, and gives
back a list of its records (`TransactionReceipt`). The holder commits all of it with one EndTxn.

Owns: the part of the producer, the calls that this part may make, the receipts and the claims.
Must not know: requests, states, how a lease is given (`leasing.py`).

Rules, and why:
* A commit needs the receipt of every claim. The coordinator answers EndTxn before the markers are
  written, and until then a leader accepts batches from the transaction's writers: a straggler's
  would be committed. A receipt says that its participant will send nothing more.
* Each partition has one writer, decided by the broker: see `claims`. Two receipts for one
  partition are refused.
* A participant never ends the transaction, and never asks for another identity. If something goes
  wrong with it, the holder aborts.
* Claims that a committed transaction has used need not be asked for again: the next answer is one
  more than the receipt says. After any other end they are asked for again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Final

from txnproducer._core.sequences.partition_map import NumberedBatch
from txnproducer._core.transactions.claims import next_answer
from txnproducer.errors import IllegalStateError
from txnproducer.records import (
    PartitionReceipt,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionLease,
    TransactionReceipt,
)


class SharePart(Enum):
    """The part that a producer has in its transaction. The values are texts of refusals."""

    ALONE = "no lease of this transaction was given"
    HOLDER = (
        "the transaction is leased and its participants write the records. Send from a"
        " participant, or abort"
    )
    HEIR = (
        "the records of this transaction were written by another process. Commit it, or abort,"
        " before you write"
    )
    PARTICIPANT = (
        "this is a participant, which only writes. Pass its receipt() to the holder of the lease,"
        " which does the rest"
    )
    FINISHED = (
        "this participant has given its receipt, which says that nothing follows. Send all"
        " records before receipt()"
    )
    PREPARED = "the transaction is prepared, so nothing may be added. complete() it, or close()"
    COMPLETING = "this producer only ends a transaction that another one has prepared. Close it"
    GONE = "the transaction was handed over to another process, which ends it. Close this producer"


_MAY_WRITE: Final = (SharePart.ALONE, SharePart.PARTICIPANT)
_PREPARED: Final = (SharePart.PREPARED, SharePart.COMPLETING)
_MAY_END: Final = (SharePart.ALONE, SharePart.HOLDER, SharePart.HEIR, *_PREPARED)
_ALLOWED: Final = MappingProxyType(
    {
        "init_transactions": _MAY_END,
        "begin_transaction": _MAY_END,
        "commit_transaction": _MAY_END,
        "abort_transaction": _MAY_END,
        "send_offsets_to_transaction": _MAY_END,
        "send": _MAY_WRITE,
    }
)
"""Which parts may make a call."""


class Share:
    """The producer's part in a transaction that several processes write.

    Args:
        name: the producer's, for refusals.

    Attributes:
        part: this producer's, in the transaction that is open.
        lease: of it; None if there is none.
        is_leasing: whether a lease of it was begun.
        is_epoch_used: whether records of another transaction were written under this epoch.
        answers: the broker's answer to the next process that takes a claim, by claim.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.part = SharePart.ALONE
        self.lease: TransactionLease | None = None
        self.is_leasing = False
        self.is_epoch_used = False
        self.answers: dict[int, ProducerIdAndEpoch] = {}
        self._receipts: dict[int, TransactionReceipt] = {}
        self._claim = -1
        self._claimed = ProducerIdAndEpoch.NONE
        self._written: Counter[TopicPartition] = Counter()

    @property
    def is_left_open_on_close(self) -> bool:
        """Whether the open transaction is another process's to end, or may be."""
        return self.part not in _MAY_END or self.is_prepared

    @property
    def is_prepared(self) -> bool:
        """Whether another process may know the transaction as prepared, and end it."""
        return self.part in _PREPARED

    def check(self, call: str) -> None:
        """Refuse a call that this part may not make.

        Raises:
            IllegalStateError: it may not; the text says why.
        """
        if self.part not in _ALLOWED[call]:
            raise self._refused(call, self.part)
        if call == "send" and self.is_leasing:
            # The lease is still being prepared. Participants' numbers begin at 0, so no record may
            # be written under this epoch before.
            raise self._refused(call, SharePart.HOLDER)

    def _refused(self, call: str, part: SharePart) -> IllegalStateError:
        return IllegalStateError(f"{self._name}: {call}() is refused because {part.value}")

    def check_receipts(self) -> None:
        """Refuse a commit while the receipt of a claim is missing.

        Raises:
            IllegalStateError: it is; the text names the claims.
        """
        if self.part is not SharePart.HOLDER or self.lease is None:
            return
        claims = range(len(self.lease.claims))
        missing = [str(claim) for claim in claims if claim not in self._receipts]
        # The participant of a missing receipt may still be sending, and its batches would be
        # committed.
        if missing:
            raise IllegalStateError(
                f"{self._name}: commit_transaction() before the receipts of all participants"
                f" were adopted: {_receipts_of(missing)} missing; adopt() them, or abort"
            )

    # --- a part is taken ------------------------------------------------------------------------

    def epoch_is_fresh(self) -> None:
        """Note that nothing was written under the present epoch."""
        self.is_epoch_used = False

    def begin_leasing(self) -> None:
        """Note that a lease of the open transaction was begun."""
        self.is_leasing = True

    def hold(self, lease: TransactionLease, part: SharePart) -> None:
        """Take a part in a leased transaction."""
        self.lease = lease
        self.part = part

    def take_claim(self, claim: int, claimed: ProducerIdAndEpoch) -> None:
        """Note the claim that this participant has taken, and the broker's answer."""
        self._claim, self._claimed = claim, claimed

    # --- receipts -------------------------------------------------------------------------------

    def adopt(self, receipts: Iterable[TransactionReceipt]) -> list[TransactionReceipt]:
        """Take participants' receipts in, all of them or none.

        Returns:
            Those that were new.

        Raises:
            IllegalStateError: no lease was given.
            ValueError: a receipt is of another lease, or there is one of this claim, or of one of
                its partitions, already.
        """
        lease = self.lease
        if self.part is not SharePart.HOLDER or lease is None:
            raise IllegalStateError(
                f"{self._name}: adopt() needs an open transaction that is leased"
            )
        # A copy: if one of the receipts is refused, none is taken.
        adopted = dict(self._receipts)
        for receipt in receipts:
            _check_receipt(receipt, lease, adopted)
            adopted[receipt.claim] = receipt
        new = [receipt for claim, receipt in adopted.items() if claim not in self._receipts]
        self._receipts = adopted
        return new

    @property
    def has_all_receipts(self) -> bool:
        """Whether there is one of every claim."""
        return self.lease is not None and len(self._receipts) == len(self.lease.claims)

    @property
    def is_written(self) -> bool:
        """Whether a participant has written something, according to the receipts."""
        return any(receipt.partitions for receipt in self._receipts.values())

    def note_written(self, batch: NumberedBatch) -> None:
        """Count a participant's records that are acknowledged."""
        if self.part is SharePart.PARTICIPANT:
            self._written[batch.topic_partition] += batch.record_count

    def finish(self) -> TransactionReceipt:
        """Return the receipt of the records written here. Nothing more can be written.

        Raises:
            IllegalStateError: this is no participant.
        """
        lease = self.lease
        if self.part not in (SharePart.PARTICIPANT, SharePart.FINISHED) or lease is None:
            raise IllegalStateError(f"{self._name}: a receipt is a participant's")
        # First: from here on no record may be sent that the receipt does not count.
        self.part = SharePart.FINISHED
        written = tuple(PartitionReceipt(*each) for each in sorted(self._written.items()))
        return TransactionReceipt(
            lease.transactional_id, lease.producer, self._claim, self._claimed, written
        )

    # --- ends -----------------------------------------------------------------------------------

    def end(self, *, is_committed: bool) -> None:
        """Note the end of the transaction."""
        # Kept, since `forget` drops them.
        receipts = self._receipts
        self.forget()
        # After an abort a participant without a receipt may have taken its claim, or not.
        if is_committed:
            self._keep_answers(receipts)
        self.is_epoch_used = True

    def _keep_answers(self, receipts: Mapping[int, TransactionReceipt]) -> None:
        for claim, receipt in receipts.items():
            answer = next_answer(receipt.claimed)
            if answer is not None:
                self.answers[claim] = answer

    def forget(self) -> None:
        """Go back to the part ALONE, and forget lease, receipts and claims."""
        self.answers.clear()
        self.part = SharePart.ALONE
        self.lease = None
        self.is_leasing = False
        # A new dict, since `end` still reads the old one.
        self._receipts = {}


def _receipts_of(claims: Sequence[str]) -> str:
    if len(claims) == 1:
        return f"the receipt of claim {claims[0]} is"
    return f"the receipts of claims {', '.join(claims)} are"


def _check_receipt(
    receipt: TransactionReceipt, lease: TransactionLease, adopted: dict[int, TransactionReceipt]
) -> None:
    """Refuse a receipt that contradicts the lease, or the receipts adopted before."""
    if (receipt.transactional_id, receipt.producer) != (lease.transactional_id, lease.producer):
        raise ValueError(
            f"the receipt of {receipt.transactional_id!r} ({receipt.producer}) is of another"
            f" transaction than the {lease}: adopt the receipts of this lease's participants"
        )
    claim = receipt.claim
    if not 0 <= claim < len(lease.claims) or receipt.claimed != lease.claims[claim]:
        raise ValueError(
            f"the receipt of claim {claim} ({receipt.claimed}) is not of this {lease}: adopt the"
            " receipts of this lease's participants"
        )
    # The same receipt may be adopted twice, as after a call that was interrupted.
    if claim in adopted and adopted[claim] != receipt:
        raise ValueError(
            f"there are two different receipts of claim {claim}: abort, and give each participant"
            " a claim of its own"
        )
    writers = {
        each.topic_partition: other.claim
        for other in adopted.values()
        for each in other.partitions
        # The same receipt again is no second writer.
        if other.claim != claim
    }
    for place, _ in receipt.partitions:
        if place in writers:
            raise ValueError(
                f"claims {writers[place]} and {claim} have both written to {place.topic}-"
                f"{place.partition}: a partition of a shared transaction has one writer; abort"
            )
