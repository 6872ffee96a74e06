"""The process in which an in-memory Kafka was made, and the refusal of its forks.

Why it exists: a fork has a copy of the cluster, but none of the threads that move its bytes. A
call there would wait for ever, with the real clock and with the virtual one.
Owns: `OwnProcess`. Must not know: the cluster, the clock.
"""

from __future__ import annotations

import os


class OwnProcess:
    """The process that makes this object.

    Args:
        advice: the end of a refusal: the threads that a fork lacks, and the way out.
    """

    def __init__(self, advice: str) -> None:
        self._advice = advice
        self._pid = os.getpid()

    @property
    def is_forked(self) -> bool:
        """Whether the caller is a fork of the process."""
        return os.getpid() != self._pid

    def refuse_fork(self) -> None:
        """Refuse a fork of the process.

        Raises:
            RuntimeError: the caller is one.
        """
        if self.is_forked:
            raise RuntimeError(
                f"this InMemoryKafka lives in process {self._pid}, and a fork has no copy of"
                f" {self._advice}"
            )
