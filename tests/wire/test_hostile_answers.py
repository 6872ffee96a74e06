"""Answers of a broken or hostile broker: each costs its connection, and nothing else.

The bytes are made from kafka-python's encoding of a good answer, and then damaged by hand.
"""

from __future__ import annotations

import struct
import uuid
from typing import Any

import pytest

from tests.wire import answers
from txnproducer._protocol import messages as m
from txnproducer._wire import kafka_python as kp
from txnproducer._wire.codec import ResponseDecodeError, WireCodec
from txnproducer._wire.version_choice import CLIENT_VERSIONS
from txnproducer.records import OffsetAndMetadata, TopicPartition

CODEC = WireCodec("me")
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
TOPIC_ID = uuid.UUID(int=7)
METADATA = m.MetadataRequest(("t",))
PRODUCE = m.ProduceRequest(
    "x", -1, 1000, (m.ProducePartition(T0, b"", TOPIC_ID.bytes), m.ProducePartition(T1, b""))
)
LOOK_UP = m.FindCoordinatorRequest("x", m.CoordinatorType.TRANSACTION)
INIT = m.InitProducerIdRequest("x", 60_000)
END = m.EndTxnRequest("x", 1, 1, True, True)
ASK = m.DescribeTransactionsRequest(("x",))
ADD = m.AddPartitionsToTxnRequest("x", 1, 1, (T0,))
OFFSETS = m.TxnOffsetCommitRequest("x", "g", 1, 1, ((T0, OffsetAndMetadata(5)),))

Topic = kp.MetadataResponse.MetadataResponseTopic
Broker = kp.MetadataResponse.MetadataResponseBroker
ProducedTopic = kp.ProduceResponse.TopicProduceResponse
Produced = ProducedTopic.PartitionProduceResponse


def partition(index: int, leader_id: int = 2, leader_epoch: int = 3) -> Any:
    return Topic.MetadataResponsePartition(
        error_code=0,
        partition_index=index,
        leader_id=leader_id,
        leader_epoch=leader_epoch,
        replica_nodes=[2],
        isr_nodes=[2],
        offline_replicas=[],
    )


def topic(*partitions: Any, name: str = "t") -> Any:
    return Topic(
        error_code=0, name=name, topic_id=TOPIC_ID, is_internal=False, partitions=partitions
    )


def broker(node_id: int = 2, host: str | None = "h", port: int = 9) -> Any:
    return Broker(node_id=node_id, host=host, port=port, rack=None)


def metadata(*topics: Any, brokers: Any = None, version: int = 12) -> bytes:
    answer = kp.MetadataResponse(
        version=version,
        throttle_time_ms=0,
        brokers=[broker()] if brokers is None else brokers,
        cluster_id="c",
        controller_id=2,
        topics=topics,
    )
    return answers.payload(answer, 42)


def produced(*topics: Any, version: int = 12, nodes: Any = ()) -> bytes:
    answer = kp.ProduceResponse(
        version=version, responses=topics, throttle_time_ms=0, node_endpoints=list(nodes)
    )
    return answers.payload(answer, 42)


def written(index: int, error_code: int = 0, **fields: Any) -> Any:
    return Produced(index=index, error_code=error_code, base_offset=1, **fields)


def decode(body: m.Request, version: int, payload: bytes) -> m.Response:
    return CODEC.decode(body, version, memoryview(payload))


def refuse(body: m.Request, version: int, payload: bytes, why: str = "cannot decode") -> None:
    with pytest.raises(ResponseDecodeError, match=why):
        decode(body, version, payload)


# --- Metadata -----------------------------------------------------------------------------------


def test_a_partition_number_near_the_largest_is_refused_before_a_table_is_made() -> None:
    refuse(METADATA, 12, metadata(topic(partition(2**31 - 1))), "left out")


def test_a_few_missing_partitions_are_no_reason_to_refuse() -> None:
    read = decode(METADATA, 12, metadata(topic(partition(0), partition(7))))
    assert isinstance(read, m.MetadataResponse)
    assert [part.partition for part in read.topics[0].partitions] == [0, 7]


