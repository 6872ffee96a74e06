"""The encoding of requests and decoding of answers, by kafka-python's schemas at a version.

Why it exists: the core speaks version-free messages, and this module gives each its layout.
Produce, EndTxn and DescribeTransactions take the fast paths of `produce_codec` and `end_codec` if
they can.
Owns: one encoder and one decoder per API, as tables.
Must not know: sockets, time, which version is right (`version_choice` decides).
Rules: a decoder never guesses. Bytes that do not fit raise `ResponseDecodeError`, and their
connection is given up. `schema_reader` checks the bytes, `answer_checks` the values.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from txnproducer._protocol import messages as m
from txnproducer.errors import DisconnectError
from txnproducer.records import TopicPartition

from . import kafka_python as kp
from .answer_checks import MOST_PARTITIONS, check_answer, most_elements
from .end_codec import FIRST_FLEXIBLE_END_TXN, EndEncoder, decode_describe, decode_end_txn
from .produce_codec import FIRST_FLEXIBLE_VERSION, Buffer, ProduceEncoder, decode_produce
from .schema_reader import read_answer
from .version_choice import FIND_COORDINATOR_WITH_KEYS, PRODUCE_WITH_TOPIC_IDS

_NO_TOPIC_ID = uuid.UUID(int=0)


class ResponseDecodeError(DisconnectError):
    """The broker's answer does not follow the protocol. The connection is closed."""


class WireCodec:
    """The encoder and decoder of one client.

    Args:
        client_id: the name that the broker sees in its quotas and logs.
    """

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._produce = ProduceEncoder(client_id)
        self._end = EndEncoder(client_id)

    def encode(self, body: m.Request, version: int, correlation_id: int) -> list[Buffer]:
        """Return a framed request, as buffers to send one after the other."""
        # The requests that every batch and every transaction needs. The schemas take the others,
        # and the older versions of these, which only old brokers need.
        if isinstance(body, m.ProduceRequest) and version >= FIRST_FLEXIBLE_VERSION:
            return self._produce.encode(body, version, correlation_id)
        if isinstance(body, m.EndTxnRequest) and version >= FIRST_FLEXIBLE_END_TXN:
            return [self._end.end_txn(body, version, correlation_id)]
        if isinstance(body, m.DescribeTransactionsRequest):
            return [self._end.describe(body, correlation_id)]
        schema = _ENCODERS[type(body)](body, version)
        return [frame(schema, correlation_id, self._client_id)]

    def decode(self, body: m.Request, version: int, payload: memoryview) -> m.Response:
        """Decode the answer to a request.

        Args:
            body: the request that is answered.
            version: the version it was sent at.
            payload: the frame without its size.

        Raises:
            ResponseDecodeError: the bytes are no answer to this request.
        """
        try:
            # The answers that every batch and every transaction waits for have a fast path.
            answer: m.Response | None = None
            if isinstance(body, m.ProduceRequest) and version >= FIRST_FLEXIBLE_VERSION:
                answer = decode_produce(body, version, payload)
            elif isinstance(body, m.EndTxnRequest) and version >= FIRST_FLEXIBLE_END_TXN:
                answer = decode_end_txn(version, payload)
            elif isinstance(body, m.DescribeTransactionsRequest):
                answer = decode_describe(body, payload)
            # An error code, a tag or damage: the schemas judge these, and name what does not fit.
            if answer is None:
                schema, convert = _DECODERS[type(body)]
                read = read_answer(schema, version, payload, most_elements(body))
                answer = convert(read, body)
            # After both ways: a layout that fits says nothing about the values.
            check_answer(body, answer)
        except ValueError as error:
            raise ResponseDecodeError(
                f"cannot decode the answer to {m.API_KEY_OF[type(body)].name} {version}: {error}"
            ) from error
        return answer


def frame(schema: Any, correlation_id: int, client_id: str) -> bytes:
    """Return one of kafka-python's requests with header and size."""
    schema.with_header(correlation_id=correlation_id, client_id=client_id)
    return bytes(schema.encode(header=True, framed=True))


# --- requests -----------------------------------------------------------------------------------


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for topic, partition in partitions:
        topics[topic].append(partition)
    return topics


