"""The ready check and the drain: which brokers have data ready, and which batches each gets.

Owns: the ready check, the gate that keeps sequences in order, numbering at the drain. Must not
know: requests, answers, why a batch is in its queue.

Rules:
* A batch is numbered when it is drained, never before: without a number it was never sent.
* Its bytes are finished before it is numbered. If that fails, as for lack of memory, this batch
  fails alone, and those drained with it go on. (In Java all of them are stranded.)
* A full batch that is not compressed yet stays in its queue (see `FullBatches`). Others, as those
  of a flush or a commit, are compressed as they are drained.
* A gated partition is passed over and the others go on. (Java stops draining the whole broker
  there and begins with the same partition next time, so that one waiting partition starves its
  neighbours.)
* A request has one batch per partition, and at most `max_request_size` bytes; a larger first batch
  goes alone. The partition that did not fit is served first the next time.
* Linger ends early when a flush, a commit or an abort, a close or a lack of memory asks for it;
  backoff never.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from txnproducer._core.batches.partition_queues import PartitionQueue
from txnproducer._core.batches.producer_batch import ProducerBatch
from txnproducer._core.batches.record_accumulator import RecordAccumulator
from txnproducer._core.metadata import NEVER_MS, Metadata
from txnproducer._core.sequences.sequence_manager import SequenceManager
from txnproducer.records import TopicPartition


@dataclass(slots=True)
class Drained:
    """The batches taken from one broker's queues.

    Attributes:
        batches: to send, numbered and closed.
        has_more: whether the queues have more batches.
        unfinished: batches whose bytes could not be made, and why.
    """

    batches: list[ProducerBatch] = field(default_factory=list)
    has_more: bool = False
    unfinished: list[tuple[ProducerBatch, Exception]] = field(default_factory=list)


class DrainedTransactions(Protocol):
    """The questions that draining asks about transactions."""

    @property
    def is_completing(self) -> bool:
        """Whether a commit or an abort is under way."""
        ...

    @property
    def sequences(self) -> SequenceManager:
        """The partitions' sequence numbers."""
        ...

    def is_send_to_partition_allowed(self, topic_partition: TopicPartition) -> bool:
        """Return whether a partition's batches may be sent."""
        ...


@dataclass(slots=True)
class ReadyCheckResult:
    """The findings of the ready check.

    Attributes:
        ready_nodes: each broker that has data ready, with all its queues that may be drained.
        next_check_delay_ms: when the next queue will be ready by the clock alone.
        unknown_leader_topics: topics with data whose leader is not known.
    """

    ready_nodes: dict[int, list[PartitionQueue]] = field(default_factory=dict)
    next_check_delay_ms: int = NEVER_MS
    unknown_leader_topics: set[str] = field(default_factory=set)


def check_ready(
    accumulator: RecordAccumulator,
    metadata: Metadata,
    identity: DrainedTransactions | None,
    now_ms: int,
) -> ReadyCheckResult:
    """Look at the head of every queue that is not empty.

    A broker is ready if one of its partitions is; then all of them that may be drained are, since
    a request to the broker goes out anyway.
    """
    result = ReadyCheckResult()
    by_leader: dict[int, list[PartitionQueue]] = {}
    ready: set[int] = set()
    # A hurry concerns all queues, so it is looked up once: a producer may have thousands of them.
    is_hurried: bool | None = None
    linger_ms = accumulator.options.linger_ms
    full = accumulator.full_batches
    for place, queue in accumulator.active.items():
        leader_id, leader_epoch = metadata.leader_of(place)
        # Without an address nothing can be sent, even if the leader's id is known.
        if leader_id not in metadata.nodes:
            result.unknown_leader_topics.add(place.topic)
            continue
        if queue.is_muted:
            continue
        head = queue.batches[0]
        # Before the backoff is asked for: a new leader ends it.
        head.maybe_update_leader_epoch(leader_epoch)
        # A batch that is held was never sent, so it has no backoff.
        is_held = head in full.held
        wait_ms = full.wait_ms(head, now_ms) if is_held else head.backoff_left_ms(now_ms)
        if not wait_ms:
            if identity is not None and is_gated(head, identity):
                continue
            by_leader.setdefault(leader_id, []).append(queue)
            # If its broker is ready, a batch goes with the request, lingering or not. A second
            # batch shows that the head is closed.
            if leader_id not in ready and len(queue.batches) == 1:
                if is_hurried is None:
                    is_hurried = _is_hurried(accumulator, identity)
                wait_ms = 0 if is_hurried else _linger_left_ms(head, linger_ms, now_ms)
        if wait_ms:
            result.next_check_delay_ms = min(result.next_check_delay_ms, wait_ms)
        else:
            ready.add(leader_id)
    # Mostly all of them are ready.
    if len(ready) < len(by_leader):
        by_leader = {node_id: by_leader[node_id] for node_id in by_leader if node_id in ready}
    result.ready_nodes = by_leader
    return result


