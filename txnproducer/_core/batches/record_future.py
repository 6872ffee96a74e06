"""The future of one record: it knows its place in a batch, and looks the rest up when asked.

Owns: `FutureRecordMetadata`, the one object that each record costs, and the calls that it has in
common with the future of many records. Must not know: how a batch ends. The batch's result knows
that, and the part that each record went to.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from txnproducer._core.ports import DoneListener, PendingEnd, Waiter
from txnproducer.errors import KafkaError, KafkaTimeoutError
from txnproducer.records import RecordMetadata, TopicPartition

if TYPE_CHECKING:
    import concurrent.futures

_UNKNOWN: Final = -1


class BatchEnd(Protocol):
    """The result of a batch, as the futures of its records see it."""

    topic_partition: TopicPartition
    waiter: Waiter
    base_offset: int
    log_append_time_ms: int
    is_done: bool
    listeners: list[DoneListener] | None

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


class DeliveryFuture:
    """The calls that tell others of the end, which the futures of `send` and of many rows share.

    A future can be awaited in asyncio: `metadata = await future`. That raises what `result()`
    would raise. A task that is cancelled meanwhile ends only its own wait: the records are on
    their way, and only `abort_transaction` takes them back.
    """

    __slots__ = ()

    def add_done_callback(self, fn: Callable[[Self], object]) -> None:
        """Call a function with this future once it is done.

        It is called on the I/O thread, after the delivery callbacks, together with all others that
        became due in the same turn of the loop; if the future is done already, at once and on the
        calling thread. The order of the calls is that of the batches' ends. An exception in it is
        logged. It must not block, and cannot wait for this producer.

        A commit does not wait for it, as it does for the callbacks of `on_delivery`. So a record
        that it sends may come too late for the transaction.

        Args:
            fn: a function of one argument, or another callable. A coroutine function is refused:
                await the future in a task instead.

        Raises:
            TypeError: it cannot be called, or is a coroutine function.
            ForkedProducerError: this process is a fork, and the end will not be known here.
        """
        self._waiter_of().done_callbacks.call(self, fn)

    def as_concurrent_future(self) -> concurrent.futures.Future[Any]:
        """Return a new `concurrent.futures.Future` that ends as this one does.

        It works with `concurrent.futures.wait`, `asyncio.wrap_future` and executors of others. It
        cannot be cancelled: the records are on their way. Each costs a condition variable, so
        this future itself is the cheaper one to wait for.

        Raises:
            ForkedProducerError: this process is a fork, and the end will not be known here.
        """
        future: concurrent.futures.Future[Any]
        future = self._waiter_of().done_callbacks.as_concurrent_future(self)
        return future

    def done(self) -> bool:
        """Return whether it has ended."""
        raise NotImplementedError

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the end, and return the outcome or raise the error."""
        raise NotImplementedError

    def pending_end(self) -> PendingEnd | None:
        """Return the batch's result that it waits for now, or None once it has ended."""
        raise NotImplementedError

    def _waiter_of(self) -> Waiter:
        raise NotImplementedError

    def _wait_in_loop(self) -> Generator[Any, None, None]:
        if not self.done():
            yield from self._waiter_of().done_callbacks.wait_in_loop(self)


class FutureRecordMetadata(DeliveryFuture):
    """The end of one record: where it was written, or why it was not.

    It has most of the methods of `concurrent.futures.Future`, and can be awaited.
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
        return self.pending_end() is None

    def pending_end(self) -> PendingEnd | None:
        """Return the batch's result that the record waits for now, or None once it has ended."""
        result, index = self._result, self._index
        # `is_done` is read first: a split sets it last, when its parts are there to be read.
        while result.is_done:
            if not result.children:
                return None
            result, index = result.locate(index)
        return result

    def _waiter_of(self) -> Waiter:
        return self._result.waiter

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        yield from self._wait_in_loop()
        return self.result(0)

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
            # All records of a batch share it: each raise would leave its frames in the next one.
            raise error.with_traceback(None)
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
            waited = "" if timeout is None else f" within {float(timeout):g} s"
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
