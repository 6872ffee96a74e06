"""Shared parts of the tests of sending: an idempotent producer that is ready, and its batches."""

from __future__ import annotations

from tests.harness import CoreHarness
from txnproducer._protocol.messages import ApiKey

PRODUCE = ApiKey.PRODUCE


def idempotent(**settings):
    """Return a harness whose idempotent producer has its id and knows its topics."""
    harness = CoreHarness(transactional_id=None, **settings)
    harness.start_idempotent()
    return harness


def send_each(harness, count, **more):
    """Send records, each in an unanswered request of its own. Return futures and requests."""
    futures = []
    for _ in range(count):
        futures.append(harness.send(**more))
        harness.settle()
    return futures, harness.client.waiting(PRODUCE)


def memory_taken(harness):
    metrics = harness.core.metrics()
    return metrics["buffer-total-bytes"] - metrics["buffer-available-bytes"]
