"""The cause of a lost transaction, by the coordinator's description and the transaction's age."""

from __future__ import annotations

import re

import pytest

from tests.core.on_cluster import OnCluster, make_cluster, started
from tests.harness import CoreHarness
from tests.scripted_client import DESCRIBE_VERSIONS, PRODUCER_EPOCH, PRODUCER_ID
from txnproducer._core.sending.loss_inquiry import LONGEST_MS
from txnproducer._core.transactions.transaction_loss import Cause
from txnproducer._protocol.messages import (
    ApiKey,
    DescribeTransactionsResponse,
    TransactionDescription,
)
from txnproducer.errors import (
    ErrorCode,
    InvalidProducerEpochError,
    KafkaError,
    ProducerFencedError,
)
from txnproducer.records import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

DESCRIBE = ApiKey.DESCRIBE_TRANSACTIONS
VERSIONS = pytest.mark.parametrize("version", [1, 2])


def asking(cluster, **settings):
    """Return a producer on brokers that offer DescribeTransactions, in a transaction."""
    harness = OnCluster(cluster, delivery_timeout_ms=600_000, **settings)
    harness.client.default_versions = dict(DESCRIBE_VERSIONS)
    harness.init()
    harness.begin()
    harness.write(b"one")
    return harness


def asking_scripted(state="Ongoing", epoch=PRODUCER_EPOCH + 2):
    """Return a producer in a transaction for which the coordinator names another epoch."""
    harness = CoreHarness()
    harness.client.default_versions = dict(DESCRIBE_VERSIONS)
    other = TransactionDescription(0, "txn", state, PRODUCER_ID, epoch)
    harness.client.prepare(DESCRIBE, lambda _: DescribeTransactionsResponse((other,)))
    harness.init_transactions()
    harness.begin_transaction()
    harness.send("topic", b"one")
    harness.settle()
    return harness


def ended(harness, begin):
    """Return the error of a transactional call, as the shell raises it."""
    try:
        result = begin()
        harness.run_until(lambda: result.is_completed)
        error = result.error
    except KafkaError as raised:
        error = raised
    harness.settle()
    assert harness.core.is_loss_explained
    return harness.core.explained(error)


def pass_time(harness, ms):
    harness.now_ms += ms
    harness.cluster.advance(harness.now_ms)


# --- on the model of a cluster, with both versions -----------------------------------------------


@VERSIONS
def test_a_commit_after_the_time_out_says_after_how_long(version):
    harness = asking(make_cluster(version))
    pass_time(harness, 61_000)
    error = ended(harness, harness.core.begin_commit)
    assert "the coordinator aborted it after 61 s (transaction_timeout_ms=60000)" in str(error)
    assert "taken over" not in str(error)
    assert harness.manager.progress.loss.cause is Cause.TIMED_OUT
    assert len(harness.client.sent(DESCRIBE)) == 1


@VERSIONS
def test_a_record_after_the_time_out_makes_the_next_call_say_so(version):
    harness = asking(make_cluster(version))
    pass_time(harness, 61_000)
    future = harness.send("topic", b"two")
    harness.run_until(future.done)
    told = str(_error(future))
    assert "most likely the coordinator aborted it" in told  # by age alone
    assert "transaction_timeout_ms=60000" in told
    error = ended(harness, harness.core.begin_commit)
    assert "the coordinator aborted it after 61 s (transaction_timeout_ms=60000)" in str(error)
    assert error.recovery == "abort"


def _error(future):
    with pytest.raises(KafkaError) as told:
        future.result()
    return told.value


@VERSIONS
@pytest.mark.parametrize("is_open", [True, False])
def test_a_newer_producer_is_named_with_its_epoch(version, is_open):
    cluster = make_cluster(version)
    harness = asking(cluster)
    if not is_open:
        harness.end(is_commit=True)
        harness.begin()
    newer = started(cluster, now_ms=harness.now_ms)
    harness.now_ms = newer.now_ms
    if not is_open:
        future = harness.send("topic", b"two")
        harness.run_until(future.done)
    error = ended(harness, harness.core.begin_commit)
    epoch = newer.identity.producer_epoch
    assert f"a newer producer of this id, epoch {epoch}, has taken over" in str(error)
    assert "transactional id 'txn'" in str(error)
    assert "aborted" not in str(error)


@VERSIONS
def test_a_newer_producer_that_has_written_since_is_seen_as_well(version):
    cluster = make_cluster(version)
    harness = asking(cluster)
    newer = started(cluster, now_ms=harness.now_ms)
    newer.transact(b"of the newer one")
    harness.now_ms = newer.now_ms
    error = ended(harness, harness.core.begin_commit)
    epoch = newer.identity.producer_epoch
    assert f"epoch {epoch}, has taken over" in str(error)


