"""A listener of Spark's that keeps a sink's ledger alive while its query is idle.

    spark.streams.addListener(SinkListener(sink))

Owns: when the ledger is refreshed, and the line per batch of Spark's own progress. Must not know:
how an entry is written.

Spark calls a listener in a thread of its own. Under Spark Connect that is not in the process of
the query's driver: make listener and sink in one process.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from pyspark.sql.streaming import StreamingQueryListener

from txnproducer.errors import KafkaError
from txnproducer.spark.ledger.store import REFRESH_AFTER_S
from txnproducer.spark.sink import ExactlyOnceKafkaSink

_LOG = logging.getLogger(__name__)


class SinkListener(StreamingQueryListener):  # type: ignore[misc]  # pyspark is not typed here
    """Refresh a sink's ledger from time to time while its query has nothing to write.

    Args:
        sink: of the query.
        refresh_every_s: seconds; well below the brokers' `offsets.retention.minutes`.

    Attributes:
        refreshed: how many entries were committed again in all.
    """

    def __init__(
        self, sink: ExactlyOnceKafkaSink, refresh_every_s: float = REFRESH_AFTER_S
    ) -> None:
        self.refreshed = 0
        self._sink = sink
        self._every_s = refresh_every_s
        # The first idle moment refreshes at once: the query may have rested for long before this
        # start.
        self._refreshed_s = time.monotonic() - refresh_every_s

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's names
        """Do nothing, since Spark waits for the return."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Log the sink's report of the batch that Spark reports on."""
        report = self._sink.last_report
        # Spark calls listeners in another thread and later, when the sink may be a batch ahead.
        if report is not None and report.batch_id == event.progress.batchId:
            _LOG.info("query %s, batch %d: %s", event.progress.id, report.batch_id, report)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Refresh the ledger, if that was not done for long."""
        if time.monotonic() - self._refreshed_s < self._every_s:
            return
        try:
            # `id` and not `runId`: a query keeps it over restarts, and the ledger's entries name
            # it.
            count = self._sink.refresh_ledger(self._sink.query_id or str(event.id))
        # Entries last for days, so the next idle moment is soon enough.
        except KafkaError as error:
            _LOG.warning("the ledger could not be refreshed; it is tried again: %s", error)
            return
        # Zero means that a batch was under way, or broken off: then the refresh is still due.
        if count:
            self._refreshed_s = time.monotonic()
            self.refreshed += count

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Do nothing, since the query may be started again with the same sink."""
