"""The check whether a task may end the transaction of an open block.

Why it exists: all tasks of a loop share a thread, so the thread does not tell whose block it is.
Owns: the check. Must not know: transactions.
"""

from __future__ import annotations

import asyncio

from txnproducer._shell.block_owner import IsOwner


def calling_task() -> IsOwner:
    """Return a check that is true in the calling task, and in every task after its end."""
    owner = asyncio.current_task()
    return lambda: owner is None or owner.done() or asyncio.current_task() is owner
