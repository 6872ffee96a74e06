"""The guard against requests that come late, from a connection that is dead (KAFKA-17754).

With transactions v1 all transactions of a producer share one epoch, so that a request which got no
answer may arrive in the midst of a later transaction, and commit, abort or join it. Java's
producer lets it. Here the epoch is raised before the next transaction begins, or none is begun.
"""

from __future__ import annotations

import pytest

from tests.core.on_cluster import OnCluster, committed, make_cluster, started
from tests.core.txn_driver import TP0, TxnDriver
from tests.harness import CoreHarness
from txnproducer._broker.transaction_coordinator import LogWrite
from txnproducer._core.transactions.state import TransactionState
from txnproducer._protocol.events import ResponseFailure
from txnproducer._protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    ApiKey,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from txnproducer.errors import (
    ApplicationRecoverableError,
    CommitOutcomeUnknownError,
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
)
from txnproducer.records import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerIdAndEpoch,
    TopicPartition,
)

NEXT = ProducerIdAndEpoch(77, 1)
LOST = (ResponseFailure.DISCONNECTED, ResponseFailure.TIMED_OUT)


def lose(driver, kind, failure):
    """Lose the answer of the next request, which must be of a kind, and have it repeated."""
    assert isinstance(driver.take(), kind)
    driver.fail(failure)
    driver.expect(FindCoordinatorRequest)
    if kind is not EndTxnRequest:
        driver.expect(kind)


def finish(driver, result):
    assert result.is_successful
    result.acknowledge()


@pytest.mark.regression("KAFKA-17754")
@pytest.mark.quirk("O7")
@pytest.mark.parametrize("failure", LOST)
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_lost_answer_to_end_txn_raises_the_epoch_before_the_next_transaction(failure, is_commit):
    driver = TxnDriver(version=1)
    driver.begin()
    driver.add_partition()
    result = driver.manager.begin_commit() if is_commit else driver.manager.begin_abort()
    lose(driver, EndTxnRequest, failure)
    driver.expect(EndTxnRequest)
    bump = driver.expect(InitProducerIdRequest, producer=NEXT)
    assert (bump.producer_id, bump.producer_epoch) == (77, 0)
    finish(driver, result)
    driver.manager.begin_transaction()
    assert driver.manager.identity.producer_id_and_epoch == NEXT


@pytest.mark.parametrize("failure", LOST)
def test_a_lost_answer_to_add_partitions_raises_the_epoch(failure):
    driver = TxnDriver(version=1)
    driver.begin()
    driver.manager.maybe_add_partition(TP0)
    lose(driver, AddPartitionsToTxnRequest, failure)
    commit = driver.manager.begin_commit()
    driver.expect(EndTxnRequest)
    driver.expect(InitProducerIdRequest, producer=NEXT)
    finish(driver, commit)


@pytest.mark.parametrize("lost", [AddOffsetsToTxnRequest, TxnOffsetCommitRequest])
def test_a_lost_answer_to_offsets_raises_the_epoch(lost):
    driver = TxnDriver(version=1)
    driver.begin()
    driver.send_offsets()
    if lost is TxnOffsetCommitRequest:
        driver.expect(AddOffsetsToTxnRequest)
        driver.expect(FindCoordinatorRequest)
    lose(driver, lost, ResponseFailure.DISCONNECTED)
    if lost is AddOffsetsToTxnRequest:
        driver.expect(FindCoordinatorRequest)
        driver.expect(TxnOffsetCommitRequest)
    commit = driver.manager.begin_commit()
    driver.expect(EndTxnRequest)
    driver.expect(InitProducerIdRequest, producer=NEXT)
    finish(driver, commit)


@pytest.mark.parametrize("failure", LOST)
def test_a_lost_answer_to_produce_raises_the_epoch(failure):
    harness = CoreHarness(transaction_version=1)
    harness.start_transaction()
    harness.client.prepare_add_partitions()
    harness.client.prepare_failure(ApiKey.PRODUCE, failure)
    harness.client.prepare_produce(base_offset=0)
    future = harness.send()
    harness.run_until(future.done)
    assert future.exception() is None
    harness.client.prepare_init_producer_id(producer_epoch=2)
    harness.commit()
    assert harness.manager.identity.producer_id_and_epoch.producer_epoch == 2
    assert len(harness.client.sent(ApiKey.INIT_PRODUCER_ID)) == 2


