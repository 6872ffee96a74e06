"""The metrics of sending: those of each batch, request and answer.

Why it exists: each batch is counted, so the numbers are looked up once.
Must not know: why a batch is sent.
"""

from __future__ import annotations

from collections.abc import Iterable

from txnproducer._core.batches.producer_batch import ProducerBatch
from txnproducer._core.metrics import Metrics


class SendMetrics:
    """Note the requests, and the times of their answers.

    Args:
        metrics: has the numbers.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._batch_sizes = metrics.stat("batch-size")
        self._queue_times = metrics.stat("record-queue-time")
        self._compression_rates = metrics.stat("compression-rate")
        self._records_per_request = metrics.stat("records-per-request")
        self._latencies = metrics.stat("request-latency")
        self._throttle_times = metrics.stat("produce-throttle-time")

    def sent(self, batches: Iterable[ProducerBatch], now_ms: int) -> None:
        """Note a request and its batches."""
        record_count = 0
        for batch in batches:
            record_count += batch.record_count
            self._batch_sizes.record(batch.estimated_size_bytes, now_ms)
            self._queue_times.record(batch.drained_ms - batch.created_ms, now_ms)
            self._compression_rates.record(batch.builder.actual_compression_ratio, now_ms)
        self._records_per_request.record(record_count, now_ms)
        self._metrics.count("record-send", record_count, now_ms)

    def answered(self, latency_ms: int, throttle_time_ms: int, now_ms: int) -> None:
        """Note an answer."""
        self._latencies.record(latency_ms, now_ms)
        self._throttle_times.record(throttle_time_ms, now_ms)
