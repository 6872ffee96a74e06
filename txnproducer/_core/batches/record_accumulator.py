"""The records that wait: batches per partition, under a bound of memory.

Owns: the queues, the set of incomplete batches, the memory they take, the callbacks that became
due, the flushes under way. Must not know: connections, requests, transactions. It never waits: an
append without memory gets a ticket, and the shell asks again.

Rules:
* A batch leaves the set of incomplete batches exactly once, after its callbacks ran; a commit
  waits for it.
* Its memory goes back exactly once: at its end, or, if it ends while it is on the wire, when the
  answer comes.
* With a codec an open batch holds more bytes than it will have on the wire. The bytes that it
  holds are counted: it takes memory a batch's size at a time, and gives back the saved bytes when
  it is compressed.
* The work per record is one `RecordBatchBuilder.append`; all other work here is done per batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from txnproducer._core.batches.buffer_pool import BufferPool, MemoryTicket
from txnproducer._core.batches.full_batches import FullBatches
from txnproducer._core.batches.partition_queues import PartitionQueue, TopicQueues
from txnproducer._core.batches.partitioner import BuiltInPartitioner, QueueLengths
from txnproducer._core.batches.producer_batch import ProducerBatch, place_in_line
from txnproducer._core.batches.results import (
    CallbackBatch,
    DeliveryCallback,
    FlushTicket,
    FutureRecordMetadata,
)
from txnproducer._core.failed_tries import Refusal
from txnproducer._core.metadata import NEVER_MS, TopicSnapshot
from txnproducer._core.ports import Waiter
from txnproducer._protocol.backoff import ExponentialBackoff
from txnproducer._protocol.rng import Rng
from txnproducer._record.batch_builder import RecordBatchBuilder
from txnproducer._record.format import Header
from txnproducer._record.implementation import RecordBuffer
from txnproducer.errors import IllegalStateError, KafkaError
from txnproducer.records import TopicPartition


@dataclass(frozen=True, slots=True)
class AccumulatorOptions:
    """The settings of the accumulator, with names and units as in `ProducerConfig`."""

    batch_size: int
    buffer_memory: int
    max_request_size: int
    compression_type: str
    compression_level: int | None
    compression_lz4_block_bytes: int
    linger_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    delivery_timeout_ms: int
    is_adaptive_partitioning: bool
    partition_availability_timeout_ms: int
    is_idempotent: bool


class RecordAccumulator:
    """Collect records into batches.

    Args:
        options: the settings.
        waiter: the means by which the records' futures wait.
        rng: for the partitioner and the jitter of retries.

    Attributes:
        active: the queues that are not empty, least recently served first.
        callbacks: batches of delivery callbacks that the shell has not taken yet.
        full_batches: those to be compressed that have no room for more.
        busy_nodes: brokers that had data ready and took none in the sender's last step, since
            they owe answers; one of these wakes the sender.
    """

    def __init__(self, options: AccumulatorOptions, waiter: Waiter, rng: Rng) -> None:
        self.options = options
        self.pool = BufferPool(options.buffer_memory)
        self.topics: dict[str, TopicQueues] = {}
        self.active: dict[TopicPartition, PartitionQueue] = {}
        self.callbacks: list[CallbackBatch] = []
        self.full_batches = FullBatches(options.compression_type)
        self.busy_nodes: set[int] = set()
        self.is_closed = False
        self._waiter = waiter
        self._rng = rng
        self.is_compressing = options.compression_type != "none"
        self._batch_size = max(1, options.batch_size)
        # The least of all limits: a record that fits after another one needs no other check.
        self._batch_limit = min(self._batch_size, options.max_request_size, options.buffer_memory)
        self._retry_backoff = ExponentialBackoff(
            options.retry_backoff_ms, options.retry_backoff_max_ms, rng
        )
        # A dict serves as a set that keeps the order of the appends.
        self._incomplete: dict[ProducerBatch, None] = {}
        self._flushes: list[FlushTicket] = []
        self._node_latency: dict[int, tuple[int, int]] = {}  # node -> last ready, last drained

    # --- append ---------------------------------------------------------------------------------

    def topic_queues(self, topic: str) -> TopicQueues:
        """Return the queues of a topic."""
        queues = self.topics.get(topic)
        if queues is None:
            partitioner = BuiltInPartitioner(self._batch_size, self._rng)
            queues = self.topics[topic] = TopicQueues(topic, partitioner)
        return queues

    def append(
        self,
        topic_queues: TopicQueues,
        queue: PartitionQueue,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[Header, ...],
        on_delivery: DeliveryCallback | None,
        now_ms: int,
        size_bytes: int,
        ticket: MemoryTicket | None = None,
    ) -> FutureRecordMetadata | MemoryTicket:
        """Append a record to a partition's last batch, or to a new one.

        Args:
            topic_queues: of the record's topic.
            queue: of its partition, one of `topic_queues`.
            timestamp_ms: of the record.
            key: bytes or None.
            value: bytes or None.
            headers: pairs of a name and bytes or None.
            on_delivery: called when the record has ended.
            now_ms: the clock that linger and the delivery time-out count by.
            size_bytes: the largest size of a batch with only this record.
            ticket: from an earlier call for the same record.

        Returns:
            The record's future, or a ticket: then there was no memory, and nothing was appended.
        """
        future = self.append_to_open_batch(
            queue, timestamp_ms, key, value, headers, on_delivery, ticket
        )
        if future is not None:
            self.give_up(ticket)
            return future
        # `batch_size` may be above `buffer_memory`. A record may not: the appender refuses it.
        memory_bytes = min(max(self._batch_size, size_bytes), self.pool.total_bytes)
        # Made before its memory is taken: if this fails, no memory is lost.
        batch = self._new_batch(topic_queues, queue.topic_partition, now_ms, memory_bytes)
        ticket = self.pool.allocate(memory_bytes, ticket)
        if ticket is not None:
            return ticket
        try:
            future = batch.try_append(timestamp_ms, key, value, headers, on_delivery)
            if future is None:
                raise IllegalStateError("an empty batch refused a record")
            self._add_new(queue, batch)
        except BaseException:
            # Ctrl-C as well: a batch is in its queue and in the accounts, or in neither.
            if batch not in queue.batches:
                self._drop_new(queue, batch)
            raise
        return future

    @property
    def has_memory_for_batch(self) -> bool:
        """Whether memory for a batch is free, and no caller waits for any."""
        pool = self.pool
        return not pool.waiting and pool.available_bytes >= min(self._batch_size, pool.total_bytes)

    def begin_batch(
        self,
        topic_queues: TopicQueues,
        queue: PartitionQueue,
        now_ms: int,
        fill: Callable[[RecordBuffer], int],
    ) -> ProducerBatch | None:
        """Begin a partition's next batch with as many records as it takes.

        Args:
            topic_queues: of the records' topic.
            queue: of their partition. Its last batch takes no more records.
            now_ms: the clock that linger and the delivery time-out count by.
            fill: appends the records.

        Returns:
            The batch; None if the first record is larger than a batch, or if there is no memory
            (see `has_memory_for_batch`): `append` deals with that. Then nothing was appended.
        """
        memory_bytes = min(self._batch_size, self.pool.total_bytes)
        batch = self._new_batch(topic_queues, queue.topic_partition, now_ms, memory_bytes)
        fill(batch.builder.records_buffer)
        # An empty batch takes any record, also one that is larger than the limits.
        if batch.builder.size_bytes > self._batch_limit:
            return None
        if not self.pool.allocate_more(memory_bytes, None):
            return None
        try:
            self._add_new(queue, batch)
        except BaseException:
            if batch not in queue.batches:
                self._drop_new(queue, batch)
            raise
        return batch

    def _add_new(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        # The queue last: by it the callers see whether all three were done.
        self._incomplete[batch] = None
        self.active[queue.topic_partition] = queue
        queue.add_new(batch)

    def _drop_new(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        self._incomplete.pop(batch, None)
        if not queue.batches:
            self.active.pop(queue.topic_partition, None)
        self.deallocate(batch)

    def append_to_open_batch(
        self,
        queue: PartitionQueue,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[Header, ...],
        on_delivery: DeliveryCallback | None,
        ticket: MemoryTicket | None,
    ) -> FutureRecordMetadata | None:
        """Append a record to a partition's last batch, if that is open and has room.

        Returns:
            The record's future; or None: then the next record begins a new batch.
        """
        batch = queue.open_batch
        if batch is None:
            return None
        future = batch.try_append(timestamp_ms, key, value, headers, on_delivery)
        if future is not None:
            return future
        if self.is_compressing:
            # A batch may have room on the wire and none in memory.
            missing_bytes = batch.builder.missing_memory_bytes(
                self._batch_size, timestamp_ms, key, value, headers
            )
            if missing_bytes and self.pool.allocate_more(missing_bytes, ticket):
                batch.grow(missing_bytes)
                return batch.try_append(timestamp_ms, key, value, headers, on_delivery)
        # It is full, or cannot grow. To wait for memory here could hang: perhaps only the end of
        # this very batch frees some.
        queue.close_open_batch()
        # The loop compresses it ahead, without the lock.
        if self.is_compressing:
            self.full_batches.add(batch)
        return None

    def settle_compressed(self) -> None:
        """Free the uncompressed bytes of batches that were compressed meanwhile."""
        for batch in self.full_batches.settle():
            # At once, or all batches that wait for a slow broker would be held twice.
            self._give_back_saved(batch)

    def give_up(self, ticket: MemoryTicket | None) -> None:
        """Leave the queue for memory."""
        if ticket is not None:
            self.pool.give_up(ticket)

    def _new_batch(
        self, topic_queues: TopicQueues, place: TopicPartition, now_ms: int, memory_bytes: int
    ) -> ProducerBatch:
        builder = self._new_builder(topic_queues, self._batch_limit)
        builder.set_memory(memory_bytes)
        return ProducerBatch(place, builder, now_ms, self._waiter, memory_bytes)

    def _new_builder(self, topic_queues: TopicQueues, size_limit_bytes: int) -> RecordBatchBuilder:
        options = self.options
        builder = RecordBatchBuilder(
            size_limit_bytes,
            options.compression_type,
            options.compression_level,
            options.compression_lz4_block_bytes,
        )
        # By the ratio of earlier batches: at 1.0 it would be closed long before it is full.
        if self.is_compressing:
            builder.compression_ratio = topic_queues.compression_ratio
        return builder

    def sticky_queue(
        self, topic_queues: TopicQueues, snapshot: TopicSnapshot, *, is_last_filled: bool = False
    ) -> PartitionQueue:
        """Return the queue for a record without key and partition, perhaps a new one.

        Args:
            topic_queues: of the topic.
            snapshot: its partitions.
            is_last_filled: whether its last batch is filled by rows that are not appended yet.
        """
        partitioner = topic_queues.partitioner
        queue = topic_queues.sticky_queue
        counted_bytes = topic_queues.count_sticky_bytes()
        # A topic that was made again may have fewer partitions.
        if queue is not None and queue.topic_partition.partition < snapshot.partition_count:
            batch = queue.open_batch
            is_last_full = is_last_filled or batch is None or batch.is_full
            if not partitioner.update(counted_bytes, is_last_full):
                return queue
        look = partial(self._queue_lengths, topic_queues, snapshot)
        partition = partitioner.switch(snapshot.partition_count, snapshot.available, look)
        queue = topic_queues.queue(partition)
        topic_queues.stick_to(queue)
        return queue

    def _queue_lengths(self, topic_queues: TopicQueues, snapshot: TopicSnapshot) -> QueueLengths:
        """Return the lengths for the adaptive choice, or None if an even choice is as good."""
        count = snapshot.partition_count
        if not self.options.is_adaptive_partitioning or count < 2:
            return None
        # As in Java, the choice is even until each partition has had a batch.
        if len(topic_queues.queues) < count:
            return None
        lengths = [
            (partition, len(topic_queues.queue(partition).batches))
            for partition in snapshot.available
            if not self._is_node_slow(snapshot.leader_ids[partition])
        ]
        # Equal lengths weigh the same, and an even draw costs less.
        if len(lengths) == count and len({length for _, length in lengths}) == 1:
            return None
        # If no partition has a leader that keeps up, an even choice is as good.
        return lengths or None

    def _is_node_slow(self, node_id: int) -> bool:
        timeout_ms = self.options.partition_availability_timeout_ms
        # 0 turns the check off, and is the default (KIP-794).
        if timeout_ms <= 0 or node_id not in self._node_latency:
            return False
        ready_ms, drained_ms = self._node_latency[node_id]
        return ready_ms - drained_ms > timeout_ms

    def update_node_latency(self, node_id: int, now_ms: int, can_drain: bool) -> None:
        """Note that there is data for a node, and whether the node could take it."""
        if self.options.partition_availability_timeout_ms > 0:
            _, drained_ms = self._node_latency.get(node_id, (now_ms, now_ms))
            # A node is slow by the difference of the two times, so the first moves on if nothing
            # is taken.
            self._node_latency[node_id] = (now_ms, now_ms if can_drain else drained_ms)

    # --- taking out and putting back -------------------------------------------------------------

    def take_head(self, queue: PartitionQueue) -> ProducerBatch:
        """Take out a queue's head to send it. The queue is then served last."""
        # Deleted and inserted again, which puts it at the end of the dict.
        batch = queue.pop_head()
        del self.active[queue.topic_partition]
        if queue.batches:
            self.active[queue.topic_partition] = queue
        return batch

    def close_batch(self, batch: ProducerBatch) -> None:
        """Close a batch for appends, compress it, and learn its topic's compression ratio."""
        if batch.is_closed:
            return
        batch.builder.close()
        if self.is_compressing:
            queues = self.topic_queues(batch.topic_partition.topic)
            queues.learn_compression_ratio(batch.builder.actual_compression_ratio)
            self._give_back_saved(batch)

    def _give_back_saved(self, batch: ProducerBatch) -> None:
        """Reduce a compressed batch's memory to that of a batch without a codec."""
        kept_bytes = max(self._batch_size, batch.estimated_size_bytes)
        saved_bytes = batch.shrink_to(kept_bytes)
        if saved_bytes:
            self.pool.deallocate(saved_bytes)

    def reenqueue(self, batch: ProducerBatch, now_ms: int) -> None:
        """Put a batch back for another attempt, in sequence order.

        Raises:
            IllegalStateError: an idempotent producer's batch was never numbered, so never sent.
        """
        # Batches that come back together share a request again. (Java draws for each of them.)
        batch.reenqueued(now_ms, self._retry_backoff.draw_together_ms(batch.attempts, now_ms))
        self._put_back(batch)

    def _put_back(self, batch: ProducerBatch) -> None:
        place = batch.topic_partition
        queue = self.topic_queues(place.topic).queue(place.partition)
        # Without numbers the broker cannot refuse a batch that comes out of order.
        if not self.options.is_idempotent:
            queue.push_front(batch)
        elif batch.has_sequence:
            queue.insert_in_sequence_order(batch)
        else:
            raise IllegalStateError(f"{batch} goes back to its queue without a sequence")
        # A queue that is in line keeps its turn, so that retries do not put it last each time.
        self.active.setdefault(place, queue)

    def split_and_reenqueue(self, batch: ProducerBatch) -> list[ProducerBatch]:
        """Split a batch that was refused as too large, and queue the parts in its place.

        Returns:
            The parts in order; the caller tracks those that are numbered as in flight.
        """
        queues = self.topic_queues(batch.topic_partition.topic)
        queues.learn_refused_ratio(batch.builder.actual_compression_ratio)
        target_bytes = self._batch_limit
        # A part that is still too large shows that the topic's limit is below `batch_size`.
        if batch.is_split:
            target_bytes = batch.estimated_size_bytes // 2
        parts = batch.split(target_bytes, lambda limit: self._new_builder(queues, limit))
        # Backwards, since without numbers each one is put in front of the queue.
        for part in reversed(parts):
            self._incomplete[part] = None
            self._put_back(part)
        return list(parts)

    def expired_batches(self, now_ms: int) -> tuple[list[ProducerBatch], int]:
        """Take out the waiting batches that have reached their delivery time-out.

        Returns:
            These batches, and when the next one reaches it.
        """
        timeout_ms = self.options.delivery_timeout_ms
        expired: list[ProducerBatch] = []
        next_expiry_ms = NEVER_MS
        for place, queue in list(self.active.items()):
            for batch in list(queue.batches):
                if batch.has_reached_delivery_timeout(timeout_ms, now_ms):
                    queue.remove(batch)
                    expired.append(batch)
                    continue
                next_expiry_ms = min(next_expiry_ms, batch.created_ms + timeout_ms)
                # With numbers, no batch in a queue is older than the one before it. Without them
                # a retry goes to the front, and may be younger than those behind it.
                if self.options.is_idempotent:
                    break
            if not queue.batches:
                del self.active[place]
        return expired, next_expiry_ms

    def take_out(
        self, topic_partition: TopicPartition, is_wanted: Callable[[ProducerBatch], bool]
    ) -> list[ProducerBatch]:
        """Take out some of a partition's waiting batches."""
        queue = self.active.get(topic_partition)
        if queue is None:
            return []
        taken = [batch for batch in queue.batches if is_wanted(batch)]
        for batch in taken:
            queue.remove(batch)
        # The drain looks at the head of each active queue, so none of them may be empty.
        if not queue.batches:
            del self.active[topic_partition]
        return taken

    def mute_partition(self, topic_partition: TopicPartition) -> None:
        """Keep a partition's batches back until it is unmuted."""
        self.topic_queues(topic_partition.topic).queue(topic_partition.partition).mute()

    def unmute_partition(self, topic_partition: TopicPartition) -> None:
        """Let a partition's batches go again."""
        self.topic_queues(topic_partition.topic).queue(topic_partition.partition).unmute()

    # --- the end of a batch ----------------------------------------------------------------------

    @property
    def has_incomplete(self) -> bool:
        """Whether any batch has not ended yet, or its callbacks have not run."""
        return bool(self._incomplete)

    def refusals(self, now_ms: int) -> list[Refusal]:
        """Return the last refusal of each batch that was refused and has not ended."""
        refused = [(each, each.refusal) for each in self._incomplete if each.refusal is not None]
        # While a batch waits, its last answer holds, as for a topic that is gone.
        return [r if each.is_in_flight else r._replace(at_ms=now_ms) for each, r in refused]

    @property
    def has_undrained(self) -> bool:
        """Whether any batch waits in a queue."""
        return bool(self.active)

    def complete_batch(self, batch: ProducerBatch) -> None:
        """Let a batch that has ended go, once its callbacks ran."""
        callbacks = batch.take_callbacks(lambda: self._finish(batch))
        if callbacks is None:
            self._finish(batch)
        else:
            self.callbacks.append(callbacks)

    def take_callbacks(self) -> tuple[CallbackBatch, ...]:
        """Return the callbacks that became due, once."""
        callbacks = tuple(self.callbacks)
        # Asked in every step, which mostly finds none: a new list each time would be waste.
        if callbacks:
            self.callbacks = []
        return callbacks

    def forget_split_batch(self, batch: ProducerBatch) -> None:
        """Let a batch go whose records have moved into its parts."""
        del self._incomplete[batch]
        self.deallocate(batch)

    def _finish(self, batch: ProducerBatch) -> None:
        if batch not in self._incomplete:
            raise IllegalStateError(f"{batch} was completed twice")
        # Before `done`, so that a caller who has seen the end finds nothing incomplete.
        del self._incomplete[batch]
        batch.result.done()

    def deallocate(self, batch: ProducerBatch) -> None:
        """Give a batch's memory back, once. The parts of a split have none."""
        freed_bytes = batch.free_memory()
        if freed_bytes:
            self.pool.deallocate(freed_bytes)

    # --- flush, abort, close ---------------------------------------------------------------------

    def begin_flush(self) -> FlushTicket:
        """Make all batches ready to send, until those that are incomplete now have ended."""
        ticket = FlushTicket(batch.result for batch in self._incomplete)
        self._flushes.append(ticket)
        return ticket

    def end_flush(self, ticket: FlushTicket) -> None:
        """Forget a flush that is done, or that no caller waits for any more."""
        if ticket in self._flushes:
            self._flushes.remove(ticket)

    @property
    def is_flush_in_progress(self) -> bool:
        """Whether a flush asks for everything to be sent now."""
        if self._flushes:
            self._flushes = [ticket for ticket in self._flushes if not ticket.is_done()]
        return bool(self._flushes)

    def abort_batches(self, error: KafkaError) -> None:
        """Abort every batch that has not ended, waiting or on the wire."""
        for queue in self.active.values():
            queue.clear()
        self.active.clear()
        # Sorted, since the parts of a split were added after batches that come later.
        for batch in sorted(self._incomplete, key=place_in_line):
            self._abort(batch, error)

    def abort_undrained_batches(self, error: KafkaError) -> None:
        """Abort the batches that were never sent. The broker may have the numbered ones."""
        is_idempotent = self.options.is_idempotent
        # From a copy, since queues that become empty leave the dict on the way.
        for place, queue in list(self.active.items()):
            # Without numbers, a closed batch is one that was sent and is back for another attempt.
            doomed = [
                b for b in queue.batches if not (b.has_sequence if is_idempotent else b.is_closed)
            ]
            for batch in doomed:
                queue.remove(batch)
                self._abort(batch, error)
            if not queue.batches:
                del self.active[place]

    def _abort(self, batch: ProducerBatch, error: KafkaError) -> None:
        if batch.is_done:
            return
        batch.abort(error)
        # The connection may still hold the bytes of a batch on the wire, until the answer comes.
        if not batch.is_in_flight:
            self.deallocate(batch)
        self.complete_batch(batch)

    def close(self) -> None:
        """Refuse further appends, and wake the callers that wait for memory."""
        self.is_closed = True
        # The callers in the queue for memory ask the pool alone.
        self.pool.close()
        # The fast path does not ask whether the producer is closed. Without an open batch it hands
        # the record on to the appender, which does.
        for queue in self.active.values():
            queue.close_open_batch()