@pytest.mark.parametrize("when", ["open", "committing", "aborting"])
def test_records_that_expire_on_the_wire_raise_the_epoch_before_their_answer(when):
    harness = CoreHarness(
        transaction_version=1, delivery_timeout_ms=20_000, request_timeout_ms=20_000
    )
    harness.start_transaction()
    harness.client.prepare_add_partitions(delay_ms=1_000)
    future = harness.send()
    harness.run_until_sent(ApiKey.PRODUCE)
    harness.client.prepare_end_txn()
    harness.client.prepare_init_producer_id(producer_epoch=2)
    commit = harness.core.begin_commit() if when == "committing" else None
    abort = harness.core.begin_abort() if when == "aborting" else None
    harness.run_until(future.done)
    assert harness.client.waiting(ApiKey.PRODUCE)
    assert commit is None or commit.is_completed
    harness.complete(abort or harness.core.begin_abort())
    assert harness.manager.identity.producer_id_and_epoch.producer_epoch == 2
    assert [request.is_commit for request in harness.client.sent(ApiKey.END_TXN)] == [False]


def test_a_lost_answer_to_the_new_epoch_itself_does_no_harm():
    # A copy that comes late is refused, or gives the epoch that the repetition has given.
    driver = TxnDriver(version=1)
    driver.begin()
    driver.add_partition()
    commit = driver.manager.begin_commit()
    lose(driver, EndTxnRequest, ResponseFailure.DISCONNECTED)
    driver.expect(EndTxnRequest)
    lose(driver, InitProducerIdRequest, ResponseFailure.TIMED_OUT)
    assert driver.sent[-1] == driver.sent[-3]
    assert driver.take() is None
    finish(driver, commit)


def test_the_transaction_after_the_new_epoch_costs_no_further_one():
    driver = TxnDriver(version=1)
    driver.begin()
    driver.add_partition()
    commit = driver.manager.begin_commit()
    lose(driver, EndTxnRequest, ResponseFailure.DISCONNECTED)
    driver.expect(EndTxnRequest)
    driver.expect(InitProducerIdRequest, producer=NEXT)
    finish(driver, commit)
    driver.manager.begin_transaction()
    driver.add_partition()
    commit = driver.manager.begin_commit()
    driver.expect(EndTxnRequest)
    finish(driver, commit)


@pytest.mark.parametrize("kind", [FindCoordinatorRequest, InitProducerIdRequest])
def test_lost_answers_that_can_do_no_harm_raise_nothing(kind):
    driver = TxnDriver(version=1)
    result = driver.manager.initialize_transactions()
    if kind is InitProducerIdRequest:
        driver.expect(FindCoordinatorRequest)
    driver.take()
    driver.fail()
    driver.expect(FindCoordinatorRequest)
    driver.expect(InitProducerIdRequest, producer=ProducerIdAndEpoch(77, 0))
    finish(driver, result)
    driver.manager.begin_transaction()
    driver.add_partition()
    commit = driver.manager.begin_commit()
    driver.expect(EndTxnRequest)
    finish(driver, commit)


def test_every_transaction_has_its_own_epoch_in_transactions_v2():
    driver = TxnDriver(version=2)
    driver.begin()
    driver.add_partition()
    commit = driver.manager.begin_commit()
    lose(driver, EndTxnRequest, ResponseFailure.DISCONNECTED)
    driver.expect(EndTxnRequest, producer=NEXT)
    finish(driver, commit)
    assert driver.kinds()[-1] == "EndTxn"


@pytest.mark.conformance("3.22")
@pytest.mark.parametrize(
    "failure", [ResponseFailure.UNSUPPORTED_VERSION, ResponseFailure.UNENCODABLE]
)
def test_offsets_that_were_never_sent_end_the_producer(failure):
    driver = TxnDriver(version=2)
    driver.begin()
    offsets = driver.send_offsets()
    driver.expect(FindCoordinatorRequest)
    assert isinstance(driver.take(), TxnOffsetCommitRequest)
    driver.fail(failure, KafkaError("half a surrogate pair"))
    assert driver.state is TransactionState.FATAL_ERROR
    assert "half a surrogate pair" in str(offsets.error)


@pytest.mark.parametrize(
    "failure", [ResponseFailure.UNSUPPORTED_VERSION, ResponseFailure.UNENCODABLE]
)
def test_a_request_that_was_never_sent_is_not_lost(failure):
    driver = TxnDriver(version=1)
    driver.begin()
    driver.add_partition()
    commit = driver.manager.begin_commit()
    driver.take()
    driver.fail(failure)
    assert driver.state is TransactionState.FATAL_ERROR
    assert not isinstance(commit.error, CommitOutcomeUnknownError)
    assert driver.kinds()[-1] == "EndTxn"


