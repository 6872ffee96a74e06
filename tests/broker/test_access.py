"""A request that is refused for lack of a right gets the right error and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytest

from tests.broker.support import GROUP, T0, TOPIC, Bench, Who, batch_of
from txnproducer._broker.cluster import Resource
from txnproducer._protocol import messages as m
from txnproducer.errors import ErrorCode
from txnproducer.records import OffsetAndMetadata, TopicPartition

ID = (Resource.TRANSACTIONAL_ID, "a")
TOPIC_T = (Resource.TOPIC, TOPIC)
GROUP_G = (Resource.GROUP, GROUP)
CLUSTER = (Resource.CLUSTER, "")
OTHER = TopicPartition("other", 0)
ID_REFUSED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
TOPIC_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP_REFUSED = ErrorCode.GROUP_AUTHORIZATION_FAILED
CLUSTER_REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
NOT_ATTEMPTED = ErrorCode.OPERATION_NOT_ATTEMPTED
NONE = ErrorCode.NONE


def produce(who: Who, *places: TopicPartition) -> m.ProduceRequest:
    parts = (m.ProducePartition(place, bytes(batch_of(who, 0))) for place in places)
    is_v2 = who.transactional_id is not None
    return m.ProduceRequest(who.transactional_id, -1, 30_000, tuple(parts), is_v2)


def offsets(who: Who, *places: TopicPartition) -> m.TxnOffsetCommitRequest:
    name, producer_id, epoch = who
    sent = tuple((place, OffsetAndMetadata(5)) for place in places)
    return m.TxnOffsetCommitRequest(
        name or "", GROUP, producer_id, epoch, sent, is_transaction_v2_enabled=True
    )


def found(items: Iterable[Any]) -> list[int]:
    return [item.error_code for item in items]


def codes_of(answer: m.Response) -> list[int]:
    """Return the error codes of any answer, in the order of the request."""
    match answer:
        case m.MetadataResponse(topics=items):
            return found(items)
        case m.FindCoordinatorResponse(coordinators=items):
            return found(items)
        case m.ProduceResponse(partitions=items):
            return found(items)
        case m.DescribeTransactionsResponse(transactions=items):
            return found(items)
        case m.AddPartitionsToTxnResponse(results=items):
            return found(items)
        case m.TxnOffsetCommitResponse(results=items):
            return found(items)
        case _:
            return found([answer])


class Refusal(NamedTuple):
    """A request, the right that is denied, and the expected error codes."""

    ask: Callable[[Who], m.Request]
    denied: tuple[tuple[Resource, str], ...]
    codes: list[int]


def group_coordinator(_: Who) -> m.Request:
    return m.FindCoordinatorRequest(GROUP, m.CoordinatorType.GROUP)


def id_coordinator(_: Who) -> m.Request:
    return m.FindCoordinatorRequest("a", m.CoordinatorType.TRANSACTION)


def idempotent(who: Who) -> Who:
    return who._replace(transactional_id=None)


REFUSALS = {
    "Metadata, topic": Refusal(
        lambda _: m.MetadataRequest((TOPIC, "other")), (TOPIC_T,), [TOPIC_REFUSED, NONE]
    ),
    "FindCoordinator, group": Refusal(group_coordinator, (GROUP_G,), [GROUP_REFUSED]),
    "FindCoordinator, id": Refusal(id_coordinator, (ID,), [ID_REFUSED]),
    "FindCoordinator, id of a group's name": Refusal(
        group_coordinator, ((Resource.TRANSACTIONAL_ID, GROUP),), [NONE]
    ),
    "FindCoordinator, group of an id's name": Refusal(
        id_coordinator, ((Resource.GROUP, "a"),), [NONE]
    ),
    "InitProducerId, id": Refusal(
        lambda _: m.InitProducerIdRequest("a", 60_000), (ID,), [ID_REFUSED]
    ),
    "InitProducerId, id of an ill request": Refusal(
        lambda _: m.InitProducerIdRequest("a", 60_000, 1, -1), (ID,), [ID_REFUSED]
    ),
    "InitProducerId, id with a bad time-out": Refusal(
        lambda _: m.InitProducerIdRequest("a", 0), (ID,), [ID_REFUSED]
    ),
    "InitProducerId, cluster": Refusal(
        lambda _: m.InitProducerIdRequest(None, 60_000), (CLUSTER,), [CLUSTER_REFUSED]
    ),
    "InitProducerId of an id, cluster": Refusal(
        lambda _: m.InitProducerIdRequest("a", 60_000), (CLUSTER,), [NONE]
    ),
    "AddPartitionsToTxn, id and topic": Refusal(
        lambda w: m.AddPartitionsToTxnRequest("a", *w[1:], (T0, OTHER)),
        (ID, TOPIC_T),
        [ID_REFUSED, ID_REFUSED],
    ),
    "AddPartitionsToTxn, topic": Refusal(
        lambda w: m.AddPartitionsToTxnRequest("a", *w[1:], (T0, OTHER)),
        (TOPIC_T,),
        [TOPIC_REFUSED, NOT_ATTEMPTED],
    ),
    "AddOffsetsToTxn, id and group": Refusal(
        lambda w: m.AddOffsetsToTxnRequest("a", *w[1:], GROUP), (ID, GROUP_G), [ID_REFUSED]
    ),
    "AddOffsetsToTxn, group": Refusal(
        lambda w: m.AddOffsetsToTxnRequest("a", *w[1:], GROUP), (GROUP_G,), [GROUP_REFUSED]
    ),
    "TxnOffsetCommit, id and group": Refusal(
        lambda w: offsets(w, T0, OTHER), (ID, GROUP_G), [ID_REFUSED, ID_REFUSED]
    ),
    "TxnOffsetCommit, group": Refusal(
        lambda w: offsets(w, T0, OTHER), (GROUP_G, TOPIC_T), [GROUP_REFUSED, GROUP_REFUSED]
    ),
    "TxnOffsetCommit, topic": Refusal(
        lambda w: offsets(w, T0, OTHER), (TOPIC_T,), [TOPIC_REFUSED, NONE]
    ),
    "EndTxn, id": Refusal(lambda w: m.EndTxnRequest("a", *w[1:], True, True), (ID,), [ID_REFUSED]),
    "DescribeTransactions, id": Refusal(
        lambda _: m.DescribeTransactionsRequest(("a",)), (ID,), [ID_REFUSED]
    ),
    "Produce, topic": Refusal(lambda w: produce(w, T0, OTHER), (TOPIC_T,), [TOPIC_REFUSED, NONE]),
    "Produce, id": Refusal(lambda w: produce(w, T0, OTHER), (ID,), [ID_REFUSED, ID_REFUSED]),
    "Produce, id and topic": Refusal(lambda w: produce(w, T0), (ID, TOPIC_T), [ID_REFUSED]),
    "Produce without an id, id": Refusal(lambda w: produce(idempotent(w), T0), (ID,), [NONE]),
    "Produce with unknown acks, id": Refusal(
        lambda w: produce(w, T0, OTHER)._replace(acks=2), (ID,), [ID_REFUSED, ID_REFUSED]
    ),
    "Produce with unknown acks, topic": Refusal(
        lambda w: produce(w, T0, OTHER)._replace(acks=2),
        (TOPIC_T,),
        [TOPIC_REFUSED, ErrorCode.INVALID_REQUIRED_ACKS],
    ),
    "Produce without an id, cluster": Refusal(
        lambda w: produce(idempotent(w), T0), (CLUSTER,), [NONE]
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_a_refused_request_names_the_denied_resource_and_works_once_allowed(refusal):
    bench = Bench()
    bench.cluster.create_topic("other", 1)
    request = refusal.ask(bench.init())
    bench.cluster.denied.update(refusal.denied)
    assert codes_of(bench.ask(request)) == refusal.codes
    bench.cluster.denied.clear()
    allowed = set(codes_of(bench.ask(request)))
    assert not allowed & {ID_REFUSED, TOPIC_REFUSED, GROUP_REFUSED, CLUSTER_REFUSED}


@pytest.mark.parametrize("request_type", m.API_KEY_OF, ids=lambda kind: kind.__name__)
def test_a_refusal_of_each_request_is_tried(request_type):
    who = Who("a", 1, 0)
    tried = [refusal for refusal in REFUSALS.values() if any(refusal.codes)]
    assert any(type(refusal.ask(who)) is request_type for refusal in tried)


@pytest.mark.parametrize("denied", [ID, TOPIC_T, GROUP_G], ids=lambda denied: denied[0].name)
def test_a_refused_request_does_not_begin_a_transaction(denied):
    bench = Bench()
    who = bench.init()
    bench.cluster.denied.add(denied)
    if denied == GROUP_G:
        bench.ask(m.AddOffsetsToTxnRequest("a", *who[1:], GROUP))
    else:
        bench.produce(who, T0, 0)
        bench.add(who, T0)
    bench.ask(offsets(who, T0))
    bench.cluster.denied.clear()
    assert bench.describe().state == "Empty"
    assert bench.cluster.log_end_offset(T0) == 0
    assert not bench.cluster.has_pending_offsets


def test_brokers_before_2_5_ask_for_each_idempotent_request_whether_it_is_allowed():
    bench = Bench(transaction_version=1, init_producer_id_version=2)
    bench.cluster.denied.add(CLUSTER)
    assert bench.produce(idempotent(bench.init()), T0, 0).error_code == CLUSTER_REFUSED
    assert bench.produce(Who(None, -1, -1), T0, -1).error_code == NONE
    assert bench.produce(bench.open(T0), T0, 1).error_code == NONE


def test_an_open_transaction_does_not_outrank_a_refusal():
    bench = Bench()
    who = bench.open(T0)
    bench.cluster.denied.add(ID)
    assert bench.produce(who, T0, 1).error_code == ID_REFUSED
    assert bench.end(who, commit=True).error_code == ID_REFUSED
    bench.cluster.denied.clear()
    bench.cluster.denied.add(TOPIC_T)
    assert bench.produce(who, T0, 1).error_code == TOPIC_REFUSED
    bench.commit(who)  # the end needs no access to the topics
    assert bench.values(T0) == ["v"]


def test_partitions_of_a_refused_topic_are_left_out_of_a_description():
    bench = Bench()
    bench.cluster.create_topic("other", 1)
    bench.open(T0, OTHER)
    bench.cluster.denied.add(TOPIC_T)
    assert bench.describe().partitions == (OTHER,)


def test_a_transactional_batch_without_an_id_is_refused_as_if_its_id_were():
    bench = Bench()
    who = bench.init()
    request = produce(who, T0)._replace(transactional_id=None)
    assert codes_of(bench.ask(request)) == [ID_REFUSED]
