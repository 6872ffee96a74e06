"""Where rows go when each Kafka partition has one writer: the shuffle before a whole batch.

Owns: which Kafka partition a row belongs to, as the producer would choose it, and whether a frame
has to be shuffled at all. Must not know: transactions, tasks that write.

Rules:
* A row with a key, or with a partition, has its place; so such frames are shuffled: task i gets
  the rows of partition i. Those of one key keep the order that they have in one partition of the
  frame; a shuffle promises no more.
* Frames without both are not shuffled: task i writes partition i, and there are at most as many
  tasks as partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from txnproducer._core.partitioner import partition_for_key
from txnproducer.spark.errors import SinkError

Placed: TypeAlias = tuple[int, Any]


def placed(frame: Any, rdd: Any, partitions: int) -> tuple[Any, bool]:
    """Return the frame's rows cut so that task i writes partition i.

    Args:
        frame: its columns say whether rows have places.
        rdd: of the frame.
        partitions: of the topic.

    Returns:
        An RDD, and whether its rows come with their places.
    """
    if {"key", "partition"} & set(frame.columns):
        finder = PlaceFinder(partitions, frozenset(frame.columns))
        return rdd.mapPartitionsWithIndex(finder).partitionBy(partitions, int), True
    if rdd.getNumPartitions() > partitions:
        return rdd.coalesce(partitions), False
    return rdd, False


@dataclass(frozen=True)
class PlaceFinder:
    """Finds the place of each row, as Spark's `mapPartitionsWithIndex` calls it.

    Attributes:
        partitions: of the topic.
        columns: of the frame.
    """

    partitions: int
    columns: frozenset[str]

    def __call__(self, index: int, rows: Iterable[Any]) -> Iterator[Placed]:
        """Give each row with its partition; rows with neither key nor partition stay together."""
        has_key, has_partition = "key" in self.columns, "partition" in self.columns
        for row in rows:
            key = row["key"] if has_key else None
            place = row["partition"] if has_partition else None
            if place is not None:
                yield self._checked(place), row
            elif key is not None:
                data = key.encode() if isinstance(key, str) else bytes(key)
                yield partition_for_key(data, self.partitions), row
            else:
                yield index % self.partitions, row

    def _checked(self, place: int) -> int:
        if not 0 <= place < self.partitions:
            raise SinkError(
                f"a row is for partition {place}; the topic has partitions 0 to"
                f" {self.partitions - 1}"
            )
        return place
