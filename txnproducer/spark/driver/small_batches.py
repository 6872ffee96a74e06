"""Small batches, which the driver writes itself: the guess, and the read.

Why it exists: Spark does not say how many rows a batch has before it has evaluated it. A batch
after a small one is mostly small, and a wrong guess costs a bounded read.

Owns: the guess, and the choice of the quicker way to read. Must not know: how rows are read, how
they are written.

One task reads a small frame soonest: Spark starts each task for some milliseconds. But it does
all work of the frame's last stage, and many tasks do it side by side. So the first read is by many
tasks, one task is tried if that was quick, and after that the quicker way of the two is taken.
"""

from __future__ import annotations

import time
from typing import Any, Final

from txnproducer.spark.rows.few_rows import can_read_few, read_few

# At this number both ways took the same time (docs/benchmarks-spark.md).
DRIVER_ROWS: Final = 10_000
# A read by many tasks that took longer had work to do, which one task would do alone.
_QUICK_S: Final = 0.1


class SmallBatches:
    """The guess which of a sink's batches are small.

    Args:
        driver_rows: the most rows that the driver writes; 0 for none, and None for the default.
    """

    def __init__(self, driver_rows: int | None) -> None:
        self._most = DRIVER_ROWS if driver_rows is None else driver_rows
        # Without a batch before, the user's word is the only hint.
        self._is_small = driver_rows is not None
        # How long the last read took, by whether it was in one task.
        self._seconds: dict[bool, float] = {}

    def note(self, rows: int) -> None:
        """Note the number of rows of the last batch."""
        self._is_small = rows <= self._most

    def read(self, frame: Any) -> list[Any] | None:
        """Return the rows of a frame, or None if it goes by tasks.

        Args:
            frame: of Spark's, with the columns that are written.

        Raises:
            Exception: raised by Spark for the frame itself, or for a stop.
        """
        if not self._most or not self._is_small or not can_read_few(frame):
            return None
        in_one_task = self._takes_one_task()
        began_s = time.monotonic()
        batches = read_few(frame, self._most, in_one_task=in_one_task)
        self._seconds[in_one_task] = time.monotonic() - began_s
        return batches

    def _takes_one_task(self) -> bool:
        by_many, by_one = self._seconds.get(False), self._seconds.get(True)
        if by_many is None:
            return False
        return by_many < _QUICK_S if by_one is None else by_one <= by_many
