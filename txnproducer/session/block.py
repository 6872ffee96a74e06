"""The transaction of one batch of a session.

Owns: the offsets of the batch, the failures of the group that abort without an exception, and the
end of a transaction that was left under way. Must not know: polls, the way back after an abort
(`session`).
Rules:
* The loss of any partition between poll and commit aborts, since another consumer may have the
  records.
* An end that has timed out, or was interrupted, is made again as it was: a commit only if the
  block had ended well and its offsets were added.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Final

from txnproducer._shell import refusals
from txnproducer.errors import (
    CommitFailedError,
    CommitOutcomeUnknownError,
    IllegalGenerationError,
    KafkaError,
    KafkaTimeoutError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from txnproducer.producer import TransactionalProducer
from txnproducer.session.batch import Batch
from txnproducer.transaction import Transaction

__all__ = ["SessionBlock"]

_LOG = logging.getLogger(__name__)
# The group has given up on this consumer, which joins again by its next poll.
_OF_THE_GROUP = (
    CommitFailedError,
    IllegalGenerationError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
_GOES_ON: Final = (
    "It goes on in the background: the next poll() of the session waits for it, and reads the"
    " batch again only if it is aborted; close() waits as well"
)
_READ_AGAIN: Final = "The batch is aborted, and the next poll() of the session reads it again"


class _LostPartitionsError(Exception):
    """Leaves the block of a batch of which partitions were lost, and so aborts it."""


class SessionBlock:
    """The transaction of one batch, as a `with` block.

    Args:
        block: the producer's.
        batch: its offsets are committed.
        is_current: returns whether no partition was lost since the batch was polled.
        settle: is given this block at its end.

    Attributes:
        batch: see above.
        has_begun: whether the transaction was begun.
    """

    def __init__(
        self,
        block: Transaction,
        batch: Batch,
        is_current: Callable[[Batch], bool],
        settle: Callable[[SessionBlock], None],
    ) -> None:
        self.batch = batch
        self.has_begun = False
        self._block = block
        self._is_current = is_current
        self._settle = settle
        self._is_complete = False

    @property
    def outcome(self) -> str:
        """The outcome as far as it is known: see `Transaction`."""
        return self._block.outcome

    def __enter__(self) -> Transaction:
        try:
            transaction = self._block.__enter__()
        except BaseException as error:
            self.name_way_out(error)
            if self.outcome == "aborted":  # nothing was written
                self._settle(self)
            raise
        self.has_begun = True
        return transaction

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._commit()
            else:
                self._block.__exit__(kind, error, trace)
        except KafkaTimeoutError as failure:
            self.name_way_out(failure)
            raise
        finally:
            self._settle(self)

    def _commit(self) -> None:
        block, batch = self._block, self.batch
        try:
            if block.outcome == "open" and self._is_current(batch):
                block.send_offsets(batch.next_offsets, batch.group_metadata)
            elif block.outcome == "open":
                raise _LostPartitionsError
        except BaseException as error:
            block.__exit__(type(error), error, error.__traceback__)
            if not isinstance(error, (_LostPartitionsError, *_OF_THE_GROUP)):
                raise
            _LOG.info("the group has moved on: %d records are read again", len(batch))
            return
        self._is_complete = True
        try:
            block.__exit__(None, None, None)
        except _OF_THE_GROUP as error:
            if block.outcome != "aborted":
                raise
            _LOG.info("the group has given up on this consumer: %s", error)

    def name_way_out(self, error: BaseException) -> None:
        """Name the session's own way out in the text of a time-out."""
        if isinstance(error, KafkaTimeoutError):
            refusals.name_way_out(error, _GOES_ON if self.outcome == "open" else _READ_AGAIN)

    def finish(self, producer: TransactionalProducer) -> None:
        """Wait for an end that was left under way, or find out an outcome that was lost.

        Args:
            producer: of the transaction.

        Raises:
            KafkaTimeoutError: it goes on.
            CommitOutcomeUnknownError: the outcome stays unknown.
            KafkaError: it cannot be ended.
        """
        if self.outcome == "open":
            try:
                self._end_again(producer)
            except KafkaError as error:
                # An error that brings the outcome is no failure of this call.
                if self.outcome == "open":
                    self.name_way_out(error)
                    raise
                _LOG.warning(
                    "the batch of %d records is %s: %r", len(self.batch), self.outcome, error
                )
        if self.outcome == "unknown":
            self._resolve(producer)

    def _end_again(self, producer: TransactionalProducer) -> None:
        if self._is_complete and producer.transaction_state != "ABORTING_TRANSACTION":
            try:
                producer.commit_transaction()
            except KafkaError as error:
                if self.outcome != "open" or error.recovery != "abort":
                    raise
                _LOG.warning("%d records are read again: %r", len(self.batch), error)
            else:
                return
        producer.abort_transaction()

    def _resolve(self, producer: TransactionalProducer) -> None:
        failure: KafkaError | None = None
        try:
            producer.resolve_outcome()
        except KafkaError as error:
            failure = error
        if self.outcome == "unknown":
            raise CommitOutcomeUnknownError(
                f"it is not known whether the batch before, of {len(self.batch)} records, is"
                " committed: close the session and make a new one, which reads on from the"
                " committed offsets, so that nothing is lost or doubled"
            ) from failure
