"""Good answers of every API at every version in use, with their requests, to be damaged."""

from __future__ import annotations

import base64
import itertools
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tests.wire import answers
from txnproducer._protocol import messages as m
from txnproducer._wire import kafka_python as kp
from txnproducer._wire.codec import WireCodec
from txnproducer._wire.handshake import SaslLogin, exchange_api_versions, exchange_login
from txnproducer._wire.version_choice import CLIENT_VERSIONS
from txnproducer.records import OffsetAndMetadata, TopicPartition

NUMBER = 42  # every answer's correlation id
TOPIC_ID = uuid.UUID(int=7)
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
_USER = {"sasl_plain_username": "alice", "sasl_plain_password": "secret"}
_CODEC = WireCodec("me")


class Sample(NamedTuple):
    """A good answer.

    Attributes:
        name: of the API, and the version.
        payload: the answer.
        read: reads an answer to the same question.
        body: the question; None for those of a connection's handshake.
        version: the version that it was asked at.
    """

    name: str
    payload: bytes
    read: Callable[[bytes], Any]
    body: m.Request | None = None
    version: int = 0


def samples() -> tuple[Sample, ...]:
    """Return all of them. Each can be read."""
    made = (*_of_requests(), *_of_handshakes())
    for sample in made:
        sample.read(sample.payload)
    return made


def _of_requests() -> Iterator[Sample]:
    for body, make in _ANSWERS:
        key = m.API_KEY_OF[type(body)]
        low, high = CLIENT_VERSIONS[key]
        for version in range(low, high + 1):

            def read(payload: bytes, body: m.Request = body, version: int = version) -> Any:
                return _CODEC.decode(body, version, memoryview(payload))

            payload = answers.payload(make(version), NUMBER)
            yield Sample(f"{key.name} {version}", payload, read, body, version)


def _of_handshakes() -> Iterator[Sample]:
    features = {"transaction.version": 2, "metadata.version": 25}
    for version in (0, 3, 4):
        error_code = 0 if version else 35
        payload = answers.api_versions(NUMBER, version, features, 9, error_code=error_code)
        yield Sample(f"API_VERSIONS {version}", payload, _ask_versions)
    hello = answers.sasl_handshake(NUMBER, mechanisms=("PLAIN", "SCRAM-SHA-256"))
    yield Sample("SASL_HANDSHAKE 1", hello, lambda data: _log_in("PLAIN", 2, data))
    refused = answers.sasl_handshake(NUMBER, 33, mechanisms=("GSSAPI",))
    yield Sample("SASL_HANDSHAKE 1 refused", refused, lambda data: _refused("PLAIN", 2, data))
    for version in (0, 1, 2):

        def read(payload: bytes, version: int = version) -> Any:
            return _log_in("PLAIN", version, hello, payload)

        done = answers.sasl_authenticate(NUMBER + 1, lifetime_ms=9, version=version)
        yield Sample(f"SASL_AUTHENTICATE {version}", done, read)
    scram = b"r=" + b"0" * 32 + b"server,s=" + base64.b64encode(b"salt") + b",i=4096"
    asked = answers.sasl_authenticate(NUMBER + 1, auth_bytes=scram)
    yield Sample("SCRAM", asked, lambda data: _refused("SCRAM-SHA-256", 2, hello, data))


def _ask_versions(payload: bytes) -> Any:
    exchange = exchange_api_versions("me", itertools.count(NUMBER))
    next(exchange)
    return _feed(exchange, payload)


def _log_in(mechanism: str, version: int, *payloads: bytes) -> Any:
    login = SaslLogin("me", "broker", mechanism, _USER, version)
    exchange = exchange_login(login, itertools.count(NUMBER))
    next(exchange)
    told = None
    for payload in payloads:
        told = _feed(exchange, payload)
    return told


def _refused(mechanism: str, version: int, *payloads: bytes) -> Any:
    """Read an answer that is a refusal even undamaged."""
    from txnproducer.errors import AuthenticationError

    try:
        return _log_in(mechanism, version, *payloads)
    except AuthenticationError as error:
        return error


def _feed(exchange: Any, payload: bytes) -> Any:
    try:
        return exchange.send(memoryview(payload))
    except StopIteration as end:
        return end.value


# --- the answers --------------------------------------------------------------------------------


