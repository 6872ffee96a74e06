"""The producer of whole batches, which takes the claims of a lease many at once.

Why it exists: a core takes one claim after the other. A batch of hundreds of tasks would wait for
as many round trips before its first task begins.

Owns: the claims that are taken in advance. Must not know: batches, tasks.

Rule: a claim may be taken before the lease is begun. The answer to its next process depends on the
claim alone. If another process comes first, the task is refused, as with any lease.
"""

from __future__ import annotations

from typing import Final

from txnproducer._shell.arguments import check_claim
from txnproducer.producer import TransactionalProducer
from txnproducer.records import TransactionLease
from txnproducer.spark.ledger.coordinator_client import CoordinatorClient

# A client of its own connects first. That takes as long as a few claims one after the other.
_FEW: Final = 8


class LeasingProducer(TransactionalProducer):
    """A producer that leases its transactions to many participants."""

    def lease(self, claims: int) -> TransactionLease:
        """Lease the open transaction. See `TransactionalProducer.lease`."""
        self._take_claims(check_claim("claims", claims))
        return super().lease(claims)

    def _take_claims(self, claims: int) -> None:
        manager, name = self._core.transaction_manager, self._config.transactional_id
        if manager is None or name is None:
            return  # without an id there is no lease, which the lease itself says
        with self._lock:
            # A committed transaction has told the next answers.
            unknown = [number for number in range(claims) if number not in manager.share.answers]
        if len(unknown) <= _FEW or self.transaction_state != "IN_TRANSACTION":
            return
        with CoordinatorClient(self._config, self._platform) as client:
            timeout_ms = self._config.max_block_ms
            found = client.take_claims([(name, number) for number in unknown], timeout_ms)
        with self._lock:
            # If the transaction has ended meanwhile, the lease is refused, and these stay true.
            manager.share.answers.update({number: found[name, number] for number in unknown})
