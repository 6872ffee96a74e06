"""One transaction as a `with` block, committed at its end and aborted on any exception.

Owns: the end of the block, and the `outcome`, which a block for asyncio has as well.
Must not know: how a transaction is begun or ended. The producer passes these calls and keeps
`outcome` up to date.
Rules: the caller always sees the exception that left the block. A failure of the abort that
follows is added to it as a note and logged, never raised in its place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, NoReturn, Protocol, Self, TypeAlias

from txnproducer._core.batches.results import DeliveryCallback, FutureRecordMetadata
from txnproducer._shell.arguments import Headers
from txnproducer._shell.block_owner import IsOwner
from txnproducer.errors import IllegalStateError, KafkaError

__all__ = ["Outcome", "Transaction", "TransactionBlock"]

_LOG = logging.getLogger(__name__)

Outcome: TypeAlias = Literal["open", "committed", "aborted", "unknown"]


class TransactionCalls(Protocol):
    """The calls of a producer that a transaction uses."""

    def commit_transaction(self) -> None:
        """Commit it."""
        ...

    def abort_transaction(self) -> None:
        """Abort it."""
        ...

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> FutureRecordMetadata:
        """Write a record in it."""
        ...

    def send_offsets_to_transaction(self, offsets: Any, group_metadata: Any) -> None:
        """Commit a consumer's offsets in it."""
        ...


def _anyone() -> bool:
    return True


class TransactionBlock:
    """The base of a `with` block and an `async with` block: the state of one transaction.

    Attributes:
        outcome: see `Transaction`.
    """

    __slots__ = (
        "_begin",
        "_has_begun",
        "_is_left_open",
        "_is_owner",
        "_own",
        "_was_lost",
        "outcome",
    )

    def __init__(self, begin: Callable[[Any], None], own: Callable[[], IsOwner]) -> None:
        self._begin = begin
        self._own = own
        self._is_owner: IsOwner = _anyone
        self._has_begun = False
        self._is_left_open = False
        self.outcome: Outcome = "open"
        self._was_lost = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.outcome if self._has_begun else 'not begun'}>"

    def _prepare(self) -> None:
        """Take the block for the caller, before it is begun."""
        if self._has_begun:
            raise IllegalStateError(
                "a transaction object is used once: call producer.transaction() for the next"
            )
        # Before the begin: after it, other threads may ask which thread owns the block.
        self._is_owner = self._own()
        # A block whose begin has failed may be entered again.
        self.outcome = "open"

    def _hand_back(self) -> None:
        """Let any thread or task end the transaction from now on."""
        self._is_owner = _anyone

    def settle(self, outcome: Outcome, *, is_own_end: bool) -> None:
        """Take in the outcome, and whether the caller's own call has brought it."""
        is_lost = self.outcome == "open" and outcome != "committed" and not is_own_end
        # Kept: the block may end long after that, and has to know of it then.
        self._was_lost = self._was_lost or (is_lost and outcome != "open")
        self.outcome = outcome

    def leave_open(self) -> None:
        """Let the end of the block end nothing, because the transaction is prepared."""
        self._is_left_open = True

    def can_be_ended_here(self) -> bool:
        """Return whether the caller may begin or end a transaction by the producer's own calls.

        While the block is open, only its owner may: the thread, or the task, that has entered it.
        Anyone may once that has ended, the block was left, or the transaction is over.
        """
        return self.outcome != "open" or self._is_owner()

    def _check_open(self) -> None:
        if not self._has_begun:
            raise IllegalStateError("not begun: use `with producer.transaction() as txn:`")
        if self.outcome != "open":
            raise IllegalStateError(f"this transaction has ended (outcome: {self.outcome})")

    def _note_failed_abort(self, error: BaseException, failure: Exception) -> None:
        """Add the failure of an abort to the exception that has left the block."""
        error.add_note(
            f"Aborting the transaction failed too (outcome: {self.outcome}):"
            f" {type(failure).__name__}: {failure}"
        )
        # An error of Kafka's says all in its text, such as that the producer is fenced.
        trace = None if isinstance(failure, KafkaError) else failure
        text = "could not abort the transaction after %r: %s"
        _LOG.warning(text, error, failure, exc_info=trace)


