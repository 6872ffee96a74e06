"""Consumers see a transaction of several producers as one, over the modelled cluster."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from tests.core.on_cluster import OnCluster, committed, is_all_decided, make_cluster, started
from tests.core.sharing import (
    GROUP_OF_NOBODY,
    VERSIONS,
    calls_of,
    leased,
    participant,
    share,
    write,
)
from tests.harness import TP0, TP1
from tests.scripted_client import NO_BUMP_VERSIONS
from txnproducer._core.transactions.state import TransactionState
from txnproducer._protocol.messages import ApiKey
from txnproducer.errors import (
    ErrorCode,
    IllegalStateError,
    InvalidProducerEpochError,
    KafkaError,
    UnsupportedVersionError,
)
from txnproducer.records import OffsetAndMetadata, PartitionReceipt, TransactionReceipt


@VERSIONS
def test_participants_records_are_committed_with_one_end_txn(version):
    cluster = make_cluster(version)
    holder = started(cluster)
    lease = leased(holder)
    first, second = (participant(cluster, lease, claim) for claim in (0, 1))
    write(first, TP0, b"a", b"b")
    write(second, TP1, b"c")
    assert committed(cluster) == []
    holder.core.adopt([first.core.give_receipt(), second.core.give_receipt()])
    holder.end(is_commit=True)
    assert committed(cluster) == [b"a", b"b"]
    assert committed(cluster, TP1) == [b"c"]
    assert len(holder.client.sent(ApiKey.END_TXN)) == 1
    assert all(
        not harness.client.sent(key)
        for harness in (first, second)
        for key in (ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT)
    )
    assert is_all_decided(cluster)


@pytest.mark.parametrize("is_commit", [True, False])
def test_the_line_about_a_shared_transaction_has_no_age(is_commit, caplog):
    caplog.set_level(logging.INFO, "txnproducer.transactions")
    cluster = make_cluster(2)
    holder = started(cluster)
    receipts = share(cluster, holder, [b"shared"])
    if is_commit:
        holder.core.adopt(receipts)
    holder.end(is_commit=is_commit)
    holder.begin()
    holder.end(is_commit=False)
    shared, own = [r.args for r in caplog.records if r.name == "txnproducer.transactions"]
    assert shared["outcome"] == ("committed" if is_commit else "aborted")
    assert shared["ms"] is None  # a participant's request may have begun it
    assert own["ms"] is not None


@VERSIONS
def test_a_shared_transaction_follows_another(version):
    cluster = make_cluster(version)
    holder = started(cluster)
    for number in range(4):
        receipts = share(cluster, holder, [b"%d" % number])
        if number == 2:
            holder.end(is_commit=False)
        else:
            holder.core.adopt(receipts)
            holder.end(is_commit=True)
    assert committed(cluster) == committed(cluster, TP1) == [b"0", b"1", b"3"]


@VERSIONS
def test_shared_and_usual_transactions_mix(version):
    cluster = make_cluster(version)
    holder = started(cluster)
    for number in range(3):
        holder.transact(b"own %d" % number)
        holder.core.adopt(share(cluster, holder, [b"shared %d" % number]))
        holder.end(is_commit=True)
    assert committed(cluster, TP1) == [b"shared 0", b"shared 1", b"shared 2"]
    assert len(committed(cluster)) + len(committed(cluster, TP1)) == 9


@VERSIONS
def test_a_transaction_without_any_record_is_committed(version):
    cluster = make_cluster(version)
    holder = started(cluster)
    lease = leased(holder)
    holder.core.adopt(participant(cluster, lease, n).core.give_receipt() for n in (0, 1))
    holder.end(is_commit=True)
    assert not holder.client.sent(ApiKey.END_TXN)
    holder.transact(b"next")


@VERSIONS
def test_offsets_are_committed_with_the_participants_records(version):
    cluster = make_cluster(version)
    holder = started(cluster)
    receipts = share(cluster, holder, [])
    offsets = {TP0: OffsetAndMetadata(7, "batch")}
    holder.core.adopt(receipts)
    holder.complete(holder.core.send_offsets_to_transaction(offsets, GROUP_OF_NOBODY))
    holder.end(is_commit=True)
    assert cluster.group_offsets("ledger").group("ledger").committed[TP0].offset == 7


# --- receipts ------------------------------------------------------------------------------------


def test_a_receipt_lists_the_written_partitions():
    cluster = make_cluster()
    lease = leased(started(cluster))
    harness = participant(cluster, lease, 1)
    write(harness, TP1, b"1")
    write(harness, TP0, b"2")
    write(harness, TP1, b"3", b"4")
    receipt = harness.core.give_receipt()
    assert receipt.partitions == (PartitionReceipt(TP0, 1), PartitionReceipt(TP1, 3))
    assert receipt.record_count == 4
    assert (receipt.claim, receipt.claimed) == (1, lease.claims[1])
    assert (receipt.transactional_id, receipt.producer) == ("txn", lease.producer)
    assert harness.core.give_receipt() == receipt


def test_nothing_follows_a_receipt():
    cluster = make_cluster()
    harness = participant(cluster, leased(started(cluster)), 0)
    write(harness, TP0, b"1")
    harness.core.give_receipt()
    with pytest.raises(IllegalStateError, match="has given its receipt"):
        harness.send("topic", b"2", partition=0)


def test_no_receipt_is_given_while_records_are_on_their_way():
    cluster = make_cluster()
    harness = participant(cluster, leased(started(cluster)), 0)
    harness.send("topic", b"1", partition=0)
    with pytest.raises(IllegalStateError, match="on their way"):
        harness.core.give_receipt()


def test_no_receipt_is_given_where_a_record_failed():
    cluster = make_cluster()
    harness = participant(cluster, leased(started(cluster)), 0)
    code = ErrorCode.INVALID_RECORD
    harness.rewrite[ApiKey.PRODUCE] = lambda answer: refused(answer, code)
    future = harness.send("topic", b"1", partition=0)
    harness.run_until(future.done)
    with pytest.raises(KafkaError):
        harness.core.give_receipt()


def refused(answer, code):
    (partition,) = answer.partitions
    return type(answer)((type(partition)(partition.topic_partition, error_code=code),))


def test_a_receipt_is_a_participants():
    with pytest.raises(IllegalStateError, match="a receipt is a participant's"):
        started(make_cluster()).core.give_receipt()


@VERSIONS
def test_a_commit_needs_every_receipt(version):
    cluster = make_cluster(version)
    holder = started(cluster)
    receipts = share(cluster, holder, [b"1"])
    with pytest.raises(IllegalStateError, match="the receipts of claims 0, 1 are missing"):
        holder.core.begin_commit()
    holder.core.adopt(receipts[1:])
    with pytest.raises(IllegalStateError, match="the receipt of claim 0 is missing"):
        holder.core.begin_commit()
    holder.core.adopt(receipts)
    holder.end(is_commit=True)
    assert committed(cluster) == [b"1"]


def test_receipts_that_do_not_belong_are_refused_and_none_is_taken():
    cluster = make_cluster()
    holder = started(cluster)
    early = share(cluster, holder, [b"1"])
    holder.end(is_commit=False)
    first, second = share(cluster, holder, [b"2"])
    other_claim = TransactionReceipt("txn", first.producer, 2, first.claimed, ())
    not_claimed = TransactionReceipt("txn", first.producer, 0, second.producer, ())
    double = TransactionReceipt("txn", first.producer, 1, second.claimed, first.partitions)
    again = TransactionReceipt("txn", first.producer, 0, first.claimed, ())
    for wrong, why in (
        ([second, *early], "of another transaction"),
        ([second, other_claim], "claim 2"),
        ([second, not_claimed], "claim 0"),
        ([first, double], "claims 0 and 1 have both written to topic-0"),
        ([first, again], "two different receipts of claim 0"),
    ):
        with pytest.raises(ValueError, match=why):
            holder.core.adopt(wrong)
    with pytest.raises(IllegalStateError, match="the receipts of claims 0, 1 are missing"):
        holder.core.begin_commit()
    holder.core.adopt([first, second])
    holder.end(is_commit=True)


def test_only_receipts_are_adopted(make):
    one = make("txn")
    with pytest.raises(TypeError, match=r"got None\. A participant that failed has none: abort"):
        one.adopt([None])


def test_only_a_leased_transaction_adopts():
    holder = started(make_cluster())
    with pytest.raises(IllegalStateError, match="adopt"):
        holder.core.adopt([])
    holder.begin()
    with pytest.raises(IllegalStateError, match="adopt"):
        holder.core.adopt([])


# --- what each part may not do -------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("has_receipt", [False, True])
def test_a_participant_does_nothing_but_write(version, has_receipt):
    cluster = make_cluster(version)
    harness = participant(cluster, leased(started(cluster)), 0)
    write(harness, TP0, b"1")
    if has_receipt:
        harness.core.give_receipt()
    sent = len(harness.client.requests)
    for name, call in calls_of(harness).items():
        with pytest.raises(IllegalStateError):
            call()
        assert harness.manager.machine.state is TransactionState.IN_TRANSACTION, name
    harness.settle()
    assert len(harness.client.requests) == sent


def test_the_holder_of_a_lease_writes_no_records():
    cluster = make_cluster()
    holder = started(cluster)
    leased(holder)
    with pytest.raises(
        IllegalStateError,
        match="is refused because the transaction is leased and its",
    ):
        holder.send("topic", b"1")
    with pytest.raises(IllegalStateError, match="again"):
        holder.core.begin_lease(2)


@VERSIONS
def test_a_transaction_with_records_is_not_leased(version):
    cluster = make_cluster(version)
    holder = started(cluster)
    with pytest.raises(IllegalStateError, match="nothing to lease"):
        holder.core.begin_lease(1)
    holder.begin()
    future = holder.send("topic", b"1")
    for _ in range(2):
        with pytest.raises(IllegalStateError, match="right after begin_transaction"):
            holder.core.begin_lease(1)
        holder.run_until(future.done)
    with pytest.raises(ValueError, match="-1"):
        holder.core.begin_lease(-1)
    holder.end(is_commit=True)
    holder.core.adopt(share(cluster, holder, [b"2"]))
    holder.end(is_commit=True)


def test_a_lease_has_no_other_claims():
    cluster = make_cluster()
    lease = leased(started(cluster))
    for claim in (-1, 2):
        with pytest.raises(
            ValueError, match=f"claim {claim} does not exist: .* 2 claims, numbered 0 and 1"
        ):
            OnCluster(cluster).core.begin_join(lease, claim)
    for count, words in (
        (1, "1 claim, numbered 0$"),
        (3, "3 claims, numbered 0 to 2"),
        (0, ""),
    ):
        other = replace(lease, claims=lease.claims[:1] * count)
        with pytest.raises(ValueError, match=f"claim 3 does not exist: the lease.* {words}"):
            OnCluster(cluster).core.begin_join(other, 3)


def test_old_clusters_share_nothing():
    holder = OnCluster(make_cluster(1, init_producer_id_version=2))
    holder.client.default_versions = NO_BUMP_VERSIONS
    holder.init()
    for claims in (0, 1):
        holder.begin()
        with pytest.raises(UnsupportedVersionError, match=r"Kafka 2\.5"):
            holder.core.begin_lease(claims)
        holder.end(is_commit=True)


# --- how it ends ---------------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("has_begun", [False, True])
def test_an_abort_before_the_receipts_ends_transactions_begun_by_participants(version, has_begun):
    cluster = make_cluster(version)
    holder = started(cluster)
    lease = leased(holder)
    straggler = participant(cluster, lease, 0)
    if has_begun:
        write(straggler, TP0, b"1")
    holder.end(is_commit=False)
    assert len(holder.client.sent(ApiKey.END_TXN)) == 1
    future = straggler.send("topic", b"late", partition=0)
    straggler.run_until(future.done)
    assert future.error is not None
    with pytest.raises(KafkaError):
        straggler.core.give_receipt()
    holder.core.adopt(share(cluster, holder, [b"2"]))
    holder.end(is_commit=True)
    assert committed(cluster) == [b"2"]
    assert is_all_decided(cluster)


def test_a_participant_that_is_fenced_says_so():
    cluster = make_cluster()
    lease = leased(started(cluster))
    harness = participant(cluster, lease, 0)
    write(harness, TP0, b"1")
    started(cluster)  # another holder, who aborts what is open
    future = harness.send("topic", b"2", partition=0)
    harness.run_until(future.done)
    assert isinstance(future.error, InvalidProducerEpochError)
    with pytest.raises(InvalidProducerEpochError):
        harness.core.give_receipt()


@VERSIONS
def test_a_closed_participant_leaves_the_transaction_open(version):
    cluster = make_cluster(version)
    holder = started(cluster)
    lease = leased(holder, 1)
    harness = participant(cluster, lease, 0)
    write(harness, TP0, b"1")
    receipt = harness.core.give_receipt()
    harness.core.initiate_close(harness.now_ms)
    harness.run_until(lambda: harness.core.is_closed)
    holder.core.adopt([receipt])
    holder.end(is_commit=True)
    assert committed(cluster) == [b"1"]


@VERSIONS
def test_a_closed_holder_aborts(version):
    cluster = make_cluster(version)
    holder = started(cluster)
    share(cluster, holder, [b"1"])
    holder.core.initiate_close(holder.now_ms)
    holder.run_until(lambda: holder.core.is_closed)
    assert committed(cluster) == []
    assert is_all_decided(cluster)


# --- the rest ------------------------------------------------------------------------------------


def test_a_participant_needs_the_id_of_the_lease():
    cluster = make_cluster()
    lease = leased(started(cluster))
    with pytest.raises(ValueError, match="they need one id"):
        OnCluster(cluster, transactional_id="other").core.begin_join(lease, 0)


def test_the_core_returns_its_lease():
    holder = started(make_cluster())
    with pytest.raises(IllegalStateError, match="not leased"):
        assert holder.core.lease
    lease = leased(holder)
    assert holder.core.lease == lease
    assert holder.core.cluster_id is None  # the scripted client tells none


def test_a_participant_is_closed_without_a_warning(caplog):
    cluster = make_cluster()
    harness = participant(cluster, leased(started(cluster)), 0)
    harness.core.initiate_close(harness.now_ms)
    harness.run_until(lambda: harness.core.is_closed)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