def test_gaps_are_counted_over_all_topics() -> None:
    names = [f"t{number}" for number in range(3)]
    payload = metadata(*(topic(partition(40_000), name=name) for name in names))
    refuse(m.MetadataRequest(tuple(names)), 12, payload, "120000 partitions are left out")


@pytest.mark.parametrize("index", [-1, -(2**31)])
def test_a_negative_partition_number_overwrites_no_other_partitions_leader(index: int) -> None:
    refuse(METADATA, 12, metadata(topic(partition(0), partition(index))), f"partition {index}")


@pytest.mark.parametrize("leader", [{"leader_id": -2}, {"leader_epoch": -2}])
def test_a_leader_below_none_is_refused(leader: dict[str, int]) -> None:
    # -2 is the second bootstrap address.
    refuse(METADATA, 12, metadata(topic(partition(0, **leader))), "leader")


def test_the_same_key_twice_is_refused() -> None:
    refuse(METADATA, 12, metadata(topic(partition(0), partition(0))), "twice")
    refuse(METADATA, 12, metadata(topic(partition(0)), topic(partition(0))), "twice")
    refuse(METADATA, 12, metadata(brokers=[broker(2), broker(2)]), "twice")


def test_more_brokers_than_a_cluster_has_are_refused() -> None:
    def brokers(count: int) -> bytes:
        return metadata(brokers=[broker(number) for number in range(count)])

    assert isinstance(decode(METADATA, 12, brokers(10_000)), m.MetadataResponse)
    refuse(METADATA, 12, brokers(10_001), "10001 brokers")


def test_topics_that_were_not_asked_for_are_passed_over() -> None:
    payload = metadata(topic(partition(0)), topic(partition(0), name="u"))
    read = decode(METADATA, 12, payload)
    assert isinstance(read, m.MetadataResponse)
    assert [one.topic for one in read.topics] == ["t"]


@pytest.mark.parametrize(
    "bad",
    [
        {"node_id": -1},  # the first bootstrap address
        {"host": ""},  # a look-up of which finds the own machine
        {"port": 0},
        {"port": -1},
        {"port": 65_536},
    ],
    ids=str,
)
@pytest.mark.parametrize("told_by", ["metadata", "coordinator", "produce"])
def test_an_address_that_cannot_be_connected_to_is_refused(
    bad: dict[str, Any], told_by: str
) -> None:
    fields: dict[str, Any] = {"node_id": 2, "host": "h", "port": 9} | bad
    if told_by == "metadata":
        refuse(METADATA, 12, metadata(brokers=[broker(**fields)]), "address")
    elif told_by == "coordinator":
        refuse(LOOK_UP, 6, coordinators(found(**fields)), "address")
    else:
        endpoint = kp.ProduceResponse.NodeEndpoint(rack=None, **fields)
        moved = ProducedTopic(name="t", partition_responses=[written(0, 6)])
        refuse(PRODUCE, 12, produced(moved, nodes=[endpoint]), "address")


@pytest.mark.parametrize("version", [8, 12])
def test_a_null_host_is_refused(version: int) -> None:
    good = metadata(brokers=[broker(host="hhhh")], version=version)
    text, null = (b"\x05hhhh", b"\0") if version == 12 else (b"\0\4hhhh", b"\xff\xff")
    assert good.count(text) == 1
    refuse(METADATA, version, good.replace(text, null), "Host has the length -1")


def test_a_negative_length_is_no_other_way_to_write_null() -> None:
    good = metadata(version=8)
    assert good.count(b"\0\1c") == 1
    decode(METADATA, 8, good.replace(b"\0\1c", b"\xff\xff"))
    refuse(METADATA, 8, good.replace(b"\0\1c", b"\xff\xfe"), "ClusterId has the length -2")


# --- the others ---------------------------------------------------------------------------------


def found(key: str = "x", error_code: int = 0, **address: Any) -> Any:
    fields = {"node_id": 2, "host": "h", "port": 9} | address
    return kp.FindCoordinatorResponse.Coordinator(
        key=key, error_code=error_code, error_message=None, **fields
    )


