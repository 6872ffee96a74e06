"""Whether every record has arrived, counted exactly: without that there is no rate.

Owns: the count, and how long it may take to come out right. Must not know: who wrote, and how a
broker is asked.

A transaction leaves a marker in each partition that it wrote to, after its records. So the ends
of the partitions, where nothing is open any more, count records and markers together: no more, and
not one less. Markers are written after the commit was answered, so the last are waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from integration.benchmarks.job import FailedRunError
from integration.benchmarks.works import Work

# The markers of 600 partitions, on a machine with other work.
_LIMIT_S = 30.0
_PAUSE_S = 0.02


def check_arrived(
    work: Work,
    transactions: int,
    stable_end: Callable[[], int],
    limit_s: float = _LIMIT_S,
    *,
    has_markers: bool = True,
) -> None:
    """Check that a topic holds the records of so many transactions, and no others.

    Args:
        work: what each transaction writes.
        transactions: that were committed.
        stable_end: returns the sum of the partitions' last stable offsets.
        limit_s: how long the last markers are waited for.
        has_markers: whether the peer wrote them in transactions.

    Raises:
        FailedRunError: there is less, or more.
    """
    # Rows are dealt out to the partitions in turn, so that each transaction writes to all of them.
    records = transactions * work.records
    markers = transactions * work.partitions if has_markers else 0
    end = time.perf_counter() + limit_s
    while (found := stable_end()) < records + markers and time.perf_counter() < end:
        time.sleep(_PAUSE_S)  # no event tells that a marker is written; looking costs a broker
    if found != records + markers:
        raise FailedRunError(
            f"the topic ends at {found}, and not behind {records} records and {markers} markers"
        )
