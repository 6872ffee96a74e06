"""Transactions that several processes share: one holds it, others write into it.

Why it exists: a transaction belongs to a producer id and epoch. So a process can hand these to
others (`TransactionLease`), which write under them, each into partitions of its own, and give back
what they have written (`TransactionReceipt`); the holder commits all of it with one EndTxn.

Owns: what a producer's part in such a transaction is, and what this part must not do. Must not
know: how processes find each other, bytes, time.

Rules, and why:
* One writer for each partition, decided by the broker: see `claims`. Two receipts for one
  partition are refused.
* A commit needs the receipt of every claim. The coordinator answers EndTxn before the markers are
  written, and until then a leader takes what the transaction's writers send: a straggler would be
  committed. A receipt says that its participant will send nothing more.
* Participants' numbers begin at 0: so nothing may have been written under the lease's epoch. With
  v2 each transaction has its own; with v1 a new one is asked for where the present one was used,
  and another one after the end, which fences what participants have left on the wire.
* A participant never ends the transaction, and never asks for another identity: what is wrong with
  it is for the holder to judge, by an abort.
* Whether participants have begun the transaction, the holder does not know until it has their
  receipts: an abort before that is sent in any case, and it does not matter if there was nothing.
* Claims that a committed transaction has used need not be asked for again: the next answer is one
  more than what the receipt says. After any other end they are asked for anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Final

from txnproducer._core.ports import KafkaClient
from txnproducer._core.sequences.partition_map import NumberedBatch
from txnproducer._core.transactions.claims import ClaimHandler, FreshEpochHandler, next_answer
from txnproducer._core.transactions.commit_evidence import ResolvedOutcome
from txnproducer._core.transactions.manager import TransactionManager
from txnproducer._core.transactions.result import TransactionalRequestResult
from txnproducer._core.transactions.state import TransactionState
from txnproducer._protocol.messages import ProducePartitionResponse
from txnproducer.errors import (
    ClaimRefusedError,
    IllegalStateError,
    KafkaError,
    TransactionAbortedError,
    UnsupportedVersionError,
)
from txnproducer.records import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    PartitionReceipt,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionLease,
    TransactionReceipt,
    claim_id,
)

_S = TransactionState


class Part(Enum):
    """What a producer has to do with its transaction."""

    ALONE = "no lease of this transaction was given"
    HOLDER = "the transaction is leased: its participants write the records"
    HEIR = "the records of this transaction were written by another process"
    PARTICIPANT = "a participant writes, and the holder of the lease does the rest"
    FINISHED = "this participant has given its receipt, which says that nothing follows"
    GONE = "the transaction was handed over to another process"


_MAY_WRITE: Final = (Part.ALONE, Part.PARTICIPANT)
_MAY_END: Final = (Part.ALONE, Part.HOLDER, Part.HEIR)


class SharedTransactionManager(TransactionManager):
    """See the module; arguments and attributes as of `TransactionManager`, and these.

    Attributes:
        part: this producer's, in the transaction that is open.
        lease: of it; None if there is none.
    """

    def __init__(
        self,
        *,
        transactional_id: str | None,
        transaction_timeout_ms: int,
        retry_backoff_ms: int,
        client: KafkaClient,
    ) -> None:
        super().__init__(
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            client=client,
        )
        self.part = Part.ALONE
        self.lease: TransactionLease | None = None
        self._leasing: TransactionalRequestResult | None = None
        self._wanted_claims = 0
        self._answers: dict[int, ProducerIdAndEpoch] = {}
        self._receipts: dict[int, TransactionReceipt] = {}
        self._claim = -1
        self._claimed = ProducerIdAndEpoch.NONE
        self._written: Counter[TopicPartition] = Counter()
        self._is_epoch_used = False

    @property
    def is_left_open_on_close(self) -> bool:
        """Whether the open transaction is another process's to end."""
        return self.part not in _MAY_END

    # --- the holder -----------------------------------------------------------------------------

    def begin_lease(self, claims: int, *, has_incomplete: bool) -> TransactionalRequestResult:
        """Begin to lease the open transaction; `lease` has it when the result has ended well.

        Args:
            claims: for how many participants. 0 hands the transaction itself over: from then on
                another process has to end it.
            has_incomplete: whether records are on their way.

        Raises:
            IllegalStateError: no transaction is open, it is leased, or it is written into.
            UnsupportedVersionError: the cluster cannot raise epochs.
            KafkaError: the producer is in an error state.
        """
        self._ensure_transactional()
        self._refuse_if_pending("lease")
        self._fail_with_error()
        self._ensure_in_transaction("there is nothing to lease")
        leasing = self._leasing
        if leasing is not None and not leasing.is_acked and claims == self._wanted_claims:
            return leasing
        self._refuse_lease(claims, has_incomplete=has_incomplete)
        self.is_half_way = True
        self._wanted_claims = claims
        self._leasing = result = TransactionalRequestResult("lease")
        if not claims:
            self._give_lease(result, Part.GONE)
        elif self._is_epoch_used and not self.is_transaction_v2_enabled:
            self._take_fresh_epoch(result)
        else:
            self._claim_next(result)
        self.is_half_way = False
        return result

    def _refuse_lease(self, claims: int, *, has_incomplete: bool) -> None:
        if claims < 0:
            raise ValueError(f"claims must not be negative: {claims}")
        # An heir may hand on what it has added offsets to; its records have other writers.
        may_lease = self.part is Part.ALONE or (self.part is Part.HEIR and not claims)
        if not may_lease or self._leasing is not None:
            raise IllegalStateError(f"{self.name}: lease() again: {Part.HOLDER.value}")
        is_written = self._is_started or self.may_have_begun or bool(self._new_partitions)
        if claims and (is_written or self._pending_partitions or has_incomplete):
            raise IllegalStateError(
                f"{self.name}: lease() after send(), or after offsets: participants need a"
                " transaction into which nothing is written yet; call it right after"
                " begin_transaction()"
            )
        is_waiting = has_incomplete or self._queue or self._out is not None
        if is_waiting or self._lost_offsets:
            raise IllegalStateError(
                f"{self.name}: lease(claims=0) while requests are on their way, or may be: flush()"
                " first, or abort"
            )
        if not (self.is_transaction_v2_enabled or self.coordinator_can_bump):
            raise UnsupportedVersionError(
                f"{self.name}: a shared transaction needs a cluster that raises epochs when asked"
                " (InitProducerId version 3, Kafka 2.5)"
            )

    def _take_fresh_epoch(self, result: TransactionalRequestResult) -> None:
        def take(producer: ProducerIdAndEpoch) -> None:
            self.sequences.reset_sequence_numbers()
            self.sequences.adopt(producer)
            self._is_epoch_used = self._is_bump_required = self.may_begin_again = False
            self._claim_next(result)

        self._queue.push(FreshEpochHandler(self, result, self._transaction_timeout_ms, take))

    def _claim_next(self, result: TransactionalRequestResult) -> None:
        """Ask for the first claim whose answer is not known; give the lease if there is none."""
        if self.state is not _S.IN_TRANSACTION:
            result.fail(
                TransactionAbortedError("the transaction was aborted before it was leased")
            )
            return
        missing = (n for n in range(self._wanted_claims) if n not in self._answers)
        claim = next(missing, None)
        if claim is None:
            self._give_lease(result, Part.HOLDER)
            return

        def take(claimed: ProducerIdAndEpoch) -> None:
            answer = next_answer(claimed)
            if answer is not None:  # else it is asked for once more
                self._answers[claim] = answer
            self._claim_next(result)

        self._ask_for_claim(result, claim, take)

    def _ask_for_claim(
        self,
        result: TransactionalRequestResult,
        claim: int,
        take: Callable[[ProducerIdAndEpoch], None],
    ) -> None:
        name = claim_id(self.transactional_id or "", claim)
        self._push_once(ClaimHandler(self, result, name, self._transaction_timeout_ms, take))

    def _give_lease(self, result: TransactionalRequestResult, part: Part) -> None:
        answers = tuple(self._answers[n] for n in range(self._wanted_claims))
        lease = TransactionLease(
            self.transactional_id or "",
            self.producer_id_and_epoch,
            self.is_transaction_v2_enabled,
            answers,
            self._is_started,
        )
        result.done()
        # Last: a part that may not end the transaction is taken with nothing left to be done.
        self.lease = lease
        self._hold(part)

    def _hold(self, part: Part) -> None:
        self.part = part
        if part is Part.HOLDER:
            self.may_have_begun = True
        if not self.is_transaction_v2_enabled:
            # What others have on their way, and no answer to, is not known here.
            self._is_bump_required = self.may_begin_again = True

    def adopt(self, receipts: Iterable[TransactionReceipt]) -> None:
        """Take participants' receipts in; with all of them the transaction can be committed.

        Raises:
            IllegalStateError: no lease was given.
            ValueError: a receipt is of another lease, or there is one of this claim, or of one of
                its partitions, already. None of the receipts is taken then.
        """
        lease = self.lease
        if self.part is not Part.HOLDER or lease is None:
            raise IllegalStateError(
                f"{self.name}: adopt() needs an open transaction that is leased"
            )
        adopted = dict(self._receipts)
        for receipt in receipts:
            _check_receipt(receipt, lease, adopted)
            adopted[receipt.claim] = receipt
        is_written = any(receipt.partitions for receipt in adopted.values())
        new = [receipt for claim, receipt in adopted.items() if claim not in self._receipts]
        count = sum(each.record_count for receipt in new for each in receipt.partitions)
        self._receipts = adopted
        self._is_started |= is_written
        self._record_count += count
        if len(adopted) == len(lease.claims):
            self.may_have_begun = False

    # --- a participant --------------------------------------------------------------------------

    def begin_join(self, lease: TransactionLease, claim: int) -> TransactionalRequestResult:
        """Begin to take a claim of a lease; once that has ended well, records can be sent.

        Raises:
            IllegalStateError: this producer has an identity already.
            ValueError: the lease has no such claim.
        """
        if not 0 <= claim < len(lease.claims):
            raise ValueError(f"claim {claim}: the {lease}, which count from 0")
        if self.transactional_id != lease.transactional_id:
            raise ValueError(f"{self.name} cannot take part in the {lease}: they need one id")

        def start(result: TransactionalRequestResult) -> None:
            self._go_to(_S.INITIALIZING)
            self._ask_for_claim(
                result, claim, lambda claimed: self._join(result, lease, claim, claimed)
            )

        return self._begin(_S.INITIALIZING, "join", start)

    def _join(
        self,
        result: TransactionalRequestResult,
        lease: TransactionLease,
        claim: int,
        claimed: ProducerIdAndEpoch,
    ) -> None:
        expected = lease.claims[claim]
        if claimed != expected:
            error = ClaimRefusedError(
                f"claim {claim} of {lease.transactional_id!r} was answered with {claimed}"
                f" instead of {expected}: another process has taken it, or this is an old lease."
                " Nothing was written; the holder has to abort, and to lease anew"
            )
            result.fail(error)
            self.transition_to_fatal_error(error)
            return
        self._claim, self._claimed = claim, claimed
        self._take_over(lease, Part.PARTICIPANT)
        result.done()

    def _take_over(self, lease: TransactionLease, part: Part) -> None:
        self.lease = lease
        self.part = part
        self.sequences.reset_sequence_numbers()
        self.sequences.adopt(lease.producer)
        self.is_transaction_v2_enabled = self._is_v2_enabled_next = lease.is_transaction_v2
        self._is_identity_due = False
        self.transition_to(_S.READY)
        self.transition_to(_S.IN_TRANSACTION)
        self.begun_count += 1
        self.outcome = "open"
        self.commit_result = None

    def give_receipt(self, *, has_incomplete: bool) -> TransactionReceipt:
        """Return what was written; nothing more can be.

        Raises:
            IllegalStateError: this is no participant, or records are on their way.
            KafkaError: a record could not be written, or the transaction has ended.
        """
        self._fail_with_error()
        if self.part not in (Part.PARTICIPANT, Part.FINISHED) or self.lease is None:
            raise IllegalStateError(f"{self.name}: a receipt is a participant's")
        if has_incomplete or self._queue or self._out is not None:
            raise IllegalStateError(f"{self.name}: receipt() while records are on their way")
        self.part = Part.FINISHED
        lease = self.lease
        written = tuple(PartitionReceipt(*each) for each in sorted(self._written.items()))
        return TransactionReceipt(
            lease.transactional_id, lease.producer, self._claim, self._claimed, written
        )

    def handle_completed_batch(
        self, batch: NumberedBatch, response: ProducePartitionResponse
    ) -> None:
        """See `TransactionCourse`."""
        super().handle_completed_batch(batch, response)
        if self.part is Part.PARTICIPANT:
            self._written[batch.topic_partition] += batch.record_count

    # --- who goes on with another process's transaction -----------------------------------------

    def resume(self, lease: TransactionLease) -> None:
        """Take over a transaction that another process has opened, to end it.

        Raises:
            IllegalStateError: this producer has an identity already.
        """
        self._fail_with_error()
        self.transition_to(_S.INITIALIZING)
        self._take_over(lease, Part.HEIR)
        # Of a lease with claims nobody here knows whether its holder has added offsets.
        self._is_started = lease.is_started or bool(lease.claims)
        self._hold(Part.HOLDER if lease.claims else Part.HEIR)

    @property
    def _age_ms(self) -> int | None:
        """See `TransactionCourse`; other processes may have begun a transaction that is shared."""
        return super()._age_ms if self.lease is None else None

    # --- what a part may not do -----------------------------------------------------------------

    def initialize_transactions(self) -> TransactionalRequestResult:
        """See `TransactionManager`."""
        self._refuse_part("init_transactions")
        return super().initialize_transactions()

    def begin_transaction(self) -> None:
        """See `TransactionManager`."""
        self._refuse_part("begin_transaction")
        super().begin_transaction()

    def begin_commit(self) -> TransactionalRequestResult:
        """See `TransactionManager`; a transaction that is leased needs all receipts."""
        self._refuse_part("commit_transaction")
        if self.part is Part.HOLDER and self.state is _S.IN_TRANSACTION and self.lease is not None:
            claims = range(len(self.lease.claims))
            missing = [str(claim) for claim in claims if claim not in self._receipts]
            if missing:
                raise IllegalStateError(
                    f"{self.name}: commit_transaction() before the receipts of all participants"
                    f" were adopted: claim {', '.join(missing)} is missing; adopt() them, or abort"
                )
        return super().begin_commit()

    def begin_abort(self) -> TransactionalRequestResult:
        """See `TransactionManager`."""
        self._refuse_part("abort_transaction")
        return super().begin_abort()

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata,
    ) -> TransactionalRequestResult:
        """See `TransactionManager`."""
        self._refuse_part("send_offsets_to_transaction")
        return super().send_offsets_to_transaction(offsets, group_metadata)

    def _refuse_part(self, operation: str) -> None:
        if self.part not in _MAY_END:
            raise IllegalStateError(f"{self.name}: {operation}(): {self.part.value}")

    def check_can_append(self) -> None:
        """See `TransactionManager`."""
        super().check_can_append()
        if self.part not in _MAY_WRITE:
            raise IllegalStateError(f"{self.name}: send(): {self.part.value}")
        if self._leasing is not None:
            # Under way: participants' numbers begin at 0, so nobody may have used these.
            raise IllegalStateError(f"{self.name}: send(): {Part.HOLDER.value}")

    # --- ends -----------------------------------------------------------------------------------

    def initialized(self, producer: ProducerIdAndEpoch, *, is_epoch_bump: bool) -> None:
        """See `TransactionCourse`."""
        super().initialized(producer, is_epoch_bump=is_epoch_bump)
        self._is_epoch_used = False

    def transaction_ended(
        self,
        producer: ProducerIdAndEpoch,
        result: TransactionalRequestResult,
        on_end: Callable[[], None],
        outcome: ResolvedOutcome,
    ) -> None:
        """See `TransactionCourse`."""
        self._answers.clear()
        if outcome == "committed":
            self._keep_answers()
        self._be_alone()
        self._is_epoch_used = True
        super().transaction_ended(producer, result, on_end, outcome)

    def _keep_answers(self) -> None:
        for claim, receipt in self._receipts.items():
            answer = next_answer(receipt.claimed)
            if answer is not None:
                self._answers[claim] = answer

    def transition_to_uninitialized(self, error: KafkaError) -> None:
        """See `TransactionCourse`."""
        super().transition_to_uninitialized(error)
        self._answers.clear()
        self._be_alone()

    def _be_alone(self) -> None:
        self.part = Part.ALONE
        self.lease = self._leasing = None
        self._receipts = {}


def _check_receipt(
    receipt: TransactionReceipt, lease: TransactionLease, adopted: dict[int, TransactionReceipt]
) -> None:
    """Refuse a receipt that does not belong to what is adopted."""
    if (receipt.transactional_id, receipt.producer) != (lease.transactional_id, lease.producer):
        raise ValueError(
            f"the receipt of {receipt.transactional_id!r} ({receipt.producer}) is of another"
            f" transaction than the {lease}"
        )
    claim = receipt.claim
    if not 0 <= claim < len(lease.claims) or receipt.claimed != lease.claims[claim]:
        raise ValueError(f"the receipt of claim {claim} ({receipt.claimed}): not of this {lease}")
    if claim in adopted and adopted[claim] != receipt:
        raise ValueError(f"there are two receipts of claim {claim}")
    writers = {
        each.topic_partition: other.claim
        for other in adopted.values()
        for each in other.partitions
        if other.claim != claim
    }
    for place, _ in receipt.partitions:
        if place in writers:
            raise ValueError(
                f"claims {writers[place]} and {claim} have both written to {place.topic}-"
                f"{place.partition}: a partition of a shared transaction has one writer; abort"
            )