def _metadata(version: int) -> Any:
    topic_type = kp.MetadataResponse.MetadataResponseTopic
    partitions = [
        topic_type.MetadataResponsePartition(
            error_code=0,
            partition_index=index,
            leader_id=2 + index,
            leader_epoch=5,
            replica_nodes=[2, 3],
            isr_nodes=[2],
            offline_replicas=[],
        )
        for index in (0, 1)
    ]
    topic = topic_type(
        error_code=0, name="t", topic_id=TOPIC_ID, is_internal=False, partitions=partitions
    )
    broker = kp.MetadataResponse.MetadataResponseBroker
    return kp.MetadataResponse(
        version=version,
        throttle_time_ms=0,
        brokers=[broker(node_id=n, host="h", port=9, rack="r") for n in (2, 3)],
        cluster_id="c",
        controller_id=2,
        topics=[topic],
    )


def _coordinator(version: int) -> Any:
    found = {"node_id": 2, "host": "h", "port": 9, "error_code": 0, "error_message": None}
    if version >= 4:
        entry = kp.FindCoordinatorResponse.Coordinator(key="x", **found)
        return kp.FindCoordinatorResponse(
            version=version, throttle_time_ms=0, coordinators=[entry]
        )
    return kp.FindCoordinatorResponse(version=version, throttle_time_ms=0, **found)


def _identity(response: Any) -> Callable[[int], Any]:
    fields = {"throttle_time_ms": 0, "error_code": 0, "producer_id": 11, "producer_epoch": 4}
    return lambda version: response(version=version, **fields)


def _added(version: int) -> Any:
    topic_type = kp.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    result = topic_type.AddPartitionsToTxnPartitionResult
    return kp.AddPartitionsToTxnResponse(
        version=version,
        throttle_time_ms=0,
        results_by_topic_v3_and_below=[
            topic_type(
                name=name,
                results_by_partition=[
                    result(partition_index=i, partition_error_code=0) for i in partitions
                ],
            )
            for name, partitions in (("t", (0, 1)), ("u", (0,)))
        ],
    )


def _offsets(version: int) -> Any:
    topic_type = kp.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
    part_type = topic_type.TxnOffsetCommitResponsePartition
    parts = [part_type(partition_index=index, error_code=0) for index in (0, 1)]
    return kp.TxnOffsetCommitResponse(
        version=version, throttle_time_ms=0, topics=[topic_type(name="t", partitions=parts)]
    )


def _described(version: int) -> Any:
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
    return kp.DescribeTransactionsResponse(
        version=version, throttle_time_ms=0, transaction_states=[state]
    )


def _produced(error_code: int) -> Callable[[int], Any]:
    topic_type = kp.ProduceResponse.TopicProduceResponse
    part_type = topic_type.PartitionProduceResponse
    more: dict[str, Any] = {}
    nodes = []
    if error_code:
        bad = part_type.BatchIndexAndErrorMessage(batch_index=0, batch_index_error_message="bad")
        more = {"record_errors": [bad], "error_message": "moved"}
        more["current_leader"] = part_type.LeaderIdAndEpoch(leader_id=2, leader_epoch=9)
        nodes = [kp.ProduceResponse.NodeEndpoint(node_id=2, host="h", port=9, rack="r")]

    def make(version: int) -> Any:
        parts = [
            part_type(index=index, error_code=error_code, base_offset=17, **more)
            for index in (0, 1)
        ]
        topic = topic_type(name="t", topic_id=TOPIC_ID, partition_responses=parts)
        return kp.ProduceResponse(
            version=version, responses=[topic], throttle_time_ms=0, node_endpoints=nodes
        )

    return make


_PRODUCE = m.ProduceRequest(
    "x",
    -1,
    1000,
    tuple(m.ProducePartition(where, b"batch", TOPIC_ID.bytes) for where in (T0, T1)),
    True,
)
_ANSWERS: tuple[tuple[m.Request, Callable[[int], Any]], ...] = (
    (m.MetadataRequest(("t",)), _metadata),
    (m.FindCoordinatorRequest("x", m.CoordinatorType.TRANSACTION), _coordinator),
    (m.InitProducerIdRequest("x", 60_000), _identity(kp.InitProducerIdResponse)),
    (m.AddPartitionsToTxnRequest("x", 11, 4, (T0, T1, U0)), _added),
    (
        m.AddOffsetsToTxnRequest("x", 11, 4, "g"),
        lambda version: kp.AddOffsetsToTxnResponse(
            version=version, throttle_time_ms=0, error_code=0
        ),
    ),
    (
        m.TxnOffsetCommitRequest(
            "x", "g", 11, 4, ((T0, OffsetAndMetadata(5)), (T1, OffsetAndMetadata(6)))
        ),
        _offsets,
    ),
    (m.EndTxnRequest("x", 11, 4, True, True), _identity(kp.EndTxnResponse)),
    (m.DescribeTransactionsRequest(("x",)), _described),
    (_PRODUCE, _produced(0)),
    (_PRODUCE, _produced(6)),
)
