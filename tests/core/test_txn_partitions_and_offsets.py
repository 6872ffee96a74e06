"""Partitions and offsets join a transaction, each request answered by hand."""

from __future__ import annotations

import pytest

from tests.core.txn_driver import (
    GROUP,
    TP0,
    TP1,
    begun,
    finish,
    with_partition,
)
from tests.harness import CoreHarness
from txnproducer._core.transactions.state import TransactionState
from txnproducer._protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    PartitionErrorCode,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    ErrorCode,
    InvalidTxnStateError,
    TopicAuthorizationError,
    TransactionAbortableError,
    TransactionAbortedError,
)
from txnproducer.records import OffsetAndMetadata, ProducerIdAndEpoch, TopicPartition

S = TransactionState
NEXT = ProducerIdAndEpoch(77, 1)


# --- AddPartitionsToTxn -----------------------------------------------------------------------


@pytest.mark.conformance("1.24")
def test_a_partition_named_again_at_any_stage_is_asked_for_once():
    driver = begun(version=1)
    manager = driver.manager
    for _ in ("new", "new again"):
        manager.maybe_add_partition(TP0)
    assert not manager.requests.has_pending_requests
    assert driver.take().partitions == (TP0,)
    manager.maybe_add_partition(TP0)  # while its request is on its way
    assert not manager.progress.is_send_to_partition_allowed(TP0)
    driver.reply(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    manager.maybe_add_partition(TP0)  # while its request waits to be sent again
    driver.expect(AddPartitionsToTxnRequest)
    assert manager.progress.is_send_to_partition_allowed(TP0)
    manager.maybe_add_partition(TP0)  # once it is in the transaction
    assert driver.take() is None
    assert not manager.progress.open.has_partitions_to_add
    assert driver.kinds().count("AddPartitionsToTxn") == 2  # the second is the repeated one


def test_a_new_partition_is_asked_for_without_those_that_are_in_the_transaction():
    driver = with_partition(version=1)
    driver.manager.maybe_add_partition(TP1)
    assert driver.expect(AddPartitionsToTxnRequest).partitions == (TP1,)


@pytest.mark.conformance("3.29")
def test_a_later_request_lists_all_that_is_pending():
    driver = begun(version=1)
    driver.manager.maybe_add_partition(TP0)
    driver.expect(AddPartitionsToTxnRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    driver.manager.maybe_add_partition(TP1)
    assert driver.expect(AddPartitionsToTxnRequest).partitions == (TP0,)
    assert driver.expect(AddPartitionsToTxnRequest).partitions == (TP0, TP1)


@pytest.mark.conformance("3.10")
def test_a_request_that_waits_for_the_previous_markers_is_retried_soon():
    """Java waits 20 ms with the first partition, and 100 ms with any other request."""
    driver = begun(version=1)
    driver.manager.maybe_add_partition(TP0)
    waited_ms = []
    for _ in range(9):
        driver.take()
        handler = driver.handler
        driver.reply(ErrorCode.CONCURRENT_TRANSACTIONS)
        waited_ms.append(handler.retry_backoff_ms)
    assert waited_ms == [1, 2, 4, 8, 16, 32, 64, 100, 100]


@pytest.mark.conformance("3.10")
def test_the_wait_for_the_markers_begins_again_after_another_refusal():
    driver = begun(version=1)
    driver.manager.maybe_add_partition(TP0)
    waited_ms = []
    for code in (
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    ):
        driver.take()
        handler = driver.handler
        driver.reply(code)
        waited_ms.append(handler.retry_backoff_ms)
    assert waited_ms == [1, 100, 1]


def test_a_lost_answer_is_no_word_of_markers():
    driver = begun(version=1)
    driver.manager.maybe_add_partition(TP0)
    driver.expect(AddPartitionsToTxnRequest, ErrorCode.CONCURRENT_TRANSACTIONS)
    driver.take()
    handler = driver.handler
    driver.fail()
    assert handler.retry_backoff_ms == 100


def test_offsets_of_the_next_transaction_wait_for_the_markers_as_shortly():
    driver = begun(version=2)
    driver.send_offsets(TP0)
    driver.expect(FindCoordinatorRequest)
    driver.take()
    handler = driver.handler
    driver.reply(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert handler.retry_backoff_ms == 1


@pytest.mark.conformance("3.16")
def test_denied_topics_are_named_and_an_abort_needs_no_request():
    driver = begun(version=1)
    other = TopicPartition("other", 0)
    driver.manager.maybe_add_partition(TP0)
    driver.manager.maybe_add_partition(other)
    driver.take()
    driver.answer(
        AddPartitionsToTxnResponse(
            (
                PartitionErrorCode(TP0, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
                PartitionErrorCode(other, ErrorCode.OPERATION_NOT_ATTEMPTED),
            )
        )
    )
    error = driver.manager.machine.last_error
    assert isinstance(error, TopicAuthorizationError)
    assert error.topics == {"test"}
    assert not driver.manager.progress.open.has_partitions_to_add
    assert not driver.manager.progress.is_send_to_partition_allowed(other)
    abort = driver.manager.begin_abort()
    assert driver.take() is None
    finish(abort)


@pytest.mark.conformance("1.26")
def test_an_abort_forgets_partitions_that_are_not_added_yet():
    driver = with_partition(version=1)
    driver.manager.maybe_add_partition(TP1)
    driver.expect(AddPartitionsToTxnRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    driver.manager.maybe_add_partition(TopicPartition("topic", 2))
    abort = driver.manager.begin_abort()
    driver.expect(EndTxnRequest)  # in Java after AddPartitionsToTxn, however often it is refused
    finish(abort)


@pytest.mark.conformance("1.26")
@pytest.mark.parametrize("is_refused_once", [False, True])
def test_an_abort_gives_up_offsets_that_wait(is_refused_once):
    driver = with_partition(version=1)
    offsets = driver.send_offsets()
    if is_refused_once:
        driver.expect(AddOffsetsToTxnRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    abort = driver.manager.begin_abort()
    assert isinstance(offsets.error, TransactionAbortedError)
    driver.expect(EndTxnRequest)
    finish(abort)


@pytest.mark.conformance("1.26")
def test_partitions_that_are_being_added_as_the_abort_begins_are_not_asked_for_again():
    driver = with_partition(version=1)
    driver.manager.maybe_add_partition(TP1)
    driver.take()
    abort = driver.manager.begin_abort()
    driver.reply(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    driver.expect(EndTxnRequest)
    finish(abort)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("is_in_flight", [True, False])
def test_an_abort_does_not_wait_for_offsets_that_are_refused_again_and_again(
    version, is_in_flight
):
    driver = begun(version=version)
    offsets = driver.send_offsets()
    if version == 1:
        driver.expect(AddOffsetsToTxnRequest)
    driver.expect(FindCoordinatorRequest)
    if is_in_flight:
        driver.take()
    else:
        driver.expect(TxnOffsetCommitRequest, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    abort = driver.manager.begin_abort()
    if is_in_flight:
        driver.reply(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert isinstance(offsets.error, TransactionAbortedError)
    driver.expect(EndTxnRequest, producer=NEXT if version == 2 else None)
    finish(abort)


def test_an_abort_does_not_wait_for_a_groups_coordinator_that_cannot_be_reached():
    harness = CoreHarness(node_count=2)
    harness.start_transaction()
    harness.client.prepare_produce(base_offset=0)
    harness.run_until(harness.send().done)
    harness.client.stop_node(1)
    for _ in range(9):
        harness.client.prepare_find_coordinator(node_id=1)
    offsets = harness.send_offsets()
    harness.run_for(10)
    abort = harness.core.begin_abort()
    harness.client.prepare_end_txn()
    harness.run_for(10)
    assert abort.is_successful
    assert isinstance(offsets.error, TransactionAbortedError)


@pytest.mark.parametrize("how", ["refused", "lost"])
def test_partitions_that_may_be_added_are_asked_for_until_that_is_known(how):
    # Else the answer to EndTxn could be about the transaction before, and leave this one open.
    driver = begun(version=1)
    driver.manager.maybe_add_partition(TP0)
    driver.take()
    abort = driver.manager.begin_abort()
    if how == "refused":
        driver.reply(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    else:
        driver.fail()
    driver.expect(FindCoordinatorRequest)
    driver.expect(AddPartitionsToTxnRequest)
    driver.expect(EndTxnRequest)
    if how == "lost":
        driver.expect(InitProducerIdRequest, producer=NEXT)
    finish(abort)


def test_offsets_that_are_just_added_as_the_abort_begins_are_not_sent():
    driver = begun(version=1)
    offsets = driver.send_offsets()
    driver.take()
    abort = driver.manager.begin_abort()
    driver.reply()
    assert isinstance(offsets.error, TransactionAbortedError)
    driver.expect(EndTxnRequest)
    finish(abort)


@pytest.mark.parametrize("code", [ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE])
def test_a_commit_that_was_given_up_ends_even_if_both_its_ends_are_refused(code):
    driver = with_partition(version=1)
    commit = driver.manager.begin_commit()
    driver.take()
    driver.fail()
    driver.expect(FindCoordinatorRequest)
    abort = driver.manager.begin_abort()
    driver.refuse_end(ErrorCode.INVALID_TXN_STATE)
    driver.expect(EndTxnRequest, code)
    assert driver.state is S.FATAL_ERROR
    assert isinstance(commit.error, CommitOutcomeUnknownError)
    assert isinstance(abort.error, CommitOutcomeUnknownError)


def test_a_committed_transaction_stays_so_when_its_epoch_bump_fails():
    driver = with_partition(version=1)
    commit = driver.manager.begin_commit()
    driver.take()
    driver.fail()
    driver.expect(FindCoordinatorRequest)
    driver.expect(EndTxnRequest)
    driver.expect(InitProducerIdRequest, ErrorCode.TRANSACTION_ABORTABLE)
    finish(commit)
    assert driver.manager.progress.outcome == "committed"
    abort = driver.manager.begin_abort()
    while driver.take() is not None:
        driver.reply()
    finish(abort)
    assert driver.manager.progress.outcome == "committed"


# --- offsets ----------------------------------------------------------------------------------


@pytest.mark.conformance("3.20")
def test_a_retry_sends_all_offsets_and_waits_only_for_those_that_failed():
    driver = begun()
    result = driver.send_offsets(TP0, TP1)
    driver.expect(FindCoordinatorRequest)
    driver.take()
    driver.answer(
        TxnOffsetCommitResponse(
            (
                PartitionErrorCode(TP0, 0),
                PartitionErrorCode(TP1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            )
        )
    )
    assert not result.is_completed
    assert len(driver.take().offsets) == 2
    driver.answer(TxnOffsetCommitResponse((PartitionErrorCode(TP1, 0),)))
    finish(result)


@pytest.mark.conformance("2.14")
@pytest.mark.quirk("Q10")
def test_two_calls_are_done_each_by_its_own_answer_and_in_their_order():
    driver = begun()
    first = driver.send_offsets(offset=1)
    second = driver.send_offsets(offset=2)
    driver.expect(FindCoordinatorRequest)
    driver.expect(TxnOffsetCommitRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert driver.expect(TxnOffsetCommitRequest).offsets[0][1].offset == 1
    assert (first.is_completed, second.is_completed) == (True, False)
    assert driver.expect(TxnOffsetCommitRequest).offsets[0][1].offset == 2
    finish(second)


@pytest.mark.conformance("1.20")
@pytest.mark.quirk("Q3")
def test_offsets_of_an_aborted_transaction_never_reach_the_next_one():
    driver = begun()
    lost = driver.send_offsets(TP0)
    driver.expect(FindCoordinatorRequest, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    assert driver.take() is None
    assert lost.error is driver.manager.machine.last_error
    lost.acknowledge()
    abort = driver.manager.begin_abort()
    driver.expect(EndTxnRequest, producer=NEXT)
    finish(abort)
    driver.manager.begin_transaction()
    driver.send_offsets(TP1)
    driver.expect(FindCoordinatorRequest)
    assert [place for place, _ in driver.expect(TxnOffsetCommitRequest).offsets] == [TP1]


@pytest.mark.conformance("3.19")
@pytest.mark.trap(7)
@pytest.mark.quirk("Q7")
@pytest.mark.parametrize(
    "code", [ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TRANSACTION_ABORTABLE]
)
def test_a_group_that_cannot_be_found_does_not_hold_up_an_abort(code):
    driver = begun()
    offsets = driver.send_offsets()
    driver.take()
    abort = driver.manager.begin_abort()
    assert isinstance(offsets.error, TransactionAbortedError)
    driver.reply(code)
    driver.expect(EndTxnRequest, producer=NEXT)
    finish(abort)


def test_an_abort_whose_coordinator_is_refused_does_not_look_for_it_for_ever():
    driver = with_partition()
    abort = driver.manager.begin_abort()
    driver.take()
    driver.fail()
    driver.expect(FindCoordinatorRequest, ErrorCode.TRANSACTION_ABORTABLE)
    assert driver.state is S.FATAL_ERROR
    assert isinstance(abort.error.__cause__, TransactionAbortableError)


@pytest.mark.conformance("3.24")
def test_a_fatal_answer_to_offsets_ends_the_abort_after_it():
    driver = begun(version=1)
    driver.send_offsets()
    driver.take()
    abort = driver.manager.begin_abort()
    driver.reply(ErrorCode.INVALID_TXN_STATE)
    assert driver.state is S.FATAL_ERROR
    assert isinstance(abort.error, InvalidTxnStateError)


@pytest.mark.conformance("3.22")
def test_group_metadata_go_along():
    driver = begun()
    group = GROUP._replace(generation_id=4, member_id="m", group_instance_id="i")
    driver.manager.send_offsets_to_transaction({TP0: OffsetAndMetadata(3)}, group)
    driver.expect(FindCoordinatorRequest)
    request = driver.expect(TxnOffsetCommitRequest)
    assert (request.generation_id, request.member_id, request.group_instance_id) == (4, "m", "i")
