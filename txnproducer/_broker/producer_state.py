"""The state that a partition's leader keeps of each producer: its last five batches.

Why it exists: this state makes appends idempotent and fences transactional producers (KIP-98).
Owns: `ProducerState`, `ProducerStates`. Must not know: offsets of others, coordinators, requests.

Rules:
* A batch whose sequences equal one of the last five of the same epoch is a duplicate.
* A new epoch begins at sequence 0, unless the producer is unknown.
* An epoch below the last one seen is refused, whether a client or a coordinator sends it.
* Sequences wrap from 2^31-1 to 0.
* While the first batch of a transaction is not verified with the coordinator, later batches are
  refused (KAFKA-14561). With transactions v2 it must begin at 0 if the producer is unknown.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from txnproducer.errors import ErrorCode

# `ProducerStateEntry.NUM_BATCHES_TO_RETAIN`, for which a producer keeps at most five batches in
# flight.
WINDOW = 5
MAX_SEQUENCE = 0x7FFF_FFFF
MAX_EPOCH = 0x7FFF


class BatchSeen(NamedTuple):
    """One appended batch. Its time is the newest of its records'."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    timestamp_ms: int


@dataclass(slots=True)
class ProducerState:
    """One producer in one partition.

    Attributes:
        epoch: the epoch of the last batch or marker, or -1 before the first.
        window: the last five batches of the epoch.
        coordinator_epoch: the coordinator epoch of the last marker, or -1 before the first.
        first_offset: the offset at which its open transaction begins, or None if none is open
            here.
    """

    epoch: int = -1
    window: deque[BatchSeen] = field(default_factory=lambda: deque(maxlen=WINDOW))
    coordinator_epoch: int = -1
    first_offset: int | None = None
    last_ms: int = 0

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record, or -1 if the epoch has none."""
        return self.window[-1].last_sequence if self.window else -1


@dataclass(slots=True)
class Verification:
    """A first batch that is, or was, being verified with the coordinator."""

    epoch: int
    lowest_sequence: int
    is_v2: bool
    begun_ms: int


class ProducerStates:
    """All producers of one partition.

    Args:
        is_before_2_5: whether an unknown producer's batch must begin at 0 (KIP-360).

    Attributes:
        producers: the producers by their ids.
        verifications: the batches being verified, by producer id.
        forgotten: the ids of producers that were forgotten and have appended nothing since.
    """

    __slots__ = ("_is_before_2_5", "forgotten", "producers", "verifications")

    def __init__(self, *, is_before_2_5: bool = False) -> None:
        self._is_before_2_5 = is_before_2_5
        self.producers: dict[int, ProducerState] = {}
        self.forgotten: set[int] = set()
        self.verifications: dict[int, Verification] = {}

    def has_open_transaction(self, producer_id: int, epoch: int | None) -> bool:
        """Return whether a producer's transaction is open here under an epoch (None: any)."""
        state = self.producers.get(producer_id)
        if state is None or state.first_offset is None:
            return False
        return epoch is None or state.epoch == epoch

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, now_ms: int, *, is_v2: bool
    ) -> None:
        """Note that a first batch is being verified. Later sequences are refused until then."""
        known = self.verifications.get(producer_id)
        if known is None:
            self.verifications[producer_id] = Verification(epoch, sequence, is_v2, now_ms)
        elif epoch > known.epoch:
            # A later epoch numbers from 0 again, so the lowest sequence of the former one says
            # nothing.
            known.epoch, known.lowest_sequence = epoch, sequence
        elif epoch == known.epoch:
            # Batches in flight may arrive in another order: the lowest one of them has to be
            # written first.
            known.lowest_sequence = min(known.lowest_sequence, sequence)

    def find_duplicate(
        self, producer_id: int, epoch: int, first_sequence: int, last_sequence: int
    ) -> BatchSeen | None:
        """Return the batch in the window that has exactly these sequences."""
        state = self.producers.get(producer_id)
        # The sequences of another epoch are other records.
        if state is None or state.epoch != epoch:
            return None
        for seen in state.window:
            if (seen.first_sequence, seen.last_sequence) == (first_sequence, last_sequence):
                return seen
        return None

    def check(self, producer_id: int, epoch: int, first_sequence: int) -> ErrorCode:
        """Return the error for a batch that is not a duplicate."""
        state = self.producers.get(producer_id)
        verification = self.verifications.get(producer_id)
        # First, as in `ProducerAppendInfo.maybeValidateDataBatch`: a fenced producer must not take
        # its refusal for a gap, which it could close by sending again.
        if state is not None and epoch < state.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        # Before the state is looked at: an unknown producer passes every other check
        # (KAFKA-14561).
        if verification is not None and not _passes(verification, state, first_sequence):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        # Since KIP-360 any first sequence is accepted here: retention may have deleted the records
        # of a producer that goes on.
        if state is None or state.epoch == -1:
            is_unknown = self._is_before_2_5 and first_sequence != 0
            return ErrorCode.UNKNOWN_PRODUCER_ID if is_unknown else ErrorCode.NONE
        if epoch != state.epoch:
            is_start = first_sequence == 0
            return ErrorCode.NONE if is_start else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        last = state.last_sequence
        if self._is_before_2_5 and last == -1 and first_sequence != 0:
            return ErrorCode.UNKNOWN_PRODUCER_ID  # only a marker of the producer is known
        # After 2^31-1 comes 0, as in `ProducerAppendInfo.inSequence`.
        is_next = first_sequence == (0 if last == MAX_SEQUENCE else last + 1)
        return ErrorCode.NONE if is_next else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def append(
        self, producer_id: int, epoch: int, seen: BatchSeen, now_ms: int, *, opens_at: int | None
    ) -> None:
        """Update the state for an appended batch.

        Args:
            producer_id: the producer's id.
            epoch: the producer's epoch.
            seen: the batch.
            now_ms: the time.
            opens_at: the offset of the batch if it is transactional, otherwise None.
        """
        state = self._of(producer_id, epoch)
        self.forgotten.discard(producer_id)
        state.window.append(seen)
        state.last_ms = now_ms
        if opens_at is not None:
            # Only a transactional batch was verified. From here on the open transaction itself
            # vouches for later ones.
            self.verifications.pop(producer_id, None)
            # Later batches of the transaction must not raise it: it bounds the last stable offset.
            if state.first_offset is None:
                state.first_offset = opens_at

    def open(self, producer_id: int, epoch: int) -> None:
        """Update the state for offsets that a group coordinator wrote in a transaction."""
        state = self._of(producer_id, epoch)
        self.verifications.pop(producer_id, None)
        if state.first_offset is None:
            state.first_offset = 0

    def check_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, *, is_v2: bool
    ) -> ErrorCode:
        """Return the error for a coordinator's marker."""
        state = self.producers.get(producer_id)
        if state is None:
            return ErrorCode.NONE
        # A coordinator whose broker failed writes its markers again. At the last epoch there is no
        # higher one to which the end could raise it (KAFKA-20090).
        is_repeated = epoch == state.epoch and (state.first_offset is None or epoch == MAX_EPOCH)
        # With v2 every end raises the epoch: a marker of the same epoch is a late one of another
        # transaction.
        if epoch < state.epoch or (is_v2 and epoch == state.epoch and not is_repeated):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        # The former coordinator may still have markers on their way when another broker has taken
        # over.
        if state.coordinator_epoch > coordinator_epoch:
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        return ErrorCode.NONE

    def append_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, now_ms: int
    ) -> int | None:
        """Update the state for a marker. Return the first offset of its transaction, if any."""
        state = self._of(producer_id, epoch)
        first_offset, state.first_offset = state.first_offset, None
        state.coordinator_epoch = coordinator_epoch
        state.last_ms = now_ms
        waiting = self.verifications.get(producer_id)
        # With v2, a marker with the epoch of the waiting batch ended the transaction before.
        if waiting is not None and not (waiting.is_v2 and waiting.epoch == epoch):
            del self.verifications[producer_id]
        return first_offset

    def forget_idle(self, before_ms: int) -> int:
        """Forget the producers that were not seen after a time, and return their number.

        A producer with an open transaction is kept. Batches that are being verified are forgotten,
        too.
        """
        idle = [
            producer_id
            for producer_id, state in self.producers.items()
            # Without its first offset, the last stable offset would pass an open transaction.
            if state.first_offset is None and state.last_ms <= before_ms
        ]
        for producer_id in idle:
            del self.producers[producer_id]
        for producer_id, waiting in list(self.verifications.items()):
            if waiting.begun_ms <= before_ms:
                del self.verifications[producer_id]
        self.forgotten.update(idle)
        return len(idle)

    def _of(self, producer_id: int, epoch: int) -> ProducerState:
        state = self.producers.get(producer_id)
        if state is None:
            state = self.producers[producer_id] = ProducerState()
        # Sequences begin at 0 under a new epoch: the old window would call new records duplicates.
        if state.epoch != epoch:
            state.window.clear()
            state.epoch = epoch
        return state


def _passes(verification: Verification, state: ProducerState | None, first_sequence: int) -> bool:
    is_unknown = state is None or not state.window
    # With v2 each transaction numbers from 0, so an unknown producer that begins higher has lost a
    # batch.
    if verification.is_v2 and first_sequence != 0 and is_unknown:
        return False
    # A lower sequence is being verified, too: written first, this batch would leave a gap before
    # it.
    return first_sequence <= verification.lowest_sequence
