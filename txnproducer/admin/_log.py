"""The log of one partition: its batches as the leader has them, with the markers between them.

A consumer at read_committed stops at the first open transaction, whoever has it. A reader that
wants to know of certain records only whether they are decided needs the markers themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import kafka.errors
from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaPartition
from kafka.admin import OffsetSpec
from kafka.protocol.consumer import FetchRequest
from kafka.record import MemoryRecords
from tenacity import retry_if_exception_type

from ._connection import DEFAULT_TIMEOUT, Asker, again_while, ask, to_ms

# From version 13 on, a topic is named by an id that would have to be asked for first.
_MAX_VERSION: Final = 12
_MOST_BYTES: Final = 8 * 1024 * 1024
_MOST_WAIT_MS: Final = 500
# A partition has no leader, or another one, for the time of an election.
_MOVING: Final = (
    kafka.errors.NotLeaderForPartitionError,
    kafka.errors.LeaderNotAvailableError,
    kafka.errors.UnknownTopicOrPartitionError,
)


@dataclass(frozen=True)
class LogRecord:
    """A record of the log.

    Attributes:
        offset: of the record.
        timestamp_ms: of the record, since the epoch.
        key, value: as stored.
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True)
class LogBatch:
    """A batch of records, or the marker at the end of a transaction.

    Attributes:
        next_offset: the offset after the batch.
        producer_id: of the producer that wrote it.
        is_transactional: whether a marker decides about its records.
        is_commit: of a marker: whether it is one of a commit; None for a batch of records.
        records: none if it is a marker, or if compaction has removed them.
    """

    next_offset: int
    producer_id: int
    is_transactional: bool
    is_commit: bool | None
    records: tuple[LogRecord, ...]


def read_log(
    bootstrap_servers: str,
    topic: str,
    offset: int,
    take: Callable[[LogBatch], None],
    timeout: float = DEFAULT_TIMEOUT,
    *,
    partition: int = 0,
    asker: Asker | None = None,
    **security: Any,
) -> int:
    """Read a partition up to its end at the time of this call, open transactions included.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        topic: the topic.
        offset: where to begin; below the first offset, or above the end: where the log begins.
        take: called with each batch, in order. After a failure batches may come again.
        timeout: seconds.
        partition: of the topic.
        asker: puts the question; `ask` by default.
        **security: kafka-python's security settings.

    Returns:
        The offset up to which the log was read.

    Raises:
        UnknownTopicOrPartitionError: there is no such partition.
        KafkaTimeoutError: the cluster did not answer in time.
        KafkaError: the cluster refused (reading needs the right to Read the topic).
    """
    place = KafkaPartition(topic, partition)

    def question(client: KafkaAdminClient) -> int:
        position = offset
        end = _bound(client, place, OffsetSpec.LATEST, timeout)
        if position > end:  # the topic was deleted and created again, or has lost records
            position = 0
        while position < end:
            try:
                answer = again_while(
                    retry_if_exception_type(_MOVING),
                    lambda at=position: _fetch(client, place, at),  # type: ignore[misc]
                    timeout,
                )
            except kafka.errors.OffsetOutOfRangeError:
                position = max(position, _bound(client, place, OffsetSpec.EARLIEST, timeout))
                continue
            found = position
            for batch in _batches(answer):
                # A fetch begins with the whole batch that holds its offset.
                if batch.next_offset > position:
                    take(batch)
                    position = batch.next_offset
            if position == found:  # compaction has removed all that was left
                position = end
        return position

    return (asker or ask)(bootstrap_servers, question, timeout, **security)


def _bound(client: KafkaAdminClient, place: KafkaPartition, spec: Any, timeout: float) -> int:
    found = again_while(
        retry_if_exception_type(_MOVING[:2]),
        lambda: client.list_partition_offsets({place: spec}, timeout_ms=to_ms(timeout)),
        timeout,
    )
    return int(found[place].offset)


def _fetch(client: KafkaAdminClient, place: KafkaPartition, offset: int) -> Any:
    """Return the bytes of the log from an offset on."""

    async def fetch() -> Any:
        leaders = await client._async_get_leader_for_partitions([place])  # noqa: SLF001 - it has no such call
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=_MOST_WAIT_MS,
            min_bytes=1,
            max_bytes=_MOST_BYTES,
            isolation_level=0,  # the caller decides by the markers
            session_id=0,
            session_epoch=-1,  # without a session: each question names its place
            topics=[
                FetchRequest.FetchTopic(
                    topic=place.topic,
                    partitions=[
                        FetchRequest.FetchTopic.FetchPartition(
                            partition=place.partition,
                            current_leader_epoch=-1,
                            fetch_offset=offset,
                            last_fetched_epoch=-1,
                            log_start_offset=-1,
                            partition_max_bytes=_MOST_BYTES,
                        )
                    ],
                )
            ],
            forgotten_topics_data=[],
            rack_id="",
            max_version=_MAX_VERSION,
        )
        return await client._manager.send(request, node_id=next(iter(leaders)))  # noqa: SLF001

    answer = client._manager.run(fetch)  # noqa: SLF001
    found = answer.responses[0].partitions[0]
    for code in (answer.error_code, found.error_code):
        if code:
            raise kafka.errors.for_code(code)(f"{place.topic}-{place.partition}")
    return found.records


def _batches(data: Any) -> Iterator[LogBatch]:
    records = MemoryRecords(data or b"")
    # A batch that the answer has cut off at its end is left out by the library.
    while (batch := records.next_batch()) is not None:
        is_marker = batch.is_control_batch
        content = list(batch)
        yield LogBatch(
            batch.next_offset,
            batch.producer_id,
            batch.is_transactional,
            any(each.commit for each in content) if is_marker else None,
            ()
            if is_marker
            else tuple(
                LogRecord(each.offset, each.timestamp, each.key, each.value) for each in content
            ),
        )
