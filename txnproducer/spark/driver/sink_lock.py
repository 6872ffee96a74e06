"""The lock of a sink object. A batch is written, or the ledger is refreshed, but not both at once.

Why it exists: Spark calls a listener in a thread of its own. The listener refreshes the ledger,
which takes the transactional ids, and would fence the tasks of a batch.

Owns: a lock that can be pickled. Must not know: the work that is done under it.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self


class SinkLock:
    """A lock. Its copy in another process is a new lock, and free."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[SinkLock], tuple[()]]:
        # `threading.Lock` cannot be pickled, but Spark Connect pickles the sink as a function.
        return SinkLock, ()

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

    def acquire_if_free(self) -> bool:
        """Acquire the lock without waiting, and return whether that was possible."""
        # A refresh need not wait: the batch that holds the lock keeps the ledger alive itself.
        return self._lock.acquire(blocking=False)

    def release(self) -> None:
        """Release the lock after `acquire_if_free`."""
        self._lock.release()
