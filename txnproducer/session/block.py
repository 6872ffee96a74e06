"""The transaction of one batch of a session.

Owns: the offsets of the batch, and the failures of the group that abort without an exception. Must
not know: polls, the way back after an abort (`session`).
Rule: the loss of any partition between poll and commit aborts, since another consumer may have the
records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType

from txnproducer.errors import (
    CommitFailedError,
    IllegalGenerationError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
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


class _LostPartitionsError(Exception):
    """Leaves the block of a batch of which partitions were lost, and so aborts it."""


class SessionBlock:
    """The transaction of one batch, as a `with` block.

    Args:
        block: the producer's.
        batch: its offsets are committed.
        is_current: returns whether no partition was lost since the batch was polled.
        settle: is given the batch and the outcome at the end.
    """

    def __init__(
        self,
        block: Transaction,
        batch: Batch,
        is_current: Callable[[Batch], bool],
        settle: Callable[[Batch, str], None],
    ) -> None:
        self._block = block
        self._batch = batch
        self._is_current = is_current
        self._settle = settle

    @property
    def outcome(self) -> str:
        """The outcome as far as it is known: see `Transaction`."""
        return self._block.outcome

    def __enter__(self) -> Transaction:
        return self._block.__enter__()

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
        finally:
            self._settle(self._batch, self.outcome)

    def _commit(self) -> None:
        block, batch = self._block, self._batch
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
        try:
            block.__exit__(None, None, None)
        except _OF_THE_GROUP as error:
            if block.outcome != "aborted":
                raise
            _LOG.info("the group has given up on this consumer: %s", error)
