"""The members of a pool of producers: their ids, their loans, and the rules of their renewal.

Why it exists: a pool for threads and one for the tasks of an event loop differ only in how they
wait for a producer.
Owns: the members, which of them are on loan, the error that ends a pool. Must not know: how a
producer is made, used or closed, where an id comes from (`worker_slots`).
Rules:
* An id that another producer may have taken is left to it, and the pool ends. Two that take it
  back and forth would fence each other for ever. A pool's own producer knows that, whatever error
  leaves the caller's function.
* A producer that is given up stays with its member until its end is known, also if an interrupt
  or a cancellation ends the wait for it. It is never lent again.
* A loan ends when its block has ended, or is gone: an interrupt may come before the block can say
  so. Then the next loan, or the next close, finds the member free.
* The worker's number is given back after the last producer was closed, and not before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar
from weakref import ref

from txnproducer._shell.arguments import to_seconds
from txnproducer._shell.transaction_runs import NEXT, Next, Run
from txnproducer._shell.worker_slots import WorkerIds, forget_at_fork
from txnproducer.config import ProducerConfig
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    IllegalStateError,
    InvalidConfigurationError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
)

__all__ = ["CLOSE_FAILED_S", "Loan", "Member", "PoolMembers", "outcome_in_error"]

P = TypeVar("P")

# The end of a failed producer: nothing of it is worth a wait.
CLOSE_FAILED_S: Final = 0.5

_WAY_OUT: Final = "Give each process a worker of its own, and start this one again"
_LEFT: Final = (
    "Another producer may have taken an id of this pool, and the pool does not take it back: two"
    f" processes would fence each other for ever. It makes no more producers. {_WAY_OUT}"
)


class Loan:
    """A block in which a member is on loan; nothing but the block may keep it.

    Attributes:
        is_over: whether the block has ended.
    """

    is_over = False


@dataclass(eq=False)
class Member(Generic[P]):
    """An id of the pool, and the producer that has it now.

    Attributes:
        transactional_id: the id; empty until it is first lent.
        producer: None if one has to be made.
        is_given_up: whether the producer is being ended, and another one has to take its place.
        loan: returns the last loan, or None if that is gone.
    """

    transactional_id: str = ""
    producer: P | None = field(default=None, repr=False)
    is_given_up: bool = False
    loan: Callable[[], Loan | None] = field(default=lambda: None, repr=False)

    @property
    def is_free(self) -> bool:
        """Whether it is not on loan."""
        loan = self.loan()
        return loan is None or loan.is_over


class PoolMembers(Generic[P]):
    """The base of both pools. Its arguments are those of `ProducerPool`."""

    def __init__(
        self,
        bootstrap_servers: str | list[str] | None,
        name: str,
        worker: int | str | None,
        lock_folder: str | Path | None,
        most_workers: int,
        settings: dict[str, Any],
    ) -> None:
        folder = None if lock_folder is None else Path(lock_folder)
        self._ids = WorkerIds(name, worker, folder, most_workers)
        # Refused here, and not when the first producer is needed.
        self._config = _config_of(bootstrap_servers, name, settings)
        self._reset()
        forget_at_fork(self)

    def forget_parent(self) -> None:
        """Forget all that is the parent's, in a forked process."""
        self._ids.leave_to_parent()
        self._reset()

    def _reset(self) -> None:
        self.failure: KafkaError | None = None
        self._guard = threading.Lock()
        self._members: list[Member[P]] = []
        self._is_closed = False
        self._close_s: float | None = None

    # --- loans ---------------------------------------------------------------------------------

    def _lend(self, loan: Loan) -> Member[P]:
        """Lend a member that is free, or a new one, until the loan is over.

        Raises:
            IllegalStateError: the pool is closed.
            ProducerFencedError: another producer may have taken an id.
            InvalidConfigurationError: another process has the worker.
        """
        with self._guard:
            if self._is_closed:
                raise IllegalStateError(f"this {type(self).__name__} is closed: make another one")
            self._refuse_if_taken()
            # The first one, so that those that are needed least stay last.
            member = next(iter(self._free_members()), None)
            if member is None:
                member = Member()
                self._members.append(member)
            member.loan = ref(loan)
        if not member.transactional_id:
            member.transactional_id = self._ids.take()
        return member

    def _free_members(self) -> list[Member[P]]:
        return [member for member in self._members if member.is_free]

    def _is_of_parent(self, member: Member[P]) -> bool:
        """Return whether this process is a fork of the one that has the member."""
        return member not in self._members

    # --- the end -------------------------------------------------------------------------------

    def _begin_close(self, timeout: float | None) -> None:
        """Lend nothing from now on.

        Raises:
            ValueError: the time-out is negative.
        """
        limit_s = None if timeout is None else to_seconds(timeout)
        with self._guard:
            self._is_closed, self._close_s = True, limit_s

    def _limit_of_close_s(self, member: Member[P]) -> float | None:
        return CLOSE_FAILED_S if member.is_given_up else self._close_s

    def _forget(self, member: Member[P]) -> None:
        """Forget a member that was closed. After an interrupted close the next one finds it."""
        with self._guard:
            if member in self._members:
                self._members.remove(member)
        self._give_back_worker()

    def _give_back_worker(self) -> None:
        """Let another process have the worker, if no producer is left."""
        if self._is_closed and not self._members:
            self._ids.close()

    # --- renewal -------------------------------------------------------------------------------

    def _config_of(self, member: Member[P]) -> ProducerConfig:
        return self._config.replace(transactional_id=member.transactional_id)

    def _is_worth_another_run(self, error: BaseException, runs: list[Run[Any, Any]]) -> bool:
        """Return whether another run may follow an error."""
        if self.failure is not None:
            error.add_note(_LEFT)
            return False
        if not isinstance(error, KafkaError):
            return bool(runs) and runs[0].may_run_again
        following = NEXT[error.recovery]
        if not runs:  # the producer could not be initialized, so nothing was written
            return following in (Next.RENEW, Next.RUN_AGAIN, Next.GO_ON)
        is_aborted = runs[0].block.outcome == "aborted"
        return runs[0].may_run_again or (following is Next.RENEW and is_aborted)

    def _note_taken(self, error: KafkaError | None) -> None:
        """End the pool if a newer producer has taken an id. The error is its last producer's."""
        if error is not None and self.failure is None:
            error.add_note(_LEFT)
            self.failure = error

    def _refuse_if_taken(self) -> None:
        """Refuse a producer once another one has taken an id of the pool.

        Raises:
            ProducerFencedError: it has.
        """
        taken = self.failure
        if taken is not None:
            raise ProducerFencedError(
                "another producer has taken this id, or may have, so this pool makes no more"
                f" producers: {taken}. {_WAY_OUT}"
            ) from taken


@contextmanager
def outcome_in_error(runs: list[Run[Any, Any]]) -> Iterator[None]:
    """Let the error of the last run show its outcome: the caller has no producer to ask.

    Raises:
        CommitOutcomeUnknownError: the commit is in doubt, and the error did not say so.
    """
    try:
        yield
    except BaseException as error:
        outcome = runs[0].block.outcome if runs else "aborted"
        if isinstance(error, KafkaError) and outcome == "unknown" and error.recovery != "unknown":
            raise CommitOutcomeUnknownError(
                "the commit may have been sent, and the pool has given up the producer that waited"
                " for it. Before you write the records again, read the output with"
                f" read_committed, as `is_written` of run() does. The cause: {error}"
            ) from error
        # An exception of a signal handler may come at any place, as an interrupt does. One of the
        # function's own has aborted the transaction.
        is_stray = not isinstance(error, KafkaError) and outcome != "aborted"
        if is_stray or not isinstance(error, Exception) or isinstance(error, KafkaTimeoutError):
            error.add_note(f"The transaction's outcome: {outcome}")
        raise


def _config_of(
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
