"""Leaders and coordinators that move, brokers that stop and return, coordinators that load."""

from __future__ import annotations

import pytest

from tests.broker.support import GROUP, T0, T1, T2, TOPIC, Bench, Who, batch_of
from txnproducer._broker.transaction_coordinator import LogWrite
from txnproducer._broker.transaction_metadata import LAST_CLIENT_EPOCH
from txnproducer._protocol import messages as m
from txnproducer.errors import ErrorCode
from txnproducer.records import TopicPartition


def told_leader(bench: Bench, node_id: int, place: TopicPartition = T0) -> tuple[int, int, int]:
    """Return a partition's leader, leader epoch and error as a broker tells them."""
    answer = bench.ask(m.MetadataRequest((place.topic,)), node_id)
    found = answer.topics[0].partitions[place.partition]
    return found.leader_id, found.leader_epoch, found.error_code


def find(bench: Bench, key: str, kind: m.CoordinatorType) -> m.Coordinator:
    (found,) = bench.ask(m.FindCoordinatorRequest(key, kind), 0).coordinators
    assert isinstance(found, m.Coordinator)
    return found


def move_group_coordinator(bench: Bench, node_id: int) -> None:
    number = bench.cluster.coordinator_number(GROUP)
    kind = m.CoordinatorType.GROUP
    bench.cluster.move_coordinator(kind, number, node_id, bench.now_ms)


# --- leaders -------------------------------------------------------------------------------------


def test_the_old_leader_refuses_and_names_the_new_one():
    bench = Bench(node_count=3)
    who = bench.init()
    bench.cluster.move_partition(T0, 2, bench.now_ms)
    answer = bench.produce(who, T0, 0, node=0)
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert answer.current_leader == m.LeaderIdAndEpoch(2, 1)
    assert bench.produce(who, T0, 0, node=2).error_code == ErrorCode.NONE


def test_brokers_hear_of_a_move_after_a_while_and_the_new_leader_at_once():
    bench = Bench(node_count=3, max_metadata_delay_ms=50)
    bench.cluster.move_partition(T0, 2, bench.now_ms)
    assert told_leader(bench, 2) == (2, 1, ErrorCode.NONE)
    bench.pass_ms(49)
    assert [told_leader(bench, node) for node in (0, 1)] == [(0, 0, 0), (0, 0, 0)]
    bench.pass_ms(1)
    assert [told_leader(bench, node) for node in (0, 1)] == [(2, 1, 0), (2, 1, 0)]


def test_news_of_an_earlier_move_never_undoes_that_of_a_later_one():
    bench = Bench(node_count=3, max_metadata_delay_ms=50)
    bench.cluster.move_partition(T0, 1, bench.now_ms)
    bench.rng.is_high = False
    bench.cluster.move_partition(T0, 2, bench.now_ms)
    assert told_leader(bench, 0) == (2, 2, ErrorCode.NONE)
    bench.pass_ms(50)
    assert told_leader(bench, 0) == (2, 2, ErrorCode.NONE)


def test_a_moved_partition_still_knows_its_producers():
    bench = Bench(node_count=2)
    who = bench.open(T0)
    bench.cluster.move_partition(T0, 1, bench.now_ms)
    assert bench.produce(who, T0, 0).base_offset == 0  # a duplicate
    assert bench.produce(who, T0, 1).base_offset == 1


def test_verification_state_is_known_to_the_old_leader_alone():
    bench = Bench(node_count=2, transaction_version=1)
    who = bench.init()
    early = bench.produce(who, T0, 2)  # not added yet: from now on later sequences are kept out
    assert early.error_code == ErrorCode.TRANSACTION_ABORTABLE
    bench.add(who, T0)
    later = bench.produce(who, T0, 5)
    assert later.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    bench.cluster.move_partition(T0, 1, bench.now_ms)
    assert bench.produce(who, T0, 5).error_code == ErrorCode.NONE


def test_brokers_before_2_5_keep_no_sequence_out_for_verification():
    bench = Bench(transaction_version=1, init_producer_id_version=2)
    who = bench.init()
    early = bench.produce(who, T0, 2)
    assert early.error_code == ErrorCode.TRANSACTION_ABORTABLE
    bench.add(who, T0)
    assert bench.produce(who, T0, 5).error_code == ErrorCode.UNKNOWN_PRODUCER_ID
    assert bench.produce(who, T0, 0).error_code == ErrorCode.NONE


# --- brokers -------------------------------------------------------------------------------------