@pytest.mark.parametrize("version", [1, 2])
def test_a_copy_of_offsets_that_comes_late_never_takes_the_place_of_later_ones(version):
    # Of two requests in one transaction the last one to arrive counts: Java's group goes back.
    cluster = make_cluster(version)
    harness = started(cluster)
    harness.begin()
    harness.delayed.append(ApiKey.TXN_OFFSET_COMMIT)
    harness.complete(send_offset(harness, 5))
    harness.complete(send_offset(harness, 5))  # the same again is no other
    with pytest.raises(KafkaError, match="delayed copy") as refused:
        harness.complete(send_offset(harness, 10))
    assert refused.value.recovery == "abort"
    harness.end(is_commit=False)
    harness.arrive_late()
    harness.begin()
    harness.complete(send_offset(harness, 10))
    harness.end(is_commit=True)
    assert [offset.offset for _, _, offset in cluster.offsets_history()] == [10]


def send_offset(harness, offset):
    return harness.core.send_offsets_to_transaction(
        {TopicPartition("topic", 0): OffsetAndMetadata(offset)}, ConsumerGroupMetadata("group")
    )


def test_where_epochs_cannot_be_raised_no_further_transaction_is_begun():
    driver = TxnDriver(version=1, can_bump=False)
    driver.begin()
    driver.add_partition()
    commit = driver.manager.begin_commit()
    lose(driver, EndTxnRequest, ResponseFailure.DISCONNECTED)
    driver.expect(EndTxnRequest)
    finish(driver, commit)
    for _ in range(2):
        with pytest.raises(ApplicationRecoverableError, match="go on with a new one") as refusal:
            driver.manager.begin_transaction()
        assert refusal.value.recovery == "restart"
        assert driver.state is TransactionState.READY


def test_a_new_identity_ends_the_ban_on_further_transactions():
    # The first v2 transaction comes with a new epoch, and what was late is of the old one.
    driver = TxnDriver(version=1, can_bump=False)
    driver.begin()
    driver.add_partition()
    driver.client.set_transaction_version(2)
    commit = driver.manager.begin_commit()
    lose(driver, EndTxnRequest, ResponseFailure.DISCONNECTED)
    driver.expect(EndTxnRequest)
    driver.expect(InitProducerIdRequest, producer=NEXT)
    finish(driver, commit)
    driver.manager.begin_transaction()


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE])
def test_a_transaction_that_only_a_lost_request_could_begin_is_aborted_all_the_same(code):
    # Java skips EndTxn, leaves the transaction open at the coordinator, and is fenced by its own
    # bump. INVALID_TXN_STATE tells that the request never arrived.
    driver = TxnDriver(version=1)
    driver.begin()
    driver.manager.maybe_add_partition(TP0)
    driver.take()
    driver.fail()
    driver.expect(FindCoordinatorRequest, ErrorCode.TRANSACTION_ABORTABLE)
    assert driver.state is TransactionState.ABORTABLE_ERROR
    assert driver.take() is None  # the repetition is given up
    abort = driver.manager.begin_abort()
    driver.expect(FindCoordinatorRequest)
    assert not driver.expect(EndTxnRequest, code).is_commit
    driver.expect(InitProducerIdRequest, producer=NEXT)
    finish(driver, abort)
    driver.manager.begin_transaction()


IN_DOUBT = [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR]


def refuse_and_abort(driver, kind, code):
    """Have a request that begins the transaction refused, then given up. Begin the abort."""
    driver.expect(kind, code)
    if driver.state is not TransactionState.ABORTABLE_ERROR:
        driver.manager.progress.maybe_transition_to_error_state(KafkaTimeoutError("expired"))
    if driver.take() is not None:  # the coordinator is looked up
        driver.reply()
        assert driver.take() is None  # the repetition is given up
    return driver.manager.begin_abort()


def abort_ends_with_end_txn(driver, abort, code):
    assert not driver.expect(EndTxnRequest, code).is_commit
    driver.expect(InitProducerIdRequest, producer=NEXT)
    finish(driver, abort)
    driver.manager.begin_transaction()