def _metadata(body: m.MetadataRequest, version: int) -> Any:
    # An empty list asks for the brokers alone. All topics would be null, which is never sent.
    return kp.MetadataRequest(
        version=version,
        topics=[kp.MetadataRequest.MetadataRequestTopic(name=name) for name in body.topics],
        allow_auto_topic_creation=body.allow_auto_topic_creation,
    )


def _find_coordinator(body: m.FindCoordinatorRequest, version: int) -> Any:
    # One key in either form: the core looks up one coordinator at a time.
    if version >= FIND_COORDINATOR_WITH_KEYS:
        return kp.FindCoordinatorRequest(
            version=version, key_type=int(body.key_type), coordinator_keys=[body.key]
        )
    return kp.FindCoordinatorRequest(version=version, key=body.key, key_type=int(body.key_type))


def _init_producer_id(body: m.InitProducerIdRequest, version: int) -> Any:
    return kp.InitProducerIdRequest(
        version=version,
        transactional_id=body.transactional_id,
        transaction_timeout_ms=body.transaction_timeout_ms,
        producer_id=body.producer_id,
        producer_epoch=body.producer_epoch,
    )


def _add_partitions_to_txn(body: m.AddPartitionsToTxnRequest, version: int) -> Any:
    # Version 4 is for requests between brokers, so only the fields below it are filled.
    topic = kp.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    return kp.AddPartitionsToTxnRequest(
        version=version,
        v3_and_below_transactional_id=body.transactional_id,
        v3_and_below_producer_id=body.producer_id,
        v3_and_below_producer_epoch=body.producer_epoch,
        v3_and_below_topics=[
            topic(name=name, partitions=partitions)
            for name, partitions in _by_topic(body.partitions).items()
        ],
    )


def _add_offsets_to_txn(body: m.AddOffsetsToTxnRequest, version: int) -> Any:
    return kp.AddOffsetsToTxnRequest(
        version=version,
        transactional_id=body.transactional_id,
        producer_id=body.producer_id,
        producer_epoch=body.producer_epoch,
        group_id=body.group_id,
    )


def _txn_offset_commit(body: m.TxnOffsetCommitRequest, version: int) -> Any:
    topic_type = kp.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    partition_type = topic_type.TxnOffsetCommitRequestPartition
    topics: defaultdict[str, list[Any]] = defaultdict(list)
    for (topic, partition), offset in body.offsets:
        topics[topic].append(
            partition_type(
                partition_index=partition,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                committed_metadata=offset.metadata,
            )
        )
    return kp.TxnOffsetCommitRequest(
        version=version,
        transactional_id=body.transactional_id,
        group_id=body.group_id,
        producer_id=body.producer_id,
        producer_epoch=body.producer_epoch,
        generation_id=body.generation_id,
        member_id=body.member_id,
        group_instance_id=body.group_instance_id,
        topics=[topic_type(name=name, partitions=parts) for name, parts in topics.items()],
    )


def _end_txn(body: m.EndTxnRequest, version: int) -> Any:
    return kp.EndTxnRequest(
        version=version,
        transactional_id=body.transactional_id,
        producer_id=body.producer_id,
        producer_epoch=body.producer_epoch,
        committed=body.is_commit,
    )


def _describe_transactions(body: m.DescribeTransactionsRequest, version: int) -> Any:
    return kp.DescribeTransactionsRequest(
        version=version, transactional_ids=list(body.transactional_ids)
    )


def _produce(body: m.ProduceRequest, version: int) -> Any:
    """Build any version of Produce. It is the reference for those that `produce_codec` knows."""
    topic_type = kp.ProduceRequest.TopicProduceData
    partition_type = topic_type.PartitionProduceData
    topics: dict[str, Any] = {}
    for part in body.partitions:
        name, index = part.topic_partition
        if name not in topics:
            topic_id = uuid.UUID(bytes=part.topic_id) if part.topic_id else _NO_TOPIC_ID
            topics[name] = topic_type(name=name, topic_id=topic_id, partition_data=[])
        records = part.records
        topics[name].partition_data.append(partition_type(index=index, records=records))
    return kp.ProduceRequest(
        version=version,
        transactional_id=body.transactional_id,
        acks=body.acks,
        timeout_ms=body.timeout_ms,
        topic_data=list(topics.values()),
    )


