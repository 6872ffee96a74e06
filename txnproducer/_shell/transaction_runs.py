"""The runs of a function in a transaction: which failures are repeated, and how.

Why it exists: every service needs the same loop, and its cases are easily mistaken for each other.
A transaction that was aborted is run again, a commit that timed out is waited for, and one in
doubt is resolved before anything is written once more.
Owns: the table of the next steps, the steps of one run, the bounds of all. Must not know: how a
step is performed (a thread blocks, a task of an event loop awaits), how a producer is made.
Rules:
* The function is never run again unless the run before is known to be aborted.
* Only the caller's own exceptions in `retry_on`, errors of this package, and groups of nothing
  else are repeated.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TypeVar

from txnproducer._core.transactions.transaction_loss import is_taken_over
from txnproducer._shell.arguments import check_claim, refuse_coroutine, seconds
from txnproducer._shell.refusals import name_way_out
from txnproducer._shell.steps import Steps
from txnproducer.errors import IllegalStateError, KafkaError, KafkaTimeoutError, Recovery

if TYPE_CHECKING:
    from tenacity import RetryCallState

T = TypeVar("T")
_FIRST_WAIT_S: Final = 0.05
_LONGEST_WAIT_S: Final = 5.0
_GIVEN_UP: Final = "The transaction was aborted then, and nothing of it is visible"

__all__ = [
    "NEXT",
    "Attempt",
    "Bounds",
    "Next",
    "OpenBlock",
    "Run",
    "Step",
    "UnfinishedError",
    "waits",
]


class UnfinishedError(TypeError):
    """A function has only begun, as it does each time: it is never run again."""


class Next(Enum):
    """The step that follows a failure."""

    RUN_AGAIN = "the transaction is aborted: run the function again, after a wait"
    GO_ON = "the commit goes on: wait for the same commit, and abort at the end of the time"
    RENEW = "the producer has failed: a new one of the same id is needed"
    RESOLVE = "the commit is in doubt: find out, and run again only if it is not there"
    RAISE = "nothing that a program repeats would help"


NEXT: Final[Mapping[Recovery, Next]] = {
    "abort": Next.RUN_AGAIN,
    "resume": Next.GO_ON,
    "restart": Next.RENEW,
    "unknown": Next.RESOLVE,
    "fix": Next.RAISE,
}


class Step(Enum):
    """A step of a run, for its driver to perform."""

    BLOCK = "enter the block, call the function in it, leave it"
    COMMIT = "call `commit_transaction` of the producer"
    ABORT = "call `abort_transaction` of the producer"
    RESOLVE = "call `resolve_outcome` of the producer"
    LOOK = "call the caller's `is_written`, and return the outcome"


class OpenBlock(Protocol):
    """The block of a transaction, as a run sees it."""

    @property
    def outcome(self) -> str:
        """The outcome as far as it is known."""
        ...


@dataclass(frozen=True)
class Attempt:
    """A run that has failed, and is followed by another.

    Attributes:
        number: of the run, from 1.
        error: that ended it.
        wait_s: the seconds until the next one.
    """

    number: int
    error: BaseException
    wait_s: float


@dataclass(frozen=True)
class Bounds:
    """How often, and for how long, a function is run.

    Attributes:
        attempts: runs at most, the first one included.
        timeout_s: seconds for all of them; None for no limit but that of the attempts.
        retry_on: the caller's own exceptions after which it is run again.
        on_retry: called before the wait for the next run.
    """

    attempts: int = 5
    timeout_s: float | None = None
    retry_on: tuple[type[BaseException], ...] = ()
    on_retry: Callable[[Attempt], object] | None = None
    began_s: float = field(default_factory=time.monotonic)  # noqa: TID251 - a wait above the core

    def __post_init__(self) -> None:
        if check_claim("attempts", self.attempts) < 1:
            raise ValueError(f"attempts={self.attempts}: at least one run is needed")
        if self.on_retry is not None and not callable(self.on_retry):
            raise TypeError(f"on_retry must be a function of an Attempt, not {self.on_retry!r}")
        refuse_coroutine(self.on_retry, "on_retry is called without await: give a plain function")
        if not seconds(self.timeout_s) > 0:
            raise ValueError(f"timeout={self.timeout_s}: give seconds above 0, or None")

    def is_time_up(self) -> bool:
        """Return whether the time for all runs is over."""
        passed_s = time.monotonic() - self.began_s  # noqa: TID251 - likewise
        return self.timeout_s is not None and passed_s >= self.timeout_s

    def allow_after(self, error: BaseException) -> bool:
        """Return whether a run may follow an error, or each error of a group, as of a `TaskGroup`.

        The transaction is aborted.
        """
        if isinstance(error, BaseExceptionGroup):
            return all(map(self.allow_after, error.exceptions))
        if isinstance(error, KafkaError):
            following = NEXT[error.recovery]
            is_worth_it = following in (Next.RUN_AGAIN, Next.GO_ON, Next.RENEW)
            return is_worth_it and not is_taken_over(error)
        return isinstance(error, self.retry_on)

    def retrying(
        self,
        kind: Literal["Retrying", "AsyncRetrying"],
        is_worth_it: Callable[[BaseException], bool],
        sleep: Callable[[float], Any] = time.sleep,  # noqa: TID251 - a wait above the core
    ) -> Any:
        """Return tenacity's loop.

        Args:
            kind: the name of its class.
            is_worth_it: whether another run may follow an error.
            sleep: waits.
        """
        tenacity = _tenacity()
        return getattr(tenacity, kind)(
            stop=lambda state: state.attempt_number >= self.attempts or self.is_time_up(),
            wait=waits(),
            # Never after an interrupt or a cancellation, which may come at any place.
            retry=tenacity.retry_if_exception(
                lambda error: isinstance(error, Exception) and is_worth_it(error)
            ),
            before_sleep=self._before_sleep,
            sleep=sleep,
            reraise=True,
        )

    def _before_sleep(self, state: RetryCallState) -> None:
        error = None if state.outcome is None else state.outcome.exception()
        if self.on_retry is not None and error is not None:
            wait_s = 0.0 if state.next_action is None else state.next_action.sleep
            self.on_retry(Attempt(state.attempt_number, error, wait_s))


def _tenacity() -> Any:
    """Import tenacity, late: a producer that never repeats does not need it."""
    try:
        import tenacity
    except BaseException:
        # Ctrl-C in an import leaves half-made modules, and every later import would use them.
        for name in [each for each in sys.modules if each.partition(".")[0] == "tenacity"]:
            sys.modules.pop(name, None)
        raise
    return tenacity


def waits() -> Any:
    """Return tenacity's waits before the next run, which grow."""
    tenacity = _tenacity()
    # The random part keeps workers apart that have failed together.
    return tenacity.wait_exponential(_FIRST_WAIT_S, max=_LONGEST_WAIT_S) + tenacity.wait_random(
        0, _FIRST_WAIT_S
    )


