"""The modelled broker as a target, in a time of its own.

Owns: `ModelTarget`. Must not know: a real broker.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from integration.conformance.target import Member, ProducerSeen, RecordSeen, coordinated_by
from txnproducer._broker import handlers
from txnproducer._broker.cluster import BrokerCluster, ClusterOptions
from txnproducer._broker.resources import Resource
from txnproducer._broker.transaction_coordinator import Marker
from txnproducer._protocol import messages as m
from txnproducer.errors import ErrorCode
from txnproducer.records import TopicPartition

_LONGEST_WAIT_MS = 60_000


class HoldingCluster(BrokerCluster):
    """A cluster whose markers can be kept from a partition."""

    held: TopicPartition | None = None

    def write_marker(self, place: TopicPartition, marker: Marker, now_ms: int) -> ErrorCode:
        if place == self.held:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return super().write_marker(place, marker, now_ms)


class ModelTarget:
    """The modelled broker as a target.

    Args:
        version: of Apache Kafka.
        transaction_version: the finalized feature.
        nodes: how many brokers.
    """

    def __init__(self, version: str, transaction_version: int, nodes: int = 1) -> None:
        self.transaction_version = transaction_version
        options = ClusterOptions(
            node_count=nodes,
            transaction_version=transaction_version,
            is_before_4=version.startswith("3."),
        )
        self._cluster = HoldingCluster(options, random.Random(1))
        self._now_ms = 1_000

    def ask(self, request: m.Request) -> m.Response:
        return self._ask(self._home(request), request)

    def init_often(self, request: m.InitProducerIdRequest, times: int) -> None:
        for _ in range(times):
            self.ask(request)

    def ask_elsewhere(self, request: m.Request) -> m.Response:
        return self._ask((self._home(request) + 1) % len(self._cluster.nodes), request)

    def _ask(self, node_id: int, request: m.Request) -> m.Response:
        self._advance_to(self._now_ms + 1)
        return handlers.handle(self._cluster, node_id, request, self._now_ms)

    def _home(self, request: m.Request) -> int:
        cluster = self._cluster
        if isinstance(request, m.ProduceRequest):
            return cluster.leaders.get(request.partitions[0].topic_partition, 0)
        key = coordinated_by(request)
        return 0 if key is None else cluster.coordinator_node(*key)

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

    def create_topic(self, name: str, partition_count: int, *, is_compacted: bool) -> None:
        self._cluster.create_topic(name, partition_count)
        if is_compacted:
            self._cluster.compacted.add(name)

    def delete_topic(self, name: str) -> None:
        self._cluster.delete_topic(name, self._now_ms)

    def add_partitions(self, name: str, partition_count: int) -> None:
        self._cluster.add_partitions(name, partition_count, self._now_ms)

    def create_topic_at(self, name: str, transactional_id: str, *, is_far: bool) -> None:
        cluster = self._cluster
        cluster.create_topic(name, 1)
        near = cluster.coordinator_node(m.CoordinatorType.TRANSACTION, transactional_id)
        leader = (near + is_far) % len(cluster.nodes)
        cluster.move_partition(TopicPartition(name, 0), leader, self._now_ms)

    @contextmanager
    def hold_markers(self, place: TopicPartition) -> Iterator[None]:
        self._cluster.held = place
        yield
        self._cluster.held = None

    @contextmanager
    def deny(self, resource: Resource, name: str) -> Iterator[None]:
        self._cluster.denied.add((resource, name))
        yield
        self._cluster.denied.discard((resource, name))

    def topic_id(self, name: str) -> bytes | None:
        return self._cluster.topology.topic_id(name) if name in self._cluster.topics else None

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

    def join_group(self, group_id: str, instance_id: str | None) -> Member:
        group = self._cluster.group_offsets(group_id).group(group_id)
        group.generation_id = max(group.generation_id, 0) + 1
        group.members = {f"{group_id}-member": instance_id}
        return Member(f"{group_id}-member", group.generation_id)
