"""The runs of a coroutine function in a transaction, in a task of an event loop.

Owns: how the steps of a run are performed by a producer for asyncio. Must not know: which failure
is repeated (`transaction_runs`).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol, TypeVar

from txnproducer._shell.runs_in_threads import refuse_unfinished
from txnproducer._shell.steps import run_steps_in_loop
from txnproducer._shell.transaction_runs import Bounds, Run, Step, UnfinishedError
from txnproducer.aio.transaction import AsyncTransaction

__all__ = ["IsWritten", "RunningProducer", "is_found", "run_in_task", "run_once"]

T = TypeVar("T")
# A plain function, or a coroutine function.
IsWritten = Callable[[], Any]


class RunningProducer(Protocol):
    """A producer, as a run needs it."""

    @property
    def transaction_state(self) -> str:
        """The name of the state."""
        ...

    def transaction(self) -> AsyncTransaction:
        """Return the block of a transaction."""
        ...

    async def commit_transaction(self) -> None:
        """Commit, or go on to wait for the commit."""
        ...

    async def abort_transaction(self) -> None:
        """Abort."""
        ...

    async def resolve_outcome(self) -> Literal["committed", "aborted", "unknown"]:
        """Find out the outcome of a commit in doubt."""
        ...


async def run_in_task(
    producer: RunningProducer,
    fn: Callable[[AsyncTransaction], Awaitable[T]],
    bounds: Bounds,
    is_written: IsWritten | None,
) -> T:
    """Run a function as `AsyncTransactionalProducer.run_transaction` does."""
    runs: list[Run[AsyncTransaction, T]] = []

    async def look() -> str:
        # After a no the commit may yet arrive, as long as no other producer has taken the id.
        return "committed" if await is_found(is_written) else "unknown"

    async def run() -> T:
        runs[:] = [Run(producer.transaction(), bounds, has_look=is_written is not None)]
        return await run_once(producer, fn, runs[0], look)

    def is_worth_it(_: BaseException) -> bool:
        # After a doubt the producer itself may have failed.
        return runs[0].may_run_again and producer.transaction_state == "READY"

    retrying = bounds.retrying("AsyncRetrying", is_worth_it, asyncio.sleep)
    result: T = await retrying(run)
    return result


async def run_once(
    producer: RunningProducer,
    fn: Callable[[AsyncTransaction], Awaitable[T]],
    run: Run[AsyncTransaction, T],
    look: Callable[[], Awaitable[str]],
) -> T:
    """Take the steps of one run, as `runs_in_threads.run_once` does."""

    async def perform(step: Step) -> Any:
        if step is Step.BLOCK:
            async with run.block as transaction:
                run.value = await _called(fn, transaction)
        elif step is Step.COMMIT:
            await producer.commit_transaction()
        elif step is Step.ABORT:
            await producer.abort_transaction()
        elif step is Step.RESOLVE:
            return await producer.resolve_outcome()
        else:
            return await look()
        return None

    return await run_steps_in_loop(run.steps(), perform)


async def is_found(is_written: IsWritten | None) -> bool:
    """Ask the caller's `is_written`, which may be a coroutine function."""
    found = False if is_written is None else is_written()
    return bool(await found if inspect.isawaitable(found) else found)


async def _called(
    fn: Callable[[AsyncTransaction], Awaitable[T]], transaction: AsyncTransaction
) -> T:
    outcome = fn(transaction)
    if not inspect.isawaitable(outcome):
        raise UnfinishedError(f"{fn!r} is no coroutine function: its result cannot be awaited")
    value = await outcome
    refuse_unfinished(fn, value, "Await it in the function")
    return value