def test_partitions_and_coordinators_of_a_stopped_broker_move_to_one_that_is_up():
    bench = Bench(node_count=3)
    bench.cluster.stop_node(0, bench.now_ms)
    up = {1, 2}
    assert {bench.cluster.leaders[place] for place in (T0, T1, T2)} <= up
    for kind in m.CoordinatorType:
        for number in range(20):
            found = find(bench, f"key-{number}", kind)
            assert found.error_code == ErrorCode.NONE
            assert found.node.node_id in up
    answer = bench.ask(m.MetadataRequest(()), 1)
    assert {broker.node_id for broker in answer.brokers} == up


def test_no_broker_leads_or_coordinates_after_the_last_one_stops_until_one_returns():
    bench = Bench()
    bench.commit(bench.open(T0))
    bench.cluster.stop_node(0, bench.now_ms)
    # The model itself lets a broker that is down be asked. The network does not.
    assert told_leader(bench, 0)[::2] == (-1, ErrorCode.LEADER_NOT_AVAILABLE)
    for kind in m.CoordinatorType:
        assert find(bench, "a", kind).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.cluster.start_node(0, bench.now_ms)
    leader, epoch, code = told_leader(bench, 0)
    assert (leader, code) == (0, ErrorCode.NONE)
    assert epoch > 0
    assert find(bench, "a", m.CoordinatorType.TRANSACTION).node.node_id == 0
    assert bench.values(T0) == ["v"]


def test_the_first_broker_to_return_takes_the_partitions_without_a_leader():
    bench = Bench(node_count=2)
    who = bench.open(T0, T1)
    for node in (0, 1):
        bench.cluster.stop_node(node, bench.now_ms)
    bench.cluster.start_node(0, bench.now_ms)
    assert bench.transaction_node() == 0
    bench.commit(who)
    assert (bench.values(T0), bench.values(T1)) == (["v"], ["v"])


def test_a_leader_cannot_ask_a_coordinator_that_is_down():
    bench = Bench(node_count=2)
    who = bench.init()
    coordinator = bench.transaction_node()
    place = (T0, T1)[1 - coordinator]
    bench.cluster._down.add(coordinator)  # down, and nobody has noticed yet
    answer = bench.produce(who, place, 0)
    assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS  # which producers retry


# --- coordinators --------------------------------------------------------------------------------


