"""Threads that are kept for the next attempt to connect.

Why it exists: an attempt blocks, so it needs a thread, and from Python 3.12 on the interpreter
starts none once it is about to exit. Then the producer may still have a transaction to abort whose
coordinator it has no connection to.
Owns: the threads, the attempts that wait for one. Must not know: what an attempt does.
Rules: an attempt gets a thread at once as long as threads can be started, and else waits for one
that is kept. At the exit the client gives up each attempt after a second, which ends its wait for
a broker, but not a name look-up or a token provider that hangs. If both kept threads hang there,
the open transaction is not aborted before its time-out. `close` ends all threads that are idle.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

Job: TypeAlias = Callable[[], object]

# Two, so that one can connect while the other hangs at an address that does not answer.
_MOST_IDLE = 2
_LONGEST_JOIN_S = 1.0


def start_thread(job: Job) -> None:
    """Run a job on a thread of its own.

    Raises:
        RuntimeError: the system, or the interpreter at its exit, starts no thread.
    """
    threading.Thread(target=job, name="txnproducer-connect", daemon=True).start()


class KeptThreads:
    """Run jobs that block, each on a thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._idle: set[threading.Thread] = set()
        self._count = 0
        self._is_closed = False

    def run(self, job: Job) -> None:
        """Run a job on an idle thread, or on a new one; where there is neither, on the next idle.

        Raises:
            RuntimeError: no thread was ever started, and none can be started now.
        """
        with self._changed:
            self._jobs.append(job)
            # A thread that was notified counts as idle until it has taken its job.
            if len(self._jobs) <= len(self._idle):
                self._changed.notify()
                return
            try:
                start_thread(self._work)
            except RuntimeError:
                if not self._count:
                    self._jobs.remove(job)
                    raise
            else:
                self._count += 1

    def close(self) -> None:
        """Drop the jobs that have no thread yet, and end every thread that is idle."""
        with self._changed:
            self._is_closed = True
            self._jobs.clear()
            self._changed.notify_all()
            idle = list(self._idle)
        for thread in idle:
            thread.join(_LONGEST_JOIN_S)

    def _work(self) -> None:
        while (job := self._take()) is not None:
            job()

    def _take(self) -> Job | None:
        """Return the next job; None when the thread has to end."""
        this = threading.current_thread()
        with self._changed:
            while not self._jobs:
                if self._is_closed or len(self._idle) >= _MOST_IDLE:
                    self._count -= 1
                    return None
                self._idle.add(this)
                self._changed.wait()
                self._idle.discard(this)
            return self._jobs.popleft()
