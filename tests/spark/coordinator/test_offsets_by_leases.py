"""Offsets are written into many transactions at once, by their leases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.spark.coordinator.leases import (
    IDS,
    PATIENCE_MS,
    abort,
    commit,
    errors,
    written,
)
from tests.waiting import becomes_true
from txnproducer.errors import (
    ClaimRefusedError,
    DisconnectError,
    GroupAuthorizationError,
    KafkaTimeoutError,
    ProducerFencedError,
)
from txnproducer.records import OffsetAndMetadata, TopicPartition

PLACE = TopicPartition("orders", 0)


def group(name):
    return f"group of {name}"


def note(client, leases, offset=7, timeout_ms=PATIENCE_MS):
    """Write an offset into each transaction, and return the errors."""
    offsets = [
        (lease, group(lease.transactional_id), PLACE, OffsetAndMetadata(offset, "entry"))
        for lease in leases
    ]
    return client.write_offsets(offsets, timeout_ms)


def noted(kafka, ids):
    found = [kafka.committed(group(name)).get(PLACE) for name in ids]
    return [None if one is None else (one.offset, one.metadata) for one in found]


def test_the_offsets_are_those_of_the_transactions(kafka, client):
    leases = written(client, kafka.listen(), IDS[:4])
    assert note(client, leases) == {}
    assert noted(kafka, IDS[:4]) == [None] * 4
    commit(client, leases[:2])
    abort(client, leases[2:])
    assert becomes_true(lambda: noted(kafka, IDS[:2]) == [(7, "entry")] * 2)
    assert noted(kafka, IDS[2:4]) == [None] * 2


def test_a_transaction_of_a_lease_may_have_no_records(kafka, client):
    leases = [taken.lease() for taken in client.take_ids(IDS, PATIENCE_MS).values()]
    assert note(client, leases) == {}
    assert errors(commit(client, leases)) == {type(None)}
    assert becomes_true(lambda: noted(kafka, IDS) == [(7, "entry")] * len(IDS))


@pytest.mark.parametrize(
    ("api", "code"),
    [
        ("TxnOffsetCommit", "NOT_COORDINATOR"),
        ("TxnOffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS"),
        ("TxnOffsetCommit", "CONCURRENT_TRANSACTIONS"),
        ("AddOffsetsToTxn", "NOT_COORDINATOR"),
        ("AddOffsetsToTxn", "CONCURRENT_TRANSACTIONS"),
        ("FindCoordinator", "COORDINATOR_NOT_AVAILABLE"),
    ],
)
def test_offsets_are_written_in_spite_of_passing_refusals(kafka, client, version, api, code):
    if version == 2 and api == "AddOffsetsToTxn":
        pytest.skip("with transactions v2 this request is not sent")
    leases = written(client, kafka.listen(), IDS[:3])
    if api == "FindCoordinator":
        kafka.fail_next("TxnOffsetCommit", error="NOT_COORDINATOR", times=3)
    kafka.fail_next(api, error=code, times=3)
    assert note(client, leases) == {}
    assert kafka.remaining_faults() == {}
    commit(client, leases)
    assert becomes_true(lambda: noted(kafka, IDS[:3]) == [(7, "entry")] * 3)


def test_a_groups_coordinator_that_has_moved_is_looked_up(kafka, client):
    leases = written(client, kafka.listen(), IDS[:3])
    note(client, leases, offset=6)
    for name in IDS[:3]:
        kafka.move_group_coordinator(group(name))
    assert note(client, leases) == {}
    commit(client, leases)
    assert becomes_true(lambda: noted(kafka, IDS[:3]) == [(7, "entry")] * 3)


def test_a_lost_request_is_repeated_where_a_late_copy_does_no_harm(kafka, client, version):
    leases = written(client, kafka.listen(), IDS[:2])
    if version == 1:
        kafka.lose_answer("AddOffsetsToTxn")
        assert note(client, leases) == {}
    kafka.lose_answer("TxnOffsetCommit")
    failed = note(client, leases[:1])
    if version == 1:
        assert isinstance(failed[IDS[0]], DisconnectError)
        assert "the ledger's entry was lost" in str(failed[IDS[0]])
    else:
        assert failed == {}


def test_a_refusal_is_of_its_transaction_alone(kafka, client):
    leases = written(client, kafka.listen(), IDS[:3])
    kafka.fence(IDS[1])
    kafka.deny(group=group(IDS[2]))
    failed = note(client, leases)
    assert failed.keys() == {IDS[1], IDS[2]}
    assert isinstance(failed[IDS[1]], ProducerFencedError)
    assert isinstance(failed[IDS[2]], GroupAuthorizationError)
    assert failed[IDS[2]].recovery == "fix"


def test_offsets_for_a_lease_of_another_cluster_are_refused(kafka, client):
    leases = written(client, kafka.listen(), IDS[:2])
    failed = note(client, [replace(leases[0], cluster_id="elsewhere"), leases[1]])
    assert failed.keys() == {IDS[0]}
    assert isinstance(failed[IDS[0]], ClaimRefusedError)


def test_a_transaction_without_an_answer_is_given_up_at_the_deadline(kafka, client):
    leases = written(client, kafka.listen(), IDS[:1])
    kafka.fail_next("TxnOffsetCommit", error="CONCURRENT_TRANSACTIONS", times=100_000)
    failed = note(client, leases, timeout_ms=200)
    assert isinstance(failed[IDS[0]], KafkaTimeoutError)
    kafka.clear_faults()
