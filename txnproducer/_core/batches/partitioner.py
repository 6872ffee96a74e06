"""The partition of a record that names none: by key, or sticky and adaptive (KIP-794).

Owns: the choice by key, the sticky choice of one topic. Must not know: queues, batches, metadata;
it gets counts.

Rules:
* A key goes where the Java client sends it: murmur2, made positive, modulo all partitions (not
  those with a leader), so that both clients can write one topic.
* Records without a key stay with one partition for about `batch_size` bytes, so that batches fill.
* The next partition is drawn by the lengths of the queues: a slow broker's partitions get less.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from txnproducer._protocol.rng import Rng
from txnproducer._record.implementation import murmur2 as murmur2


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Return the partition of a key among all partitions of its topic."""
    # Java makes the hash positive by this mask, too. With abs() keys would change their
    # partitions.
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class BuiltInPartitioner:
    """The sticky choice for one topic.

    Args:
        sticky_batch_size_bytes: how much goes to one partition before the next is drawn.
        rng: draws it.

    Raises:
        ValueError: a size below 1.
    """

    __slots__ = ("_rng", "_sticky_bytes", "current_partition", "produced_bytes")

    def __init__(self, sticky_batch_size_bytes: int, rng: Rng) -> None:
        if sticky_batch_size_bytes < 1:
            raise ValueError(
                f"the sticky batch size must be at least 1 byte, not {sticky_batch_size_bytes}"
            )
        self._sticky_bytes = sticky_batch_size_bytes
        self._rng = rng
        self.current_partition: int | None = None
        self.produced_bytes = 0

    def count(self, size_bytes: int) -> None:
        """Count bytes that the current partition will get, without a switch."""
        self.produced_bytes += size_bytes

    def update(self, appended_bytes: int, is_switch_enabled: bool) -> bool:
        """Count bytes that went to the current partition.

        Args:
            appended_bytes: how much more.
            is_switch_enabled: whether the partition's last batch is full or gone. A switch away
                from an open one would leave a small batch. At twice the size the switch is made
                in any case.

        Returns:
            Whether it is time to draw another partition.
        """
        self.produced_bytes += appended_bytes
        if self.produced_bytes >= self._sticky_bytes and is_switch_enabled:
            return True
        # In any case, or a partition whose last batch is never full would keep the choice.
        return self.produced_bytes >= self._sticky_bytes * 2

    def switch(
        self,
        partition_count: int,
        available: Sequence[int],
        queue_lengths: Sequence[tuple[int, int]] | None = None,
    ) -> int:
        """Draw the next partition and return it.

        Args:
            partition_count: of the topic, at least 1.
            available: the partitions that have a leader.
            queue_lengths: each available partition with the number of its waiting batches, to draw
                by load; None to draw evenly.
        """
        if queue_lengths:
            partition = self._draw_by_load(queue_lengths)
        elif available:
            partition = available[self._rng.randrange(len(available))]
        else:
            # No partition has a leader, so any will do: the record waits in its queue for
            # metadata.
            partition = self._rng.randrange(partition_count)
        self.current_partition = partition
        # Bytes above the limit went to the partition that is left, so the next one begins at 0.
        self.produced_bytes = 0
        return partition

    def _draw_by_load(self, queue_lengths: Sequence[tuple[int, int]]) -> int:
        """Draw with the weight longest + 1 - own, so that even the longest queue can be drawn."""
        # Lists, since each full batch asks: a generator costs a call for each partition.
        lengths = [length for _, length in queue_lengths]
        above_longest = max(lengths) + 1
        running_sums = list(accumulate([above_longest - length for length in lengths]))
        drawn = self._rng.randrange(running_sums[-1])
        return queue_lengths[bisect_right(running_sums, drawn)][0]
