"""The server's side of each API: a decoded request becomes messages, their answers one answer.

Owns: the table of APIs, with one function for each. Must not know: headers, connections, faults,
the meaning of a message (the model answers it).

Rules:
* The version of a request decides about transactions v2, as in a real broker: it has no flag of
  its own on the wire (KIP-890).
* A field that a version lacks has the schema's default.
* A real broker checks more than its model. A malformed request raises MalformedRequestError
  here.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from txnproducer._protocol import messages as m
from txnproducer._protocol.messages import ApiKey
from txnproducer._server import schemas as s
from txnproducer._server.api import Api, Ask, ClusterView, MalformedRequestError
from txnproducer.records import OffsetAndMetadata, TopicPartition

_NO_ID: Final = uuid.UUID(int=0)
# The first versions with transactions v2's meaning.
_PRODUCE_V2: Final = 12
_END_TXN_V2: Final = 5
_OFFSETS_V2: Final = 5
# From this version on the request has many keys (KIP-699).
_FIND_MANY: Final = 4
# From this version on brokers send the request to each other, for many transactions.
_ADD_MANY: Final = 4
# From this version on the request names topics by their ids (KIP-516).
_PRODUCE_BY_ID: Final = 13
# From this version on null asks for all topics, and an empty list for none.
_ALL_BY_NULL: Final = 1


def _by_topic(places: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for topic, partition in places:
        topics[topic].append(partition)
    return topics


# --- the cluster --------------------------------------------------------------------------------


def _metadata(asked: Any, ask: Ask, view: ClusterView) -> Any:
    # Null asks for all topics; in version 0, which has no null, an empty list does.
    is_all = asked.topics is None or (asked.version < _ALL_BY_NULL and not asked.topics)
    topics = (
        view.all_topics() if is_all else tuple(_asked_name(each, view) for each in asked.topics)
    )
    answer = ask(m.MetadataRequest(topics, asked.allow_auto_topic_creation))
    broker = s.MetadataResponse.MetadataResponseBroker
    return s.MetadataResponse(
        version=asked.version,
        throttle_time_ms=answer.throttle_time_ms,
        brokers=[broker(**view.address(node), rack=node.rack) for node in answer.brokers],
        cluster_id=answer.cluster_id,
        controller_id=answer.controller_id,
        topics=[_topic(each) for each in answer.topics],
    )


def _asked_name(topic: Any, view: ClusterView) -> str:
    name: str | None = topic.name
    return view.name(topic.topic_id) if name is None else name


def _topic(topic: m.TopicMetadata) -> Any:
    kind = s.MetadataResponse.MetadataResponseTopic
    partition = kind.MetadataResponsePartition
    return kind(
        error_code=topic.error_code,
        name=topic.topic,
        topic_id=_NO_ID if topic.topic_id is None else uuid.UUID(bytes=topic.topic_id),
        is_internal=topic.is_internal,
        partitions=[
            partition(
                error_code=p.error_code,
                partition_index=p.partition,
                leader_id=p.leader_id,
                leader_epoch=p.leader_epoch,
                # The model has no replicas: the leader is the only one.
                replica_nodes=[p.leader_id],
                isr_nodes=[p.leader_id],
                offline_replicas=[],
            )
            for p in topic.partitions
        ],
    )


def _find_coordinator(asked: Any, ask: Ask, view: ClusterView) -> Any:
    try:
        kind = m.CoordinatorType(asked.key_type)
    except ValueError as error:
        raise MalformedRequestError(*error.args) from error
    # One message for each key: the model's coordinator is found for one name at a time.
    keys = asked.coordinator_keys if asked.version >= _FIND_MANY else [asked.key]
    answers = [ask(m.FindCoordinatorRequest(key, kind)) for key in keys]
    found = [each for answer in answers for each in answer.coordinators]
    # The answer has one field for all keys.
    throttle_ms = max((answer.throttle_time_ms for answer in answers), default=0)
    if asked.version >= _FIND_MANY:
        return s.FindCoordinatorResponse(
            version=asked.version,
            throttle_time_ms=throttle_ms,
            coordinators=[
                s.FindCoordinatorResponse.Coordinator(key=each.key, **_coordinator(each, view))
                for each in found
            ],
        )
    [only] = found
    return s.FindCoordinatorResponse(
        version=asked.version, throttle_time_ms=throttle_ms, **_coordinator(only, view)
    )


def _coordinator(found: m.Coordinator, view: ClusterView) -> dict[str, Any]:
    return {
        "error_code": found.error_code,
        "error_message": found.error_message,
        **view.address(found.node),
    }


# --- transactions -------------------------------------------------------------------------------


def _init_producer_id(asked: Any, ask: Ask, _: ClusterView) -> Any:
    answer = ask(
        m.InitProducerIdRequest(
            asked.transactional_id,
            asked.transaction_timeout_ms,
            asked.producer_id,
            asked.producer_epoch,
        )
    )
    return s.InitProducerIdResponse(
        version=asked.version,
        throttle_time_ms=answer.throttle_time_ms,
        error_code=answer.error_code,
        producer_id=answer.producer_id,
        producer_epoch=answer.producer_epoch,
    )


def _add_partitions_to_txn(asked: Any, ask: Ask, _: ClusterView) -> Any:
    if asked.version >= _ADD_MANY:
        raise MalformedRequestError("AddPartitionsToTxn 4 and above is sent between brokers")
    answer = ask(
        m.AddPartitionsToTxnRequest(
            asked.v3_and_below_transactional_id,
            asked.v3_and_below_producer_id,
            asked.v3_and_below_producer_epoch,
            tuple(
                TopicPartition(topic.name, partition)
                for topic in asked.v3_and_below_topics
                for partition in topic.partitions
            ),
        )
    )
    topic_type = s.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    partition_type = topic_type.AddPartitionsToTxnPartitionResult
    return s.AddPartitionsToTxnResponse(
        version=asked.version,
        throttle_time_ms=answer.throttle_time_ms,
        results_by_topic_v3_and_below=[
            topic_type(
                name=name,
                results_by_partition=[
                    partition_type(partition_index=partition, partition_error_code=code)
                    for partition, code in results
                ],
            )
            for name, results in _codes_by_topic(answer.results).items()
        ],
    )


def _codes_by_topic(results: Iterable[m.PartitionErrorCode]) -> dict[str, list[tuple[int, int]]]:
    topics: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for each in results:
        topic, partition = each.topic_partition
        topics[topic].append((partition, each.error_code))
    return topics


def _add_offsets_to_txn(asked: Any, ask: Ask, _: ClusterView) -> Any:
    answer = ask(
        m.AddOffsetsToTxnRequest(
            asked.transactional_id, asked.producer_id, asked.producer_epoch, asked.group_id
        )
    )
    return s.AddOffsetsToTxnResponse(
        version=asked.version,
        throttle_time_ms=answer.throttle_time_ms,
        error_code=answer.error_code,
    )


def _txn_offset_commit(asked: Any, ask: Ask, _: ClusterView) -> Any:
    answer = ask(
        m.TxnOffsetCommitRequest(
            asked.transactional_id,
            asked.group_id,
            asked.producer_id,
            asked.producer_epoch,
            tuple(
                (
                    TopicPartition(topic.name, part.partition_index),
                    OffsetAndMetadata(
                        part.committed_offset,
                        part.committed_metadata or "",
                        part.committed_leader_epoch,
                    ),
                )
                for topic in asked.topics
                for part in topic.partitions
            ),
            asked.generation_id,
            asked.member_id,
            asked.group_instance_id,
            is_transaction_v2_enabled=asked.version >= _OFFSETS_V2,
        )
    )
    topic_type = s.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
    partition_type = topic_type.TxnOffsetCommitResponsePartition
    return s.TxnOffsetCommitResponse(
        version=asked.version,
        throttle_time_ms=answer.throttle_time_ms,
        topics=[
            topic_type(
                name=name,
                partitions=[
                    partition_type(partition_index=partition, error_code=code)
                    for partition, code in results
                ],
            )
            for name, results in _codes_by_topic(answer.results).items()
        ],
    )


def _end_txn(asked: Any, ask: Ask, _: ClusterView) -> Any:
    answer = ask(
        m.EndTxnRequest(
            asked.transactional_id,
            asked.producer_id,
            asked.producer_epoch,
            asked.committed,
            is_transaction_v2_enabled=asked.version >= _END_TXN_V2,
        )
    )
    return s.EndTxnResponse(
        version=asked.version,
        throttle_time_ms=answer.throttle_time_ms,
        error_code=answer.error_code,
        producer_id=answer.producer_id,
        producer_epoch=answer.producer_epoch,
    )


def _describe_transactions(asked: Any, ask: Ask, _: ClusterView) -> Any:
    answer = ask(m.DescribeTransactionsRequest(tuple(asked.transactional_ids)))
    state_type = s.DescribeTransactionsResponse.TransactionState
    return s.DescribeTransactionsResponse(
        version=asked.version,
        throttle_time_ms=answer.throttle_time_ms,
        transaction_states=[
            state_type(
                error_code=each.error_code,
                transactional_id=each.transactional_id,
                transaction_state=each.state,
                transaction_timeout_ms=each.timeout_ms,
                transaction_start_time_ms=each.start_time_ms,
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                topics=[
                    state_type.TopicData(topic=topic, partitions=partitions)
                    for topic, partitions in _by_topic(each.partitions).items()
                ],
            )
            for each in answer.transactions
        ],
    )


# --- records ------------------------------------------------------------------------------------


def _produce(asked: Any, ask: Ask, view: ClusterView) -> Any:
    # The answer names topics as the request does, so each id is kept with the name.
    is_by_id = asked.version >= _PRODUCE_BY_ID
    ids: dict[str, uuid.UUID] = {}
    parts: list[m.ProducePartition] = []
    for topic in asked.topic_data:
        name = view.name(topic.topic_id) if is_by_id else topic.name
        ids[name] = topic.topic_id if is_by_id else _NO_ID
        topic_id = topic.topic_id.bytes if is_by_id else None
        parts.extend(
            m.ProducePartition(TopicPartition(name, part.index), part.records or b"", topic_id)
            for part in topic.partition_data
        )
    answer = ask(
        m.ProduceRequest(
            asked.transactional_id,
            asked.acks,
            asked.timeout_ms,
            tuple(parts),
            is_transaction_v2_enabled=asked.version >= _PRODUCE_V2,
        )
    )
    if asked.acks == 0:
        return None  # the client waits for no answer
    topics: defaultdict[str, list[Any]] = defaultdict(list)
    for part in answer.partitions:
        topics[part.topic_partition.topic].append(_produced(part))
    response = s.ProduceResponse
    return response(
        version=asked.version,
        throttle_time_ms=answer.throttle_time_ms,
        responses=[
            response.TopicProduceResponse(
                name=name, topic_id=ids[name], partition_responses=results
            )
            for name, results in topics.items()
        ],
        # With the error of a leader that has moved comes the new one's address (KIP-951).
        node_endpoints=[
            response.NodeEndpoint(**view.address(node), rack=node.rack) for node in answer.nodes
        ],
    )


def _produced(part: m.ProducePartitionResponse) -> Any:
    kind = s.ProduceResponse.TopicProduceResponse.PartitionProduceResponse
    leader = part.current_leader
    return kind(
        index=part.topic_partition.partition,
        error_code=part.error_code,
        base_offset=part.base_offset,
        log_append_time_ms=part.log_append_time_ms,
        log_start_offset=part.log_start_offset,
        record_errors=[
            kind.BatchIndexAndErrorMessage(
                batch_index=each.batch_index, batch_index_error_message=each.message
            )
            for each in part.record_errors
        ],
        error_message=part.error_message,
        # A tagged field: brokers leave it out if there is nothing to say, and librdkafka takes any
        # that is there for news.
        current_leader=leader
        and kind.LeaderIdAndEpoch(leader_id=leader.leader_id, leader_epoch=leader.leader_epoch),
    )


APIS: Final[Mapping[ApiKey, Api]] = MappingProxyType(
    {
        ApiKey.PRODUCE: Api(s.ProduceRequest, _produce),
        ApiKey.METADATA: Api(s.MetadataRequest, _metadata),
        ApiKey.FIND_COORDINATOR: Api(s.FindCoordinatorRequest, _find_coordinator),
        ApiKey.INIT_PRODUCER_ID: Api(s.InitProducerIdRequest, _init_producer_id),
        ApiKey.ADD_PARTITIONS_TO_TXN: Api(s.AddPartitionsToTxnRequest, _add_partitions_to_txn),
        ApiKey.ADD_OFFSETS_TO_TXN: Api(s.AddOffsetsToTxnRequest, _add_offsets_to_txn),
        ApiKey.END_TXN: Api(s.EndTxnRequest, _end_txn),
        ApiKey.TXN_OFFSET_COMMIT: Api(s.TxnOffsetCommitRequest, _txn_offset_commit),
        ApiKey.DESCRIBE_TRANSACTIONS: Api(s.DescribeTransactionsRequest, _describe_transactions),
    }
)
"""The APIs of a producer, by key. ApiVersions and the login belong to the connection."""
