"""The error of a ledger that does not fit."""

from __future__ import annotations

from txnproducer.errors import KafkaError

__all__ = ["LedgerError"]


# No passing failure: the same call again finds the same ledger.
class LedgerError(KafkaError, recovery="fix"):
    """The ledger does not fit its program, and nothing was written into it.

    It is missing, another transactional id's, at another position, or cannot be read. The text
    names the way out.
    """
