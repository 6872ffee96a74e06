"""One transactional operation: its end, and the place that holds it until its caller has seen it.

Owns: `TransactionalRequestResult`, `PendingOperation`, and the one place that holds the operation
under way. Must not know: the steps of an operation, how to wait (the shell does).

Rules:
* A result completes once; a second end is ignored. A commit that succeeded stays so, even if the
  producer fails before the caller asks (Java lets the later error replace the success).
* Completed is not acknowledged. The caller acknowledges when its waiting call has returned, or has
  raised the operation's own error; a time-out or an interrupt acknowledges nothing.
* An operation stays until its caller has acknowledged its end. The same call made again after a
  time-out finds it here, and every other call is refused.
* An exception can come between any two steps of a start (Ctrl-C, a signal handler's). So the
  operation is held before its first step, and `finish_start` makes the steps again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from txnproducer._core.transactions.state import TransactionState
from txnproducer.errors import IllegalStateError, KafkaError


class TransactionalRequestResult:
    """A one-shot result.

    Args:
        operation: the method that it belongs to; used in messages.

    Attributes:
        error: the operation's error; None while it goes on, and after success.
        is_completed: whether it has ended.
        is_acked: whether the caller has seen the end.
    """

    __slots__ = ("error", "is_acked", "is_completed", "operation")

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self.error: KafkaError | None = None
        self.is_completed = False
        self.is_acked = False

    @property
    def is_successful(self) -> bool:
        """Whether it has ended well."""
        return self.is_completed and self.error is None

    def done(self) -> None:
        """End well."""
        self.is_completed = True

    def fail(self, error: KafkaError) -> None:
        """End with an error, unless it has ended already."""
        # A success stays one, even if the producer fails before the caller asks. (Java overwrites
        # it.)
        if not self.is_completed:
            self.is_completed = True
            self.error = error

    def acknowledge(self) -> None:
        """Note that the caller has seen the end."""
        self.is_acked = True

    def __repr__(self) -> str:
        end = "pending" if not self.is_completed else self.error or "done"
        return f"<TransactionalRequestResult {self.operation}: {end}>"


_ENDS: Final = (TransactionState.COMMITTING_TRANSACTION, TransactionState.ABORTING_TRANSACTION)


@dataclass(slots=True)
class PendingOperation:
    """An operation whose end its caller has not seen.

    Attributes:
        kind: the state that it began with.
        result: its end.
        start: begins it; None once it has begun. After an interruption it is called again, so each
            of its steps first looks whether it is done.
    """

    kind: TransactionState
    result: TransactionalRequestResult
    start: Callable[[TransactionalRequestResult], None] | None

    def finish_start(self, start: Callable[[TransactionalRequestResult], None]) -> None:
        """Make the steps of its start again, which an exception has interrupted."""
        start(self.result)
        self.start = None


class PendingOperations:
    """Hold the operation under way. There is one at most.

    Args:
        name: the producer's, for refusals.

    Attributes:
        held: the operation; None if there is none. Its caller may have seen its end (`unseen`).
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.held: PendingOperation | None = None

    def unseen(self) -> PendingOperation | None:
        """Return the operation whose end its caller has not seen, or None if there is none."""
        if self.held is not None and self.held.result.is_acked:
            self.held = None
        return self.held

    @property
    def unseen_end(self) -> str | None:
        """The call that ends the transaction, while its caller has not seen the end."""
        # Nothing is written here: a caller may look without the lock.
        pending = self.held
        if pending is None or pending.kind not in _ENDS or pending.result.is_acked:
            return None
        return pending.result.operation

    def refuse_others(self, operation: str) -> None:
        """Refuse a call while an earlier call's end was not seen.

        Raises:
            IllegalStateError: there is one; the text names it.
        """
        pending = self.unseen()
        if pending is not None:
            earlier = pending.result.operation
            # A commit that has timed out may be given up.
            way_out = " or abort_transaction()" if earlier == "commit_transaction" else ""
            raise IllegalStateError(
                f"{self._name}: {operation}() has to wait: {earlier}() is under way, has timed"
                f" out, or was interrupted; call {earlier}(){way_out} first"
            )

    def start(
        self,
        kind: TransactionState,
        operation: str,
        start: Callable[[TransactionalRequestResult], None],
    ) -> TransactionalRequestResult:
        """Start an operation. After its first step it goes on even if its call is interrupted."""
        result = TransactionalRequestResult(operation)
        # Held before the first step, so that `finish_start` finds a start that was interrupted.
        pending = self.held = PendingOperation(kind, result, start)
        start(result)
        # Only now: after another interruption the steps are made once more.
        pending.start = None
        return result

    def fail(self, error: KafkaError) -> None:
        """Fail the operation under way."""
        if self.held is not None:
            self.held.result.fail(error)
