"""How a transaction is leased, joined and resumed.

Owns: the requests for claims, and the order of the steps that give or take a lease. Must not know:
how processes find each other, bytes, time; the calls that a part may make (`share.py`).

Rules, and why:
* Participants' numbers begin at 0, so nothing may have been written under the lease's epoch. With
  v2 each transaction has its own epoch. With v1 the holder asks for a new one if the present one
  was used, and for another one after the end, which fences participants' late requests.
* The holder does not know whether participants have begun the transaction until it has their
  receipts. An abort before that is sent in any case; it does no harm if nothing was begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from txnproducer._core.transactions.claims import ClaimHandler, FreshEpochHandler, next_answer
from txnproducer._core.transactions.operation import TransactionalRequestResult
from txnproducer._core.transactions.progress import TransactionProgress
from txnproducer._core.transactions.share import SharePart
from txnproducer._core.transactions.state import TransactionState
from txnproducer.errors import (
    ClaimRefusedError,
    IllegalStateError,
    TransactionAbortableError,
    TransactionAbortedError,
    UnsupportedVersionError,
)
from txnproducer.records import (
    ProducerIdAndEpoch,
    TransactionLease,
    TransactionReceipt,
    claim_id,
)

_S = TransactionState
_PREPARE: Final = "prepare_transaction"


class Operations(Protocol):
    """The calls that leasing makes on the transaction manager, which keeps their order."""

    def set_half_way(self, is_half_way: bool, /) -> None:
        """Note whether a call is half-way, since an exception may interrupt it there."""
        ...

    def check_call(self, call: str) -> None:
        """Refuse a call in an error state, or while another call's end was not seen."""
        ...

    def check_in_transaction(self, refusal: str) -> None:
        """Refuse a call that needs an open transaction when there is none."""
        ...

    def fail_with_error(self) -> None:
        """Raise the error of the state, if it is an error state."""
        ...

    def begin_operation(
        self,
        kind: TransactionState,
        operation: str,
        start: Callable[[TransactionalRequestResult], None],
    ) -> TransactionalRequestResult:
        """Begin an operation, or return the result of the same one that is under way."""
        ...

    def transaction_begun(self) -> None:
        """Note that a transaction is open."""
        ...


