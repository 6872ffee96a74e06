"""A prepared transaction waits for a decision, and any process may end it by its lease."""

from __future__ import annotations

import logging

import pytest

from tests.core.on_cluster import OnCluster, committed, is_all_decided, make_cluster, started
from tests.core.sharing import GROUP_OF_NOBODY, VERSIONS, lease_of
from tests.harness import TP0
from txnproducer._core.transactions.state import TransactionState
from txnproducer._protocol.messages import ApiKey, EndTxnResponse
from txnproducer.errors import ErrorCode, IllegalStateError, KafkaError, ProducerFencedError
from txnproducer.records import OffsetAndMetadata


def prepared(cluster, value=b"1", **settings):
    """Return a producer with a prepared transaction, and the lease."""
    harness = started(cluster, **settings)
    harness.begin()
    harness.write(value)
    return harness, harness.core.prepare_transaction()


def heir_of(cluster, lease):
    """Return another process's producer that has taken the transaction over."""
    heir = OnCluster(cluster, transactional_id=lease.transactional_id)
    heir.core.resume(lease, is_prepared=True)
    return heir


@VERSIONS
@pytest.mark.parametrize("is_commit", [True, False])
def test_its_own_producer_ends_it_and_goes_on(version, is_commit):
    cluster = make_cluster(version)
    harness, lease = prepared(cluster)
    assert harness.state is TransactionState.PREPARED_TRANSACTION
    assert committed(cluster) == []
    harness.end(is_commit=is_commit)
    harness.transact(b"2")
    assert committed(cluster) == ([b"1", b"2"] if is_commit else [b"2"])
    # A late request under the lease belongs to no later transaction, with v1 as well.
    assert harness.identity.producer_epoch > lease.producer.producer_epoch


@VERSIONS
@pytest.mark.parametrize("is_commit", [True, False])
def test_another_process_ends_it_by_its_lease(version, is_commit):
    cluster = make_cluster(version)
    _, lease = prepared(cluster)
    heir_of(cluster, lease).end(is_commit=is_commit)
    assert committed(cluster) == ([b"1"] if is_commit else [])
    assert is_all_decided(cluster)


@VERSIONS
def test_a_commit_may_be_repeated_by_the_lease(version):
    cluster = make_cluster(version)
    harness, lease = prepared(cluster)
    harness.end(is_commit=True)
    if version == 2:
        heir_of(cluster, lease).end(is_commit=True)
    else:  # the epoch was raised after the first commit, so the lease is an old one
        with pytest.raises(ProducerFencedError):
            heir_of(cluster, lease).end(is_commit=True)
    assert committed(cluster) == [b"1"]


@pytest.mark.parametrize("is_heir", [False, True])
@pytest.mark.parametrize("timeout_ms", [0, 30_000])
@VERSIONS
def test_a_close_leaves_it_open(version, timeout_ms, is_heir):
    cluster = make_cluster(version)
    harness, lease = prepared(cluster)
    if is_heir:
        harness = heir_of(cluster, lease)
    harness.core.initiate_close(harness.now_ms)
    if not timeout_ms:
        harness.core.force_close(harness.now_ms)
    harness.run_until(lambda: harness.core.is_closed)
    assert not harness.client.sent(ApiKey.END_TXN)
    heir_of(cluster, lease).end(is_commit=True)
    assert committed(cluster) == [b"1"]


@pytest.mark.parametrize("is_heir", [False, True])
def test_nothing_is_added_to_it(is_heir):
    cluster = make_cluster()
    harness, lease = prepared(cluster)
    if is_heir:
        harness = heir_of(cluster, lease)
    way_out = "PREPARED_TRANSACTION; the transaction is prepared: complete\\(\\) it, or close"
    with pytest.raises(IllegalStateError, match=way_out):
        harness.send("topic", b"2")
    with pytest.raises(IllegalStateError, match=way_out):
        harness.core.send_offsets_to_transaction({TP0: OffsetAndMetadata(1)}, GROUP_OF_NOBODY)
    with pytest.raises(IllegalStateError, match=way_out):
        harness.core.prepare_transaction()
    with pytest.raises(IllegalStateError, match=way_out):
        harness.core.begin_lease(0)
    for call in (harness.core.begin_transaction, harness.core.init_transactions):
        with pytest.raises(IllegalStateError, match="the transaction is prepared"):
            call()
    harness.end(is_commit=True)


