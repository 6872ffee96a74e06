"""The full batches that are still to be compressed, and the threads that compress them.

Why it exists: a codec takes longer than all other work on a batch. So threads compress without
the core's lock, between the sender's steps.
Owns: the order in which batches are compressed, until when a step leaves each to a thread. Must
not know: queues, memory, threads.

Rules:
* The sender's thread takes the oldest ones. A thread that waits takes one of the oldest as well,
  so that the sender soon has several to send.
* A step does not send a batch that is held, since it would compress it with the lock. It does not
  rely on another thread, which may have been interrupted: that one's batch is held for a while.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from txnproducer._core.batches.producer_batch import ProducerBatch
from txnproducer._core.metadata import NEVER_MS
from txnproducer._record.sealed_records import SealedRecords

# What is compressed between two steps, by its size on the wire. A turn of the sender's thread
# costs as much as a codec takes for a small batch. With more than this, answers would wait for
# longer than 5 ms. (zstd takes that long, and gzip ten times as long for the same bytes.)
_BYTES_PER_TURN: Final = 524_288
_BYTES_OF_GZIP: Final = 65_536
# A waiting thread does not take these, because the sender's thread comes to them sooner.
_LEFT_TO_SENDER: Final = 2
# How long a batch is left to a waiting thread. After that the sender's thread compresses it, too.
_LENT_MS: Final = 100


class FullBatches:
    """The batches that have no room for more records and are not compressed.

    Args:
        codec: the name of the codec.

    Attributes:
        held: for each batch that a step may have to leave, until when.
        is_awaited: whether the present step has left a batch.
    """

    def __init__(self, codec: str) -> None:
        self._bytes_per_turn = _BYTES_OF_GZIP if codec == "gzip" else _BYTES_PER_TURN
        self._waiting: deque[ProducerBatch] = deque()
        self._sealed: list[ProducerBatch] = []
        self.held: dict[ProducerBatch, int] = {}
        self.is_awaited = False

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, batch: ProducerBatch) -> None:
        """Add a batch, to which no record is appended any more."""
        # In this order: after an interrupt in between no step waits for what no thread would take.
        self._waiting.append(batch)
        self.held[batch] = NEVER_MS

    def take(self) -> list[SealedRecords]:
        """Return the records of the oldest ones, which are compressed before the next step.

        No records are appended to them any more, so that `compress` needs no lock.
        """
        taken: list[SealedRecords] = []
        left_bytes = self._bytes_per_turn
        while self._waiting and left_bytes > 0:
            batch = self._waiting.popleft()
            self.held.pop(batch, None)
            sealed = self._seal(batch)
            if sealed is not None:
                left_bytes -= batch.estimated_size_bytes
                taken.append(sealed)
        return taken

    def lend(self, now_ms: int) -> SealedRecords | None:
        """Return the records of one, for a thread that waits to compress."""
        while self._waiting:
            place = min(_LEFT_TO_SENDER, len(self._waiting) - 1)
            batch = self._waiting[place]
            # First: an interrupt may come at any line.
            self.held[batch] = now_ms + _LENT_MS
            del self._waiting[place]
            sealed = self._seal(batch)
            if sealed is not None:
                return sealed
        return None

    def _seal(self, batch: ProducerBatch) -> SealedRecords | None:
        # Whatever comes, `settle` forgets it in the end.
        self._sealed.append(batch)
        # It was drained after an interrupt, or has failed.
        return None if batch.is_closed or batch.is_done else batch.builder.seal()

    def wait_ms(self, batch: ProducerBatch, now_ms: int) -> int:
        """Return for how long a step must leave a batch that is held; 0 if it may send it."""
        if batch.builder.is_compressed:
            return 0
        self.is_awaited = True
        if self.held[batch] <= now_ms:
            # The thread may have been interrupted. If it has not, both compress, without the lock.
            self._waiting.appendleft(batch)
            self.held[batch] = NEVER_MS
        # It may be lent after this step, to a thread that is interrupted and wakes nobody.
        return min(self.held[batch] - now_ms, _LENT_MS)

    def settle(self) -> list[ProducerBatch]:
        """Return the batches that were compressed since the last step, without their records.

        A batch whose codec failed stays as it is until it is drained, or ends otherwise.
        """
        self.is_awaited = False
        settled: list[ProducerBatch] = []
        left: list[ProducerBatch] = []
        for batch in self._sealed:
            is_over = batch.is_closed or batch.is_done
            if is_over or batch.builder.settle():
                self.held.pop(batch, None)
                if not is_over:
                    settled.append(batch)
            else:
                left.append(batch)
        self._sealed = left
        return settled
