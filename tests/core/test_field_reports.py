"""Failures that users of other clients reported, played over the modelled cluster.

Each test is marked with the report that it answers: an issue of Kafka (KAFKA-n), of another
client, or one of ten classes of failure that such reports fall into ("class-n"):

    1  a commit that failed and was called a success     6  retries without an end
    2  a commit nobody knows the outcome of              7  the wrong version, used-up epochs
    3  a late request in another transaction             8  ids that were idle for too long
    4  a coordinator that is gone                        9  a transaction that was left open
    5  a time-out without a way on                      10  an error that tells the wrong thing
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.on_cluster import OnCluster, committed, is_all_decided, make_cluster, started
from txnproducer._core.transactions.commit_evidence import SentCommit, resolve
from txnproducer._core.transactions.state import TransactionState
from txnproducer._protocol.messages import (
    ApiKey,
    ProduceResponse,
)
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    ErrorCode,
    InvalidPidMappingError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    KafkaError,
    ProducerFencedError,
)
from txnproducer.records import ProducerIdAndEpoch

LAST_EPOCH = 32766
PRODUCE, END_TXN, INIT = ApiKey.PRODUCE, ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID
either_version = pytest.mark.parametrize("version", [1, 2])


def test_the_cluster_executes_the_producers_requests():
    cluster = make_cluster()
    started(cluster).transact(b"value")
    assert committed(cluster) == [b"value"]
    assert is_all_decided(cluster)


# --- the coordinator ends the transaction by itself ---------------------------------------------


@pytest.mark.regression("KAFKA-19690")
@pytest.mark.parametrize(
    "code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE], ids=lambda c: c.name
)
def test_a_producer_that_stalled_beyond_its_time_out_aborts_and_goes_on(code):
    """Seen: after a stall the leader answered INVALID_TXN_STATE, and applications died of it.

    Here both that answer and the later brokers' INVALID_PRODUCER_EPOCH ask for an abort alone.
    """
    cluster = make_cluster()
    harness = started(cluster, transaction_timeout_ms=10_000)
    harness.begin()
    harness.write(b"before")
    harness.run_for(20_000)

    def answered(response):
        (only,) = response.partitions
        assert only.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        return ProduceResponse((only._replace(error_code=code),))

    harness.rewrite[PRODUCE] = answered
    late = harness.send("topic", b"after")
    harness.run_until(late.done)
    assert late.exception().code == code
    assert harness.state is TransactionState.ABORTABLE_ERROR
    assert harness.manager.machine.last_error.recovery == "abort"
    harness.end(is_commit=False)
    harness.transact(b"again")
    assert committed(cluster) == [b"again"]


@pytest.mark.regression("KAFKA-19690")
def test_with_v1_a_producer_that_stalled_learns_from_its_abort_that_it_was_fenced():
    """Seen: see above. With v1 the time-out's epoch is not the producer's to have (KIP-588).

    Here the abort says so, and a new producer finds nothing of the transaction.
    """
    cluster = make_cluster(version=1)
    harness = started(cluster, transaction_timeout_ms=10_000)
    harness.begin()
    harness.write(b"before")
    harness.run_for(20_000)
    late = harness.send("topic", b"after")
    harness.run_until(late.done)
    assert isinstance(late.exception(), InvalidProducerEpochError)
    assert harness.manager.machine.last_error.recovery == "abort"
    with pytest.raises(ProducerFencedError, match="timed out") as told:
        harness.end(is_commit=False)
    assert told.value.recovery == "restart"
    started(cluster, now_ms=harness.now_ms).transact(b"again")
    assert committed(cluster) == [b"again"]


@pytest.mark.regression("KAFKA-20785")
@pytest.mark.regression("class-1")
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.INVALID_TXN_STATE, InvalidTxnStateError),
        (ErrorCode.PRODUCER_FENCED, ProducerFencedError),
    ],
)
def test_a_commit_after_the_time_outs_abort_certainly_failed_and_a_new_producer_goes_on(
    code, kind
):
    """Seen: a commit that met the coordinator's own abort got INVALID_TXN_STATE and was fatal.

    Here it asks for a new producer, with this answer and with the later brokers'; nobody is told
    of a success, or left in doubt.
    """
    cluster = make_cluster()
    harness = started(cluster, transaction_timeout_ms=10_000)
    harness.begin()
    harness.write(b"lost")
    harness.run_for(20_000)

    def answered(response):
        assert response.error_code == ErrorCode.INVALID_TXN_STATE
        harness.rewrite[END_TXN] = answered  # a fence is asked for once more
        return response._replace(error_code=code)

    harness.rewrite[END_TXN] = answered
    with pytest.raises(kind) as told:
        harness.end(is_commit=True)
    assert told.value.recovery == "restart"
    assert not isinstance(told.value, CommitOutcomeUnknownError)
    assert harness.manager.progress.outcome == "open"
    started(cluster, now_ms=harness.now_ms).transact(b"again")
    assert committed(cluster) == [b"again"]


# --- epochs are used up -------------------------------------------------------------------------


@pytest.mark.regression("KAFKA-18660")
@pytest.mark.regression("class-7")
def test_v2_goes_on_under_a_new_id_after_the_last_epoch_while_markers_are_written():
    """Seen: after the last epoch the coordinator mixed the ids up, and producers were fenced.

    Here the identity in the answer is taken as it is; CONCURRENT_TRANSACTIONS is waited out.
    """
    cluster = make_cluster(max_marker_delay_ms=300)
    cluster.preset_epoch("txn", LAST_EPOCH - 1)
    harness = started(cluster)
    first = harness.identity
    assert first.producer_epoch == LAST_EPOCH
    harness.transact(b"one")
    second = harness.identity
    assert second.producer_id != first.producer_id
    assert second.producer_epoch == 0
    harness.transact(b"two")
    harness.run_for(1_000)
    assert harness.identity == ProducerIdAndEpoch(second.producer_id, 1)
    assert committed(cluster) == [b"one", b"two"]
    assert is_all_decided(cluster)
    assert len(harness.client.sent(INIT)) == 1


@pytest.mark.regression("KAFKA-18660")
@pytest.mark.regression("class-7")
def test_v1_goes_on_under_a_new_id_when_the_epoch_can_be_raised_no_further():
    """Seen as above. On v1 the bumps that its client asks for reach the last epoch.

    Here the answer to a bump may bring another id. Sequences begin at 0 with it.
    """
    cluster = make_cluster(version=1)
    cluster.preset_epoch("txn", LAST_EPOCH - 1)
    harness = started(cluster)
    first = harness.identity
    harness.begin()
    harness.write(b"one")
    harness.lost.append(END_TXN)
    harness.end(is_commit=True)
    bump = harness.client.sent(INIT)[-1]
    assert (bump.producer_id, bump.producer_epoch) == (first.producer_id, LAST_EPOCH)
    assert harness.identity.producer_id != first.producer_id
    assert harness.identity.producer_epoch == 0
    harness.transact(b"two")
    assert committed(cluster) == [b"one", b"two"]
    assert harness.sequences_sent() == [0, 0]
    assert is_all_decided(cluster)


@pytest.mark.regression("KAFKA-19367")
@pytest.mark.regression("class-9")
@either_version
@pytest.mark.parametrize("epoch", [5, LAST_EPOCH])
def test_a_new_producer_ends_a_dead_ones_transaction_also_under_the_last_epoch(version, epoch):
    """Seen: fencing and aborting raised the epoch twice, from 32766 beyond the range of a short.

    Here init_transactions waits until the abort is complete, and takes the identity in the answer.
    """
    cluster = make_cluster(version)
    cluster.preset_epoch("txn", epoch - 1)
    dead = started(cluster)
    assert dead.identity.producer_epoch == epoch
    dead.begin()
    dead.write(b"never ended")
    heir = OnCluster(cluster)
    heir.init()
    assert len(heir.client.sent(INIT)) > 1
    assert (heir.identity.producer_id == dead.identity.producer_id) is (epoch != LAST_EPOCH)
    heir.transact(b"new")
    assert committed(cluster) == [b"new"]
    assert is_all_decided(cluster)
    late = dead.send("topic", b"too late")
    dead.run_until(late.done)
    assert late.exception() is not None
    assert committed(cluster) == [b"new"]


def describe(cluster):
    """Return a commit's evidence: the id's state, and its identity."""
    known = cluster.transaction_coordinator("txn").find("txn")
    return known.state.value, ProducerIdAndEpoch(known.producer_id, known.producer_epoch)


@pytest.mark.regression("FLINK-40689")
@pytest.mark.regression("class-7")
def test_a_commit_is_repeated_and_judged_by_the_version_that_it_was_begun_with():
    """Seen: a commit restored after the last epoch, not known to be one of v2, was refused.

    Here the repeated EndTxn says which version it is, and `last_commit` keeps it for the judge.
    """
    cluster = make_cluster()
    cluster.preset_epoch("txn", LAST_EPOCH - 1)
    harness = started(cluster)
    harness.begin()
    harness.write(b"value")
    mine = harness.identity
    harness.client.set_transaction_version(1)  # a downgrade changes later transactions alone
    harness.lost.append(END_TXN)
    harness.end(is_commit=True)
    first, again = harness.client.sent(END_TXN)
    assert again == first
    assert again.is_transaction_v2_enabled
    assert again.producer_epoch == LAST_EPOCH
    assert harness.identity.producer_epoch == 0
    sent = harness.manager.last_commit
    assert sent == SentCommit(mine, is_transaction_v2=True)
    assert resolve(sent, *describe(cluster)) == "committed"
    assert resolve(replace(sent, is_transaction_v2=False), *describe(cluster)) == "unknown"


# --- ids are forgotten --------------------------------------------------------------------------


@pytest.mark.regression("KAFKA-18019")
@pytest.mark.regression("class-8")
@either_version
def test_a_fenced_producer_stays_fenced_when_the_cluster_has_forgotten_the_id(version):
    """Seen: recovering from an expired id brought a fenced producer back, and wrote twice.

    Here INVALID_PRODUCER_ID_MAPPING ends the producer, for good.
    """
    cluster = make_cluster(
        version, transactional_id_expiration_ms=60_000, producer_id_expiration_ms=60_000
    )
    first = started(cluster)
    first.transact(b"up to 4")
    second = started(cluster)
    second.transact(b"5")
    first.run_for(200_000)
    first.begin()
    stale = first.send("topic", b"5")
    first.run_until(stale.done)
    assert isinstance(stale.exception(), InvalidPidMappingError)
    assert first.state is TransactionState.FATAL_ERROR
    assert first.manager.machine.last_error.recovery == "restart"
    for call in (first.core.begin_abort, first.core.init_transactions):
        with pytest.raises(KafkaError) as refusal:
            call()
        assert refusal.value.recovery == "restart"
    asked = len(first.client.sent(INIT))
    first.run_for(100_000)
    assert len(first.client.sent(INIT)) == asked
    assert committed(cluster) == [b"up to 4", b"5"]


@pytest.mark.regression("class-8")
@either_version
def test_after_a_week_of_rest_a_new_producer_of_the_id_goes_on(version):
    """Seen: services died after a quiet week, and went on dying because they kept the producer.

    Here the error says that a new producer is the way out, and it is.
    """
    cluster = make_cluster(version, transactional_id_expiration_ms=60_000)
    harness = started(cluster)
    harness.transact(b"one")
    harness.run_for(200_000)
    harness.begin()
    future = harness.send("topic", b"refused")
    harness.run_until(future.done)
    assert future.exception().recovery == "restart"
    assert "make a new producer" in (type(future.exception()).__doc__ or "")
    heir = started(cluster, now_ms=harness.now_ms)
    heir.transact(b"two")
    assert committed(cluster) == [b"one", b"two"]
