"""A pool of producers for services: one for each thread that writes, made and renewed as needed.

Owns: the producers, their loan to threads, their renewal. Must not know: how a run of a function
is repeated (`transaction_runs`), where an id comes from (`worker_slots`).
Rules:
* A producer is on loan to one thread at a time. It is made when all others are on loan.
* A producer that has failed is closed before another one takes its id.
* An id that another producer may have taken is left to it, and the pool ends. Two that take it
  back and forth would fence each other for ever.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from txnproducer._core.transactions.transaction_loss import is_taken_over, may_be_taken_over
from txnproducer._shell.runs_in_threads import as_kinds, refuse_coroutine, run_once
from txnproducer._shell.transaction_runs import NEXT, Attempt, Bounds, Next, Run
from txnproducer._shell.worker_slots import WorkerIds, forget_at_fork
from txnproducer.config import ProducerConfig
from txnproducer.errors import (
    IllegalStateError,
    InvalidConfigurationError,
    KafkaError,
    ProducerFencedError,
)
from txnproducer.producer import TransactionalProducer
from txnproducer.transaction import Transaction

__all__ = ["ProducerPool"]

T = TypeVar("T")

# The end of a failed producer: nothing of it is worth a wait.
CLOSE_FAILED_S = 0.5


@dataclass(eq=False)
class _Member:
    """An id of the pool, and the producer that has it now."""

    transactional_id: str
    process: int
    producer: TransactionalProducer | None = field(default=None, repr=False)


class ProducerPool:
    """Producers with transactional ids of their own, for the threads of a service.

    A program in short::

        with ProducerPool("localhost:9092", "orders", worker=0) as pool:
            pool.run(lambda txn: txn.send("orders", b"value"))

    A producer is made, and initialized, when it is first needed, so a pool may be made before a
    fork: each process then has producers of its own. Their ids are `<name>-<worker>-<n>`.

    Args:
        bootstrap_servers: "host:port", several separated by commas, or a list of them.
        name: of the service.
        worker: of this process among all of the service: the ordinal of a StatefulSet, or a
            number from a process manager. None takes a number that no other process of this
            machine has, by a lock file, with the machine's name in front, which must stay the
            same over restarts.
        lock_folder: of the lock files; by default one of the user's in the system's temporary
            folder. It is on this machine.
        most_workers: numbers that are tried without `worker`.
        settings: as for `TransactionalProducer`, without `transactional_id`.

    Raises:
        InvalidConfigurationError: a setting is unknown or does not fit; the error names it.
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
        # Refused here, and not when the first producer is needed.
        self._config = config_of_pool(bootstrap_servers, name, settings)
        self._reset()
        forget_at_fork(self)

    def forget_parent(self) -> None:
        """Forget all that is the parent's, in a forked process."""
        self._ids.leave_to_parent()
        self._reset()

    def _reset(self) -> None:
        self._taken: KafkaError | None = None  # once another producer has taken an id
        self._guard = threading.Lock()
        self._idle: list[_Member] = []
        self._lent = 0
        self._is_closed = False

    # --- runs ----------------------------------------------------------------------------------

    def run(
        self,
        fn: Callable[[Transaction], T],
        *,
        attempts: int = 5,
        timeout: float | None = None,
        retry_on: type[BaseException] | tuple[type[BaseException], ...] = (),
        is_written: Callable[[], bool] | None = None,
        on_retry: Callable[[Attempt], object] | None = None,
    ) -> T:
        """Call a function in a transaction, and call it again where the failure allows it.

        The function may be called several times. Arguments, result and errors are those of
        `TransactionalProducer.run_transaction`, but for two:

        * After `error.recovery == "restart"` a new producer of the same id takes the place of the
          failed one, and the function is called again. It is not if another producer has taken the
          id: the error says so, and is raised.
        * `is_written` is called when a new producer has taken the id, so that the transaction in
          doubt has ended. Its no counts as well, and the function is called again.

        Raises:
            InvalidConfigurationError: another process has this worker; nothing was fenced.
            KafkaError: the transaction is not committed, or it is not known.
        """
        refuse_coroutine(fn)
        bounds = Bounds(attempts, timeout, as_kinds(retry_on), on_retry)
        from tenacity import Retrying  # late: a pool that is never used does not need it

        runs: list[Run[Transaction, T]] = []
        with self._on_loan() as member:

            def attempt() -> T:
                runs.clear()
                producer = self._ready(member)
                run: Run[Transaction, T]
                run = Run(producer.transaction(), bounds, has_look=is_written is not None)
                runs.append(run)
                look = partial(self._look, member, is_written)
                try:
                    return run_once(producer, fn, run, look)
                except BaseException as error:
                    self._drop_if_failed(member, producer)
                    tell_outcome(error, run)
                    raise

            def is_worth_it(error: BaseException) -> bool:
                if may_be_taken(error):
                    self._taken = self._taken or as_taken(error)
                    return False
                return is_worth_another_run(error, runs)

            result: T = bounds.retrying(Retrying, is_worth_it)(attempt)
            return result

    def _look(self, member: _Member, is_written: Callable[[], bool] | None) -> str:
        # A new producer ends the transaction in doubt, so that nothing arrives after the look.
        self._drop(member)
        self._ready(member)
        return "committed" if is_written is not None and is_written() else "aborted"

    # --- producers -----------------------------------------------------------------------------

    @contextmanager
    def producer(self) -> Iterator[TransactionalProducer]:
        """Lend a producer, initialized, for a `with` block. A failed one is not lent again.

        Raises:
            InvalidConfigurationError: another process has this worker; nothing was fenced.
            KafkaError: the producer could not be initialized.
        """
        with self._on_loan() as member:
            producer = self._ready(member)
            try:
                yield producer
            finally:
                self._drop_if_failed(member, producer)

    @contextmanager
    def _on_loan(self) -> Iterator[_Member]:
        member = self._lend()
        try:
            yield member
        finally:
            self._take_back(member)

    def _lend(self) -> _Member:
        with self._guard:
            if self._is_closed:
                raise IllegalStateError("this ProducerPool is closed: make another one")
            refuse_taken(self._taken)
            self._lent += 1
            if self._idle:
                return self._idle.pop()  # the one used last, whose connections are warm
        try:
            return _Member(self._ids.take(), os.getpid())
        except BaseException:
            with self._guard:
                self._lent -= 1
            raise

    def _take_back(self, member: _Member) -> None:
        if member.process != os.getpid():
            return  # a child of a fork has it on loan from its parent
        with self._guard:
            self._lent -= 1
            is_last = self._is_closed and not self._lent
            if not self._is_closed:
                self._idle.append(member)
                return
        self._end(member, None)
        if is_last:
            self._ids.close()

    def _ready(self, member: _Member) -> TransactionalProducer:
        if member.producer is None:
            config = self._config.replace(transactional_id=member.transactional_id)
            made = TransactionalProducer.from_config(config)
            try:
                made.init_transactions()
            except BaseException:
                made.close(0)
                raise
            member.producer = made
        return member.producer

    def _drop_if_failed(self, member: _Member, producer: TransactionalProducer) -> None:
        # An open transaction as well: the next run could not begin, and its commit may yet come.
        if member.producer is producer and producer.transaction_state != "READY":
            self._drop(member)

    def _drop(self, member: _Member) -> None:
        self._end(member, CLOSE_FAILED_S)

    def _end(self, member: _Member, timeout_s: float | None) -> None:
        if member.producer is not None:
            member.producer.close(timeout_s)
            member.producer = None

    # --- the end -------------------------------------------------------------------------------

    def close(self, timeout: float | None = None) -> None:
        """Close the producers that nobody has on loan. The others close when they come back.

        Args:
            timeout: seconds for each; see `TransactionalProducer.close`.
        """
        with self._guard:
            self._is_closed = True
        # One after the other: an interrupt leaves the rest to the next call.
        while self._idle:
            self._end(self._idle[-1], timeout)
            self._idle.pop()
        if not self._lent:
            self._ids.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(None if error is None else CLOSE_FAILED_S)


