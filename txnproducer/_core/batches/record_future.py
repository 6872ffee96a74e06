"""The future of one record: it knows its place in a batch, and looks the rest up when asked.

Owns: `FutureRecordMetadata`, the one object that each record costs. Must not know: how a batch
ends. The batch's result knows that, and the part that each record went to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from txnproducer._core.ports import Waiter
from txnproducer.errors import KafkaError, KafkaTimeoutError
from txnproducer.records import RecordMetadata, TopicPartition

_UNKNOWN: Final = -1


class BatchEnd(Protocol):
    """The result of a batch, as the futures of its records see it."""

    topic_partition: TopicPartition
    waiter: Waiter
    base_offset: int
    log_append_time_ms: int
    is_done: bool

    @property
    def children(self) -> Sequence[BatchEnd]:
        """The results of the parts that the batch was split into."""
        ...

    def locate(self, index: int) -> tuple[BatchEnd, int]:
        """Return the result that decides about a record, and the record's index there."""
        ...

    def error_of(self, index: int) -> KafkaError | None:
        """Return a record's error, or None."""
        ...


class FutureRecordMetadata:
    """The end of one record: where it was written, or why it was not.

    It has some of the methods of `concurrent.futures.Future`.
    """

    __slots__ = ("_index", "_key_size", "_result", "_timestamp_ms", "_value_size")

    def __init__(
        self,
        result: BatchEnd,
        index: int,
        timestamp_ms: int,
        key_size: int,
        value_size: int,
    ) -> None:
        self._result = result
        self._index = index
        self._timestamp_ms = timestamp_ms
        self._key_size = key_size
        self._value_size = value_size

    def done(self) -> bool:
        """Return whether the record was delivered or has failed, and its callback has run.

        Raises:
            ForkedProducerError: it had not at the fork that has made this process.
        """
        if self._has_ended():
            return True
        self._result.waiter.refuse_in_fork()
        return False

    def _has_ended(self) -> bool:
        result, index = self._result, self._index
        # `is_done` is read first: a split sets it last, when its parts are there to be read.
        while result.is_done:
            if not result.children:
                return True
            result, index = result.locate(index)
        return False

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the record's delivery.

        Args:
            timeout: seconds; None waits as long as the producer lives (each record ends within
                `delivery_timeout_ms`).

        Returns:
            Where the record was written. Inside a transaction this does not mean that it is
            committed.

        Raises:
            KafkaTimeoutError: not yet; the record is still on its way.
            KafkaError: the record's own error.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self.metadata()

    def exception(self, timeout: float | None = None) -> KafkaError | None:
        """Wait for the record's end and return its error, or None if it was delivered.

        Raises:
            KafkaTimeoutError: not yet; the record is still on its way.
        """
        has_ended = self._has_ended
        # Asked first: a record that ended before a fork has its result in the child, too.
        if not has_ended() and not self._result.waiter.wait_until(has_ended, timeout):
            place = self._result.topic_partition
            waited = "" if timeout is None else f" within {timeout:g} s"
            raise KafkaTimeoutError(
                f"the record for {place.topic}-{place.partition} was not delivered{waited}; it is "
                "still on its way, so call result() again, or raise the timeout"
            )
        return self.error

    @property
    def error(self) -> KafkaError | None:
        """The record's error as far as it is known now, without waiting."""
        result, index = self._result.locate(self._index)
        return result.error_of(index)

    def metadata(self) -> RecordMetadata:
        """Return the record's place as far as it is known now, with -1 for the rest."""
        result, index = self._result.locate(self._index)
        topic, partition = result.topic_partition
        if result.error_of(index) is not None:
            return RecordMetadata(topic, partition)
        base_offset = result.base_offset
        offset = _UNKNOWN if base_offset == _UNKNOWN else base_offset + index
        # The broker's time wins: with LogAppendTime the log does not keep the record's own.
        timestamp_ms = result.log_append_time_ms
        if timestamp_ms == _UNKNOWN:
            timestamp_ms = self._timestamp_ms
        return RecordMetadata(
            topic, partition, offset, timestamp_ms, self._key_size, self._value_size
        )

    def __repr__(self) -> str:
        topic, partition = self._result.topic_partition
        state = "pending"
        if self._has_ended():
            state = "delivered" if self.error is None else f"failed: {self.error}"
        return f"<FutureRecordMetadata {topic}-{partition} {state}>"
