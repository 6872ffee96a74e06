"""Replay of a batch: Spark hands out a batch that is committed already.

Its rows are compared with the committed ones and are not written again.

Owns: the comparison of the whole batch with the rows that Spark hands out now, and the report.
Must not know: how the rows are read, which atomicity the batch has.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from txnproducer.spark.errors import ReplayMismatchError
from txnproducer.spark.ledger.digest import total
from txnproducer.spark.ledger.entries import LedgerEntry
from txnproducer.spark.ledger.rules import check_whole_replay
from txnproducer.spark.ledger.slots import Content
from txnproducer.spark.reports import BatchReport, report_found

_LOG = logging.getLogger(__name__)


def report_replay(
    entry: LedgerEntry,
    read: Callable[[], Iterable[Content]],
    on_replay_mismatch: str,
    began_s: float,
) -> BatchReport:
    """Return the report of a committed batch, if its rows are the same again.

    Args:
        entry: the committed batch.
        read: reads all partitions of the frame; returns rows and digest of each.
        on_replay_mismatch: "keep" leaves the rows unread; "warn" reports that they differ.
        began_s: when the call began, by `time.monotonic`.

    Raises:
        ReplayMismatchError: the rows differ, and that is not allowed.
    """
    has_other_rows = False
    _LOG.info("batch %s is committed already; it is not written again", entry.name)
    if on_replay_mismatch != "keep":
        # Without this, a checkpoint that was set back, or a batch id given twice, loses new rows.
        found = list(read())
        rows, digest = sum(rows for rows, _ in found), total(digest for _, digest in found)
        try:
            check_whole_replay(entry, rows, digest)
        except ReplayMismatchError:
            if on_replay_mismatch != "warn":
                raise
            _LOG.warning(
                "batch %s is wholly committed with %d rows, and comes again with %d, which are "
                "others. They are not written: either the frame does not give the same rows "
                "again, which harms nothing, or the checkpoint was set back, or the batch id was "
                "given twice, and these rows were never written",
                entry.name,
                entry.rows,
                rows,
            )
            has_other_rows = True
    seconds = time.monotonic() - began_s
    report = report_found(entry.batch_id, entry.rows, entry.writers, seconds)
    return replace(report, run_id=entry.run_id, has_other_rows=has_other_rows)
