"""Offsets of groups in transactions: pending and stable ones, failed writes, fenced members."""

from __future__ import annotations

import pytest

from tests.broker.support import GROUP, T0, T1, Bench, Who
from txnproducer._broker.group_offsets import MAX_METADATA_BYTES
from txnproducer.errors import ErrorCode

UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT


def offsets_of(bench: Bench, *, require_stable: bool = False) -> dict[int, int] | ErrorCode:
    """Return a group's offsets by partition."""
    found = bench.cluster.committed_offsets(GROUP, require_stable=require_stable)
    if isinstance(found, ErrorCode):
        return found
    return {place.partition: offset.offset for place, offset in found.items()}


def begin(bench: Bench, name: str = "a") -> Who:
    """Return a new producer, with the group in its transaction where adding is its task."""
    who = bench.init(name)
    if not bench.is_v2:
        assert bench.add_offsets(who) == ErrorCode.NONE
    return who


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def bench(request):
    return Bench(transaction_version=request.param)


# --- pending and stable --------------------------------------------------------------------------


def test_offsets_of_an_open_transaction_are_pending_and_the_former_ones_count(bench):
    who = begin(bench)
    bench.commit_offset(who, 5)
    who = bench.commit(who)
    if not bench.is_v2:
        bench.add_offsets(who)
    bench.commit_offset(who, 9)
    assert offsets_of(bench) == {0: 5}
    assert offsets_of(bench, require_stable=True) == UNSTABLE
    assert bench.cluster.has_pending_offsets
    bench.commit(who)
    assert offsets_of(bench, require_stable=True) == {0: 9}
    assert not bench.cluster.has_pending_offsets


def test_an_abort_drops_pending_offsets(bench):
    who = begin(bench)
    bench.commit_offset(who, 5)
    bench.end(who, commit=False)
    assert offsets_of(bench, require_stable=True) == {}
    assert not bench.cluster.has_pending_offsets
    assert bench.cluster.offsets_history() == []


def test_a_time_out_drops_pending_offsets_and_shuts_their_producer_out(bench):
    who = begin(bench)
    bench.commit_offset(who, 5)
    bench.pass_ms(60_200)
    assert offsets_of(bench, require_stable=True) == {}
    assert bench.commit_offset(who, 6) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_offsets_are_pending_until_the_marker_is_written():
    bench = Bench(max_marker_delay_ms=50)
    who = begin(bench)
    bench.commit_offset(who, 5)
    bench.commit(who)
    bench.pass_ms(49)
    assert offsets_of(bench, require_stable=True) == UNSTABLE
    bench.pass_ms(1)
    assert offsets_of(bench, require_stable=True) == {0: 5}


def test_the_last_pending_offset_of_a_producer_counts(bench):
    who = begin(bench)
    for offset in (7, 5):
        bench.commit_offset(who, offset)
    bench.commit_offset(who, 3, T1)
    bench.commit(who)
    assert offsets_of(bench) == {0: 5, 1: 3}


def test_the_offsets_committed_last_by_two_producers_count(bench):
    first, second = begin(bench, "a"), begin(bench, "b")
    bench.commit_offset(first, 5)
    bench.commit_offset(second, 6)
    bench.commit(second)
    assert offsets_of(bench, require_stable=True) == UNSTABLE  # the other one's still wait
    bench.commit(first)
    assert offsets_of(bench, require_stable=True) == {0: 5}
    history = bench.cluster.offsets_history()
    assert [(group, place, offset.offset) for group, place, offset in history] == [
        (GROUP, T0, 6),
        (GROUP, T0, 5),
    ]


def test_v1_offsets_of_a_group_that_was_not_added_are_refused():
    bench = Bench(transaction_version=1)
    who = bench.init()
    bench.add(who, T0)
    assert bench.commit_offset(who, 5) == ErrorCode.TRANSACTION_ABORTABLE
    assert not bench.cluster.has_pending_offsets


def test_v2_offsets_add_their_group_to_the_transaction_and_begin_it():
    bench = Bench(transaction_version=2)
    who = bench.init()
    assert bench.commit_offset(who, 5) == ErrorCode.NONE
    found = bench.describe()
    assert (found.state, found.partitions) == (
        "Ongoing",
        (bench.cluster.offsets_partition(GROUP),),
    )


