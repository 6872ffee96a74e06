"""Answers of the largest size: impossible counts are refused before anything is decoded.

Each of 16 MiB holds as many of the smallest elements as fit. Decoding them took seconds of the I/O
thread and hundreds of megabytes. The test counts calls and bytes, not seconds.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from struct import pack
from typing import Any

import pytest

from tests.wire import answers
from txnproducer._protocol import messages as m
from txnproducer._wire import kafka_python as kp
from txnproducer._wire.answer_checks import most_elements
from txnproducer._wire.codec import ResponseDecodeError, WireCodec
from txnproducer._wire.compact import put_uvarint
from txnproducer._wire.connection import _MAX_LARGE_ANSWER_BYTES
from txnproducer._wire.schema_reader import MOST_ELEMENTS, read_answer
from txnproducer.records import OffsetAndMetadata, TopicPartition

T0 = TopicPartition("t", 0)
METADATA = m.MetadataRequest(("t",))
ASK = m.DescribeTransactionsRequest(("x",))

HEAD = b"\0\0\0\x2a\0"
ZERO = bytes(4)
BROKER = pack(">i", 5) + b"\x02h" + pack(">i", 9) + b"\0\0"
TOPIC = pack(">h", 0) + b"\x02t" + bytes(16) + b"\0"  # up to its partitions
PARTITION = pack(">hiii", 0, 0, 5, 1) + b"\x01\x01\x01\0"
PRODUCED = pack(">ihqqq", 0, 0, 1, -1, 0)  # up to its record errors
STATE = pack(">h", 0) + b"\x02x\x02E" + pack(">iqqh", 1, 1, 1, 1)  # up to its topics


def uvarint(value: int) -> bytes:
    out = bytearray()
    put_uvarint(out, value)
    return bytes(out)


ONE = uvarint(2)  # the count of an array with one element
CLUSTER = HEAD + ZERO + ONE + BROKER + b"\x02c" + ZERO


def produce(*record_counts: int) -> m.ProduceRequest:
    batches = (bytes(57) + pack(">i", count) for count in record_counts)
    partitions = (
        m.ProducePartition(TopicPartition("t", number), batch)
        for number, batch in enumerate(batches)
    )
    return m.ProduceRequest("x", -1, 1000, tuple(partitions))


def filled(before: bytes, element: bytes, after: bytes) -> bytes:
    """Return an answer with as many elements as fit."""
    count = (_MAX_LARGE_ANSWER_BYTES - len(before) - len(after) - 5) // len(element)
    return before + uvarint(count + 1) + element * count + after


def with_tags(before: bytes) -> bytes:
    tags = b"".join(uvarint(tag) + b"\0" for tag in range(100, 100_100))
    return before + uvarint(100_000) + tags


LARGE: dict[str, tuple[m.Request, int, Callable[[], bytes]]] = {
    "record errors": (
        produce(3),
        12,
        lambda: filled(HEAD + ONE + b"\x02t" + ONE + PRODUCED, bytes(6), bytes(8)),
    ),
    "partitions of Produce": (
        produce(3),
        12,
        lambda: filled(HEAD + ONE + b"\x02t", PRODUCED + b"\x01\0\0", bytes(6)),
    ),
    "topics of Produce": (produce(3), 12, lambda: filled(HEAD, b"\x01\x01\0", bytes(5))),
    "brokers": (
        METADATA,
        12,
        lambda: filled(HEAD + ZERO, BROKER, b"\x02c" + ZERO + b"\x01\0"),
    ),
    "topics": (METADATA, 12, lambda: filled(CLUSTER, TOPIC + b"\x01" + bytes(5), b"\0")),
    "partitions": (METADATA, 12, lambda: filled(CLUSTER + ONE + TOPIC, PARTITION, bytes(6))),
    "transactions": (ASK, 0, lambda: filled(HEAD + ZERO, STATE + b"\x01\0", b"\0")),
    "a transaction's topics": (
        ASK,
        0,
        lambda: filled(HEAD + ZERO + ONE + STATE, b"\x01\x01\0", bytes(2)),
    ),
    "a transaction's partitions": (
        ASK,
        0,
        lambda: filled(HEAD + ZERO + ONE + STATE + ONE + b"\x02t", ZERO, bytes(3)),
    ),
    "tags": (produce(3), 12, lambda: with_tags(HEAD + b"\x01" + ZERO)),
    "tags of the header": (produce(3), 12, lambda: with_tags(HEAD[:4])),
}


@pytest.mark.parametrize("name", LARGE)
def test_impossible_counts_in_an_answer_are_refused_before_it_is_decoded(name: str) -> None:
    body, version, make = LARGE[name]
    payload = memoryview(make())
    assert len(payload) <= _MAX_LARGE_ANSWER_BYTES
    codec = WireCodec("me")
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1
        assert calls < 20_000, "each element is decoded"

    tracemalloc.start()
    sys.setprofile(count)
    try:
        with pytest.raises(ResponseDecodeError, match=r"are accepted|more than 250000 partitions"):
            codec.decode(body, version, payload)
    finally:
        sys.setprofile(None)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    # Integers of an array are read at once, as a whole and once more.
    most_bytes = 2.5 * len(payload) if name == "a transaction's partitions" else 1_000_000
    assert peak_bytes < most_bytes


def test_a_reason_for_each_record_is_read() -> None:
    count = MOST_ELEMENTS + 5_000
    payload = (
        HEAD + ONE + b"\x02t" + ONE + PRODUCED + uvarint(count + 1) + bytes(6) * count + bytes(8)
    )
    answer = WireCodec("me").decode(produce(count), 12, memoryview(payload))
    assert isinstance(answer, m.ProduceResponse)
    assert len(answer.partitions[0].record_errors) == count


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        (m.EndTxnRequest("x", 1, 1, True), 0),
        (produce(3, 4), 2 * 2 + 3 + 4),
        (m.AddPartitionsToTxnRequest("x", 1, 1, (T0,)), 2),
        (m.TxnOffsetCommitRequest("x", "g", 1, 1, ((T0, OffsetAndMetadata(5)),)), 2),
        (METADATA, 250_000),
        (ASK, 250_000),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_answer_has_no_more_elements_than_were_asked_about_and_brokers(
    body: m.Request, asked: int
) -> None:
    assert most_elements(body) == 10_000 + asked


def test_elements_are_counted_over_the_whole_answer() -> None:
    answer = kp.ProduceResponse.TopicProduceResponse
    part = answer.PartitionProduceResponse
    topics = [
        answer(name=name, partition_responses=[part(index=0, error_code=0, base_offset=1)])
        for name in "ab"
    ]
    payload = answers.payload(
        kp.ProduceResponse(version=12, responses=topics, throttle_time_ms=0), 42
    )
    assert len(read_answer(kp.ProduceResponse, 12, memoryview(payload), 4).responses) == 2
    with pytest.raises(ValueError, match="PartitionResponses: 1 are announced where 0 are"):
        read_answer(kp.ProduceResponse, 12, memoryview(payload), 3)
