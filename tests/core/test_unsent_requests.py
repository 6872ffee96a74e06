"""A request that could not be sent (no memory to put it into bytes) ends, and is repeated."""

from __future__ import annotations

import pytest

from tests.core.sending import idempotent, memory_taken
from tests.harness import CoreHarness
from txnproducer._protocol.messages import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    MetadataRequest,
    ProduceRequest,
)


def fail_once(harness, kind):
    """Let the next request of a kind meet a lack of memory."""
    send = harness.client.send
    failed = []

    def fail(request, now_ms):
        if isinstance(request.body, kind):
            harness.client.send = send
            failed.append(request)
            raise MemoryError
        send(request, now_ms)

    harness.client.send = fail
    return failed


@pytest.mark.parametrize("in_flight", [1, 5])
def test_a_produce_request_is_repeated_and_its_memory_comes_back(in_flight):
    harness = idempotent(max_in_flight_requests_per_connection=in_flight)
    failed = fail_once(harness, ProduceRequest)
    future = harness.send()
    harness.client.prepare_produce(base_offset=3)
    harness.run_until(future.done)
    assert failed
    assert future.result().offset == 3
    assert memory_taken(harness) == 0
    assert harness.sequences_sent() == [0]


def test_a_metadata_request_is_repeated():
    harness = CoreHarness()
    failed = fail_once(harness, MetadataRequest)
    assert harness.core.partitions_for("topic", 0) is None
    harness.run_until(lambda: harness.core.is_topic_decided("topic"))
    assert failed
    assert harness.now_ms < 1_000


@pytest.mark.parametrize("kind", [InitProducerIdRequest, AddPartitionsToTxnRequest, EndTxnRequest])
def test_a_coordinators_request_is_repeated(kind):
    harness = CoreHarness(transaction_version=1)
    failed = fail_once(harness, kind)
    result = harness.core.init_transactions()
    harness.client.prepare_find_coordinator()
    harness.client.prepare_find_coordinator()
    harness.client.prepare_init_producer_id()
    harness.complete(result)
    harness.begin_transaction()
    harness.know_topics()
    harness.client.prepare_add_partitions()
    harness.client.prepare_produce()
    harness.send()
    commit = harness.core.begin_commit()
    harness.client.prepare_find_coordinator()
    harness.client.prepare_end_txn()
    harness.client.prepare_init_producer_id(producer_epoch=1)
    harness.complete(commit)
    assert failed
    assert harness.manager.progress.outcome == "committed"
