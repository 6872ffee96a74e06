"""What a record that cannot be appended yet waits for, and what is said when it waited in vain.

Owns: `AppendBlocked`, its reasons, the texts of its time-outs. Must not know: how to wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from txnproducer._core.buffer_pool import BufferPool, MemoryTicket
from txnproducer._core.failed_tries import caused_by, in_words
from txnproducer._core.metadata import Metadata
from txnproducer.errors import BufferExhaustedError, KafkaError, KafkaTimeoutError


class BlockReason(Enum):
    """What an append waits for."""

    METADATA = auto()
    MEMORY = auto()


@dataclass(frozen=True, slots=True)
class AppendBlocked:
    """Nothing was appended; wait until `append_can_proceed`, then call `append` again with this.

    Attributes:
        reason: what is missing.
        metadata_version: what was known when the wait began.
        ticket: the place in the queue for memory.
        transaction: the number of the transaction that the record belongs to.
    """

    reason: BlockReason
    metadata_version: int = 0
    ticket: MemoryTicket | None = None
    transaction: int = 0


def time_out_error(
    blocked: AppendBlocked,
    place: tuple[str, int | None],
    waited_ms: int,
    pool: BufferPool,
    metadata: Metadata,
    tries: Sequence[KafkaError],
) -> KafkaError:
    """Say why a record could not be appended in time.

    Args:
        blocked: what it waited for last.
        place: its topic, and its partition if the caller named one.
        waited_ms: how long it waited in all.
        pool: the buffer memory.
        metadata: the topics.
        tries: the last failure of each address that can't be reached.
    """
    if blocked.reason is BlockReason.MEMORY:
        return BufferExhaustedError(
            f"no buffer memory for the record within {waited_ms} ms (max_block_ms): "
            f"{pool.available_bytes} of buffer_memory={pool.total_bytes} bytes are free, and "
            f"{len(pool.waiting)} others wait; the brokers take records slower than they come"
        )
    topic, partition = place
    snapshot = metadata.topics.get(topic)
    if snapshot is not None and partition is not None:
        return KafkaTimeoutError(
            f"partition {partition} of topic {topic!r} does not exist: it has "
            f"{snapshot.partition_count} partitions, still after {waited_ms} ms (max_block_ms)"
        )
    if tries:
        text = f"nothing is known of topic {topic!r} after {waited_ms} ms (max_block_ms)"
        return caused_by(KafkaTimeoutError(f"{text}: {in_words(tries)}"), tries)
    return KafkaTimeoutError(
        f"the cluster does not know topic {topic!r} after {waited_ms} ms (max_block_ms): "
        "create it, check its name, or check that a broker can be reached"
    )
