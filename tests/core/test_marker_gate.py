"""A transaction's first request waits for the markers of the one before, but never for long."""

from __future__ import annotations

import pytest

from tests.harness import TP0, CoreHarness
from tests.scripted_client import DESCRIBE_VERSIONS
from txnproducer._core.sending.gate_costs import FIRST_PAUSE
from txnproducer._core.sending.marker_gate import FRESH_MS, GIVE_UP_MS, SLEPT_MS
from txnproducer._protocol.events import Channel, ConnectionId
from txnproducer._protocol.messages import ApiKey
from txnproducer.errors import ErrorCode

DESCRIBE, PRODUCE = ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.PRODUCE


def after_a_transaction(version=2, **settings):
    """Return a harness that has just committed, in the next transaction."""
    harness = CoreHarness(transaction_version=version, **settings)
    harness.client.default_versions = dict(DESCRIBE_VERSIONS)
    harness.start_transaction()
    harness.know_topics()
    if version == 1:
        harness.client.prepare_add_partitions()
    harness.client.prepare_produce()
    harness.send()
    harness.commit()
    assert harness.client.sent(DESCRIBE) == []  # nothing waited: nobody was asked
    harness.begin_transaction()
    return harness


@pytest.mark.quirk("O9")
@pytest.mark.parametrize("state", ["PrepareCommit", "PrepareAbort"])
def test_data_wait_while_the_markers_are_being_written(state):
    harness = after_a_transaction()
    future = harness.send()
    harness.client.prepare_describe_transactions(state)
    harness.client.prepare_describe_transactions(state)
    harness.settle()
    assert len(harness.client.sent(DESCRIBE)) == 3
    assert len(harness.client.sent(PRODUCE)) == 1
    (request,) = harness.client.waiting(DESCRIBE)
    assert request.connection == ConnectionId(0, Channel.COORDINATOR)
    assert request.body.transactional_ids == ("txn",)
    harness.client.prepare_describe_transactions("CompleteCommit")
    harness.client.prepare_produce()
    harness.client.answer(request, harness.client.described(request, "CompleteCommit"))
    harness.run_until(future.done)
    assert harness.now_ms == 0
    assert len(harness.client.sent(DESCRIBE)) == 3


def test_a_complete_transaction_is_not_described_again():
    harness = after_a_transaction()
    harness.client.prepare_describe_transactions()
    harness.send()
    harness.settle()
    harness.send(partition=1)
    harness.settle()
    assert len(harness.client.sent(DESCRIBE)) == 1
    assert len(harness.client.sent(PRODUCE)) == 3


def test_with_transactions_v1_a_new_partition_waits():
    harness = after_a_transaction(version=1)
    harness.send()
    harness.client.prepare_describe_transactions("PrepareCommit")
    harness.settle()
    assert len(harness.client.sent(ApiKey.ADD_PARTITIONS_TO_TXN)) == 1
    (request,) = harness.client.waiting(DESCRIBE)
    harness.client.answer(request, harness.client.described(request, "CompleteCommit"))
    harness.settle()
    assert len(harness.client.sent(ApiKey.ADD_PARTITIONS_TO_TXN)) == 2


def test_offsets_wait_too():
    harness = after_a_transaction()
    harness.send_offsets()
    harness.settle()
    assert len(harness.client.waiting(DESCRIBE)) == 1
    assert harness.client.sent(ApiKey.TXN_OFFSET_COMMIT) == []


def test_the_gate_gives_up_when_the_answer_does_not_come():
    harness = after_a_transaction()
    harness.send()
    harness.run_for(GIVE_UP_MS - 1)
    assert len(harness.client.sent(PRODUCE)) == 1
    harness.run_for(1)
    assert len(harness.client.sent(PRODUCE)) == 2
    assert len(harness.client.sent(DESCRIBE)) == 1


def test_the_gate_gives_up_when_the_markers_take_too_long():
    harness = after_a_transaction()
    for _ in range(200):
        harness.client.prepare_describe_transactions("PrepareCommit")
    harness.send()
    harness.run_for(GIVE_UP_MS)
    assert len(harness.client.sent(PRODUCE)) == 2
    assert len(harness.client.sent(DESCRIBE)) <= GIVE_UP_MS + 10


def test_a_question_that_was_given_up_has_cost_the_time_until_then_and_no_more():
    harness = after_a_transaction()
    costs = harness.core._sender._coordinators._gate._costs
    harness.send()
    harness.run_for(GIVE_UP_MS)
    assert (costs._questions, costs._held_ms) == (1, GIVE_UP_MS)
    (late,) = harness.client.waiting(DESCRIBE)
    harness.run_for(2_000)
    harness.client.answer(late, harness.client.described(late, "CompleteCommit"))
    harness.settle()
    assert (costs._questions, costs._held_ms) == (1, GIVE_UP_MS)


def test_a_late_transaction_need_not_ask():
    harness = after_a_transaction()
    harness.run_for(FRESH_MS)
    harness.send()
    harness.settle()
    assert harness.client.sent(DESCRIBE) == []
    assert len(harness.client.sent(PRODUCE)) == 2


