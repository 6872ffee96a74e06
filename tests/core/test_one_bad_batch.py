"""A failure of one batch, for lack of memory or by a mistake, does not touch the others."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from tests.core.sending import PRODUCE, idempotent, memory_taken
from tests.harness import TP0, CoreHarness
from txnproducer._core.sending.produce_sender import ProduceSender
from txnproducer._core.transactions.state import TransactionState
from txnproducer.errors import KafkaTimeoutError


def compress_badly_once(harness, partition, monkeypatch):
    """Let the compression of the batch that waits for a partition fail, once."""
    queue = harness.core._accumulator.topics["topic"].queues[partition]
    builder = queue.open_batch.builder
    codec = builder._codec

    class Exhausted:
        codec_id = codec.codec_id

        def compress(self, data):
            monkeypatch.undo()
            raise MemoryError

    monkeypatch.setattr(builder, "_codec", Exhausted())


@pytest.mark.parametrize("broken", [0, 1])
def test_a_batch_that_cannot_be_serialized_fails_alone_and_can_be_aborted(broken, monkeypatch):
    # In Java what was drained with it stays open for ever.
    harness = CoreHarness(compression_type="gzip", linger_ms=10)
    harness.start_transaction(2)
    harness.know_topics()
    futures = [harness.send(partition=partition) for partition in (0, 1)]
    compress_badly_once(harness, broken, monkeypatch)
    harness.client.prepare_produce()
    harness.run_until(lambda: all(future.done() for future in futures))
    assert "could not be made" in str(futures[broken].exception())
    assert isinstance(futures[broken].exception().__cause__, MemoryError)
    assert futures[1 - broken].exception() is None
    assert harness.state is TransactionState.ABORTABLE_ERROR
    assert memory_taken(harness) == 0
    harness.abort()
    harness.core.begin_transaction()
    harness.client.prepare_add_partitions()
    harness.client.prepare_produce(base_offset=1)
    future = harness.send(partition=broken)
    harness.run_until(future.done)
    assert future.result().offset == 1


def test_a_batch_whose_bytes_cannot_be_made_sends_no_empty_request(monkeypatch):
    harness = idempotent(compression_type="gzip", linger_ms=10)
    future = harness.send(partition=0)
    compress_badly_once(harness, 0, monkeypatch)
    harness.run_until(future.done)
    assert harness.client.sent(PRODUCE) == []
    harness.client.prepare_produce(base_offset=0)
    future = harness.send(partition=0)
    harness.run_until(future.done)
    assert harness.sequences_sent() == [0]


@pytest.mark.conformance("6.17")
@pytest.mark.quirk("Q4")
def test_a_mistake_in_one_partitions_answer_does_not_strand_the_others(monkeypatch, caplog):
    harness = idempotent(delivery_timeout_ms=20_000, request_timeout_ms=10_000)
    futures = [harness.send(partition=partition) for partition in (0, 1)]
    harness.settle()
    (request,) = harness.client.waiting(PRODUCE)

    complete = ProduceSender._complete_batch

    def complete_badly(sender, batch, response, now_ms):
        if batch.topic_partition.partition == 0:
            raise MemoryError
        complete(sender, batch, response, now_ms)

    monkeypatch.setattr(ProduceSender, "_complete_batch", complete_badly)
    harness.client.answer_produce(request)
    harness.settle()
    assert [future.done() for future in futures] == [False, True]
    assert "could not handle the answer" in caplog.text
    harness.run_for(20_000)
    assert isinstance(futures[0].exception(), KafkaTimeoutError)
    assert memory_taken(harness) == 0


class FailingList(list):
    """A list. Its `append` takes the item, and raises."""

    def append(self, item):
        super().append(item)
        raise MemoryError


def test_a_batch_that_an_exception_keeps_off_the_wire_still_expires():
    harness = idempotent(delivery_timeout_ms=20_000, request_timeout_ms=20_000)
    future = harness.send()
    sender = harness.core._sender._producing
    sender._in_flight[TP0] = FailingList()
    with pytest.raises(MemoryError):
        harness.settle()
    harness.run_for(20_000)
    assert isinstance(future.exception(0), KafkaTimeoutError)


def test_an_expiry_that_an_exception_ends_is_made_good_by_the_next_step(monkeypatch):
    harness = idempotent(delivery_timeout_ms=20_000, request_timeout_ms=20_000)
    futures = [harness.send(partition=partition) for partition in (0, 1)]
    harness.settle()
    with monkeypatch.context() as patch:
        patch.setattr(ProduceSender, "fail_batch", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            harness.run_for(20_000)
    assert not any(future.done() for future in futures)
    harness.settle()
    assert all(isinstance(future.exception(0), KafkaTimeoutError) for future in futures)
