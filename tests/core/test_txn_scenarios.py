"""Whole transactions: the order of requests, and the state after an error."""

from __future__ import annotations

import pytest

from tests.core.sending import in_transaction
from tests.harness import GROUP, TP0, TP1, CoreHarness
from txnproducer._core.producer_core import AppendBlocked
from txnproducer._core.transactions.state import TransactionState as S
from txnproducer._protocol.events import (
    Channel,
    ConnectionEvent,
    ConnectionId,
    ConnectionState,
)
from txnproducer._protocol.messages import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    ApiKey,
    CoordinatorType,
    PartitionErrorCode,
)
from txnproducer.errors import (
    ErrorCode,
    IllegalStateError,
    InvalidPidMappingError,
    KafkaError,
    KafkaTimeoutError,
    RecordTooLargeError,
    TopicAuthorizationError,
)
from txnproducer.records import ConsumerGroupMetadata

PRODUCE, END_TXN = ApiKey.PRODUCE, ApiKey.END_TXN
ADD_PARTITIONS, FIND = ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.FIND_COORDINATOR


@pytest.mark.conformance("1.12")
@pytest.mark.parametrize("version", [1, 2])
def test_an_abort_after_an_error_ends_the_transaction_and_the_next_one_commits(version):
    harness = in_transaction(version)
    if version == 1:
        harness.client.prepare_add_partitions()
    failed = harness.send()
    harness.run_until_sent(PRODUCE)
    harness.client.answer_produce(
        harness.client.waiting(PRODUCE)[0], ErrorCode.TOPIC_AUTHORIZATION_FAILED
    )
    harness.settle()
    assert harness.state is S.ABORTABLE_ERROR
    assert isinstance(failed.exception(), TopicAuthorizationError)
    if version == 1:  # the client raises its epoch after such an error
        harness.client.prepare_init_producer_id(producer_epoch=1)
    harness.abort()
    assert not harness.client.sent(END_TXN)[0].is_commit
    assert harness.manager.machine.state.name == "READY"

    harness.begin_transaction()
    if version == 1:
        harness.client.prepare_add_partitions()
    harness.client.prepare_produce()
    sent = harness.send()
    harness.commit()
    assert sent.result().offset >= 0
    assert harness.client.sent(END_TXN)[1].is_commit


@pytest.mark.conformance("1.27")
def test_a_commit_adds_its_partitions_then_sends_its_records_then_ends_the_transaction():
    harness = in_transaction(version=1)
    before = len(harness.client.sent_kinds())
    harness.send()
    commit = harness.core.begin_commit()  # nothing was sent yet, the partition is still new
    harness.client.prepare_add_partitions()
    harness.run_until_sent(PRODUCE)
    harness.run_for(1_000)  # EndTxn does not go while the records' answer is missing
    assert harness.client.sent_kinds()[before:] == [ADD_PARTITIONS, PRODUCE]
    harness.client.answer_produce(harness.client.waiting(PRODUCE)[0])
    harness.client.prepare_end_txn()
    harness.complete(commit)
    assert harness.client.sent_kinds()[before:] == [ADD_PARTITIONS, PRODUCE, END_TXN]


@pytest.mark.conformance("2.01")
def test_only_begin_transaction_is_local_the_others_wait_for_the_cluster_and_time_out():
    harness = CoreHarness(max_block_ms=1_000)
    with pytest.raises(KafkaTimeoutError, match="init_transactions"):
        harness.complete(harness.core.init_transactions())
    harness = CoreHarness(max_block_ms=1_000)
    harness.init_transactions()
    before = len(harness.client.requests)
    harness.begin_transaction()
    harness.settle()
    assert len(harness.client.requests) == before
    assert harness.client.waiting(ApiKey.INIT_PRODUCER_ID) == []
    with pytest.raises(KafkaTimeoutError, match="send_offsets_to_transaction"):
        harness.complete(harness.send_offsets())
    with pytest.raises(KafkaTimeoutError, match="commit_transaction"):
        harness.complete(harness.core.begin_commit())


@pytest.mark.conformance("1.04")
@pytest.mark.parametrize("door", ["run_once", "handle"])
def test_an_illegal_step_of_the_sender_poisons_and_one_of_the_application_does_not(
    door, monkeypatch
):
    harness = CoreHarness()
    with pytest.raises(IllegalStateError):
        harness.core.begin_transaction()
    assert harness.state.name == "UNINITIALIZED"
    harness.init_transactions()
    with pytest.raises(IllegalStateError):  # the sender has worked since, and is not asking now
        harness.core.begin_commit()
    assert harness.state.name == "READY"

    def go_wrong(*_):
        harness.manager.progress.transition_to_abortable_error(KafkaError("late"))

    monkeypatch.setattr(harness.manager.progress, "maybe_resolve_sequences", go_wrong)
    monkeypatch.setattr(harness.manager.requests, "handle_coordinator_disconnected", go_wrong)
    connection = ConnectionId(0, Channel.COORDINATOR)
    news = ConnectionEvent(connection, ConnectionState.DISCONNECTED)
    arguments = (harness.now_ms,) if door == "run_once" else (news, harness.now_ms)
    with pytest.raises(IllegalStateError):
        getattr(harness.core, door)(*arguments)
    assert harness.state is S.FATAL_ERROR


