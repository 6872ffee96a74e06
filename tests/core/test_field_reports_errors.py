"""Failures that users of other clients reported: the error, its text, and the program's way out.

The marks are explained in `test_field_reports.py`.
"""

from __future__ import annotations

import pytest

from tests.core.on_cluster import committed, is_all_decided, make_cluster, started
from tests.core.sending import in_transaction
from tests.harness import TP0
from tests.scripted_client import PRODUCER_ID
from txnproducer._core.transactions.state import TransactionState
from txnproducer._protocol.messages import ApiKey, InitProducerIdResponse
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    ErrorCode,
    InvalidTxnStateError,
    KafkaError,
    NotEnoughReplicasError,
    ProducerFencedError,
    TransactionAbortableError,
)
from txnproducer.records import ConsumerGroupMetadata

PRODUCE, END_TXN, INIT = ApiKey.PRODUCE, ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID
QUIET_MS = 600_000
either_version = pytest.mark.parametrize("version", [1, 2])


# --- one meaning for each answer ----------------------------------------------------------------


@pytest.mark.regression("KAFKA-14278")
@either_version
def test_a_group_coordinator_that_says_old_epoch_means_fenced(version):
    """Seen: only this answer's INVALID_PRODUCER_EPOCH was not turned into the fencing it is.

    Here it is ProducerFencedError from every coordinator, and fatal.
    """
    harness = in_transaction(version)
    harness.client.prepare_find_coordinator()
    harness.client.prepare_add_offsets()
    harness.client.prepare_txn_offset_commit(ErrorCode.INVALID_PRODUCER_EPOCH)
    with pytest.raises(ProducerFencedError) as told:
        harness.complete(harness.send_offsets())
    assert told.value.recovery == "restart"
    assert harness.state is TransactionState.FATAL_ERROR


@pytest.mark.regression("KAFKA-14278")
@pytest.mark.parametrize("call", ["offsets", "commit", "abort"])
def test_an_impossible_state_is_raised_as_itself_and_later_wrapped_once(call):
    """Seen: INVALID_TXN_STATE came wrapped twice, and AddOffsetsToTxn did not know it at all.

    Here the call gets the error itself, and later calls get it as the cause of theirs.
    """
    harness = in_transaction(version=1)
    harness.client.prepare_add_partitions()
    harness.client.prepare_produce()
    harness.run_until(harness.send().done)
    code = ErrorCode.INVALID_TXN_STATE
    calls = {
        "offsets": harness.send_offsets,
        "commit": harness.core.begin_commit,
        "abort": harness.core.begin_abort,
    }
    harness.client.prepare_add_offsets(code)
    harness.client.prepare_end_txn(code)
    if call != "offsets":
        harness.client.prepare_find_coordinator()  # it counts when it is repeated
        harness.client.prepare_end_txn(code)
    with pytest.raises(InvalidTxnStateError) as raw:
        harness.complete(calls[call]())
    assert raw.value.__cause__ is None
    with pytest.raises(KafkaError) as wrapped:
        harness.core.begin_transaction()
    assert type(wrapped.value) is KafkaError
    assert wrapped.value.__cause__ is raw.value


@pytest.mark.regression("KAFKA-19176")
@pytest.mark.regression("class-1")
@either_version
def test_a_record_whose_retries_ran_out_asks_for_an_abort_and_never_for_itself_alone(version):
    """Seen: the retriable error came through. Applications sent the record again, or committed.

    Here the transaction is abortable: the commit says so, and the record has its own error.
    """
    harness = in_transaction(version, retries=1)
    client = harness.client
    client.prepare_add_partitions()
    for _ in range(2):
        client.prepare_produce(ErrorCode.NOT_ENOUGH_REPLICAS)
    future = harness.send()
    harness.run_until(future.done)
    assert isinstance(future.exception(), NotEnoughReplicasError)
    assert future.exception().recovery == "abort"
    with pytest.raises(KafkaError) as refusal:
        harness.core.begin_commit()
    assert refusal.value.recovery == "abort"
    assert type(refusal.value.__cause__) is TransactionAbortableError
    assert refusal.value.__cause__.__cause__ is future.exception()
    client.prepare_init_producer_id(producer_epoch=2)
    harness.abort()
    harness.begin_transaction()
    assert not any(request.is_commit for request in client.sent(END_TXN))