B = TypeVar("B", bound=OpenBlock)


class Run(Generic[B, T]):
    """One run of a function in a transaction.

    Args:
        block: of the transaction; not entered yet.
        bounds: of all runs.
        has_look: whether the caller has given `is_written`.

    Attributes:
        block: of the transaction.
        value: that the function has returned.
        may_run_again: whether another run may follow the error that ended this one.
    """

    def __init__(self, block: B, bounds: Bounds, *, has_look: bool) -> None:
        self.block = block
        self.value: Any = None
        self.may_run_again = False
        self._bounds = bounds
        self._has_look = has_look

    def steps(self) -> Steps[Step, T]:
        """Take the steps, and return the function's value once its transaction is committed.

        Raises:
            KafkaError: the transaction is not committed, or it is not known.
            BaseException: of the function; the transaction is aborted.
        """
        try:
            yield Step.BLOCK
        except KafkaError as error:
            yield from self._after(error)
        except UnfinishedError:
            raise
        except self._bounds.retry_on:
            self.may_run_again = self.block.outcome == "aborted"
            raise
        except BaseExceptionGroup as group:
            may = self._bounds.allow_after(group)
            self.may_run_again = may and self.block.outcome == "aborted"
            raise
        value: T = self.value
        return value

    def _after(self, error: KafkaError) -> Steps[Step, None]:
        """Return if the transaction is committed after all, and raise otherwise."""
        following, outcome = NEXT[error.recovery], self.block.outcome
        if outcome == "committed":
            error.add_note("The transaction is committed all the same.")
            raise error
        if outcome == "unknown":
            yield from self._resolve(error)
            return
        if following is Next.GO_ON and outcome == "open":
            yield from self._go_on(error)
            return
        # A time-out in the function itself has aborted the block, as any exception does.
        is_worth_it = following in (Next.RUN_AGAIN, Next.GO_ON) and not is_taken_over(error)
        self.may_run_again = is_worth_it and outcome == "aborted"
        raise error

    def _go_on(self, error: KafkaError) -> Steps[Step, None]:
        """Wait for the commit that has timed out; give up at the end of the time."""
        for _ in range(self._bounds.attempts):
            if self._bounds.is_time_up():
                break
            try:
                yield Step.COMMIT
            except KafkaTimeoutError as again:
                error = again
            except KafkaError as other:
                yield from self._after_late_commit(other)
                return
            else:
                return
        yield from self._give_up(error)

    def _after_late_commit(self, error: KafkaError) -> Steps[Step, None]:
        if NEXT[error.recovery] is Next.RUN_AGAIN:
            yield Step.ABORT  # the block was left before, so that nobody else does
        yield from self._after(error)

    def _give_up(self, error: KafkaError) -> Steps[Step, None]:
        """Abort a commit that does not end. It may have been faster."""
        try:
            yield Step.ABORT
        except KafkaError as found:
            if isinstance(found, IllegalStateError) and self.block.outcome == "committed":
                return
            if self.block.outcome == "unknown":
                yield from self._resolve(found)
                return
            raise found from error
        # The time is over, or as many waits as there are runs: nothing is tried again.
        if isinstance(error, KafkaTimeoutError):
            name_way_out(error, _GIVEN_UP)
        raise error

    def _resolve(self, error: KafkaError) -> Steps[Step, None]:
        outcome = "unknown"
        try:
            outcome = yield Step.RESOLVE
            if outcome == "unknown" and self._has_look:
                outcome = yield Step.LOOK
        except Exception as failure:
            # The doubt counts more: the failure says nothing of the records.
            error.add_note(f"The outcome could not be found out: {failure!r}")
            raise error from failure
        if outcome == "committed":
            return
        if outcome == "aborted":
            error.add_note("The coordinator, or the look, says that it is aborted.")
        self.may_run_again = outcome == "aborted"
        raise error
