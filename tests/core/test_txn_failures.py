"""Transactions in which something fails: the error of each call, and the way to the next one."""

from __future__ import annotations

import re

import pytest

from tests.core.sending import in_transaction
from tests.harness import TP0, TP1, CoreHarness
from tests.scripted_client import end_txn_response
from txnproducer._core.transactions.state import TransactionState as S
from txnproducer._protocol.messages import ApiKey
from txnproducer.errors import (
    AuthenticationError,
    ErrorCode,
    GroupAuthorizationError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTimestampError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    RecordTooLargeError,
    SaslAuthenticationError,
    TopicAuthorizationError,
    TransactionAbortableError,
    TransactionalIdAuthorizationError,
    UnknownTopicOrPartitionError,
)

PRODUCE, END_TXN, INIT = ApiKey.PRODUCE, ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID
ADD_PARTITIONS = ApiKey.ADD_PARTITIONS_TO_TXN
COORDINATOR_KINDS = (ADD_PARTITIONS, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.FIND_COORDINATOR, END_TXN)


def expire_on_the_wire(harness):
    """Send a record that is not answered before its time is up, and return its future."""
    future = harness.send()
    harness.run_until_sent(PRODUCE)
    harness.run_until(future.done)
    return future


# --- the errors of calls ----------------------------------------------------------------------


@pytest.mark.conformance("2.09")
@pytest.mark.trap(4)
def test_the_call_that_waited_gets_the_error_itself_and_later_ones_get_it_as_a_cause():
    harness = CoreHarness()
    harness.client.prepare_find_coordinator(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    result = harness.core.init_transactions()
    with pytest.raises(TransactionalIdAuthorizationError) as raw:
        harness.complete(result)
    assert raw.value is result.error
    assert result.is_acked
    with pytest.raises(KafkaError) as wrapped:
        harness.core.init_transactions()
    assert type(wrapped.value) is KafkaError
    assert wrapped.value.__cause__ is raw.value


@pytest.mark.conformance("2.09")
def test_the_refusal_of_the_calls_own_request_is_raised_unwrapped():
    harness = CoreHarness()
    harness.client.prepare_find_coordinator()
    harness.client.prepare_init_producer_id(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    result = harness.core.init_transactions()
    with pytest.raises(TransactionalIdAuthorizationError) as told:
        harness.complete(result)
    assert told.value is result.error

    harness = in_transaction()
    harness.client.prepare_find_coordinator()
    harness.client.prepare_txn_offset_commit(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(GroupAuthorizationError):
        harness.complete(harness.send_offsets())


@pytest.mark.conformance("2.23")
@pytest.mark.trap(32, 40)
def test_a_local_time_out_is_abortable_for_the_transaction_and_unchanged_for_the_record():
    harness = in_transaction(max_block_ms=5_000)
    future = harness.send("missing")
    assert isinstance(future.exception(), KafkaTimeoutError)
    last = harness.manager.machine.last_error
    assert type(last) is TransactionAbortableError
    assert last.__cause__ is future.exception()


@pytest.mark.conformance("2.23")
def test_a_local_error_without_retry_is_the_same_for_the_record_and_the_transaction():
    harness = in_transaction()
    future = harness.send(value=b"x" * 2_000_000)
    assert isinstance(future.exception(), RecordTooLargeError)
    assert str(harness.manager.machine.last_error) == str(future.exception())


def refused_by_the_client(harness):
    future = harness.send(value=b"x" * 2_000_000, is_watched=True)
    with pytest.raises(KafkaError) as caught:
        harness.core.begin_commit()
    return future, caught.value


def refused_by_the_broker(code):
    def refused(harness):
        future = harness.send(is_watched=True)
        commit = harness.core.begin_commit()
        harness.run_until_sent(PRODUCE)
        (request,) = harness.client.waiting(PRODUCE)
        harness.client.answer_produce(request, code)
        harness.run_until(lambda: commit.is_completed)
        commit.acknowledge()
        return future, commit.error

    return refused


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.INVALID_RECORD, InvalidRecordError),
        (ErrorCode.INVALID_TIMESTAMP, InvalidTimestampError),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, TopicAuthorizationError),
    ],
)
@pytest.mark.parametrize("when", ["before the commit", "during the commit"])
def test_an_error_that_only_a_person_can_fix_says_so_and_asks_for_an_abort(code, kind, when):
    harness = in_transaction()
    if when == "during the commit":
        future, error = refused_by_the_broker(code)(harness)
    else:
        future = harness.send()
        harness.run_until_sent(PRODUCE)
        (request,) = harness.client.waiting(PRODUCE)
        harness.client.answer_produce(request, code)
        harness.run_until(future.done)
        with pytest.raises(KafkaError) as caught:
            harness.core.begin_commit()
        error = caught.value
    own = future.exception()
    assert type(own) is kind
    assert (own.recovery, error.recovery) == ("fix", "abort")
    assert error.__cause__ is own
    harness.abort()
    assert harness.manager.progress.outcome == "aborted"
    assert own.recovery == "fix"


