"""Many transactional ids are taken and ended at once, over few connections."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from tests.core.sharing import a_lease
from tests.spark.coordinator.leases import (
    IDS,
    PATIENCE_MS,
    abort,
    commit,
    errors,
    leased,
    made,
    take,
    values,
    write,
    written,
)
from tests.waiting import becomes_true
from txnproducer._core.transactions.commit_evidence import LAST_EPOCH
from txnproducer._protocol.messages import EndTxnResponse
from txnproducer.errors import (
    ClaimRefusedError,
    CommitOutcomeUnknownError,
    ErrorCode,
    InvalidTxnStateError,
    KafkaTimeoutError,
    ProducerFencedError,
    TransactionalIdAuthorizationError,
)
from txnproducer.lease import TransactionParticipant
from txnproducer.producer import TransactionalProducer
from txnproducer.records import ProducerIdAndEpoch
from txnproducer.spark.ledger.broker_lanes import MOST_CONNECTIONS
from txnproducer.spark.ledger.coordinator_client import TakenId
from txnproducer.spark.ledger.id_requests import EndRequest

# --- the usual ways ------------------------------------------------------------------------------


def test_tasks_write_under_leases_of_taken_ids_and_all_of_them_are_committed(kafka, client):
    leases = written(client, kafka.listen(), IDS[:4])
    assert values(kafka) == []
    assert errors(commit(client, leases)) == {type(None)}
    assert becomes_true(lambda: values(kafka) == [0, 1, 2, 3])


def test_a_commit_that_is_repeated_under_the_same_lease_succeeds_again(kafka, client):
    leases = written(client, kafka.listen(), IDS[:2])
    first = commit(client, leases)
    assert commit(client, leases) == first
    assert becomes_true(lambda: values(kafka) == [0, 1])


def test_transactions_that_are_aborted_leave_nothing(kafka, client):
    leases = written(client, kafka.listen(), IDS[:2])
    assert errors(abort(client, leases)) == {type(None)}
    assert values(kafka) == []


def test_an_end_tells_the_identity_of_the_next_transaction_if_it_has_one(kafka, client, version):
    leases = written(client, kafka.listen(), IDS[:1])
    ended = commit(client, leases)[IDS[0]]
    if version == 1:
        assert ended.next == ProducerIdAndEpoch.NONE
        return
    (claim,) = client.take_claims([(IDS[0], 0)], PATIENCE_MS).values()
    next_lease = replace(leases[0], producer=ended.next, claims=(claim,))
    write(next_lease, 1, kafka.listen())
    assert errors(commit(client, [next_lease])) == {type(None)}
    assert becomes_true(lambda: values(kafka) == [0, 1])


def test_a_claim_that_is_taken_once_more_refuses_the_task_that_has_the_older_one(kafka, client):
    (lease,) = leased(client, IDS[:1])
    client.take_claims([(IDS[0], 0)], PATIENCE_MS)
    with pytest.raises(ClaimRefusedError):
        TransactionParticipant(lease, 0, kafka.listen())


def test_a_claim_at_its_last_epoch_is_taken_once_more(client, monkeypatch):
    names, taken = [], [ProducerIdAndEpoch(7, LAST_EPOCH), ProducerIdAndEpoch(8, 0)]

    def take_ids(ids, _):
        names.extend(ids)
        return {names[-1]: TakenId(names[-1], taken.pop(0), True)}

    monkeypatch.setattr(client, "take_ids", take_ids)
    answers = client.take_claims([("sink.p0", 3)], PATIENCE_MS)
    assert answers == {("sink.p0", 3): ProducerIdAndEpoch(8, 1)}
    assert names == ["sink.p0.claim-3"] * 2


def test_taking_an_id_fences_its_holder_and_aborts_what_it_left_open(kafka, client):
    with TransactionalProducer(kafka.listen(), IDS[3]) as holder:
        holder.init_transactions()
        holder.begin_transaction()
        holder.send("orders", b"1", partition=0)
        holder.flush()
        take(client)
        with pytest.raises(ProducerFencedError):
            holder.commit_transaction()
    assert values(kafka) == []


def test_a_lease_knows_its_cluster_and_the_version_of_transactions(kafka, client, version):
    (taken,) = take(client, IDS[:1]).values()
    with kafka.producer("other") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        theirs = producer.lease(1)
        producer.abort_transaction()
    assert (taken.cluster_id, taken.is_transaction_v2) == (
        theirs.cluster_id,
        theirs.is_transaction_v2,
    )
    assert taken.is_transaction_v2 == (version == 2)


def test_an_end_of_a_lease_of_another_cluster_is_refused(kafka, client):
    leases = written(client, kafka.listen(), IDS[:2])
    foreign = [replace(leases[0], cluster_id="elsewhere"), leases[1]]
    with made(kafka.listen()) as new:  # which does not know the cluster yet
        for each in (client, new):
            ends = commit(each, foreign)
            assert isinstance(ends[IDS[0]].error, ClaimRefusedError)
            assert "is of cluster 'elsewhere', and" in str(ends[IDS[0]].error)
            assert ends[IDS[1]].error is None
    assert len(kafka.records("orders")) == 1


def test_no_id_needs_no_cluster():
    with made("localhost:1") as client:
        assert take(client, []) == {}


def test_many_ids_have_a_few_connections_to_each_broker(kafka, client):
    take(client, [f"sink.p{number}" for number in range(300)])
    lanes = [broker.lanes for broker in client._steps._brokers.values()]
    assert lanes == [MOST_CONNECTIONS] * 3


# --- coordinators --------------------------------------------------------------------------------


def test_a_coordinator_that_has_moved_is_looked_up(kafka, client):
    leases = written(client, kafka.listen(), IDS[:3])
    for name in IDS[:3]:
        kafka.move_coordinator(name)
    assert errors(commit(client, leases)) == {type(None)}
    assert becomes_true(lambda: values(kafka) == [0, 1, 2])


@pytest.mark.parametrize("node", [0, 1, 2])
def test_another_broker_goes_on_for_one_that_is_down(kafka, client, node):
    leases = written(client, kafka.listen(), IDS[:3])
    with kafka.stopped(node):
        assert errors(commit(client, leases)) == {type(None)}
    assert becomes_true(lambda: values(kafka) == [0, 1, 2])


@pytest.mark.parametrize("node", [0, 1, 2])
def test_ids_are_taken_while_a_broker_is_down(kafka, client, node):
    with kafka.stopped(node):
        assert list(take(client)) == IDS


@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("Metadata", "TOPIC_AUTHORIZATION_FAILED"),
        ("InitProducerId", "NOT_COORDINATOR"),
        ("InitProducerId", "COORDINATOR_LOAD_IN_PROGRESS"),
        ("InitProducerId", "CONCURRENT_TRANSACTIONS"),
        ("FindCoordinator", "COORDINATOR_NOT_AVAILABLE"),
    ],
)
def test_ids_are_taken_in_spite_of_passing_refusals(kafka, client, api, error):
    if api == "FindCoordinator":
        kafka.fail_next("InitProducerId", error="NOT_COORDINATOR", times=30)
    kafka.fail_next(api, error=error, times=30 if api != "Metadata" else 1)
    assert list(take(client)) == IDS


@pytest.mark.parametrize("api", ["Metadata", "FindCoordinator", "InitProducerId"])
@pytest.mark.parametrize("lost", ["request", "answer"])
def test_ids_are_taken_in_spite_of_lost_connections(kafka, client, api, lost):
    if api == "FindCoordinator":
        kafka.fail_next("InitProducerId", error="NOT_COORDINATOR", times=5)
    (kafka.lose_request if lost == "request" else kafka.lose_answer)(api, times=3)
    assert list(take(client)) == IDS


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_commits_succeed_in_spite_of_lost_connections(kafka, client, lost):
    leases = written(client, kafka.listen(), IDS[:4])
    (kafka.lose_request if lost == "request" else kafka.lose_answer)("EndTxn", times=3)
    assert errors(commit(client, leases)) == {type(None)}
    assert becomes_true(lambda: values(kafka) == [0, 1, 2, 3])


# --- refusals and time-outs ----------------------------------------------------------------------


def test_a_commit_under_an_id_that_was_taken_since_is_refused_and_the_others_succeed(
    kafka, client
):
    leases = written(client, kafka.listen(), IDS[:3])
    kafka.fence(IDS[1])
    ends = commit(client, leases)
    assert isinstance(ends[IDS[1]].error, ProducerFencedError)
    assert (ends[IDS[0]].error, ends[IDS[2]].error) == (None, None)
    assert becomes_true(lambda: values(kafka) == [0, 2])


def test_a_commit_of_what_was_aborted_is_refused(kafka, client, version):
    leases = written(client, kafka.listen(), IDS[:1])
    abort(client, leases)
    error = commit(client, leases)[IDS[0]].error
    assert isinstance(error, InvalidTxnStateError)


def test_an_answer_that_is_lost_before_a_refusal_leaves_the_commit_in_doubt(kafka, client):
    leases = written(client, kafka.listen(), IDS[:1])
    kafka.lose_request("EndTxn")
    kafka.fail_next("EndTxn", error="PRODUCER_FENCED", times=2)
    error = commit(client, leases)[IDS[0]].error
    assert isinstance(error, CommitOutcomeUnknownError)
    assert isinstance(error.__cause__, ProducerFencedError)


def test_one_refusal_that_may_be_from_memory_does_not_count(kafka, client, version):
    codes = ["PRODUCER_FENCED", *(["INVALID_PRODUCER_EPOCH"] if version == 1 else [])]
    for number, code in enumerate(codes):
        leases = written(client, kafka.listen(), [IDS[number]])
        kafka.fail_next("EndTxn", error=code)
        assert commit(client, leases)[IDS[number]].error is None


def test_one_refusal_of_each_of_two_brokers_does_not_count():
    request = EndRequest(a_lease(), is_commit=True)
    for node_id in (1, 2, 1):
        request.begin_attempt(node_id)
        step = request.take(EndTxnResponse(ErrorCode.PRODUCER_FENCED), 100)
        assert step.looks_up
    request.begin_attempt(1)
    request.take(EndTxnResponse(ErrorCode.PRODUCER_FENCED), 100)
    assert isinstance(request.error, ProducerFencedError)


def test_one_refusal_before_and_one_after_a_lost_answer_do_not_count():
    request = EndRequest(a_lease(), is_commit=True)
    refusal = EndTxnResponse(ErrorCode.PRODUCER_FENCED)
    request.begin_attempt(1)
    request.take(refusal, 100)
    request.note_lost(request.begin_attempt(1))
    for ends in (False, True):
        request.begin_attempt(1)
        request.take(refusal, 100)
        assert (request.error is not None) == ends


def test_a_right_that_is_missing_is_raised_with_the_id(kafka, client):
    kafka.deny(transactional_id=IDS[7])
    with pytest.raises(TransactionalIdAuthorizationError) as caught:
        take(client)
    assert any(IDS[7] in note for note in caught.value.__notes__)
    assert kafka.transactions().keys() >= {*IDS} - {IDS[7]}


def test_an_id_without_an_answer_is_given_up_at_the_deadline(kafka, client):
    kafka.fail_next("InitProducerId", error="CONCURRENT_TRANSACTIONS", times=100_000)
    with pytest.raises(KafkaTimeoutError, match=r"sink\.p0.* within 200 ms.*last attempt"):
        take(client, IDS[:1], 200)
    kafka.clear_faults()
    assert list(take(client, IDS[:1])) == IDS[:1]


def test_a_commit_without_an_answer_is_in_doubt_at_the_deadline(kafka, client):
    leases = written(client, kafka.listen(), IDS[:2])
    kafka.delay("EndTxn", 1.0)
    kafka.delay("EndTxn", 1.0)
    ends = commit(client, leases, 200)
    assert errors(ends) == {CommitOutcomeUnknownError}
    assert errors(commit(client, leases)) == {type(None)}


def test_a_cluster_that_is_away_is_named_at_the_deadline():
    with made("127.0.0.1:1") as client:
        with pytest.raises(KafkaTimeoutError, match=r"127\.0\.0\.1:1"):
            take(client, IDS[:1], 300)


def test_calls_of_several_threads_do_not_mix(client):
    found = {}

    def call(number):
        names = [f"sink{number}.p{each}" for each in range(20)]
        found[number] = (names, list(take(client, names)))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(found) == 4
    assert all(names == taken for names, taken in found.values())
