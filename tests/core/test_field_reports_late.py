"""Failures that users of other clients reported: late requests, lost coordinators, time-outs.

The marks are explained in `test_field_reports.py`.
"""

from __future__ import annotations

import pytest

from tests.core.on_cluster import OnCluster, committed, is_all_decided, make_cluster, started
from tests.harness import TP0, CoreHarness
from txnproducer._core.transactions.state import TransactionState
from txnproducer._protocol.events import Channel, ConnectionId
from txnproducer._protocol.messages import ApiKey, CoordinatorType
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    ErrorCode,
    IllegalStateError,
    KafkaTimeoutError,
    TransactionAbortedError,
)
from txnproducer.records import ConsumerGroupMetadata

PRODUCE, END_TXN, INIT = ApiKey.PRODUCE, ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID
ADD_PARTITIONS, ADD_OFFSETS = ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN
OFFSETS, FIND = ApiKey.TXN_OFFSET_COMMIT, ApiKey.FIND_COORDINATOR
GROUP = ConsumerGroupMetadata("group")
GROUP_NODE = ConnectionId(1, Channel.COORDINATOR)
either_version = pytest.mark.parametrize("version", [1, 2])


# --- requests that come late --------------------------------------------------------------------


@pytest.mark.regression("KAFKA-17754")
@pytest.mark.regression("class-3")
@either_version
@pytest.mark.parametrize("is_commit", [True, False])
def test_an_end_that_comes_late_does_not_end_the_next_transaction(version, is_commit):
    """Seen: an EndTxn whose connection had died arrived later, and ended another transaction.

    Here the next transaction has another epoch whenever an answer was lost: it is refused.
    """
    cluster = make_cluster(version)
    harness = started(cluster)
    harness.begin()
    harness.write(b"first")
    harness.delayed.append(END_TXN)
    harness.end(is_commit=is_commit)
    harness.begin()
    harness.write(b"half of the second")
    (refusal,) = harness.arrive_late()
    assert refusal.error_code == ErrorCode.PRODUCER_FENCED
    assert cluster.open_transactions == ["txn"]
    harness.end(is_commit=False)
    assert committed(cluster) == ([b"first"] if is_commit else [])
    assert is_all_decided(cluster)


@pytest.mark.regression("KAFKA-17754")
@pytest.mark.regression("class-3")
@either_version
def test_offsets_that_come_late_do_not_go_with_the_next_transaction(version):
    """Seen: offsets of an aborted transaction came late, and were committed by the next one.

    Here they bear the old epoch, and the group keeps the offset of what was committed.
    """
    cluster = make_cluster(version)
    harness = started(cluster)
    harness.begin()
    harness.delayed.append(OFFSETS)
    harness.complete(harness.send_offsets({TP0: 99}, GROUP))
    harness.end(is_commit=False)
    harness.begin()
    harness.complete(harness.send_offsets({TP0: 1}, GROUP))
    (late,) = harness.arrive_late()
    assert [result.error_code for result in late.results] != [ErrorCode.NONE]
    harness.end(is_commit=True)
    offsets = cluster.committed_offsets(GROUP.group_id, require_stable=True)
    assert offsets[TP0].offset == 1


@pytest.mark.regression("KAFKA-14402")
@pytest.mark.regression("class-3")
@either_version
@pytest.mark.parametrize("is_next_open", [True, False])
def test_records_that_come_late_join_nothing_and_keep_no_consumer_waiting(version, is_next_open):
    """Seen: records of an aborted transaction came late. They hung, or joined the next one.

    Here the abort is followed by a new epoch, under which they are refused.
    """
    cluster = make_cluster(version)
    harness = started(cluster, delivery_timeout_ms=20_000, request_timeout_ms=20_000)
    harness.begin()
    harness.write(b"seen in time")
    harness.delayed += [PRODUCE] * 100
    lost = harness.send("topic", b"late", partition=1)
    harness.run_until_sent(PRODUCE, 2)
    harness.end(is_commit=False)
    harness.run_until(lost.done)
    assert lost.exception() is not None
    harness.delayed.clear()
    harness.begin()
    if is_next_open:
        future = harness.send("topic", b"next", partition=1)
        harness.run_until(future.done)
    late = harness.arrive_late()
    assert late
    assert all(answer.partitions[0].error_code for answer in late)
    harness.end(is_commit=True)
    place = TP0._replace(partition=1)
    assert committed(cluster, place) == ([b"next"] if is_next_open else [])
    assert is_all_decided(cluster)
    assert is_all_decided(cluster, place)


