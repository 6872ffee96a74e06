"""The application's side of a send: from a record to its place in a batch, without waiting.

Owns: the order of the checks, the choice of the partition, the effect of a local failure on the
transaction. Must not know: requests, connections; the sender sends the record.

The order of the checks: the producer is open; the metadata are there; the record is not too large;
the state allows a record. Then the record is appended, and only then its partition joins the
transaction. (Java checks the state after the append, and can leave a batch in the queue that
belongs to no transaction.) A local failure of a kind that a broker could have caused gives a
failed future and makes an open transaction abortable. A caller's mistake raises and changes
nothing.

Most records find an open batch and their partition in the transaction. These pass `fast_append`
alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from txnproducer._core.append.fast_append import FastAppend
from txnproducer._core.batches.append_blocked import (
    AppendBlocked,
    BlockReason,
    metadata_wait,
    missing_partition,
    time_out_error,
)
from txnproducer._core.batches.buffer_pool import MemoryTicket
from txnproducer._core.batches.partition_queues import PartitionQueue, TopicQueues
from txnproducer._core.batches.partitioner import partition_for_key
from txnproducer._core.batches.record_accumulator import RecordAccumulator
from txnproducer._core.batches.results import (
    CallbackBatch,
    DeliveryCallback,
    FutureRecordMetadata,
    failed_future,
)
from txnproducer._core.failed_tries import FailedTries
from txnproducer._core.metadata import NEVER_MS, Metadata, TopicSnapshot, name_error
from txnproducer._core.metrics import Metrics
from txnproducer._core.ports import Waiter
from txnproducer._core.transactions.manager import TransactionManager
from txnproducer._core.transactions.state import TransactionState, TransactionStateMachine
from txnproducer._record import batch_size_upper_bound
from txnproducer._record.format import Header
from txnproducer._record.rows import NO_PARTITION
from txnproducer.errors import (
    InvalidProducerEpochError,
    KafkaError,
    ProducerFencedError,
    RecordTooLargeError,
    TransactionAbortedError,
)

# The settings that limit a record's size, each with the settings to raise.
_WAYS_OUT: Final = {
    "max_request_size": "max_request_size and the topic's max.message.bytes",
    "buffer_memory": "buffer_memory",
}
_WRITABLE_STATES: Final = (
    TransactionState.IN_TRANSACTION,
    TransactionState.COMMITTING_TRANSACTION,
)


@dataclass(frozen=True, slots=True)
class AppendOptions:
    """The settings of appending, with names and units as in `ProducerConfig`."""

    max_request_size: int
    buffer_memory: int
    is_ignoring_keys: bool


class Appender:
    """Take records.

    Args:
        options: the settings.
        metadata: knows the topics.
        accumulator: keeps the records.
        transactions: decides whether records are welcome; None without idempotence.
        metrics: counts failures.
        waiter: for futures that failed at once.

    Attributes:
        append: takes a record, as `append_any` does, by the fast path if it can.
        fast_append: append the records that it is quick with.
        needs_wakeup: set when the sender should look; the shell clears it.
        failed_tries: which addresses can't be reached, and why.
    """

    def __init__(
        self,
        options: AppendOptions,
        metadata: Metadata,
        accumulator: RecordAccumulator,
        transactions: TransactionManager | None,
        metrics: Metrics,
        waiter: Waiter,
    ) -> None:
        self.needs_wakeup = False
        self._next_step_ms = NEVER_MS
        self.transaction_manager = transactions
        # The queue of a record that is being appended, until its partition is in the transaction.
        self._appending_to: PartitionQueue | None = None
        # The place in the queue for memory that an append returned, until its caller has it.
        self._unclaimed: MemoryTicket | None = None
        self._size_limits = [(name, getattr(options, name)) for name in _WAYS_OUT]
        self._metadata = metadata
        self.failed_tries = FailedTries(metadata)
        self._accumulator = accumulator
        self._metrics = metrics
        self._waiter = waiter
        self._is_ignoring_keys = options.is_ignoring_keys
        is_transactional = transactions is not None and transactions.is_transactional
        # Without idempotence records are welcome in any state, and this one never changes.
        self._machine = (
            TransactionStateMachine("producer without idempotence", state=TransactionState.READY)
            if transactions is None
            else transactions.machine
        )
        # A transactional producer takes records in a transaction only, an idempotent one in READY.
        self._fast_state = (
            TransactionState.IN_TRANSACTION if is_transactional else TransactionState.READY
        )
        self.fast_append = FastAppend(
            accumulator.topics,
            self._machine,
            self._fast_state,
            self.append_any,
            is_ignoring_keys=options.is_ignoring_keys,
        )
        self.append = self.fast_append.append

    @property
    def can_append_fast(self) -> bool:
        """Whether records are welcome, and a batch that is open takes them as they come."""
        return self._machine.state is self._fast_state

    def append_any(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: tuple[Header, ...],
        partition: int | None,
        timestamp_ms: int,
        on_delivery: DeliveryCallback | None,
        now_ms: int,
        blocked: AppendBlocked | None = None,
    ) -> FutureRecordMetadata | AppendBlocked:
        """Append a record, with every check.

        Args:
            topic: where to.
            value: bytes or None.
            key: bytes or None.
            headers: pairs of a name and bytes or None.
            partition: which one, or None to let key or load decide.
            timestamp_ms: of the record, milliseconds since the epoch.
            on_delivery: called with the record's metadata and error when it has ended.
            now_ms: the core's clock.
            blocked: the result of an earlier call for the same record.

        Returns:
            The record's future, perhaps failed already; or the condition to wait for, and then
            nothing was appended.

        Raises:
            IllegalStateError: no transaction is open, or the producer is closed.
            TransactionAbortedError: its transaction has ended while it was blocked.
            KafkaError: the transaction or the producer has failed before.
        """
        # An earlier call of the core may have stopped half-way, and the checks below read its
        # state.
        self.finish_interrupted_call()
        size_bytes = batch_size_upper_bound(key, value, headers)
        record = _NewRecord(
            topic, value, key, headers, partition, timestamp_ms, on_delivery, size_bytes
        )
        ticket = None if blocked is None else blocked.ticket
        if ticket is None:
            # The ticket exists before the pool queues it, so `finally` knows it whenever Ctrl-C
            # comes.
            ticket = MemoryTicket()
        kept = None
        try:
            if blocked is not None:
                # Compared by number, since a transaction that was begun meanwhile is in the same
                # state.
                self.refuse_if_ended(blocked.transaction)
            outcome = self._append_record(record, ticket, now_ms, blocked)
            kept = outcome.ticket if isinstance(outcome, AppendBlocked) else None
        finally:
            # Also when the record is refused meanwhile, or Ctrl-C comes before the caller has the
            # ticket: an abandoned place in the queue for memory would block all places after it.
            if ticket is not kept:
                self._accumulator.give_up(ticket)
            if kept is not None:
                # Stored before any call, where an exception could come.
                older, self._unclaimed = self._unclaimed, kept
                # It is of a call that was interrupted before it had the outcome.
                if older is not None:
                    self._accumulator.give_up(older)
        return outcome

    def finish_interrupted_call(self) -> None:
        """Complete a call that an exception has interrupted. Without such a call do nothing.

        An exception can interrupt a call of the core between any two of its steps: Ctrl-C, or one
        that a signal handler raises. An operation that had begun goes on, and its caller can make
        the call again. A record that is in a batch belongs to the transaction. If offsets or a
        lease may be there in part, the transaction can only be aborted.

        Each call that depends on it does this first. It is no part of the lock's release, where
        another exception could leave the lock held. The shell calls it as well where it sees such
        an exception; so may a simulator that raises one before, in or after a call.
        """
        queue = self._appending_to
        if queue is not None:
            # Without a batch in the queue the append came to nothing, and a partition added to the
            # transaction would only cost the coordinator a marker.
            if queue.batches and self.can_append_fast:
                self.join_transaction(queue)
            self._appending_to = None
            # The interrupted call may not have woken the sender, and its batch could wait long.
            self.needs_wakeup = True
        if self.transaction_manager is not None:
            self.transaction_manager.finish_interrupted_call()

    def note_next_step(self, time_ms: int) -> None:
        """Note when the sender looks next, if nothing wakes it."""
        self._next_step_ms = time_ms

    def ask_for_step(self) -> None:
        """Note that the sender should look. The shell wakes it."""
        self.needs_wakeup = True

    def claim_append(self, outcome: object) -> None:
        """Note that a caller has an append's outcome, and leaves the queue for memory by itself.

        It says so before it lets the lock go. What is unclaimed later was lost to an exception.
        """
        if isinstance(outcome, AppendBlocked) and outcome.ticket is self._unclaimed:
            self._unclaimed = None

    def give_up_unclaimed(self) -> None:
        """Leave the queue for memory, if an exception took the last append's ticket."""
        if self._unclaimed is not None:
            self._accumulator.give_up(self._unclaimed)
            self._unclaimed = None

    def _append_record(
        self, record: _NewRecord, ticket: MemoryTicket, now_ms: int, blocked: AppendBlocked | None
    ) -> FutureRecordMetadata | AppendBlocked:
        snapshot = self._snapshot(record)
        if snapshot is None:
            return self._wait_for_metadata(record, now_ms, blocked)
        # Also a topic that is known is named again: the metadata drop a topic that is long unused.
        self._metadata.add_topic(record.topic, now_ms)
        # Before the append: a batch without its transaction would be an orphan in the queue.
        error = self._size_error(record) or self._state_error()
        if error is not None:
            return self._fail(record, error, now_ms)
        queues = self._accumulator.topic_queues(record.topic)
        # The fast path has no snapshot and reads the count here, so each slow append renews it.
        queues.set_partition_count(snapshot.partition_count)
        if record.partition is not None:
            queue = queues.queue(record.partition)
        elif record.key is None or self._is_ignoring_keys:
            return self._append_sticky(record, queues, snapshot, ticket, now_ms)
        else:
            # All partitions count, also those without a leader, or a key would move with each
            # failover.
            queue = queues.queue(partition_for_key(record.key, snapshot.partition_count))
        return self._append_to(record, queues, queue, ticket, now_ms)

    def check_partition(
        self, topic: str, partition: int, now_ms: int, blocked: AppendBlocked | None = None
    ) -> FutureRecordMetadata | AppendBlocked | None:
        """Look whether a partition exists, before any of the rows for it and for others is sent.

        Args:
            topic: where to.
            partition: of it.
            now_ms: the core's clock.
            blocked: the result of an earlier call.

        Returns:
            None if it exists. Otherwise the condition to wait for, or a failed future, as from
            `append_any`.

        Raises:
            IllegalStateError, KafkaError: as `append_any` does.
        """
        if blocked is not None:
            self.refuse_if_ended(blocked.transaction)
        record = _NewRecord(topic, None, None, (), partition, 0, None, 0)
        if self._snapshot(record) is not None:
            return None
        return self._wait_for_metadata(record, now_ms, blocked)

    def _snapshot(self, record: _NewRecord) -> TopicSnapshot | None:
        """Return the record's topic, or None if that or the record's partition is not known."""
        # A closed producer is reported before missing metadata: its sender asks for none.
        if self._accumulator.is_closed:
            raise KafkaError("the producer was closed while the record was being sent")
        snapshot = self._metadata.topics.get(record.topic)
        if snapshot is None or not _has_partition(snapshot, record.partition):
            return None
        return snapshot

    def _append_sticky(
        self,
        record: _NewRecord,
        queues: TopicQueues,
        snapshot: TopicSnapshot,
        ticket: MemoryTicket,
        now_ms: int,
    ) -> FutureRecordMetadata | AppendBlocked:
        # The open batch is tried before the sticky choice, since KIP-794 switches where a batch
        # ends.
        queue = queues.sticky_queue
        if queue is not None:
            self._appending_to = queue
            future = self._accumulator.append_to_open_batch(
                queue,
                record.timestamp_ms,
                record.key,
                record.value,
                record.headers,
                record.on_delivery,
                ticket,
            )
            if future is not None:
                self.join_transaction(queue)
                return future
        queue = self._accumulator.sticky_queue(queues, snapshot)
        outcome = self._append_to(record, queues, queue, ticket, now_ms)
        # After the append, when there is a new batch whose bytes can be counted.
        queues.note_sticky_batch()
        return outcome

    def _append_to(
        self,
        record: _NewRecord,
        queues: TopicQueues,
        queue: PartitionQueue,
        ticket: MemoryTicket,
        now_ms: int,
    ) -> FutureRecordMetadata | AppendBlocked:
        # Noted before the append: after an interruption the partition still joins the transaction.
        self._appending_to = queue
        outcome = self._accumulator.append(
            queues,
            queue,
            record.timestamp_ms,
            record.key,
            record.value,
            record.headers,
            record.on_delivery,
            now_ms,
            record.size_bytes,
            ticket,
        )
        if isinstance(outcome, MemoryTicket):
            self._appending_to = None
            # While a record waits for memory no batch lingers, so the sender may have one to send.
            self.needs_wakeup = True
            number = self.transaction_number
            return AppendBlocked(BlockReason.MEMORY, ticket=outcome, transaction=number)
        self.join_transaction(queue)
        # A wake-up costs the sending thread a system call, and both threads a switch. It is left
        # out where the sender would find nothing to do.
        self.wake_sender_for(queue)
        return outcome

    def begins_in(self, queue: PartitionQueue | None) -> None:
        """Note the queue of records before their append; None if none was appended.

        After an interruption their partition joins the transaction all the same.
        """
        self._appending_to = queue

    def wake_sender_for(self, queue: PartitionQueue) -> None:
        """Ask for a step if the sender has work for a partition now."""
        if not self.needs_wakeup and not self._can_sender_sleep(queue):
            self.needs_wakeup = True

    def _can_sender_sleep(self, queue: PartitionQueue) -> bool:
        """Return whether the sender can do no more for a partition before something wakes it."""
        place = queue.topic_partition
        transactions = self.transaction_manager
        if transactions is not None:
            # With five batches in flight the sixth needs an answer first, and the answer wakes the
            # sender.
            if transactions.sequences.is_memory_of_broker_used_up(place):
                return True
            if not transactions.progress.is_send_to_partition_allowed(place):
                return False  # perhaps it has to be added to the transaction
        leader_id = self._metadata.leader_of(place)[0]
        if self._only_lingers(queue) and leader_id in self._metadata.nodes:
            return True
        accumulator = self._accumulator
        if not accumulator.busy_nodes or accumulator.is_compressing:
            return False  # a thread that is awake compresses ahead
        return leader_id in accumulator.busy_nodes

    def _only_lingers(self, queue: PartitionQueue) -> bool:
        """Return whether a queue's batch lingers, and the sender looks before its time is up."""
        head = queue.batches[0]
        if len(queue.batches) > 1 or head.is_full:
            return False
        return self._next_step_ms <= head.created_ms + self._accumulator.options.linger_ms

    def join_transaction(self, queue: PartitionQueue) -> None:
        """Add a queue's partition to the transaction, now that records are in it."""
        if self.transaction_manager is not None:
            self.transaction_manager.maybe_add_partition(queue.topic_partition)
        self._appending_to = None

    # --- reasons against a record ---------------------------------------------------------------

    def _size_error(self, record: _NewRecord) -> KafkaError | None:
        # Before compression, as in `ensureValidRecordSize` of Java: what it saves is not known
        # yet.
        size = record.size_bytes
        for name, limit in self._size_limits:
            if size > limit:
                return RecordTooLargeError(
                    f"the record is {size} bytes when serialized, more than {name}={limit}: make"
                    f" it smaller, or raise {_WAYS_OUT[name]}"
                )
        return None

    def check_can_append(self) -> None:
        """Refuse records in a state that does not allow any, though there are none.

        Raises:
            IllegalStateError, KafkaError: as `append_any` does.
        """
        error = self._state_error()
        if error is not None:
            raise error

    def _state_error(self) -> KafkaError | None:
        """Return a fenced producer's error, which fails the future. Others are raised."""
        if self.transaction_manager is None:
            return None
        try:
            self.transaction_manager.check_can_append()
        # Java fails the future for these two errors and raises the others, and so does this
        # client.
        except (ProducerFencedError, InvalidProducerEpochError) as error:
            return error
        return None

    def _wait_for_metadata(
        self, record: _NewRecord, now_ms: int, blocked: AppendBlocked | None
    ) -> FutureRecordMetadata | AppendBlocked:
        metadata = self._metadata
        # Taken out also if it is not used, so that the next call does not meet it either.
        stored = metadata.take_topic_error(record.topic)
        if blocked is None:
            stored = None  # it is from an earlier call, and may be repaired since: ask again
        wait = metadata_wait(metadata, record.topic, self.transaction_number, blocked)
        missing = missing_partition(metadata, record.topic, record.partition, wait)
        stored = stored or missing
        # The cluster's error comes first: it explains why a topic is not known.
        error = metadata.fatal_error or stored or name_error(record.topic) or self._state_error()
        if error is not None:
            return self._fail(record, error, now_ms)
        metadata.add_topic(record.topic, now_ms)
        metadata.request_topic(record.topic)
        self.needs_wakeup = True
        return wait

    # --- waiting --------------------------------------------------------------------------------

    def append_can_proceed(self, blocked: AppendBlocked) -> bool:
        """Return whether it is worth calling `append` again."""
        if self._accumulator.is_closed:
            return True
        if blocked.ticket is not None:
            return self._accumulator.pool.is_due(blocked.ticket)
        metadata = self._metadata
        # A version, not the topic: the caller checks again, and may learn that the topic is
        # refused.
        return metadata.version != blocked.metadata_version or metadata.fatal_error is not None

    @property
    def transaction_number(self) -> int:
        """The number of transactions that were begun, 0 without any."""
        return (
            0
            if self.transaction_manager is None
            else self.transaction_manager.progress.begun_count
        )

    def refuse_if_ended(self, transaction: int) -> None:
        """Refuse a record that waited while another thread ended its transaction.

        Args:
            transaction: the `transaction_number` when the record came.

        Raises:
            TransactionAbortedError: it is not part of the present one.
        """
        if transaction != self.transaction_number:
            raise TransactionAbortedError(
                "the transaction ended while the record waited for metadata or memory, or was"
                " serialized; it was not sent",
                recovery="resume",  # another transaction that is open now is not affected
            )

    def give_up_append(self, blocked: AppendBlocked) -> None:
        """Wait no longer: the caller was interrupted."""
        self._accumulator.give_up(blocked.ticket)

    def time_out_append(
        self,
        blocked: AppendBlocked,
        topic: str,
        partition: int | None,
        on_delivery: DeliveryCallback | None,
        waited_ms: int,
        now_ms: int,
    ) -> FutureRecordMetadata:
        """Fail a record that waited too long. Return its failed future, as `fail_append` does.

        Raises:
            TransactionAbortedError: its transaction has ended meanwhile.
        """
        # The place in the queue is given back before the check that may raise: an abandoned one
        # would block all places after it.
        self.give_up_append(blocked)
        self.refuse_if_ended(blocked.transaction)
        place = (topic, partition)
        pool, tries = self._accumulator.pool, self.failed_tries
        error = time_out_error(blocked, place, waited_ms, now_ms, pool, self._metadata, tries)
        return self.fail_append(error, topic, partition, on_delivery, now_ms)

    def fail_append(
        self,
        error: KafkaError,
        topic: str,
        partition: int | None,
        on_delivery: DeliveryCallback | None,
        now_ms: int,
    ) -> FutureRecordMetadata:
        """Fail a record that never reached a batch.

        An open transaction becomes abortable, since it cannot be complete without the record. If
        none is open, nothing changes.

        Returns:
            The failed future. The callback is run with the others, by the shell.
        """
        self.fail_transaction(error)
        self._metrics.count("record-error", 1, now_ms)
        number = NO_PARTITION if partition is None else partition
        future = failed_future(error, topic, number, self._waiter)
        if on_delivery is not None:
            # Not run here: the lock is held, and a callback may call the producer.
            self._accumulator.callbacks.append(
                CallbackBatch([(future, on_delivery)], lambda: None)
            )
        self.needs_wakeup = True
        return future

    def lose_record(self, error: KafkaError) -> None:
        """Allow the open transaction no end but an abort, because one of its records is lost.

        In an error state the first cause stays. Once EndTxn is out, no more records belong to it.
        """
        if self._machine.state in _WRITABLE_STATES:
            self.fail_transaction(error)

    def fail_transaction(self, error: KafkaError) -> None:
        """Allow an open transaction no end but an abort, because a part of it is missing."""
        self.finish_interrupted_call()
        transactions = self.transaction_manager
        if (
            transactions is not None
            and transactions.is_transactional
            # Without an open transaction there is nothing that the lost record makes incomplete.
            and transactions.machine.has_ongoing_transaction
        ):
            transactions.progress.maybe_transition_to_error_state(error)
        self.needs_wakeup = True

    def _fail(self, record: _NewRecord, error: KafkaError, now_ms: int) -> FutureRecordMetadata:
        return self.fail_append(error, record.topic, record.partition, record.on_delivery, now_ms)


# Not frozen, which takes four times as long to make: one is made for each batch's first record.
@dataclass(slots=True)
class _NewRecord:
    """A record on the long way through the checks.

    `size_bytes` is the largest size of a batch with only this record.
    """

    topic: str
    value: bytes | None
    key: bytes | None
    headers: tuple[Header, ...]
    partition: int | None
    timestamp_ms: int
    on_delivery: DeliveryCallback | None
    size_bytes: int


def _has_partition(snapshot: TopicSnapshot, partition: int | None) -> bool:
    count = snapshot.partition_count
    return count > 0 if partition is None else partition < count