def test_the_former_coordinator_is_none_and_the_new_one_loads_first():
    bench = Bench(node_count=2, loading_ms=30, transaction_version=1)
    who = bench.open(T0)
    former = bench.transaction_node()
    bench.move_coordinator_of("a", 1 - former)
    for node, code in (
        (former, ErrorCode.NOT_COORDINATOR),
        (1 - former, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ):
        assert bench.end(who, commit=True, node_id=node).error_code == code
        assert bench.add(who, T1, node_id=node) == {code}
        assert bench.ask(m.InitProducerIdRequest("a", 60_000), node).error_code == code
        offsets = m.AddOffsetsToTxnRequest("a", who.producer_id, who.epoch, GROUP)
        assert bench.ask(offsets, node).error_code == code
        (description,) = bench.ask(m.DescribeTransactionsRequest(("a",)), node).transactions
        assert description.error_code == code
    bench.pass_ms(30)
    assert bench.end(who, commit=True).error_code == ErrorCode.NONE
    assert bench.values(T0) == ["v"]


def test_a_coordinator_that_resigns_takes_the_next_epoch_for_a_foreign_one():
    bench = Bench(node_count=2, max_marker_delay_ms=100)
    first = bench.open(T0)
    who = bench.commit(first)  # the markers are on their way
    former = bench.transaction_node()
    bench.rng.is_high = False
    bench.move_coordinator_of("a", 1 - former, resigning_ms=20)
    bench.go_on(who, T1)
    assert bench.end(who, commit=True, node_id=former).error_code == ErrorCode.PRODUCER_FENCED
    concurrent = ErrorCode.CONCURRENT_TRANSACTIONS
    assert bench.end(first, commit=True, node_id=former).error_code == concurrent
    assert bench.add(who, T0, node_id=former) == {ErrorCode.NOT_COORDINATOR}
    assert bench.end(who, commit=True).error_code == ErrorCode.NONE
    bench.pass_ms(20)
    assert bench.end(who, commit=True, node_id=former).error_code == ErrorCode.NOT_COORDINATOR


def test_a_coordinator_that_resigns_does_not_know_the_next_producer_id():
    bench = Bench(node_count=2, max_marker_delay_ms=100)
    bench.cluster.preset_epoch("a", LAST_CLIENT_EPOCH - 1)
    who = bench.commit(bench.open(T0))
    assert who.epoch == 0
    former = bench.transaction_node()
    bench.rng.is_high = False
    bench.move_coordinator_of("a", 1 - former, resigning_ms=20)
    answer = bench.end(who, commit=False, node_id=former)
    assert answer.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert bench.end(who, commit=False).error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", [1, 2])
def test_a_coordinator_that_resigns_cannot_write(version):
    bench = Bench(node_count=2, transaction_version=version)
    who = bench.open(T0)
    former = bench.transaction_node()
    bench.move_coordinator_of("a", 1 - former, resigning_ms=20)
    assert bench.end(who, commit=True, node_id=former).error_code == ErrorCode.NOT_COORDINATOR


def test_a_coordinator_that_resigns_knows_no_transaction_that_began_at_the_next_one():
    bench = Bench(node_count=2)
    first = bench.open(T0)
    who = bench.commit(first)
    former = bench.transaction_node()
    bench.move_coordinator_of("a", 1 - former, resigning_ms=20)
    bench.go_on(who, T1)
    invalid = ErrorCode.INVALID_TXN_STATE
    assert bench.end(who, commit=True, node_id=former).error_code == invalid
    not_coordinator = ErrorCode.NOT_COORDINATOR
    assert bench.end(who, commit=False, node_id=former).error_code == not_coordinator
    repeated = bench.end(first, commit=True, node_id=former)
    assert (repeated.error_code, repeated.producer_epoch) == (ErrorCode.NONE, who.epoch)
    assert bench.end(who, commit=True).error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", [1, 2])
def test_an_epoch_that_was_asked_for_before_a_move_cannot_be_asked_for_again(version):
    # `TransactionLogValue` has no previous epoch.
    bench = Bench(node_count=2, transaction_version=version)
    who = bench.init()
    raise_epoch = m.InitProducerIdRequest("a", 60_000, who.producer_id, who.epoch)
    assert bench.ask(raise_epoch).producer_epoch == who.epoch + 1
    assert bench.ask(raise_epoch).producer_epoch == who.epoch + 1
    bench.move_coordinator_of("a", 1 - bench.transaction_node())
    assert bench.ask(raise_epoch).error_code == ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("version", [1, 2])
def test_a_first_batch_meets_a_loading_coordinator_as_an_error_to_retry(version):
    bench = Bench(node_count=2, loading_ms=30, transaction_version=version)
    who = bench.init()
    if version == 1:
        bench.add(who, T0)
    bench.move_coordinator_of("a", 1 - bench.transaction_node())
    assert bench.produce(who, T0, 0).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    bench.pass_ms(30)
    assert bench.produce(who, T0, 0).error_code == ErrorCode.NONE


def test_the_new_coordinator_completes_transactions_and_the_old_marker_is_fenced():
    # With v1 the next transaction has the same epoch: only the coordinator's tells them apart.
    bench = Bench(node_count=2, loading_ms=10, max_marker_delay_ms=100, transaction_version=1)
    who = bench.commit(bench.open(T0))
    bench.rng.is_high = False
    bench.move_coordinator_of("a", 1 - bench.transaction_node())
    bench.pass_ms(10)  # loaded; its own marker is there at once
    assert bench.describe().state == "CompleteCommit"
    assert bench.values(T0) == ["v"]
    bench.go_on(who, T0, at=1, value="open")
    bench.pass_ms(100)  # here the former one's marker arrives
    assert len(bench.markers(T0)) == 1
    assert bench.values(T0) == ["v"]
    assert bench.describe().state == "Ongoing"
    bench.commit(who)
    assert bench.values(T0) == ["v", "open"]


def test_only_the_last_of_two_moves_goes_on():
    bench = Bench(node_count=2, loading_ms=10, max_marker_delay_ms=100)
    bench.commit(bench.open(T0))
    bench.rng.is_high = False
    for _ in range(2):
        bench.move_coordinator_of("a", 1 - bench.transaction_node())
        bench.pass_ms(5)
    assert bench.markers(T0) == []
    bench.pass_ms(5)
    assert len(bench.markers(T0)) == 1


@pytest.mark.parametrize(
    ("fate", "state"), [(LogWrite.LATE, "CompleteCommit"), (LogWrite.LOST, "Ongoing")]
)
def test_the_new_coordinator_knows_the_log_and_not_the_answers(fate, state):
    bench = Bench(node_count=2)
    who = bench.open(T0)
    bench.cluster.decide_log_write = lambda _: fate
    failed = bench.end(who, commit=True)
    assert failed.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.cluster.decide_log_write = lambda _: LogWrite.DONE
    assert bench.describe().state == "Ongoing"
    bench.move_coordinator_of("a", 1 - bench.transaction_node())
    assert bench.describe().state == state


def test_pending_offsets_outlive_a_move_of_their_groups_coordinator():
    bench = Bench(node_count=2, loading_ms=30)
    who = bench.init()
    assert bench.commit_offset(who, 5) == ErrorCode.NONE
    former = bench.cluster.coordinator_node(m.CoordinatorType.GROUP, GROUP)
    move_group_coordinator(bench, 1 - former)
    assert bench.commit_offset(who, 6, node_id=former) == ErrorCode.NOT_COORDINATOR
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert bench.commit_offset(who, 6) == loading
    bench.pass_ms(30)
    bench.commit(who)
    committed = bench.cluster.committed_offsets(GROUP, require_stable=True)
    assert not isinstance(committed, ErrorCode)
    assert committed[T0].offset == 5


@pytest.mark.parametrize("name", ["no spaces", "..", "a/b", "", "x" * 250])
def test_metadata_call_a_name_that_no_topic_can_have_invalid(name):
    (topic,) = Bench().ask(m.MetadataRequest((name,))).topics
    assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_transaction_decided_while_its_coordinator_loads_gets_its_markers_once():
    bench = Bench(node_count=2, loading_ms=30, max_marker_delay_ms=100)
    who = bench.open(T0)
    bench.move_coordinator_of("a", 1 - bench.transaction_node())
    bench.now_ms += 30  # the request comes before the coordinator's own timer
    assert bench.end(who, commit=True).error_code == ErrorCode.NONE
    bench.pass_ms(1_000)
    assert len(bench.markers(T0)) == 1
    assert bench.values(T0) == ["v"]


@pytest.mark.parametrize(
    "code", [ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.INVALID_REPLICATION_FACTOR]
)
def test_metadata_report_the_outcome_of_creating_a_topic(code):
    (topic,) = Bench(missing_topic=code).ask(m.MetadataRequest(("nowhere",))).topics
    assert topic.error_code == code


def test_brokers_that_are_not_upgraded_yet_know_no_topic_ids():
    bench = Bench(node_count=2, old_node_count=1, transaction_version=1)
    ids = [bench.ask(m.MetadataRequest((TOPIC,)), node).topics[0].topic_id for node in (0, 1)]
    assert ids[0] is None
    assert ids[1] is not None
    bench.cluster.finalize(2)
    assert bench.ask(m.MetadataRequest((TOPIC,)), 0).topics[0].topic_id == ids[1]


@pytest.mark.parametrize("is_up", [True, False])
def test_a_new_leader_is_named_and_its_address_if_it_is_up(is_up):
    bench = Bench(node_count=2)
    bench.cluster.move_partition(T0, 1, 0)
    if not is_up:
        bench.cluster.stop_node(1, 0)
        bench.cluster.move_partition(T0, 1, 0)
        bench.pass_ms(1)
    part = m.ProducePartition(T0, bytes(batch_of(Who(None, 7, 0), 0)))
    answer = bench.ask(m.ProduceRequest(None, -1, 30_000, (part,)), 0)
    assert answer.partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert answer.partitions[0].current_leader.leader_id == 1
    assert [node.node_id for node in answer.nodes] == [1] * is_up


def test_brokers_before_2_5_name_no_new_leader():
    bench = Bench(node_count=2, transaction_version=1, init_producer_id_version=2)
    bench.cluster.move_partition(T0, 1, 0)
    answer = bench.produce(Who(None, 7, 0), T0, 0, node=0)
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert answer.current_leader is None


def test_a_coordinator_that_resigns_answers_from_memory_that_partitions_are_added():
    bench = Bench(node_count=2, transaction_version=1)
    who = bench.open(T0)
    former = bench.transaction_node()
    offsets = m.AddOffsetsToTxnRequest("a", who.producer_id, who.epoch, GROUP)
    assert bench.ask(offsets, former).error_code == ErrorCode.NONE
    bench.move_coordinator_of("a", 1 - former, resigning_ms=20)
    bench.commit(who)
    assert bench.add(who, T0, node_id=former) == {ErrorCode.NONE}
    assert bench.ask(offsets, former).error_code == ErrorCode.NONE
    assert bench.add(who, T1, node_id=former) == {ErrorCode.NOT_COORDINATOR}
    later = bench.init()
    assert bench.add(later, T0, node_id=former) == {ErrorCode.NOT_COORDINATOR}
    bench.pass_ms(20)
    assert bench.add(who, T0, node_id=former) == {ErrorCode.NOT_COORDINATOR}


def test_before_kafka_2_5_a_coordinator_that_resigns_answers_nothing_from_memory():
    bench = Bench(node_count=2, transaction_version=1, init_producer_id_version=2)
    who = bench.open(T0)
    former = bench.transaction_node()
    bench.move_coordinator_of("a", 1 - former, resigning_ms=20)
    assert bench.add(who, T0, node_id=former) == {ErrorCode.NOT_COORDINATOR}