def _is_hurried(accumulator: RecordAccumulator, identity: DrainedTransactions | None) -> bool:
    return (
        # Callers wait for memory, which a batch that lingers keeps.
        accumulator.pool.is_exhausted
        or accumulator.is_closed
        or (identity is not None and identity.is_completing)
        or accumulator.is_flush_in_progress
    )


def _linger_left_ms(head: ProducerBatch, linger_ms: int, now_ms: int) -> int:
    # A retried head has lingered already.
    if head.attempts or head.is_full:
        return 0
    return max(0, head.created_ms + linger_ms - now_ms)


def lingering_ms(
    accumulator: RecordAccumulator,
    queues: Sequence[PartitionQueue],
    identity: DrainedTransactions | None,
    now_ms: int,
) -> int:
    """Return for how long all that is left in some queues lingers; 0 if a batch may go at once."""
    if _is_hurried(accumulator, identity):
        return 0
    linger_ms = accumulator.options.linger_ms
    left_ms = NEVER_MS
    for queue in queues:
        if not queue.batches:
            continue
        if len(queue.batches) > 1:
            return 0
        left_ms = min(left_ms, _linger_left_ms(queue.batches[0], linger_ms, now_ms))
        if not left_ms:
            break
    return left_ms


def is_gated(head: ProducerBatch, identity: DrainedTransactions) -> bool:
    """Return whether a batch must stay in its queue.

    Its partition must be in the transaction, the producer must have an id, and sequences must stay
    in order (`SequenceManager.is_gated`).
    """
    if not identity.is_send_to_partition_allowed(head.topic_partition):
        return True
    sequences = identity.sequences
    return not sequences.has_producer_id or sequences.is_gated(head)


def drain(
    accumulator: RecordAccumulator,
    queues: Sequence[PartitionQueue],
    identity: DrainedTransactions | None,
    max_size_bytes: int,
) -> Drained:
    """Take one batch from each queue of one broker, as many as fit in one request."""
    drained = Drained()
    size_bytes = 0
    for queue in queues:
        head = queue.batches[0]
        # A first batch goes in any case, or one that is larger than a request would wait for ever.
        if drained.batches and size_bytes + head.estimated_size_bytes > max_size_bytes:
            # This queue keeps its place in front, so it is served first the next time.
            drained.has_more = True
            break
        batch = accumulator.take_head(queue)
        # One batch per partition and request: the rest of the queue is for the next request.
        drained.has_more = drained.has_more or bool(queue.batches)
        try:
            # Compressed before it is numbered: if that fails, no number is lost.
            accumulator.close_batch(batch)
            # A retry keeps its number, by which the broker recognizes a duplicate.
            if identity is not None and not batch.has_sequence:
                identity.sequences.number(batch)
            batch.close()
        except Exception as error:  # noqa: BLE001 - the codec's own, or no memory: the batch's end
            drained.unfinished.append((batch, error))
            continue
        # After the codec the size is exact: more may fit than the estimate promised.
        size_bytes += batch.estimated_size_bytes
        drained.batches.append(batch)
    return drained