# --- coordinators that are gone -----------------------------------------------------------------


@pytest.mark.regression("librdkafka-5511")
@pytest.mark.regression("class-4")
@pytest.mark.parametrize(
    ("how", "within_ms"),
    [
        ("it is in no metadata", 1_000),
        ("it refuses connections", 1_000),
        ("it takes requests and is silent", 11_000),
        ("its connection neither comes up nor fails", 11_000),
    ],
)
def test_offsets_find_their_groups_new_coordinator_when_the_old_one_was_taken_away(how, within_ms):
    """Seen: send_offsets hung for ever on a group coordinator that had left the cluster.

    Here a coordinator that the cluster has no more, or that cannot be reached, is looked up again
    within the call.
    """
    harness = CoreHarness(node_count=2, request_timeout_ms=10_000, delivery_timeout_ms=10_000)
    harness.start_transaction()
    client = harness.client
    client.prepare_find_coordinator(node_id=1)
    client.prepare_txn_offset_commit()
    harness.complete(harness.send_offsets())
    assert client.requests[-1].connection == GROUP_NODE
    if how == "it is in no metadata":
        del client.nodes[1]
        harness.core._metadata.request_update()
        harness.run_for(200)
    elif how == "it refuses connections":
        client.stop_node(1)
    elif how == "it takes requests and is silent":
        client.prepare_txn_offset_commit(delay_ms=1 << 40)
    else:
        client._ready.discard(GROUP_NODE)
        client._connecting.add(GROUP_NODE)
    client.prepare_find_coordinator(node_id=0)
    client.prepare_txn_offset_commit()
    harness.complete(harness.send_offsets())
    assert client.requests[-1].connection == ConnectionId(0, Channel.COORDINATOR)
    assert harness.now_ms < within_ms


@pytest.mark.regression("class-4")
@either_version
@pytest.mark.parametrize("kind", list(CoordinatorType))
def test_a_coordinator_that_dies_in_the_midst_of_a_call_costs_a_look_up(version, kind):
    """Seen: while the broker that coordinated it was down, a producer stood still or died.

    Here both coordinators are looked up again as soon as their connection is lost.
    """
    harness = CoreHarness(transaction_version=version, node_count=2)
    client, is_group = harness.client, kind is CoordinatorType.GROUP
    client.prepare_find_coordinator(node_id=0 if is_group else 1)
    client.prepare_init_producer_id()
    harness.complete(harness.core.init_transactions())
    harness.begin_transaction()
    client.prepare_find_coordinator(node_id=1 if is_group else 0)
    client.prepare_add_offsets()
    asked = harness.send_offsets()
    if not is_group:
        client.prepare_txn_offset_commit()
        harness.complete(asked)
        asked = harness.core.begin_commit()
    harness.run_until_sent(OFFSETS if is_group else END_TXN)
    client.stop_node(1)
    client.prepare_find_coordinator(node_id=0)
    client.prepare_txn_offset_commit()
    client.prepare_end_txn()
    client.prepare_init_producer_id(producer_epoch=2)  # v1, after a lost answer
    harness.complete(asked)
    if is_group:
        harness.complete(harness.core.begin_commit())
    assert harness.state is TransactionState.READY
    assert harness.now_ms < 5_000