@VERSIONS
def test_an_abort_before_its_time_clears_the_way_for_a_newer_producer(version):
    """InitProducerId aborts an open transaction first, and has to be repeated for its epoch."""
    cluster = make_cluster(version)
    harness = asking(cluster)
    coordinator = cluster.transaction_coordinator("txn")
    coordinator.fence(coordinator.find("txn"), harness.now_ms)
    pass_time(harness, 1000)
    error = ended(harness, harness.core.begin_commit)
    assert "a newer producer of this id has taken over" in str(error)


def test_the_next_transaction_has_nothing_to_do_with_it():
    harness = asking(make_cluster(2))
    pass_time(harness, 61_000)
    future = harness.send("topic", b"two")
    harness.run_until(future.done)
    harness.end(is_commit=False)
    harness.begin()
    assert harness.manager.progress.loss is None
    harness.write(b"three")
    harness.end(is_commit=True)


def test_an_id_that_the_coordinator_has_forgotten_is_called_that():
    cluster = make_cluster(1)
    harness = asking(cluster)
    harness.end(is_commit=True)
    harness.begin()
    cluster.transaction_coordinator("txn").forget_idle(harness.now_ms)
    future = harness.send("topic", b"two")
    harness.run_until(future.done)
    error = ended(harness, harness.core.begin_commit)
    assert "does not know this id any more" in str(error)
    assert "transactional.id.expiration.ms" in str(error)


# --- where the coordinator does not tell ---------------------------------------------------------


def rewrite_the_repeated_end(harness, rewrite):
    """Rewrite the answer to the second EndTxn: with v2 only that one fences."""

    def first(answer):
        harness.rewrite[ApiKey.END_TXN] = rewrite
        return answer

    harness.rewrite[ApiKey.END_TXN] = first


def fenced(version=2, **settings):
    """Return a producer whose transaction a newer one has ended, before anything tells it."""
    cluster = make_cluster(version)
    harness = asking(cluster, **settings)
    newer = started(cluster, now_ms=harness.now_ms)
    harness.now_ms = newer.now_ms
    return harness


@pytest.mark.parametrize("trouble", ["error", "lost", "not offered", "not known"])
def test_without_the_coordinator_the_text_names_both_causes(trouble):
    harness = fenced()
    if trouble == "error":
        harness.rewrite[DESCRIBE] = lambda answer: type(answer)(
            (TransactionDescription(ErrorCode.NOT_COORDINATOR, "txn", ""),)
        )
    elif trouble == "lost":
        harness.lost.append(DESCRIBE)
    elif trouble == "not offered":
        harness.client._offered.clear()
    else:

        def forget_the_coordinator(answer):
            harness.manager.requests.handle_coordinator_disconnected(0)
            return answer

        rewrite_the_repeated_end(harness, forget_the_coordinator)
    error = ended(harness, harness.core.begin_commit)
    assert isinstance(error, ProducerFencedError)
    assert "most likely a newer producer of this id has taken over" in str(error)
    assert "a time-out is unlikely" in str(error)
    assert "transaction_timeout_ms=60000" in str(error)


def test_a_coordinator_that_does_not_answer_is_not_waited_for():
    harness = fenced()
    harness.stalled.add(DESCRIBE)
    result = harness.core.begin_commit()
    harness.run_until(lambda: result.is_completed)
    harness.settle()
    assert not harness.core.is_loss_explained
    harness.run_for(LONGEST_MS)
    harness.step()
    assert harness.core.is_loss_explained
    assert len(harness.client.sent(DESCRIBE)) == 1


def test_a_connection_that_is_not_ready_is_waited_for():
    harness = fenced()

    def take_no_more(answer):
        harness.client.max_in_flight = 0
        return answer

    rewrite_the_repeated_end(harness, take_no_more)
    result = harness.core.begin_commit()
    harness.run_until(lambda: result.is_completed)
    harness.settle()
    assert harness.client.sent(DESCRIBE) == []
    harness.client.max_in_flight = 1
    harness.settle()
    harness.step()
    assert len(harness.client.sent(DESCRIBE)) == 1


def test_a_producer_that_was_closed_explains_nothing_more():
    harness = fenced()
    harness.stalled.add(DESCRIBE)
    result = harness.core.begin_commit()
    harness.run_until(lambda: result.is_completed)
    harness.settle()
    harness.core.force_close(harness.now_ms)
    assert harness.core.is_loss_explained


