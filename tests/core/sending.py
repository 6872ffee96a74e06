"""Shared parts of the tests of sending: a producer that is ready to send, and its batches."""

from __future__ import annotations

from tests.harness import CoreHarness
from txnproducer._protocol.messages import ApiKey

PRODUCE = ApiKey.PRODUCE


def idempotent(**settings):
    """Return a harness whose idempotent producer has its id and knows its topics."""
    harness = CoreHarness(transactional_id=None, **settings)
    harness.start_idempotent()
    return harness


def in_transaction(version=2, **settings):
    """Return a harness in a transaction, with known topics."""
    harness = CoreHarness(transaction_version=version, **settings)
    harness.start_transaction()
    harness.know_topics()
    return harness


def with_three_partitions(**settings):
    """Return a harness in a transaction, with three partitions of its topic."""
    return in_transaction(**{"topics": {"topic": 3}, **settings})


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
