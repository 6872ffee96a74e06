"""The partition of a record that names none: by key, or sticky and adaptive (KIP-794).

Owns: the choice by key, the sticky choice of one topic. Must not know: queues, batches, metadata;
it gets counts.

Rules:
* A key goes where the Java client sends it: murmur2, made positive, modulo all partitions (not
  those with a leader), so that both clients can write one topic.
* Records without a key stay with one partition for about `batch_size` bytes, so that batches fill.
* The next partition is drawn by the lengths of the queues: a slow broker's partitions get less. In
  a topic of hundreds of partitions the same lengths serve several draws. (Java looks at them in
  each step of its sender.)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final, TypeAlias

from txnproducer._protocol.rng import Rng
from txnproducer._record.implementation import murmur2 as murmur2

QueueLengths: TypeAlias = "Sequence[tuple[int, int]] | None"
"""Each available partition with the number of its waiting batches; None to draw evenly."""

# The lengths serve one draw for so many partitions. To look at them takes a time for each
# partition, and so few draws hardly change them.
_PARTITIONS_PER_DRAW: Final = 100


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

    __slots__ = (
        "_available",
        "_draws_left",
        "_loaded",
        "_rng",
        "_running_sums",
        "_sticky_bytes",
        "current_partition",
        "produced_bytes",
    )

    def __init__(self, sticky_batch_size_bytes: int, rng: Rng) -> None:
        if sticky_batch_size_bytes < 1:
            raise ValueError(
                f"the sticky batch size must be at least 1 byte, not {sticky_batch_size_bytes}"
            )
        self._sticky_bytes = sticky_batch_size_bytes
        self._rng = rng
        self._available: Sequence[int] = ()
        self._draws_left = 0
        self._loaded: list[int] = []
        self._running_sums: list[int] = []
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
        look_at_queues: Callable[[], QueueLengths] = lambda: None,
    ) -> int:
        """Draw the next partition and return it.

        Args:
            partition_count: of the topic, at least 1.
            available: the partitions that have a leader; another object after each change.
            look_at_queues: returns their lengths, to draw by load; called now and then.
        """
        if self._draws_left <= 0 or available is not self._available:
            self._weigh(look_at_queues())
            self._available = available
            self._draws_left = len(available) // _PARTITIONS_PER_DRAW
        self._draws_left -= 1
        if self._running_sums:
            drawn = self._rng.randrange(self._running_sums[-1])
            partition = self._loaded[bisect_right(self._running_sums, drawn)]
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

    def _weigh(self, queue_lengths: QueueLengths) -> None:
        """Give each partition the weight longest + 1 - own, so that each can be drawn."""
        # Lists, since there may be thousands: a generator costs a call for each partition.
        lengths = [length for _, length in queue_lengths or ()]
        above_longest = max(lengths, default=0) + 1
        self._loaded = [partition for partition, _ in queue_lengths or ()]
        self._running_sums = list(accumulate([above_longest - length for length in lengths]))
