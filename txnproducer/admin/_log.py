"""The log of one partition: its batches as the leader has them, with the markers between them.

A consumer at read_committed stops at the first open transaction, whoever has it. A reader that
wants to know of certain records only whether they are decided needs the markers themselves.

An offset means a place in one log. A topic that is deleted and created again has its old name and
other offsets, so a reader that goes on somewhere names the topic's id as well (KIP-516). The id is
in the metadata of brokers since 2.8, and a fetch goes by it since 3.1. Between the two, the answer
could be that of a topic made within the same milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

import kafka.errors
from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaPartition
from kafka.admin import OffsetSpec
from kafka.protocol.consumer import FetchRequest
from tenacity import retry_if_exception_type

from txnproducer.errors import CorruptRecordError, KafkaError

from ._connection import DEFAULT_TIMEOUT, Asker, again_while, ask
from ._log_batches import UNREADABLE, LogBatch, read_batches

# Up to this version, a fetch names a topic by its name. Without an id there is no other way.
_MOST_BY_NAME: Final = 12
_MOST_BY_ID: Final = 17
_MOST_BYTES: Final = 8 * 1024 * 1024
_MOST_WAIT_MS: Final = 500
# A partition has no leader, or another one, for the time of an election.
_NO_LEADER: Final = (
    kafka.errors.NotLeaderForPartitionError,
    kafka.errors.LeaderNotAvailableError,
)
_MOVING: Final = (
    *_NO_LEADER,
    kafka.errors.UnknownTopicOrPartitionError,
    # The leader does not know the topic yet. If it was deleted, the metadata say so soon.
    kafka.errors.UnknownTopicIdError,
    kafka.errors.InconsistentTopicIdError,
    # A new leader serves no record before its followers have asked for them. To a fetch it gives
    # no error then, but `_fetch` does.
    kafka.errors.OffsetNotAvailableError,
)


class ReadTo(NamedTuple):
    """The place up to which a log was read.

    Attributes:
        offset: the place.
        topic_id: of the topic that was read; None if the brokers do not say.
    """

    offset: int
    topic_id: UUID | None


class TopicReplacedError(KafkaError):
    """The topic was deleted and created again. The offset to begin at is one of the old topic."""


def read_log(
    bootstrap_servers: str,
    topic: str,
    offset: int,
    take: Callable[[LogBatch], None],
    timeout: float = DEFAULT_TIMEOUT,
    *,
    partition: int = 0,
    topic_id: UUID | None = None,
    asker: Asker | None = None,
    **security: Any,
) -> ReadTo:
    """Read a partition up to its end at the time of this call, open transactions included.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        topic: the topic.
        offset: where to begin; below the first offset, or above the end: where the log begins.
        take: called with each batch, in order. After a failure batches may come again.
        timeout: seconds.
        partition: of the topic.
        topic_id: of the topic that has this offset; None for any topic of the name.
        asker: puts the question; `ask` by default.
        **security: kafka-python's security settings.

    Returns:
        The offset up to which the log was read, and the topic's id.

    Raises:
        TopicReplacedError: the topic has another id now, or got another one meanwhile.
        UnknownTopicOrPartitionError: there is no such partition.
        KafkaTimeoutError: the cluster did not answer in time.
        CorruptRecordError, UnsupportedCompressionTypeError, InvalidConfigurationError: a batch
            cannot be read (the last one: the library of its codec is not installed). The text has
            topic, partition and offset. Raised at once: the bytes stay as they are.
        KafkaError: the cluster refused (reading needs the right to Read the topic).
    """
    # One for all attempts: an earlier one may have taken batches of this very topic.
    log = _Log(KafkaPartition(topic, partition), timeout, topic_id)

    def question(client: KafkaAdminClient) -> ReadTo | KafkaError:
        log.client = client
        try:
            return ReadTo(_read(log, offset, take), log.topic_id)
        except (*UNREADABLE, TopicReplacedError) as error:
            # Returned: the asker would put the question again.
            return error

    found = (asker or ask)(bootstrap_servers, question, timeout, **security)
    if isinstance(found, KafkaError):
        raise found
    return found


def _read(log: _Log, offset: int, take: Callable[[LogBatch], None]) -> int:
    position = offset
    end = log.bound(OffsetSpec.LATEST)
    if position > end:  # the topic was deleted and created again, or has lost records
        position = 0
    while position < end:
        try:
            answer = log.fetch(position, end)
        except kafka.errors.OffsetOutOfRangeError:
            earliest = log.bound(OffsetSpec.EARLIEST)
            if earliest <= position:  # it has lost records since the end was asked for
                return min(position, log.bound(OffsetSpec.LATEST))
            position = earliest
            continue
        except kafka.errors.CorruptRecordError as error:
            raise CorruptRecordError(
                f"{log}, offset {position}: its leader cannot read it (CORRUPT_MESSAGE)",
                recovery="fix",
            ) from error
        found = position
        for batch in read_batches(answer or b"", str(log)):
            # A fetch begins with the whole batch that holds its offset.
            if batch.next_offset > position:
                take(batch)
                position = batch.next_offset
        if position == found:
            if answer:
                raise CorruptRecordError(
                    f"{log}, offset {position}: {len(answer)} bytes, and no whole batch",
                    recovery="fix",
                )
            position = end  # compaction has removed all that was left
    return position


@dataclass
class _Log:
    """The questions about the log of a partition, each to the leader that it has by then.

    Attributes:
        place: the partition.
        timeout: seconds for each.
        topic_id: of the topic; None until the brokers say it.
        client: puts them.
    """

    place: KafkaPartition
    timeout: float
    topic_id: UUID | None
    client: Any = None

    def __str__(self) -> str:
        return f"partition {self.place.partition} of the topic {self.place.topic}"

    def bound(self, spec: Any) -> int:
        """Return the first offset of the log, or the end."""
        client, place = self.client, self.place
        # Not by the admin client's own call, which asks for the metadata and hides the id.
        request = client._list_partition_offsets_request({place: spec}, 0)  # noqa: SLF001

        def ask() -> Any:
            answer = self._ask_leader(lambda: request)
            return client._list_partition_offsets_process_response(answer)  # noqa: SLF001

        found = again_while(retry_if_exception_type(_NO_LEADER), ask, self.timeout)
        return int(found[place].offset)

    def fetch(self, offset: int, end: int) -> Any:
        """Return the bytes from an offset on, none if there is no record up to `end`."""

        def ask() -> Any:
            answer = self._ask_leader(lambda: self._fetch_request(offset))
            self._raise_for(answer.error_code)
            found = answer.responses[0].partitions[0]
            self._raise_for(found.error_code)
            if not found.records and found.high_watermark < end:
                raise kafka.errors.OffsetNotAvailableError(
                    f"{self}: its leader serves offsets up to {found.high_watermark}, and the log"
                    f" was read up to {offset} of {end}"
                )
            return found.records

        return again_while(retry_if_exception_type(_MOVING), ask, self.timeout)

    def _fetch_request(self, offset: int) -> FetchRequest:
        part = FetchRequest.FetchTopic.FetchPartition(
            partition=self.place.partition,
            current_leader_epoch=-1,
            fetch_offset=offset,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=_MOST_BYTES,
        )
        # By name or by id: the version that the broker has decides.
        topic = FetchRequest.FetchTopic(
            topic=self.place.topic, topic_id=self.topic_id or UUID(int=0), partitions=[part]
        )
        return FetchRequest(
            replica_id=-1,
            max_wait_ms=_MOST_WAIT_MS,
            min_bytes=1,
            max_bytes=_MOST_BYTES,
            isolation_level=0,  # the caller decides by the markers
            session_id=0,
            session_epoch=-1,  # without a session: each question names its place
            topics=[topic],
            forgotten_topics_data=[],
            rack_id="",
            max_version=_MOST_BY_NAME if self.topic_id is None else _MOST_BY_ID,
        )

    def _ask_leader(self, request: Callable[[], Any]) -> Any:
        """Ask the leader of now, which a request is made for when the topic's id is known."""

        async def ask() -> Any:
            manager = self.client._manager  # noqa: SLF001 - it has no such call
            described = await self.client._get_cluster_metadata([self.place.topic])  # noqa: SLF001
            leader = self._leader_in(described["topics"])
            return await manager.send(request(), node_id=leader)

        return self.client._manager.run(ask)  # noqa: SLF001

    def _leader_in(self, topics: list[dict[str, Any]]) -> int:
        """Return the leader by the cluster's metadata, which have the topic's id as well."""
        (topic,) = topics
        self._raise_for(topic["error_code"])
        self._check_id(UUID(str(topic["topic_id"])))
        for part in topic["partitions"]:
            if part["partition_index"] == self.place.partition:
                if part["leader_id"] < 0:
                    raise kafka.errors.LeaderNotAvailableError(str(self))
                return int(part["leader_id"])
        raise kafka.errors.UnknownTopicOrPartitionError(str(self))

    def _raise_for(self, code: int) -> None:
        if code:
            raise kafka.errors.for_code(code)(str(self))

    def _check_id(self, found: UUID) -> None:
        if not found.int:  # the broker does not know ids
            return
        if self.topic_id not in (None, found):
            raise TopicReplacedError(
                f"the topic {self.place.topic} was deleted and created again: its id was"
                f" {self.topic_id}, and is {found}"
            )
        self.topic_id = found
