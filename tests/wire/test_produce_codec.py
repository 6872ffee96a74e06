"""The fast Produce codec writes the same bytes as the schemas, and leaves rare cases to them."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txnproducer._protocol import messages as m
from txnproducer._wire import kafka_python as kp
from txnproducer._wire import produce_codec
from txnproducer._wire.codec import _produce, frame
from txnproducer._wire.produce_codec import ProduceEncoder, decode_produce
from txnproducer.records import TopicPartition

IDS = {name: uuid.uuid5(uuid.NAMESPACE_DNS, name).bytes for name in ("t", "other", "ü" * 40)}
FLEXIBLE = range(9, 14)


def request(*parts: tuple[str, int, bytes], txn: str | None = "x") -> m.ProduceRequest:
    return m.ProduceRequest(
        txn,
        -1,
        30_000,
        tuple(
            m.ProducePartition(TopicPartition(topic, number), records, IDS[topic])
            for topic, number, records in parts
        ),
    )


ONE = request(("t", 0, b"batch"))
parts_of_requests = st.lists(
    st.tuples(st.sampled_from(sorted(IDS)), st.integers(0, 2**31 - 1), st.binary(max_size=300)),
    max_size=8,
)


@pytest.mark.parametrize("version", FLEXIBLE)
@given(
    parts=parts_of_requests,
    txn=st.none() | st.text(max_size=200),
    acks=st.sampled_from([-1, 1]),
    timeout_ms=st.integers(0, 2**31 - 1),
    correlation_id=st.integers(0, 2**31 - 1),
    client_id=st.text(max_size=20),
)
@settings(max_examples=60, deadline=None)
def test_a_request_has_the_bytes_of_the_schemas(
    version, parts, txn, acks, timeout_ms, correlation_id, client_id
) -> None:
    body = m.ProduceRequest(txn, acks, timeout_ms, request(*parts).partitions)
    ours = b"".join(ProduceEncoder(client_id).encode(body, version, correlation_id))
    assert ours == frame(_produce(body, version), correlation_id, client_id)


@pytest.mark.parametrize("version", FLEXIBLE)
def test_one_encoder_keeps_requests_for_one_partition_apart(version: int) -> None:
    (part,) = ONE.partitions
    again = m.ProducePartition(part.topic_partition, b"later", IDS["other"])
    bodies = [
        ONE,
        request(("t", 1, b"batch")),
        request(("other", 0, b"batch")),
        request(("t", 0, b"batch"), txn=None),
        request(("t", 0, b"batch"), txn="y"),
        m.ProduceRequest("x", 1, 30_000, ONE.partitions),
        m.ProduceRequest("x", -1, 1_000, ONE.partitions),
        m.ProduceRequest("x", -1, 30_000, (again,)),  # the topic was made again
    ]
    encoder = ProduceEncoder("me")
    for body in (*bodies, *bodies):
        for each in {version, 9, 13}:
            ours = b"".join(encoder.encode(body, each, 1))
            assert ours == frame(_produce(body, each), 1, "me")


@pytest.mark.parametrize("size", [126, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_sizes_around_the_steps_of_variable_length_integers(size: int) -> None:
    body = request(("t", 0, bytes(size)), ("t", 1, b""))
    ours = b"".join(ProduceEncoder("me").encode(body, 12, 1))
    assert ours == frame(_produce(body, 12), 1, "me")


def test_batches_are_referenced_and_not_copied() -> None:
    records = bytearray(b"a batch")
    body = request(("t", 0, records))  # type: ignore[arg-type]
    assert any(part is records for part in ProduceEncoder("me").encode(body, 12, 1))


def test_the_cache_of_constants_does_not_mix_requests_up() -> None:
    encoder = ProduceEncoder("me")
    for txn in ("one", None, "two", "one"):
        body = request(("t", 0, b"batch"), txn=txn)
        assert b"".join(encoder.encode(body, 11, 5)) == frame(_produce(body, 11), 5, "me")


# --- answers ------------------------------------------------------------------------------------


def answer(version: int, *topics: tuple[str, list[dict[str, object]]], **fields: object) -> bytes:
    topic_type = kp.ProduceResponse.TopicProduceResponse
    partition_type = topic_type.PartitionProduceResponse
    response = kp.ProduceResponse(
        version=version,
        responses=[
            topic_type(
                name=name,
                topic_id=uuid.UUID(bytes=IDS[name]),
                partition_responses=[partition_type(**partition) for partition in partitions],
            )
            for name, partitions in topics
        ],
        **fields,
    )
    response.with_header(correlation_id=1)
    return bytes(response.encode(header=True))


PLAIN: dict[str, object] = {
    "index": 3,
    "error_code": 0,
    "base_offset": 17,
    "log_append_time_ms": -1,
    "log_start_offset": 5,
    "record_errors": [],
    "error_message": None,
}


@pytest.mark.parametrize("version", FLEXIBLE)
def test_a_plain_success_is_read_without_the_schemas(version: int) -> None:
    payload = answer(
        version,
        ("t", [PLAIN, PLAIN | {"index": 4, "log_append_time_ms": 99}]),
        ("ü" * 40, [PLAIN]),
        throttle_time_ms=8,
    )
    body = request(("t", 3, b""), ("t", 4, b""), ("ü" * 40, 3, b""))
    assert decode_produce(body, version, memoryview(payload)) == m.ProduceResponse(
        (
            m.ProducePartitionResponse(TopicPartition("t", 3), 0, 17, -1, 5),
            m.ProducePartitionResponse(TopicPartition("t", 4), 0, 17, 99, 5),
            m.ProducePartitionResponse(TopicPartition("ü" * 40, 3), 0, 17, -1, 5),
        ),
        (),
        8,
    )


ERROR = kp.ProduceResponse.TopicProduceResponse.PartitionProduceResponse.BatchIndexAndErrorMessage
LEADER = kp.ProduceResponse.TopicProduceResponse.PartitionProduceResponse.LeaderIdAndEpoch


@pytest.mark.parametrize(
    "unusual",
    [
        {"error_code": 6},
        {"error_message": "no"},
        {"record_errors": [ERROR(batch_index=1, batch_index_error_message="bad")]},
        {"current_leader": LEADER(leader_id=2, leader_epoch=9)},
    ],
    ids=["error", "message", "record-error", "new-leader"],
)
def test_anything_unusual_is_left_to_the_schemas(unusual: dict[str, object]) -> None:
    payload = answer(12, ("t", [PLAIN, PLAIN | unusual]))
    assert decode_produce(ONE, 12, memoryview(payload)) is None


def test_endpoints_of_new_leaders_are_left_to_the_schemas() -> None:
    endpoint = kp.ProduceResponse.NodeEndpoint(node_id=2, host="h", port=1, rack=None)
    payload = answer(12, ("t", [PLAIN]), node_endpoints=[endpoint])
    assert decode_produce(ONE, 12, memoryview(payload)) is None


def test_a_topic_id_that_was_not_asked_for_is_left_to_the_schemas() -> None:
    payload = answer(13, ("other", [PLAIN]))
    assert decode_produce(ONE, 13, memoryview(payload)) is None


def test_an_answer_for_one_partition_is_read_as_any_other(monkeypatch) -> None:
    """It has a way of its own from version 13 on. No damaged byte may show a difference."""
    body = request(("t", 3, b""))
    payload = answer(13, ("t", [PLAIN | {"log_append_time_ms": 99}]), throttle_time_ms=8)
    damaged = [
        payload[:at] + bytes([byte]) + payload[at + 1 :]
        for at in range(len(payload))
        for byte in (0, 1, 2, 3, 0x7F, 0x80, 0xFF)
    ]
    read = [decode_produce(body, 13, memoryview(each)) for each in damaged]
    assert (
        m.ProduceResponse(
            (m.ProducePartitionResponse(TopicPartition("t", 3), 0, 17, 99, 5),), (), 8
        )
        in read
    )
    monkeypatch.setattr(produce_codec, "_decode_one", lambda *_: None)
    assert read == [decode_produce(body, 13, memoryview(each)) for each in damaged]


@pytest.mark.parametrize("version", [12, 13])
def test_cut_or_padded_bytes_are_never_taken_for_an_answer(version: int) -> None:
    payload = answer(version, ("t", [PLAIN]))
    assert decode_produce(ONE, version, memoryview(payload)) is not None
    for length in range(len(payload)):
        assert decode_produce(ONE, version, memoryview(payload[:length])) is None
    assert decode_produce(ONE, version, memoryview(payload + b"\0")) is None


@given(noise=st.binary(max_size=200))
def test_noise_never_escapes_as_an_error(noise: bytes) -> None:
    decode_produce(ONE, 12, memoryview(b"\0\0\0\1\0" + noise))
