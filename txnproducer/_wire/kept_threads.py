"""Threads that are kept for the next attempt to connect.

Why it exists: an attempt blocks, so it needs a thread, and from Python 3.12 on the interpreter
starts none when it is about to exit. The producer may then still have to abort a transaction whose
coordinator it has no connection to.
Owns: the threads, the attempts that wait for one. Must not know: what an attempt does.
Rules: while threads can be started, an attempt gets one at once. After that it waits for a kept
thread. At the exit the client gives up each attempt after a second, which ends its wait for a
broker, but not a name look-up or a token provider that hangs. If both kept threads hang there, the
open transaction ends only by its time-out. `close` ends all idle threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from .platform import SYSTEM, Platform

Job: TypeAlias = Callable[[], object]

# Two, so that one can connect while the other hangs at an address that does not answer.
_MOST_IDLE = 2
_LONGEST_JOIN_S = 1.0
NAME = "txnproducer-connect"


class KeptThreads:
    """The threads that run jobs which block.

    Args:
        platform: has the threads.
    """

    def __init__(self, platform: Platform = SYSTEM) -> None:
        self._platform = platform
        self._changed = platform.condition()
        self._jobs: deque[Job] = deque()
        self._idle: list[threading.Thread] = []
        self._count = 0
        self._is_closed = False

    def run(self, job: Job) -> None:
        """Run a job on an idle or new thread, or if none can start, on the next one that is idle.

        Raises:
            RuntimeError: no thread is alive, and none can be started.
        """
        with self._changed:
            self._jobs.append(job)
            # A notified thread counts as idle until it has taken its job.
            if len(self._jobs) <= len(self._idle):
                self._changed.notify()
                return
            try:
                self._platform.thread(self._work, NAME).start()
            except RuntimeError:
                # With a thread alive, the job waits for it instead; without one it would wait for
                # ever.
                if not self._count:
                    self._jobs.remove(job)
                    raise
            else:
                self._count += 1

    def close(self) -> None:
        """Drop the jobs without a thread, and end every idle thread."""
        with self._changed:
            self._is_closed = True
            self._jobs.clear()
            self._changed.notify_all()
            idle = list(self._idle)
        for thread in idle:
            # Outside the condition, which an ending thread needs.
            thread.join(_LONGEST_JOIN_S)

    def _work(self) -> None:
        while (job := self._take()) is not None:
            job()

    def _take(self) -> Job | None:
        """Return the next job, or None if the thread has to end."""
        this = self._platform.current_thread()
        with self._changed:
            while not self._jobs:
                if self._is_closed or len(self._idle) >= _MOST_IDLE:
                    self._count -= 1
                    return None
                self._idle.append(this)
                self._changed.wait()
                self._idle.remove(this)
            return self._jobs.popleft()
