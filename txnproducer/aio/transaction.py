"""One transaction as an `async with` block, committed at its end and aborted on any exception.

Owns: the end of the block in a task that may be cancelled. Must not know: how a transaction is
begun or ended.
Rules:
* The caller always sees the exception that left the block, a cancellation included. A failure of
  the abort that follows is added to it as a note and logged.
* The abort has begun before the block waits for it, so a second cancellation cannot undo it. It
  ends the wait alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from txnproducer._core.batches.batch_future import FutureBatchMetadata
from txnproducer._core.batches.record_future import FutureRecordMetadata
from txnproducer._shell.arguments import Headers
from txnproducer.errors import KafkaError
from txnproducer.transaction import TransactionBlock

if TYPE_CHECKING:
    from txnproducer.aio.producer import AsyncTransactionalProducer

__all__ = ["AsyncTransaction"]


class AsyncTransaction(TransactionBlock):
    """One transaction, made by `producer.transaction()` and used once, as an `async with` block.

    At the end of the block it is committed. An exception in it aborts it and goes on to the
    caller. A block may also end it itself with `commit_transaction` or `abort_transaction`; then
    its end does nothing.

    **If the task is cancelled inside the block**, the transaction is aborted, and the cancellation
    is raised again after the abort, for which the block waits up to `max_block_ms`.

    **If it is cancelled while the block commits**, `outcome` stays "open": the commit goes on, and
    the cancellation is raised. Then `await producer.commit_transaction()`, in any task, waits for
    its end, and `abort_transaction()` gives up. So nobody has to guess whether it was committed.
    `outcome` stays "open" likewise after a `KafkaTimeoutError`.

    The block belongs to the task that has entered it. Other tasks may send in it, and may neither
    end it nor begin another transaction.

    Attributes:
        outcome: "open", "committed", "aborted" or "unknown", as of `Transaction`.
    """

    __slots__ = ("_producer",)

    def __init__(self, producer: AsyncTransactionalProducer) -> None:
        calls = producer._calls  # noqa: SLF001 - our own class
        super().__init__(calls._begin_block, calls._block_owner)  # noqa: SLF001 - likewise
        self._producer = producer

    async def __aenter__(self) -> Self:
        self._prepare()
        try:
            await self._producer._await_earlier_end()  # noqa: SLF001 - likewise
            self._begin(self)
        except BaseException:
            self.outcome = "aborted"  # certain, so the caller may write again: nothing was written
            raise
        self._has_begun = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.outcome != "open":
            # Ended by the block's own calls. If a close has ended it, or an error that nobody has
            # seen, a block that ends well must not look like a commit.
            if self._was_lost and error is None:
                await self._producer.commit_transaction()
            return
        self._is_owner = self._own()
        try:
            if error is None:
                await self._commit()
            else:
                await self._abort_because_of(error)
        finally:
            self._hand_back()  # also if the end has failed: any task may repeat it now

    def __enter__(self) -> Self:
        """Refuse a plain `with`.

        Raises:
            TypeError: always.
        """
        raise TypeError("use `async with producer.transaction() as txn:`: its end is awaited")

    def __exit__(self, *_: object) -> None:
        """Do nothing: `__enter__` refuses."""

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> FutureRecordMetadata:
        """Write a record in this transaction. Arguments and result are those of `producer.send`.

        Raises:
            IllegalStateError: this transaction has ended or was not begun.
        """
        self._check_open()
        return await self._producer.send(topic, value, key, headers, partition, timestamp_ms)

    async def send_batch(self, topic: str, values: Any, **columns: Any) -> FutureBatchMetadata:
        """Write many records in this transaction. See `producer.send_batch`.

        Raises:
            IllegalStateError: this transaction has ended or was not begun.
        """
        self._check_open()
        return await self._producer.send_batch(topic, values, **columns)

    async def send_arrow(
        self, topic: str, data: Any, partition: int | None = None
    ) -> FutureBatchMetadata:
        """Write the rows of a pyarrow table in this transaction. See `producer.send_arrow`.

        Raises:
            IllegalStateError: this transaction has ended or was not begun.
        """
        self._check_open()
        return await self._producer.send_arrow(topic, data, partition)

    async def send_offsets(self, offsets: Mapping[Any, Any], group_metadata: object) -> None:
        """Commit a consumer's offsets in this transaction.

        See `AsyncTransactionalProducer.send_offsets_to_transaction`.

        Raises:
            IllegalStateError: this transaction has ended or was not begun.
        """
        self._check_open()
        await self._producer.send_offsets_to_transaction(offsets, group_metadata)

    async def _commit(self) -> None:
        try:
            await self._producer.commit_transaction()
        except KafkaError as error:
            # Only then is an abort the next step: after a time-out the commit may still succeed.
            if error.recovery == "abort":
                await self._abort_because_of(error)
            raise

    async def _abort_because_of(self, error: BaseException) -> None:
        try:
            await self._producer.abort_transaction()
        # Not BaseException: a second cancellation has to come through.
        except Exception as failure:  # noqa: BLE001 - it must not hide the user's exception
            self._note_failed_abort(error, failure)
