"""What the user holds of a record on its way: one result per batch, one thin future per record.

Owns: `ProduceRequestResult`, `FutureRecordMetadata`, `FlushTicket`, `CallbackBatch`. Must not
know: batches' bytes, queues, the sender. It waits only through the `Waiter` that it was given.

Rules:
* A result is set (readable) before the delivery callbacks run, and done (waiters go on) after
  them.
* A batch that was split hands its records on: each future follows its record into the child.
* A future costs a user one small object per record; it knows its place, and looks the rest up when
  asked.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from txnproducer._core.ports import Waiter
from txnproducer.errors import IllegalStateError, KafkaError, KafkaTimeoutError
from txnproducer.records import RecordMetadata, TopicPartition

_LOG = logging.getLogger(__name__)

NO_OFFSET: Final = -1
NO_TIMESTAMP: Final = -1

DeliveryCallback: TypeAlias = Callable[[RecordMetadata, KafkaError | None], object]
RecordErrors: TypeAlias = Callable[[int], KafkaError]


class ProduceRequestResult:
    """The end of one batch, shared by the futures of its records."""

    __slots__ = (
        "_record_errors",
        "base_offset",
        "child_starts",
        "children",
        "is_done",
        "is_set",
        "log_append_time_ms",
        "topic_partition",
        "waiter",
    )

    def __init__(self, topic_partition: TopicPartition, waiter: Waiter) -> None:
        self.topic_partition = topic_partition
        self.waiter = waiter
        self.base_offset = NO_OFFSET
        self.log_append_time_ms = NO_TIMESTAMP
        self.is_set = False
        self.is_done = False
        self._record_errors: RecordErrors | None = None
        self.children: list[ProduceRequestResult] = []
        self.child_starts: list[int] = []

    def set(
        self, base_offset: int, log_append_time_ms: int, record_errors: RecordErrors | None
    ) -> None:
        """Make the end readable.

        Args:
            base_offset: of the first record; -1 if it is not known.
            log_append_time_ms: the broker's timestamp for all records; -1 if each keeps its own.
            record_errors: from a record's index to its error; None for success.

        Raises:
            IllegalStateError: it was set before.
        """
        if self.is_set:
            raise IllegalStateError(
                f"the result of a batch of {self.topic_partition} is set twice"
            )
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self._record_errors = record_errors
        self.is_set = True

    def done(self) -> None:
        """Let those who wait go on."""
        self.is_done = True

    def split_into(self, children: Sequence[tuple[int, ProduceRequestResult]]) -> None:
        """Hand the records on.

        Args:
            children: each with the index that its first record had in this batch, in this order.
        """
        self.child_starts = [start for start, _ in children]
        self.children = [child for _, child in children]
        self.is_set = True
        self.is_done = True

    def are_all_done(self) -> bool:
        """Return whether the batch and all it was split into are done; a flush waits for this."""
        return self.is_done and all(child.are_all_done() for child in self.children)

    def locate(self, index: int) -> tuple[ProduceRequestResult, int]:
        """Return the result that decides about a record, and the record's index there."""
        result = self
        while result.children:
            position = bisect_right(result.child_starts, index) - 1
            index -= result.child_starts[position]
            result = result.children[position]
        return result, index

    def error_of(self, index: int) -> KafkaError | None:
        """Return a record's error, or None if it succeeded or is not decided yet."""
        return None if self._record_errors is None else self._record_errors(index)


class FutureRecordMetadata:
    """The end of one record: where it was written, or why it was not.

    Its methods are those of `concurrent.futures.Future`, as far as it has them.
    """

    __slots__ = ("_index", "_key_size", "_result", "_timestamp_ms", "_value_size")

    def __init__(
        self,
        result: ProduceRequestResult,
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
        """Return whether the record was delivered or has failed, and its callback has run."""
        result = self._result
        if result.children:
            result, _ = result.locate(self._index)
        return result.is_done

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
        if not self.done() and not self._result.waiter.wait_until(self.done, timeout):
            place = self._result.topic_partition
            waited = "" if timeout is None else f" within {timeout:g} s"
            raise KafkaTimeoutError(
                f"the record for {place.topic}-{place.partition} was not delivered{waited}; it is "
                "still on its way, so call result() again, or raise the timeout"
            )
        return self.error

    @property
    def error(self) -> KafkaError | None:
        """The record's error as far as it is known now; it does not wait."""
        result, index = self._result.locate(self._index)
        return result.error_of(index)

    def metadata(self) -> RecordMetadata:
        """Return what is known of the record's place now, -1 for the rest; it does not wait."""
        result, index = self._result.locate(self._index)
        topic, partition = result.topic_partition
        if result.error_of(index) is not None:
            return RecordMetadata(topic, partition)
        base_offset = result.base_offset
        offset = NO_OFFSET if base_offset == NO_OFFSET else base_offset + index
        timestamp_ms = result.log_append_time_ms
        if timestamp_ms == NO_TIMESTAMP:
            timestamp_ms = self._timestamp_ms
        return RecordMetadata(
            topic, partition, offset, timestamp_ms, self._key_size, self._value_size
        )

    def __repr__(self) -> str:
        topic, partition = self._result.topic_partition
        state = "pending"
        if self.done():
            state = "delivered" if self.error is None else f"failed: {self.error}"
        return f"<FutureRecordMetadata {topic}-{partition} {state}>"


class FlushTicket:
    """What a flush waits for: the batches incomplete when it began, and what they split into."""

    __slots__ = ("_results",)

    def __init__(self, results: Iterable[ProduceRequestResult]) -> None:
        self._results = list(results)

    def is_done(self) -> bool:
        """Return whether every one of them is done; it does not say how they ended."""
        results = self._results
        while results and results[-1].are_all_done():
            results.pop()
        return not results


class CallbackBatch:
    """Delivery callbacks that became due together, for the shell to run without its lock.

    Args:
        calls: each record's future and callback, in the order of their appends.
        on_finished: releases what waited for the callbacks; called once they ran, by
            `ProducerCore.finish_callbacks`.
    """

    __slots__ = ("_calls", "on_finished")

    def __init__(
        self,
        calls: Sequence[tuple[FutureRecordMetadata, DeliveryCallback]],
        on_finished: Callable[[], None],
    ) -> None:
        self._calls = calls
        self.on_finished = on_finished

    def run(self) -> None:
        """Call each callback; an exception in one is logged, and the next one runs.

        A `BaseException` (asyncio's CancelledError, SystemExit) is no reason to leave the others
        without their call either: this is not the thread that it could end.
        """
        for future, callback in self._calls:
            try:
                callback(future.metadata(), future.error)
            except BaseException:  # noqa: BLE001 - whatever users' code raises
                _LOG.exception("a delivery callback failed for %r", future)


def failed_future(
    error: KafkaError, topic: str, partition: int, waiter: Waiter
) -> FutureRecordMetadata:
    """Make the future of a record that failed before it reached a batch.

    Args:
        error: why.
        topic: the record's topic.
        partition: its partition, -1 if none was chosen yet.
        waiter: as everywhere; nobody will wait.
    """
    result = ProduceRequestResult(TopicPartition(topic, partition), waiter)
    result.set(NO_OFFSET, NO_TIMESTAMP, lambda _: error)
    result.done()
    return FutureRecordMetadata(result, 0, NO_TIMESTAMP, -1, -1)
