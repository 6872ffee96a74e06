"""The sender's step with transactions: the order of requests, lost coordinators, closing."""

from __future__ import annotations

import pytest

from tests.core.sending import in_transaction
from tests.harness import TP0, TP1, CoreHarness
from txnproducer._core.transactions.state import TransactionState
from txnproducer._protocol.events import Channel, ConnectionId
from txnproducer._protocol.messages import ApiKey, BrokerNode, CoordinatorType
from txnproducer._protocol.versions import ApiVersionRange
from txnproducer.errors import (
    AuthenticationError,
    ErrorCode,
    IllegalStateError,
    InvalidRecordError,
    InvalidTopicError,
    KafkaError,
    KafkaTimeoutError,
    SaslAuthenticationError,
    TransactionAbortableError,
    TransactionAbortedError,
)

PRODUCE, END_TXN = ApiKey.PRODUCE, ApiKey.END_TXN
COORDINATOR = ConnectionId(0, Channel.COORDINATOR)


# --- what waits for what -------------------------------------------------------------------


@pytest.mark.conformance("6.01")
@pytest.mark.trap(37)
def test_no_data_go_while_a_coordinator_request_is_under_way_but_answers_are_taken():
    harness = in_transaction(version=1)
    harness.client.prepare_add_partitions()
    first = harness.send(partition=0)
    harness.run_until_sent(PRODUCE)
    harness.send(partition=1)  # needs AddPartitions, which stays unanswered
    harness.send(partition=0)  # its partition is in the transaction already
    harness.settle()
    assert len(harness.client.waiting(ApiKey.ADD_PARTITIONS_TO_TXN)) == 1
    assert len(harness.client.sent(PRODUCE)) == 1
    harness.client.answer_produce(harness.client.waiting(PRODUCE)[0])
    harness.settle()
    assert first.done()
    assert len(harness.client.sent(PRODUCE)) == 1


@pytest.mark.parametrize("linger_ms", [0, 60_000])
def test_data_that_wait_for_a_coordinator_request_find_their_broker_connected(linger_ms):
    harness = in_transaction(version=1, linger_ms=linger_ms, node_count=2)
    harness.send(partition=1)
    harness.run_until_sent(ApiKey.ADD_PARTITIONS_TO_TXN)
    harness.settle()
    assert harness.client.is_connected(ConnectionId(1))
    assert not harness.client.sent(PRODUCE)