# --- no success that was none -------------------------------------------------------------------


@pytest.mark.regression("class-1")
@either_version
@pytest.mark.parametrize("is_commit_begun", [True, False])
def test_a_commit_whose_record_expired_unseen_is_no_success(version, is_commit_begun):
    """Seen: a record ran out of time, nobody looked at its future, and the commit succeeded.

    Here the commit fails, before it or while it waits, and consumers see nothing.
    """
    cluster = make_cluster(version)
    harness = started(cluster, delivery_timeout_ms=20_000, request_timeout_ms=20_000)
    harness.begin()
    harness.write(b"in time")
    harness.delayed += [PRODUCE] * 100
    future = harness.send("topic", b"too late", partition=1)
    commit = harness.core.begin_commit() if is_commit_begun else None
    harness.run_until(future.done)
    with pytest.raises(KafkaError) as told:
        harness.complete(commit or harness.core.begin_commit())
    assert told.value.recovery == "abort"
    assert not isinstance(told.value, CommitOutcomeUnknownError)
    assert committed(cluster) == []
    harness.delayed.clear()
    harness.end(is_commit=False)
    assert committed(cluster) == []
    assert is_all_decided(cluster)


# --- no retries without an end ------------------------------------------------------------------


@pytest.mark.regression("KAFKA-19250")
@pytest.mark.regression("class-6")
@either_version
def test_an_application_that_aborts_after_each_abortable_error_ends(version):
    """Seen: an abort was answered "abort", and an application that obeyed aborted for ever.

    Here such an answer to an abort is fatal, and says so.
    """
    harness = in_transaction(version)
    client = harness.client
    client.prepare_add_partitions()
    client.prepare_produce(ErrorCode.TRANSACTION_ABORTABLE)
    harness.run_until(harness.send().done)
    recovery, aborts = "abort", 0
    for _ in range(10):
        client.prepare_end_txn(ErrorCode.TRANSACTION_ABORTABLE)
    while recovery == "abort":
        aborts += 1
        with pytest.raises(KafkaError) as told:
            harness.complete(harness.core.begin_abort())
        recovery = told.value.recovery
        assert not isinstance(told.value, TransactionAbortableError)
    assert (recovery, aborts) == ("restart", 1)
    assert isinstance(told.value.__cause__, TransactionAbortableError)
    assert len(client.sent(END_TXN)) == 1


@pytest.mark.regression("class-6")
@either_version
@pytest.mark.parametrize("call", ["send", "offsets", "commit", "abort"])
def test_a_fenced_producer_gets_the_error_and_sends_nothing_more(version, call):
    """Seen: fenced producers asked for a new epoch, or their coordinator, in an endless loop.

    Here a program that obeys the errors aborts once at most, and then sends nothing more.
    """
    cluster = make_cluster(version)
    harness = started(cluster)
    harness.begin()
    harness.write(b"value")
    heir = started(cluster)
    calls = {
        "send": lambda: harness.write(b"more"),
        "offsets": lambda: harness.complete(
            harness.send_offsets({TP0: 1}, ConsumerGroupMetadata("group"))
        ),
        "commit": lambda: harness.end(is_commit=True),
        "abort": lambda: harness.end(is_commit=False),
    }
    with pytest.raises(KafkaError):
        calls[call]()
    if harness.state is TransactionState.ABORTABLE_ERROR:
        with pytest.raises(KafkaError):
            harness.end(is_commit=False)
    assert harness.state is TransactionState.FATAL_ERROR
    assert harness.manager.machine.last_error.recovery == "restart"
    sent = len(harness.client.sent_kinds())
    harness.run_for(QUIET_MS)
    assert len(harness.client.sent_kinds()) == sent
    assert len(harness.client.sent(INIT)) == 1
    heir.transact(b"of its heir")
    assert committed(cluster) == [b"of its heir"]


