"""Shared parts of the tests of the core's leaves: rng, waiter, metadata, accumulator, batches."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from txnproducer._core.batches.producer_batch import ProducerBatch
from txnproducer._core.batches.record_accumulator import AccumulatorOptions, RecordAccumulator
from txnproducer._core.batches.results import FutureRecordMetadata
from txnproducer._core.metadata import Metadata, TopicSnapshot
from txnproducer._core.ports import DoneCallbacks
from txnproducer._protocol.messages import (
    BrokerNode,
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from txnproducer._record import RecordBatchBuilder, batch_size_upper_bound
from txnproducer.records import TopicPartition

TP0 = TopicPartition("topic", 0)
TP1 = TopicPartition("topic", 1)


class MiddleRng:
    """No jitter: always the middle. `randrange` counts up."""

    def __init__(self) -> None:
        self._next = -1

    def random(self) -> float:
        return 0.5

    def randrange(self, stop: int, /) -> int:
        self._next += 1
        return self._next % stop


class NoWaiting:
    """A `Waiter` that never waits: a condition that does not hold now counts as timed out."""

    def wait_until(self, is_done: Callable[[], bool], timeout_s: float | None) -> bool:
        return is_done()

    def refuse_in_fork(self) -> None: ...

    @property
    def done_callbacks(self) -> DoneCallbacks:
        raise NotImplementedError


def make_batch(
    record_count: int = 1,
    *,
    place: TopicPartition = TP0,
    created_ms: int = 0,
    value: bytes = b"value",
    on_delivery: Any = None,
    limit_bytes: int = 10_000,
) -> tuple[ProducerBatch, list[FutureRecordMetadata]]:
    """Return a batch with some records, and their futures."""
    batch = ProducerBatch(place, RecordBatchBuilder(limit_bytes), created_ms, NoWaiting())
    futures = [
        batch.try_append(100 + n, None, value, (), on_delivery) for n in range(record_count)
    ]
    return batch, [future for future in futures if future is not None]


def make_accumulator(**options: Any) -> RecordAccumulator:
    """Return an accumulator with Java's defaults, scaled down."""
    settings: dict[str, Any] = {
        "batch_size": 1_000,
        "buffer_memory": 10_000,
        "max_request_size": 100_000,
        "compression_type": "none",
        "compression_level": None,
        "compression_lz4_block_bytes": 65_536,
        "linger_ms": 10,
        "retry_backoff_ms": 100,
        "retry_backoff_max_ms": 1_000,
        "delivery_timeout_ms": 3_000,
        "is_adaptive_partitioning": True,
        "partition_availability_timeout_ms": 0,
        "is_idempotent": False,
    }
    rng = options.pop("rng", MiddleRng())
    return RecordAccumulator(AccumulatorOptions(**settings | options), NoWaiting(), rng)


def append(
    accumulator: RecordAccumulator,
    place: TopicPartition = TP0,
    value: Any = b"value",
    *,
    now_ms: int = 0,
    on_delivery: Any = None,
    ticket: Any = None,
) -> Any:
    """Append a record to a partition."""
    queues = accumulator.topic_queues(place.topic)
    queue = queues.queue(place.partition)
    size = batch_size_upper_bound(None, value)
    return accumulator.append(
        queues, queue, 100, None, value, (), on_delivery, now_ms, size, ticket
    )


def answered(accumulator: RecordAccumulator, batch: ProducerBatch) -> None:
    """End a batch well, as the sender does with a good answer."""
    batch.attempt_ended()
    batch.complete(0, -1)
    accumulator.deallocate(batch)
    accumulator.complete_batch(batch)


def head(accumulator: RecordAccumulator, place: TopicPartition = TP0) -> ProducerBatch:
    """Return the first batch of a partition's queue."""
    return accumulator.topic_queues(place.topic).queue(place.partition).batches[0]


def queued(accumulator: RecordAccumulator, place: TopicPartition = TP0) -> list[ProducerBatch]:
    """Return the batches of a partition's queue."""
    return list(accumulator.topic_queues(place.topic).queue(place.partition).batches)


def make_metadata(**settings: Any) -> Metadata:
    """Return metadata that know one bootstrap address."""
    options: dict[str, Any] = {
        "retry_backoff_ms": 100,
        "retry_backoff_max_ms": 1_000,
        "max_age_ms": 300_000,
        "max_idle_ms": 60_000,
        "rng": MiddleRng(),
    }
    return Metadata([BrokerNode(-1, "boot", 9092)], **options | settings)


def topic_metadata(
    topic: str, leaders: list[int], epochs: list[int] | None = None, **fields: Any
) -> TopicMetadata:
    """Return one topic's metadata, with the leaders by partition and -1 for none."""
    numbered = enumerate(zip(leaders, epochs or [0] * len(leaders), strict=True))
    partitions = tuple(PartitionMetadata(p, leader, epoch) for p, (leader, epoch) in numbered)
    return TopicMetadata(topic, partitions, **fields)


def metadata_answer(*topics: TopicMetadata, nodes: tuple[int, ...] = (0, 1)) -> MetadataResponse:
    """Return an answer naming brokers and topics."""
    return MetadataResponse(tuple(BrokerNode(n, f"broker-{n}", 9092) for n in nodes), topics)


def know(metadata: Metadata, *topics: TopicMetadata, now_ms: int = 0) -> None:
    """Want topics and answer for them."""
    for topic in topics:
        metadata.add_topic(topic.topic, now_ms)
    request = metadata.build_request(now_ms)
    metadata.handle_response(request, metadata_answer(*topics), now_ms)


def snapshot(leaders: list[int], topic: str = "topic") -> TopicSnapshot:
    """Return a topic as the partitioner sees it."""
    return TopicSnapshot(topic, None, leaders, [0] * len(leaders))


def seeded(seed: int) -> random.Random:
    """Return reproducible rng."""
    return random.Random(seed)


__all__ = [
    "MetadataRequest",
    "MiddleRng",
    "NoWaiting",
    "TP0",
    "TP1",
    "append",
    "head",
    "know",
    "make_accumulator",
    "make_batch",
    "make_metadata",
    "metadata_answer",
    "queued",
    "seeded",
    "snapshot",
    "topic_metadata",
]