@pytest.mark.parametrize("end_code", [ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE])
@pytest.mark.parametrize("code", [*IN_DOUBT, ErrorCode.UNKNOWN_SERVER_ERROR])
def test_partitions_refused_though_the_log_may_have_them_are_aborted(code, end_code):
    # Else the next epoch would be refused: the coordinator aborts, and fences its own producer.
    driver = TxnDriver(version=1)
    driver.begin()
    driver.manager.maybe_add_partition(TP0)
    # (And NONE may speak of the transaction before.)
    abort = refuse_and_abort(driver, AddPartitionsToTxnRequest, code)
    abort_ends_with_end_txn(driver, abort, end_code)


@pytest.mark.parametrize("code", IN_DOUBT)
def test_a_group_refused_though_the_log_may_have_it_is_aborted(code):
    driver = TxnDriver(version=1)
    driver.begin()
    driver.send_offsets()
    abort = refuse_and_abort(driver, AddOffsetsToTxnRequest, code)
    abort_ends_with_end_txn(driver, abort, ErrorCode.NONE)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ],
)
def test_a_request_refused_before_the_log_needs_no_abort_at_the_coordinator(code):
    driver = TxnDriver(version=1)
    driver.begin()
    driver.manager.maybe_add_partition(TP0)
    abort = refuse_and_abort(driver, AddPartitionsToTxnRequest, code)
    while not abort.is_completed:
        assert not isinstance(driver.take(), EndTxnRequest)
        if not abort.is_completed:
            driver.reply(producer=NEXT)
    finish(driver, abort)
    assert "EndTxn" not in driver.kinds()


def test_an_abort_does_not_wait_for_a_topic_that_was_deleted():
    # The broker refuses its partitions before it asks the coordinator, so the doubt stays.
    driver = TxnDriver(version=1)
    driver.begin()
    driver.manager.maybe_add_partition(TP0)
    driver.take()
    driver.fail(ResponseFailure.DISCONNECTED)
    driver.expect(FindCoordinatorRequest)
    abort = driver.manager.begin_abort()
    driver.expect(AddPartitionsToTxnRequest, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    abort_ends_with_end_txn(driver, abort, ErrorCode.INVALID_TXN_STATE)


def test_partitions_that_a_failing_coordinator_kept_do_not_fence_their_producer():
    cluster = make_cluster(1)
    harness = started(cluster, delivery_timeout_ms=1_500, request_timeout_ms=1_000, linger_ms=0)
    harness.begin()
    writes = iter([LogWrite.LATE])
    cluster.decide_log_write = lambda _: next(writes, LogWrite.DONE)
    future = harness.send("topic", b"expired")
    harness.step()
    harness.step()
    coordinator = cluster.transaction_coordinator(harness.manager.transactional_id)
    coordinator.take_over(harness.now_ms, 2_000)  # it fails over, and loads that long
    harness.run_for(3_000)
    assert isinstance(future.error, KafkaTimeoutError)
    assert "Abort the transaction and make it again" in str(future.error)
    harness.end(is_commit=False)
    harness.transact(b"next")
    assert committed(cluster) == [b"next"]


def test_a_transaction_that_began_for_certain_is_not_taken_for_one_that_did_not():
    driver = TxnDriver(version=1)
    driver.begin()
    driver.manager.maybe_add_partition(TP0)
    lose(driver, AddPartitionsToTxnRequest, ResponseFailure.DISCONNECTED)
    abort = driver.manager.begin_abort()
    driver.refuse_end(ErrorCode.INVALID_TXN_STATE)
    assert driver.state is TransactionState.FATAL_ERROR
    assert abort.error is not None


@pytest.mark.parametrize("version", [1, 2])
def test_an_own_initialization_that_comes_late_ends_the_producer_and_commits_nothing(version):
    # The one late request that can't be kept away: to the coordinator it is a newer producer.
    cluster = make_cluster(version)
    harness = OnCluster(cluster)
    harness.delayed.append(ApiKey.INIT_PRODUCER_ID)
    harness.init()
    harness.begin()
    harness.write(b"lost")
    harness.arrive_late()
    with pytest.raises(KafkaError):
        harness.end(is_commit=True)
    assert harness.state is TransactionState.FATAL_ERROR
    assert committed(cluster) == []


def test_an_idempotent_producer_keeps_its_epoch():
    harness = CoreHarness(transactional_id=None)
    harness.start_idempotent()
    harness.client.prepare_failure(ApiKey.PRODUCE)
    harness.client.prepare_produce(base_offset=0)
    future = harness.send()
    harness.run_until(future.done)
    assert future.result().offset == 0
    assert {b.header.producer_epoch for b in harness.sent_batches()} == {0}
