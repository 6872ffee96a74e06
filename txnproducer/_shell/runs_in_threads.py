"""The runs of a function in a transaction, on the calling thread.

Owns: how the steps of a run are performed by a producer for threads. Must not know: which failure
is repeated (`transaction_runs`).
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, TypeVar

from txnproducer._core.batches.record_future import DeliveryFuture
from txnproducer._shell.arguments import IN_TASKS, refuse_coroutine
from txnproducer._shell.steps import run_steps
from txnproducer._shell.transaction_runs import Bounds, OpenBlock, Run, Step, UnfinishedError
from txnproducer.errors import IllegalStateError

__all__ = [
    "RunningProducer",
    "as_kinds",
    "is_found",
    "refuse_unfinished",
    "run_in_thread",
    "run_once",
]

T = TypeVar("T")


class ThreadBlock(OpenBlock, AbstractContextManager[Any], Protocol):
    """The block of a transaction in a thread."""


Block = TypeVar("Block", bound=ThreadBlock)


class RunningProducer(Protocol):
    """A producer, as a run needs it."""

    @property
    def transaction_state(self) -> str:
        """The name of the state."""
        ...

    def transaction(self) -> ThreadBlock:
        """Return the block of a transaction."""
        ...

    def commit_transaction(self) -> None:
        """Commit, or go on to wait for the commit."""
        ...

    def abort_transaction(self) -> None:
        """Abort."""
        ...

    def resolve_outcome(self) -> Literal["committed", "aborted", "unknown"]:
        """Find out the outcome of a commit in doubt."""
        ...


def run_in_thread(
    producer: RunningProducer,
    fn: Callable[[Any], T],
    bounds: Bounds,
    is_written: Callable[[], bool] | None,
) -> T:
    """Run a function as `TransactionalProducer.run_transaction` does."""
    refuse_coroutine(fn)
    refuse_coroutine(is_written)
    runs: list[Run[ThreadBlock, T]] = []

    def look() -> str:
        # After a no the commit may yet arrive, as long as no other producer has taken the id.
        return "committed" if is_found(is_written) else "unknown"

    def run() -> T:
        runs[:] = [Run(producer.transaction(), bounds, has_look=is_written is not None)]
        return run_once(producer, fn, runs[0], look)

    def is_worth_it(_: BaseException) -> bool:
        # After a doubt the producer itself may have failed.
        return runs[0].may_run_again and producer.transaction_state == "READY"

    result: T = bounds.retrying("Retrying", is_worth_it)(run)
    return result


def run_once(
    producer: RunningProducer,
    fn: Callable[[Any], T],
    run: Run[Block, T],
    look: Callable[[], str],
) -> T:
    """Take the steps of one run.

    Args:
        producer: of the transaction.
        fn: the function.
        run: has the block.
        look: returns the outcome of a commit in doubt, as far as the records show it.
    """

    def perform(step: Step) -> Any:
        if step is Step.BLOCK:
            with run.block as transaction:
                run.value = fn(transaction)
                refuse_unfinished(fn, run.value)
                _refuse_prepared(producer)
        elif step is Step.COMMIT:
            producer.commit_transaction()
        elif step is Step.ABORT:
            producer.abort_transaction()
        elif step is Step.RESOLVE:
            return producer.resolve_outcome()
        else:
            return look()
        return None

    return run_steps(run.steps(), perform)


def _refuse_prepared(producer: RunningProducer) -> None:
    # The end of the block would leave it open, and the caller would take that for a success.
    if producer.transaction_state == "PREPARED_TRANSACTION":
        raise IllegalStateError(
            "run_transaction(): the function has prepared the transaction, which this call does"
            " not end: complete() it, and prepare the next one after begin_transaction()"
        )


def is_found(is_written: Callable[[], bool] | None) -> bool:
    """Ask the caller's `is_written`."""
    found = is_written is not None and is_written()
    refuse_unfinished(is_written, found)  # a coroutine would count as a yes
    return bool(found)


def as_kinds(
    retry_on: type[BaseException] | Iterable[type[BaseException]],
) -> tuple[type[BaseException], ...]:
    """Return the exceptions that a caller has given.

    Raises:
        TypeError: one of them is no class of exceptions.
    """
    given: Any = retry_on
    kinds = tuple(given) if isinstance(given, Iterable) else (given,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise TypeError(f"retry_on: give classes of exceptions, and not {kind!r}")
    return kinds


def refuse_unfinished(fn: object, value: object, way_out: str = IN_TASKS) -> None:
    """Refuse the value of a function that has only begun, such as a coroutine.

    Args:
        fn: the function.
        value: that it has returned.
        way_out: for the message.

    Raises:
        TypeError: the function has not run to its end.
    """
    # Records' futures can be awaited as well, but their records are on their way.
    is_begun = isinstance(value, Awaitable) and not isinstance(value, DeliveryFuture)
    if not is_begun and not isinstance(value, (Generator, AsyncGenerator)):
        return
    if inspect.iscoroutine(value):
        value.close()  # otherwise Python warns that nobody has awaited it
    raise UnfinishedError(
        f"{fn!r} has returned {value!r}, and has not run to its end: the rest would run after"
        f" the commit, or never. {way_out}"
    )