@pytest.mark.conformance("2.19")
@pytest.mark.parametrize(("topic", "partition"), [("topic", 1), ("other", None)])
def test_a_record_without_memory_has_not_joined_its_partition_yet(topic, partition):
    topics = {"topic": 2, "other": 1}
    harness = in_transaction(version=1, topics=topics, buffer_memory=100_000, batch_size=65_536)
    harness.send(partition=0)
    blocked = harness.try_send(topic, partition=partition)
    assert isinstance(blocked, AppendBlocked)
    harness.settle()
    (request,) = harness.client.sent(ADD_PARTITIONS)
    assert request.partitions == (TP0,)


@pytest.mark.conformance("2.19")
def test_a_record_is_checked_in_this_order_closed_then_size_then_state():
    harness = CoreHarness()
    harness.init_transactions()
    harness.know_topics()
    too_large = b"x" * 2_000_000
    assert isinstance(harness.send(value=too_large).exception(), RecordTooLargeError)
    with pytest.raises(IllegalStateError, match="begin_transaction"):
        harness.send()
    harness.core.initiate_close(0)
    with pytest.raises(KafkaError, match="closed"):
        harness.send(value=too_large)


@pytest.mark.conformance("2.19")
def test_the_sender_is_woken_for_a_new_batch_and_not_for_a_record_more_in_it():
    harness = in_transaction(linger_ms=1_000)
    harness.core.needs_wakeup = False
    harness.send()
    assert harness.core.needs_wakeup
    harness.core.needs_wakeup = False
    harness.send()
    assert not harness.core.needs_wakeup


@pytest.mark.conformance("2.19")
def test_a_record_joins_its_partition_to_the_transaction_only_once_it_was_appended():
    harness = in_transaction(version=1)
    refused = harness.send(partition=1, value=b"x" * 2_000_000)
    assert isinstance(refused.exception(), RecordTooLargeError)
    harness.settle()
    assert harness.client.sent(ADD_PARTITIONS) == []

    harness = in_transaction(version=1)
    harness.send(partition=1)
    harness.settle()
    (request,) = harness.client.sent(ADD_PARTITIONS)
    assert request.partitions == (TP1,)


@pytest.mark.conformance("3.02")
def test_coordinator_requests_go_one_at_a_time_in_the_order_of_their_priority():
    harness = in_transaction(version=1)
    offsets = harness.send_offsets()
    harness.send(partition=0)
    commit = harness.core.begin_commit()
    harness.settle()
    waiting = [key for key in COORDINATOR_KEYS if harness.client.waiting(key)]
    assert len(waiting) == 1  # two are queued besides, and have to wait for its answer
    done = len(harness.client.sent_kinds())
    _answer_everything(harness)
    harness.run_until(lambda: commit.is_completed)
    assert offsets.is_successful
    order = harness.client.sent_kinds()[done - 1 :]
    assert order[-1] is END_TXN
    # The look-up of the group's coordinator overtakes what was queued before it.
    assert order.index(FIND) < order.index(ApiKey.TXN_OFFSET_COMMIT)
    assert order.index(ADD_PARTITIONS) < order.index(PRODUCE) < order.index(END_TXN)


COORDINATOR_KEYS = (ApiKey.ADD_OFFSETS_TO_TXN, ADD_PARTITIONS, FIND, END_TXN)


def _answer_everything(harness):
    """Answer the request that is out and those that follow. None of the answers is an error."""
    client = harness.client
    client.prepare_find_coordinator()
    client.prepare_txn_offset_commit()
    client.prepare_produce()
    client.prepare_end_txn()
    for key, response in (
        (ApiKey.ADD_OFFSETS_TO_TXN, AddOffsetsToTxnResponse(0)),
        (ADD_PARTITIONS, AddPartitionsToTxnResponse((PartitionErrorCode(TP0, 0),))),
    ):
        out = client.waiting(key)
        if out:
            client.answer(out[0], response)
        elif key is ADD_PARTITIONS:
            client.prepare_add_partitions()
        else:
            client.prepare_add_offsets()


@pytest.mark.conformance("3.15")
@pytest.mark.parametrize("version", [1, 2])
def test_a_producer_id_that_the_broker_has_forgotten_ends_the_producer(version):
    harness = in_transaction(version)
    if version == 1:
        harness.client.prepare_add_partitions()
    future = harness.send()
    harness.run_until_sent(PRODUCE)
    harness.client.answer_produce(
        harness.client.waiting(PRODUCE)[0], ErrorCode.INVALID_PRODUCER_ID_MAPPING
    )
    harness.settle()
    assert harness.state is S.FATAL_ERROR
    assert isinstance(future.exception(), InvalidPidMappingError)
    with pytest.raises(KafkaError):
        harness.core.begin_abort()


