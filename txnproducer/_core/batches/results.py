"""The results of records on their way: one per batch, with one thin future per record.

Owns: `ProduceRequestResult`, `FlushTicket`, `CallbackBatch`; the futures are those of
`record_future`. Must not know: batches' bytes, queues, the sender. It waits only through the
`Waiter` that it was given.

Rules:
* A result is set (readable) before the delivery callbacks run, and done (waiting callers go on)
  after them.
* A split batch hands its records on: each future follows its record into the child.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Final, TypeAlias

from txnproducer._core.batches.record_future import FutureRecordMetadata
from txnproducer._core.ports import DoneListener, Waiter
from txnproducer._sync.held_logs import held_logger
from txnproducer.errors import IllegalStateError, KafkaError
from txnproducer.records import RecordMetadata, TopicPartition

_LOG = held_logger(__name__)

NO_OFFSET: Final = -1
NO_TIMESTAMP: Final = -1

__all__ = [
    "NO_OFFSET",
    "NO_TIMESTAMP",
    "CallbackBatch",
    "DeliveryCallback",
    "FlushTicket",
    "FutureRecordMetadata",
    "ProduceRequestResult",
    "RecordErrors",
    "failed_future",
]

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
        "listeners",
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
        self.listeners: list[DoneListener] | None = None
        # Other threads read them without a lock. That is safe because they are set only once, and
        # the empty tuple before is never freed.
        self.children: tuple[ProduceRequestResult, ...] = ()
        self.child_starts: tuple[int, ...] = ()

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
        # Last, so that a reader never sees half a result.
        self.is_set = True

    def done(self) -> None:
        """Let the waiting callers go on."""
        self.is_done = True
        if self.listeners is not None:
            self._hand_over()

    def split_into(self, children: Sequence[tuple[int, ProduceRequestResult]]) -> None:
        """Hand the records on.

        Args:
            children: each with the index that its first record had in this batch, in this order.
        """
        # The starts first, since readers without a lock decide by `children`; `is_done` last.
        self.child_starts = tuple([start for start, _ in children])
        self.children = tuple([child for _, child in children])
        # Set as well, though the batch has no end of its own: a second end is refused.
        self.is_set = True
        self.is_done = True
        if self.listeners is not None:
            self._hand_over()

    def _hand_over(self) -> None:
        listeners, self.listeners = self.listeners, None
        self.waiter.done_callbacks.hand_over(listeners or ())

    def first_pending(self) -> ProduceRequestResult | None:
        """Return this batch or the first of its parts that is not done, or None."""
        if not self.is_done:
            return self
        return next(filter(None, (child.first_pending() for child in self.children)), None)

    def are_all_done(self) -> bool:
        """Return whether the batch and all it was split into are done. A flush waits for this."""
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


class FlushTicket:
    """The batches that a flush waits for: the incomplete ones at its beginning and their parts."""

    __slots__ = ("_results",)

    def __init__(self, results: Iterable[ProduceRequestResult]) -> None:
        self._results = list(results)

    def is_done(self) -> bool:
        """Return whether every one of them is done, with success or not."""
        results = self._results
        # From the end, where the batches stand that usually end last: most calls look at one
        # alone.
        while results and results[-1].are_all_done():
            results.pop()
        return not results


class CallbackBatch:
    """Delivery callbacks that became due together, for the shell to run without its lock.

    Args:
        calls: each record's future and callback, in the order of their appends.
        on_finished: releases callers that waited for the callbacks. Call it once they ran, with
            the lock held.

    Attributes:
        raised: the exceptions of the callbacks that have run.
    """

    __slots__ = ("_calls", "on_finished", "raised")

    def __init__(
        self,
        calls: Sequence[tuple[FutureRecordMetadata, DeliveryCallback]],
        on_finished: Callable[[], None],
    ) -> None:
        self._calls = calls
        self.on_finished = on_finished
        self.raised: tuple[BaseException, ...] = ()

    def run(self) -> None:
        """Call each callback. An exception in one is logged, and the next one runs.

        This includes a `BaseException` (asyncio's CancelledError, SystemExit): it is not meant for
        this thread, and the other records must not lose their calls.
        """
        for future, callback in self._calls:
            try:
                outcome: object = callback(future.metadata(), future.error)
                if isinstance(outcome, Coroutine):
                    outcome.close()  # before Python warns of it at a line of its own
                    raise TypeError(
                        "on_delivery returned a coroutine, which nobody awaits: give a function,"
                        " or await the future of `send`"
                    )
            except BaseException as error:  # noqa: BLE001 - users' code may raise anything
                _LOG.exception("a delivery callback failed for %r", future)
                self.raised += (error,)


def failed_future(
    error: KafkaError, topic: str, partition: int, waiter: Waiter
) -> FutureRecordMetadata:
    """Make the future of a record that failed before it reached a batch.

    Args:
        error: why.
        topic: the record's topic.
        partition: its partition, -1 if none was chosen yet.
        waiter: required by the result, and not used.
    """
    result = ProduceRequestResult(TopicPartition(topic, partition), waiter)
    result.set(NO_OFFSET, NO_TIMESTAMP, lambda _: error)
    result.done()
    return FutureRecordMetadata(result, 0, NO_TIMESTAMP, -1, -1)
