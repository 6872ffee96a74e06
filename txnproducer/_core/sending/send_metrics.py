"""The metrics of sending: those of each batch, request and answer.

Why it exists: each batch is counted, so the numbers are looked up once.
Must not know: why a batch is sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from txnproducer._core.batches.producer_batch import ProducerBatch
from txnproducer._core.metrics import Metrics

# How long values are noted before they are taken in. A window has 30,000 ms.
_ROLL_MS: Final = 100


class SendMetrics:
    """Note the requests, and the times of their answers.

    Args:
        metrics: has the numbers.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._batch_sizes = metrics.stat("batch-size")
        self._queue_times = metrics.stat("record-queue-time")
        self._compression_rates = metrics.stat("compression-rate")
        self._records_per_request = metrics.stat("records-per-request")
        self._latencies = metrics.stat("request-latency")
        self._throttle_times = metrics.stat("produce-throttle-time")
        self._records_sent = metrics.rate("record-send")
        self._rolls_ms = 0

    def sent(self, batches: Iterable[ProducerBatch], now_ms: int) -> None:
        """Note a request and its batches."""
        if now_ms >= self._rolls_ms:
            self._roll(now_ms)
        record_count = 0
        for batch in batches:
            record_count += batch.record_count
            self._batch_sizes.note(batch.estimated_size_bytes)
            self._queue_times.note(batch.drained_ms - batch.created_ms)
            self._compression_rates.note(batch.builder.actual_compression_ratio)
        self._records_per_request.note(record_count)
        self._records_sent.note(record_count)

    def answered(self, latency_ms: int, throttle_time_ms: int, now_ms: int) -> None:
        """Note an answer."""
        if now_ms >= self._rolls_ms:
            self._roll(now_ms)
        self._latencies.note(latency_ms)
        self._throttle_times.note(throttle_time_ms)

    def _roll(self, now_ms: int) -> None:
        self._rolls_ms = now_ms + _ROLL_MS
        for stat in (
            self._batch_sizes,
            self._queue_times,
            self._compression_rates,
            self._records_per_request,
            self._latencies,
            self._throttle_times,
            self._records_sent,
        ):
            stat.roll(now_ms)