@pytest.mark.conformance("3.17")
def test_a_denied_topic_found_while_committing_fails_the_commit_without_an_end_txn():
    harness = in_transaction(version=1)
    future = harness.send()
    commit = harness.core.begin_commit()
    harness.client.prepare_add_partitions(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    harness.run_until(lambda: commit.is_completed)
    assert isinstance(commit.error, TopicAuthorizationError)
    assert isinstance(future.exception(), TopicAuthorizationError)
    assert harness.client.sent(END_TXN) == []
    assert harness.client.sent(PRODUCE) == []


@pytest.mark.conformance("3.18")
def test_a_retry_of_an_accepted_partition_goes_on_after_a_denied_one():
    harness = in_transaction(version=1)
    harness.client.prepare_add_partitions()
    accepted = harness.send(partition=0)
    harness.run_until_sent(PRODUCE)
    denied = harness.send(partition=1)
    harness.client.prepare_add_partitions(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    harness.run_until_sent(ADD_PARTITIONS, 2)
    harness.settle()
    assert harness.state is S.ABORTABLE_ERROR
    harness.client.answer_produce(
        harness.client.waiting(PRODUCE)[0], ErrorCode.NOT_LEADER_OR_FOLLOWER
    )
    harness.client.prepare_produce(base_offset=7)
    harness.run_until(accepted.done)
    assert accepted.result().offset == 7
    assert isinstance(denied.exception(), TopicAuthorizationError)


@pytest.mark.conformance("3.23")
def test_offsets_wait_for_the_look_up_of_their_groups_coordinator():
    harness = in_transaction()
    before = len(harness.client.sent_kinds())
    harness.client.prepare_find_coordinator()
    harness.client.prepare_txn_offset_commit()
    harness.complete(harness.send_offsets())
    assert harness.client.sent_kinds()[before:] == [FIND, ApiKey.TXN_OFFSET_COMMIT]
    lookup = harness.client.sent(FIND)[-1]
    assert (lookup.key, lookup.key_type) == (GROUP.group_id, CoordinatorType.GROUP)
    harness.client.prepare_find_coordinator()  # another group may have another one
    harness.client.prepare_txn_offset_commit()
    harness.complete(harness.send_offsets(group=ConsumerGroupMetadata("other")))
    assert harness.client.sent_kinds()[before + 2 :] == [FIND, ApiKey.TXN_OFFSET_COMMIT]
    assert harness.client.sent(FIND)[-1].key == "other"


@pytest.mark.conformance("3.46")
@pytest.mark.parametrize("version", [1, 2])
def test_every_request_of_a_transaction_says_which_version_it_belongs_to(version):
    harness = in_transaction(version)
    harness.client.prepare_find_coordinator()
    harness.client.prepare_add_offsets()
    harness.client.prepare_txn_offset_commit()
    harness.complete(harness.send_offsets())
    harness.client.prepare_add_partitions()
    harness.client.prepare_produce()
    harness.send()
    harness.commit()
    for kind in (ApiKey.TXN_OFFSET_COMMIT, PRODUCE, END_TXN):
        (request,) = harness.client.sent(kind)
        assert request.is_transaction_v2_enabled is (version == 2)


@pytest.mark.conformance("3.46")
def test_records_without_a_transaction_have_no_cap():
    harness = CoreHarness(transactional_id=None, transaction_version=1)
    harness.start_idempotent()
    harness.send()
    assert harness.run_until_sent(PRODUCE).is_transaction_v2_enabled


@pytest.mark.conformance("3.40")
def test_a_previous_transaction_still_completing_is_an_ordinary_retry_in_v2():
    harness = in_transaction()
    future = harness.send()
    harness.run_until_sent(PRODUCE)
    harness.client.answer_produce(
        harness.client.waiting(PRODUCE)[0], ErrorCode.CONCURRENT_TRANSACTIONS
    )
    harness.client.prepare_produce(base_offset=3)
    harness.run_until(future.done)
    assert future.result().offset == 3
    assert harness.state is S.IN_TRANSACTION
    assert harness.sequences_sent() == [0, 0]
    assert harness.client.sent(ADD_PARTITIONS) == []


@pytest.mark.regression("class-7")
@pytest.mark.conformance("3.49")
def test_the_finalized_feature_decides_the_version_and_not_the_brokers_api_versions():
    # The scripted brokers offer every version there is; only the finalized level differs.
    for level, is_v2 in ((1, False), (2, True)):
        harness = in_transaction(version=level)
        harness.send()
        harness.settle()
        assert harness.manager.identity.is_transaction_v2_enabled is is_v2
        assert bool(harness.client.sent(ADD_PARTITIONS)) is not is_v2
        assert bool(harness.client.sent(PRODUCE)) is is_v2
