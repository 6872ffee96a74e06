"""A pool of producers for the tasks of one event loop.

Owns: the producers, from their making to their end. Must not know: how a run of a function is
repeated (`transaction_runs`), which member is lent, and when the pool ends (`pool_members`).
The rules are those of `txnproducer.pool`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

from txnproducer._shell.pool_members import (
    CLOSE_FAILED_S,
    Loan,
    Member,
    PoolMembers,
    outcome_in_error,
)
from txnproducer._shell.runs_in_threads import as_kinds
from txnproducer._shell.transaction_runs import Attempt, Bounds, Run
from txnproducer.aio.producer import AsyncTransactionalProducer
from txnproducer.aio.runs import IsWritten, is_found, run_once
from txnproducer.aio.transaction import AsyncTransaction
from txnproducer.errors import IllegalStateError, KafkaError

__all__ = ["AsyncProducerPool"]

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
_Member: TypeAlias = Member[AsyncTransactionalProducer]


class AsyncProducerPool(PoolMembers[AsyncTransactionalProducer]):
    """Producers with transactional ids of their own, for the tasks of a service.

    A program in short::

        async with AsyncProducerPool("localhost:9092", "orders", worker=0) as pool:
            await pool.run(write)  # a coroutine function, which gets the transaction

    Each task that writes at the same time has a producer of its own, which is a thread and
    connections: a service with many requests bounds their number, by a semaphore or by one writer.
    Arguments and attributes: see `txnproducer.pool.ProducerPool`.
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
        super().__init__(bootstrap_servers, name, worker, lock_folder, most_workers, settings)

    def _reset(self) -> None:
        super()._reset()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(
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

        The function may be called several times. See `txnproducer.pool.ProducerPool.run`.
        """
        bounds = Bounds(attempts, timeout, as_kinds(retry_on), on_retry)
        runs: list[Run[AsyncTransaction, T]] = []
        async with self._on_loan() as member:

            async def look() -> str:
                # As in `ProducerPool`: without a new producer a no decides nothing.
                await self._give_up(member)
                is_taken = self.failure is not None
                if not is_taken:
                    await self._ready(member)
                if await is_found(is_written):
                    return "committed"
                return "unknown" if is_taken else "aborted"

            async def attempt() -> T:
                runs.clear()
                producer = await self._ready(member)
                run: Run[AsyncTransaction, T]
                run = Run(producer.transaction(), bounds, has_look=is_written is not None)
                runs.append(run)
                try:
                    return await run_once(producer, fn, run, look)
                except BaseException:
                    await self._wait_for_commit(producer, run)
                    await self._drop_if_failed(member, producer)
                    raise

            def is_worth_it(error: BaseException) -> bool:
                return self._is_worth_another_run(error, runs)

            retrying = bounds.retrying("AsyncRetrying", is_worth_it, asyncio.sleep)
            with outcome_in_error(runs):
                result: T = await retrying(attempt)
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
        self._check_loop()
        loan = Loan()
        try:
            yield self._lend(loan)
        finally:
            # A plain store, before which no interrupt comes.
            loan.is_over = True
            if self._is_closed:
                await self._close_free()

    def _check_loop(self) -> None:
        """Refuse an event loop other than the first.

        Raises:
            IllegalStateError: the producers are those of another loop.
        """
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        if loop is not self._loop:
            raise IllegalStateError(
                "this AsyncProducerPool belongs to another event loop: make one in each loop, and"
                " close it there (`async with` does both)"
            )

    async def _ready(self, member: _Member) -> AsyncTransactionalProducer:
        # Given up before: the wait for its end was cancelled.
        if member.producer is not None and (member.is_given_up or not _is_ready(member.producer)):
            await self._give_up(member)
        if member.producer is None:
            self._refuse_if_taken()
            made = AsyncTransactionalProducer.from_config(self._config_of(member))
            try:
                await made.init_transactions()
            except BaseException:
                self._note_taken(_taken_over(made))
                await made.close(0)
                raise
            member.producer = made
        return member.producer

    async def _drop_if_failed(self, member: _Member, producer: AsyncTransactionalProducer) -> None:
        if member.producer is not producer or self._is_of_parent(member):
            return
        if not _is_ready(producer):
            await self._give_up(member)
        else:
            self._note_taken(_taken_over(producer))

    async def _give_up(self, member: _Member) -> None:
        member.is_given_up = True
        if member.producer is not None:
            calls = member.producer._calls  # noqa: SLF001 - our own class
            await calls.give_up_in_loop(CLOSE_FAILED_S)
            self._note_taken(_taken_over(member.producer))
        member.producer, member.is_given_up = None, False

    async def close(self, timeout: float | None = None) -> None:
        """Close the producers that nobody has on loan. The others close when they come back.

        Args:
            timeout: seconds for each, also for those that come back; see
                `AsyncTransactionalProducer.close`.

        Raises:
            ValueError: the time-out is negative.
        """
        self._check_loop()
        self._begin_close(timeout)
        await self._close_free()

    async def _close_free(self) -> None:
        # One after the other: a cancellation leaves the rest to the next call.
        for member in self._free_members():
            if member.producer is not None:
                await member.producer.close(self._limit_of_close_s(member))
            self._forget(member)
        self._give_back_worker()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(None if error is None else CLOSE_FAILED_S)


def _is_ready(producer: AsyncTransactionalProducer) -> bool:
    return producer._calls._is_ready  # noqa: SLF001 - our own classes


def _taken_over(producer: AsyncTransactionalProducer) -> KafkaError | None:
    return producer._calls._taken_over()  # noqa: SLF001 - our own classes
