"""Idempotence: which numbers batches get, and what an answer says about them.

Java keeps this inside its transaction manager. It is a leaf here: it judges, and changes nothing
but numbers; what follows for the transaction is decided by `TransactionManager`.

Owns: the producer id and epoch, the partitions' entries, the unresolved partitions, the local
epoch bump of the idempotent producer. Must not know: the transaction's state, requests.

Rules:
* A batch is numbered when it is drained. So a batch without a number was never sent.
* Unresolved is a partition of which a batch ended without anybody knowing whether the broker has
  it. Until that is clear it gets no new numbers. A later batch that succeeded proves that it was
  written; if all that were in flight ended otherwise, the epoch must change.
* An idempotent producer raises its epoch by itself, and renumbers only the partitions that asked
  for it; the others go on under the old epoch until they have nothing in flight, since renumbering
  a batch that the broker may have would write it twice.
* At the last epoch the id is given back. What is in flight is renumbered when the new id is known,
  not before (Java sends it without an id meanwhile, which is not idempotent).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from txnproducer._core.sequences.partition_map import (
    NO_LAST_ACKED_OFFSET,
    NO_LAST_ACKED_SEQUENCE,
    NumberedBatch,
    TxnPartitionMap,
    is_sequence_after,
    next_sequence_after,
)
from txnproducer._protocol.messages import ProducePartitionResponse
from txnproducer._record.format import NO_SEQUENCE
from txnproducer.errors import (
    ErrorCode,
    IllegalStateError,
    KafkaError,
    OutOfOrderSequenceError,
    RetriableError,
    UnknownProducerIdError,
)
from txnproducer.records import ProducerIdAndEpoch, TopicPartition

_LOG = logging.getLogger(__name__)

MAX_PRODUCER_EPOCH: Final = 2**15 - 1
# The last ones of a producer that a partition can tell duplicates of.
_BATCHES_REMEMBERED: Final = 5
_OF_NUMBERS: Final = (
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
)


class BumpOutcome(Enum):
    """What came of a due epoch bump of the idempotent producer."""

    NOT_DUE = auto()
    BUMPED = auto()
    NEW_ID_NEEDED = auto()  # the epochs are used up; the id was dropped


class SequenceManager:
    """The numbers of one producer.

    Args:
        is_transactional: an idempotent producer helps itself where a transaction is aborted.

    Attributes:
        producer_id_and_epoch: the producer's identity; `ProducerIdAndEpoch.NONE` without one.
    """

    def __init__(self, *, is_transactional: bool) -> None:
        self._is_transactional = is_transactional
        self.producer_id_and_epoch = ProducerIdAndEpoch.NONE
        self.partitions = TxnPartitionMap()
        # The value is the sequence after the batch of unknown fate.
        self._unresolved: dict[TopicPartition, int] = {}
        self._to_rewrite: set[TopicPartition] = set()
        # The producer id of the last batch that a partition has acknowledged.
        self._known_as: dict[TopicPartition, int] = {}
        self._topic_ids: dict[str, bytes | None] = {}
        self._is_bump_due = False
        # The next epoch is the first of another id, which has come.
        self._is_id_new = False

    @property
    def has_producer_id(self) -> bool:
        """Whether there is an identity."""
        return self.producer_id_and_epoch.producer_id >= 0

    # --- numbering ------------------------------------------------------------------------------

    def sequence_number(self, topic_partition: TopicPartition) -> int:
        """Return the base sequence of the partition's next batch."""
        return self.partitions.get_or_create(topic_partition).next_sequence

    def increment_sequence_number(self, topic_partition: TopicPartition, increment: int) -> None:
        """Take sequences for a batch."""
        self.partitions.get(topic_partition).increment_sequence(increment)

    def has_stale_producer_id_and_epoch(self, topic_partition: TopicPartition) -> bool:
        """Tell whether a partition's numbers belong to an earlier identity."""
        known = self.partitions.get_or_create(topic_partition).producer_id_and_epoch
        # Nearly always the very same; what they hold is compared in Python.
        return known is not self.producer_id_and_epoch and known != self.producer_id_and_epoch

    def maybe_update_producer_id_and_epoch(self, topic_partition: TopicPartition) -> None:
        """Begin anew under the present identity, if nothing of an earlier one is in flight."""
        if not self.has_stale_producer_id_and_epoch(topic_partition):
            return
        entry = self.partitions.get(topic_partition)
        if not entry.has_in_flight_batches:
            entry.start_sequences_at_beginning(self.producer_id_and_epoch)

    def start_sequences_at_beginning(
        self, topic_partition: TopicPartition, producer: ProducerIdAndEpoch
    ) -> None:
        """Renumber a partition's batches in flight from 0."""
        entry = self.partitions.find(topic_partition)
        if entry is not None:
            entry.start_sequences_at_beginning(producer)

    # --- what is in flight ----------------------------------------------------------------------

    def add_in_flight_batch(self, batch: NumberedBatch) -> None:
        """Track a batch that was numbered.

        Raises:
            IllegalStateError: it has no number.
        """
        if not batch.has_sequence:
            raise IllegalStateError(f"{batch} cannot be tracked: it has no sequence")
        self.partitions.get(batch.topic_partition).add_in_flight_batch(batch)

    def remove_in_flight_batch(self, batch: NumberedBatch) -> None:
        """Track a batch no more."""
        entry = self.partitions.find(batch.topic_partition)
        if entry is not None:
            entry.remove_in_flight_batch(batch)

    def is_in_flight(self, batch: NumberedBatch) -> bool:
        """Tell whether a batch is tracked: its partition's numbers may have been wiped."""
        entry = self.partitions.find(batch.topic_partition)
        return entry is not None and any(tracked is batch for tracked in entry.in_flight)

    def has_in_flight_batches(self, topic_partition: TopicPartition) -> bool:
        """Tell whether a numbered batch of the partition has not ended."""
        entry = self.partitions.find(topic_partition)
        return entry is not None and entry.has_in_flight_batches

    def has_renumbered_batches(self, topic_partition: TopicPartition) -> bool:
        """Tell whether a batch in flight has another number now than it was sent with."""
        entry = self.partitions.find(topic_partition)
        return entry is not None and any(batch.is_reset for batch in entry.in_flight)

    def has_renumbered_on_the_wire(self, topic_partition: TopicPartition) -> bool:
        """Tell whether such a batch has not been answered yet."""
        entry = self.partitions.find(topic_partition)
        return entry is not None and any(b.is_reset and b.is_in_flight for b in entry.in_flight)

    def is_first_batch_awaited(self, topic_partition: TopicPartition) -> bool:
        """Tell whether batches are in flight to a partition that has acknowledged none so far.

        It takes any first number of a producer that it does not know: a later batch could be
        written, and the one before it, refused for the moment, never more.
        """
        if self._known_as.get(topic_partition) == self.producer_id_and_epoch.producer_id:
            return False
        return self.has_in_flight_batches(topic_partition)

    def keep_known_in(self, topic_ids: Mapping[str, bytes | None]) -> None:
        """Forget that partitions have acknowledged anything, unless their topics are still these.

        Args:
            topic_ids: of each topic in the metadata; a topic made anew has another one, and knows
                no producer.
        """
        gone = {t for t, known in self._topic_ids.items() if topic_ids.get(t, b"") != known}
        if gone:
            kept = {p: known for p, known in self._known_as.items() if p.topic not in gone}
            self._known_as = kept
        self._topic_ids = dict(topic_ids)

    def is_memory_of_broker_used_up(self, topic_partition: TopicPartition) -> bool:
        """Tell whether so many batches are in flight that a broker could not tell one more apart.

        More than a connection takes there are when the leader has moved, and the one before it
        does not answer.
        """
        entry = self.partitions.find(topic_partition)
        return entry is not None and len(entry.in_flight) >= _BATCHES_REMEMBERED

    def first_in_flight_sequence(self, topic_partition: TopicPartition) -> int:
        """Return the lowest base sequence in flight, or -1."""
        entry = self.partitions.find(topic_partition)
        first = None if entry is None else entry.first_in_flight
        return NO_SEQUENCE if first is None else first.base_sequence

    def is_first_in_flight_overtaken(self, topic_partition: TopicPartition) -> bool:
        """Tell whether a batch was written behind the one that all others wait for."""
        entry = self.partitions.find(topic_partition)
        first = None if entry is None else entry.first_in_flight
        return entry is not None and first is not None and entry.is_overtaken(first)

    def last_acked_sequence(self, topic_partition: TopicPartition) -> int:
        """Return the last acknowledged sequence, or -1."""
        entry = self.partitions.find(topic_partition)
        return NO_LAST_ACKED_SEQUENCE if entry is None else entry.last_acked_sequence

    def last_acked_offset(self, topic_partition: TopicPartition) -> int:
        """Return the highest acknowledged offset, or -1."""
        entry = self.partitions.find(topic_partition)
        return NO_LAST_ACKED_OFFSET if entry is None else entry.last_acked_offset

    # --- answers --------------------------------------------------------------------------------

    def handle_completed_batch(
        self, batch: NumberedBatch, response: ProducePartitionResponse
    ) -> None:
        """Note a success, perhaps a late one.

        The partition's numbers may have been wiped since the batch was sent (by a transaction's
        end, or a bump); then there is nothing to note.
        """
        if not batch.is_reset:  # else it was written under another number, and perhaps another id
            self._known_as[batch.topic_partition] = batch.producer_id
        entry = self.partitions.find(batch.topic_partition)
        if entry is None:
            return
        has_offset = response.base_offset >= 0
        last_offset = response.base_offset + batch.record_count - 1 if has_offset else -1
        entry.maybe_update_last_acked(batch, last_offset)
        entry.remove_in_flight_batch(batch)
        if batch.is_reset and not self._is_transactional:
            # It was renumbered on the wire, and is written under its old number: what was to
            # follow it under the new epoch has to be the first there. (Java's is refused once.)
            self.request_idempotent_epoch_bump_for_partition(batch.topic_partition)

    def handle_failed_batch(
        self, batch: NumberedBatch, error: KafkaError, *, adjust_sequence_numbers: bool
    ) -> None:
        """Settle the numbers of a batch that failed and will not be sent again.

        Args:
            batch: which one.
            error: why.
            adjust_sequence_numbers: whether the broker surely does not have it.
        """
        place = batch.topic_partition
        if isinstance(error, UnknownProducerIdError):
            self._known_as.pop(place, None)
        is_gap_certain = isinstance(error, OutOfOrderSequenceError) or self._leaves_gap(batch)
        if is_gap_certain and not self._is_transactional:
            self.request_idempotent_epoch_bump_for_partition(place)
        elif isinstance(error, UnknownProducerIdError):
            # The broker knows nothing of this producer, so it takes sequence 0.
            self._reset_partition(place)
        elif adjust_sequence_numbers and self._is_transactional:
            entry = self.partitions.find(place)
            if entry is not None:
                entry.adjust_sequences_due_to_failed_batch(batch)
        elif adjust_sequence_numbers:
            self.request_idempotent_epoch_bump_for_partition(place)

    def _leaves_gap(self, batch: NumberedBatch) -> bool:
        """Tell whether a batch got a number that nothing is sent under, and others follow it."""
        entry = self.partitions.find(batch.topic_partition) if batch.is_reset else None
        if entry is None:
            return False
        return any(
            is_sequence_after(b.base_sequence, batch.base_sequence) for b in entry.in_flight
        )

    def can_retry(
        self, response: ProducePartitionResponse, error: KafkaError, batch: NumberedBatch
    ) -> bool:
        """Judge whether a refused batch may be sent again; renumber where it needs that."""
        code = response.error_code
        if code not in _OF_NUMBERS:
            return isinstance(error, RetriableError)
        if self._is_transactional and not self.is_in_flight(batch):
            # The numbers were wiped as an earlier batch failed: there is no place for this one
            # any more. (Java's goes round until its time is up.)
            return False
        if code == ErrorCode.UNKNOWN_PRODUCER_ID:
            return self._can_retry_unknown_producer_id(response.log_start_offset, batch)
        return self._can_retry_out_of_order(batch)

    def _can_retry_unknown_producer_id(self, log_start_offset: int, batch: NumberedBatch) -> bool:
        if log_start_offset == -1 or batch.is_reset:
            # The broker could not tell where its log starts (the partition moved): ask again. Or
            # this is the echo of an error for which the batch was renumbered already.
            return True
        place = batch.topic_partition
        self._known_as.pop(place, None)
        if not self._is_transactional:
            self.request_idempotent_epoch_bump_for_partition(place)
            return True
        entry = self.partitions.get(place)
        if any(tracked.may_come_late for tracked in entry.in_flight):
            # The epoch stays the same: a copy with the number of before could follow what gets
            # written under the new ones. (Java goes on.)
            return False
        if self.last_acked_offset(place) < log_start_offset:
            # Retention deleted our records and with them the broker's memory of us: nothing was
            # lost, the transaction can go on with numbers from 0.
            self.start_sequences_at_beginning(place, self.producer_id_and_epoch)
            return True
        return False

    def _can_retry_out_of_order(self, batch: NumberedBatch) -> bool:
        place = batch.topic_partition
        unresolved_next = self._unresolved.get(place)
        is_next = self._is_next_to_acked(batch)
        if unresolved_next is None and not batch.is_reset and self.is_overtaken(batch):
            # A later batch was written without it, which a broker allows that does not know the
            # producer yet. No retry gets in any more. (Java's tries until its time is up.)
            return False
        if unresolved_next is None and (batch.is_reset or not is_next):
            # An earlier batch failed as well, and will be sent first.
            return True
        if self._is_transactional:
            return False
        is_first = self.first_in_flight_sequence(place) == batch.base_sequence
        if unresolved_next is None or (is_first and not batch.is_reset):
            # There is a gap for certain: what should be before this batch will never come. (Java
            # does not see that where a later one is unresolved as well, and tries until its time
            # is up.)
            self.request_idempotent_epoch_bump_for_partition(place)
        return True

    def _is_next_to_acked(self, batch: NumberedBatch) -> bool:
        last = self.last_acked_sequence(batch.topic_partition)
        return batch.base_sequence == next_sequence_after(last)

    def is_overtaken(self, batch: NumberedBatch) -> bool:
        """Tell whether a later batch was written: if this one was not, its place is taken."""
        entry = self.partitions.find(batch.topic_partition)
        return entry is not None and entry.is_overtaken(batch)

    def may_give_numbers_away(self, batch: NumberedBatch) -> bool:
        """Tell whether those behind a batch that is not written can take its numbers.

        In a transaction they keep the epoch: one of them that may be written could be taken for
        another one with its number of before. (Java renumbers them.)
        """
        entry = self.partitions.find(batch.topic_partition) if self._is_transactional else None
        if entry is None:
            return True
        return batch.topic_partition not in self._unresolved and not entry.has_doubt_behind(batch)

    # --- unresolved partitions ------------------------------------------------------------------

    def has_unresolved_sequence(self, topic_partition: TopicPartition) -> bool:
        """Tell whether it is open what became of one of the partition's batches."""
        return topic_partition in self._unresolved

    @property
    def has_unresolved_sequences(self) -> bool:
        """Whether any partition is unresolved."""
        return bool(self._unresolved)

    def mark_sequence_unresolved(self, batch: NumberedBatch) -> None:
        """Note that a batch was sent and ended without an answer."""
        place = batch.topic_partition
        following = next_sequence_after(batch.last_sequence)
        known = self._unresolved.get(place)
        if known is None or is_sequence_after(following, known):
            self._unresolved[place] = following

    def maybe_resolve_sequences(self) -> list[TopicPartition]:
        """Decide about unresolved partitions that have nothing in flight any more.

        Returns:
            The partitions that can only go on with another epoch. An idempotent producer's bump is
            requested already; a transaction has to be aborted.
        """
        if not self._unresolved:
            return []
        lost = []
        for place in list(self._unresolved):
            if self.has_in_flight_batches(place):
                continue
            del self._unresolved[place]
            entry = self.partitions.find(place)
            if entry is None or entry.is_next(entry.next_sequence):
                continue  # a later batch succeeded, so this one was written
            lost.append(place)
            if not self._is_transactional:
                self.request_idempotent_epoch_bump_for_partition(place)
        if lost:
            _LOG.info("batches of %s ended with their fate unknown", lost)
        return lost

    # --- epochs ---------------------------------------------------------------------------------

    def request_idempotent_epoch_bump_for_partition(self, topic_partition: TopicPartition) -> None:
        """Ask for a new epoch, under which a partition's batches are renumbered."""
        self._is_bump_due = True
        self._to_rewrite.add(topic_partition)

    @property
    def partitions_to_renumber(self) -> frozenset[TopicPartition]:
        """Where an idempotent producer's batches get new numbers with the next bump."""
        return frozenset(self._to_rewrite) if self._is_bump_due else frozenset()

    def bump_idempotent_epoch(self) -> BumpOutcome:
        """Raise the epoch if that was asked for; only for an idempotent producer."""
        current = self.producer_id_and_epoch
        if not self._is_bump_due or not current.is_valid:
            return BumpOutcome.NOT_DUE
        if not self._is_id_new and current.producer_epoch == MAX_PRODUCER_EPOCH:
            self.producer_id_and_epoch = ProducerIdAndEpoch.NONE
            return BumpOutcome.NEW_ID_NEEDED
        if not self._is_id_new:
            bumped = ProducerIdAndEpoch(current.producer_id, current.producer_epoch + 1)
            self.producer_id_and_epoch = bumped
        self._renumber()
        return BumpOutcome.BUMPED

    def adopt(self, producer: ProducerIdAndEpoch) -> None:
        """Go on under a new identity.

        An idempotent producer's batches are renumbered with the next step only, as with any bump:
        what the same answers say of them has to be known before.
        """
        self.producer_id_and_epoch = producer
        self._is_id_new = self._is_bump_due

    def _renumber(self) -> None:
        for place in self._to_rewrite:
            self.start_sequences_at_beginning(place, self.producer_id_and_epoch)
            self._unresolved.pop(place, None)
        self._to_rewrite.clear()
        self._is_bump_due = self._is_id_new = False

    def reset_sequence_numbers(self) -> None:
        """Forget all numbers: each partition begins at 0 under the next identity."""
        self.partitions.reset()
        self._unresolved.clear()
        self._to_rewrite.clear()
        self._is_bump_due = self._is_id_new = False

    def _reset_partition(self, topic_partition: TopicPartition) -> None:
        self.partitions.remove(topic_partition)
        self._unresolved.pop(topic_partition, None)
