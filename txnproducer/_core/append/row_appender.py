"""Many rows at once into a partition's batches: each batch takes as many as it has room for.

Owns: `RowAppender`, `RowRun`. Must not know: columns, requests. A batch's first row is appended
like any other record, with every check, so that memory, metadata and the transaction are dealt
with in one place. The rest of the batch follows in one call.
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
from txnproducer._record.implementation import Rows
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
    """

    rows: Rows
    order: array[int] | None
    partition: int | None
    transaction: int
    next: int
    stop: int


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
            self._appender.refuse_if_ended(run.transaction)
        if blocked is None and self._appender.can_append_fast:
            queue = self._queue(topic, run.partition)
            batch = None if queue is None else queue.open_batch
            if batch is not None:
                taken = self._fill(run, batch, batch.record_count, 0)
                # A batch that takes no row is full. The slow path then closes it and opens the
                # next one.
                if taken.count:
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
        taken = self._fill(run, batch, batch.record_count - 1, 1)
        # The first row alone would only linger.
        if batch.is_full:
            self._appender.wake_sender_for(queue)
        return taken

    def _queue(self, topic: str, partition: int | None) -> PartitionQueue | None:
        queues = self._topics.get(topic)
        if queues is None:
            return None
        return queues.sticky_queue if partition is None else queues.queues.get(partition)

    def _fill(
        self, run: RowRun, batch: ProducerBatch, first_index: int, taken_before: int
    ) -> RowsTaken:
        """Append as many rows as the batch has room for, and move the run on."""
        # The first row counts in what is returned, so its start and its index go one back.
        start = run.next - taken_before
        buffer = batch.builder.records_buffer
        run.next += run.rows.append_to(buffer, run.order, run.next, run.stop)
        return RowsTaken(batch.result, first_index, start, run.next - start)
