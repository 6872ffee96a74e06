"""Times outside a producer's calls: a copier's with its consumer, and the start of a process.

Why it exists: a copier commits nothing while its consumer has no record, and a process that was
killed nothing until it has started again. Without these times a long stall could not be taken
apart.
Owns: the names of these times, and few lines about many short ones. Must not know: consumers,
producers, judgements.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OPENED, CLOSED, REWOUND = "open", "close", "rewind"
# In a poll, with partitions and without any.
POLLED, NO_PARTITIONS = "poll", "partitions"
# From the begin of a process to its first call: the interpreter, the imports, the producer.
STARTED = "start"
# From the fault on to the begin of the process that follows one that was killed.
ABSENT = "absent"
LEAST_S = 0.05


class Waits:
    """Times that follow one another. Those of one kind in a row make one line.

    Args:
        note: takes `did`, and `since` and `until` on the machine's monotonic clock. It is not
            called for times below `LEAST_S`.
    """

    def __init__(self, note: Callable[..., Any]) -> None:
        self._note = note
        self._did = ""
        self._since = self._until = 0.0

    def add(self, did: str, since: float) -> None:
        """Take a time that ends now."""
        if did != self._did:
            self.end()
            self._did, self._since = did, since
        self._until = time.monotonic()

    def end(self) -> None:
        """Note the time so far: something else follows."""
        if self._did and self._until - self._since >= LEAST_S:
            self._note(did=self._did, since=round(self._since, 4), until=round(self._until, 4))
        self._did = ""

    @contextmanager
    def during(self, did: str) -> Iterator[None]:
        """Note the time in the block, whether it raises or not."""
        since = time.monotonic()
        try:
            yield
        finally:
            self.add(did, since)
            self.end()


def process_began() -> float:
    """Return when this process began, on the machine's monotonic clock, to 10 ms."""
    fields = Path("/proc/self/stat").read_text("ascii").rpartition(")")[2].split()
    # The 22nd field of the line, counted in ticks since the machine's start.
    return round(int(fields[19]) / os.sysconf("SC_CLK_TCK"), 2)
