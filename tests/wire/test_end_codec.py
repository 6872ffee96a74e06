"""EndTxn and DescribeTransactions by hand: as the schemas do, and silent about the unusual."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txnproducer._protocol import messages as m
from txnproducer._wire import codec
from txnproducer._wire import kafka_python as kp
from txnproducer._wire.codec import ResponseDecodeError, WireCodec, frame
from txnproducer._wire.end_codec import EndEncoder, decode_describe, decode_end_txn
from txnproducer.records import TopicPartition

FLEXIBLE = [3, 4, 5]
END = m.EndTxnRequest("x", 1, 2, is_commit=True)
ASK = m.DescribeTransactionsRequest(("x",))

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
names = st.text(max_size=200)
descriptions = st.builds(
    m.TransactionDescription,
    error_code=int16,
    transactional_id=names,
    state=names,
    producer_id=int64,
    producer_epoch=int16,
    timeout_ms=int32,
    start_time_ms=int64,
    partitions=st.dictionaries(names, st.lists(int32, max_size=4, unique=True), max_size=3).map(
        lambda topics: tuple(TopicPartition(t, p) for t, ps in topics.items() for p in ps)
    ),
)


def payload(answer: Any) -> bytes:
    answer.with_header(correlation_id=7)
    return bytes(answer.encode(header=True))


def described(*answers: m.TransactionDescription, throttle_ms: int = 0) -> bytes:
    """Return an answer to DescribeTransactions as a broker writes it."""
    state = kp.DescribeTransactionsResponse.TransactionState
    states = []
    for answer in answers:
        topics: dict[str, list[int]] = {}
        for topic, partition in answer.partitions:
            topics.setdefault(topic, []).append(partition)
        states.append(
            state(
                error_code=answer.error_code,
                transactional_id=answer.transactional_id,
                transaction_state=answer.state,
                transaction_timeout_ms=answer.timeout_ms,
                transaction_start_time_ms=answer.start_time_ms,
                producer_id=answer.producer_id,
                producer_epoch=answer.producer_epoch,
                topics=[state.TopicData(topic=t, partitions=p) for t, p in topics.items()],
            )
        )
    return payload(
        kp.DescribeTransactionsResponse(
            version=0, throttle_time_ms=throttle_ms, transaction_states=states
        )
    )


def ended(version: int, **more: int) -> bytes:
    fields = {"error_code": 0, "producer_id": 5, "producer_epoch": 6, "throttle_time_ms": 0}
    return payload(kp.EndTxnResponse(version=version, **{**fields, **more}))


def read(data: bytes) -> m.DescribeTransactionsResponse | None:
    return decode_describe(m.DescribeTransactionsRequest(("x", "y", "z")), memoryview(data))


ONE = m.TransactionDescription(0, "x", "Ongoing", 1, 2, 3, 4, (TopicPartition("t", 0),))


@pytest.mark.parametrize("version", FLEXIBLE)
@given(
    name=names,
    producer_id=int64,
    epoch=int16,
    is_commit=st.booleans(),
    correlation_id=st.integers(0, 2**31 - 1),
    client_id=st.text(max_size=20),
)
@settings(max_examples=60, deadline=None)
def test_end_txn_has_the_bytes_of_the_schemas(
    version, name, producer_id, epoch, is_commit, correlation_id, client_id
) -> None:
    body = m.EndTxnRequest(name, producer_id, epoch, is_commit)
    ours = EndEncoder(client_id).end_txn(body, version, correlation_id)
    assert ours == frame(codec._end_txn(body, version), correlation_id, client_id)


@given(ids=st.lists(names, max_size=3), correlation_id=st.integers(0, 2**31 - 1))
@settings(max_examples=60, deadline=None)
def test_describe_has_the_bytes_of_the_schemas(ids, correlation_id) -> None:
    body = m.DescribeTransactionsRequest(tuple(ids))
    ours = EndEncoder("me").describe(body, correlation_id)
    assert ours == frame(codec._describe_transactions(body, 0), correlation_id, "me")


@pytest.mark.parametrize("version", FLEXIBLE)
@given(error=int16, producer_id=int64, epoch=int16, throttle_ms=int32)
@settings(max_examples=40, deadline=None)
def test_the_end_is_read_as_by_the_schemas(
    version, error, producer_id, epoch, throttle_ms
) -> None:
    answer = ended(
        version,
        error_code=error,
        producer_id=producer_id,
        producer_epoch=epoch,
        throttle_time_ms=throttle_ms,
    )
    told_id, told_epoch = (producer_id, epoch) if version >= 5 else (-1, -1)
    assert decode_end_txn(version, memoryview(answer)) == m.EndTxnResponse(
        error, told_id, told_epoch, throttle_ms
    )


@given(answers=st.lists(descriptions, max_size=3), throttle_ms=int32)
@settings(max_examples=80, deadline=None)
def test_descriptions_are_read_as_by_the_schemas(answers, throttle_ms) -> None:
    data = described(*answers, throttle_ms=throttle_ms)
    assert read(data) == m.DescribeTransactionsResponse(tuple(answers), throttle_ms)


@pytest.mark.parametrize("version", FLEXIBLE)
def test_an_end_with_tags_or_of_another_size_is_left_to_the_schemas(version: int) -> None:
    plain = ended(version)
    assert decode_end_txn(version, memoryview(plain)) is not None
    tagged = plain[:4] + b"\x01" + plain[5:]
    for odd in (plain[:-1] + b"\x01", tagged, plain + b"\x00", plain[:-1]):
        assert decode_end_txn(version, memoryview(odd)) is None


def test_a_description_that_ends_too_soon_is_left_to_the_schemas() -> None:
    data = described(ONE, ONE)
    for end in range(len(data)):
        assert read(data[:end]) is None
    assert read(data + b"\x00") is None


def test_tags_in_a_description_are_left_to_the_schemas() -> None:
    data = described(ONE)
    # Of the header, of the topic, of the state, of the answer.
    for at in (4, len(data) - 3, len(data) - 2, len(data) - 1):
        assert data[at] == 0
        assert read(data[:at] + b"\x01" + data[at + 1 :]) is None


def test_null_arrays_are_left_to_the_schemas() -> None:
    data = described(ONE)
    assert read(data[:9] + b"\x00" + data[10:]) is None
    topics_at = data.rindex(b"\x02\x02t")
    assert read(data[:topics_at] + b"\x00" + data[topics_at + 1 :]) is None


@pytest.mark.parametrize("body", [END, ASK], ids=["end", "describe"])
def test_an_answer_that_neither_decoder_can_read_ends_the_connection(body: m.Request) -> None:
    version = 5 if body is END else 0
    with pytest.raises(ResponseDecodeError):
        WireCodec("me").decode(body, version, memoryview(b"\x00\x00\x00\x07\x00\x00"))
