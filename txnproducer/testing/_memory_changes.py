"""The changes of a modelled cluster that a test asks for by the name of an id, group or partition.

Why it exists: a misspelt name would change nothing that a producer meets, and the test would pass
without its fault.
Owns: one function for each change, and its refusals. Must not know: threads, sockets.
"""

from __future__ import annotations

from typing import Final, cast

from txnproducer._broker.cluster import BrokerCluster
from txnproducer._broker.handlers import handle
from txnproducer._broker.resources import Resource
from txnproducer._protocol.messages import (
    CoordinatorType,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from txnproducer.errors import ErrorCode
from txnproducer.records import TopicPartition

from ._arguments import text, unused_id
from ._memory_arguments import unknown_partition, unknown_topic
from ._memory_cluster import MemoryCluster

# The time-out of the producer that `take_over` stands for, which is Java's default.
_TIMEOUT_MS: Final = 60_000


def create_topic(
    cluster: MemoryCluster, name: str, partitions: int, now_ms: int, *, is_compacted: bool
) -> None:
    """Create a topic, which every broker knows at once."""
    if name in cluster.topics:
        raise ValueError(f"the topic {name!r} exists already")
    cluster.create_topic(name, partitions)
    if is_compacted:
        cluster.compacted.add(name)
    # As a controller, which gives no partition to a broker that is down. Without a leader it would
    # take no marker, and a transaction in it would not end.
    for place in (TopicPartition(name, number) for number in range(partitions)):
        if not cluster.is_up(cluster.leaders[place]):
            cluster.move_partition(place, cluster.pick_node(), now_ms)


def take_over(cluster: BrokerCluster, transactional_id: str, now_ms: int) -> None:
    """Let a newer producer of an id take over."""
    node_id = _coordinator(cluster, transactional_id)
    request = InitProducerIdRequest(transactional_id, _TIMEOUT_MS)
    answer = cast(InitProducerIdResponse, handle(cluster, node_id, request, now_ms))
    # It has begun the abort of an open transaction, which is complete already: markers take no
    # time, and each partition has a leader that is up. So the second answer refuses nothing.
    if answer.error_code == ErrorCode.CONCURRENT_TRANSACTIONS:
        answer = cast(InitProducerIdResponse, handle(cluster, node_id, request, now_ms))
    if answer.error_code:
        raise ValueError(
            f"{transactional_id!r} cannot be fenced: a newer producer of it would be refused with"
            f" {ErrorCode(answer.error_code).name}"
        )


def time_out(cluster: MemoryCluster, transactional_id: str, now_ms: int) -> None:
    """Let the coordinator abort an id's open transaction, unless its timer has already."""
    _coordinator(cluster, transactional_id)
    coordinator = cluster.transaction_coordinator(transactional_id)
    known = coordinator.find(transactional_id)
    # With a short `transaction_timeout_ms` the timer of the model may come first.
    if cluster.has_timed_out(transactional_id):
        return
    # One that is being committed already has no time-out any more.
    if known is None or known.state.value != "Ongoing":
        raise ValueError(
            f"{transactional_id!r} has no open transaction to time out: a transaction is open for"
            " the broker once it has got a record of it; flush() the producer before"
        )
    # Not by moving the clock: it would end the time-outs of every other id as well.
    coordinator.fence(known, now_ms)


def move_coordinator(cluster: MemoryCluster, transactional_id: str, now_ms: int) -> None:
    """Move an id's coordinator to the next broker."""
    _check_used(cluster, transactional_id)
    _move(cluster, CoordinatorType.TRANSACTION, transactional_id, now_ms)


def move_group_coordinator(cluster: MemoryCluster, group_id: str, now_ms: int) -> None:
    """Move a group's coordinator to the next broker."""
    if group_id not in cluster.group_offsets(group_id).groups:
        raise ValueError(
            f"no producer has sent offsets of the group {group_id!r}: correct the name, or call"
            " send_offsets_to_transaction() first"
        )
    _move(cluster, CoordinatorType.GROUP, group_id, now_ms)


def move_leader(cluster: MemoryCluster, place: TopicPartition, now_ms: int) -> None:
    """Give a partition the next broker as its leader."""
    # Not by an index, which stands for a client's look.
    if place.topic not in cluster.topics:
        raise unknown_topic(place.topic, cluster.topics)
    former = cluster.leaders.get(place)
    if former is None:
        raise unknown_partition(place.topic, place.partition, cluster.topics[place.topic])
    node_id = _next_node(cluster, former)
    cluster.move_partition(place, node_id, now_ms)
    if node_id == former:
        cluster.return_leader(place)


def resources(topic: object, group: object, transactional_id: object) -> set[tuple[Resource, str]]:
    """Return the resources that a test names, to refuse them or to grant them again."""
    named = {
        Resource.TOPIC: ("topic", topic),
        Resource.GROUP: ("group", group),
        Resource.TRANSACTIONAL_ID: ("transactional_id", transactional_id),
    }
    found = {(kind, text(*pair)) for kind, pair in named.items() if pair[1] is not None}
    # `deny()` of nothing would do nothing, and look like a denied right that has no effect.
    if not found:
        raise TypeError("name a resource: topic, group or transactional_id")
    return found


def deny(cluster: BrokerCluster, denied: set[tuple[Resource, str]]) -> None:
    """Refuse clients the access to resources."""
    # Ids and groups come into being by their use, which a test may want to be refused.
    for kind, name in denied:
        if kind is Resource.TOPIC and name not in cluster.topics:
            raise KeyError(f"topic is {name!r}: there is none. Correct it, or create_topic()")
    cluster.denied.update(denied)


def allow(cluster: BrokerCluster, allowed: set[tuple[Resource, str]]) -> None:
    """Grant clients the access to resources again."""
    for kind, name in allowed - cluster.denied:
        field = kind.name.lower()
        raise ValueError(f"{field} is {name!r}, to which access is not denied: deny() it first")
    cluster.denied.difference_update(allowed)


def _check_used(cluster: BrokerCluster, transactional_id: str) -> None:
    if cluster.transaction_coordinator(transactional_id).find(transactional_id) is None:
        raise unused_id(transactional_id)


def _coordinator(cluster: BrokerCluster, transactional_id: str) -> int:
    _check_used(cluster, transactional_id)
    node_id = cluster.coordinator_node(CoordinatorType.TRANSACTION, transactional_id)
    # A coordinator stays on a broker that is down only if no other one is up.
    if not cluster.is_up(node_id):
        raise ValueError(f"no broker is up that coordinates {transactional_id!r}: start_node()")
    return node_id


def _move(cluster: MemoryCluster, kind: CoordinatorType, key: str, now_ms: int) -> None:
    former = cluster.coordinator_node(kind, key)
    node_id = _next_node(cluster, former)
    cluster.move_coordinator(kind, cluster.coordinator_number(key), node_id, now_ms)
    if node_id == former:
        cluster.return_coordinator(kind, key)


def _next_node(cluster: BrokerCluster, node_id: int) -> int:
    count = len(cluster.nodes)
    # The node itself comes last, for a cluster in which no other one is up.
    following = ((node_id + step) % count for step in range(1, count + 1))
    found = next(filter(cluster.is_up, following), None)
    if found is None:
        raise ValueError("no broker is up to move to")
    return found
