"""The version of a request follows from the broker's offer, our range and its own content."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from txnproducer._protocol import messages as m
from txnproducer._protocol.versions import ApiVersionRange, NodeApiVersions
from txnproducer._wire.version_choice import CLIENT_THROTTLES_FROM, CLIENT_VERSIONS, choose_version
from txnproducer.errors import UnsupportedVersionError
from txnproducer.records import OffsetAndMetadata, TopicPartition

T0 = TopicPartition("t", 0)
TOPIC_ID = bytes(range(16))


def offering(**newest: int) -> NodeApiVersions:
    """Return a broker's offer: everything up to version 99, but for the named APIs."""
    ranges = {key: ApiVersionRange(0, newest.get(key.name, 99)) for key in m.ApiKey}
    return NodeApiVersions(MappingProxyType(ranges))


def produce(
    transactional_id: str | None = "x",
    v2: bool = False,
    ids: tuple[bytes | None, ...] = (TOPIC_ID,),
) -> m.ProduceRequest:
    parts = tuple(
        m.ProducePartition(TopicPartition("t", number), b"", topic_id)
        for number, topic_id in enumerate(ids)
    )
    return m.ProduceRequest(transactional_id, -1, 1000, parts, v2)


def offset_commit(v2: bool = False, **group: Any) -> m.TxnOffsetCommitRequest:
    offsets = ((T0, OffsetAndMetadata(1)),)
    return m.TxnOffsetCommitRequest(
        "x",
        "g",
        1,
        0,
        offsets,
        is_transaction_v2_enabled=v2,
        **group,
    )


@pytest.mark.conformance("3.46")
@pytest.mark.parametrize(
    ("body", "version"),
    [
        (m.AddPartitionsToTxnRequest("x", 1, 0, (T0,)), 3),
        (m.AddOffsetsToTxnRequest("x", 1, 0, "g"), 4),
        (m.InitProducerIdRequest("x", 1000), 5),
        (m.InitProducerIdRequest("x", 1000, 1, 0), 5),
        (m.FindCoordinatorRequest("x", m.CoordinatorType.TRANSACTION), 6),
        (m.MetadataRequest(("t",)), 12),
        (m.DescribeTransactionsRequest(("x",)), 0),
        (produce(), 11),
        (produce(v2=True), 13),
        (produce(None), 13),
        (m.EndTxnRequest("x", 1, 0, True), 4),
        (m.EndTxnRequest("x", 1, 0, True, True), 5),
        (offset_commit(), 4),
        (offset_commit(v2=True), 5),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else str(value),
)
def test_each_request_has_its_cap_on_a_broker_that_offers_everything(
    body: m.Request, version: int
) -> None:
    assert choose_version(body, offering()) == version


def test_produce_names_topics_by_id_only_if_every_id_is_known() -> None:
    assert choose_version(produce(v2=True, ids=(TOPIC_ID, TOPIC_ID)), offering()) == 13
    assert choose_version(produce(v2=True, ids=(TOPIC_ID, None)), offering()) == 12


def test_an_older_broker_is_met_at_its_newest_version() -> None:
    assert choose_version(produce(), offering(PRODUCE=7)) == 7
    assert choose_version(m.MetadataRequest(()), offering(METADATA=8)) == 8


@pytest.mark.parametrize(
    ("body", "newest"),
    [
        (produce(v2=True), {"PRODUCE": 11}),
        (m.EndTxnRequest("x", 1, 0, True, True), {"END_TXN": 4}),
        (offset_commit(v2=True), {"TXN_OFFSET_COMMIT": 4}),
    ],
    ids=["produce", "end-txn", "txn-offset-commit"],
)
def test_transactions_v2_are_never_sent_in_a_version_of_v1(
    body: m.Request, newest: dict[str, int]
) -> None:
    with pytest.raises(UnsupportedVersionError, match="transactions v2"):
        choose_version(body, offering(**newest))


@pytest.mark.conformance("3.22")
@pytest.mark.parametrize(
    "group", [{"generation_id": 3, "member_id": "m"}, {"group_instance_id": "i"}]
)
def test_group_metadata_is_refused_rather_than_dropped(group: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedVersionError, match="KIP-447"):
        choose_version(offset_commit(**group), offering(TXN_OFFSET_COMMIT=2))
    assert choose_version(offset_commit(), offering(TXN_OFFSET_COMMIT=2)) == 2


def test_an_epoch_bump_needs_version_3_and_a_first_producer_id_does_not() -> None:
    old = offering(INIT_PRODUCER_ID=2)
    assert choose_version(m.InitProducerIdRequest("x", 1000), old) == 2
    with pytest.raises(UnsupportedVersionError, match="KIP-360"):
        choose_version(m.InitProducerIdRequest("x", 1000, 1, 0), old)


def test_an_api_that_the_broker_lacks_is_named() -> None:
    with pytest.raises(UnsupportedVersionError, match="DESCRIBE_TRANSACTIONS"):
        choose_version(m.DescribeTransactionsRequest(("x",)), NodeApiVersions())


def test_a_broker_too_new_for_us_is_refused() -> None:
    only_new = NodeApiVersions({m.ApiKey.METADATA: ApiVersionRange(14, 20)})
    with pytest.raises(UnsupportedVersionError, match="14 to 20"):
        choose_version(m.MetadataRequest(()), only_new)


def test_every_api_has_a_window_and_a_throttle_rule() -> None:
    requests = set(m.ApiKey) - {m.ApiKey.API_VERSIONS}
    assert set(CLIENT_VERSIONS) == requests
    assert set(CLIENT_THROTTLES_FROM) == requests