# --- time-outs ----------------------------------------------------------------------------------


@pytest.mark.regression("class-5")
@either_version
@pytest.mark.parametrize("call", ["init", "offsets", "commit", "abort"])
def test_after_any_time_out_there_is_a_way_on_with_the_same_producer(version, call):
    """Seen: after a time-out of a call the producer was in a state that refused each other call.

    Here the same call can be made again and goes on, and then the next transaction commits.
    """
    kinds = {"init": INIT, "offsets": OFFSETS, "commit": END_TXN, "abort": END_TXN}
    cluster = make_cluster(version)
    harness = OnCluster(cluster, max_block_ms=1_000, request_timeout_ms=5_000)
    calls = {
        "init": harness.core.init_transactions,
        "offsets": lambda: harness.send_offsets({TP0: 7}, GROUP),
        "commit": harness.core.begin_commit,
        "abort": harness.core.begin_abort,
    }
    if call != "init":
        harness.init()
        harness.begin()
        harness.write(b"one")
    harness.stalled.add(kinds[call])
    with pytest.raises(KafkaTimeoutError):
        harness.complete(calls[call]())
    harness.stalled.clear()
    harness.complete(calls[call](), timeout_ms=60_000)
    if call == "offsets":
        harness.end(is_commit=True)
    harness.transact(b"two")
    first = [] if call in ("init", "abort") else [b"one"]
    assert committed(cluster) == [*first, b"two"]


@pytest.mark.regression("class-5")
@either_version
@pytest.mark.parametrize("has_succeeded", [True, False])
def test_a_commit_that_timed_out_can_be_given_up_and_the_abort_learns_its_outcome(
    version, has_succeeded
):
    """Seen: an abort after a commit's time-out was refused, or it said nothing about the commit.

    Here the coordinator's answer to the abort settles it, and the next transaction begins.
    """
    cluster = make_cluster(version)
    harness = started(cluster, max_block_ms=1_000, request_timeout_ms=5_000)
    harness.begin()
    harness.write(b"one")
    if has_succeeded:
        harness.stalled.add(END_TXN)
    else:
        harness.client.stop_node(0)
    with pytest.raises(KafkaTimeoutError):
        harness.end(is_commit=True)
    harness.stalled.clear()
    harness.client.start_node(0)
    abort = harness.core.begin_abort()
    if has_succeeded:
        with pytest.raises(IllegalStateError, match="all its records are visible"):
            harness.complete(abort, timeout_ms=60_000)
    else:
        harness.complete(abort, timeout_ms=60_000)
    assert harness.manager.progress.outcome == ("committed" if has_succeeded else "aborted")
    harness.transact(b"two")
    assert committed(cluster) == [*([b"one"] if has_succeeded else []), b"two"]


@pytest.mark.regression("class-2")
@either_version
@pytest.mark.parametrize("has_succeeded", [True, False])
def test_a_commit_whose_answer_went_with_the_producer_is_called_unknown(version, has_succeeded):
    """Seen: such a commit was called failed, its work was done again, and was there twice.

    Here no call reports a failure. The error says that the outcome has to be found out.
    """
    cluster = make_cluster(version)
    harness = started(cluster)
    harness.begin()
    harness.write(b"value")
    (harness.lost if has_succeeded else harness.delayed).append(END_TXN)
    commit = harness.core.begin_commit()
    harness.run_until(lambda: not harness.lost and not harness.delayed)
    heir = OnCluster(cluster)
    heir.init()
    heir.transact(b"of its heir")
    with pytest.raises(CommitOutcomeUnknownError) as told:
        harness.complete(commit)
    assert told.value.recovery == "unknown"
    assert not isinstance(told.value, TransactionAbortedError)
    assert (b"value" in committed(cluster)) is has_succeeded
    for late in harness.arrive_late():
        assert late.error_code
    assert (b"value" in committed(cluster)) is has_succeeded
