"""Many rows at once into a partition's batches: each batch takes as many as it has room for.

Owns: `RowAppender`, `RowRun`. Must not know: columns, requests. Most batches are begun and filled in
one go. If a batch's first row needs more than that (metadata, memory, a codec, a refusal), it is
appended like any other record, with every check, and the rest of the batch follows in one call.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from txnproducer._core.append.appender import Appender
from txnproducer._core.batches.append_blocked import AppendBlocked
from txnproducer._core.batches.batch_future import RowsTaken
from txnproducer._core.batches.partition_queues import PartitionQueue, TopicQueues
from txnproducer._core.batches.producer_batch import ProducerBatch
from txnproducer._core.batches.results import FutureRecordMetadata
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
    """

    rows: Rows
    order: array[int] | None
    partition: int | None
    transaction: int
    next: int
    stop: int
    full_batch: ProducerBatch | None = None

    def append_to(self, buffer: RecordBuffer) -> int:
        """Append as many of the rows that are left as a buffer takes. Return how many it took."""
        return self.rows.append_to(buffer, self.order, self.next, self.stop)

    def move_on(self, batch: ProducerBatch, count: int) -> None:
        """Note how many of the rows a batch took."""
        self.next += count
        self.full_batch = None if self.next == self.stop else batch


class RowAppender:
    """Append rows.

    Args:
        appender: takes single records.
        topics: the queues of every topic that has any.
    """

    def __init__(self, appender: Appender, topics: dict[str, TopicQueues]) -> None:
        self._appender = appender
        self._topics = topics

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
            if self._appender.can_append_fast(run.transaction):
                taken = self._append_fast(topic, run, now_ms)
                if taken is not None:
                    return taken
            self._appender.refuse_if_ended(run.transaction)
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
        appender = self._appender
        queue = self._queue(topic, run.partition)
        taken = None if queue is None else self._append_to_open_batch(run, queue)
        # With a codec a batch without room may get more memory.
        if taken is not None or appender.is_compressing:
            return taken
        queue = appender.next_queue(topic, run.partition, now_ms)
        if queue is None:
            return None
        # Another partition, which was chosen just now, may have a batch with room.
        taken = self._append_to_open_batch(run, queue)
        if taken is not None:
            return taken
        batch = appender.begin_batch(topic, run.partition, queue, now_ms, run.append_to)
        if batch is None:
            return None
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
        return RowsTaken(batch.result, first_index, start, count) if count else None

    def _queue(self, topic: str, partition: int | None) -> PartitionQueue | None:
        queues = self._topics.get(topic)
        if queues is None:
            return None
        return queues.sticky_queue if partition is None else queues.queues.get(partition)

    def _fill(self, run: RowRun, batch: ProducerBatch) -> None:
        """Append as many rows as the batch has room for, and move the run on."""
        run.move_on(batch, run.append_to(batch.builder.records_buffer))
