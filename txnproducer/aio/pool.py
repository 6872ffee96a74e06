"""A pool of producers for the tasks of one event loop.

Owns: the producers, their loan to tasks, their renewal. Must not know: how a run of a function is
repeated (`transaction_runs`), where an id comes from (`worker_slots`).
The rules are those of `txnproducer.pool`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from txnproducer._shell.runs_in_threads import as_kinds
from txnproducer._shell.transaction_runs import Attempt, Bounds, Run
from txnproducer._shell.worker_slots import WorkerIds, forget_at_fork
from txnproducer.aio.producer import AsyncTransactionalProducer
from txnproducer.aio.runs import IsWritten, is_found, run_once
from txnproducer.aio.transaction import AsyncTransaction
from txnproducer.errors import IllegalStateError, KafkaError
from txnproducer.pool import (
    CLOSE_FAILED_S,
    as_taken,
    config_of_pool,
    is_worth_another_run,
    may_be_taken,
    refuse_taken,
    tell_outcome,
)

__all__ = ["AsyncProducerPool"]

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(eq=False)
class _Member:
    """An id of the pool, and the producer that has it now."""

    transactional_id: str
    process: int
    producer: AsyncTransactionalProducer | None = field(default=None, repr=False)


class AsyncProducerPool:
    """Producers with transactional ids of their own, for the tasks of a service.

    A program in short::

        async with AsyncProducerPool("localhost:9092", "orders", worker=0) as pool:
            await pool.run(write)  # a coroutine function, which gets the transaction

    Each task that writes at the same time has a producer of its own. Arguments: see
    `txnproducer.pool.ProducerPool`.
    """

    def __init__(
        self,
        bootstrap_servers: str | list[str] | None = None,
        name: str = "",
        *,
        worker: int | str | None = None,
        lock_folder: str | Path | None = None,
        most_workers: int = 64,
        **settings: Any,
    ) -> None:
        folder = None if lock_folder is None else Path(lock_folder)
        self._ids = WorkerIds(name, worker, folder, most_workers)
        self._config = config_of_pool(bootstrap_servers, name, settings)
        self._reset()
        forget_at_fork(self)

    def forget_parent(self) -> None:
        """Forget all that is the parent's, in a forked process."""
        self._ids.leave_to_parent()
        self._reset()

    def _reset(self) -> None:
        self._taken: KafkaError | None = None  # once another producer has taken an id
        self._idle: list[_Member] = []
        self._lent = 0
        self._is_closed = False

    async def run(
        self,
        fn: Callable[[AsyncTransaction], Awaitable[T]],
        *,
        attempts: int = 5,
        timeout: float | None = None,
        retry_on: type[BaseException] | tuple[type[BaseException], ...] = (),
        is_written: IsWritten | None = None,
        on_retry: Callable[[Attempt], object] | None = None,
    ) -> T:
        """Call a coroutine function in a transaction, and again where the failure allows it.

        The function may be called several times. See `txnproducer.pool.ProducerPool.run`.
        """
        import asyncio

        from tenacity import AsyncRetrying  # late: a pool that is never used does not need it

        bounds = Bounds(attempts, timeout, as_kinds(retry_on), on_retry)
        runs: list[Run[AsyncTransaction, T]] = []
        async with self._on_loan() as member:

            async def look() -> str:
                # A new producer ends the transaction in doubt, so that nothing arrives after it.
                await self._end(member, CLOSE_FAILED_S)
                await self._ready(member)
                return "committed" if await is_found(is_written) else "aborted"

            async def attempt() -> T:
                runs.clear()
                producer = await self._ready(member)
                run: Run[AsyncTransaction, T]
                run = Run(producer.transaction(), bounds, has_look=is_written is not None)
                runs.append(run)
                try:
                    return await run_once(producer, fn, run, look)
                except BaseException as error:
                    await self._wait_for_commit(producer, run)
                    await self._drop_if_failed(member, producer)
                    tell_outcome(error, run)
                    raise

            def is_worth_it(error: BaseException) -> bool:
                if may_be_taken(error):
                    self._taken = self._taken or as_taken(error)
                    return False
                return is_worth_another_run(error, runs)

            result: T = await bounds.retrying(AsyncRetrying, is_worth_it, asyncio.sleep)(attempt)
            return result

    async def _wait_for_commit(
        self, producer: AsyncTransactionalProducer, run: Run[AsyncTransaction, Any]
    ) -> None:
        """Wait for a commit that a cancelled task has left, for `max_block_ms` at most.

        The caller has no producer that it could ask later.
        """
        if run.block.outcome != "open" or producer.transaction_state != "COMMITTING_TRANSACTION":
            return
        try:
            await producer.commit_transaction()
        except KafkaError as error:
            _LOG.warning("a commit that its task has left: %s", error)

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[AsyncTransactionalProducer]:
        """Lend a producer, initialized, for an `async with` block.

        One that fails in it is not lent again. See `txnproducer.pool.ProducerPool.producer`.
        """
        async with self._on_loan() as member:
            producer = await self._ready(member)
            try:
                yield producer
            finally:
                await self._drop_if_failed(member, producer)

    @asynccontextmanager
    async def _on_loan(self) -> AsyncIterator[_Member]:
        if self._is_closed:
            raise IllegalStateError("this AsyncProducerPool is closed: make another one")
        refuse_taken(self._taken)
        member = self._idle.pop() if self._idle else _Member(self._ids.take(), os.getpid())
        self._lent += 1
        try:
            yield member
        finally:
            await self._take_back(member)

    async def _take_back(self, member: _Member) -> None:
        if member.process != os.getpid():
            return  # a child of a fork has it on loan from its parent
        self._lent -= 1
        if not self._is_closed:
            self._idle.append(member)
            return
        await self._end(member, None)
        self._close_ids()

    async def _ready(self, member: _Member) -> AsyncTransactionalProducer:
        if member.producer is None:
            config = self._config.replace(transactional_id=member.transactional_id)
            made = AsyncTransactionalProducer.from_config(config)
            try:
                await made.init_transactions()
            except BaseException:
                await made.close(0)
                raise
            member.producer = made
        return member.producer

    async def _drop_if_failed(self, member: _Member, producer: AsyncTransactionalProducer) -> None:
        if member.producer is producer and producer.transaction_state != "READY":
            await self._end(member, CLOSE_FAILED_S)

    async def _end(self, member: _Member, timeout_s: float | None) -> None:
        if member.producer is not None:
            await member.producer.close(timeout_s)
            member.producer = None

    async def close(self, timeout: float | None = None) -> None:
        """Close the producers that nobody has on loan. The others close when they come back.

        Args:
            timeout: seconds for each; see `AsyncTransactionalProducer.close`.
        """
        self._is_closed = True
        # One after the other: a cancellation leaves the rest to the next call.
        while self._idle:
            await self._end(self._idle[-1], timeout)
            self._idle.pop()
        self._close_ids()

    def _close_ids(self) -> None:
        if not self._lent:
            self._ids.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(None if error is None else CLOSE_FAILED_S)