@pytest.mark.regression("class-6")
@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_a_producer_fenced_before_its_next_epoch_does_not_take_the_id_back(code):
    """Seen: refused its next epoch, a client asked without naming its own, and fenced its fencer.

    Here the commit keeps its success, the refusal is fatal, and no other InitProducerId is sent.
    """
    harness = in_transaction(version=1)
    client = harness.client
    client.prepare_add_partitions()
    client.prepare_produce()
    harness.run_until(harness.send().done)
    client.prepare_failure(END_TXN)
    client.prepare_find_coordinator()
    client.prepare_init_producer_id(code)
    harness.commit()
    assert harness.manager.progress.outcome == "committed"
    assert harness.state is TransactionState.FATAL_ERROR
    with pytest.raises(ProducerFencedError, match="a newer producer") as told:
        harness.begin_transaction()
    assert told.value.recovery == "restart"
    harness.run_for(QUIET_MS)
    first, bump = client.sent(INIT)
    assert (first.producer_id, bump.producer_id) == (-1, PRODUCER_ID)


# --- nothing left open --------------------------------------------------------------------------


@pytest.mark.regression("class-9")
@either_version
def test_a_producer_that_is_closed_leaves_no_transaction_open(version):
    """Seen: an exception in a `with` block closed the producer, and readers waited for minutes.

    Here a close sends what there is, and then aborts.
    """
    cluster = make_cluster(version)
    harness = started(cluster)
    harness.begin()
    harness.write(b"written")
    late = harness.send("topic", b"on its way")
    harness.core.initiate_close(harness.now_ms)
    harness.run_until(lambda: harness.core.is_closed)
    assert late.exception() is None
    assert committed(cluster) == []
    assert is_all_decided(cluster)


def test_a_close_ends_though_the_epoch_cannot_be_raised_after_its_abort():
    cluster = make_cluster(1)
    harness = started(cluster)
    harness.begin()
    harness.write(b"written")
    harness.manager.identity.require_epoch_bump()
    refusal = InitProducerIdResponse(ErrorCode.TRANSACTION_ABORTABLE)
    harness.rewrite[INIT] = lambda _: refusal
    harness.core.initiate_close(harness.now_ms)
    harness.run_until(lambda: harness.core.is_closed)
    assert committed(cluster) == []
    assert is_all_decided(cluster)


@pytest.mark.regression("class-9")
@either_version
def test_a_transaction_left_open_by_a_crash_ends_at_its_time_out(version):
    """Seen: transactions of dead producers kept readers waiting far longer than had been set.

    Here the coordinator knows `transaction_timeout_ms`, and ends them.
    """
    cluster = make_cluster(version)
    dead = started(cluster, transaction_timeout_ms=10_000)
    dead.begin()
    dead.write(b"never ended")
    cluster.advance(9_000)
    assert not is_all_decided(cluster)
    cluster.advance(11_000)
    assert is_all_decided(cluster)
    assert committed(cluster) == []


# --- what an error tells ------------------------------------------------------------------------


@pytest.mark.regression("class-10")
@pytest.mark.parametrize(
    ("code", "words"),
    [
        (ErrorCode.PRODUCER_FENCED, "most likely a newer producer of this id has taken over"),
        (ErrorCode.INVALID_TXN_STATE, "most likely a newer producer of this id has taken over"),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, "most likely a newer producer of this id has"),
        (ErrorCode.UNKNOWN_SERVER_ERROR, "EndTxn.*UNKNOWN_SERVER_ERROR"),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "Grant Write"),
    ],
    ids=lambda given: given.name if isinstance(given, ErrorCode) else "",
)
def test_a_refused_end_reports_its_cause_and_each_later_call_names_it_again(code, words):
    """Seen: an error had no name, or named only a wrong state, though the cause was known.

    Here every call after the failure has the cause in its words, and the same way out.
    """
    harness = in_transaction()
    harness.client.prepare_produce()
    harness.run_until(harness.send().done)
    harness.client.prepare_refused_end(code, is_commit=False)
    with pytest.raises(KafkaError, match=words) as told:
        harness.complete(harness.core.begin_abort())
    for call in (harness.begin_transaction, harness.core.begin_abort, harness.send_offsets):
        with pytest.raises(KafkaError) as later:
            call()
        assert later.value.recovery == told.value.recovery
        cause = later.value.__cause__ or later.value
        assert type(cause) is type(told.value)