def may_be_taken(error: BaseException) -> bool:
    """Return whether another producer may have taken the id of a producer that has failed."""
    if is_taken_over(error):
        return True
    return isinstance(error, KafkaError) and (
        NEXT[error.recovery] is Next.RENEW and may_be_taken_over(error)
    )


def as_taken(error: BaseException) -> KafkaError:
    """Note on an error that the pool ends with it, and return it."""
    error.add_note(
        "Another producer may have taken this id, and the pool does not take it back: two"
        " processes would fence each other for ever. It makes no more producers. Give each process"
        " a worker of its own, and start this one again"
    )
    return error if isinstance(error, KafkaError) else KafkaError(str(error))


def refuse_taken(taken: KafkaError | None) -> None:
    """Refuse to lend a producer once another one has taken an id of the pool.

    Raises:
        ProducerFencedError: it has.
    """
    if taken is not None:
        raise ProducerFencedError(
            f"this pool makes no more producers, since another one may have taken its ids: {taken}"
            ". Give each process a worker of its own, and start this one again"
        ) from taken


def tell_outcome(error: BaseException, run: Run[Any, Any]) -> None:
    """Note the outcome on an interrupt or a cancellation: its caller has no producer to ask."""
    if not isinstance(error, Exception):
        error.add_note(f"The transaction's outcome: {run.block.outcome}")


def is_worth_another_run(error: BaseException, runs: list[Run[Any, Any]]) -> bool:
    """Return whether another run may follow an error."""
    if not isinstance(error, KafkaError):
        return bool(runs) and runs[0].may_run_again
    following = NEXT[error.recovery]
    if not runs:  # the producer could not be initialized, so nothing was written
        return following in (Next.RENEW, Next.RUN_AGAIN, Next.GO_ON)
    is_aborted = runs[0].block.outcome == "aborted"
    return runs[0].may_run_again or (following is Next.RENEW and is_aborted)


def config_of_pool(
    bootstrap_servers: str | list[str] | None, name: str, settings: dict[str, Any]
) -> ProducerConfig:
    """Return the configuration of a pool's producers, but for their ids.

    Raises:
        InvalidConfigurationError: a setting is unknown or does not fit; the error names it.
    """
    if {"transactional_id", "transactional.id"} & settings.keys():
        raise InvalidConfigurationError(
            "transactional_id: the pool gives each producer its own, <name>-<worker>-<n>: leave"
            " it out"
        )
    if bootstrap_servers is not None:
        settings = {**settings, "bootstrap_servers": bootstrap_servers}
    return ProducerConfig.build(**settings, transactional_id=name)
