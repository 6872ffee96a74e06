"""Whose turn it is on the driver: a batch's, or the upkeep of the ledger's.

Why it exists: a listener of Spark's refreshes the ledger in a thread of its own, and what it does
would fence the tasks of a batch.
Owns: a lock that can be pickled. Must not know: what is done under it.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self


class Turn:
    """A lock; a copy in another process is one of its own, that nobody holds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Turn], tuple[()]]:
        return Turn, ()

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()

    def try_to_take(self) -> bool:
        """Take it if nobody has it; `with turn` waits instead. Tell whether it was taken."""
        return self._lock.acquire(blocking=False)

    def give_back(self) -> None:
        """Give it back, behind `try_to_take`."""
        self._lock.release()
