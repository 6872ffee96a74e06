"""The choice of partitions for rows without key and partition, before they are appended.

Why it exists: a record gets such a partition when its batch begins, and rows of one partition are
sent one after the other. So the rows of a mixed block need their partitions before the block is
sorted.
Owns: `RowPlacer`, `merged`. Must not know: rows, columns, requests. The choice is the sticky one
of KIP-794, for a batch's bytes at a time; the rows are counted when they are placed.
"""

from __future__ import annotations

from array import array
from itertools import chain
from typing import TypeAlias

from txnproducer._core.batches.record_accumulator import RecordAccumulator
from txnproducer._core.metadata import Metadata

Span: TypeAlias = tuple[int, int, int]
"""A partition, and the first place and the end of its rows in an order."""


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
            A partition, and the uncompressed bytes for it; None while the topic is not known.
        """
        snapshot = self._metadata.topics.get(topic)
        if snapshot is None or not snapshot.partition_count:
            return None
        accumulator = self._accumulator
        queues = accumulator.topic_queues(topic)
        queue = accumulator.sticky_queue(queues, snapshot, is_last_filled=not is_first)
        # At least 1: a `batch_size` of 0 is allowed, and means a batch for each record.
        room_bytes = max(1, accumulator.options.batch_size)
        batch = queue.open_batch
        # Only the first rows share the batch that is open. Later ones come when it has been
        # filled.
        if is_first and batch is not None and not batch.is_full:
            room_bytes -= batch.estimated_size_bytes
        # A batch's limit counts compressed bytes, the block's rows are measured uncompressed.
        return queue.topic_partition.partition, int(room_bytes / self._ratio(topic))

    def note(self, topic: str, size_bytes: int) -> None:
        """Count the rows that were placed by the last choice, uncompressed."""
        queues = self._accumulator.topic_queues(topic)
        queues.note_placed_bytes(int(size_bytes * self._ratio(topic)))

    def _ratio(self, topic: str) -> float:
        if self._accumulator.options.compression_type == "none":
            return 1.0
        return self._accumulator.topic_queues(topic).compression_ratio


def merged(order: array[int], spans: list[Span]) -> tuple[array[int], list[Span]]:
    """Return an order in which the rows of each partition are one span, in their own order.

    Args:
        order: of rows; ascending within each span.
        spans: of it; a partition may have several.
    """
    rows_of: dict[int, list[array[int]]] = {}
    for partition, start, stop in spans:
        rows_of.setdefault(partition, []).append(order[start:stop])
    rows = array("i")
    merged_spans = []
    for partition in sorted(rows_of):
        start = len(rows)
        pieces = rows_of[partition]
        # Each piece is sorted already, which makes this quick.
        rows += pieces[0] if len(pieces) == 1 else array("i", sorted(chain(*pieces)))
        merged_spans.append((partition, start, len(rows)))
    return rows, merged_spans
