"""The partition of each row of a block, and the order in which the rows are sent.

Owns: the sorting of a block's rows into runs, one for each partition. Must not know: columns, how
a run is sent, or the effect of a failed run on its transaction.
Rules:
* A partition has one run, in the order of the rows, so that its records have the order that a loop
  of `send` would give them. Rows that may go to any partition get theirs here if other rows of the
  block name one: sent on their own, they would come before or after rows of the same partition.
* A block in which all rows may go anywhere is one run. Its partition is chosen batch by batch.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass
from typing import Final

from txnproducer._core.append.row_appender import RowRun
from txnproducer._core.append.row_placer import Span, merged
from txnproducer._core.producer_core import ProducerCore
from txnproducer._record.rows import NO_PARTITION
from txnproducer._shell.columns.blocks import Block
from txnproducer._shell.io_thread import IoThread
from txnproducer._shell.steps import Steps

__all__ = ["Partitions", "RowSorter"]

_PARTITION: Final = 0


@dataclass(frozen=True, slots=True)
class Partitions:
    """The wait for a topic's partitions, which asks the cluster if it must."""

    topic: str


class RowSorter:
    """The sorting of blocks of rows by partition.

    Args:
        core: chooses the partition of rows that may go anywhere.
        io: has the core's lock.
        is_ignoring_keys: whether keys choose no partition.
    """

    def __init__(self, core: ProducerCore, io: IoThread, *, is_ignoring_keys: bool) -> None:
        self._core = core
        self._io = io
        self._is_ignoring_keys = is_ignoring_keys

    def runs(self, topic: str, block: Block, transaction: int) -> Steps[Partitions, deque[RowRun]]:
        """Return the runs of a block, one for each partition.

        Args:
            topic: the topic of all rows.
            block: the rows.
            transaction: the core's number of the transaction that the rows belong to.
        """
        rows = block.rows
        if block.partition is not None:
            return deque([RowRun(rows, None, block.partition, transaction, 0, rows.count)])
        are_keys_counted = block.has_keys and not self._is_ignoring_keys
        if block.partitions is None and not are_keys_counted:
            return deque([RowRun(rows, None, None, transaction, 0, rows.count)])
        # Only if keys decide: otherwise the cluster need not be asked before the first row is
        # appended.
        partition_count = len((yield Partitions(topic))) if are_keys_counted else 0
        order, spans = rows.by_partition(block.partitions, partition_count)
        # Placed before they are sorted: sent apart, such a row could lie before or after rows of
        # the partition that it is put into.
        if len(spans) > 1 and spans[0][_PARTITION] == NO_PARTITION:
            placed = yield from self._placed(topic, block, order, spans[0])
            order, spans = merged(order, [*spans[1:], *placed])
        return deque(
            RowRun(
                rows, order, None if number == NO_PARTITION else number, transaction, start, stop
            )
            for number, start, stop in spans
        )

    def _placed(
        self, topic: str, block: Block, order: array[int], span: Span
    ) -> Steps[Partitions, list[Span]]:
        """Choose partitions for rows that may go anywhere, for one batch of rows at a time."""
        placer = self._core.row_placer
        _, start, stop = span
        placed: list[Span] = []
        while start < stop:
            with self._io.lock:
                choice = placer.choose(topic, is_first=not placed)
            if choice is None:
                # Without the lock: this asks the cluster for the topic, and waits.
                yield Partitions(topic)
                continue
            partition, room_bytes = choice
            # Rows are measured without the lock, so that the loop can send meanwhile.
            next_start, size_bytes = block.rows.reach(order, start, stop, room_bytes)
            placed.append((partition, start, next_start))
            start = next_start
            with self._io.lock:
                placer.note(topic, size_bytes)
        return placed
