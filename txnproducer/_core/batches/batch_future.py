"""The future of many records that were sent by one call. Their places are computed when asked.

Owns: `FutureBatchMetadata`, `BatchMetadata`, `RowsTaken`. Must not know: columns, queues. It keeps
the rows that each batch took; the offsets are in the batches' results.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

from txnproducer._core.batches.record_future import DeliveryFuture
from txnproducer._core.batches.results import NO_OFFSET, ProduceRequestResult
from txnproducer._core.ports import PendingEnd, Waiter
from txnproducer._record.rows import NO_PARTITION
from txnproducer.errors import KafkaError, KafkaTimeoutError
from txnproducer.records import RecordMetadata


# Neither is frozen, which takes four times as long to make: there is one of each for a batch.
@dataclass(slots=True)
class RowsTaken:
    """Rows that went into one batch, one after the other.

    Attributes:
        result: of the batch.
        first_index: in the batch, of the first of them.
        start: their first place in the run's order.
        count: how many.
    """

    result: ProduceRequestResult
    first_index: int
    start: int
    count: int


@dataclass(slots=True)
class _Piece:
    """Rows that went into one batch.

    Attributes:
        taken: their places in a block's order.
        order: of the block's rows; None if they lie one after the other.
        first_row: of the block, among all rows of the call.
    """

    taken: RowsTaken
    order: array[int] | None
    first_row: int

    def rows(self) -> Iterator[tuple[int, int]]:
        """Return each row of the call, and its record's index in the batch."""
        taken = self.taken
        for number in range(taken.count):
            place = taken.start + number
            row = place if self.order is None else self.order[place]
            yield self.first_row + row, taken.first_index + number


class BatchMetadata(Sequence[RecordMetadata]):
    """Where the records of one call were written, in the order of their rows.

    The row's index gives its `RecordMetadata`, without the sizes, and without the timestamp if the
    record kept its own: the caller has those.

    Attributes:
        offsets: of each row, 64 bits; -1 if it is not known (see `RecordMetadata`).
        partitions: of each row.
    """

    __slots__ = ("_log_append_times_ms", "_topic", "offsets", "partitions")

    def __init__(self, topic: str, row_count: int, pieces: Sequence[_Piece]) -> None:
        self._topic = topic
        self.offsets = array("q", [NO_OFFSET]) * row_count
        self.partitions = array("i", [NO_PARTITION]) * row_count
        self._log_append_times_ms = array("q", [-1]) * row_count
        for piece in pieces:
            self._take(piece)

    def _take(self, piece: _Piece) -> None:
        taken = piece.taken
        partition = taken.result.topic_partition.partition
        # The parts of a split have offsets of their own, and an order scatters the rows. Only
        # otherwise a slice will do.
        if taken.result.children or piece.order is not None:
            for row, index in piece.rows():
                result, place = taken.result.locate(index)
                if result.base_offset != NO_OFFSET:
                    self.offsets[row] = result.base_offset + place
                self.partitions[row] = partition
                self._log_append_times_ms[row] = result.log_append_time_ms
            return
        start = piece.first_row + taken.start
        stop = start + taken.count
        # A duplicate is a success without an offset, so there is nothing to count from.
        if taken.result.base_offset != NO_OFFSET:
            offset = taken.result.base_offset + taken.first_index
            self.offsets[start:stop] = array("q", range(offset, offset + taken.count))
        self.partitions[start:stop] = array("i", [partition]) * taken.count
        stamps = array("q", [taken.result.log_append_time_ms]) * taken.count
        self._log_append_times_ms[start:stop] = stamps

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, row: int) -> RecordMetadata: ...
    @overload
    def __getitem__(self, row: slice) -> list[RecordMetadata]: ...
    def __getitem__(self, row: int | slice) -> RecordMetadata | list[RecordMetadata]:
        if isinstance(row, slice):
            return [self[index] for index in range(*row.indices(len(self)))]
        return RecordMetadata(
            self._topic, self.partitions[row], self.offsets[row], self._log_append_times_ms[row]
        )

    def __repr__(self) -> str:
        return f"<BatchMetadata of {len(self)} records in {self._topic!r}>"


