"""Where rows without key and partition go that lie among others: chosen before they are appended.

Why it exists: a record gets such a partition when its batch begins, and rows of one partition are
sent one behind the other. So rows of a mixed block must know theirs before they are sorted.
Owns: `RowPlacer`. Must not know: rows, columns, requests. The choice is the sticky one of KIP-794,
for a batch's bytes at a time; the rows are counted when they are placed.
"""

from __future__ import annotations

from txnproducer._core.metadata import Metadata
from txnproducer._core.record_accumulator import RecordAccumulator


class RowPlacer:
    """Place rows.

    Args:
        metadata: knows the topics.
        accumulator: has the queues.
    """

    def __init__(self, metadata: Metadata, accumulator: RecordAccumulator) -> None:
        self._metadata = metadata
        self._accumulator = accumulator

    def choose(self, topic: str, *, is_first: bool) -> tuple[int, int] | None:
        """Choose a partition for the next rows of a block.

        Args:
            topic: where to.
            is_first: whether no rows of the block were placed before.

        Returns:
            A partition, and so many bytes for it, uncompressed; None while the topic is not known.
        """
        snapshot = self._metadata.topics.get(topic)
        if snapshot is None or not snapshot.partition_count:
            return None
        accumulator = self._accumulator
        queues = accumulator.topic_queues(topic)
        queue = accumulator.sticky_queue(queues, snapshot, is_last_filled=not is_first)
        room_bytes = max(1, accumulator.options.batch_size)
        batch = queue.open_batch
        if is_first and batch is not None and not batch.is_full:
            room_bytes -= batch.estimated_size_bytes
        return queue.topic_partition.partition, int(room_bytes / self._ratio(topic))

    def note(self, topic: str, size_bytes: int) -> None:
        """Count the rows that were placed by the last choice, uncompressed."""
        queues = self._accumulator.topic_queues(topic)
        queues.note_placed_bytes(int(size_bytes * self._ratio(topic)))

    def _ratio(self, topic: str) -> float:
        if self._accumulator.options.compression_type == "none":
            return 1.0
        return self._accumulator.topic_queues(topic).compression_ratio