_ENCODERS: dict[type, Callable[[Any, int], Any]] = {
    m.MetadataRequest: _metadata,
    m.FindCoordinatorRequest: _find_coordinator,
    m.InitProducerIdRequest: _init_producer_id,
    m.AddPartitionsToTxnRequest: _add_partitions_to_txn,
    m.AddOffsetsToTxnRequest: _add_offsets_to_txn,
    m.TxnOffsetCommitRequest: _txn_offset_commit,
    m.EndTxnRequest: _end_txn,
    m.DescribeTransactionsRequest: _describe_transactions,
    m.ProduceRequest: _produce,
}


# --- answers ------------------------------------------------------------------------------------


def _topic_id(value: uuid.UUID | None) -> bytes | None:
    # Versions without ids have none, and brokers send zeros for a topic that does not exist.
    return None if value is None or value == _NO_TOPIC_ID else value.bytes


def _metadata_response(answer: Any, request: m.Request) -> m.MetadataResponse:
    asked = frozenset(request.topics) if isinstance(request, m.MetadataRequest) else ()
    brokers = (m.BrokerNode(b.node_id, b.host, b.port, b.rack) for b in answer.brokers)
    return m.MetadataResponse(
        brokers=tuple(brokers),
        # As the Java client, ignore topics that were not requested.
        topics=tuple(_topic_metadata(topic) for topic in answer.topics if topic.name in asked),
        cluster_id=answer.cluster_id,
        controller_id=answer.controller_id,
        throttle_time_ms=answer.throttle_time_ms,
    )


def _topic_metadata(topic: Any) -> m.TopicMetadata:
    partitions = (
        m.PartitionMetadata(p.partition_index, p.leader_id, p.leader_epoch, p.error_code)
        for p in topic.partitions
    )
    return m.TopicMetadata(
        topic=topic.name,
        partitions=tuple(partitions),
        topic_id=_topic_id(topic.topic_id),
        error_code=topic.error_code,
        is_internal=topic.is_internal,
    )


def _find_coordinator_response(answer: Any, request: m.Request) -> m.FindCoordinatorResponse:
    if answer.version >= FIND_COORDINATOR_WITH_KEYS:
        found = tuple(_coordinator(entry.key, entry) for entry in answer.coordinators)
    else:
        # The older answer does not repeat the key.
        key = request.key if isinstance(request, m.FindCoordinatorRequest) else ""
        found = (_coordinator(key, answer),)
    return m.FindCoordinatorResponse(found, answer.throttle_time_ms)


def _coordinator(key: str, entry: Any) -> m.Coordinator:
    node = m.BrokerNode(entry.node_id, entry.host, entry.port)
    return m.Coordinator(key, node, entry.error_code, entry.error_message)


def _init_producer_id_response(answer: Any, _: m.Request) -> m.InitProducerIdResponse:
    return m.InitProducerIdResponse(
        answer.error_code, answer.producer_id, answer.producer_epoch, answer.throttle_time_ms
    )


def _add_partitions_to_txn_response(answer: Any, _: m.Request) -> m.AddPartitionsToTxnResponse:
    results = (
        m.PartitionErrorCode(
            TopicPartition(topic.name, result.partition_index), result.partition_error_code
        )
        for topic in answer.results_by_topic_v3_and_below
        for result in topic.results_by_partition
    )
    return m.AddPartitionsToTxnResponse(tuple(results), answer.throttle_time_ms)


def _add_offsets_to_txn_response(answer: Any, _: m.Request) -> m.AddOffsetsToTxnResponse:
    return m.AddOffsetsToTxnResponse(answer.error_code, answer.throttle_time_ms)


def _txn_offset_commit_response(answer: Any, _: m.Request) -> m.TxnOffsetCommitResponse:
    results = (
        m.PartitionErrorCode(TopicPartition(topic.name, part.partition_index), part.error_code)
        for topic in answer.topics
        for part in topic.partitions
    )
    return m.TxnOffsetCommitResponse(tuple(results), answer.throttle_time_ms)