def coordinators(*entries: Any) -> bytes:
    return answers.payload(
        kp.FindCoordinatorResponse(version=6, throttle_time_ms=0, coordinators=entries), 42
    )


def test_a_coordinator_of_another_key_or_more_than_one_is_refused() -> None:
    refuse(LOOK_UP, 6, coordinators(found("y")), "in place of")
    refuse(LOOK_UP, 6, coordinators(found(), found("y")), "in place of")
    refuse(LOOK_UP, 6, coordinators(), "in place of")


def test_a_coordinator_that_is_not_known_yet_has_no_address() -> None:
    read = decode(LOOK_UP, 6, coordinators(found(error_code=15, node_id=-1, host="", port=-1)))
    assert isinstance(read, m.FindCoordinatorResponse)


@pytest.mark.parametrize("identity", [(-1, 0), (5, -1), (-7, -7)])
def test_a_success_without_an_identity_is_refused(identity: tuple[int, int]) -> None:
    fields = {"throttle_time_ms": 0, "producer_id": identity[0], "producer_epoch": identity[1]}
    made = kp.InitProducerIdResponse(version=5, error_code=0, **fields)
    refuse(INIT, 5, answers.payload(made, 42), "producer id")
    refused = kp.InitProducerIdResponse(version=5, error_code=51, **fields)
    decode(INIT, 5, answers.payload(refused, 42))
    if identity[0] != -1:
        ended = kp.EndTxnResponse(version=5, error_code=0, **fields)
        refuse(END, 5, answers.payload(ended, 42), "producer id")


@pytest.mark.parametrize("version", [8, 12, 13])
def test_an_answer_to_produce_names_no_other_partition_and_none_twice(version: int) -> None:
    body = PRODUCE
    if version == 13:
        parts = (m.ProducePartition(where, b"", TOPIC_ID.bytes) for where in (T0, T1))
        body = m.ProduceRequest("x", -1, 1000, tuple(parts))

    def one(*partitions: Any, name: str = "t") -> Any:
        return ProducedTopic(name=name, topic_id=TOPIC_ID, partition_responses=partitions)

    decode(body, version, produced(one(written(1), written(0)), version=version))
    for bad in (one(written(2)), one(written(-1)), one(written(0), written(0))):
        refuse(body, version, produced(bad, version=version), "not asked about")
    if version < 13:
        refuse(body, version, produced(one(written(0), name="u"), version=version))


def test_transactions_and_partitions_that_were_not_asked_about_are_refused() -> None:
    state_type = kp.DescribeTransactionsResponse.TransactionState
    fields = dict.fromkeys(("error_code", "producer_id", "producer_epoch"), 0)
    fields |= dict.fromkeys(("transaction_timeout_ms", "transaction_start_time_ms"), 0)
    state = state_type(transactional_id="y", transaction_state="Ongoing", topics=[], **fields)
    told = kp.DescribeTransactionsResponse(
        version=0, throttle_time_ms=0, transaction_states=[state]
    )
    refuse(ASK, 0, answers.payload(told, 42), "not asked about")

    topic_type = kp.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    result = topic_type.AddPartitionsToTxnPartitionResult(
        partition_index=0, partition_error_code=0
    )
    added = kp.AddPartitionsToTxnResponse(
        version=3,
        throttle_time_ms=0,
        results_by_topic_v3_and_below=[topic_type(name="u", results_by_partition=[result])],
    )
    refuse(ADD, 3, answers.payload(added, 42), "not asked about")

    topic_type = kp.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
    part = topic_type.TxnOffsetCommitResponsePartition(partition_index=1, error_code=0)
    committed = kp.TxnOffsetCommitResponse(
        version=5, throttle_time_ms=0, topics=[topic_type(name="t", partitions=[part])]
    )
    refuse(OFFSETS, 5, answers.payload(committed, 42), "not asked about")


# --- by the bytes alone -------------------------------------------------------------------------

