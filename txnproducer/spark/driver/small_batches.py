"""Small batches, which the driver writes itself: the guess, and the read.

Why it exists: Spark does not say how many rows a batch has before it has evaluated it. A batch
after a small one is mostly small, and a wrong guess costs a bounded read.

Owns: the guess, and the choice of the quicker way to read. Must not know: how rows are read, how
they are written.

Rules:
* A batch after a large one is mostly large. The driver tries it nevertheless, the more seldom the
  more tries have failed, since a small one by tasks takes several times as long. It does not try
  after a batch of seconds: there the frame's own work may be dear, and it would be done twice.
* A read that fails is a wrong guess: tasks report an error of the frame as Spark does. Only a stop
  ends the batch.
* One task reads a small frame soonest: Spark starts each task for some milliseconds. But it does
  all work of the frame's last stage, and many tasks do it side by side. So the first read is by
  many tasks, one task is tried if that was quick, and after that the quicker way of the two is
  taken. What was measured long ago counts less and less.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final

from txnproducer.spark.reports import BatchReport
from txnproducer.spark.rows.few_rows import MOST_BYTES, can_read_few, read_few
from txnproducer.spark.session import tells_of_stop

_LOG = logging.getLogger(__name__)
# The driver itself is the quicker way for many more (docs/benchmarks-spark.md). But a read of more
# rows for nothing would do the frame's own work twice for a larger part of a batch.
DRIVER_ROWS: Final = 10_000
# A read by many tasks that took longer had work to do, which one task would do alone.
_QUICK_S: Final = 0.1
# A batch by tasks that took longer had so much work that a try is not worth it.
_TRIED_AFTER_S: Final = 1.0
# Before a batch with bytes was seen, as after a start. A ledger's entry has none, and the rows may
# be large.
_ASSUMED_ROW_BYTES: Final = 64 * 1024
_FADES: Final = 0.98
_MOST_DOUBLINGS: Final = 10


class SmallBatches:
    """The guess which of a sink's batches are small.

    Args:
        driver_rows: the most rows that the driver writes; 0 for none, and None for the default.
    """

    def __init__(self, driver_rows: int | None) -> None:
        self._most = DRIVER_ROWS if driver_rows is None else driver_rows
        # Without a batch before, the user's word is the only hint.
        self._is_small = driver_rows is not None
        self._assumed_bytes = 0 if self._is_small else _ASSUMED_ROW_BYTES
        self._row_bytes = 0
        self._has_noted = False
        # How long the last batch took; None if that is not known.
        self._last_s: float | None = None
        # Of batches after large ones, since the last small one.
        self._failed_tries = 0
        self._passed = 0
        # How long the last read took, by whether it was in one task.
        self._seconds: dict[bool, float] = {}

    def note_entry(self, rows: int) -> None:
        """Note the ledger's count of the last batch, unless this driver has written one."""
        # An entry has no bytes, and would make a batch of few large rows a small one again.
        if not self._has_noted:
            self.note(rows)
            self._has_noted = False

    def note(self, rows: int, size_bytes: int = 0, seconds: float | None = None) -> None:
        """Note the last batch: its rows, and their bytes and its time if they are known."""
        self._has_noted = True
        self._last_s = seconds
        self._is_small = rows <= self._most and size_bytes <= MOST_BYTES
        if self._is_small:
            self._failed_tries = self._passed = 0
        if rows and size_bytes:
            self._row_bytes = size_bytes // rows

    def note_report(self, report: BatchReport) -> None:
        """Note the last batch by its report."""
        # A replay takes less time than the batch did.
        seconds = report.seconds if report.transactions else None
        self.note(report.rows, report.size_bytes, seconds)

    def read(self, frame: Any) -> list[Any] | None:
        """Return the rows of a frame, or None if it goes by tasks.

        Args:
            frame: of Spark's, with the columns that are written.

        Raises:
            Exception: raised by Spark for a stop.
        """
        if (
            not self._most
            or not can_read_few(frame)
            or not (self._is_small or self._takes_a_try())
        ):
            return None
        # The JVM holds all of a read in its memory before it sends the first row.
        row_bytes = self._row_bytes or self._assumed_bytes
        most = min(self._most, MOST_BYTES // max(row_bytes, 1))
        in_one_task = self._takes_one_task()
        began_s = time.monotonic()
        try:
            batches = read_few(frame, most, in_one_task=in_one_task)
        except Exception as error:
            if tells_of_stop(error):
                raise
            _LOG.info("a batch goes by tasks, since the driver could not read it: %s", error)
            batches = None
        if batches is None:
            self._note_failure()
            return None
        if (not in_one_task) in self._seconds:
            self._seconds[not in_one_task] *= _FADES
        self._seconds[in_one_task] = time.monotonic() - began_s
        self._is_small = True
        return batches

    def _takes_a_try(self) -> bool:
        if self._last_s is None or self._last_s > _TRIED_AFTER_S:
            return False
        self._passed += 1
        return 2 * self._passed >= 1 << min(self._failed_tries, _MOST_DOUBLINGS)

    def _note_failure(self) -> None:
        if not self._is_small:
            self._failed_tries += 1
        self._is_small = False
        self._passed = 0

    def _takes_one_task(self) -> bool:
        by_many, by_one = self._seconds.get(False), self._seconds.get(True)
        if by_many is None:
            return False
        return by_many < _QUICK_S if by_one is None else by_one <= by_many
