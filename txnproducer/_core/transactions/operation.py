"""The operation that an application waits for: it is begun, and its end was not seen yet.

Owns: `PendingOperation` and the one place that holds it. Must not know: the steps of an operation.

Rules:
* An operation stays until its caller has seen its end. The same call made again after a time-out
  finds it here, and every other call is refused.
* An exception can come between any two steps of a start (Ctrl-C, a signal handler's). So the
  operation is held before its first step, and `finish_start` makes the steps again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from txnproducer._core.transactions.result import TransactionalRequestResult
from txnproducer._core.transactions.state import TransactionState
from txnproducer.errors import IllegalStateError, KafkaError


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


class PendingOperations:
    """Hold the operation under way; there is one at most.

    Args:
        name: the producer's, for refusals.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._held: PendingOperation | None = None

    def unseen(self) -> PendingOperation | None:
        """Return the operation whose end its caller has not seen; None if there is none."""
        if self._held is not None and self._held.result.is_acked:
            self._held = None
        return self._held

    def refuse_others(self, operation: str) -> None:
        """Refuse a call while an earlier call's end was not seen.

        Raises:
            IllegalStateError: there is one; the text names it.
        """
        pending = self.unseen()
        if pending is not None:
            earlier = pending.result.operation
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
        """Start an operation; after its first step it goes on even if its call is interrupted."""
        result = TransactionalRequestResult(operation)
        # Held before the first step, so that `finish_start` finds a start that was interrupted.
        pending = self._held = PendingOperation(kind, result, start)
        start(result)
        pending.start = None
        return result

    def finish_start(self) -> None:
        """Make the steps of a start again that an exception has interrupted."""
        pending = self._held
        if pending is not None and pending.start is not None:
            pending.start(pending.result)
            pending.start = None

    def fail(self, error: KafkaError) -> None:
        """Fail the operation under way."""
        if self._held is not None:
            self._held.result.fail(error)
