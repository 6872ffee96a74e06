"""Ledgers: a position in any source, committed in the transaction of the records made from it.

A stable transactional id fences a writer that was replaced, and does not recognise input that was
written before. The ledger does. This package must not know whose positions it keeps, nor how a
transaction works. The Spark sink keeps its own entries in topics that are read and made here.
"""

from __future__ import annotations

from txnproducer.ledger.errors import LedgerError
from txnproducer.ledger.ledger import Ledger
from txnproducer.ledger.state import LedgerState

__all__ = ["Ledger", "LedgerError", "LedgerState"]
