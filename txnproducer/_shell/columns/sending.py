"""Many records sent by one call: columns in, one future out.

Owns: the order of the work, the waits for memory and metadata (of a thread, or of a task of an
event loop), and the failure of a transaction that has got only some of the rows. Must not know:
columns, or how a batch is filled.
Rules:
* Rows are never half sent without an error: after one, the rows that were taken are part of a
  transaction that can only be aborted.
* The core's lock is held for one batch's rows at a time, so that the I/O thread sends while the
  next ones are encoded.
* Each wait is bounded by `max_block_ms`, which starts again whenever rows were taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from txnproducer._core.append.row_appender import RowRun
from txnproducer._core.batches.batch_future import FutureBatchMetadata, RowsTaken
from txnproducer._core.batches.results import FutureRecordMetadata
from txnproducer._core.producer_core import AppendBlocked, ProducerCore
from txnproducer._protocol.messages import PartitionMetadata
from txnproducer._record.rows import NO_PARTITION
from txnproducer._shell import refusals
from txnproducer._shell.columns.blocks import Block
from txnproducer._shell.columns.by_partition import Partitions, RowSorter
from txnproducer._shell.io_thread import IoThread
from txnproducer._shell.refusals import WaitInCallbackError
from txnproducer._shell.steps import Steps, run_steps, run_steps_in_loop
from txnproducer._shell.waiting import (
    BlockedCall,
    append_at_once,
    append_in_loop,
    append_when_possible,
    leave_append,
)
from txnproducer.config import ProducerConfig
from txnproducer.errors import (
    IllegalStateError,
    KafkaError,
    RecordTooLargeError,
    TransactionAbortableError,
    TransactionAbortedError,
)

__all__ = ["RowSender"]

_Done = TypeVar("_Done")
_Outcome: TypeAlias = _Done | AppendBlocked | FutureRecordMetadata


@dataclass(slots=True)
class _SendCall:
    """One call of `send_batch` or `send_arrow`.

    Attributes:
        topic: the topic of all rows.
        future: knows the rows that were taken.
        transaction: the core's number of the transaction that the rows belong to.
        waiting: the step that appends, and may have to wait.
        is_in_doubt: whether more rows may have been taken: an interrupt can come before the
            future has noted them.
    """

    topic: str
    future: FutureBatchMetadata
    transaction: int
    waiting: BlockedCall
    is_in_doubt: bool = False


@dataclass(slots=True)
class _Append:
    """A step that appends, and the wait for metadata or memory that it may need."""

    waiting: BlockedCall
    step: Callable[[int, AppendBlocked | None], Any]


# None lets others go on between two batches.
_Wait: TypeAlias = Partitions | _Append | None


class RowSender:
    """A sender of blocks of rows.

    Args:
        core: takes the rows.
        io: has the lock, and waits.
        config: the settings.
    """

    def __init__(self, core: ProducerCore, io: IoThread, config: ProducerConfig) -> None:
        self._core = core
        self._io = io
        self._max_block_ms = config.max_block_ms
        self._sorter = RowSorter(core, io, is_ignoring_keys=config.partitioner_ignore_keys)
        self._size_limits = {
            "max_request_size": config.max_request_size,
            "buffer_memory": config.buffer_memory,
        }

    def send_blocks(
        self,
        topic: str,
        blocks: Sequence[Block],
        partitions_for: Callable[[str], Sequence[PartitionMetadata]],
    ) -> FutureBatchMetadata:
        """Send rows as `TransactionalProducer.send_batch` does.

        Args:
            topic: the topic of all rows.
            blocks: the rows.
            partitions_for: returns the partitions of a topic; asks the cluster if it must.
        """
        call = self._begin(topic, blocks)
        try:
            run_steps(self._steps(call, blocks), partial(self._perform, partitions_for))
        except BaseException as error:
            self._give_up(call, error)
            raise
        return call.future

    async def send_blocks_in_loop(
        self,
        topic: str,
        blocks: Sequence[Block],
        partitions_for: Callable[[str], Awaitable[Sequence[PartitionMetadata]]],
    ) -> FutureBatchMetadata:
        """Send rows as `send_blocks` does, in a task of an event loop."""
        call = self._begin(topic, blocks)
        perform = partial(self._perform_in_loop, partitions_for)
        try:
            await run_steps_in_loop(self._steps(call, blocks), perform)
        except BaseException as error:
            self._give_up(call, error)
            raise
        return call.future

    def _perform(
        self, partitions_for: Callable[[str], Sequence[PartitionMetadata]], wait: _Wait
    ) -> Any:
        if isinstance(wait, Partitions):
            return partitions_for(wait.topic)
        if isinstance(wait, _Append):
            return append_when_possible(
                self._io, self._core, wait.waiting, self._max_block_ms, wait.step
            )
        # A loop that has woken would otherwise wait up to 5 ms (the switch interval).
        self._io.priority.give_way()
        return None

    async def _perform_in_loop(
        self, partitions_for: Callable[[str], Awaitable[Sequence[PartitionMetadata]]], wait: _Wait
    ) -> Any:
        import asyncio  # late: a program without an event loop does not pay for it

        if isinstance(wait, Partitions):
            return await partitions_for(wait.topic)
        if isinstance(wait, _Append):
            return await append_in_loop(
                self._io, self._core, wait.waiting, self._max_block_ms, wait.step
            )
        await asyncio.sleep(0)  # lets the other tasks go on between two batches
        return None

    def _begin(self, topic: str, blocks: Sequence[Block]) -> _SendCall:
        # Before the first row: a refusal after it would leave a part of the rows in the
        # transaction.
        self._check_sizes(blocks)
        future = FutureBatchMetadata(topic, sum(block.rows.count for block in blocks), self._io)
        with self._io.lock:
            # Taken once: rows that wait while another thread ends the transaction must not land in
            # the next.
            number = self._core.transaction_number
            return _SendCall(topic, future, number, BlockedCall(topic))

    def _steps(self, call: _SendCall, blocks: Sequence[Block]) -> Steps[_Wait, None]:
        first_row = 0
        yield from self._check_places(call, blocks)
        for block in blocks:
            runs = yield from self._sorter.runs(call.topic, block, call.transaction)
            yield from self._send_runs(call, runs, first_row)
            first_row += block.rows.count

    def _check_places(self, call: _SendCall, blocks: Sequence[Block]) -> Steps[_Wait, None]:
        """Refuse a call with a wrong partition or state before any row is sent."""
        if not blocks:
            with self._io.lock:
                self._core.check_can_append()
        elif blocks[0].highest_partition != NO_PARTITION:
            yield from self._check_partition(call, blocks[0].highest_partition)

    def _check_sizes(self, blocks: Sequence[Block]) -> None:
        first_row = 0
        for block in blocks:
            row, size = block.rows.largest()
            for name, limit in self._size_limits.items():
                if size > limit:
                    raise RecordTooLargeError(
                        f"row {first_row + row} is {size} bytes when serialized, more than"
                        f" {name}={limit}; no row was sent. Make it smaller, or raise the limit"
                    )
            first_row += block.rows.count

    def _send_runs(
        self, call: _SendCall, runs: deque[RowRun], first_row: int
    ) -> Steps[_Wait, None]:
        # One batch of each partition in turn, so that all partitions are sent at the same time.
        while runs:
            run = runs.popleft()
            step = partial(self._append, call, run)
            taken = yield from self._repeat(call, run.partition, step)
            call.future.add(taken, run.order, first_row)
            # Only after the future has noted the rows: an interrupt before leaves them in doubt.
            call.is_in_doubt = False
            if run.next < run.stop:
                runs.append(run)
            yield None

    def _append(
        self, call: _SendCall, run: RowRun, now_ms: int, blocked: AppendBlocked | None
    ) -> _Outcome[RowsTaken]:
        """Append the rows of a run that one batch takes."""
        first = run.next
        # True during the call: an interrupt in it leaves open whether rows were taken.
        call.is_in_doubt = True
        try:
            outcome = self._core.rows.append(call.topic, run, now_ms, blocked)
        except IllegalStateError:
            # The refusal comes before any row is taken, unless the run has moved on.
            call.is_in_doubt = run.next != first
            raise
        call.is_in_doubt = isinstance(outcome, RowsTaken)
        return outcome

    def _check_partition(self, call: _SendCall, partition: int) -> Steps[_Wait, None]:
        """Refuse a partition that the topic does not have, before any row is sent."""
        core = self._core

        def check(now_ms: int, blocked: AppendBlocked | None) -> _Outcome[None]:
            return core.check_partition(call.topic, partition, now_ms, blocked)

        yield from self._repeat(call, partition, check)

    def _repeat(
        self,
        call: _SendCall,
        partition: int | None,
        step: Callable[[int, AppendBlocked | None], _Outcome[_Done]],
    ) -> Steps[_Wait, _Done]:
        """Take a step until it is done. All its waits last `max_block_ms` at most."""
        call.waiting.partition = partition
        try:
            outcome = append_at_once(self._io, self._core, call.waiting, step)
        except BaseException:
            leave_append(self._io, self._core, call.waiting.blocked)
            raise
        # Most steps need no wait, and each `yield` goes through all generators above.
        if isinstance(outcome, AppendBlocked):
            outcome = yield _Append(call.waiting, step)
        if isinstance(outcome, FutureRecordMetadata):
            raise outcome.error or KafkaError("a row failed without an error")
        return outcome

    def _give_up(self, call: _SendCall, error: BaseException) -> None:
        """End a call by an error, which may be an interrupt."""
        # The transaction first: another interrupt may come before the rest is done.
        self._fail_transaction(call, error)
        # An interrupt can come after a step was blocked, and before its wait begins.
        if call.waiting.blocked is not None:
            leave_append(self._io, self._core, call.waiting.blocked)

    def _fail_transaction(self, call: _SendCall, error: BaseException) -> None:
        """Let the open transaction end only by an abort, if rows may be missing from it."""
        if isinstance(error, TransactionAbortedError):
            return  # the transaction that may be open now has nothing to do with these rows
        taken_count = call.future.taken_count
        if isinstance(error, WaitInCallbackError):
            error = refusals.waited_in_callback(call.topic, error.reason)
        if isinstance(error, IllegalStateError) and not taken_count and not call.is_in_doubt:
            return  # the caller's mistake: a commit under way must not fail because of it
        cause = error if isinstance(error, KafkaError) else None
        if cause is None:
            if not taken_count and not call.is_in_doubt:
                return  # interrupted before anything was done
            cause = TransactionAbortableError(
                f"{taken_count} of {len(call.future)} rows were sent to {call.topic!r} when the"
                f" call was interrupted ({type(error).__name__}): abort, and send all of them"
                " again"
            )
        with self._io.lock:
            self._core.fail_transaction(cause)
            self._io.poke()
