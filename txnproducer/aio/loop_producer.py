"""A producer with calls that wait in a task of an event loop.

Why it exists: the steps of each call stand in the producer for threads. Here they are taken once
more, with waits that leave the event loop free.
Owns: the order of the steps between two waits. Must not know: loops and tasks of others, which
`AsyncTransactionalProducer` keeps away.
Rules:
* A task can be cancelled at a wait and nowhere else. An operation that has begun goes on, and the
  same call made again waits for the same result, as after a time-out.
* Between the answer of the core and the end of a call there is no wait. So a call that was not
  cancelled has told its caller the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from txnproducer._core.batches.batch_future import FutureBatchMetadata
from txnproducer._core.batches.results import FutureRecordMetadata
from txnproducer._core.producer_core import AppendBlocked
from txnproducer._core.transactions.commit_evidence import ResolvedOutcome
from txnproducer._core.transactions.operation import TransactionalRequestResult
from txnproducer._protocol.messages import PartitionMetadata
from txnproducer._shell import live_producers, refusals
from txnproducer._shell.arguments import check_place
from txnproducer._shell.columns.blocks import Block, Columns
from txnproducer._shell.record_writer import SendArguments
from txnproducer._shell.transaction_inquiry import describe_in_loop
from txnproducer._shell.waiting import BlockedCall, append_in_loop, leave_append, wait_in_loop
from txnproducer.aio.task_owner import calling_task
from txnproducer.errors import InvalidTxnTimeoutError, KafkaError, UnsupportedVersionError
from txnproducer.producer import TransactionalProducer
from txnproducer.records import as_consumer_group_metadata, as_offsets

__all__ = ["LaterSend", "LoopProducer"]


@dataclass(frozen=True, slots=True)
class LaterSend:
    """A record that has to wait for metadata or memory.

    Attributes:
        record: the arguments of the core's append.
        blocked: the wait that it needs.
    """

    record: SendArguments
    blocked: AppendBlocked


class LoopProducer(TransactionalProducer):
    """A producer with calls that end in `_in_loop`, and are awaited."""

    _block_owner = staticmethod(calling_task)
    _owned = staticmethod(refusals.owned_by_task)
    # Whether a task was cancelled in a commit, and nobody has waited for that commit since.
    _has_left_commit = False

    # --- records -------------------------------------------------------------------------------

    def _send_later(self, record: SendArguments, blocked: AppendBlocked) -> Any:
        """Return the record in place of its future: `send` must not wait here."""
        return LaterSend(record, blocked)

    @property
    def transaction_number(self) -> int:
        """The number of the transaction that is open, among all of this producer."""
        with self._lock:
            return self._core.transaction_number

    def refuse_if_ended(self, transaction: int) -> None:
        """Refuse a record of a transaction that has ended while the record waited.

        Raises:
            TransactionAbortedError: it has.
        """
        with self._lock:
            self._core.refuse_if_ended(transaction)

    async def append_in_loop(self, later: LaterSend) -> FutureRecordMetadata:
        """Wait for metadata or memory, then append. One `max_block_ms` covers all the waits."""
        record = later.record
        topic, _, _, _, partition, _, _ = record
        return await append_in_loop(
            self._io,
            self._core,
            BlockedCall(topic, partition, None, later.blocked),
            self._config.max_block_ms,
            lambda now_ms, waited: self._append(*record, now_ms, waited),
        )

    def leave_append(self, later: LaterSend | None) -> None:
        """Leave the queue for memory, if the record has a place there."""
        leave_append(self._io, self._core, None if later is None else later.blocked)

    async def send_batch_in_loop(self, topic: str, given: Columns) -> FutureBatchMetadata:
        """See `send_batch`."""
        return await self.send_rows_in_loop("send_batch", topic, self._column_blocks(topic, given))

    async def send_rows_in_loop(
        self,
        call: str,
        topic: str,
        blocks: Callable[[int], list[Block]],
        partition: int | None = None,
    ) -> FutureBatchMetadata:
        """Write the rows of `send_batch` or `send_arrow`."""
        self._check_usable(call)
        check_place(topic, partition, None)
        made = blocks(self._platform.wall_clock_ms())
        return await self._rows.send_blocks_in_loop(topic, made, self.partitions_in_loop)

    async def flush_in_loop(self, timeout: float | None) -> None:
        """See `flush`."""
        limit_s = self._flush_limit_s(timeout)
        began_ns = self._platform.monotonic_ns()
        ticket = self._begin_flush()
        try:
            is_done = await self._io.wait_in_loop(ticket.is_done, limit_s)
        finally:
            self._end_flush(ticket, began_ns)
        if not is_done:
            raise self._flush_timed_out(limit_s, began_ns)

    async def partitions_in_loop(self, topic: str) -> tuple[PartitionMetadata, ...]:
        """See `partitions_for`."""
        deadline_ms = self._topic_deadline_ms(topic)
        partitions = self._ask_for_partitions(topic, deadline_ms, has_asked=False)
        while partitions is None:
            left_s = self._left_s(deadline_ms)
            await self._wait_in_loop(lambda: self._core.is_topic_decided(topic), left_s)
            partitions = self._ask_for_partitions(topic, deadline_ms, has_asked=True)
        return partitions

    # --- transactions --------------------------------------------------------------------------

    async def init_in_loop(self) -> None:
        """See `init_transactions`."""
        try:
            await self._await_in_loop("init_transactions", self._begin_init)
        except InvalidTxnTimeoutError as error:
            # The admin client blocks for two seconds at most, once in the life of a mistake.
            longest = await asyncio.to_thread(self._longest_timeout_ms)
            raise refusals.timeout_too_long(error, longest) from error.__cause__

    async def await_earlier_end(self) -> None:
        """Wait for an end that a cancelled task has left, or for an abort that timed out.

        Raises:
            KafkaError: the producer cannot begin another transaction.
        """
        self._check_usable("begin_transaction")
        if self._has_left_commit:
            try:
                await self.commit_in_loop()
            except KafkaError as error:
                if error.recovery != "abort":
                    raise
                await self.abort_in_loop()
        abort = self._unseen_abort()
        if abort is not None:
            await self._await_in_loop("abort_transaction", lambda: abort)

    async def send_offsets_in_loop(
        self, offsets: Mapping[Any, Any], group_metadata: object
    ) -> None:
        """See `send_offsets_to_transaction`."""
        self._check_usable("send_offsets_to_transaction")
        group = as_consumer_group_metadata(group_metadata)
        wanted = as_offsets(offsets)
        if wanted:
            await self._await_in_loop(
                "send_offsets_to_transaction",
                lambda: self._core.send_offsets_to_transaction(wanted, group),
            )

    async def commit_in_loop(self) -> None:
        """See `commit_transaction`."""
        await self._end_in_loop("commit_transaction", self._begin_commit)

    async def abort_in_loop(self) -> None:
        """See `abort_transaction`."""
        await self._end_in_loop("abort_transaction", self._begin_abort)

    async def resolve_in_loop(self) -> ResolvedOutcome:
        """See `resolve_outcome`."""
        doubt = self._doubt()
        if doubt.known != "unknown":
            return doubt.known
        try:
            found = await describe_in_loop(*self._inquiry())
        except UnsupportedVersionError:
            found = None  # before Kafka 3.0 no request shows a transaction's state
        return self._resolve(doubt, found)

    async def _end_in_loop(
        self, call: str, begin: Callable[[], TransactionalRequestResult]
    ) -> None:
        self._check_usable(call)
        try:
            await self._await_in_loop(call, begin)
        except KafkaError as error:
            self._has_left_commit &= error.recovery == "resume"
            self._settle_failed_end(call, error)
            raise
        except asyncio.CancelledError:
            self._has_left_commit = call == "commit_transaction"
            with self._lock:  # as after a time-out: an abort that has begun is certain
                self._settle(is_own_end=call == "abort_transaction")
            raise
        else:
            self._has_left_commit = False

    # --- the end, and how calls wait -------------------------------------------------------------

    async def close_in_loop(self, limit_s: float) -> None:
        """See `close`.

        Args:
            limit_s: seconds, after which everything that is left fails by force.
        """
        if self._refusal not in (None, refusals.closed):
            return
        self._refuse(refusals.closed)
        try:
            if not self._io.has_ended:
                await self._io.close_in_loop(limit_s)
        finally:
            with self._lock:
                self._settle()
            if self._io.has_ended:
                live_producers.forget(self)

    async def give_up_in_loop(self, limit_s: float) -> None:
        """End a producer that a pool gives up, as `_give_up` does.

        Args:
            limit_s: likewise.
        """
        self._begin_giving_up()
        has_ended = await self._io.wait_in_loop(self._has_no_end_under_way, limit_s)
        await self._io.wait_in_loop(lambda: self._core.is_loss_explained, self._evidence_s)
        await self.close_in_loop(limit_s if has_ended else 0)

    async def _await_in_loop(
        self, call: str, begin: Callable[[], TransactionalRequestResult]
    ) -> None:
        self._check_can_wait(call)
        began_ns = self._platform.monotonic_ns()
        try:
            result = self._begin_operation(call, begin)
        except KafkaError as refusal:
            raise await self._explained_in_loop(refusal) from refusal.__cause__
        if not await self._wait_in_loop(lambda: result.is_completed, self._max_block_s):
            raise self._timed_out(call, began_ns)
        error = None if result.error is None else await self._explained_in_loop(result.error)
        self._note_end(call, error, began_ns)
        result.is_acked = True
        if error is not None:
            raise error

    def _wait_in_loop(self, is_done: Callable[[], bool], timeout_s: float) -> Awaitable[bool]:
        return wait_in_loop(self._io, self._core, is_done, timeout_s)

    async def _explained_in_loop(self, error: KafkaError) -> KafkaError:
        core = self._core
        await self._io.wait_in_loop(lambda: core.is_loss_explained, self._evidence_s)
        with self._lock:
            return core.explained(error)