class TransactionLeasing:
    """The calls by which several processes write one transaction.

    Args:
        operations: the transaction manager.
        progress: of the transaction that is shared.
    """

    def __init__(self, operations: Operations, progress: TransactionProgress) -> None:
        self._operations = operations
        self._progress = progress
        self._machine = progress.machine
        self._identity = progress.identity
        self._requests = progress.requests
        self._share = progress.share
        self._leasing: TransactionalRequestResult | None = None
        self._wanted_claims = 0

    # --- the holder -----------------------------------------------------------------------------

    def begin_lease(self, claims: int, *, has_incomplete: bool) -> TransactionalRequestResult:
        """Begin to lease the open transaction. When the result has succeeded, the share has it.

        Args:
            claims: the number of participants. 0 hands the transaction itself over: from then on
                another process has to end it.
            has_incomplete: whether records are on their way.

        Raises:
            IllegalStateError: no transaction is open, it is leased, or it is written into.
            UnsupportedVersionError: the cluster cannot raise epochs.
            KafkaError: the producer is in an error state.
        """
        self._operations.check_call("lease")
        self._operations.check_in_transaction("there is nothing to lease")
        leasing = self._leasing
        is_under_way = self._share.is_leasing and leasing is not None and not leasing.is_acked
        # The same call after a time-out goes on with the lease that is under way.
        if leasing is not None and is_under_way and claims == self._wanted_claims:
            return leasing
        self._refuse_lease("lease", claims, has_incomplete=has_incomplete)
        # If an exception comes between here and the end, the transaction can only be aborted.
        self._operations.set_half_way(True)
        self._wanted_claims = claims
        self._leasing = result = TransactionalRequestResult("lease")
        self._share.begin_leasing()
        if not claims:
            self._give_lease(result, SharePart.GONE)
        # With v2 each transaction has an epoch of its own, so nothing else was written under it.
        elif self._share.is_epoch_used and not self._identity.is_transaction_v2_enabled:
            self._take_fresh_epoch(result)
        else:
            self._claim_next(result)
        self._operations.set_half_way(False)
        return result

    def check_preparable(self) -> None:
        """Refuse to prepare where no transaction is open, or it has failed.

        Raises:
            IllegalStateError: none is open, or another call has to be repeated first.
            KafkaError: the producer is in an error state.
        """
        self._operations.check_call(_PREPARE)
        self._operations.check_in_transaction("there is nothing to prepare")

    def prepare(self, *, has_incomplete: bool) -> TransactionLease:
        """Prepare the open transaction: nothing can be added, and any process may end it.

        Args:
            has_incomplete: whether records are on their way.

        Returns:
            A lease, by which another process can end it.

        Raises:
            IllegalStateError, UnsupportedVersionError, KafkaError: see `begin_lease`.
        """
        self.check_preparable()
        self._refuse_lease(_PREPARE, 0, has_incomplete=has_incomplete)
        # If an exception comes after this, nobody has the lease, and the caller can still abort.
        self._machine.transition_to(_S.PREPARED_TRANSACTION)
        lease = self._new_lease()
        self._hold(lease, SharePart.PREPARED)
        return lease

    def _refuse_lease(self, call: str, claims: int, *, has_incomplete: bool) -> None:
        name, share, opened = self._progress.name, self._share, self._progress.open
        if claims < 0:
            raise ValueError(f"claims must not be negative: {claims}")
        # An heir may hand the transaction over once more, perhaps with offsets of its own. It may
        # not lease it to writers, since its records have been written by others.
        may_lease = share.part is SharePart.ALONE or (share.part is SharePart.HEIR and not claims)
        if not may_lease or share.is_leasing:
            raise IllegalStateError(
                f"{name}: {call}() is refused because the transaction is leased already, or was"
                " taken over from another process. End it, and begin again"
            )
        is_written = opened.must_be_ended or opened.has_partitions_to_add
        if claims and (is_written or has_incomplete):
            raise IllegalStateError(
                f"{name}: lease() after send(), or after offsets: participants need a"
                " transaction into which nothing is written yet; call it right after"
                " begin_transaction()"
            )
        if has_incomplete or not self._requests.is_idle:
            raise IllegalStateError(
                f"{name}: {call}() while requests are on their way: flush() first, or abort"
            )
        # Not the caller's mistake: an abort, and the same once more, may well succeed.
        if opened.has_lost_offsets:
            raise TransactionAbortableError(
                f"{name}: {call}() after offsets of which an answer was lost: the request"
                " may arrive late, over offsets of the process that goes on. Abort, and write it"
                " again"
            )
        if not self._identity.can_handle_abortable_error:
            raise UnsupportedVersionError(
                f"{name}: a shared transaction needs a cluster that raises epochs when asked"
                " (InitProducerId version 3, Kafka 2.5)"
            )

    def _take_fresh_epoch(self, result: TransactionalRequestResult) -> None:
        def take(producer: ProducerIdAndEpoch) -> None:
            self._identity.take(producer)
            self._share.epoch_is_fresh()
            self._claim_next(result)

        timeout_ms = self._progress.transaction_timeout_ms
        self._requests.queue.push(FreshEpochHandler(self._progress, result, timeout_ms, take))

    def _claim_next(self, result: TransactionalRequestResult) -> None:
        """Ask for the first claim whose answer is not known. Give the lease if there is none."""
        # The answer to a claim may come after the application has begun to abort.
        if self._machine.state is not _S.IN_TRANSACTION:
            result.fail(
                TransactionAbortedError("the transaction was aborted before it was leased")
            )
            return
        answers = self._share.answers
        claim = next((n for n in range(self._wanted_claims) if n not in answers), None)
        if claim is None:
            self._give_lease(result, SharePart.HOLDER)
            return

        def take(claimed: ProducerIdAndEpoch) -> None:
            answer = next_answer(claimed)
            if answer is not None:  # if it is None, the claim is asked for once more
                answers[claim] = answer
            self._claim_next(result)

        self._ask_for_claim(result, claim, take)

    def _ask_for_claim(
        self,
        result: TransactionalRequestResult,
        claim: int,
        take: Callable[[ProducerIdAndEpoch], None],
    ) -> None:
        progress = self._progress
        name = claim_id(progress.transactional_id or "", claim)
        self._requests.push_once(
            ClaimHandler(progress, result, name, progress.transaction_timeout_ms, take)
        )

    def _give_lease(self, result: TransactionalRequestResult, part: SharePart) -> None:
        answers = self._share.answers
        lease = self._new_lease(tuple(answers[n] for n in range(self._wanted_claims)))
        result.done()
        # Last: with part GONE this producer refuses its calls, so nothing may be left to do.
        self._hold(lease, part)

    def _new_lease(self, claims: tuple[ProducerIdAndEpoch, ...] = ()) -> TransactionLease:
        return TransactionLease(
            self._progress.transactional_id or "",
            self._progress.identity.producer_id_and_epoch,
            self._identity.is_transaction_v2_enabled,
            claims,
            self._progress.open.is_started,
        )

    def _hold(self, lease: TransactionLease, part: SharePart) -> None:
        self._share.hold(lease, part)
        if part is SharePart.HOLDER:
            self._progress.open.lease()
        # Other processes' requests without an answer are not known here.
        self._identity.share()

    def adopt(self, receipts: Iterable[TransactionReceipt]) -> None:
        """Take participants' receipts in. With all of them the transaction can be committed.

        Raises:
            IllegalStateError: no lease was given.
            ValueError: a receipt is of another lease, or there is one of this claim, or of one of
                its partitions, already. None of the receipts is taken then.
        """
        share, opened = self._share, self._progress.open
        new = share.adopt(receipts)
        opened.take_receipts(
            is_written=share.is_written,
            record_count=sum(receipt.record_count for receipt in new),
            are_all=share.has_all_receipts,
        )

    # --- a participant --------------------------------------------------------------------------

    def begin_join(self, lease: TransactionLease, claim: int) -> TransactionalRequestResult:
        """Begin to take a claim of a lease. When the result has succeeded, records can be sent.

        Raises:
            IllegalStateError: this producer has an identity already.
            ValueError: the lease has no such claim.
        """
        if not 0 <= claim < len(lease.claims):
            raise ValueError(f"claim {claim} does not exist: {_numbered(lease)}")
        if self._progress.transactional_id != lease.transactional_id:
            raise ValueError(
                f"{self._progress.name} cannot take part in the {lease}: they need one id"
            )

        def start(result: TransactionalRequestResult) -> None:
            self._machine.go_to(_S.INITIALIZING)
            self._ask_for_claim(
                result, claim, lambda claimed: self._join(result, lease, claim, claimed)
            )

        return self._operations.begin_operation(_S.INITIALIZING, "join", start)

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
                " This process has written nothing. The holder has to abort the transaction, and"
                " to lease again"
            )
            result.fail(error)
            # Another process may write under this identity, with the same numbers.
            self._progress.transition_to_fatal_error(error)
            return
        # The result last: its caller may send as soon as it sees the end.
        self._share.take_claim(claim, claimed)
        self._share.hold(lease, SharePart.PARTICIPANT)
        self._take_over(lease)
        result.done()

    def _take_over(self, lease: TransactionLease) -> None:
        self._identity.take_over(lease)
        # The table has no direct way from INITIALIZING into a transaction.
        self._machine.transition_to(_S.READY)
        self._machine.transition_to(_S.IN_TRANSACTION)
        self._operations.transaction_begun()

    def give_receipt(self, *, has_incomplete: bool) -> TransactionReceipt:
        """Return the receipt of the records written here. Nothing more can be written.

        Raises:
            IllegalStateError: this is no participant, or records are on their way.
            KafkaError: a record could not be written, or the transaction has ended.
        """
        self._operations.fail_with_error()
        is_participant = self._share.part in (SharePart.PARTICIPANT, SharePart.FINISHED)
        # A receipt says that nothing follows.
        if is_participant and (has_incomplete or not self._requests.is_idle):
            raise IllegalStateError(
                f"{self._progress.name}: receipt() while records are on their way"
            )
        return self._share.finish()

    # --- another process's transaction ----------------------------------------------------------

    def resume(self, lease: TransactionLease, *, is_prepared: bool = False) -> None:
        """Take over a transaction that another process has opened, to end it.

        Args:
            lease: of it.
            is_prepared: whether it is prepared, so that a close of this producer leaves it open.

        Raises:
            IllegalStateError: this producer has an identity already.
        """
        self._operations.fail_with_error()
        self._machine.transition_to(_S.INITIALIZING)
        part = SharePart.HOLDER if lease.claims else SharePart.HEIR
        self._share.hold(lease, part)
        self._take_over(lease)
        # A lease with claims does not say whether its holder has added offsets: it may have.
        if lease.is_started or lease.claims:
            self._progress.open.start()
        self._hold(lease, SharePart.COMPLETING if is_prepared else part)
        if is_prepared:
            self._machine.transition_to(_S.PREPARED_TRANSACTION)


def _numbered(lease: TransactionLease) -> str:
    """Return the claims of a lease in words."""
    count = len(lease.claims)
    if not count:
        return f"the {lease}, hands over the transaction itself: resume() it"
    numbers = {1: "1 claim, numbered 0", 2: "2 claims, numbered 0 and 1"}
    return f"the lease has {numbers.get(count, f'{count} claims, numbered 0 to {count - 1}')}"
