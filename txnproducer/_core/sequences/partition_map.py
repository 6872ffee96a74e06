"""The sequence numbers of each partition: the next one, the acknowledged, those in flight.

Owns: `TxnPartitionEntry`, `TxnPartitionMap`, comparison of sequences that wrap at 2^31. Must not
know: transactions, errors, why a batch failed.

Rules:
* In flight means numbered and not ended: on the wire, or waiting in a queue for another attempt.
  In-flight batches are kept in the order of (producer id, producer epoch, base sequence).
* The acknowledged sequence and offset never go backwards.
* Sequences are compared around the wrap: at most a few batches are in flight, so the smaller
  distance shows which is first. (Java compares plain integers, and is wrong next to 2^31.)
* The answer to a batch of another identity than the entry's does not change the entry's numbers:
  after a bump they count other batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from txnproducer._record.format import MAX_INT32, NO_SEQUENCE, increment_sequence
from txnproducer.errors import IllegalStateError
from txnproducer.records import ProducerIdAndEpoch, TopicPartition

NO_LAST_ACKED_SEQUENCE: Final = -1
NO_LAST_ACKED_OFFSET: Final = -1
# Half of the 2^31 sequences: a smaller distance means "after", a larger one "before".
_HALF: Final = 1 << 30


class NumberedBatch(Protocol):
    """A batch, as far as sequence numbers are concerned."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that it is for."""
        ...

    @property
    def record_count(self) -> int:
        """How many sequences it takes."""
        ...

    @property
    def producer_id(self) -> int:
        """The producer id with which it was numbered."""
        ...

    @property
    def producer_epoch(self) -> int:
        """The epoch under which it was numbered."""
        ...

    @property
    def base_sequence(self) -> int:
        """Its first record's sequence."""
        ...

    @property
    def has_sequence(self) -> bool:
        """Whether it was numbered."""
        ...

    @property
    def last_sequence(self) -> int:
        """Its last record's sequence."""
        ...

    @property
    def is_reset(self) -> bool:
        """Whether it was renumbered since it was last sent."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        ...

    @property
    def is_in_flight(self) -> bool:
        """Whether it is on the wire."""
        ...

    @property
    def may_be_written(self) -> bool:
        """Whether the broker may have it."""
        ...

    @property
    def may_come_late(self) -> bool:
        """Whether an attempt had no answer: a copy of it can still arrive."""
        ...

    def set_producer_state(
        self, producer: ProducerIdAndEpoch, base_sequence: int, is_transactional: bool
    ) -> None:
        """Number it for the first time."""
        ...

    def reset_producer_state(self, producer: ProducerIdAndEpoch, base_sequence: int) -> None:
        """Take another number."""
        ...


def sequence_distance(first: int, second: int) -> int:
    """Return how many steps lead from the first sequence up to the second, around the wrap."""
    return (second - first) & MAX_INT32


def is_sequence_after(sequence: int, other: int) -> bool:
    """Return whether a sequence comes later than another one; -1 comes before all."""
    if other == NO_SEQUENCE:
        return sequence != NO_SEQUENCE
    return 0 < sequence_distance(other, sequence) < _HALF


def next_sequence_after(last: int) -> int:
    """Return the sequence that follows, which is 0 after none (-1)."""
    return 0 if last == NO_SEQUENCE else (last + 1) & MAX_INT32


def identity_of(batch: NumberedBatch) -> ProducerIdAndEpoch:
    """Return the producer id and epoch that a batch was numbered with."""
    return ProducerIdAndEpoch(batch.producer_id, batch.producer_epoch)


def is_numbered_by(batch: NumberedBatch, producer: ProducerIdAndEpoch) -> bool:
    """Return whether a batch was numbered under an identity."""
    return (
        batch.producer_id == producer.producer_id
        and batch.producer_epoch == producer.producer_epoch
    )


def _is_ahead(batch: NumberedBatch, other: NumberedBatch) -> bool:
    identity = (batch.producer_id, batch.producer_epoch)
    other_identity = (other.producer_id, other.producer_epoch)
    if identity != other_identity:
        return identity < other_identity
    return is_sequence_after(other.base_sequence, batch.base_sequence)


class TxnPartitionEntry:
    """One partition's numbers.

    Attributes:
        producer_id_and_epoch: the identity that the numbers belong to.
        next_sequence: the next batch's base sequence.
        last_acked_sequence: the last record's that was acknowledged; -1 for none.
        last_acked_offset: the highest offset that was acknowledged; -1 for none.
    """

    __slots__ = (
        "_in_flight",
        "last_acked_offset",
        "last_acked_sequence",
        "next_sequence",
        "producer_id_and_epoch",
        "topic_partition",
    )

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.producer_id_and_epoch = ProducerIdAndEpoch.NONE
        self.next_sequence = 0
        self.last_acked_sequence = NO_LAST_ACKED_SEQUENCE
        self.last_acked_offset = NO_LAST_ACKED_OFFSET
        self._in_flight: list[NumberedBatch] = []

    @property
    def has_in_flight_batches(self) -> bool:
        """Whether a numbered batch has not ended."""
        return bool(self._in_flight)

    @property
    def first_in_flight(self) -> NumberedBatch | None:
        """The batch in flight with the lowest sequence."""
        return self._in_flight[0] if self._in_flight else None

    @property
    def in_flight(self) -> tuple[NumberedBatch, ...]:
        """The batches in flight, in their order."""
        return tuple(self._in_flight)

    @property
    def has_renumbered_batches(self) -> bool:
        """Whether a batch in flight was sent under another number than its present one."""
        return any(batch.is_reset for batch in self._in_flight)

    @property
    def has_renumbered_on_the_wire(self) -> bool:
        """Whether such a batch has no answer yet."""
        return any(batch.is_reset and batch.is_in_flight for batch in self._in_flight)

    def is_next(self, sequence: int) -> bool:
        """Return whether a sequence directly follows the last acknowledged one."""
        return sequence == next_sequence_after(self.last_acked_sequence)

    def is_overtaken(self, batch: NumberedBatch) -> bool:
        """Return whether a later batch was written. If this one was not, its place is taken."""
        return (
            self.last_acked_sequence != NO_LAST_ACKED_SEQUENCE
            and is_numbered_by(batch, self.producer_id_and_epoch)
            and is_sequence_after(self.last_acked_sequence, batch.last_sequence)
        )

    def increment_sequence(self, increment: int) -> None:
        """Take sequences."""
        self.next_sequence = (self.next_sequence + increment) & MAX_INT32

    def add_in_flight_batch(self, batch: NumberedBatch) -> None:
        """Track a batch, in its place in the order."""
        # From the end, where nearly every batch belongs: only parts of a split go before others.
        place = len(self._in_flight)
        while place and _is_ahead(batch, self._in_flight[place - 1]):
            place -= 1
        self._in_flight.insert(place, batch)

    def remove_in_flight_batch(self, batch: NumberedBatch) -> None:
        """Stop to track a batch. One that is not tracked is ignored."""
        # By identity: after a split the first part has the whole batch's base sequence.
        self._in_flight = [tracked for tracked in self._in_flight if tracked is not batch]

    def maybe_update_last_acked(self, batch: NumberedBatch, last_offset: int) -> None:
        """Note that a batch was acknowledged up to an offset (-1 if the offset is not known)."""
        # Answers may come out of order, as after a change of the leader.
        self.last_acked_offset = max(self.last_acked_offset, last_offset)
        if not is_numbered_by(batch, self.producer_id_and_epoch):
            return
        last_sequence = batch.last_sequence
        if is_sequence_after(last_sequence, self.last_acked_sequence):
            self.last_acked_sequence = last_sequence

    def start_sequences_at_beginning(self, producer: ProducerIdAndEpoch) -> None:
        """Number from 0 under an identity, beginning with the batches in flight."""
        # A batch that has ended must not be sent again, so it must not take numbers either.
        self._in_flight = [batch for batch in self._in_flight if not batch.is_done]
        sequence = 0
        for batch in self._in_flight:
            batch.reset_producer_state(producer, sequence)
            sequence = increment_sequence(sequence, batch.record_count)
        self.producer_id_and_epoch = producer
        self.next_sequence = sequence
        # Only the sequence: offsets go on counting under every identity.
        self.last_acked_sequence = NO_LAST_ACKED_SEQUENCE

    def has_doubt_after(self, batch: NumberedBatch) -> bool:
        """Return whether a later batch in flight may be written, without this one."""
        return any(
            b.may_be_written and is_sequence_after(b.base_sequence, batch.base_sequence)
            for b in self._in_flight
        )

    def adjust_sequences_due_to_failed_batch(self, failed: NumberedBatch) -> None:
        """Give a refused batch's numbers to those after it, so that the broker sees no gap.

        Only for a batch that the broker certainly does not have.

        Raises:
            IllegalStateError: fewer numbers were given out than would be taken back.
        """
        # Batches of another identity have other numbers, which this failure does not move.
        if not is_numbered_by(failed, self.producer_id_and_epoch):
            return
        if self.is_overtaken(failed):
            return  # the broker goes on from the later batch
        base, count = failed.base_sequence, failed.record_count
        later = [
            batch
            for batch in self._in_flight
            if batch is not failed
            and is_numbered_by(batch, self.producer_id_and_epoch)
            and not is_sequence_after(base, batch.base_sequence)
        ]
        # All are checked before the first is changed: half of a renumbering would be worse.
        for sequence in (self.next_sequence, *(batch.base_sequence for batch in later)):
            if not count <= sequence_distance(base, sequence) < _HALF:
                topic, partition = self.topic_partition
                raise IllegalStateError(
                    f"{topic}-{partition}: sequence {sequence} would become negative or collide"
                    f" when the {count} from {base} on are taken back"
                )
        self.next_sequence = increment_sequence(self.next_sequence, -count)
        for batch in later:
            batch.reset_producer_state(
                self.producer_id_and_epoch, increment_sequence(batch.base_sequence, -count)
            )


class TxnPartitionMap:
    """The entries, by partition."""

    def __init__(self) -> None:
        self._entries: dict[TopicPartition, TxnPartitionEntry] = {}

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._entries

    def __iter__(self) -> Iterator[TxnPartitionEntry]:
        return iter(self._entries.values())

    def find(self, topic_partition: TopicPartition) -> TxnPartitionEntry | None:
        """Return a partition's entry, or None if its numbers were reset meanwhile."""
        return self._entries.get(topic_partition)

    def get(self, topic_partition: TopicPartition) -> TxnPartitionEntry:
        """Return a partition's entry.

        Raises:
            IllegalStateError: nothing was ever sent to the partition.
        """
        entry = self._entries.get(topic_partition)
        if entry is None:
            topic, partition = topic_partition
            raise IllegalStateError(f"no sequence numbers are kept for {topic}-{partition}")
        return entry

    def get_or_create(self, topic_partition: TopicPartition) -> TxnPartitionEntry:
        """Return a partition's entry, a new one if there was none."""
        entry = self._entries.get(topic_partition)
        if entry is None:
            entry = self._entries[topic_partition] = TxnPartitionEntry(topic_partition)
        return entry

    def remove(self, topic_partition: TopicPartition) -> None:
        """Forget a partition."""
        self._entries.pop(topic_partition, None)

    def reset(self) -> None:
        """Forget all partitions."""
        self._entries.clear()
