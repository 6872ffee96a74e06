"""The modelled broker as a target, in a time of its own.

Owns: `ModelTarget`. Must not know: a real broker.
"""

from __future__ import annotations

import random

from integration.conformance.target import Member, ProducerSeen, RecordSeen
from txnproducer._broker.cluster import BrokerCluster, ClusterOptions
from txnproducer._broker.resources import topic_id_of
from txnproducer._protocol.messages import Request, Response
from txnproducer.errors import ErrorCode
from txnproducer.records import TopicPartition

NODE_ID = 0
_LONGEST_WAIT_MS = 60_000


class ModelTarget:
    """See the module.

    Args:
        version: of Apache Kafka.
        transaction_version: the finalized feature.
    """

    def __init__(self, version: str, transaction_version: int) -> None:
        self.transaction_version = transaction_version
        options = ClusterOptions(
            transaction_version=transaction_version, is_before_4=version.startswith("3.")
        )
        self._cluster = BrokerCluster(options, random.Random(1))
        self._now_ms = 1_000

    def ask(self, request: Request) -> Response:
        self._advance_to(self._now_ms + 1)
        return self._cluster.handle(NODE_ID, request, self._now_ms)

    def _advance_to(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._cluster.advance(now_ms)

    def wait_ms(self, time_ms: int) -> None:
        end_ms = self._now_ms + time_ms
        while self._cluster.next_event_ms() < end_ms:
            self._advance_to(self._cluster.next_event_ms())
        self._advance_to(end_ms)

    def settle(self, transactional_id: str) -> None:
        end_ms = self._now_ms + _LONGEST_WAIT_MS
        while transactional_id in self._cluster.open_transactions:
            assert self._now_ms < end_ms, f"{transactional_id} does not end"
            self._advance_to(max(self._now_ms, self._cluster.next_event_ms()))

    def create_topic(self, name: str, partition_count: int) -> None:
        self._cluster.create_topic(name, partition_count)

    def topic_id(self, name: str) -> bytes | None:
        return topic_id_of(name) if name in self._cluster.topics else None

    def read(self, place: TopicPartition, *, read_committed: bool) -> list[RecordSeen]:
        found = self._cluster.read(place, read_committed=read_committed)
        return [RecordSeen(*record) for record in found]

    def last_stable_offset(self, place: TopicPartition) -> int:
        return self._cluster.last_stable_offset(place)

    def log_end_offset(self, place: TopicPartition) -> int:
        return self._cluster.log_end_offset(place)

    def producers(self, place: TopicPartition) -> list[ProducerSeen]:
        return [ProducerSeen(*state) for state in self._cluster.producer_states(place)]

    def committed_offset(
        self, group_id: str, place: TopicPartition, *, require_stable: bool
    ) -> int | ErrorCode:
        offsets = self._cluster.group_offsets(group_id)
        if require_stable and place in offsets.pending_partitions(group_id):
            return ErrorCode.UNSTABLE_OFFSET_COMMIT
        committed = offsets.committed(group_id)
        return committed[place].offset if place in committed else -1

    def join_group(self, group_id: str) -> Member:
        group = self._cluster.group_offsets(group_id).group(group_id)
        group.generation_id = max(group.generation_id, 0) + 1
        group.members = {f"{group_id}-member": None}
        return Member(f"{group_id}-member", group.generation_id)
