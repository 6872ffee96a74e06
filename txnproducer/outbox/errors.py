"""The errors of an outbox."""

from __future__ import annotations

from txnproducer.errors import KafkaError

__all__ = ["OutboxError", "SupersededError"]


# No passing failure: the same call again finds the same rows.
class OutboxError(KafkaError, recovery="fix"):
    """The database does not fit the ledger, or a table is missing. Nothing was sent."""


class SupersededError(KafkaError, recovery="restart"):
    """Another relay has taken over. This one has sent nothing since, and has to end."""