FLEXIBLE_HEAD = b"\0\0\0\x2a\0"
GOOD: dict[str, tuple[m.Request, int, bytes]] = {
    "metadata": (METADATA, 12, metadata(topic(partition(0)))),
    "metadata-8": (METADATA, 8, metadata(topic(partition(0)), version=8)),
    "produce": (PRODUCE, 12, produced(ProducedTopic(name="t", partition_responses=[written(0)]))),
    "produce-error": (
        PRODUCE,
        12,
        produced(ProducedTopic(name="t", partition_responses=[written(0, 6)])),
    ),
    "coordinator": (LOOK_UP, 6, coordinators(found())),
    "end": (END, 5, answers.end_txn(42)),
}


@pytest.mark.parametrize("name", GOOD)
def test_bytes_after_the_message_are_refused(name: str) -> None:
    body, version, payload = GOOD[name]
    decode(body, version, payload)
    refuse(body, version, payload + b"\0", "follow")


@pytest.mark.parametrize("name", GOOD)
def test_no_answer_is_read_from_a_part_of_it(name: str) -> None:
    body, version, payload = GOOD[name]
    for length in range(4, len(payload)):
        refuse(body, version, payload[:length])


@pytest.mark.parametrize(
    ("body", "version", "start"),
    [
        (METADATA, 12, FLEXIBLE_HEAD + b"\0\0\0\0"),
        (PRODUCE, 12, FLEXIBLE_HEAD),
        (LOOK_UP, 6, FLEXIBLE_HEAD + b"\0\0\0\0"),
        (ASK, 0, FLEXIBLE_HEAD + b"\0\0\0\0"),
        (OFFSETS, 5, FLEXIBLE_HEAD + b"\0\0\0\0"),
        (END, 5, FLEXIBLE_HEAD[:4]),  # the header's tags
    ],
)
def test_an_array_is_not_null_not_endless_and_not_larger_than_its_message(
    body: m.Request, version: int, start: bytes
) -> None:
    rest = b"\0" * 40
    refuse(body, version, start + b"\x00" + b"\0\0\0\0\0\0")
    refuse(body, version, start + b"\xff\xff\xff\xff\x07" + rest)
    # kafka-python read this in quadratic time: over four seconds.
    refuse(body, version, start + b"\xff" * 400_000, "more than five bytes")


def test_old_versions_have_no_null_arrays_and_no_negative_counts() -> None:
    for count in (-1, -2, 2**31 - 1):
        head = struct.pack(">iii", 42, 0, count)
        refuse(METADATA, 8, head + b"\0" * 40, "Brokers")
        refuse(PRODUCE, 8, struct.pack(">ii", 42, count) + b"\0" * 40, "Responses")


def test_tags_ascend_and_fill_their_size() -> None:
    good = answers.end_txn(42)
    assert good.endswith(b"\0")
    for tags in (
        b"\x01\x05\x02hi",  # one that nobody knows is skipped
        b"\x02\x05\x00\x06\x00",
    ):
        decode(END, 5, good[:-1] + tags)
    for tags in (
        b"\x02\x05\x00\x05\x00",
        b"\x02\x06\x00\x05\x00",
        b"\x01\x05\x03hi",
        b"\x01\x05\xff\xff\xff\xff\x0f",
        b"\xff\xff\xff\xff\x0f",
    ):
        refuse(END, 5, good[:-1] + tags)
    moved = written(0, 6, current_leader=Produced.LeaderIdAndEpoch(leader_id=2, leader_epoch=9))
    payload = produced(ProducedTopic(name="t", partition_responses=[moved]))
    decode(PRODUCE, 12, payload)
    size_at = payload.index(b"\x01\x00\x09\0\0\0\x02") + 2
    refuse(PRODUCE, 12, payload[:size_at] + b"\x0a" + payload[size_at + 1 :])


def test_every_schema_in_use_can_be_read_at_every_version() -> None:
    from txnproducer._wire.codec import _DECODERS
    from txnproducer._wire.schema_reader import _readers

    for request_type, (schema, _) in _DECODERS.items():
        low, high = CLIENT_VERSIONS[m.API_KEY_OF[request_type]]
        for version in range(low, high + 1):
            _readers(schema, version)
    for version in range(5):
        _readers(kp.ApiVersionsResponse, version)
