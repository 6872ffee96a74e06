"""Two-phase commit with another system, mostly a database. The guide is docs/two-phase-commit.md.

Owns: the names that users import. Must not know: anything.
"""

from txnproducer.prepared import Completion, PreparedTransaction, Recover, StoredDecision
from txnproducer.two_phase.by_token import complete
from txnproducer.two_phase.decision_row import decisions_table
from txnproducer.two_phase.decisions import SqlAlchemyDecisions

__all__ = [
    "Completion",
    "PreparedTransaction",
    "Recover",
    "SqlAlchemyDecisions",
    "StoredDecision",
    "complete",
    "decisions_table",
]
