"""The transactional ids of prepared parts. The driver takes them, leases them, and ends the parts.

Why it exists: only the driver takes the id of a part. A task that took it itself would abort a
part that is decided, whenever an attempt of it came late.

Owns: the identities for the next transactions, the client that asks for them. Must not know: the
decision, the ledger, tasks.

Rules:
* No transaction is held by an object here that would abort it at its end. So a driver that breaks
  off leaves a part as it is: a part that may be decided is never aborted.
* An identity is leased once. After the end of its transaction the coordinator gives the next one
  (v2), or the id is taken again (v1).
* A claim is taken once. A part that was committed has had the claim's answer, so the next one is
  known. If another process has asked meanwhile, the task is refused, and the batch runs again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from txnproducer._core.transactions.claims import next_answer
from txnproducer._core.transactions.transaction_loss import sign_of_loss
from txnproducer.errors import KafkaError
from txnproducer.lease import TransactionLease
from txnproducer.records import ProducerIdAndEpoch
from txnproducer.spark.ledger.coordinator_client import CoordinatorClient, EndResult, TakenId
from txnproducer.spark.ledger.producers import checked, config_for
from txnproducer.spark.ledger.rights import taking
from txnproducer.spark.ledger.store import Ledger


class PartIds:
    """The ids of a sink's parts, as far as this driver holds them.

    Args:
        ledger: of the sink.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._client: CoordinatorClient | None = None
        self._timeout_ms = 0
        self._taken: dict[int, TakenId] = {}
        # To the next process that takes the claim of a slot.
        self._answers: dict[int, ProducerIdAndEpoch] = {}

    def __reduce__(self) -> tuple[type[PartIds], tuple[Ledger]]:
        # A copy holds nothing: Spark Connect pickles the sink.
        return PartIds, (self._ledger,)

    def take(self, slots: Iterable[int], settings: Mapping[str, Any]) -> None:
        """Take the ids of slots. This fences their holders, and aborts their open transactions.

        Raises:
            MissingRightError: Write on an id is missing.
            KafkaError: the cluster refused, or did not answer.
        """
        names = {slot: self._ledger.transactional_id(slot) for slot in slots}
        self.forget(names)
        client = self._client_of(settings)
        found = client.take_each(names.values(), self._timeout_ms)
        taken = checked(self._ledger, found)
        self._taken |= {slot: taken[name] for slot, name in names.items()}

    def missing(self, slots: Iterable[int]) -> list[int]:
        """Return the slots among these that are not held. Their ids must be taken first."""
        return [slot for slot in slots if slot not in self._taken]

    def lease(
        self, slots: Iterable[int], settings: Mapping[str, Any]
    ) -> dict[int, TransactionLease]:
        """Lease the next transaction of each slot to one task. The ids must be held.

        Raises:
            MissingRightError: Write on an id, or on that of its claim, is missing.
            KafkaError: the cluster refused, or did not answer.
        """
        wanted = list(slots)
        # Taken out: whatever comes next, the same identity is not leased twice.
        taken = {slot: self._taken.pop(slot) for slot in wanted}
        unknown = {
            slot: (one.transactional_id, 0)
            for slot, one in taken.items()
            if slot not in self._answers
        }
        if unknown:
            # The claim has an id of its own, and needs the right to Write on it.
            name = f"{self._ledger.transactional_id(min(unknown))}.claim-0"
            with taking(self._ledger, name):
                client = self._client_of(settings)
                found = client.take_claims(unknown.values(), self._timeout_ms)
            self._answers |= {slot: found[claim] for slot, claim in unknown.items()}
        # Taken out as well: whether a part gets its answer is known when it is committed.
        return {slot: one.lease([self._answers.pop(slot)]) for slot, one in taken.items()}

    def end(
        self,
        leases: Mapping[int, TransactionLease],
        settings: Mapping[str, Any],
        *,
        is_commit: bool,
        timeout_ms: int | None = None,
    ) -> dict[int, KafkaError]:
        """Commit or abort parts by their leases. It may be repeated.

        Args:
            leases: by slot.
            settings: the producer's, by Java's names.
            is_commit: whether to commit them.
            timeout_ms: for all of them; None for that of a call that blocks (`max.block.ms`).

        Returns:
            By slot, the error of each part whose transaction was over before: it may have been
            ended and gone on, or aborted by its time-out. The ledger's entry tells which.

        Raises:
            KafkaError: it is not known of some parts whether they were ended; that of the first
                one, with their number in its text.
        """
        client = self._client_of(settings)
        limit_ms = self._timeout_ms if timeout_ms is None else timeout_ms
        ends = client.end_ids(leases.values(), is_commit=is_commit, timeout_ms=limit_ms)
        over: dict[int, KafkaError] = {}
        unclear: dict[int, KafkaError] = {}
        for slot, lease in leases.items():
            result = ends[lease.transactional_id]
            self._note(slot, lease, result)
            if is_commit and result.error is None:
                self._note_claim(slot, lease)
            if result.error is not None and sign_of_loss(result.error) is not None:
                over[slot] = result.error
            elif result.error is not None:
                unclear[slot] = result.error
        # Only now: the identities of the others are known by then.
        if unclear:
            raise _with_count(unclear, len(leases), is_commit=is_commit)
        return over

    def _note(self, slot: int, lease: TransactionLease, result: EndResult) -> None:
        if result.error is None and result.next.is_valid:
            self._taken[slot] = TakenId(
                lease.transactional_id, result.next, lease.is_transaction_v2, lease.cluster_id
            )

    def _note_claim(self, slot: int, lease: TransactionLease) -> None:
        # A decision's lease, of an earlier driver, has no claim.
        answer = next_answer(lease.claims[0]) if lease.claims else None
        if answer is not None:  # none after the last epoch
            self._answers[slot] = answer

    def forget(self, slots: Iterable[int] | None = None) -> None:
        """Hold ids no more, all by default. An open transaction under them stays open."""
        if slots is None:
            # Another driver may take the claims from here on.
            self._answers.clear()
        for slot in list(self._taken if slots is None else slots):
            self._taken.pop(slot, None)

    def close(self) -> None:
        """Hold no id, and close the connections."""
        self.forget()
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _client_of(self, settings: Mapping[str, Any]) -> CoordinatorClient:
        if self._client is None:
            config = config_for(settings, self._ledger.transactional_id(0))
            self._client = CoordinatorClient(config)
            self._timeout_ms = config.max_block_ms
        return self._client


def _with_count(unclear: Mapping[int, KafkaError], count: int, *, is_commit: bool) -> KafkaError:
    """Return the error of the first of some parts, with their number and the way out."""
    slot, error = next(iter(unclear.items()))
    end, then = "aborted", "aborts them"
    if is_commit:
        end, then = "committed", "ends those that are decided, and writes the others again"
    text = (
        f"{len(unclear)} of {count} parts were not {end}, or it is not known. The first one is"
        f" part {slot}: {error}. Nothing has to be done about open transactions: the next run or"
        f" start {then}, or the broker aborts them after their time-out"
    )
    # The same object: its class and its cause say whether another run may help.
    error.args = (text,)
    return error