def test_metadata_that_is_too_long_is_refused_and_not_kept(bench):
    who = begin(bench)
    fits = "x" * MAX_METADATA_BYTES
    assert bench.commit_offset(who, 5, metadata=fits) == ErrorCode.NONE
    too_long = bench.commit_offset(who, 6, metadata=fits + "x")
    assert too_long == ErrorCode.OFFSET_METADATA_TOO_LARGE
    bench.commit(who)
    assert offsets_of(bench) == {0: 5}


@pytest.mark.parametrize(("is_before_4", "kept"), [(False, {0: 6}), (True, {})])
def test_kafka_3_9_loses_the_pending_offsets_that_a_fenced_producer_tries_to_write(
    is_before_4, kept
):
    bench = Bench(transaction_version=1, is_before_4=is_before_4)
    old = begin(bench)
    bench.commit(old)
    new = bench.init()
    # Kafka knows one pending offset for each producer id, under any epoch.
    bench.add_offsets(new)
    bench.commit_offset(new, 6)
    assert bench.commit_offset(old, 5) == ErrorCode.INVALID_PRODUCER_EPOCH
    bench.commit(new)
    assert offsets_of(bench) == kept


# --- writes that fail ----------------------------------------------------------------------------


def fail_writes(bench: Bench, code: ErrorCode, *, are_kept: bool) -> None:
    bench.cluster.decide_offsets_append = lambda: (code, are_kept)


def heal(bench: Bench) -> None:
    fail_writes(bench, ErrorCode.NONE, are_kept=True)


def test_offsets_whose_write_is_refused_are_not_pending_and_can_be_sent_again(bench):
    who = begin(bench)
    fail_writes(bench, ErrorCode.NOT_LEADER_OR_FOLLOWER, are_kept=False)
    assert bench.commit_offset(who, 5) == ErrorCode.NOT_COORDINATOR
    assert not bench.cluster.has_pending_offsets
    heal(bench)
    assert bench.commit_offset(who, 5) == ErrorCode.NONE
    bench.commit(who)
    assert offsets_of(bench) == {0: 5}


def test_a_refused_write_leaves_pending_offsets_and_the_transaction_unchanged(bench):
    who = begin(bench)
    bench.commit_offset(who, 5)
    fail_writes(bench, ErrorCode.NOT_LEADER_OR_FOLLOWER, are_kept=False)
    bench.commit_offset(who, 6)
    bench.commit_offset(who, 6, T1)
    bench.commit(who)
    assert offsets_of(bench) == {0: 5}


def test_v2_offsets_whose_write_is_refused_have_begun_the_transaction():
    bench = Bench(transaction_version=2)
    who = bench.init()
    fail_writes(bench, ErrorCode.NOT_LEADER_OR_FOLLOWER, are_kept=False)
    bench.commit_offset(who, 5)
    found = bench.describe()
    assert (found.state, found.partitions) == (
        "Ongoing",
        (bench.cluster.offsets_partition(GROUP),),
    )
    bench.commit(who)
    assert offsets_of(bench, require_stable=True) == {}


def test_offsets_that_the_log_kept_in_spite_of_its_error_are_pending_and_committed(bench):
    who = begin(bench)
    fail_writes(bench, ErrorCode.REQUEST_TIMED_OUT, are_kept=True)
    assert bench.commit_offset(who, 5) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert offsets_of(bench, require_stable=True) == UNSTABLE
    bench.commit(who)
    assert offsets_of(bench) == {0: 5}


@pytest.mark.parametrize("are_kept", [False, True], ids=["refused", "kept"])
def test_before_kafka_4_a_failed_write_takes_pending_offsets_of_its_partitions_with_it(are_kept):
    bench = Bench(transaction_version=1, is_before_4=True)
    who = begin(bench)
    bench.commit_offset(who, 5)
    bench.commit_offset(who, 3, T1)
    fail_writes(bench, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, are_kept=are_kept)
    assert bench.commit_offset(who, 6) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.commit(who)
    assert offsets_of(bench) == {1: 3}