@pytest.mark.conformance("3.03")
def test_data_go_on_while_the_end_of_the_transaction_waits_for_them():
    harness = in_transaction(linger_ms=60_000)
    future = harness.send()
    commit = harness.core.begin_commit()
    harness.settle()
    (request,) = harness.client.waiting(PRODUCE)  # begun, and sent, with EndTxn in the queue
    harness.client.answer_produce(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    harness.client.prepare_produce()
    harness.client.prepare_end_txn()
    harness.complete(commit)
    assert future.exception(0) is None
    kinds = [kind for kind in harness.client.sent_kinds() if kind in (PRODUCE, END_TXN)]
    assert kinds == [PRODUCE, PRODUCE, END_TXN]


@pytest.mark.conformance("6.02")
@pytest.mark.trap(37)
@pytest.mark.parametrize("call", ["begin_commit", "begin_abort"])
def test_the_end_of_a_transaction_waits_for_every_batch_on_the_wire(call):
    harness = in_transaction()
    harness.send()
    harness.settle()
    result = getattr(harness.core, call)()
    harness.settle()
    assert harness.client.sent(END_TXN) == []
    harness.client.answer_produce(harness.client.waiting(PRODUCE)[0])
    harness.client.prepare_end_txn()
    harness.run_until(lambda: result.is_completed)
    assert result.is_successful


@pytest.mark.conformance("2.32")
def test_a_commit_waits_for_delivery_callbacks_too():
    harness = in_transaction()
    harness.client.prepare_produce()
    harness.send(is_watched=True)
    result = harness.core.begin_commit()
    harness.is_running_callbacks = False
    harness.client.prepare_end_txn()
    harness.settle()
    assert harness.client.sent(END_TXN) == []
    assert harness.run_callbacks() == 1
    harness.is_running_callbacks = True
    harness.run_until(lambda: result.is_completed)
    assert len(harness.deliveries) == 1


@pytest.mark.conformance("6.03")
@pytest.mark.trap(36)
def test_an_abort_drops_unsent_batches_and_retries_sent_ones():
    harness = in_transaction()
    sent = harness.send()
    harness.settle()
    harness.client.answer_produce(
        harness.client.waiting(PRODUCE)[0], ErrorCode.NOT_LEADER_OR_FOLLOWER
    )
    harness.settle()
    unsent = harness.send()
    result = harness.core.begin_abort()
    harness.settle()
    assert isinstance(unsent.exception(), TransactionAbortedError)
    assert not sent.done()
    harness.client.prepare_produce(base_offset=4)
    harness.client.prepare_end_txn()
    harness.run_until(lambda: result.is_completed)
    assert sent.result().offset == 4
    assert harness.sequences_sent() == [0, 0]
    assert not harness.client.sent(END_TXN)[0].is_commit


@pytest.mark.conformance("6.04")
@pytest.mark.trap(36)
def test_unsent_batches_fail_with_the_abortable_error():
    harness = in_transaction(linger_ms=1_000)
    waiting = harness.send(partition=0)
    refused = harness.send(partition=1, value=b"x" * 2_000_000)
    assert refused.done()
    harness.settle()
    assert waiting.exception() is harness.manager.machine.last_error
    assert harness.state is TransactionState.ABORTABLE_ERROR


@pytest.mark.conformance("6.04")
@pytest.mark.trap(36)
@pytest.mark.parametrize("is_after_an_error", [False, True])
def test_unsent_batches_fail_with_the_error_of_an_abort_that_has_begun(is_after_an_error):
    harness = in_transaction(linger_ms=1_000)
    waiting = harness.send(partition=0)
    if is_after_an_error:
        assert harness.send(partition=1, value=b"x" * 2_000_000).done()
    harness.core.begin_abort()  # before the sender has taken its next step
    harness.settle()
    assert type(waiting.exception(0)) is TransactionAbortedError
    assert harness.client.sent(PRODUCE) == []


@pytest.mark.conformance("6.06")
def test_a_fatal_error_fails_in_flight_batches_and_their_answer_frees_the_memory():
    harness = in_transaction()
    future = harness.send()
    harness.settle()
    (request,) = harness.client.waiting(PRODUCE)
    harness.manager.progress.transition_to_fatal_error(KafkaError("over"))
    harness.settle()
    assert str(future.exception()) == "over"
    metrics = harness.core.metrics()
    assert metrics["buffer-available-bytes"] < metrics["buffer-total-bytes"]
    harness.client.answer_produce(request)
    harness.settle()
    metrics = harness.core.metrics()
    assert metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"]


@pytest.mark.conformance("5.09")
@pytest.mark.trap(38)
def test_a_commit_does_not_wait_for_linger():
    harness = in_transaction(linger_ms=10_000)
    harness.client.prepare_produce()
    harness.send()
    harness.commit()
    assert harness.now_ms < 10_000
    harness.begin_transaction()
    harness.send()
    harness.settle()
    assert len(harness.client.sent(PRODUCE)) == 1


@pytest.mark.conformance("5.10")
@pytest.mark.trap(38)
def test_a_commit_waits_for_a_retrys_backoff():
    harness = in_transaction()
    harness.client.prepare_produce(ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.client.prepare_produce()
    harness.send()
    harness.settle()
    harness.commit()
    assert harness.now_ms >= 80


# --- lost coordinators ---------------------------------------------------------------------


@pytest.mark.conformance("6.08")
def test_a_coordinator_that_cannot_be_connected_to_is_looked_up_again():
    harness = CoreHarness(node_count=2)
    harness.client.down.add(1)
    harness.client.prepare_find_coordinator(node_id=1)
    harness.client.prepare_find_coordinator(node_id=0)
    harness.client.prepare_init_producer_id()
    harness.complete(harness.core.init_transactions())
    assert len(harness.client.sent(ApiKey.FIND_COORDINATOR)) == 2


@pytest.mark.conformance("3.35")
@pytest.mark.trap(16)
@pytest.mark.parametrize(("newest", "can_bump"), [(2, False), (3, True)])
def test_whether_the_coordinator_can_raise_epochs_is_learnt_when_it_is_connected(newest, can_bump):
    harness = CoreHarness(transaction_version=1)
    harness.client.api_versions_of[0] = {
        **harness.client.default_versions,
        ApiKey.INIT_PRODUCER_ID: ApiVersionRange(0, newest),
    }
    harness.start_transaction()
    assert harness.manager.identity.coordinator_can_bump is can_bump
    harness.client.disconnect(COORDINATOR)
    harness.settle()
    assert harness.manager.requests.coordinator(CoordinatorType.TRANSACTION) is None
    assert harness.manager.identity.coordinator_can_bump is can_bump


@pytest.mark.conformance("6.08")
def test_a_coordinator_whose_connection_takes_too_long_is_looked_up_again():
    harness = CoreHarness(node_count=2, request_timeout_ms=20_000)
    harness.client._connecting.add(ConnectionId(1, Channel.COORDINATOR))  # never ready
    harness.client.prepare_find_coordinator(node_id=1)
    harness.client.prepare_find_coordinator(node_id=0)
    harness.client.prepare_init_producer_id()
    harness.complete(harness.core.init_transactions())
    assert harness.now_ms == 20_000
    assert len(harness.client.sent(ApiKey.FIND_COORDINATOR)) == 2
    assert len(harness.client.sent(ApiKey.INIT_PRODUCER_ID)) == 1


@pytest.mark.conformance("3.05")
@pytest.mark.parametrize("kind", list(CoordinatorType))
def test_a_coordinator_connection_that_is_lost_while_idle_leads_to_a_new_look_up(kind):
    harness = in_transaction()
    harness.client.prepare_find_coordinator()
    harness.client.prepare_txn_offset_commit()
    harness.complete(harness.send_offsets())
    assert harness.manager.requests.coordinator(kind) is not None
    harness.client.disconnect(COORDINATOR)
    harness.settle()
    assert harness.manager.requests.coordinator(kind) is None


@pytest.mark.parametrize("kind", list(CoordinatorType))
def test_a_coordinator_that_left_the_cluster_is_looked_up_again(kind):
    harness = in_transaction(node_count=2)
    harness.client.prepare_find_coordinator()
    harness.client.prepare_txn_offset_commit()
    harness.complete(harness.send_offsets())
    del harness.client.nodes[0]
    harness.core._metadata.request_update()
    harness.run_for(200)
    assert harness.manager.requests.coordinator(kind) is None


def test_a_coordinator_under_a_new_address_is_found():
    harness = in_transaction(node_count=2)
    harness.client.stop_node(0)
    harness.client.nodes[1] = BrokerNode(1, "moved", 9093)
    harness.client.prepare_produce()
    harness.send(partition=1)
    harness.client.prepare_find_coordinator(node_id=1)
    harness.commit()
    assert harness.client.known[1].host == "moved"
    assert harness.client.requests[-1].connection == ConnectionId(1, Channel.COORDINATOR)


@pytest.mark.conformance("6.09")
def test_a_throttled_coordinator_costs_the_throttle_time_and_no_more():
    harness = CoreHarness(request_timeout_ms=20_000)
    harness.client.prepare_find_coordinator()
    result = harness.core.init_transactions()
    harness.run_until_sent(ApiKey.INIT_PRODUCER_ID)
    harness.client.throttle(COORDINATOR, 25_000)
    harness.client.prepare_init_producer_id()
    request = harness.client.waiting(ApiKey.INIT_PRODUCER_ID)[0]
    harness.client.answer(request, type(harness.client).init_response(-1, -1, 51))
    harness.complete(result)
    assert 25_000 <= harness.now_ms <= 25_200
    assert len(harness.client.sent(ApiKey.FIND_COORDINATOR)) == 1


@pytest.mark.conformance("3.09")
@pytest.mark.quirk("D3")
def test_a_first_attempt_never_waits():
    """Java's first InitProducerId waits too, since it was put back for lack of a coordinator."""
    harness = CoreHarness()
    harness.client.prepare_find_coordinator()
    harness.core.init_transactions()
    harness.run_until_sent(ApiKey.INIT_PRODUCER_ID)
    assert harness.now_ms == 0


@pytest.mark.conformance("3.08")
def test_every_further_attempt_waits_the_same_backoff():
    harness = CoreHarness(retry_backoff_ms=70)
    harness.client.prepare_find_coordinator()
    harness.core.init_transactions()
    for attempt in range(1, 5):
        harness.run_until_sent(ApiKey.INIT_PRODUCER_ID, attempt)
        assert harness.now_ms == (attempt - 1) * 70
        request = harness.client.waiting(ApiKey.INIT_PRODUCER_ID)[0]
        loading = type(harness.client).init_response(
            -1, -1, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        )
        harness.client.answer(request, loading)


@pytest.mark.conformance("1.15")
@pytest.mark.trap(15)
@pytest.mark.parametrize(
    "code",
    [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED],
)
def test_the_sender_goes_back_to_the_start_after_an_init_that_was_refused(code):
    harness = CoreHarness()
    harness.client.prepare_find_coordinator()
    harness.client.prepare_init_producer_id(error_code=code)
    with pytest.raises(KafkaError) as refused:
        harness.complete(harness.core.init_transactions())
    assert refused.value.code == code
    harness.settle()
    assert harness.state is TransactionState.UNINITIALIZED
    assert harness.manager.machine.last_error is None
    harness.client.prepare_init_producer_id()
    harness.complete(harness.core.init_transactions())
    assert harness.state.name == "READY"


@pytest.mark.conformance("3.37")
@pytest.mark.quirk("Q9")
def test_a_refused_login_fails_the_request_in_hand_and_names_the_reason():
    """Java loses the request in hand when the coordinator's own connection is refused."""
    harness = CoreHarness(node_count=2)
    harness.client.refusing_logins[1] = SaslAuthenticationError("wrong password")
    harness.client.prepare_find_coordinator(node_id=1)
    with pytest.raises(AuthenticationError, match="wrong password"):
        harness.complete(harness.core.init_transactions())


# --- close ---------------------------------------------------------------------------------


def close(harness):
    """Close in good order, and return when it has ended."""
    harness.core.initiate_close(harness.now_ms)
    harness.run_until(lambda: harness.core.is_closed)


@pytest.mark.conformance("6.19")
def test_a_close_sends_waiting_records_first():
    harness = CoreHarness(transactional_id=None, linger_ms=10_000)
    harness.start_idempotent()
    future = harness.send()
    harness.client.prepare_produce(base_offset=3)
    close(harness)
    assert future.result().offset == 3
    with pytest.raises(KafkaError):
        harness.send()


@pytest.mark.conformance("6.20")
def test_a_close_aborts_an_open_transaction():
    harness = in_transaction()
    harness.client.prepare_produce()
    future = harness.send()
    harness.client.prepare_end_txn()
    close(harness)
    assert future.done()
    assert [r.is_commit for r in harness.client.sent(END_TXN)] == [False]


@pytest.mark.conformance("6.20")
@pytest.mark.parametrize("call", ["begin_commit", "begin_abort"])
def test_a_close_finishes_an_end_that_is_under_way(call):
    harness = in_transaction()
    harness.send()
    harness.settle()
    result = getattr(harness.core, call)()
    harness.client.answer_produce(harness.client.waiting(PRODUCE)[0])
    harness.client.prepare_end_txn()
    close(harness)
    assert result.is_successful
    assert [r.is_commit for r in harness.client.sent(END_TXN)] == [call == "begin_commit"]


@pytest.mark.conformance("6.21")
def test_a_close_that_cannot_abort_ends_all_the_same():
    harness = in_transaction()
    harness.send()
    harness.settle()
    harness.manager.progress.transition_to_fatal_error(KafkaError("over"))
    harness.client.disconnect(ConnectionId(0))
    close(harness)
    assert harness.core.is_closed


@pytest.mark.conformance("6.21")
def test_a_close_whose_abort_is_refused_ends_by_force(monkeypatch):
    def refuse():
        raise KafkaError("cannot be aborted")

    harness = in_transaction()
    harness.client.prepare_produce()
    assert harness.send().exception() is None
    monkeypatch.setattr(harness.manager, "begin_abort", refuse)
    close(harness)
    assert harness.client.sent(END_TXN) == []


@pytest.mark.conformance("6.22")
def test_a_forced_close_fails_everything_at_once():
    harness = in_transaction()
    futures = [harness.send(partition=0), harness.send(partition=1)]
    harness.settle()
    result = harness.core.begin_commit()
    harness.core.force_close(harness.now_ms)
    assert harness.core.is_closed
    assert all(isinstance(f.exception(), KafkaError) for f in futures)
    assert isinstance(result.error, KafkaError)
    harness.core.force_close(harness.now_ms)  # again does nothing


@pytest.mark.conformance("6.24")
@pytest.mark.quirk("Q11")
def test_a_close_while_init_waits_wakes_the_waiter():
    """In Java the loop ends, and the thread that waits for init never wakes."""
    harness = CoreHarness()
    harness.client.down.add(0)
    harness.client.down.add(-1)
    result = harness.core.init_transactions()
    harness.run_for(500)
    close(harness)
    assert result.is_completed
    assert isinstance(result.error, KafkaError)


@pytest.mark.conformance("2.18")
def test_a_closed_producer_refuses_every_call():
    harness = in_transaction()
    harness.core.force_close(0)
    for call in ("init_transactions", "begin_transaction", "begin_commit", "begin_abort"):
        with pytest.raises(IllegalStateError, match="closed"):
            getattr(harness.core, call)()


# --- appending -----------------------------------------------------------------------------


@pytest.mark.conformance("2.26")
@pytest.mark.quirk("Q12")
def test_a_record_outside_a_transaction_is_refused_and_leaves_nothing():
    """In Java the refused record stays queued and holds up the next commit."""
    harness = CoreHarness()
    harness.init_transactions()
    harness.know_topics()
    with pytest.raises(IllegalStateError, match="begin_transaction"):
        harness.send()
    assert not harness.core._accumulator.has_incomplete
    harness.begin_transaction()
    harness.complete(harness.core.begin_commit())


@pytest.mark.conformance("2.26")
@pytest.mark.parametrize("end", ["begin_commit", "begin_abort"])
def test_a_record_after_the_end_of_a_transaction_is_refused_though_a_batch_is_open(end):
    harness = in_transaction(linger_ms=60_000)
    harness.send()
    getattr(harness.core, end)()
    with pytest.raises(IllegalStateError):
        harness.send()
    assert [batch.record_count for batch in harness.core._accumulator._incomplete] == [1]


@pytest.mark.conformance("2.25")
@pytest.mark.trap(40)
@pytest.mark.quirk("D2")
def test_a_local_failure_outside_a_transaction_fails_the_future_and_changes_no_state():
    """In Java send() raises IllegalStateException instead, from the illegal state change."""
    harness = CoreHarness()
    harness.init_transactions()
    harness.know_topics()
    future = harness.send(value=b"x" * 2_000_000)
    assert future.done()
    assert harness.state is TransactionState.READY
    assert harness.manager.machine.last_error is None


@pytest.mark.conformance("2.22")
@pytest.mark.trap(40)
def test_a_record_that_is_too_large_fails_its_future_its_callback_and_the_transaction():
    harness = in_transaction()
    future = harness.send(value=b"x" * 2_000_000, partition=1, is_watched=True)
    assert "max_request_size" in str(future.exception())
    harness.settle()
    ((metadata, error),) = harness.deliveries
    assert (metadata.topic, metadata.partition, metadata.offset) == ("topic", 1, -1)
    assert error is future.exception()
    with pytest.raises(KafkaError):
        harness.core.begin_commit()


@pytest.mark.conformance("2.28")
@pytest.mark.trap(32, 40)
def test_an_unknown_topic_is_waited_for_until_max_block_and_then_fails_the_transaction():
    harness = in_transaction(max_block_ms=5_000)
    future = harness.send("missing")
    assert isinstance(future.exception(), KafkaTimeoutError)
    assert "'missing'" in str(future.exception())
    assert harness.now_ms == 5_000
    assert harness.manager.machine.last_error.__cause__ is future.exception()


@pytest.mark.conformance("2.28")
def test_a_partition_beyond_the_known_ones_is_waited_for():
    harness = in_transaction(max_block_ms=5_000)
    blocked = harness.try_send(partition=5)
    harness.client.topics["topic"] = 6
    harness.run_until(lambda: harness.core.append_can_proceed(blocked))
    future = harness.send(partition=5)
    harness.client.prepare_produce()
    harness.run_until(future.done)
    assert future.exception() is None
    future = harness.send(partition=9)
    assert "partition 9" in str(future.exception())
    assert "highest partition number is 5" in str(future.exception())


@pytest.mark.conformance("2.21")
@pytest.mark.parametrize(
    "code", [ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
)
def test_a_topic_that_the_cluster_refuses_fails_at_once(code):
    harness = in_transaction()
    harness.client.topic_errors["refused"] = code
    future = harness.send("refused")
    assert future.exception().code == code
    assert harness.now_ms == 0
    assert harness.state is TransactionState.ABORTABLE_ERROR
    assert harness.manager.machine.last_error.__cause__ is future.exception()


@pytest.mark.conformance("2.21")
def test_a_topic_that_cannot_even_be_asked_for_fails_its_record_at_once():
    harness = in_transaction()
    future = harness.send("half a pair: \ud83d")
    assert isinstance(future.exception(), InvalidTopicError)
    assert harness.now_ms == 0
    assert harness.manager.machine.last_error.__cause__ is future.exception()


@pytest.mark.conformance("2.24")
@pytest.mark.trap(40)
def test_a_callers_mistake_raises_and_leaves_the_transaction_alone():
    harness = in_transaction()
    with pytest.raises(TypeError):
        harness.send(value="text")
    assert harness.state is TransactionState.IN_TRANSACTION
    harness.complete(harness.core.begin_commit())


@pytest.mark.conformance("5.31")
def test_a_record_that_finds_no_memory_in_time_fails():
    harness = in_transaction(
        buffer_memory=100_000, batch_size=65_536, max_block_ms=3_000, linger_ms=0
    )
    harness.send(partition=0)
    future = harness.send(partition=1)
    assert harness.now_ms == 3_000
    assert "buffer_memory" in str(future.exception())
    assert not harness.core._accumulator.pool.waiting


@pytest.mark.conformance("5.31")
def test_waiting_for_memory_sends_lingering_batches_and_goes_on_when_they_are_answered():
    harness = in_transaction(buffer_memory=100_000, batch_size=65_536, linger_ms=60_000)
    harness.client.prepare_produce()
    harness.client.prepare_produce()
    first = harness.send(partition=0)
    second = harness.send(partition=1)
    assert first.done()
    assert harness.now_ms < 60_000
    harness.commit()
    assert second.exception() is None


@pytest.mark.conformance("2.34")
def test_a_close_ends_the_wait_for_metadata_and_for_memory():
    harness = in_transaction(buffer_memory=100_000, batch_size=65_536)
    harness.send(partition=0)
    for blocked in (harness.try_send("missing"), harness.try_send(partition=1)):
        assert not harness.core.append_can_proceed(blocked)
    metadata, memory = harness.try_send("missing"), harness.try_send(partition=1)
    harness.core.force_close(0)
    assert harness.core.append_can_proceed(metadata)
    assert harness.core.append_can_proceed(memory)
    with pytest.raises(KafkaError, match="closed"):
        harness.try_send("missing", blocked=metadata)


def test_a_partition_joins_every_transaction_again():
    harness = in_transaction()
    for _ in range(3):
        harness.client.prepare_produce()
        harness.send()
        harness.commit()
        harness.begin_transaction()
    epochs = [b.header.producer_epoch for b in harness.sent_batches(TP0)]
    assert epochs == [1, 2, 3]
    assert harness.sequences_sent(TP0) == [0, 0, 0]
    assert harness.sent_batches(TP1) == []


def test_a_request_waits_for_its_brokers_connection_up_to_the_request_timeout(monkeypatch):
    harness = CoreHarness(request_timeout_ms=5_000)
    harness.client.prepare_find_coordinator()
    harness.core.init_transactions()
    ready = harness.client.is_ready
    monkeypatch.setattr(
        harness.client, "is_ready", lambda c, now: c != COORDINATOR and ready(c, now)
    )
    harness.run_for(4_999)
    assert len(harness.client.sent(ApiKey.FIND_COORDINATOR)) == 1
    harness.run_for(1)
    assert len(harness.client.sent(ApiKey.FIND_COORDINATOR)) == 2


def test_a_close_whose_abort_is_refused_ends_and_says_so(monkeypatch):
    harness = in_transaction()
    harness.settle()

    def refuse():
        raise KafkaError("no")

    monkeypatch.setattr(harness.manager, "begin_abort", refuse)
    close(harness)
    assert harness.core.is_closed


def test_a_local_failure_is_raised_by_the_next_call_too():
    harness = in_transaction()
    harness.send(value=b"x" * 2_000_000)
    with pytest.raises(KafkaError):
        harness.send()


def test_a_record_that_is_lost_fails_the_open_transaction_and_no_other():
    harness = in_transaction()
    lost, later = TransactionAbortableError("lost"), TransactionAbortableError("as well")
    harness.core.lose_record(lost)
    harness.core.lose_record(later)
    assert harness.manager.machine.last_error is lost
    result = harness.core.begin_abort()
    harness.settle()
    assert result.is_successful
    harness.core.lose_record(lost)
    assert harness.state is TransactionState.READY


@pytest.mark.conformance("1.05")
def test_an_illegal_step_while_a_batch_fails_still_ends_the_batch():
    harness = in_transaction()
    future = harness.send(is_watched=True)
    harness.settle()
    (request,) = harness.client.waiting(PRODUCE)
    # No scripted answer can bring this about: the failure of a batch outside a transaction.
    harness.manager.machine.state = TransactionState.READY
    harness.client.answer_produce(request, ErrorCode.INVALID_RECORD)
    harness.settle()
    assert isinstance(future.exception(0), InvalidRecordError)
    ((_, told),) = harness.deliveries
    assert told is future.exception(0)
    assert harness.manager.machine.has_fatal_error
    metrics = harness.core.metrics()
    assert metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"]
