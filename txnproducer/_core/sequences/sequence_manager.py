"""Idempotence: the sequence numbers of batches, and the judgement on answers about them.

Java keeps this inside its transaction manager. It is a leaf here: it judges, and changes only
numbers. `TransactionProgress` decides the effect on the transaction.

Owns: the producer id and epoch, the partitions' entries, the unresolved partitions, the local
epoch bump of the idempotent producer. Must not know: the transaction's state, requests.

Rules:
* A batch is numbered when it is drained. So a batch without a number was never sent.
* A partition is unresolved if one of its batches ended without an answer, so that the broker may
  have it or not. It gets no new numbers before that is clear. A later batch that succeeded proves
  that the first was written. If all batches in flight end without such a success, the epoch must
  change.
* An idempotent producer raises its epoch by itself, and renumbers only the partitions that asked
  for it. The others go on under the old epoch until they have nothing in flight, since a batch
  that the broker may have would be written twice under a new number.
* At the last epoch the id is given back. Batches in flight are renumbered when the new id is
  known, not before. (Java sends them without an id meanwhile, which is not idempotent.)
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto
from typing import Final

from txnproducer._core.sequences.partition_map import (
    NO_LAST_ACKED_OFFSET,
    NO_LAST_ACKED_SEQUENCE,
    NumberedBatch,
    TxnPartitionEntry,
    TxnPartitionMap,
    is_sequence_after,
    next_sequence_after,
)
from txnproducer._protocol.messages import ProducePartitionResponse
from txnproducer._record.format import NO_SEQUENCE
from txnproducer._sync.held_logs import held_logger
from txnproducer.errors import (
    ErrorCode,
    IllegalStateError,
    KafkaError,
    OutOfOrderSequenceError,
    RetriableError,
    UnknownProducerIdError,
)
from txnproducer.records import ProducerIdAndEpoch, TopicPartition

_LOG = held_logger(__name__)

MAX_PRODUCER_EPOCH: Final = 2**15 - 1
# A broker remembers the last five batches of a producer in each partition.
_BATCHES_REMEMBERED: Final = 5
_OF_NUMBERS: Final = (
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
)


class BumpOutcome(Enum):
    """The outcome of an epoch bump of the idempotent producer."""

    NOT_DUE = auto()
    BUMPED = auto()
    NEW_ID_NEEDED = auto()  # the epochs are used up; the id was dropped


class SequenceManager:
    """The numbers of one producer.

    Args:
        is_transactional: an idempotent producer raises its epoch where a transaction is aborted.

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
        self._is_bump_due = False
        # Whether the next epoch is the first one of a new id, which is known already.
        self._is_id_new = False

    @property
    def has_producer_id(self) -> bool:
        """Whether there is an identity."""
        return self.producer_id_and_epoch.producer_id >= 0

    # --- the gate -------------------------------------------------------------------------------

    def is_gated(self, batch: NumberedBatch) -> bool:
        """Return whether a batch must stay in its queue so that sequences stay in order.

        A batch with a number goes only as the lowest in flight, so retries go one at a time. It
        waits while a batch that was renumbered on the wire may still be written, since that one is
        later in order.

        A batch without a number waits

        * while the outcome of an expired batch is unknown;
        * while batches of an earlier id or epoch are in flight (also if they were renumbered on
          the wire, where Java's does not wait);
        * while batches are in flight and the partition has acknowledged none of this producer id;
        * while a batch is repeated that later ones have overtaken;
        * while five batches are in flight: the broker remembers only five per producer, so a sixth
          could not be deduplicated. (In these last three cases Java's goes on.)
        """
        place = batch.topic_partition
        # A batch with a number was sent before the doubt arose, and its success may resolve it.
        if place in self._unresolved and not batch.has_sequence:
            return True
        entry = self.partitions.find(place)
        first = None if entry is None else entry.first_in_flight
        if entry is None or first is None:
            return False
        if batch.has_sequence:
            is_lowest = batch.base_sequence == first.base_sequence
            return not is_lowest or entry.has_renumbered_on_the_wire
        return (
            self._is_stale(entry)
            or not self.is_known_in(place)
            or entry.is_overtaken(first)
            or len(entry.in_flight) >= _BATCHES_REMEMBERED
            or entry.has_renumbered_batches
        )

    def is_known_in(self, topic_partition: TopicPartition) -> bool:
        """Return whether a partition has acknowledged a batch of this producer id.

        A partition takes any first number of a producer that it does not know. So it could write a
        later batch after it had refused the first one for the moment, and the first one could
        never be written any more.
        """
        return self._known_as.get(topic_partition) == self.producer_id_and_epoch.producer_id

    def _is_stale(self, entry: TxnPartitionEntry) -> bool:
        """Return whether a partition's numbers belong to an earlier identity."""
        known = entry.producer_id_and_epoch
        # It is nearly always the same object. The comparison of the contents is slow.
        return known is not self.producer_id_and_epoch and known != self.producer_id_and_epoch

    # --- numbering ------------------------------------------------------------------------------

    def number(self, batch: NumberedBatch) -> None:
        """Give a batch the partition's next numbers, and track it."""
        entry = self.maybe_update_producer_id_and_epoch(batch.topic_partition)
        batch.set_producer_state(
            self.producer_id_and_epoch, entry.next_sequence, self._is_transactional
        )
        # After the batch has them: one that refuses its numbers leaves no gap.
        entry.increment_sequence(batch.record_count)
        entry.add_in_flight_batch(batch)

    def maybe_update_producer_id_and_epoch(
        self, topic_partition: TopicPartition
    ) -> TxnPartitionEntry:
        """Go over to the present identity, if nothing of an earlier one is in flight.

        Returns:
            The partition's numbers. Under a new identity they begin at 0 again.
        """
        entry = self.partitions.get_or_create(topic_partition)
        if self._is_stale(entry) and not entry.has_in_flight_batches:
            entry.start_sequences_at_beginning(self.producer_id_and_epoch)
        return entry

    def start_sequences_at_beginning(
        self, topic_partition: TopicPartition, producer: ProducerIdAndEpoch
    ) -> None:
        """Renumber a partition's batches in flight from 0."""
        entry = self.partitions.find(topic_partition)
        if entry is not None:
            entry.start_sequences_at_beginning(producer)

    # --- batches in flight ----------------------------------------------------------------------

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
        """Return whether a batch is tracked. A reset of its partition's numbers ends that."""
        entry = self.partitions.find(batch.topic_partition)
        # By identity: after a split the first part has the whole batch's base sequence.
        return entry is not None and any(tracked is batch for tracked in entry.in_flight)

    def has_in_flight_batches(self, topic_partition: TopicPartition) -> bool:
        """Return whether a numbered batch of the partition has not ended."""
        entry = self.partitions.find(topic_partition)
        return entry is not None and entry.has_in_flight_batches

    def forget_topics(self, gone: Collection[str]) -> None:
        """Forget the acknowledgements of partitions if their topics have gone.

        Args:
            gone: the topics; one that was created again knows no producer.
        """
        if gone:
            kept = {p: known for p, known in self._known_as.items() if p.topic not in gone}
            self._known_as = kept

    def is_memory_of_broker_used_up(self, topic_partition: TopicPartition) -> bool:
        """Return whether the broker could not deduplicate another batch.

        Five batches are in flight then: the broker remembers only five per producer, so a sixth
        could not be deduplicated. There can be more than one connection takes if the leader has
        moved, and the previous leader does not answer.
        """
        entry = self.partitions.find(topic_partition)
        return entry is not None and len(entry.in_flight) >= _BATCHES_REMEMBERED

    def first_in_flight_sequence(self, topic_partition: TopicPartition) -> int:
        """Return the lowest base sequence in flight, or -1."""
        entry = self.partitions.find(topic_partition)
        first = None if entry is None else entry.first_in_flight
        return NO_SEQUENCE if first is None else first.base_sequence

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

        The partition's numbers may have been reset since the batch was sent (by a transaction's
        end, or a bump). Then there is nothing to note.
        """
        if not batch.is_reset:  # a reset one was written under another number, perhaps another id
            self._known_as[batch.topic_partition] = batch.producer_id
        entry = self.partitions.find(batch.topic_partition)
        if entry is None:
            return
        has_offset = response.base_offset >= 0
        last_offset = response.base_offset + batch.record_count - 1 if has_offset else -1
        entry.maybe_update_last_acked(batch, last_offset)
        entry.remove_in_flight_batch(batch)
        if batch.is_reset and not self._is_transactional:
            # It was renumbered on the wire, and is written under its old number. The batch after
            # it must get the first number of a new epoch. (In Java that batch is refused once.)
            self.request_idempotent_epoch_bump_for_partition(batch.topic_partition)

    def handle_failed_batch(
        self, batch: NumberedBatch, error: KafkaError, *, adjust_sequence_numbers: bool
    ) -> None:
        """Settle the numbers of a batch that failed and will not be sent again.

        Args:
            batch: the batch.
            error: why it failed.
            adjust_sequence_numbers: whether the broker certainly does not have it.
        """
        place = batch.topic_partition
        if isinstance(error, UnknownProducerIdError):
            self._known_as.pop(place, None)
        is_gap_certain = isinstance(error, OutOfOrderSequenceError) or self._leaves_gap(batch)
        if is_gap_certain and not self._is_transactional:
            self.request_idempotent_epoch_bump_for_partition(place)
        elif isinstance(error, UnknownProducerIdError):
            # The broker does not know this producer, so it expects sequence 0.
            self._reset_partition(place)
        elif adjust_sequence_numbers and self._is_transactional:
            entry = self.partitions.find(place)
            if entry is not None:
                entry.adjust_sequences_due_to_failed_batch(batch)
        elif adjust_sequence_numbers:
            self.request_idempotent_epoch_bump_for_partition(place)

    def _leaves_gap(self, batch: NumberedBatch) -> bool:
        """Return whether a batch's new number will never be sent, and others follow it."""
        # A batch that was not renumbered was sent under its number.
        entry = self.partitions.find(batch.topic_partition) if batch.is_reset else None
        if entry is None:
            return False
        return any(
            is_sequence_after(b.base_sequence, batch.base_sequence) for b in entry.in_flight
        )

    def can_retry(
        self, response: ProducePartitionResponse, error: KafkaError, batch: NumberedBatch
    ) -> bool:
        """Return whether a refused batch may be sent again. Renumber it if that is needed."""
        code = response.error_code
        if code not in _OF_NUMBERS:
            return isinstance(error, RetriableError)
        if self._is_transactional and not self.is_in_flight(batch):
            # An earlier batch's failure has reset the numbers, so this one has no place any more.
            # (Java retries it until its time is up.)
            return False
        if code == ErrorCode.UNKNOWN_PRODUCER_ID:
            return self._can_retry_unknown_producer_id(response.log_start_offset, batch)
        return self._can_retry_out_of_order(batch)

    def _can_retry_unknown_producer_id(self, log_start_offset: int, batch: NumberedBatch) -> bool:
        if log_start_offset == -1 or batch.is_reset:
            # The broker does not know where its log starts, since the partition has moved. Or the
            # batch was renumbered for an earlier answer like this one. In both cases it is sent
            # again.
            return True
        place = batch.topic_partition
        self._known_as.pop(place, None)
        if not self._is_transactional:
            self.request_idempotent_epoch_bump_for_partition(place)
            return True
        entry = self.partitions.get(place)
        if any(tracked.may_come_late for tracked in entry.in_flight):
            # The epoch stays the same: a late copy with an old number could be written after
            # batches with new numbers. (Java goes on.)
            return False
        if self.last_acked_offset(place) < log_start_offset:
            # Retention has deleted this producer's records, and with them the broker's state of
            # it. Nothing was lost, so the transaction goes on with numbers from 0.
            self.start_sequences_at_beginning(place, self.producer_id_and_epoch)
            return True
        return False

    def _can_retry_out_of_order(self, batch: NumberedBatch) -> bool:
        place = batch.topic_partition
        unresolved_next = self._unresolved.get(place)
        is_next = self._is_next_to_acked(batch)
        if unresolved_next is None and not batch.is_reset and self.is_overtaken(batch):
            # A later batch was written without it, since the broker did not know the producer yet.
            # No retry can succeed any more. (Java retries until its time is up.)
            return False
        if unresolved_next is None and (batch.is_reset or not is_next):
            # An earlier batch was refused as well, and will be sent first.
            return True
        if self._is_transactional:
            return False
        is_first = self.first_in_flight_sequence(place) == batch.base_sequence
        if unresolved_next is None or (is_first and not batch.is_reset):
            # There is a gap for certain: the number before this batch will never be written. (Java
            # does not see that if a later batch is unresolved as well, and retries until its time
            # is up.)
            self.request_idempotent_epoch_bump_for_partition(place)
        return True

    def _is_next_to_acked(self, batch: NumberedBatch) -> bool:
        last = self.last_acked_sequence(batch.topic_partition)
        return batch.base_sequence == next_sequence_after(last)

    def is_overtaken(self, batch: NumberedBatch) -> bool:
        """Return whether a later batch was written. If this one was not, its place is taken."""
        entry = self.partitions.find(batch.topic_partition)
        return entry is not None and entry.is_overtaken(batch)

    def may_give_numbers_away(self, batch: NumberedBatch) -> bool:
        """Return whether later batches can take the numbers of one that is not written.

        In a transaction they keep the epoch. If one of them may be written, the broker could take
        another one for it, which has its old number now. (Java renumbers them.)
        """
        entry = self.partitions.find(batch.topic_partition) if self._is_transactional else None
        if entry is None:
            return True
        return batch.topic_partition not in self._unresolved and not entry.has_doubt_after(batch)

    # --- unresolved partitions ------------------------------------------------------------------

    def has_unresolved_sequence(self, topic_partition: TopicPartition) -> bool:
        """Return whether the partition has a batch of unknown outcome."""
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
        # The latest of several: a success after it proves that all of them were written.
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
            # A batch in flight may still succeed, and prove that the lost one was written.
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
        """The partitions where an idempotent producer's next bump renumbers batches."""
        return frozenset(self._to_rewrite) if self._is_bump_due else frozenset()

    def bump_idempotent_epoch(self) -> BumpOutcome:
        """Raise the epoch if that was asked for. Only for an idempotent producer."""
        current = self.producer_id_and_epoch
        if not self._is_bump_due or not current.is_valid:
            return BumpOutcome.NOT_DUE
        # An epoch has 16 bits: after the last one only a new producer id goes on, as in Java.
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
        other answers that came with this one may still decide about them.
        """
        self.producer_id_and_epoch = producer
        self._is_id_new = self._is_bump_due

    def _renumber(self) -> None:
        for place in self._to_rewrite:
            self.start_sequences_at_beginning(place, self.producer_id_and_epoch)
            # The lost batch belongs to the old epoch, and decides nothing under the new one.
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