class FutureBatchMetadata(DeliveryFuture):
    """The end of all records that one call has sent.

    It has most of the methods of `concurrent.futures.Future`, and can be awaited.

    Args:
        topic: where to.
        row_count: how many records.
        waiter: the means by which it waits.
    """

    __slots__ = ("_done_count", "_pieces", "_row_count", "_topic", "_waiter")

    def __init__(self, topic: str, row_count: int, waiter: Waiter) -> None:
        self._topic = topic
        self._row_count = row_count
        self._waiter = waiter
        self._pieces: list[_Piece] = []
        self._done_count = 0

    def add(self, taken: RowsTaken, order: array[int] | None, first_row: int) -> None:
        """Note which rows went into a batch."""
        self._pieces.append(_Piece(taken, order, first_row))

    @property
    def taken_count(self) -> int:
        """How many rows went into batches so far."""
        return sum(piece.taken.count for piece in self._pieces)

    def __len__(self) -> int:
        return self._row_count

    def done(self) -> bool:
        """Return whether every record was delivered or has failed.

        Raises:
            ForkedProducerError: one had not at the fork that has made this process.
        """
        if self._has_ended():
            return True
        self._waiter.refuse_in_fork()
        return False

    def pending_end(self) -> PendingEnd | None:
        """Return the first batch's result that is not done, or None once all are."""
        self._has_ended()  # moves on to the first batch that has not
        rest = (piece.taken.result for piece in self._pieces[self._done_count :])
        return next(filter(None, (result.first_pending() for result in rest)), None)

    def _waiter_of(self) -> Waiter:
        return self._waiter

    def __await__(self) -> Generator[Any, None, BatchMetadata]:
        yield from self._wait_in_loop()
        return self.result(0)

    def _has_ended(self) -> bool:
        # A batch that has ended stays so: each is checked until then, however often this is
        # called. (Two threads that call at once may check one twice.)
        count = self._done_count
        pieces = self._pieces
        while count < len(pieces) and pieces[count].taken.result.are_all_done():
            count += 1
        self._done_count = count
        return count == len(pieces)

    def result(self, timeout: float | None = None) -> BatchMetadata:
        """Wait for the delivery of all records.

        Args:
            timeout: seconds; None waits as long as the producer lives (each record ends within
                `delivery_timeout_ms`).

        Returns:
            Where each was written. Inside a transaction this does not mean that it is committed.

        Raises:
            KafkaTimeoutError: not yet; the records are still on their way.
            KafkaError: the error of the first record (by its row) that failed.
        """
        error = self.exception(timeout)
        if error is not None:
            # All records of a batch share it: each raise would leave its frames in the next one.
            raise error.with_traceback(None)
        return BatchMetadata(self._topic, self._row_count, self._pieces)

    def exception(self, timeout: float | None = None) -> KafkaError | None:
        """Wait for the end of all records. Return the first one's error (by its row), or None.

        Raises:
            KafkaTimeoutError: not yet; the records are still on their way.
        """
        if not self._has_ended() and not self._waiter.wait_until(self._has_ended, timeout):
            waited = "" if timeout is None else f" within {float(timeout):g} s"
            raise KafkaTimeoutError(
                f"{len(self._pieces) - self._done_count} batches of {self._row_count} records for"
                f" {self._topic!r} were not delivered{waited}; they are still on their way, so"
                " call result() again, or raise the timeout"
            )
        errors = self.errors()
        # By its row and not by time, so that the same failures give the same error in each run.
        return errors[min(errors)] if errors else None

    def errors(self) -> dict[int, KafkaError]:
        """Return the error of each row that has failed so far, without waiting.

        Raises:
            ForkedProducerError: some records had not ended at the fork that has made this process.
        """
        if not self._has_ended():
            self._waiter.refuse_in_fork()
        failed: dict[int, KafkaError] = {}
        for piece in self._pieces:
            # Most batches succeed: one look at the batch then spares one at each of its rows.
            if not _may_have_failed(piece.taken.result):
                continue
            for row, index in piece.rows():
                result, place = piece.taken.result.locate(index)
                error = result.error_of(place)
                if error is not None:
                    failed[row] = error
        return failed

    def __repr__(self) -> str:
        state = "ended" if self._has_ended() else "pending"
        return f"<FutureBatchMetadata of {self._row_count} records for {self._topic!r} {state}>"


def _may_have_failed(result: ProduceRequestResult) -> bool:
    # A failed batch has an error for each of its records, so the first one tells for all.
    return bool(result.children) or result.error_of(0) is not None
