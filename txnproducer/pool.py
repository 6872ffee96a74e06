"""A pool of producers for services: one for each thread that writes, made and renewed as needed.

Owns: the producers, from their making to their end. Must not know: how a run of a function is
repeated (`transaction_runs`), which member is lent, and when the pool ends (`pool_members`).
Rules:
* A producer is on loan to one thread at a time. It is made when all others are on loan.
* A producer that has failed is closed before another one takes its id. None takes an id that
  another process may have taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

from txnproducer._shell.arguments import refuse_coroutine
from txnproducer._shell.pool_members import (
    CLOSE_FAILED_S,
    Loan,
    Member,
    PoolMembers,
    outcome_in_error,
)
from txnproducer._shell.runs_in_threads import as_kinds, is_found, run_once
from txnproducer._shell.transaction_runs import Attempt, Bounds, Run
from txnproducer.errors import KafkaError
from txnproducer.producer import TransactionalProducer
from txnproducer.transaction import Transaction

__all__ = ["ProducerPool"]

T = TypeVar("T")
_Member: TypeAlias = Member[TransactionalProducer]


class ProducerPool(PoolMembers[TransactionalProducer]):
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

    Attributes:
        failure: the error after which the pool makes no more producers, since another one may have
            taken an id; None as long as it works. A health check that reports it has the process
            replaced.

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
        super().__init__(bootstrap_servers, name, worker, lock_folder, most_workers, settings)

    # --- runs ----------------------------------------------------------------------------------

    def run(
        self,
        fn: Callable[[Transaction], T],
        *,
        attempts: int = 5,
        timeout: float | None = None,
        retry_on: type[BaseException] | Iterable[type[BaseException]] = (),
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
          doubt has ended. Its no counts as well, and the function is called again. If another
          producer has taken the id, no new one is made, and a no decides nothing.

        Raises:
            InvalidConfigurationError: another process has this worker; nothing was fenced.
            CommitOutcomeUnknownError: it is not known whether the transaction is committed.
            KafkaError: the transaction is aborted.
        """
        refuse_coroutine(fn)
        refuse_coroutine(is_written)
        bounds = Bounds(attempts, timeout, as_kinds(retry_on), on_retry)
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
                except BaseException:
                    self._drop_if_failed(member, producer)
                    raise

            def is_worth_it(error: BaseException) -> bool:
                return self._is_worth_another_run(error, runs)

            with outcome_in_error(runs):
                result: T = bounds.retrying("Retrying", is_worth_it)(attempt)
            return result

    def _look(self, member: _Member, is_written: Callable[[], bool] | None) -> str:
        # A new producer ends the transaction in doubt, so that nothing arrives after the look. If
        # none may be made, a no decides nothing.
        self._give_up(member)
        is_taken = self.failure is not None
        if not is_taken:
            self._ready(member)
        if is_found(is_written):
            return "committed"
        return "unknown" if is_taken else "aborted"

    # --- producers -----------------------------------------------------------------------------

    @contextmanager
    def producer(self) -> Iterator[TransactionalProducer]:
        """Lend a producer, initialized, for a `with` block. A failed one is not lent again.

        If it has failed because another producer has taken its id, the pool ends: see `failure`.

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
        loan = Loan()
        try:
            yield self._lend(loan)
        finally:
            # A plain store, before which no interrupt comes.
            loan.is_over = True
            if self._is_closed:
                self._close_free()

    def _ready(self, member: _Member) -> TransactionalProducer:
        # Given up before: the wait for its end was interrupted, or an interrupt came before it.
        if member.producer is not None and (member.is_given_up or not _is_ready(member.producer)):
            self._give_up(member)
        if member.producer is None:
            self._refuse_if_taken()
            made = TransactionalProducer.from_config(self._config_of(member))
            try:
                made.init_transactions()
            except BaseException:
                self._note_taken(_taken_over(made))
                made.close(0)
                raise
            member.producer = made
        return member.producer

    def _drop_if_failed(self, member: _Member, producer: TransactionalProducer) -> None:
        if member.producer is not producer or self._is_of_parent(member):
            return
        # An open transaction as well: the next run could not begin, and its commit may yet come.
        if not _is_ready(producer):
            self._give_up(member)
        else:
            # Its abort may have succeeded in the midst of the newer producer's initialization.
            self._note_taken(_taken_over(producer))

    def _give_up(self, member: _Member) -> None:
        member.is_given_up = True
        if member.producer is not None:
            member.producer._give_up(CLOSE_FAILED_S)  # noqa: SLF001 - our own class
            self._note_taken(_taken_over(member.producer))
        member.producer, member.is_given_up = None, False

    # --- the end -------------------------------------------------------------------------------

    def close(self, timeout: float | None = None) -> None:
        """Close the producers that nobody has on loan. The others close when they come back.

        Args:
            timeout: seconds for each, also for those that come back; see
                `TransactionalProducer.close`.

        Raises:
            ValueError: the time-out is negative.
        """
        self._begin_close(timeout)
        self._close_free()

    def _close_free(self) -> None:
        # One after the other: an interrupt leaves the rest to the next call.
        for member in self._free_members():
            if member.producer is not None:
                member.producer.close(self._limit_of_close_s(member))
            self._forget(member)
        self._give_back_worker()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(None if error is None else CLOSE_FAILED_S)


def _is_ready(producer: TransactionalProducer) -> bool:
    return producer._is_ready  # noqa: SLF001 - our own class


def _taken_over(producer: TransactionalProducer) -> KafkaError | None:
    return producer._taken_over()  # noqa: SLF001 - our own class