def _end_txn_response(answer: Any, _: m.Request) -> m.EndTxnResponse:
    return m.EndTxnResponse(
        answer.error_code, answer.producer_id, answer.producer_epoch, answer.throttle_time_ms
    )


def _describe_transactions_response(answer: Any, _: m.Request) -> m.DescribeTransactionsResponse:
    # Checked before the values are built: a damaged count must not cost their memory.
    topics = (topic for state in answer.transaction_states for topic in state.topics)
    if sum(len(topic.partitions) for topic in topics) > MOST_PARTITIONS:
        raise ValueError(f"more than {MOST_PARTITIONS} partitions")
    described = (
        m.TransactionDescription(
            error_code=state.error_code,
            transactional_id=state.transactional_id,
            state=state.transaction_state,
            producer_id=state.producer_id,
            producer_epoch=state.producer_epoch,
            timeout_ms=state.transaction_timeout_ms,
            start_time_ms=state.transaction_start_time_ms,
            partitions=tuple(
                TopicPartition(topic.topic, partition)
                for topic in state.topics
                for partition in topic.partitions
            ),
        )
        for state in answer.transaction_states
    )
    return m.DescribeTransactionsResponse(tuple(described), answer.throttle_time_ms)


def _produce_response(answer: Any, request: m.Request) -> m.ProduceResponse:
    # From version 13 on the answer names topics by their ids alone (KIP-516).
    names: dict[uuid.UUID, str] = {}
    if answer.version >= PRODUCE_WITH_TOPIC_IDS and isinstance(request, m.ProduceRequest):
        names = {
            uuid.UUID(bytes=part.topic_id): part.topic_partition.topic
            for part in request.partitions
            if part.topic_id
        }
    if names and any(topic.topic_id not in names for topic in answer.responses):
        raise ValueError("a topic id that was not asked about")
    partitions = (
        _produce_partition(names[topic.topic_id] if names else topic.name, part)
        for topic in answer.responses
        for part in topic.partition_responses
    )
    nodes = (m.BrokerNode(n.node_id, n.host, n.port, n.rack) for n in answer.node_endpoints or ())
    return m.ProduceResponse(tuple(partitions), tuple(nodes), answer.throttle_time_ms)


def _produce_partition(topic: str, part: Any) -> m.ProducePartitionResponse:
    # The schema's default stands for no news: a leader of -1.
    leader = part.current_leader
    if leader is not None and leader.leader_id >= 0:
        current_leader = m.LeaderIdAndEpoch(leader.leader_id, leader.leader_epoch)
    else:
        current_leader = None
    return m.ProducePartitionResponse(
        topic_partition=TopicPartition(topic, part.index),
        error_code=part.error_code,
        base_offset=part.base_offset,
        log_append_time_ms=part.log_append_time_ms,
        log_start_offset=part.log_start_offset,
        record_errors=tuple(
            m.RecordError(entry.batch_index, entry.batch_index_error_message)
            for entry in part.record_errors or ()
        ),
        error_message=part.error_message,
        current_leader=current_leader,
    )


_DECODERS: dict[type, tuple[Any, Callable[[Any, m.Request], m.Response]]] = {
    m.MetadataRequest: (kp.MetadataResponse, _metadata_response),
    m.FindCoordinatorRequest: (kp.FindCoordinatorResponse, _find_coordinator_response),
    m.InitProducerIdRequest: (kp.InitProducerIdResponse, _init_producer_id_response),
    m.AddPartitionsToTxnRequest: (kp.AddPartitionsToTxnResponse, _add_partitions_to_txn_response),
    m.AddOffsetsToTxnRequest: (kp.AddOffsetsToTxnResponse, _add_offsets_to_txn_response),
    m.TxnOffsetCommitRequest: (kp.TxnOffsetCommitResponse, _txn_offset_commit_response),
    m.EndTxnRequest: (kp.EndTxnResponse, _end_txn_response),
    m.DescribeTransactionsRequest: (
        kp.DescribeTransactionsResponse,
        _describe_transactions_response,
    ),
    m.ProduceRequest: (kp.ProduceResponse, _produce_response),
}
