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
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from txnproducer._core.transactions.transaction_loss import sign_of_loss
from txnproducer.errors import KafkaError
from txnproducer.lease import TransactionLease
from txnproducer.spark.ledger.coordinator_client import CoordinatorClient, EndResult, TakenId
from txnproducer.spark.ledger.producers import checked, config_for
from txnproducer.spark.ledger.rights import taking
from txnproducer.spark.ledger.store import Ledger

_TIMEOUT_MS: Final = 60_000


class PartIds:
    """The ids of a sink's parts, as far as this driver holds them.

    Args:
        ledger: of the sink.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._client: CoordinatorClient | None = None
        self._taken: dict[int, TakenId] = {}

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
        found = self._client_of(settings).take_each(names.values(), _TIMEOUT_MS)
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
        claims = {slot: (one.transactional_id, 0) for slot, one in taken.items()}
        # The claim has an id of its own, and needs the right to Write on it.
        with taking(self._ledger, f"{self._ledger.transactional_id(wanted[0])}.claim-0"):
            answers = self._client_of(settings).take_claims(claims.values(), _TIMEOUT_MS)
        return {slot: one.lease([answers[claims[slot]]]) for slot, one in taken.items()}

    def end(
        self,
        leases: Mapping[int, TransactionLease],
        settings: Mapping[str, Any],
        *,
        is_commit: bool,
        timeout_ms: int = _TIMEOUT_MS,
    ) -> dict[int, KafkaError]:
        """Commit or abort parts by their leases. It may be repeated.

        Args:
            leases: by slot.
            settings: the producer's, by Java's names.
            is_commit: whether to commit them.
            timeout_ms: for all of them.

        Returns:
            By slot, the error of each part whose transaction was over before: it may have been
            ended and gone on, or aborted by its time-out. The ledger's entry tells which.

        Raises:
            KafkaError: it is not known of a part whether it was ended.
        """
        client = self._client_of(settings)
        ends = client.end_ids(leases.values(), is_commit=is_commit, timeout_ms=timeout_ms)
        over: dict[int, KafkaError] = {}
        unclear: KafkaError | None = None
        for slot, lease in leases.items():
            result = ends[lease.transactional_id]
            self._note(slot, lease, result)
            if result.error is not None and sign_of_loss(result.error) is not None:
                over[slot] = result.error
            elif result.error is not None:
                unclear = result.error
        # Only now: the identities of the others are known by then.
        if unclear is not None:
            raise unclear
        return over

    def _note(self, slot: int, lease: TransactionLease, result: EndResult) -> None:
        if result.error is None and result.next.is_valid:
            self._taken[slot] = TakenId(
                lease.transactional_id, result.next, lease.is_transaction_v2, lease.cluster_id
            )

    def forget(self, slots: Iterable[int] | None = None) -> None:
        """Hold ids no more, all by default. An open transaction under them stays open."""
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
        return self._client
