"""A batch of which nothing is there but its numbers."""

from __future__ import annotations

from txnproducer._record.format import increment_sequence
from txnproducer.errors import IllegalStateError
from txnproducer.records import ProducerIdAndEpoch, TopicPartition

TP0 = TopicPartition("topic", 0)
TP1 = TopicPartition("topic", 1)
CURRENT = ProducerIdAndEpoch(77, 5)


class FakeBatch:
    """A `ProducerBatch` as the sequence numbers see it."""

    def __init__(
        self,
        base_sequence: int = -1,
        record_count: int = 1,
        *,
        place: TopicPartition = TP0,
        producer: ProducerIdAndEpoch = CURRENT,
    ) -> None:
        self.topic_partition = place
        self.record_count = record_count
        self.producer_id = producer.producer_id
        self.producer_epoch = producer.producer_epoch
        self.base_sequence = base_sequence
        self.is_reset = False
        self.may_be_written = False
        self.may_come_late = False
        self.is_in_flight = True
        self.is_done = False

    @property
    def has_sequence(self) -> bool:
        return self.base_sequence != -1

    @property
    def last_sequence(self) -> int:
        return increment_sequence(self.base_sequence, self.record_count - 1)

    def reset_producer_state(self, producer: ProducerIdAndEpoch, base_sequence: int) -> None:
        if self.is_done:
            raise IllegalStateError("has ended")
        self.producer_id = producer.producer_id
        self.producer_epoch = producer.producer_epoch
        self.base_sequence = base_sequence
        self.is_reset = True
