"""The outcome of one transaction of a producer, also after later ones were begun.

Owns: the choice between the producer's own account and that of the transaction. Must not know:
what is in the transaction.
"""

from __future__ import annotations

from collections.abc import Callable

from txnproducer.errors import IllegalStateError
from txnproducer.producer import TransactionalProducer
from txnproducer.transaction import Outcome

# ruff: noqa: SLF001 - a part of the producer, which has its calls in another layer


def watch_outcome(producer: TransactionalProducer) -> Callable[[], Outcome]:
    """Return a function that returns the outcome of the transaction that is open now.

    Raises:
        IllegalStateError: none is open, or the producer is closed.
        ForkedProducerError: the producer is another process's.
        KafkaError: the transaction has failed; its `recovery` names the next step.
    """
    producer._check_usable("advance")
    with producer._lock:
        manager = producer._core.transaction_manager
        if manager is None:
            raise IllegalStateError("a ledger needs a producer with a transactional_id")
        # The error of a record that has failed meanwhile comes first.
        manager.check_call("advance")
        manager.check_in_transaction("a ledger cannot be advanced")
        account = manager.progress.open

    def outcome() -> Outcome:
        with producer._lock:
            # The producer's own account knows more of the latest one, such as a doubt.
            is_latest = manager.progress.open is account
            return producer._outcome() if is_latest else account.outcome or "unknown"

    return outcome