def test_the_epoch_of_the_next_transaction_is_refused_and_nothing_is_lost():
    """The commit's error is kept: its text may not say that a transaction is lost."""
    harness = asking(make_cluster(1))
    harness.lost.append(ApiKey.END_TXN)  # so that the epoch is raised afterwards
    harness.rewrite[ApiKey.INIT_PRODUCER_ID] = lambda answer: type(answer)(
        ErrorCode.PRODUCER_FENCED
    )
    harness.delayed.append(ApiKey.PRODUCE)
    harness.send("topic", b"two")
    result = harness.core.begin_commit()
    harness.run_until(lambda: result.is_completed)
    assert harness.manager.progress.outcome == "committed"
    harness.settle()
    result.acknowledge()
    with pytest.raises(ProducerFencedError) as told:
        harness.core.begin_transaction()
    assert "the producer cannot go on" in str(told.value)
    assert "lost" not in str(told.value)


def test_a_late_request_of_this_producer_is_a_possible_cause():
    harness = OnCluster(make_cluster(1))
    harness.client.default_versions = dict(DESCRIBE_VERSIONS)
    harness.delayed.append(ApiKey.INIT_PRODUCER_ID)
    harness.init()
    harness.begin()
    harness.write(b"one")
    harness.arrive_late()
    harness.arrive_late()
    error = ended(harness, harness.core.begin_commit)
    assert "or a delayed request of this producer came in" in str(error)


def test_an_idempotent_producer_loses_no_transaction():
    harness = OnCluster(make_cluster(2), transactional_id=None)
    harness.manager.progress.transition_to_fatal_error(ProducerFencedError())
    assert harness.manager.progress.loss is None
    assert harness.core.is_loss_explained
    error = KafkaError("as it is")
    assert harness.core.explained(error) is error


def test_a_producer_without_idempotence_has_nothing_to_explain():
    harness = OnCluster(make_cluster(2), transactional_id=None, enable_idempotence=False)
    error = KafkaError("as it is")
    assert harness.core.explained(error) is error
    assert harness.core.is_loss_explained


def test_with_v2_an_abort_after_the_time_out_succeeds():
    """The coordinator takes it for a repeated one (KIP-890)."""
    harness = asking(make_cluster(2))
    pass_time(harness, 61_000)
    result = harness.core.begin_abort()
    harness.run_until(lambda: result.is_completed)
    assert result.is_successful
    assert harness.manager.progress.outcome == "aborted"


def test_with_v2_an_abort_that_is_refused_after_the_time_out_says_after_how_long():
    harness = asking_scripted("CompleteAbort", PRODUCER_EPOCH + 1)
    harness.client.prepare_refused_end(ErrorCode.PRODUCER_FENCED)
    harness.now_ms += 61_000
    error = ended(harness, harness.core.begin_abort)
    assert re.search(
        r"the coordinator aborted it after \d+ s \(transaction_timeout_ms=60000\)", str(error)
    )
    assert "taken over" not in str(error)


def test_an_abort_after_the_time_out_says_after_how_long():
    harness = asking(make_cluster(1))
    pass_time(harness, 61_000)
    error = ended(harness, harness.core.begin_abort)
    assert "the coordinator aborted it after 61 s (transaction_timeout_ms=60000)" in str(error)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.PRODUCER_FENCED,
    ],
)
def test_an_abort_that_is_refused_names_the_newer_producer(code):
    harness = asking_scripted()
    harness.client.prepare_refused_end(code, is_commit=False)
    error = ended(harness, harness.core.begin_abort)
    assert "epoch 3, has taken over" in str(error)


def test_offsets_of_a_producer_id_that_is_gone_name_the_newer_producer():
    harness = asking_scripted()
    harness.client.prepare_find_coordinator()
    harness.client.prepare_txn_offset_commit(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    offsets = {TopicPartition("in", 0): OffsetAndMetadata(1)}
    group = ConsumerGroupMetadata("group")
    error = ended(harness, lambda: harness.core.send_offsets_to_transaction(offsets, group))
    assert "epoch 3, has taken over" in str(error)


def test_the_loss_of_a_batch_is_not_reported_during_an_abort():
    harness = asking(make_cluster(2))
    harness.stalled.add(ApiKey.END_TXN)
    harness.core.begin_abort()
    harness.settle()
    harness.manager.progress.maybe_transition_to_error_state(InvalidProducerEpochError())
    assert harness.manager.progress.loss is None


def test_a_participant_does_not_know_the_age():
    harness = asking(make_cluster(2))
    manager = harness.manager
    assert manager.progress.age_ms is not None
    manager.share.lease = object()
    assert manager.progress.age_ms is None
