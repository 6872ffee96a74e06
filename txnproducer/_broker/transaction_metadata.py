"""The state of one transactional id at the coordinator, and its changes.

Why it exists: the rules for epochs are subtle and differ between transactions v1 and v2 (KIP-360,
KIP-890). Here they stand apart from the requests.
Owns: `TransactionMetadata`, `TransactionalIdState`, and the changes. Must not know: requests and
logs.

Rules:
* The state is a value that never changes: a record in the coordinator's log stays as it was
  written.
* The last epoch that a client can get is 32766. The epoch 32767 remains to fence it.
* v1 ends a transaction under its own epoch. v2 raises the epoch at every end, and takes a new
  producer id when the epochs are used up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from txnproducer.records import TopicPartition

# `Short.MAX_VALUE`: no client gets it, so that the coordinator can always fence a producer.
MAX_EPOCH = 0x7FFF
LAST_CLIENT_EPOCH = MAX_EPOCH - 1


class TransactionalIdState(Enum):
    """The state of a transactional id, by its name in DescribeTransactions."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"

    @property
    def is_prepared(self) -> bool:
        """Whether the end is decided and markers are being written."""
        return self in (TransactionalIdState.PREPARE_COMMIT, TransactionalIdState.PREPARE_ABORT)

    @property
    def is_complete(self) -> bool:
        """Whether the last transaction has ended and all its markers are written."""
        return self in (TransactionalIdState.COMPLETE_COMMIT, TransactionalIdState.COMPLETE_ABORT)


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """One transactional id.

    Attributes:
        previous_producer_id: the producer id before the last change.
        next_producer_id: the producer id after the transaction is complete, or -1 if it stays the
            same.
        last_producer_epoch: the previous epoch, if its owner asked for the present one.
        partitions: the partitions in the transaction, those of `__consumer_offsets` included.
        is_v2: whether the transaction is one of version 2.
        has_failed_fence: whether a v1 fence raised the epoch in memory but could not be written.
    """

    transactional_id: str
    producer_id: int
    timeout_ms: int
    previous_producer_id: int = -1
    next_producer_id: int = -1
    producer_epoch: int = -1
    last_producer_epoch: int = -1
    state: TransactionalIdState = TransactionalIdState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = -1
    last_update_ms: int = 0
    is_v2: bool = False
    has_failed_fence: bool = False

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether no epoch is left that a client can get."""
        return self.producer_epoch >= LAST_CLIENT_EPOCH

    def incremented(
        self, timeout_ms: int, expected_epoch: int | None, now_ms: int
    ) -> TransactionMetadata | None:
        """Return the id with its next epoch, or None if the producer that asks was fenced.

        Args:
            timeout_ms: the time-out of the next transactions.
            expected_epoch: the epoch of the producer that asks, or None for a new producer.
            now_ms: the time.
        """
        # Without a last epoch, a repeated request of the former producer is refused: it cannot
        # undo this fence.
        epoch, last = self.producer_epoch + 1, -1
        if expected_epoch is not None:
            # -1: the id was created for this request, because it expired or was never known. No
            # other producer can be fenced.
            if self.producer_epoch in (-1, expected_epoch):
                last = self.producer_epoch
            elif expected_epoch == self.last_producer_epoch:
                epoch, last = self.producer_epoch, self.last_producer_epoch  # a repeated request
            else:
                return None
        return self._empty(self.producer_id, epoch, last, timeout_ms, now_ms)

    def rotated(
        self, producer_id: int, timeout_ms: int, now_ms: int, *, keeps_last_epoch: bool
    ) -> TransactionMetadata:
        """Return the id with a new producer id."""
        last = self.producer_epoch if keeps_last_epoch else -1
        # Kept only if the producer named its epoch: the request may be repeated after a lost
        # answer.
        return self._empty(producer_id, 0, last, timeout_ms, now_ms)

    def _empty(
        self, producer_id: int, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int
    ) -> TransactionMetadata:
        return replace(
            self,
            producer_id=producer_id,
            # By this a repeated request is known whose first answer gave a new producer id.
            previous_producer_id=self.producer_id,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            timeout_ms=timeout_ms,
            state=TransactionalIdState.EMPTY,
            partitions=frozenset(),
            start_ms=-1,
            last_update_ms=now_ms,
        )

    def with_partitions(
        self, partitions: frozenset[TopicPartition], now_ms: int, *, is_v2: bool
    ) -> TransactionMetadata:
        """Return the id with partitions added. The first ones begin the transaction."""
        is_ongoing = self.state is TransactionalIdState.ONGOING
        return replace(
            self,
            previous_producer_id=self.producer_id,
            state=TransactionalIdState.ONGOING,
            partitions=self.partitions | partitions,
            # Later partitions do not prolong the time-out of a transaction.
            start_ms=self.start_ms if is_ongoing else now_ms,
            last_update_ms=now_ms,
            is_v2=is_v2,
        )

    def prepared(
        self, state: TransactionalIdState, now_ms: int, *, is_v2: bool, next_producer_id: int = -1
    ) -> TransactionMetadata:
        """Return the id with the end of its transaction decided."""
        epoch, last = self.producer_epoch, self.last_producer_epoch
        if is_v2:
            # The last epoch stays known, so that an EndTxn that is sent again can be told from the
            # next one.
            epoch, last = min(epoch + 1, MAX_EPOCH), epoch
        return replace(
            self,
            previous_producer_id=self.producer_id,
            next_producer_id=next_producer_id,
            producer_epoch=epoch,
            last_producer_epoch=last,
            state=state,
            # An empty abort (v2) has no start, but `completeTransitionTo` demands one: Kafka takes
            # the time of the update.
            start_ms=self.start_ms if self.start_ms >= 0 else now_ms,
            last_update_ms=now_ms,
            is_v2=is_v2,
        )

    def completed(self, now_ms: int) -> TransactionMetadata:
        """Return the id with all markers written."""
        is_commit = self.state is TransactionalIdState.PREPARE_COMMIT
        # Only here: the markers of the transaction still carry the old producer id.
        rotates = self.is_v2 and self.next_producer_id != -1
        return replace(
            self,
            previous_producer_id=self.producer_id,
            producer_id=self.next_producer_id if rotates else self.producer_id,
            next_producer_id=-1,
            producer_epoch=0 if rotates else self.producer_epoch,
            state=TransactionalIdState.COMPLETE_COMMIT
            if is_commit
            else TransactionalIdState.COMPLETE_ABORT,
            partitions=frozenset(),
            last_update_ms=now_ms,
            # As in `prepareComplete`: the raised epoch is in the log, and a later fence needs
            # another one.
            has_failed_fence=False,
        )

    def loaded(self) -> TransactionMetadata:
        """Return the id as the next coordinator reads it in the log.

        Kafka's records have no previous epoch (`TransactionLogValue`). So a repeated request for
        an epoch that was given out before the move counts as one of a fenced producer.
        """
        return replace(self, last_producer_epoch=-1)

    def with_failed_fence(self, epoch: int) -> TransactionMetadata:
        """Return the id after a v1 fence that was not written. Its epoch is used up anyway."""
        return replace(self, producer_epoch=epoch, last_producer_epoch=-1, has_failed_fence=True)
