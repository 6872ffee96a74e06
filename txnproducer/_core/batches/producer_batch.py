"""One batch of records for one partition, from its first record to its end.

Owns: the records, their callbacks, the attempts, the producer state stamped on it, its one final
state. Must not know: queues, memory, transactions; others decide about a batch, it keeps the
account.

Rules:
* A batch ends once: succeeded, failed or aborted. A later end of a failed or aborted batch is
  ignored (`False`), since an answer may arrive after the deadline. A second end after a success is
  a programming error.
* Numbered means sent (or about to be, in the same step): a sequence is given when the batch is
  drained.
* A retry keeps producer id, epoch and sequence; only `reset_producer_state` renumbers (an epoch
  bump).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from txnproducer._core.batches.results import (
    NO_OFFSET,
    NO_TIMESTAMP,
    CallbackBatch,
    DeliveryCallback,
    FutureRecordMetadata,
    ProduceRequestResult,
    RecordErrors,
)
from txnproducer._core.failed_tries import Refusal
from txnproducer._core.ports import Waiter
from txnproducer._record.batch_builder import RecordBatchBuilder
from txnproducer._record.format import MAX_INT32, NO_SEQUENCE, Header, increment_sequence
from txnproducer.errors import IllegalStateError, KafkaError
from txnproducer.records import ProducerIdAndEpoch, TopicPartition

_UNKNOWN_EPOCH: Final = -1


class FinalState(Enum):
    """How a batch ended."""

    SUCCEEDED = auto()
    FAILED = auto()
    ABORTED = auto()


class ProducerBatch:
    """A batch on its way.

    Args:
        topic_partition: where to.
        builder: takes the records.
        created_ms: counts for linger and for the delivery time-out.
        waiter: the means by which the records' futures wait.
        memory_bytes: its part of the buffer pool; 0 for the children of a split.
        is_split: whether it came from a split.
    """

    __slots__ = (
        "_attempts_when_leader_changed",
        "_callbacks",
        "_leader_epoch",
        "attempts",
        "backoff_ms",
        "base_sequence",
        "builder",
        "created_ms",
        "drained_ms",
        "final_state",
        "in_retry",
        "is_in_flight",
        "is_memory_freed",
        "is_overtaken",
        "is_reset",
        "is_split",
        "is_transactional",
        "last_attempt_ms",
        "last_error",
        "may_be_written",
        "may_come_late",
        "memory_bytes",
        "producer_epoch",
        "producer_id",
        "refusal",
        "result",
        "topic_partition",
        "was_sent",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        builder: RecordBatchBuilder,
        created_ms: int,
        waiter: Waiter,
        memory_bytes: int = 0,
        is_split: bool = False,
    ) -> None:
        self.topic_partition = topic_partition
        self.builder = builder
        self.created_ms = created_ms
        self.memory_bytes = memory_bytes
        self.is_memory_freed = False
        self.is_split = is_split
        self.result = ProduceRequestResult(topic_partition, waiter)
        self._callbacks: list[tuple[int, FutureRecordMetadata, DeliveryCallback]] = []
        self.attempts = 0
        self.backoff_ms = 0
        self.last_attempt_ms = created_ms
        self.drained_ms = created_ms
        self.in_retry = False
        self.was_sent = False
        self.may_be_written = False
        self.may_come_late = False
        self.last_error: KafkaError | None = None
        self.refusal: Refusal | None = None
        self.is_overtaken = False
        self.is_in_flight = False
        self.final_state: FinalState | None = None
        self.producer_id = ProducerIdAndEpoch.NONE.producer_id
        self.producer_epoch = ProducerIdAndEpoch.NONE.producer_epoch
        self.base_sequence: int = NO_SEQUENCE
        self.is_transactional = False
        self.is_reset = False
        self._leader_epoch = _UNKNOWN_EPOCH
        self._attempts_when_leader_changed = 0

    # --- records --------------------------------------------------------------------------------

    @property
    def record_count(self) -> int:
        """How many records it has."""
        return self.builder.record_count

    @property
    def is_full(self) -> bool:
        """Whether it is closed for appends, or has reached its limit."""
        return self.builder.is_full

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more records."""
        return self.builder.is_closed

    @property
    def estimated_size_bytes(self) -> int:
        """Its size on the wire. An estimate while it is open and compressed."""
        return self.builder.estimated_size_bytes

    def try_append(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[Header, ...],
        on_delivery: DeliveryCallback | None,
    ) -> FutureRecordMetadata | None:
        """Append a record and return its future. If it does not fit, change nothing."""
        index = self.builder.append(timestamp_ms, key, value, headers)
        if index is None:
            return None
        future = FutureRecordMetadata(
            self.result,
            index,
            timestamp_ms,
            -1 if key is None else len(key),
            -1 if value is None else len(value),
        )
        if on_delivery is not None:
            self._callbacks.append((index, future, on_delivery))
        return future

    def add_callback(
        self, index: int, future: FutureRecordMetadata, on_delivery: DeliveryCallback
    ) -> None:
        """Have a callback run when the record of this index has ended."""
        self._callbacks.append((index, future, on_delivery))

    def close(self) -> bytes | bytearray:
        """Close for appends and return the bytes to send, with the present producer state."""
        # From now on its bytes and its number agree.
        self.is_reset = False
        return self.builder.build()

    # --- memory ---------------------------------------------------------------------------------

    def grow(self, size_bytes: int) -> None:
        """Take more of the buffer pool's memory."""
        self.memory_bytes += size_bytes
        self.builder.set_memory(self.memory_bytes)

    def shrink_to(self, kept_bytes: int) -> int:
        """Keep only this much memory. Return how much the pool gets back."""
        saved_bytes = self.memory_bytes - kept_bytes
        # Memory that is freed already was given back as a whole.
        if saved_bytes <= 0 or self.is_memory_freed:
            return 0
        self.memory_bytes = kept_bytes
        return saved_bytes

    def free_memory(self) -> int:
        """Give all memory back. Return how much: 0 if this was done before."""
        if self.is_memory_freed:
            return 0
        # Marked before the pool gets it: an exception in between costs memory, but never gives it
        # back twice.
        self.is_memory_freed = True
        return self.memory_bytes

    # --- producer state -------------------------------------------------------------------------

    @property
    def has_sequence(self) -> bool:
        """Whether it was numbered."""
        return self.base_sequence != NO_SEQUENCE

    @property
    def last_sequence(self) -> int:
        """The sequence of its last record, where 0 follows 2^31-1."""
        # Without a call of `increment_sequence`, since each batch asks several times.
        return (self.base_sequence + self.record_count - 1) & MAX_INT32

    def set_producer_state(
        self, producer: ProducerIdAndEpoch, base_sequence: int, is_transactional: bool
    ) -> None:
        """Number the batch for the first time.

        Raises:
            IllegalStateError: it has a number already; a retry keeps it.
        """
        # The broker recognizes a duplicate by its number: under another one a retry is written
        # twice.
        if self.has_sequence:
            raise IllegalStateError(f"{self} has a sequence already; a retry must keep it")
        self._stamp(producer, base_sequence, is_transactional)

    def reset_producer_state(self, producer: ProducerIdAndEpoch, base_sequence: int) -> None:
        """Renumber the batch. If the number changes, it is reset until it is closed again.

        Raises:
            IllegalStateError: it was aborted, so it must not be sent any more.
        """
        if self.final_state is FinalState.ABORTED:
            raise IllegalStateError(f"{self} was aborted and cannot be renumbered")
        now = ProducerIdAndEpoch(self.producer_id, self.producer_epoch)
        if (producer, base_sequence) == (now, self.base_sequence):
            return
        self._stamp(producer, base_sequence, self.is_transactional)
        # Until `close`, the bytes that the broker may have carry the old number.
        self.is_reset = True

    def _stamp(
        self, producer: ProducerIdAndEpoch, base_sequence: int, is_transactional: bool
    ) -> None:
        producer_id, producer_epoch = producer.producer_id, producer.producer_epoch
        self.builder.set_producer_state(
            producer_id, producer_epoch, base_sequence, is_transactional
        )
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.is_transactional = is_transactional

    # --- attempts -------------------------------------------------------------------------------

    def sent(self, now_ms: int) -> None:
        """Note that the batch went on the wire."""
        self.is_in_flight = True
        self.was_sent = True
        self.drained_ms = max(self.drained_ms, now_ms)

    def attempt_ended(self) -> None:
        """Note that the request with the batch has ended, with or without an answer."""
        self.is_in_flight = False

    def attempt_lost(self) -> None:
        """Note that a request with the batch was lost. A copy of it may still arrive."""
        self.may_come_late = True

    def attempt_in_doubt(self) -> None:
        """Note that the broker may have written the batch."""
        self.may_be_written = True

    def attempt_out_of_order(self) -> None:
        """Note that the broker refused the batch's sequence number."""
        # If the broker had the batch, it would know its number. But a copy of an earlier attempt
        # can still arrive: the next epoch fences it only with its first written batch.
        self.may_be_written = self.may_come_late

    def attempt_failed(self, error: KafkaError) -> None:
        """Note why another attempt is needed. An expiry names this error."""
        self.last_error = error
        self.refusal = None

    def refused(self, node_id: int, code: int, now_ms: int) -> None:
        """Note the broker and the code that make another attempt necessary."""
        self.refusal = Refusal(
            f"Produce for {self.topic_partition.topic}-{self.topic_partition.partition}",
            node_id,
            code,
            now_ms,
        )

    def overtaken(self) -> None:
        """Note that a later batch was written. A renumbering does not end that."""
        self.is_overtaken = True

    def reenqueued(self, now_ms: int, backoff_ms: int) -> None:
        """Note that the batch waits for another attempt, not before `backoff_ms` have passed."""
        self.attempts += 1
        self.last_attempt_ms = max(self.last_attempt_ms, now_ms)
        self.backoff_ms = backoff_ms
        self.in_retry = True

    def has_reached_delivery_timeout(self, delivery_timeout_ms: int, now_ms: int) -> bool:
        """Return whether the batch's time is up."""
        # From the append and not from the last attempt, so that retries cannot extend it (KIP-91).
        return now_ms - self.created_ms >= delivery_timeout_ms

    def maybe_update_leader_epoch(self, leader_epoch: int) -> None:
        """Note under which leader epoch the next attempt would be made (-1 = not known)."""
        # Only a newer epoch counts: metadata from a broker that lags behind must not end the
        # backoff.
        if leader_epoch > self._leader_epoch:
            self._leader_epoch = leader_epoch
            self._attempts_when_leader_changed = self.attempts

    @property
    def has_leader_changed_for_the_ongoing_retry(self) -> bool:
        """Whether the coming attempt is the first one aimed at a newer leader epoch (KIP-951)."""
        return self.attempts > 0 and self.attempts == self._attempts_when_leader_changed

    def backoff_left_ms(self, now_ms: int) -> int:
        """Return how long to wait before the next attempt. A new leader ends the wait."""
        # A new leader has refused nothing yet, so there is no reason to spare it (KIP-951).
        if not self.attempts or self.has_leader_changed_for_the_ongoing_retry:
            return 0
        return max(0, self.last_attempt_ms + self.backoff_ms - now_ms)

    # --- the end --------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Whether the batch has ended."""
        return self.final_state is not None

    def complete(self, base_offset: int, log_append_time_ms: int) -> bool:
        """End with success.

        Args:
            base_offset: of the first record; -1 if it is not known.
            log_append_time_ms: as in the answer; -1 if each record keeps its own.

        Returns:
            False if the batch had failed or was aborted before, so that this changes nothing.

        Raises:
            IllegalStateError: it had succeeded before.
        """
        # For a duplicate, brokers answer with the newest timestamp in the batch, even if the
        # records keep their own. (Java's client then gives all of them that one.)
        was_sent_before = self.attempts or self.may_be_written
        if was_sent_before and log_append_time_ms == self.builder.max_timestamp_ms:
            log_append_time_ms = NO_TIMESTAMP
        return self._end(FinalState.SUCCEEDED, base_offset, log_append_time_ms, None)

    def complete_exceptionally(self, record_errors: RecordErrors) -> bool:
        """End with an error for each record. It returns and raises like `complete`."""
        return self._end(FinalState.FAILED, NO_OFFSET, NO_TIMESTAMP, record_errors)

    def abort(self, error: KafkaError) -> None:
        """End without waiting for an answer.

        Raises:
            IllegalStateError: it has ended before.
        """
        if self.final_state is not None:
            raise IllegalStateError(f"{self} has already {self.final_state.name.lower()}")
        self._end(FinalState.ABORTED, NO_OFFSET, NO_TIMESTAMP, lambda _: error)

    def _end(
        self,
        final_state: FinalState,
        base_offset: int,
        log_append_time_ms: int,
        record_errors: RecordErrors | None,
    ) -> bool:
        if self.final_state is FinalState.SUCCEEDED:
            raise IllegalStateError(f"{self} has succeeded and cannot end again")
        if self.final_state is not None:
            return False
        self.final_state = final_state
        self.result.set(base_offset, log_append_time_ms, record_errors)
        return True

    def take_callbacks(self, on_finished: Callable[[], None]) -> CallbackBatch | None:
        """Return the callbacks of the ended batch, which are to be run, or None if it has none."""
        if not self._callbacks:
            return None
        calls = [(future, callback) for _, future, callback in self._callbacks]
        # Taken out, so that none of them can run twice.
        self._callbacks = []
        return CallbackBatch(calls, on_finished)

    # --- split ----------------------------------------------------------------------------------

    def split(
        self, max_size_bytes: int, new_builder: Callable[[int], RecordBatchBuilder]
    ) -> deque[ProducerBatch]:
        """Split a batch that the broker found too large into smaller ones, which replace it.

        Args:
            max_size_bytes: how large a part may be; a single record may be larger.
            new_builder: makes a builder with a size limit.

        Returns:
            The parts, in order, with consecutive sequences if this batch had any, created when it
            was and with no attempt made. The records' futures and callbacks have moved to them.
        """
        parts: deque[ProducerBatch] = deque()
        starts: list[int] = []
        for index, record in enumerate(self.builder.records()):
            if parts and parts[-1].builder.append(*record) is not None:
                continue
            if parts:
                parts[-1].builder.close()
            # A first record fits in any case. The limit is not raised to its size: a tiny record
            # would then fit after it, and the part be as large as the whole. (As in Java.)
            timestamp_ms, key, value, headers = record
            part = ProducerBatch(
                self.topic_partition,
                new_builder(max_size_bytes),
                # The time of the append: a split must not extend the delivery time-out.
                self.created_ms,
                self.result.waiter,
                is_split=True,
            )
            part.builder.append(timestamp_ms, key, value, headers)
            # The broker recognizes a batch by its first and last number, so it would not know a
            # part of one that it has.
            part.may_be_written = part.may_come_late = self.may_be_written
            part.was_sent, part.last_error = self.was_sent, self.last_error
            parts.append(part)
            starts.append(index)
        parts[-1].builder.close()
        self._number(parts)
        self._hand_on_callbacks(parts, starts)
        # Last, since other threads follow their records into the parts from now on.
        self.result.split_into([(s, p.result) for s, p in zip(starts, parts, strict=True)])
        return parts

    def _number(self, parts: deque[ProducerBatch]) -> None:
        if not self.has_sequence:
            return
        producer = ProducerIdAndEpoch(self.producer_id, self.producer_epoch)
        # The parts share the numbers of the whole, so that later batches keep theirs.
        sequence = self.base_sequence
        for part in parts:
            part.set_producer_state(producer, sequence, self.is_transactional)
            sequence = increment_sequence(sequence, part.record_count)

    def _hand_on_callbacks(self, parts: deque[ProducerBatch], starts: list[int]) -> None:
        # Each callback finds its part: there may be thousands of both.
        for index, future, callback in self._callbacks:
            part = bisect_right(starts, index) - 1
            parts[part].add_callback(index - starts[part], future, callback)
        self._callbacks = []

    def __repr__(self) -> str:
        topic, partition = self.topic_partition
        return (
            f"<ProducerBatch {topic}-{partition} records={self.record_count} "
            f"base_sequence={self.base_sequence} attempts={self.attempts}>"
        )


def place_in_line(batch: ProducerBatch) -> tuple[int, bool, int]:
    """Return the sort key by which a partition's batches are in the order of their appends."""
    # Within a millisecond the numbered come first: batches are numbered in the order of their
    # appends.
    return batch.created_ms, not batch.has_sequence, batch.base_sequence
