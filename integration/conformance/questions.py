"""Questions of consumers and administrators, put to a real broker in raw messages.

Why it exists: the package speaks the producer's APIs alone, and client libraries wait and try
again where a test wants the broker's first word.
Owns: one blocking connection, and the APIs asked on it. Must not know: transcripts.
"""

from __future__ import annotations

import socket
from typing import Any

from kafka.protocol.admin.transactions import DescribeProducersRequest, DescribeProducersResponse
from kafka.protocol.consumer import (
    JoinGroupRequest,
    JoinGroupResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafka.protocol.producer import InitProducerIdRequest

from integration.conformance.target import Member, ProducerSeen
from txnproducer.errors import ErrorCode
from txnproducer.records import TopicPartition

_TIMEOUT = 20.0
_LATEST = -1
_LIST_OFFSETS_VERSION = 5
_OFFSET_FETCH_VERSION = 7  # the first with require_stable; 8 asks for several groups
_INIT_PRODUCER_ID_VERSION = 4
_MOST_AT_ONCE = 100
_GROUP_VERSION = 3  # from 4 on a new member has to join twice
_STATIC_GROUP_VERSION = 5  # the first with instance ids (KIP-345)


class Questions:
    """One blocking connection to a real broker, for questions in raw messages.

    Args:
        host: the broker's.
        port: the broker's.
    """

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=_TIMEOUT)
        self._stream = self._socket.makefile("rb")

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def _ask(self, request: Any, response_type: Any) -> Any:
        request.with_header(correlation_id=1, client_id="questions")
        self._socket.sendall(request.encode(header=True, framed=True))
        size = int.from_bytes(self._stream.read(4))
        payload = memoryview(self._stream.read(size))
        return response_type.decode(payload, version=request.version, header=True)

    def init_often(self, transactional_id: str | None, timeout_ms: int, times: int) -> None:
        """Begin a producer's life again and again, without waiting for one answer after the other.

        The message is encoded once, and no answer is decoded: it is about the broker's time.
        """
        request = InitProducerIdRequest(
            version=_INIT_PRODUCER_ID_VERSION,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )
        request.with_header(correlation_id=1, client_id="questions")
        message = bytes(request.encode(header=True, framed=True))
        while times > 0:
            count = min(times, _MOST_AT_ONCE)
            self._socket.sendall(message * count)
            for _ in range(count):
                self._stream.read(int.from_bytes(self._stream.read(4)))
            times -= count

    def is_led(self, place: TopicPartition) -> bool:
        """Return whether the broker serves a partition yet."""
        return not self._list_end(place, read_committed=False).error_code

    def end(self, place: TopicPartition, *, read_committed: bool) -> int:
        """Return the last stable offset, or the end of the log."""
        partition = self._list_end(place, read_committed=read_committed)
        assert partition.error_code == 0, partition
        return int(partition.offset)

    def _list_end(self, place: TopicPartition, *, read_committed: bool) -> Any:
        topic_type = ListOffsetsRequest.ListOffsetsTopic
        partition = topic_type.ListOffsetsPartition(
            partition_index=place.partition, current_leader_epoch=-1, timestamp=_LATEST
        )
        request = ListOffsetsRequest(
            version=_LIST_OFFSETS_VERSION,
            replica_id=-1,
            isolation_level=int(read_committed),
            topics=[topic_type(name=place.topic, partitions=[partition])],
        )
        (found,) = self._ask(request, ListOffsetsResponse).topics[0].partitions
        return found

    def producers(self, place: TopicPartition) -> list[ProducerSeen]:
        topic = DescribeProducersRequest.TopicRequest(
            name=place.topic, partition_indexes=[place.partition]
        )
        request = DescribeProducersRequest(version=0, topics=[topic])
        (partition,) = self._ask(request, DescribeProducersResponse).topics[0].partitions
        assert partition.error_code == 0, partition
        return [
            ProducerSeen(each.producer_id, each.producer_epoch, each.last_sequence)
            for each in partition.active_producers
        ]

    def committed_offset(
        self, group_id: str, place: TopicPartition, *, require_stable: bool
    ) -> int | ErrorCode:
        topic = OffsetFetchRequest.OffsetFetchRequestTopic(
            name=place.topic, partition_indexes=[place.partition]
        )
        request = OffsetFetchRequest(
            version=_OFFSET_FETCH_VERSION,
            group_id=group_id,
            topics=[topic],
            require_stable=require_stable,
        )
        answer = self._ask(request, OffsetFetchResponse)
        assert answer.error_code == 0, answer
        (partition,) = answer.topics[0].partitions
        if partition.error_code:
            return ErrorCode(partition.error_code)
        return int(partition.committed_offset)

    def join_group(self, group_id: str, instance_id: str | None) -> Member:
        version = _GROUP_VERSION if instance_id is None else _STATIC_GROUP_VERSION
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="any", metadata=b"")
        join = JoinGroupRequest(
            version=version,
            group_id=group_id,
            group_instance_id=instance_id,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            member_id="",
            protocol_type="consumer",
            protocols=[protocol],
        )
        joined = self._ask(join, JoinGroupResponse)
        assert joined.error_code == 0, joined
        member = Member(joined.member_id, joined.generation_id)
        assignment = SyncGroupRequest.SyncGroupRequestAssignment(
            member_id=member.member_id, assignment=b""
        )
        sync = SyncGroupRequest(
            version=_GROUP_VERSION,
            group_id=group_id,
            group_instance_id=instance_id,
            generation_id=member.generation_id,
            member_id=member.member_id,
            assignments=[assignment],
        )
        synced = self._ask(sync, SyncGroupResponse)
        assert synced.error_code == 0, synced
        return member
