"""A broker's side of a connection: frames, the handshake, faults."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.bench import TOPIC, Bench, init_request
from txnproducer._broker.handlers import handle
from txnproducer._protocol import messages as m
from txnproducer._protocol.messages import ApiKey
from txnproducer._record import RecordBatchBuilder
from txnproducer._server import connection
from txnproducer._server.apis import APIS
from txnproducer._server.script import Fault, ScriptedFault
from txnproducer._wire import kafka_python as kp
from txnproducer._wire.version_choice import CLIENT_VERSIONS
from txnproducer.errors import ErrorCode
from txnproducer.records import OffsetAndMetadata, TopicPartition

T0, T1 = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
WHO = ("a", 1000, 0)


def batch(value: bytes = b"v") -> bytes:
    builder = RecordBatchBuilder(10_000)
    builder.append(0, None, value, ())
    return bytes(builder.build())


def produce(*places: TopicPartition, topic_id: bytes | None = None) -> m.ProduceRequest:
    parts = tuple(m.ProducePartition(place, batch(), topic_id) for place in places)
    return m.ProduceRequest(None, -1, 1000, parts)


REQUESTS: dict[ApiKey, m.Request] = {
    ApiKey.METADATA: m.MetadataRequest((TOPIC,)),
    ApiKey.FIND_COORDINATOR: m.FindCoordinatorRequest("a", m.CoordinatorType.TRANSACTION),
    ApiKey.INIT_PRODUCER_ID: init_request(),
    ApiKey.ADD_PARTITIONS_TO_TXN: m.AddPartitionsToTxnRequest(*WHO, (T0, T1)),
    ApiKey.ADD_OFFSETS_TO_TXN: m.AddOffsetsToTxnRequest(*WHO, "group"),
    ApiKey.TXN_OFFSET_COMMIT: m.TxnOffsetCommitRequest(
        "a", "group", 1000, 0, ((T0, OffsetAndMetadata(5)), (T1, OffsetAndMetadata(6)))
    ),
    ApiKey.END_TXN: m.EndTxnRequest(*WHO, is_commit=True),
    ApiKey.DESCRIBE_TRANSACTIONS: m.DescribeTransactionsRequest(("a", "b")),
    ApiKey.PRODUCE: produce(T0, T1),
}
VERSIONS = [
    (api, version)
    for api, known in CLIENT_VERSIONS.items()
    for version in range(known.min_version, known.max_version + 1)
]


def as_of(answer: m.Response, version: int) -> m.Response:
    """Return an answer of the model without the fields that a version of its API has not."""
    if isinstance(answer, m.ProduceResponse) and version < 5:
        parts = tuple(each._replace(log_start_offset=-1) for each in answer.partitions)
        return answer._replace(partitions=parts)
    if isinstance(answer, m.MetadataResponse) and version < 10:
        [topic] = answer.topics
        if version < 7:
            partitions = tuple(replace(each, leader_epoch=-1) for each in topic.partitions)
            topic = replace(topic, partitions=partitions)
        return replace(answer, topics=(replace(topic, topic_id=None),))
    return answer


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_every_request_is_answered_by_the_model_at_every_version_of_the_client(api, version):
    asked, direct = Bench(), Bench()
    for bench in (asked, direct):
        bench.ask(init_request(), 5)
    request = REQUESTS[api]
    if api is ApiKey.PRODUCE:
        topic_id = asked.cluster.topology.topic_id(TOPIC) if version >= 13 else None
        request = produce(T0, T1, topic_id=topic_id)
    # From version 5 on this request opens the group's part of the transaction itself.
    opens = api is ApiKey.TXN_OFFSET_COMMIT and version >= 5
    if opens:
        handle(direct.cluster, 0, REQUESTS[ApiKey.ADD_OFFSETS_TO_TXN], direct.now_ms)
    answer = asked.ask(request, version)
    assert answer == as_of(handle(direct.cluster, 0, request, direct.now_ms), version)


def test_a_request_that_comes_byte_by_byte_is_answered_once():
    bench = Bench()
    data = bench.bytes_of(REQUESTS[ApiKey.METADATA], 12) * 2
    answers = [bench.send(data[n : n + 1]) for n in range(len(data))]
    assert [len(each) for each in answers if each] == [1, 1]


def test_requests_that_come_together_are_answered_in_their_order():
    bench = Bench()
    data = b"".join(bench.bytes_of(init_request(name), 5) for name in "abc")
    found = [int.from_bytes(answer.data[4:8], "big") for answer in bench.send(data)]
    assert found == sorted(found)
    assert len(found) == 3


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"\0\0\0\x07" + bytes(7),
        b"\0\0\0\x08\x7f\xff" + bytes(6),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["negative size", "huge size", "too short", "unknown API", "HTTP"],
)
def test_bytes_that_are_no_request_end_the_connection(data):
    bench = Bench()
    assert bench.send(data) == []
    assert bench.connection.is_closed
    assert bench.send(bench.bytes_of(init_request(), 5)) == []


def test_a_request_whose_fields_do_not_fit_ends_the_connection():
    bench = Bench()
    whole = bench.bytes_of(init_request(), 5)
    cut = (len(whole) - 4 - 6).to_bytes(4, "big") + whole[4:-6]
    assert bench.send(cut) == []
    assert bench.connection.is_closed


def test_a_length_beyond_all_memory_ends_the_connection(caplog):
    bench = Bench()
    whole = bench.bytes_of(REQUESTS[ApiKey.FIND_COORDINATOR], 3)[4:]
    changed = whole.replace(b"\x02a", b"\x82" + b"\x80" * 8 + b"\x01a")
    assert bench.send(len(changed).to_bytes(4, "big") + changed) == []
    assert bench.connection.is_closed
    assert caplog.text == ""


@given(
    st.sampled_from(VERSIONS),
    st.lists(st.tuples(st.integers(8), st.binary(max_size=4)), max_size=4),
)
def test_changed_bytes_are_answered_or_end_the_connection(known, changes):
    (api, version), bench = known, Bench()
    whole = bytearray(bench.bytes_of(REQUESTS[api], version))[4:]
    for place, piece in changes:
        at = 8 + place % (len(whole) - 8)
        whole[at : at + 2] = piece
    answers = bench.send(len(whole).to_bytes(4, "big") + whole)
    # A Produce request may have become one that wants no answer (acks=0).
    assert answers or bench.connection.is_closed or api is ApiKey.PRODUCE


def test_a_defect_of_the_server_is_logged_and_ends_the_connection(monkeypatch, caplog):
    def fail(*_):
        raise KeyError("of the server")

    api = replace(APIS[ApiKey.METADATA], serve=fail)
    monkeypatch.setattr(connection, "APIS", {**APIS, ApiKey.METADATA: api})
    bench = Bench()
    assert bench.send(bench.bytes_of(m.MetadataRequest((TOPIC,)), 9)) == []
    assert bench.connection.is_closed
    assert "defect of this package" in caplog.text


def test_a_version_that_the_broker_does_not_offer_ends_the_connection():
    bench = Bench(transaction_version=1, is_before_4=True)
    assert bench.api_versions()[ApiKey.PRODUCE] == (0, 11)
    assert bench.send(bench.bytes_of(produce(T0), 12)) == []
    assert bench.connection.is_closed


def test_requests_without_an_awaited_answer_get_none():
    bench = Bench()
    request = m.ProduceRequest(None, 0, 1000, (m.ProducePartition(T0, batch()),))
    assert bench.send(bench.bytes_of(request, 12)) == []
    assert not bench.connection.is_closed
    assert bench.cluster.log_end_offset(T0) == 1


@pytest.mark.parametrize("version", range(5))
def test_api_versions_list_the_requests_that_the_broker_offers(version):
    bench = Bench()
    offered = bench.api_versions(version)
    assert offered[ApiKey.END_TXN] == (0, 5)
    assert offered[ApiKey.PRODUCE] == (0, 13)  # of which versions below 3 are not read
    assert offered[17] == (0, 1)  # also on a listener without logins


def test_an_unknown_version_of_api_versions_is_answered_in_version_0():
    """A client falls back to the version that the answer names (KIP-511)."""
    bench = Bench()
    [answer] = bench.send(b"\0\0\0\x0c" + b"\0\x12\0\x09" + b"\0\0\0\x07" + b"\0\x01x\0")
    found = kp.ApiVersionsResponse.decode(answer.data[4:], version=0, header=True)
    assert found.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(each.api_key, each.max_version) for each in found.api_keys] == [(18, 4)]


@pytest.mark.parametrize(
    ("options", "features"),
    [
        ({"transaction_version": 1}, {"transaction.version": 1}),
        ({"transaction_version": 2}, {"transaction.version": 2}),
        ({"transaction_version": 1, "is_before_4": True}, {}),  # 3.9 does not have the feature
    ],
)
def test_api_versions_include_the_finalized_transaction_version(options, features):
    bench = Bench(**options)
    answer = bench.ask_schema(
        kp.ApiVersionsRequest(version=4, client_software_name="x", client_software_version="1"),
        kp.ApiVersionsResponse,
    )
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    assert levels == features


# --- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", list(REQUESTS))
def test_a_refused_request_of_any_api_carries_the_error_and_changes_nothing(api):
    bench = Bench()
    bench.will(api, Fault(ScriptedFault.REFUSED, code=ErrorCode.NOT_COORDINATOR))
    version = min(CLIENT_VERSIONS[api].max_version, 12)
    answer = bench.ask(REQUESTS[api], version)
    assert str(int(ErrorCode.NOT_COORDINATOR)) in repr(answer)
    assert bench.cluster.transactional_ids == []
    assert bench.cluster.log_end_offset(T0) == 0
    assert bench.script.remaining() == {}


def test_a_lost_request_changes_nothing_and_ends_the_connection():
    bench = Bench()
    bench.will(ApiKey.INIT_PRODUCER_ID, Fault(ScriptedFault.REQUEST_LOST))
    assert bench.send(bench.bytes_of(init_request(), 5)) == []
    assert bench.connection.is_closed
    assert bench.cluster.transactional_ids == []


def test_a_request_whose_answer_is_lost_takes_effect():
    bench = Bench()
    bench.will(ApiKey.INIT_PRODUCER_ID, Fault(ScriptedFault.ANSWER_LOST))
    assert bench.send(bench.bytes_of(init_request(), 5)) == []
    assert bench.connection.is_closed
    assert bench.cluster.transactional_ids == ["a"]


def test_a_late_answer_holds_up_those_after_it():
    bench = Bench()
    bench.will(ApiKey.INIT_PRODUCER_ID, Fault(ScriptedFault.SLOW, delay_ms=200))
    data = bench.bytes_of(init_request(), 5) + bench.bytes_of(REQUESTS[ApiKey.METADATA], 12)
    assert [answer.due_ms for answer in bench.send(data)] == [1_200, 1_200]
    bench.now_ms = 5_000
    [later] = bench.send(bench.bytes_of(REQUESTS[ApiKey.METADATA], 12))
    assert later.due_ms == 5_000


def test_a_fault_meets_only_requests_of_its_api_and_only_as_many_as_asked_for():
    bench = Bench()
    bench.will(ApiKey.END_TXN, Fault(ScriptedFault.REFUSED, code=14), times=2)
    bench.ask(init_request(), 5)
    codes = [bench.ask(REQUESTS[ApiKey.END_TXN], 5).error_code for _ in range(3)]
    assert codes[:2] == [14, 14]
    assert codes[2] != 14
