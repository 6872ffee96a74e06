"""Each message at each version in use: one side is the codec, the other kafka-python's schemas."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from txnproducer._protocol import messages as m
from txnproducer._wire import kafka_python as kp
from txnproducer._wire.codec import ResponseDecodeError, WireCodec
from txnproducer._wire.version_choice import CLIENT_VERSIONS
from txnproducer.records import OffsetAndMetadata, TopicPartition

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
TOPIC_ID = bytes(range(16))
CODEC = WireCodec("me")


def sent(body: m.Request, version: int) -> Any:
    """Return the fields that a broker reads of a request, with its header checked."""
    api_key = m.API_KEY_OF[type(body)]
    framed = b"".join(CODEC.encode(body, version, 42))
    name = "".join(word.capitalize() for word in api_key.name.split("_"))
    read = getattr(kp, f"{name}Request").decode(framed, version=version, header=True, framed=True)
    assert read.header.request_api_key == api_key
    assert read.header.request_api_version == version
    assert read.header.correlation_id == 42
    assert read.header.client_id == "me"
    return read


def received(body: m.Request, version: int, **fields: Any) -> m.Response:
    """Return the codec's value for a broker's answer to a request."""
    api_key = m.API_KEY_OF[type(body)]
    name = "".join(word.capitalize() for word in api_key.name.split("_"))
    answer = getattr(kp, f"{name}Response")(version=version, **fields)
    answer.with_header(correlation_id=42)
    return CODEC.decode(body, version, memoryview(bytes(answer.encode(header=True))))


def versions(key: m.ApiKey) -> Any:
    low, high = CLIENT_VERSIONS[key]
    return pytest.mark.parametrize("version", range(low, high + 1))


# --- Metadata -----------------------------------------------------------------------------------


@versions(m.ApiKey.METADATA)
def test_metadata_asks_for_topics_by_name(version: int) -> None:
    read = sent(m.MetadataRequest(("t", "u"), allow_auto_topic_creation=False), version)
    assert [topic.name for topic in read.topics] == ["t", "u"]
    assert read.allow_auto_topic_creation is False


@versions(m.ApiKey.METADATA)
def test_metadata_without_topics_asks_for_brokers_alone(version: int) -> None:
    assert sent(m.MetadataRequest(()), version).topics == []


@versions(m.ApiKey.METADATA)
def test_metadata_has_leader_epochs_and_topic_ids_where_the_version_has_them(
    version: int,
) -> None:
    partition = kp.MetadataResponse.MetadataResponseTopic.MetadataResponsePartition(
        error_code=5,
        partition_index=1,
        leader_id=2,
        leader_epoch=7,
        replica_nodes=[2],
        isr_nodes=[2],
        offline_replicas=[],
    )
    topic = kp.MetadataResponse.MetadataResponseTopic(
        error_code=3,
        name="t",
        topic_id=uuid.UUID(bytes=TOPIC_ID),
        is_internal=True,
        partitions=[partition],
    )
    broker = kp.MetadataResponse.MetadataResponseBroker(node_id=2, host="h", port=9, rack="r")
    read = received(
        m.MetadataRequest(("t",)),
        version,
        throttle_time_ms=6,
        brokers=[broker],
        cluster_id="c",
        controller_id=2,
        topics=[topic],
    )
    epoch = 7 if version >= 7 else -1
    topic_id = TOPIC_ID if version >= 10 else None
    assert read == m.MetadataResponse(
        (m.BrokerNode(2, "h", 9, "r"),),
        (m.TopicMetadata("t", (m.PartitionMetadata(1, 2, epoch, 5),), topic_id, 3, True),),
        "c",
        2,
        6,
    )


# --- FindCoordinator ----------------------------------------------------------------------------

LOOK_UP = m.FindCoordinatorRequest("x", m.CoordinatorType.TRANSACTION)


@versions(m.ApiKey.FIND_COORDINATOR)
def test_find_coordinator_asks_by_key_or_by_a_list_of_one(version: int) -> None:
    read = sent(LOOK_UP, version)
    assert read.key_type == 1
    assert (read.coordinator_keys == ["x"]) if version >= 4 else (read.key == "x")


@versions(m.ApiKey.FIND_COORDINATOR)
def test_find_coordinator_answers_one_coordinator_in_every_version(version: int) -> None:
    found = {"node_id": 2, "host": "h", "port": 9, "error_code": 15, "error_message": "wait"}
    if version >= 4:
        coordinator = kp.FindCoordinatorResponse.Coordinator(key="x", **found)
        read = received(LOOK_UP, version, throttle_time_ms=6, coordinators=[coordinator])
    else:
        read = received(LOOK_UP, version, throttle_time_ms=6, **found)
    coordinators = (m.Coordinator("x", m.BrokerNode(2, "h", 9), 15, "wait"),)
    assert read == m.FindCoordinatorResponse(coordinators, 6)


# --- InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn --------------------------------


@versions(m.ApiKey.INIT_PRODUCER_ID)
def test_init_producer_id(version: int) -> None:
    body = m.InitProducerIdRequest("x", 60_000, 11, 4)
    read = sent(body, version)
    assert (read.transactional_id, read.transaction_timeout_ms) == ("x", 60_000)
    if version >= 3:
        assert (read.producer_id, read.producer_epoch) == (11, 4)
    answer = received(
        body, version, throttle_time_ms=6, error_code=51, producer_id=12, producer_epoch=5
    )
    assert answer == m.InitProducerIdResponse(51, 12, 5, 6)


def test_init_producer_id_without_transactions() -> None:
    assert sent(m.InitProducerIdRequest(None, 60_000), 5).transactional_id is None


@versions(m.ApiKey.ADD_PARTITIONS_TO_TXN)
def test_add_partitions_to_txn(version: int) -> None:
    body = m.AddPartitionsToTxnRequest("x", 11, 4, (T0, U0, T1))
    read = sent(body, version)
    assert read.v3_and_below_transactional_id == "x"
    assert (read.v3_and_below_producer_id, read.v3_and_below_producer_epoch) == (11, 4)
    topics = {topic.name: topic.partitions for topic in read.v3_and_below_topics}
    assert topics == {"t": [0, 1], "u": [0]}
    topic_type = kp.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    result = topic_type.AddPartitionsToTxnPartitionResult
    answer = received(
        body,
        version,
        throttle_time_ms=6,
        results_by_topic_v3_and_below=[
            topic_type(
                name="t",
                results_by_partition=[
                    result(partition_index=0, partition_error_code=0),
                    result(partition_index=1, partition_error_code=51),
                ],
            )
        ],
    )
    results = (m.PartitionErrorCode(T0, 0), m.PartitionErrorCode(T1, 51))
    assert answer == m.AddPartitionsToTxnResponse(results, 6)


@versions(m.ApiKey.ADD_OFFSETS_TO_TXN)
def test_add_offsets_to_txn(version: int) -> None:
    body = m.AddOffsetsToTxnRequest("x", 11, 4, "g")
    read = sent(body, version)
    assert (read.transactional_id, read.group_id) == ("x", "g")
    assert (read.producer_id, read.producer_epoch) == (11, 4)
    answer = received(body, version, throttle_time_ms=6, error_code=16)
    assert answer == m.AddOffsetsToTxnResponse(16, 6)


@versions(m.ApiKey.END_TXN)
@pytest.mark.parametrize("is_commit", [True, False])
def test_end_txn(version: int, is_commit: bool) -> None:
    body = m.EndTxnRequest("x", 11, 4, is_commit)
    read = sent(body, version)
    assert (read.transactional_id, read.producer_id, read.producer_epoch) == ("x", 11, 4)
    assert read.committed is is_commit
    answer = received(
        body, version, throttle_time_ms=6, error_code=0, producer_id=11, producer_epoch=5
    )
    identity = (11, 5) if version >= 5 else (-1, -1)
    assert answer == m.EndTxnResponse(0, *identity, 6)


# --- TxnOffsetCommit ----------------------------------------------------------------------------


@versions(m.ApiKey.TXN_OFFSET_COMMIT)
def test_txn_offset_commit(version: int) -> None:
    offsets = (
        (T0, OffsetAndMetadata(5, "note", 2)),
        (U0, OffsetAndMetadata(6)),
        (T1, OffsetAndMetadata(7)),
    )
    body = m.TxnOffsetCommitRequest("x", "g", 11, 4, offsets, 3, "member", "instance")
    read = sent(body, version)
    assert (read.transactional_id, read.group_id) == ("x", "g")
    assert (read.producer_id, read.producer_epoch) == (11, 4)
    if version >= 3:
        assert (read.generation_id, read.member_id) == (3, "member")
        assert read.group_instance_id == "instance"
    committed = {
        (topic.name, part.partition_index): (part.committed_offset, part.committed_metadata)
        for topic in read.topics
        for part in topic.partitions
    }
    assert committed == {("t", 0): (5, "note"), ("t", 1): (7, ""), ("u", 0): (6, "")}
    if version >= 2:
        assert read.topics[0].partitions[0].committed_leader_epoch == 2
    topic_type = kp.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
    part_type = topic_type.TxnOffsetCommitResponsePartition
    answer = received(
        body,
        version,
        throttle_time_ms=6,
        topics=[topic_type(name="t", partitions=[part_type(partition_index=1, error_code=22)])],
    )
    assert answer == m.TxnOffsetCommitResponse((m.PartitionErrorCode(T1, 22),), 6)


# --- DescribeTransactions -----------------------------------------------------------------------


def test_describe_transactions() -> None:
    body = m.DescribeTransactionsRequest(("x", "y"))
    assert sent(body, 0).transactional_ids == ["x", "y"]
    state_type = kp.DescribeTransactionsResponse.TransactionState
    state = state_type(
        error_code=0,
        transactional_id="x",
        transaction_state="Ongoing",
        transaction_timeout_ms=60_000,
        transaction_start_time_ms=123,
        producer_id=11,
        producer_epoch=4,
        topics=[state_type.TopicData(topic="t", partitions=[0, 1])],
    )
    answer = received(body, 0, throttle_time_ms=6, transaction_states=[state])
    described = m.TransactionDescription(0, "x", "Ongoing", 11, 4, 60_000, 123, (T0, T1))
    assert answer == m.DescribeTransactionsResponse((described,), 6)


# --- Produce ------------------------------------------------------------------------------------

PRODUCE = m.ProduceRequest(
    "x",
    -1,
    30_000,
    (
        m.ProducePartition(T0, b"batch 0", TOPIC_ID),
        m.ProducePartition(T1, bytearray(b"batch 1"), TOPIC_ID),
    ),
)


@versions(m.ApiKey.PRODUCE)
def test_produce(version: int) -> None:
    read = sent(PRODUCE, version)
    assert (read.transactional_id, read.acks, read.timeout_ms) == ("x", -1, 30_000)
    (topic,) = read.topic_data
    if version >= 13:
        assert topic.topic_id == uuid.UUID(bytes=TOPIC_ID)
    else:
        assert topic.name == "t"
    batches = {part.index: bytes(part.records) for part in topic.partition_data}
    assert batches == {0: b"batch 0", 1: b"batch 1"}


def test_an_old_produce_takes_batches_of_any_buffer_type() -> None:
    for records in (b"batch", bytearray(b"batch"), memoryview(b"batch")):
        body = m.ProduceRequest("x", -1, 1, (m.ProducePartition(T0, records),))
        (part,) = sent(body, 8).topic_data[0].partition_data
        assert bytes(part.records) == b"batch"


@versions(m.ApiKey.PRODUCE)
def test_the_answer_to_produce_with_all_that_can_be_in_it(version: int) -> None:
    topic_type = kp.ProduceResponse.TopicProduceResponse
    part_type = topic_type.PartitionProduceResponse
    good = part_type(
        index=0, error_code=0, base_offset=17, log_append_time_ms=99, log_start_offset=5
    )
    record_error = part_type.BatchIndexAndErrorMessage(
        batch_index=2, batch_index_error_message="bad"
    )
    bad = part_type(
        index=1,
        error_code=6,
        base_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=-1,
        record_errors=[record_error],
        error_message="moved",
        current_leader=part_type.LeaderIdAndEpoch(leader_id=2, leader_epoch=9),
    )
    endpoint = kp.ProduceResponse.NodeEndpoint(node_id=2, host="h", port=9, rack="r")
    topic = topic_type(
        name="t", topic_id=uuid.UUID(bytes=TOPIC_ID), partition_responses=[good, bad]
    )
    read = received(
        PRODUCE, version, responses=[topic], throttle_time_ms=6, node_endpoints=[endpoint]
    )
    assert isinstance(read, m.ProduceResponse)
    start = 5 if version >= 5 else -1
    leader = m.LeaderIdAndEpoch(2, 9) if version >= 10 else None
    errors, message = ((m.RecordError(2, "bad"),), "moved") if version >= 8 else ((), None)
    assert read.partitions == (
        m.ProducePartitionResponse(T0, 0, 17, 99, start),
        m.ProducePartitionResponse(T1, 6, -1, -1, -1, errors, message, leader),
    )
    assert read.nodes == ((m.BrokerNode(2, "h", 9, "r"),) if version >= 10 else ())
    assert read.throttle_time_ms == 6


def test_a_leader_that_is_not_known_is_no_leader() -> None:
    topic_type = kp.ProduceResponse.TopicProduceResponse
    part_type = topic_type.PartitionProduceResponse
    moved = part_type(
        index=0,
        error_code=6,
        base_offset=-1,
        current_leader=part_type.LeaderIdAndEpoch(leader_id=-1, leader_epoch=-1),
    )
    read = received(PRODUCE, 12, responses=[topic_type(name="t", partition_responses=[moved])])
    assert isinstance(read, m.ProduceResponse)
    assert read.partitions[0].current_leader is None


def test_tags_in_the_header_of_an_answer_are_skipped() -> None:
    topic_type = kp.ProduceResponse.TopicProduceResponse
    part = topic_type.PartitionProduceResponse(index=0, error_code=0, base_offset=17)
    answer = kp.ProduceResponse(
        version=12, responses=[topic_type(name="t", partition_responses=[part])]
    )
    answer.with_header(correlation_id=42)
    plain = bytes(answer.encode(header=True))
    tagged = plain[:4] + b"\x01\x09\x02hi" + plain[5:]
    assert CODEC.decode(PRODUCE, 12, memoryview(tagged)) == CODEC.decode(
        PRODUCE, 12, memoryview(plain)
    )


# --- damaged answers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "version"),
    [
        (m.MetadataRequest(("t",)), 12),
        (LOOK_UP, 6),
        (m.EndTxnRequest("x", 1, 0, True), 5),
        (PRODUCE, 13),
        (PRODUCE, 7),
    ],
)
def test_damaged_bytes_are_an_error_of_the_connection(body: m.Request, version: int) -> None:
    with pytest.raises(ResponseDecodeError, match="cannot decode"):
        CODEC.decode(body, version, memoryview(b"\0\0\0\x2a\0\xff\xff"))


@pytest.mark.conformance("6.16")
def test_a_topic_id_that_was_not_requested_is_an_error_of_the_connection() -> None:
    topic_type = kp.ProduceResponse.TopicProduceResponse
    part = topic_type.PartitionProduceResponse(index=0, error_code=0, base_offset=1)
    stranger = topic_type(topic_id=uuid.UUID(int=99), partition_responses=[part])
    with pytest.raises(ResponseDecodeError):
        received(PRODUCE, 13, responses=[stranger])
