"""The queues of waiting batches: one per partition, grouped by topic.

Owns: `PartitionQueue`, `TopicQueues`. Must not know: memory, metadata, the sender, sequences'
meaning beyond their order. The accumulator keeps the accounts; here is only the data and the order
within one queue.

Rules:
* Only the last batch of a queue may be open, and only if `open_batch` says so.
* Numbered batches come first, in sequence order. Batches without a number follow, in append order.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from txnproducer._core.batches.partitioner import BuiltInPartitioner
from txnproducer._core.batches.producer_batch import ProducerBatch
from txnproducer.records import TopicPartition

_HALF_OF_SEQUENCES: Final = 1 << 30
_SEQUENCE_MASK: Final = 0x7FFFFFFF

# Ratios differ little between neighbouring batches. A worse one is believed fast and a better one
# slowly, since a batch that becomes too large costs a split. Both are Java's constants.
_RATIO_IMPROVING_STEP: Final = 0.005
_RATIO_DETERIORATE_STEP: Final = 0.05
# After a batch was refused as too large, the estimated ratio is never better than uncompressed.
_LEAST_RATIO_AFTER_REFUSAL: Final = 1.0


def is_before(sequence: int, other: int) -> bool:
    """Return whether a sequence number comes before another, also across the wrap at 2^31."""
    # "Before" means the shorter way around the circle of numbers. Its half is far more than the
    # five batches of a partition that can be in flight.
    return 0 < ((other - sequence) & _SEQUENCE_MASK) < _HALF_OF_SEQUENCES


class PartitionQueue:
    """The batches waiting for one partition.

    Attributes:
        open_batch: takes the next record if it has room; None when a new batch is due. It is of
            the present transaction, since none ends before all its batches have.
        is_muted: whether a batch is on the wire and order forbids another (one in flight only).
    """

    __slots__ = ("batches", "is_muted", "open_batch", "topic_partition")

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.batches: deque[ProducerBatch] = deque()
        self.open_batch: ProducerBatch | None = None
        self.is_muted = False

    def add_new(self, batch: ProducerBatch) -> None:
        """Append a new batch to the queue. It takes the next records."""
        self.batches.append(batch)
        self.open_batch = batch

    def close_open_batch(self) -> None:
        """Let the next record begin a new batch."""
        self.open_batch = None

    def clear(self) -> None:
        """Drop all batches. Their ends are the caller's."""
        self.batches.clear()
        self.open_batch = None

    def mute(self) -> None:
        """Keep the batches back while one of them is on the wire."""
        self.is_muted = True

    def unmute(self) -> None:
        """Let the batches go again."""
        self.is_muted = False

    def pop_head(self) -> ProducerBatch:
        """Take the head out of the queue."""
        batch = self.batches.popleft()
        # Linger can end before the batch is full. A record that comes later must not enter it,
        # since its bytes are made next.
        if batch is self.open_batch:
            self.open_batch = None
        return batch

    def push_front(self, batch: ProducerBatch) -> None:
        """Put a batch in front of all others."""
        self.batches.appendleft(batch)

    def insert_in_sequence_order(self, batch: ProducerBatch) -> None:
        """Insert a numbered batch by its sequence number."""
        # Always in front would give 1, 0 if the answers to 0 and 1 come in that order.
        position = 0
        for other in self.batches:
            if not other.has_sequence or not is_before(other.base_sequence, batch.base_sequence):
                break
            position += 1
        # `open_batch` stays as it is: an open batch has no number, so it is still the last one.
        self.batches.insert(position, batch)

    def remove(self, batch: ProducerBatch) -> None:
        """Take a waiting batch out, wherever it stands."""
        # A record must not enter a batch that fails now.
        if batch is self.open_batch:
            self.open_batch = None
        self.batches.remove(batch)


class TopicQueues:
    """The queues of one topic, its sticky choice, its learnt compression ratio.

    Attributes:
        partition_count: by the last metadata; 0 while they do not know the topic.
        sticky_queue: where records without key and partition go now.
        sticky_batch: the batch of that queue whose bytes are not counted yet.
        sticky_start_bytes: its size when the counting began.
    """

    __slots__ = (
        "compression_ratio",
        "partition_count",
        "partitioner",
        "queues",
        "sticky_batch",
        "sticky_queue",
        "sticky_start_bytes",
        "topic",
    )

    def __init__(self, topic: str, partitioner: BuiltInPartitioner) -> None:
        self.topic = topic
        self.partitioner = partitioner
        self.queues: dict[int, PartitionQueue] = {}
        self.partition_count = 0
        self.compression_ratio = 1.0
        self.sticky_queue: PartitionQueue | None = None
        self.sticky_batch: ProducerBatch | None = None
        self.sticky_start_bytes = 0

    def queue(self, partition: int) -> PartitionQueue:
        """Return the queue of a partition, a new one if there is none yet."""
        queue = self.queues.get(partition)
        if queue is None:
            queue = self.queues[partition] = PartitionQueue(TopicPartition(self.topic, partition))
        return queue

    def set_partition_count(self, count: int) -> None:
        """Take in the count of the latest metadata."""
        self.partition_count = count

    def learn_compression_ratio(self, observed: float) -> None:
        """Take in the ratio that a finished batch reached."""
        known = self.compression_ratio
        if observed > known:
            self.compression_ratio = max(known + _RATIO_DETERIORATE_STEP, observed)
        elif observed < known:
            self.compression_ratio = max(known - _RATIO_IMPROVING_STEP, observed)

    def learn_refused_ratio(self, observed: float) -> None:
        """Take in the ratio of a batch that the broker found too large."""
        # With the ratio that was too good, the next batches would be too large as well
        # (KAFKA-3995).
        self.compression_ratio = max(_LEAST_RATIO_AFTER_REFUSAL, observed)

    # --- the sticky choice -----------------------------------------------------------------------

    def stick_to(self, queue: PartitionQueue) -> None:
        """Let records without key and partition go to this queue from now on."""
        self.sticky_queue = queue
        # The bytes of an open batch were counted for an earlier choice, or came with a key.
        batch = self.sticky_batch = queue.open_batch
        self.sticky_start_bytes = 0 if batch is None else batch.estimated_size_bytes

    def note_sticky_batch(self) -> None:
        """Count the sticky queue's new batch from its beginning."""
        if self.sticky_batch is None and self.sticky_queue is not None:
            self.sticky_batch = self.sticky_queue.open_batch
            self.sticky_start_bytes = 0

    def count_sticky_bytes(self) -> int:
        """Return how much went to the sticky queue since this was last asked, batch by batch.

        Counting once per batch instead of once per record leaves the rule of KIP-794 as it is: a
        switch is only made where a batch ends, and one batch holds no more than the sticky size.
        """
        batch, queue = self.sticky_batch, self.sticky_queue
        counted = 0 if batch is None else batch.estimated_size_bytes - self.sticky_start_bytes
        last_batch = None if queue is None else queue.open_batch
        # If it is below zero, rows that were counted already have not been appended yet.
        if counted >= 0 or last_batch is not batch:
            self.sticky_batch = last_batch
            size_bytes = 0 if last_batch is None else last_batch.estimated_size_bytes
            self.sticky_start_bytes = size_bytes
        return max(0, counted)

    def note_placed_bytes(self, size_bytes: int) -> None:
        """Count rows that the sticky queue will get. In their batch they count no more."""
        self.partitioner.count(size_bytes)
        self.sticky_start_bytes += size_bytes
