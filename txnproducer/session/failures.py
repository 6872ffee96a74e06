"""Records that fail again and again, and their way into the dead-letter topic.

Owns: the count of the failures of each record. Must not know: polls, commits, how a batch is read
again (`session`).
Rules:
* A record is counted by its place, so that a batch which is cut differently changes nothing.
* The count of a record that is committed, or that another consumer reads now, is forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from txnproducer._shell.serialization import as_serialized
from txnproducer.errors import KafkaError
from txnproducer.records import TopicPartition
from txnproducer.session.batch import Record
from txnproducer.transaction import Transaction

__all__ = ["Failures", "PoisonError"]

_LOG = logging.getLogger(__name__)


class PoisonError(Exception):
    """Leaves the block of a batch with a record that has failed.

    Attributes:
        error: of the function.
        count: of the record's failures.
        may_be_read_again: whether it may be called again, or has a dead-letter topic.
    """

    def __init__(self, error: Exception, count: int, *, may_be_read_again: bool) -> None:
        super().__init__(error)
        self.error = error
        self.count = count
        self.may_be_read_again = may_be_read_again


class Failures:
    """How often records have failed, and their last exceptions.

    Args:
        most: calls for one record that may raise.
        dead_letter_topic: of the records that have failed as often; None if there is none.
    """

    def __init__(self, most: int, dead_letter_topic: str | None) -> None:
        if most < 1:
            raise ValueError(f"max_failures={most}: at least one call is needed")
        self._most = most
        self._dead_letter_topic = dead_letter_topic
        self._found: dict[tuple[TopicPartition, int], tuple[int, Exception]] = {}

    def __len__(self) -> int:
        return len(self._found)

    def process(
        self,
        record: Record,
        fn: Callable[[Record, Transaction], object],
        transaction: Transaction,
        retry_on: tuple[type[BaseException], ...],
    ) -> None:
        """Call a function with a record, or write the record to the dead-letter topic.

        Args:
            record: of the batch.
            fn: the function.
            transaction: of the batch.
            retry_on: exceptions that are no failure of the record.

        Raises:
            PoisonError: the record has failed.
            Exception: it is no failure of the record: an error of the transaction, or one in
                `retry_on`.
        """
        place = record.topic_partition, record.offset
        count, last = self._found.get(place, (0, None))
        if last is not None and count >= self._most:
            self._bury(record, transaction, last)
            return
        try:
            fn(record, transaction)
        except retry_on:
            raise
        except Exception as error:
            # Another error of Kafka's is of the transaction, and not of the record.
            if isinstance(error, KafkaError) and error.recovery != "fix":
                raise
            count += 1
            self._found[place] = count, error
            may = self._dead_letter_topic is not None or count < self._most
            raise PoisonError(error, count, may_be_read_again=may) from error

    def _bury(self, record: Record, transaction: Transaction, error: BaseException) -> None:
        place = f"{record.topic}-{record.partition}, offset {record.offset}"  # not its content
        text = "the record of %s goes to the dead-letter topic %s: %r"
        _LOG.warning(text, place, self._dead_letter_topic, error)
        about = {
            "dlt-topic": record.topic,
            "dlt-partition": str(record.partition),
            "dlt-offset": str(record.offset),
            "dlt-error": repr(error),
        }
        headers = [*record.headers, *((name, value.encode()) for name, value in about.items())]
        # As they came: the producer's serializers are for the results.
        value, key = as_serialized(record.value), as_serialized(record.key)
        transaction.send(self._dead_letter_topic or "", value, key, headers)

    def forget_before(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Forget the records before these offsets, which are committed."""
        self._keep(lambda place, offset: offset >= offsets.get(place, 0))

    def forget_elsewhere(self, assigned: Collection[TopicPartition]) -> None:
        """Forget the records of partitions that other consumers read."""
        self._keep(lambda place, _: place in assigned)

    def _keep(self, is_kept: Callable[[TopicPartition, int], bool]) -> None:
        if self._found:
            self._found = {place: one for place, one in self._found.items() if is_kept(*place)}
