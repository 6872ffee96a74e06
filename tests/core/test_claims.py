"""The claims of a leased transaction: one writer each, with epochs that no other one has."""

from __future__ import annotations

import pytest

from tests.core.on_cluster import OnCluster, committed, make_cluster, started
from tests.core.sharing import VERSIONS, join, lease_of, leased, participant, share, write
from tests.harness import TP0
from txnproducer._broker.resources import Resource
from txnproducer._core.transactions.claims import next_answer
from txnproducer._core.transactions.share import SharePart
from txnproducer._core.transactions.state import TransactionState
from txnproducer._protocol.messages import ApiKey, InitProducerIdRequest, InitProducerIdResponse
from txnproducer.errors import (
    ClaimRefusedError,
    ErrorCode,
    IllegalStateError,
    KafkaError,
    TransactionalIdAuthorizationError,
)
from txnproducer.records import ProducerIdAndEpoch

# --- one writer ----------------------------------------------------------------------------------


@VERSIONS
def test_the_second_of_two_that_take_one_claim_is_refused(version):
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


def test_a_claim_taken_with_an_old_lease_is_stopped_by_the_later_lease():
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


def test_the_next_answer_has_the_next_epoch_unless_it_is_the_last():
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
    with pytest.raises(IllegalStateError, match="leased and its participants write the records"):
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


def test_claims_whose_epochs_a_transaction_has_used_up_are_asked_for_again():
    cluster = make_cluster()
    cluster.preset_epoch("txn.claim-0", 2**15 - 5)
    holder = started(cluster)
    for number in range(4):
        holder.core.adopt(share(cluster, holder, [b"%d" % number], claims=1))
        holder.end(is_commit=True)
    assert committed(cluster) == [b"0", b"1", b"2", b"3"]
    assert len(claims_asked(holder)) > 1


def test_claims_of_an_abort_are_asked_for_again_in_spite_of_their_receipts():
    cluster = make_cluster()
    holder = started(cluster)
    holder.core.adopt(share(cluster, holder, [b"1"]))
    holder.end(is_commit=False)
    asked = len(claims_asked(holder))
    leased(holder)
    assert len(claims_asked(holder)) == 2 * asked


def test_each_claim_is_asked_of_its_own_coordinator():
    holder = started(make_cluster())
    lease = leased(holder)
    holder.end(is_commit=False)
    keys = [request.key for request in holder.client.sent(ApiKey.FIND_COORDINATOR)]
    assert keys[-3:] == ["txn.claim-0", "txn.claim-1", "txn"]
    assert len(lease.claims) == 2
