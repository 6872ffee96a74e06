"""Metadata (key 3), v0-v13.

Behavior:
* Returns the brokers that are up, and for each topic asked for its id and its partitions' leaders,
  as the asked broker knows them. This may be out of date.
* A partition without a leader gets LEADER_NOT_AVAILABLE. An unknown topic gets
  UNKNOWN_TOPIC_OR_PARTITION, or the result of its automatic creation. A name that no topic can
  have gets INVALID_TOPIC_EXCEPTION.

Version notes: topic ids are new in v10, leader epochs in v7.
Simplifications: the automatic creation of a topic never completes; replicas are left out.
"""

from __future__ import annotations

from txnproducer._broker.cluster import BrokerCluster
from txnproducer._broker.resources import Resource
from txnproducer._broker.topics import LEGAL_NAME
from txnproducer._protocol.messages import (
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from txnproducer.errors import ErrorCode
from txnproducer.records import TopicPartition


def handle(
    cluster: BrokerCluster, node_id: int, request: MetadataRequest, now_ms: int
) -> MetadataResponse:
    """Answer a Metadata request."""
    del now_ms
    # Each broker knows at once which others are alive. Only leaders and topics can be out of date.
    brokers = tuple(node for n, node in cluster.nodes.items() if cluster.is_up(n))
    return MetadataResponse(
        brokers, tuple(_topic(cluster, node_id, name) for name in request.topics), "model"
    )


def _topic(cluster: BrokerCluster, node_id: int, name: str) -> TopicMetadata:
    # Before the existence of the topic: a client without access must not learn of it.
    if not cluster.is_allowed(Resource.TOPIC, name):
        return TopicMetadata(name, (), error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if not LEGAL_NAME.fullmatch(name):
        return TopicMetadata(name, (), error_code=ErrorCode.INVALID_TOPIC_EXCEPTION)
    # The view of this broker alone: after a change, clients meet old and new answers in turn.
    view = cluster.topology.view(node_id, name)
    if view is None:
        return TopicMetadata(name, (), error_code=cluster.options.missing_topic)
    partitions = []
    for number in sorted(view.leaders):
        leader, epoch = cluster.known_leader(node_id, TopicPartition(name, number))
        # A leader that has crashed is still named by stale metadata, but it has no address any
        # more.
        code = ErrorCode.NONE if cluster.is_up(leader) else ErrorCode.LEADER_NOT_AVAILABLE
        partitions.append(PartitionMetadata(number, -1 if code else leader, epoch, code))
    is_id_known = cluster.knows_topic_ids(node_id)
    topic_id = cluster.topology.topic_id(name, view.generation) if is_id_known else None
    return TopicMetadata(name, tuple(partitions), topic_id)
