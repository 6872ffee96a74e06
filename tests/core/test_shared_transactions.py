"""Consumers see a transaction of several producers as one, over the modelled cluster."""

from __future__ import annotations

import logging
import pickle

import pytest

from tests.core.on_cluster import OnCluster, committed, is_all_decided, make_cluster, started
from tests.harness import GROUP, TP0, TP1
from tests.scripted_client import NO_BUMP_VERSIONS
from txnproducer._broker.resources import Resource
from txnproducer._core.transactions.claims import next_answer
from txnproducer._core.transactions.share import SharePart
from txnproducer._core.transactions.state import TransactionState
from txnproducer._protocol.messages import (
    ApiKey,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from txnproducer.errors import (
    ClaimRefusedError,
    ErrorCode,
    IllegalStateError,
    InvalidProducerEpochError,
    KafkaError,
    TransactionalIdAuthorizationError,
    UnsupportedVersionError,
)
from txnproducer.records import (
    OffsetAndMetadata,
    PartitionReceipt,
    ProducerIdAndEpoch,
    TransactionLease,
    TransactionReceipt,
)

VERSIONS = pytest.mark.parametrize("version", [1, 2])


def lease_of(holder, claims=2):
    holder.complete(holder.core.begin_lease(claims))
    return holder.manager.share.lease


def leased(holder, claims=2):
    """Begin a transaction, and lease it, as it comes out of a pickle."""
    holder.begin()
    return pickle.loads(pickle.dumps(lease_of(holder, claims)))


def join(cluster, lease, claim, **settings):
    """Return a producer that has asked for a claim, and how that ended."""
    harness = OnCluster(cluster, transactional_id=lease.transactional_id, **settings)
    result = harness.core.begin_join(lease, claim)
    harness.run_until(lambda: result.is_completed)
    result.acknowledge()
    return harness, result.error


def participant(cluster, lease, claim, **settings):
    harness, error = join(cluster, lease, claim, **settings)
    assert error is None
    return harness


def write(harness, place, *values):
    futures = [harness.send(place.topic, value, partition=place.partition) for value in values]
    harness.run_until(lambda: all(future.done() for future in futures))
    return [future.result() for future in futures]


def share(cluster, holder, values, claims=2):
    """Have participants write values, one partition each, and return their receipts."""
    lease = leased(holder, claims)
    receipts = []
    for claim, place in enumerate((TP0, TP1)[:claims]):
        harness = participant(cluster, lease, claim)
        write(harness, place, *values)
        receipts.append(harness.core.give_receipt())
    return receipts


@VERSIONS
def test_what_participants_wrote_is_committed_with_one_end_txn(version):
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
def test_the_line_about_a_shared_transaction_tells_no_age(is_commit, caplog):
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
def test_offsets_are_committed_with_what_participants_wrote(version):
    cluster = make_cluster(version)
    holder = started(cluster)
    receipts = share(cluster, holder, [])
    offsets = {TP0: OffsetAndMetadata(7, "batch")}
    holder.core.adopt(receipts)
    holder.complete(holder.core.send_offsets_to_transaction(offsets, GROUP_OF_NOBODY))
    holder.end(is_commit=True)
    assert cluster.group_offsets("ledger").group("ledger").committed[TP0].offset == 7


GROUP_OF_NOBODY = GROUP._replace(group_id="ledger", generation_id=-1, member_id="")


# --- one writer ----------------------------------------------------------------------------------


@VERSIONS
def test_of_two_that_take_one_claim_the_second_is_refused(version):
    cluster = make_cluster(version)
    lease = leased(started(cluster))
    participant(cluster, lease, 0)
    late, error = join(cluster, lease, 0)
    assert isinstance(error, ClaimRefusedError)
    assert error.recovery == "restart"
    assert "claim 0 of 'txn'" in str(error)
    assert late.manager.machine.state is TransactionState.FATAL_ERROR
    with pytest.raises(KafkaError):
        late.send("topic", b"of a zombie")


@VERSIONS
def test_a_claim_of_an_old_lease_is_refused(version):
    cluster = make_cluster(version)
    holder = started(cluster)
    old = leased(holder)
    holder.end(is_commit=False)
    leased(holder)
    assert isinstance(join(cluster, old, 0)[1], ClaimRefusedError)


def test_who_took_the_claim_of_a_later_lease_by_an_old_one_stops_that():
    cluster = make_cluster()
    holder = started(cluster)
    old = leased(holder)
    holder.end(is_commit=False)
    lease = leased(holder)
    join(cluster, old, 0)
    assert isinstance(join(cluster, lease, 0)[1], ClaimRefusedError)


def test_a_claim_whose_answer_was_lost_is_refused():
    cluster = make_cluster()
    lease = leased(started(cluster))
    harness = OnCluster(cluster)
    harness.lost.append(ApiKey.INIT_PRODUCER_ID)
    result = harness.core.begin_join(lease, 0)
    harness.run_until(lambda: result.is_completed)
    assert isinstance(result.error, ClaimRefusedError)


def test_a_claim_that_did_not_arrive_is_asked_for_again():
    cluster = make_cluster()
    lease = leased(started(cluster))
    harness = OnCluster(cluster)
    harness.delayed.append(ApiKey.INIT_PRODUCER_ID)
    result = harness.core.begin_join(lease, 0)
    harness.run_until(lambda: result.is_completed)
    assert result.is_successful


@VERSIONS
def test_claims_of_a_committed_transaction_are_not_asked_for_again(version):
    cluster = make_cluster(version)
    holder = started(cluster)
    holder.core.adopt(share(cluster, holder, [b"1"]))
    holder.end(is_commit=True)
    asked = claims_asked(holder)
    assert asked == ["txn.claim-0", "txn.claim-1"]
    holder.core.adopt(share(cluster, holder, [b"2"]))
    holder.end(is_commit=True)
    assert claims_asked(holder) == asked
    share(cluster, holder, [b"lost"])
    holder.end(is_commit=False)
    holder.core.adopt(share(cluster, holder, [b"3"]))
    holder.end(is_commit=True)
    assert claims_asked(holder) == asked * 2
    assert committed(cluster) == [b"1", b"2", b"3"]


def claims_asked(harness):
    asked = [request.transactional_id for request in harness.client.sent(ApiKey.INIT_PRODUCER_ID)]
    return [name for name in asked if "claim" in name]


def test_a_claim_whose_epochs_are_used_up_is_asked_for_until_it_has_a_new_id():
    cluster = make_cluster()
    cluster.preset_epoch("txn.claim-0", 2**15 - 3)
    holder = started(cluster)
    lease = leased(holder, 1)
    assert lease.claims[0].producer_epoch == 1
    assert join(cluster, lease, 0)[1] is None


def test_what_the_next_answer_is():
    assert next_answer(ProducerIdAndEpoch(5, 3)) == ProducerIdAndEpoch(5, 4)
    assert next_answer(ProducerIdAndEpoch(5, 2**15 - 3)) == ProducerIdAndEpoch(5, 2**15 - 2)
    assert next_answer(ProducerIdAndEpoch(5, 2**15 - 2)) is None


@VERSIONS
def test_a_refused_claim_has_the_transaction_aborted(version):
    cluster = make_cluster(version)
    holder = started(cluster)
    holder.begin()
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    holder.rewrite[ApiKey.INIT_PRODUCER_ID] = lambda answer: type(answer)(error_code=code)
    result = holder.core.begin_lease(1)
    holder.run_until(lambda: result.is_completed)
    assert "claim 'txn.claim-0' is refused" in str(result.error)
    assert result.error.recovery == "abort"
    holder.end(is_commit=False)
    holder.core.adopt(share(cluster, holder, [b"then"]))
    holder.end(is_commit=True)
    assert committed(cluster) == [b"then"]


def test_a_claim_that_the_user_has_no_right_to_says_so():
    cluster = make_cluster()
    lease = leased(started(cluster))
    cluster.denied.add((Resource.TRANSACTIONAL_ID, "txn.claim-0"))
    error = join(cluster, lease, 0)[1]
    assert isinstance(error, TransactionalIdAuthorizationError)
    assert error.recovery == "fix"


# --- receipts ------------------------------------------------------------------------------------


def test_a_receipt_says_what_was_written():
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
    with pytest.raises(IllegalStateError, match="claim 0, 1 is missing"):
        holder.core.begin_commit()
    holder.core.adopt(receipts[1:])
    with pytest.raises(IllegalStateError, match="claim 0 is missing"):
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
    with pytest.raises(IllegalStateError, match="claim 0, 1 is missing"):
        holder.core.begin_commit()
    holder.core.adopt([first, second])
    holder.end(is_commit=True)


def test_only_a_leased_transaction_adopts():
    holder = started(make_cluster())
    with pytest.raises(IllegalStateError, match="adopt"):
        holder.core.adopt([])
    holder.begin()
    with pytest.raises(IllegalStateError, match="adopt"):
        holder.core.adopt([])


# --- what each part may not do -------------------------------------------------------------------


def a_lease():
    identity = ProducerIdAndEpoch(1, 0)
    return TransactionLease("txn", identity, is_transaction_v2=True, claims=(identity,))


def calls_of(harness):
    core = harness.core
    return {
        "init_transactions": core.init_transactions,
        "begin_transaction": core.begin_transaction,
        "send_offsets": lambda: core.send_offsets_to_transaction(
            {TP0: OffsetAndMetadata(1)}, GROUP
        ),
        "commit_transaction": core.begin_commit,
        "abort_transaction": core.begin_abort,
        "lease": lambda: core.begin_lease(1),
        "adopt": lambda: core.adopt([]),
        "resume": lambda: core.resume(harness.manager.share.lease),
        "join": lambda: core.begin_join(a_lease(), 0),
    }


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
    with pytest.raises(IllegalStateError, match="its participants write the records"):
        holder.send("topic", b"1")
    with pytest.raises(IllegalStateError, match="again"):
        holder.core.begin_lease(2)


@VERSIONS
def test_what_was_written_into_is_not_leased(version):
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
        with pytest.raises(ValueError, match="2 claims, which count from 0"):
            OnCluster(cluster).core.begin_join(lease, claim)


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
def test_an_abort_before_the_receipts_ends_what_participants_may_have_begun(version, has_begun):
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


# --- another process goes on ---------------------------------------------------------------------


def resumed(cluster, lease):
    harness = OnCluster(cluster, transactional_id=lease.transactional_id)
    harness.core.resume(lease)
    return harness


@VERSIONS
@pytest.mark.parametrize("is_commit", [False, True])
def test_a_transaction_is_handed_over(version, is_commit):
    cluster = make_cluster(version)
    opener = started(cluster)
    opener.transact(b"before")
    opener.begin()
    opener.write(b"1")
    lease = lease_of(opener, 0)
    assert lease.is_started
    assert not lease.claims
    opener.core.initiate_close(opener.now_ms)
    opener.run_until(lambda: opener.core.is_closed)
    heir = resumed(cluster, lease)
    with pytest.raises(IllegalStateError, match="written by another process"):
        heir.send("topic", b"not mine")
    heir.complete(
        heir.core.send_offsets_to_transaction({TP0: OffsetAndMetadata(3)}, GROUP_OF_NOBODY)
    )
    heir.end(is_commit=is_commit)
    assert is_all_decided(cluster)
    heir.transact(b"next")
    values = [*committed(cluster), *committed(cluster, TP1)]
    assert sorted(values) == sorted([b"before", *([b"1"] if is_commit else []), b"next"])


@VERSIONS
@pytest.mark.parametrize("is_written", [False, True])
def test_what_was_handed_over_is_handed_on_with_the_offsets_added(version, is_written):
    cluster = make_cluster(version)
    opener = started(cluster)
    opener.begin()
    if is_written:
        opener.write(b"1")
    heir = resumed(cluster, lease_of(opener, 0))
    with pytest.raises(IllegalStateError, match=r"lease\(\) again"):
        heir.core.begin_lease(1)
    heir.complete(
        heir.core.send_offsets_to_transaction({TP0: OffsetAndMetadata(3)}, GROUP_OF_NOBODY)
    )
    lease = lease_of(heir, 0)
    assert lease.is_started
    heir.core.initiate_close(heir.now_ms)
    heir.run_until(lambda: heir.core.is_closed)
    assert committed(cluster) == []
    resumed(cluster, lease).end(is_commit=True)
    assert is_all_decided(cluster)
    assert committed(cluster) == ([b"1"] if is_written else [])


@VERSIONS
def test_who_has_handed_over_does_nothing_more(version):
    cluster = make_cluster(version)
    opener = started(cluster)
    opener.begin()
    opener.write(b"1")
    lease_of(opener, 0)
    for call in calls_of(opener).values():
        with pytest.raises(IllegalStateError):
            call()
    with pytest.raises(IllegalStateError, match="handed over"):
        opener.send("topic", b"2")


@VERSIONS
def test_nothing_is_handed_over_with_records_on_their_way(version):
    opener = started(make_cluster(version))
    opener.begin()
    opener.send("topic", b"1")
    with pytest.raises(IllegalStateError, match=r"flush\(\) first"):
        opener.core.begin_lease(0)


@VERSIONS
def test_an_empty_transaction_is_handed_over(version):
    cluster = make_cluster(version)
    opener = started(cluster)
    opener.begin()
    heir = resumed(cluster, lease_of(opener, 0))
    heir.end(is_commit=True)
    assert not heir.client.sent(ApiKey.END_TXN)


@VERSIONS
def test_another_process_commits_with_the_receipts_of_a_lease(version):
    cluster = make_cluster(version)
    holder = started(cluster)
    receipts = share(cluster, holder, [b"1"])
    heir = resumed(cluster, holder.manager.share.lease)
    with pytest.raises(IllegalStateError, match="missing"):
        heir.core.begin_commit()
    heir.core.adopt(receipts)
    heir.end(is_commit=True)
    assert committed(cluster) == [b"1"]
    heir.core.adopt(share(cluster, heir, [b"2"]))
    heir.end(is_commit=True)
    result = holder.core.begin_abort()
    holder.run_until(lambda: result.is_completed)
    assert result.error is not None
    assert committed(cluster) == [b"1", b"2"]


def test_who_has_an_identity_resumes_nothing():
    cluster = make_cluster()
    holder = started(cluster)
    lease = leased(holder)
    with pytest.raises(IllegalStateError):
        started(cluster, transactional_id="other").core.resume(lease)


# --- with transactions v1 ------------------------------------------------------------------------


def test_v1_gives_participants_an_epoch_under_which_nothing_was_written():
    cluster = make_cluster(1)
    holder = started(cluster)
    holder.transact(b"own")
    epoch = holder.identity.producer_epoch
    lease = leased(holder)
    assert lease.producer.producer_epoch == epoch + 1
    holder.end(is_commit=False)
    assert holder.identity.producer_epoch == epoch + 2


def test_v1_does_not_ask_for_an_epoch_that_is_fresh():
    cluster = make_cluster(1)
    holder = started(cluster)
    lease = leased(holder)
    own = [r for r in holder.client.sent(ApiKey.INIT_PRODUCER_ID) if r.transactional_id == "txn"]
    assert len(own) == 1
    assert lease.producer == holder.identity


def test_v1_a_lost_answer_to_the_new_epoch_is_asked_for_again():
    cluster = make_cluster(1)
    holder = started(cluster)
    holder.transact(b"own")
    holder.begin()
    holder.lost.append(ApiKey.INIT_PRODUCER_ID)
    lease = lease_of(holder, 1)
    assert isinstance(holder.client.sent(ApiKey.INIT_PRODUCER_ID)[-1], InitProducerIdRequest)
    harness = participant(cluster, lease, 0)
    write(harness, TP0, b"1")
    holder.core.adopt([harness.core.give_receipt()])
    holder.end(is_commit=True)
    assert b"1" in committed(cluster)


def test_v1_a_late_write_of_an_aborted_transaction_is_not_committed_with_the_next():
    cluster = make_cluster(1)
    holder = started(cluster)
    lease = leased(holder)
    straggler = participant(cluster, lease, 0)
    write(straggler, TP0, b"1")
    straggler.delayed.append(ApiKey.PRODUCE)
    straggler.send("topic", b"late", partition=0)
    straggler.run_until(lambda: straggler.on_the_way)
    holder.end(is_commit=False)
    receipts = share(cluster, holder, [b"2"])
    straggler.arrive_late()
    holder.core.adopt(receipts)
    holder.end(is_commit=True)
    assert committed(cluster) == [b"2"]


# --- time ----------------------------------------------------------------------------------------


def test_a_lease_that_timed_out_is_asked_for_again_and_goes_on():
    cluster = make_cluster()
    holder = started(cluster)
    holder.begin()
    first = holder.core.begin_lease(2)
    assert holder.core.begin_lease(2) is first
    with pytest.raises(IllegalStateError, match="again"):
        holder.core.begin_lease(3)
    holder.complete(first)
    assert len(holder.manager.share.lease.claims) == 2


@VERSIONS
def test_nothing_is_sent_while_a_lease_is_under_way(version):
    cluster = make_cluster(version)
    holder = started(cluster)
    holder.transact(b"before")
    holder.begin()
    leasing = holder.core.begin_lease(1)
    with pytest.raises(IllegalStateError, match="its participants write the records"):
        holder.send("topic", b"of the holder", partition=0)
    holder.complete(leasing)
    harness = participant(cluster, holder.manager.share.lease, 0)
    write(harness, TP0, b"of the participant")
    holder.core.adopt([harness.core.give_receipt()])
    holder.end(is_commit=True)
    assert b"of the participant" in committed(cluster)


def test_a_lease_that_came_after_its_caller_had_timed_out_is_had_by_calling_again():
    holder = started(make_cluster())
    holder.begin()
    first = holder.core.begin_lease(1)
    holder.run_until(lambda: first.is_completed)
    assert holder.core.begin_lease(1) is first
    first.acknowledge()
    with pytest.raises(IllegalStateError, match="again"):
        holder.core.begin_lease(1)


def test_a_lease_under_way_does_not_hold_up_an_abort():
    cluster = make_cluster()
    holder = started(cluster)
    holder.begin()
    holder.stalled.add(ApiKey.INIT_PRODUCER_ID)
    leasing = holder.core.begin_lease(2)
    holder.run_until_sent(ApiKey.INIT_PRODUCER_ID, 2)
    aborting = holder.core.begin_abort()
    holder.stalled.clear()
    holder.run_until(lambda: aborting.is_completed)
    assert aborting.is_successful
    assert leasing.is_completed
    assert not leasing.is_successful
    assert holder.manager.share.part is SharePart.ALONE


# --- the rest ------------------------------------------------------------------------------------


def test_a_claim_is_asked_for_again_where_its_coordinator_has_moved():
    cluster = make_cluster()
    lease = leased(started(cluster))
    harness = OnCluster(cluster)

    refusal = InitProducerIdResponse(ErrorCode.CONCURRENT_TRANSACTIONS)
    harness.refused[ApiKey.INIT_PRODUCER_ID] = refusal
    result = harness.core.begin_join(lease, 0)
    harness.run_until(lambda: result.is_completed)
    assert result.is_successful
    asked = harness.client.sent(ApiKey.INIT_PRODUCER_ID)
    assert [request.transactional_id for request in asked] == ["txn.claim-0"] * 2


def test_a_participant_needs_the_id_of_the_lease():
    cluster = make_cluster()
    lease = leased(started(cluster))
    with pytest.raises(ValueError, match="they need one id"):
        OnCluster(cluster, transactional_id="other").core.begin_join(lease, 0)


def test_claims_whose_epochs_a_transaction_has_used_up_are_asked_for_again():
    cluster = make_cluster()
    cluster.preset_epoch("txn.claim-0", 2**15 - 5)
    holder = started(cluster)
    for number in range(4):
        holder.core.adopt(share(cluster, holder, [b"%d" % number], claims=1))
        holder.end(is_commit=True)
    assert committed(cluster) == [b"0", b"1", b"2", b"3"]
    assert len(claims_asked(holder)) > 1


def test_what_is_leased_is_told_by_the_core():
    holder = started(make_cluster())
    with pytest.raises(IllegalStateError, match="not leased"):
        assert holder.core.lease
    lease = leased(holder)
    assert holder.core.lease == lease
    assert holder.core.cluster_id is None  # the scripted client tells none


def test_claims_of_an_abort_are_asked_for_anew_though_their_receipts_were_there():
    cluster = make_cluster()
    holder = started(cluster)
    holder.core.adopt(share(cluster, holder, [b"1"]))
    holder.end(is_commit=False)
    asked = len(claims_asked(holder))
    leased(holder)
    assert len(claims_asked(holder)) == 2 * asked


@VERSIONS
def test_offsets_that_the_holder_added_are_committed_by_who_resumes_its_lease(version):
    cluster = make_cluster(version)
    holder = started(cluster)
    receipts = share(cluster, holder, [])
    offsets = {TP0: OffsetAndMetadata(9)}
    holder.complete(holder.core.send_offsets_to_transaction(offsets, GROUP_OF_NOBODY))
    heir = resumed(cluster, holder.manager.share.lease)
    heir.core.adopt(receipts)
    heir.end(is_commit=True)
    assert cluster.group_offsets("ledger").group("ledger").committed[TP0].offset == 9


def test_a_participant_is_closed_without_a_warning(caplog):
    cluster = make_cluster()
    harness = participant(cluster, leased(started(cluster)), 0)
    harness.core.initiate_close(harness.now_ms)
    harness.run_until(lambda: harness.core.is_closed)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_each_claim_is_asked_of_its_own_coordinator():
    holder = started(make_cluster())
    lease = leased(holder)
    holder.end(is_commit=False)
    keys = [request.key for request in holder.client.sent(ApiKey.FIND_COORDINATOR)]
    assert keys[-3:] == ["txn.claim-0", "txn.claim-1", "txn"]
    assert len(lease.claims) == 2
