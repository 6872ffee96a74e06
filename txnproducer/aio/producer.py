"""The producer that users hold in asyncio.

Owns: the public calls, the check of the event loop, the order of tasks that wait to send. Must not
know: how a call waits (`loop_producer`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

from txnproducer._core.batches.batch_future import FutureBatchMetadata
from txnproducer._core.batches.record_future import FutureRecordMetadata
from txnproducer._core.transactions.commit_evidence import ResolvedOutcome
from txnproducer._protocol.messages import PartitionMetadata
from txnproducer._shell.arguments import Headers, to_seconds
from txnproducer._shell.columns.blocks import Columns, arrow_blocks
from txnproducer._shell.runs_in_threads import as_kinds
from txnproducer._shell.transaction_runs import Attempt, Bounds
from txnproducer.aio.loop_producer import LaterSend, LoopProducer
from txnproducer.aio.runs import IsWritten, run_in_task
from txnproducer.aio.transaction import AsyncTransaction
from txnproducer.config import ProducerConfig
from txnproducer.errors import IllegalStateError

__all__ = ["AsyncTransactionalProducer"]


T = TypeVar("T")


class _Turn:
    """The turn of the tasks that wait to send to one topic."""

    __slots__ = ("lock", "tasks")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.tasks = 0


class AsyncTransactionalProducer:
    """The producer for asyncio. Its transactions are atomic: all of one becomes visible, or none.

    A program in short::

        async with AsyncTransactionalProducer("localhost:9092", "my-app-1") as producer:
            async with producer.transaction():
                await producer.send("topic", b"value", key=b"key")

    `async with` initializes the transactions, and closes the producer at its end. All tasks of an
    event loop may use the producer, and they share one transaction. Another loop or thread needs a
    producer of its own. It runs on asyncio's loops and on uvloop.

    A task that is cancelled in a call ends only its own wait, as a time-out does: what the call
    has begun goes on, and the same call made again waits for it. `AsyncTransaction` says what that
    means for a commit.

    Args:
        bootstrap_servers: "host:port", several separated by commas, or a list of them.
        transactional_id: identifies this writer across restarts; a newer producer with the same
            id fences the older one. None for a plain idempotent producer.
        init: whether `async with` calls `init_transactions()`; without an id it never does.
        settings: as for `TransactionalProducer`.

    Raises:
        InvalidConfigurationError: a setting is unknown or does not fit; the error names it.
    """

    def __init__(
        self,
        bootstrap_servers: str | list[str] | None = None,
        transactional_id: str | None = None,
        *,
        init: bool = True,
        **settings: Any,
    ) -> None:
        given = {"bootstrap_servers": bootstrap_servers, "transactional_id": transactional_id}
        settings.update({name: value for name, value in given.items() if value is not None})
        self._open(ProducerConfig.build(**settings), init=init)

    @classmethod
    def from_config(cls, config: ProducerConfig, *, init: bool = True) -> Self:
        """Make a producer from an existing (and checked) configuration."""
        producer = cls.__new__(cls)
        producer._open(config, init=init)  # noqa: SLF001 - our own class
        return producer

    def _open(self, config: ProducerConfig, *, init: bool) -> None:
        self._calls = self._make_calls(config)  # first, since it checks
        self._config = config
        self._begins = init and config.transactional_id is not None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turns: dict[str, _Turn] = {}
        # It does not wait: a record that would have to comes back as a `LaterSend`.
        self._send: Callable[..., FutureRecordMetadata | LaterSend] = self._calls.send

    def _make_calls(self, config: ProducerConfig) -> LoopProducer:
        # A test's cluster replaces it in a subclass.
        return LoopProducer.from_config(config)

    # --- the life ------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._check_loop()
        if self._begins:
            try:
                await self.init_transactions()
            except BaseException:
                await self.close(0)  # a block that is not entered is not left
                raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        limit_s = self._calls.limit_of_close_s(after_error=error is not None)
        await self.close(limit_s)

    def __enter__(self) -> NoReturn:
        """Refuse a plain `with`.

        Raises:
            TypeError: always.
        """
        raise TypeError("use `async with AsyncTransactionalProducer(...)`: its end is awaited")

    def __exit__(self, *_: object) -> None:
        """Do nothing: `__enter__` refuses."""

    async def close(self, timeout: float | None = None) -> None:
        """Deliver all sent records, abort an open transaction, finish a commit under way, and end.

        A task that is cancelled meanwhile ends only its wait: the producer goes on to the same end
        within the same time-out.

        Args:
            timeout: seconds after which everything that is left fails by force; None for
                `delivery_timeout_ms`, 0 for at once.

        Raises:
            ValueError: the time-out is negative.
        """
        self._check_loop()
        limit_s = self._calls.limit_of_close_s() if timeout is None else to_seconds(timeout)
        await self._calls.close_in_loop(limit_s)

    @property
    def transaction_state(self) -> str:
        """The name of the transaction state at this moment, such as "READY"."""
        return self._calls.transaction_state

    def metrics(self) -> dict[str, float]:
        """Return the counters and rates, under the Java client's names."""
        return self._calls.metrics()

    def __repr__(self) -> str:
        return repr(self._calls).replace(type(self._calls).__name__, type(self).__name__, 1)

    # --- transactions --------------------------------------------------------------------------

    async def init_transactions(self) -> None:
        """Get a producer id, fence older producers of this id, and end their open transactions.

        `async with` has called it, unless it was told not to. It raises as
        `TransactionalProducer.init_transactions` does.
        """
        self._check_loop()
        await self._calls.init_in_loop()

    def begin_transaction(self) -> None:
        """Begin a transaction. This is local, so it is not awaited.

        Raises:
            IllegalStateError: not initialized, or a transaction is open already, perhaps in
                another task's block.
            KafkaError: the producer failed before; `recovery` names the next step.
        """
        self._check_loop()
        self._calls.begin_transaction()

    def transaction(self) -> AsyncTransaction:
        """Return a transaction for an `async with` block, which commits at its end, or aborts.

        If an earlier abort has not ended, the block first waits for it, up to `max_block_ms`.
        """
        return AsyncTransaction(self)

    async def _await_earlier_end(self) -> None:
        self._check_loop()
        await self._calls.await_earlier_end()

    async def run_transaction(
        self,
        fn: Callable[[AsyncTransaction], Awaitable[T]],
        *,
        attempts: int = 5,
        timeout: float | None = None,
        retry_on: type[BaseException] | Iterable[type[BaseException]] = (),
        is_written: IsWritten | None = None,
        on_retry: Callable[[Attempt], object] | None = None,
    ) -> T:
        """Call a coroutine function in a transaction, and again where the failure allows it.

        The function may be called several times, each time in a transaction of its own. Arguments,
        result and errors: see `TransactionalProducer.run_transaction`. `is_written` may be a
        coroutine function as well. A cancellation ends the runs; see `AsyncTransaction`.
        """
        bounds = Bounds(attempts, timeout, as_kinds(retry_on), on_retry)
        return await run_in_task(self, fn, bounds, is_written)

    async def send_offsets_to_transaction(
        self, offsets: Mapping[Any, Any], group_metadata: object
    ) -> None:
        """Commit a consumer's offsets together with the transaction's records.

        Arguments and errors: see `TransactionalProducer.send_offsets_to_transaction`. aiokafka's
        consumers have no public group metadata: pass a `ConsumerGroupMetadata`.
        """
        self._check_loop()
        await self._calls.send_offsets_in_loop(offsets, group_metadata)

    async def commit_transaction(self) -> None:
        """Wait for every record, and then commit them all, with the offsets.

        Returns only when every record and offset of the transaction is committed. A task that is
        cancelled meanwhile ends only its wait: await it again to learn the end.

        It raises as `TransactionalProducer.commit_transaction` does.
        """
        self._check_loop()
        await self._calls.commit_in_loop()

    async def abort_transaction(self) -> None:
        """Abort. None of the transaction's records and offsets will be visible.

        Also allowed after a commit that timed out, or whose task was cancelled. It raises as
        `TransactionalProducer.abort_transaction` does.
        """
        self._check_loop()
        await self._calls.abort_in_loop()

    async def resolve_outcome(self) -> ResolvedOutcome:
        """Find out the outcome of a commit that ended with `CommitOutcomeUnknownError`.

        See `TransactionalProducer.resolve_outcome`.
        """
        self._check_loop()
        return await self._calls.resolve_in_loop()

    # --- records -------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> FutureRecordMetadata:
        """Write a record. It waits only for metadata or memory, and mostly not at all.

        Args:
            topic: the topic to write to.
            value: bytes, or a value for `value_serializer`; None is a tombstone.
            key: bytes, or a key for `key_serializer`; equal keys go to one partition.
            headers: a mapping of names to values, or pairs of a name and a value; a value is
                bytes, a str (encoded as UTF-8) or None.
            partition: the partition's number; None lets key or load decide.
            timestamp_ms: milliseconds since the epoch; None for now.

        Returns:
            The record's future, which can be awaited for its `RecordMetadata`. A task need not
            await it: a commit waits for every record, and fails with any.

        Raises:
            TypeError, ValueError, SerializationError: an argument is wrong; nothing changed.
            IllegalStateError: no transaction is open, or the producer is closed; nothing changed.
            KafkaError: the transaction failed before; its `recovery` names the next step.
        """
        if asyncio.get_running_loop() is not self._loop:
            self._check_loop()
        if topic not in self._turns:
            future = self._send(topic, value, key, headers, partition, timestamp_ms)
            if not isinstance(future, LaterSend):
                return future
            try:
                return await self._send_in_turn(topic, future)
            except BaseException:
                self._calls.leave_append(future)
                raise
        return await self._send_in_turn(topic, None, value, key, headers, partition, timestamp_ms)

    async def _send_in_turn(
        self, topic: str, later: LaterSend | None, *record: Any
    ) -> FutureRecordMetadata:
        """Send a record that waits, or after those that do.

        Only one task for each topic waits in the core. Thousands there would each be asked, in
        every turn of the I/O thread, whether they can go on.
        """
        turn = self._turns.setdefault(topic, _Turn())
        turn.tasks += 1
        try:
            # Of the transaction that is open now: the record must not land in the next one.
            number = self._calls.transaction_number
            async with turn.lock:
                if later is None:
                    self._calls.refuse_if_ended(number)
                    future = self._send(topic, *record)
                    if not isinstance(future, LaterSend):
                        return future
                    later = future
                return await self._calls.append_in_loop(later)
        except BaseException:
            self._calls.leave_append(later)  # perhaps before the wait, which does so itself
            raise
        finally:
            turn.tasks -= 1
            if not turn.tasks:
                self._turns.pop(topic, None)

    async def send_batch(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        headers: Any = None,
        partitions: Any = None,
        timestamps_ms: Any = None,
    ) -> FutureBatchMetadata:
        """Write many records, given by column. It waits for metadata and memory alone.

        Between two batches of records it lets other tasks go on; none may change the buffers of an
        Arrow column. For arguments, result and errors see `TransactionalProducer.send_batch`. A
        cancelled task leaves a transaction that can only be aborted, if it has sent some records.
        """
        self._check_loop()
        given = Columns(values, keys, headers, partitions, timestamps_ms)
        return await self._calls.send_batch_in_loop(topic, given)

    async def send_arrow(
        self, topic: str, data: Any, partition: int | None = None
    ) -> FutureBatchMetadata:
        """Write the rows of a pyarrow Table or RecordBatch. It waits as `send_batch` does.

        See `TransactionalProducer.send_arrow`.
        """
        self._check_loop()
        return await self._calls.send_rows_in_loop(
            "send_arrow", topic, lambda now_ms: arrow_blocks(data, now_ms, partition), partition
        )

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every record sent so far is delivered or has failed (see the futures).

        Args:
            timeout: seconds; None for `delivery_timeout_ms` and a moment more.

        Raises:
            KafkaTimeoutError: not done in time; the records are still on their way.
        """
        self._check_loop()
        await self._calls.flush_in_loop(timeout)

    async def partitions_for(self, topic: str) -> tuple[PartitionMetadata, ...]:
        """Return a topic's partitions and their leaders. Ask the cluster if they are not known.

        Raises:
            KafkaTimeoutError: the topic is not known after `max_block_ms`.
            KafkaError: the cluster refused to answer.
        """
        self._check_loop()
        return await self._calls.partitions_in_loop(topic)

    # --- the event loop ------------------------------------------------------------------------

    def _check_loop(self) -> None:
        """Refuse an event loop other than the first.

        Raises:
            IllegalStateError: this producer is another loop's.
            RuntimeError: no event loop runs.
        """
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        if loop is not self._loop:
            raise IllegalStateError(
                "this AsyncTransactionalProducer belongs to another event loop, and wakes the"
                " tasks of that one alone: make one in each loop or thread, with a"
                " transactional_id of its own, or use TransactionalProducer, which threads may"
                " share"
            )
