"""The conditions that a blocked record waits for, and the errors that can end its wait.

Owns: `AppendBlocked`, its reasons, the errors, when a partition is certain to be missing. Must not
know: how to wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from txnproducer._core.batches.buffer_pool import BufferPool, MemoryTicket
from txnproducer._core.failed_tries import FailedTries, also, caused_by, in_words
from txnproducer._core.metadata import Metadata, invalid_name, is_valid_name
from txnproducer.errors import (
    BufferExhaustedError,
    KafkaError,
    KafkaTimeoutError,
    UnknownTopicOrPartitionError,
)


class BlockReason(Enum):
    """The condition that an append waits for."""

    METADATA = auto()
    MEMORY = auto()


@dataclass(frozen=True, slots=True)
class AppendBlocked:
    """Nothing was appended. Wait until `append_can_proceed`, then call `append` again with this.

    Attributes:
        reason: the condition.
        metadata_version: of the metadata when the wait began.
        ticket: the place in the queue for memory.
        transaction: the number of the transaction that the record belongs to.
        asked_count: how many metadata requests there were when the wait began.
        missed_ms: when the first of the later ones was sent whose answer has the topic, and lacks
            the partition; None before.
    """

    reason: BlockReason
    metadata_version: int = 0
    ticket: MemoryTicket | None = None
    transaction: int = 0
    asked_count: int = 0
    missed_ms: int | None = None


# Brokers learn of new partitions one after the other, so one answer proves nothing.
_CERTAIN_AFTER_MS: Final = 1000


def metadata_wait(
    metadata: Metadata, topic: str, transaction: int, before: AppendBlocked | None
) -> AppendBlocked:
    """Return the condition that a record with an unknown topic or partition waits for.

    Args:
        metadata: the topics.
        topic: the record's.
        transaction: as of `AppendBlocked`.
        before: the condition that it has waited for until now, if it has.
    """
    # Only an answer to a request that is later than the wait shows that the partition is missing.
    asked_count, missed_ms = metadata.asked_count, None
    if before is not None and before.reason is BlockReason.METADATA:
        asked_count, missed_ms = before.asked_count, before.missed_ms
    number, asked_ms = metadata.answer_of(topic)
    if missed_ms is None and number > asked_count:
        missed_ms = asked_ms
    return AppendBlocked(
        BlockReason.METADATA,
        metadata.version,
        transaction=transaction,
        asked_count=asked_count,
        missed_ms=missed_ms,
    )


def missing_partition(
    metadata: Metadata, topic: str, partition: int | None, blocked: AppendBlocked
) -> KafkaError | None:
    """Return the error of a partition that two answers lack, a second apart, or None."""
    snapshot = metadata.topics.get(topic)
    _, asked_ms = metadata.answer_of(topic)
    missed_ms = blocked.missed_ms
    if snapshot is None or missed_ms is None or asked_ms - missed_ms < _CERTAIN_AFTER_MS:
        return None
    text = _no_partition(topic, partition, snapshot.partition_count)
    return UnknownTopicOrPartitionError(text, recovery="fix")


def _no_partition(topic: str, partition: int | None, count: int) -> str:
    return (
        f"topic {topic!r} has no partition {partition}: its highest partition number is"
        f" {count - 1}. Send to an existing partition, or add partitions to the topic"
    )


def reason_against(metadata: Metadata, topic: str, partition: int | None) -> str | None:
    """Return why a record has no place in the cluster, or None if it may have one.

    The cluster is not asked, so a partition counts as missing if the last answer lacks it.
    """
    if not is_valid_name(topic):
        return invalid_name(topic)
    snapshot = metadata.topics.get(topic)
    # A topic that is being created may be known before its partitions are.
    if snapshot is None or partition is None or not 0 < snapshot.partition_count <= partition:
        return None
    return _no_partition(topic, partition, snapshot.partition_count)


def time_out_error(
    blocked: AppendBlocked,
    place: tuple[str, int | None],
    waited_ms: int,
    now_ms: int,
    pool: BufferPool,
    metadata: Metadata,
    failed: FailedTries,
) -> KafkaError:
    """Return the error of a record that could not be appended in time.

    Args:
        blocked: the condition that it waited for last.
        place: its topic, and its partition if the caller named one.
        waited_ms: how long it waited in all.
        now_ms: the time.
        pool: the buffer memory.
        metadata: the topics.
        failed: know which addresses can't be reached, and which questions have no answer.
    """
    if blocked.reason is BlockReason.MEMORY:
        return BufferExhaustedError(
            f"no buffer memory for the record within {waited_ms} ms (max_block_ms): "
            f"{pool.available_bytes} of buffer_memory={pool.total_bytes} bytes are free, and "
            f"{len(pool.waiting)} others wait. Records are sent faster than the brokers take "
            "them: send fewer at a time, or raise buffer_memory or max_block_ms"
        )
    topic, partition = place
    snapshot = metadata.topics.get(topic)
    # The topic is known, so a broker was reached: failed addresses are not the cause.
    if snapshot is not None and partition is not None:
        return KafkaTimeoutError(
            f"{_no_partition(topic, partition, snapshot.partition_count)}. The record has waited"
            f" for it {waited_ms} ms (max_block_ms)"
        )
    tries, reason = failed.last, failed.reason_unknown(topic)
    # A broker has answered that the topic does not exist, so unreachable addresses are not the
    # cause.
    if reason is not None:
        text = f"nothing is known of topic {topic!r} after {waited_ms} ms (max_block_ms)"
        if tries and failed.are_cause(now_ms - waited_ms):
            return caused_by(KafkaTimeoutError(f"{text}: {in_words(tries)}"), tries)
        error = KafkaTimeoutError(f"{text}: {reason}{also(tries)}")
        return caused_by(error, tries, refusal=reason)
    error = KafkaTimeoutError(
        f"the cluster does not know topic {topic!r} after {waited_ms} ms (max_block_ms): "
        f"create it, or check its name{also(tries)}"
    )
    error.__cause__ = UnknownTopicOrPartitionError(f"there is no topic {topic!r}")
    return caused_by(error, tries, are_cause=False)