class Transaction(TransactionBlock):
    """One transaction, made by `producer.transaction()` and used once, as a `with` block.

    At the end of the block it is committed. An exception in it, of any kind (KeyboardInterrupt,
    asyncio.CancelledError and GeneratorExit too), aborts it and goes on to the caller. A block may
    also end it itself with `commit_transaction` or `abort_transaction`; then its end does nothing.

    If the commit fails so that the transaction must be aborted, it is aborted and the commit's
    error raised. If the commit takes longer than `max_block_ms`, `KafkaTimeoutError` is raised
    with the outcome still "open": call `commit_transaction()` again to wait for it, or
    `abort_transaction()` to give up. An interrupt (Ctrl-C) during the commit does the same;
    closing the producer then finishes the commit.

    After `prepare_transaction` the end of the block ends nothing: `complete` does.

    The block belongs to the thread that has entered it, but may be left on another one. Until then
    other threads may send in it, and may neither end it nor begin another transaction.

    Attributes:
        outcome: "open" while it can still go either way. "committed": every record and offset is
            committed. "aborted": nothing of it is, or ever will be, visible to a `read_committed`
            reader; that is certain as soon as an abort is under way and no commit was sent, and
            if the block could not begin.
            "unknown": the commit was sent and its answer lost for good; see
            `CommitOutcomeUnknownError`.
    """

    __slots__ = ("_calls",)

    def __init__(
        self,
        calls: TransactionCalls,
        begin: Callable[[Transaction], None],
        own: Callable[[], IsOwner] = lambda: _anyone,
    ) -> None:
        super().__init__(begin, own)
        self._calls = calls

    def __enter__(self) -> Self:
        self._prepare()
        try:
            self._begin(self)
        except BaseException:
            self.outcome = "aborted"  # certain, so the caller may write again: nothing was written
            raise
        self._has_begun = True
        return self

    async def __aenter__(self) -> NoReturn:
        """Refuse an `async with`.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            "the block of a TransactionalProducer is entered by `with`; for `async with` use"
            " txnproducer.aio.AsyncTransactionalProducer"
        )

    async def __aexit__(self, *_: object) -> None:
        """Do nothing: `__aenter__` refuses."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_left_open:
            # Another system decides, also if an exception leaves the block.
            self._hand_back()
            return
        if self.outcome != "open":
            # Ended by the block's own calls. If a close has ended it, perhaps on another thread,
            # or an error that nobody has seen, a block that ends well must not look like a commit.
            if self._was_lost and error is None:
                self._calls.commit_transaction()
            return
        # The block may be left on another thread than it was entered on: frameworks have thread
        # pools.
        self._is_owner = self._own()
        try:
            if error is None:
                self._commit()
            else:
                self._abort_because_of(error)
        finally:
            # Also if the end has failed: any thread may repeat it now.
            self._hand_back()

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> FutureRecordMetadata:
        """Write a record in this transaction. Arguments and result are those of `producer.send`.

        Raises:
            IllegalStateError: this transaction has ended or was not begun.
        """
        self._check_open()
        return self._calls.send(topic, value, key, headers, partition, timestamp_ms, on_delivery)

    def send_offsets(self, offsets: Any, group_metadata: Any) -> None:
        """Commit a consumer's offsets in this transaction.

        See `TransactionalProducer.send_offsets_to_transaction`.

        Raises:
            IllegalStateError: this transaction has ended or was not begun.
        """
        self._check_open()
        self._calls.send_offsets_to_transaction(offsets, group_metadata)

    def _commit(self) -> None:
        try:
            self._calls.commit_transaction()
        except KafkaError as error:
            # Only then is an abort the next step: after a time-out the commit may still succeed.
            if error.recovery == "abort":
                self._abort_because_of(error)
            raise

    def _abort_because_of(self, error: BaseException) -> None:
        try:
            self._calls.abort_transaction()
        # Not BaseException: Ctrl-C during the abort has to come through.
        except Exception as failure:  # noqa: BLE001 - it must not hide the user's exception
            self._note_failed_abort(error, failure)