@pytest.mark.parametrize(
    ("refused", "text"),
    [
        (refused_by_the_client, "2000088 bytes.*max_request_size=1048576.*max.message.bytes"),
        (refused_by_the_broker(ErrorCode.MESSAGE_TOO_LARGE), "topic-0, 7. bytes.*max.message.byt"),
        (refused_by_the_broker(ErrorCode.RECORD_LIST_TOO_LARGE), "topic-0, 7. bytes.*segment.byt"),
    ],
    ids=["client", "topic", "segment"],
)
def test_a_record_that_is_too_large_is_to_be_fixed_and_its_transaction_to_be_aborted(
    refused, text
):
    harness = in_transaction()
    future, error = refused(harness)
    harness.settle()
    own = future.exception()
    ((_, told),) = harness.deliveries
    assert told is own
    assert type(own) is RecordTooLargeError
    assert re.search(text, str(own))
    assert (own.recovery, error.recovery) == ("fix", "abort")
    assert error.__cause__ is own
    with pytest.raises(KafkaError) as caught:
        harness.core.begin_commit()
    assert (caught.value.recovery, caught.value.__cause__) == ("abort", own)
    harness.abort()
    assert harness.manager.progress.outcome == "aborted"


def test_the_commit_after_a_missing_partition_has_the_records_error_as_its_cause():
    harness = in_transaction()
    own = UnknownTopicOrPartitionError("topic 't' has no partition 7", recovery="fix")
    harness.manager.progress.maybe_transition_to_error_state(own)
    with pytest.raises(KafkaError) as caught:
        harness.core.begin_commit()
    assert (caught.value.recovery, caught.value.__cause__) == ("abort", own)


@pytest.mark.conformance("2.29")
@pytest.mark.parametrize("partition", [None, 1])
def test_a_callback_learns_the_place_of_a_record_that_was_never_sent(partition):
    harness = in_transaction(max_block_ms=1_000)
    harness.send("missing", partition=partition, is_watched=True)
    harness.settle()
    ((metadata, error),) = harness.deliveries
    assert isinstance(error, KafkaTimeoutError)
    expected = ("missing", -1 if partition is None else partition, -1, -1, -1, -1)
    assert metadata == expected


@pytest.mark.conformance("3.13")
@pytest.mark.trap(4, 5)
def test_a_producer_fenced_while_adding_a_partition_fails_the_waiting_record():
    harness = in_transaction(version=1)
    harness.client.prepare_add_partitions(ErrorCode.PRODUCER_FENCED)
    future = harness.send()
    harness.run_until(future.done)
    assert isinstance(future.exception(), ProducerFencedError)
    for call in (harness.core.begin_commit, harness.core.begin_abort, harness.core.begin_commit):
        with pytest.raises(ProducerFencedError):
            call()


@pytest.mark.conformance("3.36")
def test_a_refused_login_on_the_way_to_any_broker_fails_all_that_is_queued():
    harness = CoreHarness()
    harness.client.refusing_logins[-1] = SaslAuthenticationError("wrong password")
    result = harness.core.init_transactions()
    with pytest.raises(AuthenticationError, match="wrong password"):
        harness.complete(result)
    assert harness.state is S.FATAL_ERROR
    assert not harness.manager.requests.has_pending_requests


