"""The answers that a broker may give to EndTxn from its memory alone.

Why it exists: a broker that was replaced as the coordinator, and does not know it yet, answers
whatever needs no write. Owns: the codes of such refusals, and those by which a broker says that it
has forgotten. Must not know: requests, states.

The broker judges by its memory before it would write, and so it may refuse:
* PRODUCER_FENCED (INVALID_PRODUCER_EPOCH before EndTxn v2) or, after the last epoch,
  INVALID_PRODUCER_ID_MAPPING: it takes an identity that it has not seen for a foreign one. With v2
  its log may have refused to complete the previous transaction.
* INVALID_TXN_STATE: the partitions were added at the next coordinator, and it knows no open
  transaction. With v2 an abort is refused so only if the log has a commit.

So whoever is refused looks the coordinator up and asks once more. The answer counts when the
broker that gave it still is the coordinator. A refused request has changed nothing.
"""

from __future__ import annotations

from typing import Final

from txnproducer.errors import ErrorCode

OTHER_IDENTITY: Final = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
LATER_IDENTITY: Final = (*OTHER_IDENTITY, ErrorCode.INVALID_PRODUCER_EPOCH)
# A broker that answers so has forgotten what it refused before.
NEW_TERM: Final = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def may_be_from_memory(code: int, *, is_commit: bool, is_v2: bool) -> bool:
    """Return whether a broker that was replaced may have refused an end by its memory alone."""
    if not is_v2 and code in (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH):
        return True
    return code in OTHER_IDENTITY or (is_commit and code == ErrorCode.INVALID_TXN_STATE)
