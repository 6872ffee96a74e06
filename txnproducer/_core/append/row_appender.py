"""Many rows at once into a partition's batches: each batch takes as many as it has room for.

Owns: `RowAppender`, `RowRun`. Must not know: columns, requests. Most batches are begun and filled
in one go. If a batch's first row needs more than that (it waits for metadata or memory, has a
codec, is larger than a batch, or is refused), it is appended like any other record, with every
check, and the rest of the batch follows in one call.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from txnproducer._core.append.appender import Appender
from txnproducer._core.batches.append_blocked import AppendBlocked
from txnproducer._core.batches.batch_future import RowsTaken
from txnproducer._core.batches.partition_queues import PartitionQueue
from txnproducer._core.batches.producer_batch import ProducerBatch
from txnproducer._core.batches.record_accumulator import RecordAccumulator
from txnproducer._core.batches.results import FutureRecordMetadata
from txnproducer._core.metadata import Metadata
from txnproducer._record.implementation import RecordBuffer, Rows
from txnproducer.errors import IllegalStateError


@dataclass(slots=True)
class RowRun:
    """Rows for one partition, and the progress of sending them.

    Attributes:
        rows: the records to be.
        order: of all rows; None if they lie one after the other.
        partition: which one; None lets load decide (these rows have no key, or none that counts).
        transaction: the appender's `transaction_number` when they came.
        next: the place in the order that is sent next.
        stop: the place after the last one.
        full_batch: the last batch, if it had no room for the next row.
        has_large_rows: whether one of the rows was larger than a batch.
    """

    rows: Rows
    order: array[int] | None
    partition: int | None
    transaction: int
    next: int
    stop: int
    full_batch: ProducerBatch | None = None
    has_large_rows: bool = False

    def append_to(self, buffer: RecordBuffer) -> int:
        """Append as many of the rows that are left as a buffer takes. Return how many it took."""
        return self.rows.append_to(buffer, self.order, self.next, self.stop)

    def move_on(self, batch: ProducerBatch, count: int) -> None:
        """Note how many of the rows a batch took."""
        self.next += count
        self.full_batch = None if self.next == self.stop else batch

    def meets_large_row(self) -> None:
        """Note that the next row is larger than a batch. Others may be, too."""
        self.has_large_rows = True


class RowAppender:
    """Append rows.

    Args:
        appender: takes single records.
        metadata: knows the topics.
        accumulator: keeps the records.
    """

    def __init__(
        self, appender: Appender, metadata: Metadata, accumulator: RecordAccumulator
    ) -> None:
        self._appender = appender
        self._metadata = metadata
        self._accumulator = accumulator
        self._topics = accumulator.topics

    def append(
        self, topic: str, run: RowRun, now_ms: int, blocked: AppendBlocked | None = None
    ) -> RowsTaken | AppendBlocked | FutureRecordMetadata:
        """Append as many of a run's rows as one batch takes.

        Args:
            topic: where to.
            run: is moved on by the rows that were taken.
            now_ms: the core's clock.
            blocked: the result of an earlier call for the same run.

        Returns:
            The rows that were taken, at least one; or the condition to wait for, and then none
            was; or the future of the next row, which has failed, and the transaction with it.

        Raises:
            IllegalStateError: no transaction is open, or the producer is closed; nothing was
                taken, unless the run has moved on.
            TransactionAbortedError: their transaction has ended meanwhile.
            KafkaError: the transaction or the producer has failed before.
        """
        # Rows of one call may span batches, and another thread may end the transaction in between.
        # The appender makes this check itself for a run that was blocked.
        if blocked is None:
            self._appender.refuse_if_ended(run.transaction)
            if self._appender.can_append_fast:
                taken = self._append_fast(topic, run, now_ms)
                if taken is not None:
                    return taken
        row = run.next if run.order is None else run.order[run.next]
        timestamp_ms, key, value, headers = run.rows.record(row)
        outcome = self._appender.append_any(
            topic, value, key, headers, run.partition, timestamp_ms, None, now_ms, blocked
        )
        if isinstance(outcome, AppendBlocked) or outcome.error is not None:
            return outcome
        # The first row is in: it counts as taken even if an exception comes below.
        run.next += 1
        queue = self._queue(topic, run.partition)
        batch = None if queue is None else queue.open_batch
        if queue is None or batch is None:
            raise IllegalStateError(f"a record of {topic!r} was taken by no batch")
        # The first row counts in what is returned, so its start and its index go one back.
        start, first_index = run.next - 1, batch.record_count - 1
        self._fill(run, batch)
        # The first row alone would only linger.
        if batch.is_full:
            self._appender.wake_sender_for(queue)
        return RowsTaken(batch.result, first_index, start, run.next - start)

    def _append_fast(self, topic: str, run: RowRun, now_ms: int) -> RowsTaken | None:
        """Append the rows of one batch, unless the first of them needs every check."""
        queue = self._queue(topic, run.partition)
        taken = None if queue is None else self._append_to_open_batch(run, queue)
        # With a codec a batch without room may get more memory.
        if taken is not None or self._accumulator.is_compressing:
            return taken
        # Such rows take the long way in any case, and a new batch would be filled for nothing.
        if run.has_large_rows or not self._accumulator.has_memory_for_batch:
            return None
        queue = self._next_queue(topic, run.partition, now_ms)
        if queue is None:
            return None
        # Another partition, which was chosen just now, may have a batch with room.
        taken = self._append_to_open_batch(run, queue)
        return self._begin_batch(topic, run, queue, now_ms) if taken is None else taken

    def _next_queue(self, topic: str, partition: int | None, now_ms: int) -> PartitionQueue | None:
        """Return the queue of the next batch. None if the first row has to wait, or fails.

        Raises:
            IllegalStateError, KafkaError: as `append` does.
        """
        appender, accumulator = self._appender, self._accumulator
        appender.finish_interrupted_call()
        snapshot = self._metadata.topics.get(topic)
        if snapshot is None or accumulator.is_closed:
            return None
        # Also for rows that may go anywhere: a topic may have no partition yet.
        if (0 if partition is None else partition) >= snapshot.partition_count:
            return None
        if appender.transaction_manager is not None:
            appender.transaction_manager.check_can_append()
        self._metadata.add_topic(topic, now_ms)
        queues = accumulator.topic_queues(topic)
        queues.set_partition_count(snapshot.partition_count)
        if partition is not None:
            return queues.queue(partition)
        if queues.sticky_queue is not None:
            # Its batch has no room.
            queues.sticky_queue.close_open_batch()
        return accumulator.sticky_queue(queues, snapshot)

    def _begin_batch(
        self, topic: str, run: RowRun, queue: PartitionQueue, now_ms: int
    ) -> RowsTaken | None:
        """Begin a batch with rows. None if the first one is larger than a batch."""
        appender = self._appender
        queues = self._accumulator.topic_queues(topic)
        # Before the append, as for a single record.
        appender.begins_in(queue)
        batch = self._accumulator.begin_batch(queues, queue, now_ms, run.append_to)
        if batch is None:
            appender.begins_in(None)
            run.meets_large_row()
            return None
        if run.partition is None:
            queues.note_sticky_batch()
        appender.join_transaction(queue)
        appender.wake_sender_for(queue)
        start = run.next
        run.move_on(batch, batch.record_count)
        return RowsTaken(batch.result, 0, start, run.next - start)

    def _append_to_open_batch(self, run: RowRun, queue: PartitionQueue) -> RowsTaken | None:
        batch = queue.open_batch
        if batch is None or batch is run.full_batch:
            return None
        start, first_index = run.next, batch.record_count
        self._fill(run, batch)
        count = run.next - start
        # The first row alone would only linger.
        if count and batch.is_full:
            self._appender.wake_sender_for(queue)
        return RowsTaken(batch.result, first_index, start, count) if count else None

    def _queue(self, topic: str, partition: int | None) -> PartitionQueue | None:
        queues = self._topics.get(topic)
        if queues is None:
            return None
        return queues.sticky_queue if partition is None else queues.queues.get(partition)

    def _fill(self, run: RowRun, batch: ProducerBatch) -> None:
        """Append as many rows as the batch has room for, and move the run on."""
        run.move_on(batch, run.append_to(batch.builder.records_buffer))