@pytest.mark.conformance("3.26")
@pytest.mark.trap(14)
@pytest.mark.parametrize("version", [1, 2])
def test_an_abort_answered_with_transaction_abortable_is_fatal(version):
    harness = in_transaction(version)
    if version == 1:
        harness.client.prepare_add_partitions()
    harness.client.prepare_produce()
    harness.send().result()
    with pytest.raises(KafkaError) as told:
        harness.abort(error_code=ErrorCode.TRANSACTION_ABORTABLE)
    assert type(told.value) is KafkaError
    assert isinstance(told.value.__cause__, TransactionAbortableError)
    assert told.value.recovery == "restart"
    assert harness.state is S.FATAL_ERROR
    with pytest.raises(KafkaError) as again:
        harness.core.begin_abort()
    assert type(again.value) is KafkaError
    harness.run_for(10_000)
    assert len(harness.client.sent(END_TXN)) == 1


@pytest.mark.conformance("1.06")
@pytest.mark.parametrize("version", [1, 2])
def test_an_abortable_error_leaves_the_transaction_open_until_its_abort_has_ended(version):
    harness = in_transaction(version)
    if version == 1:
        harness.client.prepare_add_partitions()
    harness.client.prepare_produce(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    harness.run_until(harness.send().done)
    machine = harness.manager.machine
    assert (harness.state, machine.has_ongoing_transaction) == (
        S.ABORTABLE_ERROR,
        True,
    )
    abort = harness.core.begin_abort()
    harness.run_until_sent(END_TXN)
    machine = harness.manager.machine
    assert (harness.state, machine.has_ongoing_transaction) == (
        S.ABORTING_TRANSACTION,
        True,
    )
    harness.client.prepare_init_producer_id(producer_epoch=2)  # asked for by transactions v1
    (end,) = harness.client.waiting(END_TXN)
    harness.client.answer(end, end_txn_response(end.body, 0, None, None))
    harness.complete(abort)
    machine = harness.manager.machine
    assert (harness.state, machine.has_ongoing_transaction) == (S.READY, False)


@pytest.mark.conformance("1.06")
@pytest.mark.parametrize("version", [1, 2])
def test_a_fatal_error_leaves_no_transaction_open(version):
    harness = in_transaction(version)
    if version == 1:
        harness.client.prepare_add_partitions()
    assert harness.manager.machine.has_ongoing_transaction
    harness.client.prepare_produce(ErrorCode.PRODUCER_FENCED)
    harness.run_until(harness.send().done)
    machine = harness.manager.machine
    assert (harness.state, machine.has_ongoing_transaction) == (
        S.FATAL_ERROR,
        False,
    )


# --- what goes on -----------------------------------------------------------------------------


@pytest.mark.conformance("3.01")
def test_one_of_several_coordinator_requests_is_in_flight():
    harness = in_transaction(version=1)
    harness.send_offsets()
    harness.send(partition=0)
    harness.send(partition=1)
    harness.core.begin_commit()
    for _ in range(3):
        harness.run_for(1_000)
        waiting = [r for kind in COORDINATOR_KINDS for r in harness.client.waiting(kind)]
        assert len(waiting) == 1


@pytest.mark.conformance("4.14")
def test_after_an_abortable_error_a_partition_of_the_transaction_is_still_sent_to():
    harness = in_transaction()
    retried = harness.send(partition=0)
    harness.run_until_sent(PRODUCE)
    refused = harness.send(partition=1, value=b"x" * 2_000_000)
    assert refused.done()
    assert harness.state is S.ABORTABLE_ERROR
    harness.client.answer_produce(
        harness.client.waiting(PRODUCE)[0], ErrorCode.NOT_ENOUGH_REPLICAS
    )
    harness.client.prepare_produce(base_offset=3)
    harness.run_until(retried.done)
    assert retried.result().offset == 3
    assert harness.state is S.ABORTABLE_ERROR
    assert [b.topic_partition for b in harness.sent_batches()] == [TP0, TP0]


@pytest.mark.conformance("6.05")
@pytest.mark.trap(36)
def test_records_are_dropped_only_when_no_coordinator_request_is_on_the_wire():
    harness = in_transaction(version=1)
    waiting = harness.send(partition=0)
    harness.run_until_sent(ADD_PARTITIONS)
    refused = harness.send(partition=1, value=b"x" * 2_000_000)
    assert refused.done()
    harness.run_for(1_000)
    assert harness.state is S.ABORTABLE_ERROR
    assert not waiting.done()
    (request,) = harness.client.waiting(ADD_PARTITIONS)
    harness.client.disconnect(request.connection)
    harness.run_until(waiting.done)
    assert waiting.exception() is harness.manager.machine.last_error


# --- expiry -----------------------------------------------------------------------------------

SHORT = {"delivery_timeout_ms": 20_000, "request_timeout_ms": 20_000}


@pytest.mark.conformance("4.42")
@pytest.mark.parametrize("was_sent", [False, True])
def test_a_batch_that_expires_makes_its_transaction_abortable(was_sent):
    harness = in_transaction(**SHORT)
    if not was_sent:
        harness.client.stop_node(0)
    future = harness.send()
    harness.settle()
    assert len(harness.client.sent(PRODUCE)) == was_sent
    harness.now_ms = 20_000
    harness.core.run_once(harness.now_ms)  # its time is up before its request's is seen to be
    assert isinstance(future.exception(), KafkaTimeoutError)
    assert "expired" in str(future.exception())
    assert harness.state is S.ABORTABLE_ERROR
    last = harness.manager.machine.last_error
    assert type(last) is TransactionAbortableError
    assert last.__cause__ is future.exception()


@pytest.mark.conformance("4.43")
@pytest.mark.trap(32)
@pytest.mark.parametrize("version", [1, 2])
def test_a_batch_that_expires_during_the_commit_ends_the_commit_and_an_abort_helps(version):
    harness = in_transaction(version, **SHORT)
    harness.client.prepare_add_partitions()
    harness.send()
    commit = harness.core.begin_commit()
    with pytest.raises(TransactionAbortableError) as caught:
        harness.complete(commit)
    assert isinstance(caught.value.__cause__, KafkaTimeoutError)
    assert harness.client.sent(END_TXN) == []

    harness.client.prepare_init_producer_id(producer_epoch=2)
    harness.abort()
    assert [r.is_commit for r in harness.client.sent(END_TXN)] == [False]
    harness.begin_transaction()
    harness.client.prepare_add_partitions()
    harness.client.prepare_produce(base_offset=5)
    future = harness.send()
    harness.commit()
    assert future.result().offset == 5


@pytest.mark.conformance("4.44")
def test_a_v1_abort_after_an_expiry_on_the_wire_raises_the_epoch_and_begins_at_zero():
    harness = in_transaction(version=1, **SHORT)
    harness.client.prepare_add_partitions()
    expire_on_the_wire(harness)
    harness.client.prepare_init_producer_id(producer_epoch=2)
    before = len(harness.client.sent_kinds())
    harness.abort()
    assert [k for k in harness.client.sent_kinds()[before:] if k in (END_TXN, INIT)] == [
        END_TXN,
        INIT,
    ]
    harness.begin_transaction()
    harness.client.prepare_add_partitions()
    harness.client.prepare_produce()
    harness.send()
    harness.commit()
    last = harness.sent_batches()[-1].header
    assert (last.producer_epoch, last.base_sequence) == (2, 0)


@pytest.mark.conformance("4.56")
@pytest.mark.trap(10)
def test_an_old_epoch_in_a_produce_answer_is_cured_by_an_abort_and_a_new_epoch():
    harness = in_transaction(version=1)
    harness.client.prepare_add_partitions()
    harness.client.prepare_produce(ErrorCode.INVALID_PRODUCER_EPOCH)
    future = harness.send()
    harness.run_until(future.done)
    assert isinstance(future.exception(), InvalidProducerEpochError)
    assert harness.state is S.ABORTABLE_ERROR
    harness.client.prepare_init_producer_id(producer_epoch=2)
    harness.abort()
    assert harness.client.sent_kinds()[-2:] == [END_TXN, INIT]
    assert harness.manager.identity.producer_id_and_epoch.producer_epoch == 2
    assert harness.manager.machine.state.name == "READY"


# --- close ------------------------------------------------------------------------------------


@pytest.mark.conformance("6.23")
def test_a_close_refuses_records_first_and_ends_when_the_rest_is_done_or_forced():
    harness = in_transaction()
    sent = harness.send(partition=0)
    harness.settle()
    harness.core.initiate_close(harness.now_ms)
    with pytest.raises(KafkaError, match="closed"):
        harness.send(partition=1)
    assert harness.core.needs_wakeup
    assert not harness.core.is_closed
    harness.run_for(1_000)
    assert not sent.done()
    assert not harness.core.is_closed
    harness.core.force_close(harness.now_ms)
    assert harness.core.is_closed
    assert isinstance(sent.exception(), KafkaError)
    assert harness.sent_batches(TP1) == []