@pytest.mark.parametrize("trouble", ["error", "lost", "not offered"])
def test_on_any_doubt_the_gate_opens(trouble):
    harness = after_a_transaction()
    if trouble == "error":
        harness.client.prepare_describe_transactions(
            error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        )
    elif trouble == "lost":
        harness.client.prepare_failure(DESCRIBE)
    else:
        harness.client._offered.clear()
    harness.send()
    harness.settle()
    assert len(harness.sent_batches(TP0)) == 2
    # That transaction's cost counts for neither way.
    harness.client.answer_produce(harness.client.waiting(PRODUCE)[0])
    harness.settle()
    assert harness.core.metrics()["record-send-total"] == 2


def test_an_answer_about_an_earlier_end_says_nothing_about_this_one():
    harness = after_a_transaction()
    harness.send()
    harness.settle()
    (late,) = harness.client.waiting(DESCRIBE)
    harness.run_for(GIVE_UP_MS)
    harness.client.answer_produce(harness.client.waiting(PRODUCE)[0])
    harness.commit()
    harness.begin_transaction()
    harness.send()
    harness.settle()
    harness.client.answer(late, harness.client.described(late, "CompleteCommit"))
    harness.settle()
    assert len(harness.client.sent(PRODUCE)) == 2  # the question about this end is still open


def commit_at_once(harness, took_ms=0):
    """Make a transaction right after the last one. Return how many questions it has asked."""
    before = len(harness.client.sent(DESCRIBE))
    harness.client.prepare_describe_transactions()
    if not harness.core.transaction_manager.identity.is_transaction_v2_enabled:
        harness.client.prepare_add_partitions()
    harness.send()
    harness.settle()
    harness.run_for(took_ms)
    harness.client.answer_produce(harness.client.waiting(PRODUCE)[0])
    harness.commit()
    harness.begin_transaction()
    return len(harness.client.sent(DESCRIBE)) - before


def test_where_markers_are_in_time_it_asks_no_more():
    harness = after_a_transaction()
    assert [commit_at_once(harness) for _ in range(FIRST_PAUSE)] == [1] * FIRST_PAUSE
    assert [commit_at_once(harness) for _ in range(100)] == [0] * 100


def test_with_transactions_v1_it_always_asks():
    harness = after_a_transaction(version=1)
    count = FIRST_PAUSE + 10
    assert [commit_at_once(harness) for _ in range(count)] == [1] * count


def test_it_asks_again_after_a_transaction_that_came_too_early():
    harness = after_a_transaction()
    for _ in range(FIRST_PAUSE):
        commit_at_once(harness)
    assert commit_at_once(harness, took_ms=SLEPT_MS - 1) == 0
    harness.run_for(1)
    assert commit_at_once(harness, took_ms=SLEPT_MS) == 0
    for _ in range(2 * FIRST_PAUSE):
        assert commit_at_once(harness) == 1
    # That sleep counted once.
    assert commit_at_once(harness) == 0
    assert commit_at_once(harness) == 0


def test_offsets_that_came_too_early_count_as_well():
    harness = after_a_transaction()
    for _ in range(FIRST_PAUSE):
        commit_at_once(harness)
    harness.client.prepare_find_coordinator()
    harness.client.prepare_txn_offset_commit(delay_ms=SLEPT_MS)
    harness.complete(harness.send_offsets())
    harness.commit()
    harness.begin_transaction()
    assert commit_at_once(harness) == 1


@pytest.mark.parametrize("failure", ["refused", "lost"])
def test_a_first_request_without_success_may_have_come_too_early(failure):
    harness = after_a_transaction()
    for _ in range(FIRST_PAUSE):
        commit_at_once(harness)
    future = harness.send()
    harness.settle()
    (request,) = harness.client.waiting(PRODUCE)
    if failure == "refused":
        harness.client.answer_produce(request, ErrorCode.CONCURRENT_TRANSACTIONS)
    else:
        harness.client.fail(request)
        harness.client.prepare_find_coordinator()
    harness.client.prepare_produce()
    harness.run_until(future.done)
    harness.commit()
    harness.begin_transaction()
    assert commit_at_once(harness) == 1


def test_of_several_brokers_the_one_that_sleeps_counts():
    harness = after_a_transaction(node_count=2, topics={"topic": 4})
    for _ in range(FIRST_PAUSE):
        commit_at_once(harness)
    futures = [harness.send(partition=partition) for partition in (0, 1)]
    harness.settle()
    quick, slow = harness.client.waiting(PRODUCE)
    harness.client.answer_produce(quick)
    harness.run_for(SLEPT_MS)
    harness.client.answer_produce(slow)
    harness.run_until(lambda: all(future.done() for future in futures))
    harness.commit()
    harness.begin_transaction()
    assert commit_at_once(harness) == 1


def test_a_request_after_the_first_answer_does_not_count():
    """The partitions are in the transaction by then, and a large batch takes its time."""
    harness = after_a_transaction()
    for _ in range(FIRST_PAUSE):
        commit_at_once(harness)
    harness.send()
    harness.settle()
    harness.client.answer_produce(harness.client.waiting(PRODUCE)[0])
    harness.run_for(1)
    assert commit_at_once(harness, took_ms=SLEPT_MS) == 0
    assert commit_at_once(harness) == 0