@pytest.mark.parametrize(
    ("code", "since_4", "before_4"),
    [
        (
            ErrorCode.NETWORK_EXCEPTION,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ),
        (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ),
        (
            ErrorCode.NOT_ENOUGH_REPLICAS,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ),
        (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.NOT_COORDINATOR,
        ),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
        (
            ErrorCode.REQUEST_TIMED_OUT,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.REQUEST_TIMED_OUT,
        ),
        (
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ),
        (
            ErrorCode.MESSAGE_TOO_LARGE,
            ErrorCode.UNKNOWN_SERVER_ERROR,
            ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
        ),
        (
            ErrorCode.RECORD_LIST_TOO_LARGE,
            ErrorCode.UNKNOWN_SERVER_ERROR,
            ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
        ),
        (
            ErrorCode.INVALID_FETCH_SIZE,
            ErrorCode.UNKNOWN_SERVER_ERROR,
            ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
        ),
        (ErrorCode.POLICY_VIOLATION, ErrorCode.POLICY_VIOLATION, ErrorCode.POLICY_VIOLATION),
    ],
)
def test_errors_of_the_log_reach_the_client_as_errors_of_the_coordinator(code, since_4, before_4):
    for is_before_4, told in ((False, since_4), (True, before_4)):
        bench = Bench(transaction_version=1, is_before_4=is_before_4)
        who = begin(bench)
        fail_writes(bench, code, are_kept=False)
        assert bench.commit_offset(who, 5) == told


def test_writes_of_offsets_and_of_records_fail_by_themselves(bench):
    bench.cluster.decide_append = lambda: (ErrorCode.NOT_ENOUGH_REPLICAS, False)
    who = begin(bench)
    assert bench.commit_offset(who, 5) == ErrorCode.NONE
    bench.cluster.decide_append = lambda: (ErrorCode.NONE, True)
    fail_writes(bench, ErrorCode.NOT_ENOUGH_REPLICAS, are_kept=False)
    bench.go_on(who, T0)
    bench.commit(who)
    assert bench.values(T0) == ["v"]
    assert offsets_of(bench) == {0: 5}


def test_where_all_offsets_are_refused_before_nothing_is_written_that_could_fail(bench):
    who = begin(bench)
    fail_writes(bench, ErrorCode.NOT_ENOUGH_REPLICAS, are_kept=False)
    too_long = "x" * (MAX_METADATA_BYTES + 1)
    code = bench.commit_offset(who, 5, metadata=too_long)
    assert code == ErrorCode.OFFSET_METADATA_TOO_LARGE


# --- members -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("member", "code"),
    [
        ({"generation_id": 3, "member_id": "m1"}, ErrorCode.NONE),
        ({}, ErrorCode.NONE),  # a producer that does not tell its member (before KIP-447)
        ({"generation_id": 2, "member_id": "m1"}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_id": 4, "member_id": "m1"}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_id": 3, "member_id": "left"}, ErrorCode.UNKNOWN_MEMBER_ID),
        (
            {"generation_id": 3, "member_id": "m2", "group_instance_id": "i2"},
            ErrorCode.NONE,
        ),
        (
            {"generation_id": 2, "member_id": "m2", "group_instance_id": "i2"},
            ErrorCode.ILLEGAL_GENERATION,
        ),
        (
            {"generation_id": 3, "member_id": "m1", "group_instance_id": "i2"},
            ErrorCode.FENCED_INSTANCE_ID,
        ),
        (
            {"generation_id": 3, "member_id": "m1", "group_instance_id": "gone"},
            ErrorCode.UNKNOWN_MEMBER_ID,
        ),
    ],
)
def test_only_the_groups_present_members_write_its_offsets(bench, member, code):
    group = bench.cluster.group_offsets(GROUP).group(GROUP)
    group.generation_id, group.members = 3, {"m1": None, "m2": "i2"}
    who = begin(bench)
    assert bench.commit_offset(who, 5, **member) == code
    assert bench.cluster.has_pending_offsets == (code == ErrorCode.NONE)


@pytest.mark.parametrize(
    ("is_before_4", "code"),
    [(False, ErrorCode.ILLEGAL_GENERATION), (True, ErrorCode.UNKNOWN_MEMBER_ID)],
)
def test_a_member_of_a_group_that_is_not_there_is_refused(is_before_4, code):
    bench = Bench(transaction_version=1, is_before_4=is_before_4)
    who = begin(bench)
    assert bench.commit_offset(who, 5, generation_id=1, member_id="m1") == code