def test_it_needs_an_open_transaction_with_nothing_on_its_way():
    harness = started(make_cluster())
    with pytest.raises(IllegalStateError, match="nothing to prepare in state READY; call begin"):
        harness.core.transaction_to_prepare()
    harness.begin()
    assert harness.core.transaction_to_prepare() is harness.manager
    future = harness.send("topic", b"1")
    with pytest.raises(IllegalStateError, match=r"prepare_transaction\(\) while requests are on"):
        harness.core.prepare_transaction()
    harness.run_until(future.done)
    lease_of(harness, claims=0)
    with pytest.raises(IllegalStateError, match="leased already"):
        harness.core.prepare_transaction()


def test_a_record_that_fails_beside_it_does_not_doom_it():
    cluster = make_cluster()
    harness, _ = prepared(cluster)
    harness.manager.progress.maybe_transition_to_error_state(KafkaError("a send of before"))
    assert harness.state is TransactionState.PREPARED_TRANSACTION
    harness.end(is_commit=True)
    assert committed(cluster) == [b"1"]


def test_a_refused_commit_leaves_it_open():
    cluster = make_cluster()
    harness, lease = prepared(cluster)
    harness.refused[ApiKey.END_TXN] = EndTxnResponse(ErrorCode.TRANSACTION_ABORTABLE)
    with pytest.raises(KafkaError):
        harness.end(is_commit=True)
    assert harness.state is TransactionState.ABORTABLE_ERROR
    harness.core.initiate_close(harness.now_ms)
    harness.run_until(lambda: harness.core.is_closed)
    assert len(harness.client.sent(ApiKey.END_TXN)) == 1
    heir_of(cluster, lease).end(is_commit=True)
    assert committed(cluster) == [b"1"]


def test_the_line_about_a_fenced_one_says_that_its_outcome_is_unknown(caplog):
    caplog.set_level(logging.INFO, "txnproducer.transactions")
    cluster = make_cluster()
    harness, _ = prepared(cluster)
    started(cluster)
    with pytest.raises(ProducerFencedError):
        harness.end(is_commit=True)
    (line,) = [r.args for r in caplog.records if r.name == "txnproducer.transactions"]
    assert line["outcome"] == "unknown"


@pytest.mark.parametrize("is_commit", [True, False])
def test_its_end_is_unseen_until_the_caller_has_seen_it(is_commit):
    harness, _ = prepared(make_cluster())
    assert harness.manager.unseen_end is None
    begin = harness.core.begin_commit if is_commit else harness.core.begin_abort
    result = begin()
    call = "commit_transaction" if is_commit else "abort_transaction"
    assert harness.manager.unseen_end == call
    harness.run_until(lambda: result.is_completed)
    assert harness.manager.unseen_end == call
    result.acknowledge()
    assert harness.manager.unseen_end is None


def test_an_initialization_is_no_end():
    harness = OnCluster(make_cluster(), transactional_id="t")
    harness.core.init_transactions()
    assert harness.manager.unseen_end is None


@pytest.mark.parametrize("is_heir", [False, True])
def test_the_refusal_of_an_heirs_end_is_no_error_in_the_log(is_heir, caplog):
    caplog.set_level(logging.DEBUG, "txnproducer")
    cluster = make_cluster()
    harness, lease = prepared(cluster)
    started(cluster)
    if is_heir:
        harness = heir_of(cluster, lease)
    with pytest.raises(ProducerFencedError):
        harness.end(is_commit=True)
    (line,) = [each for each in caplog.records if "cannot go on" in each.message]
    assert line.levelname == ("DEBUG" if is_heir else "ERROR")
