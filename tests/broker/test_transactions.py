"""Transactions over time: time-outs, late markers, ids that expire, the last epochs."""

from __future__ import annotations

import pytest

from tests.broker.support import T0, T1, T2, Bench, Who
from txnproducer._broker.transaction_coordinator import LogWrite
from txnproducer.errors import ErrorCode

LAST_EPOCH = 32_766
MAX_EPOCH = 32_767

both_versions = pytest.mark.parametrize("version", [1, 2])


def at_epoch(epoch: int, **options: int) -> tuple[Bench, Who]:
    """Return a cluster with a producer that has used up its epochs below one."""
    bench = Bench(**options)
    bench.cluster.preset_epoch("a", epoch - 1)
    who = bench.init()
    assert who.epoch == epoch
    return bench, who


# --- time-outs -----------------------------------------------------------------------------------


@both_versions
def test_a_transaction_is_aborted_at_the_first_look_after_its_time(version):
    bench = Bench(transaction_version=version, abort_check_interval_ms=200)
    who = bench.open(T0, timeout_ms=1_000)
    bench.pass_ms(1_000)  # its time is up, and not exceeded
    assert bench.describe().state == "Ongoing"
    bench.pass_ms(199)
    assert bench.describe().state == "Ongoing"
    bench.pass_ms(1)
    found = bench.describe()
    assert (found.state, found.producer_epoch) == ("CompleteAbort", who.epoch + 1)
    assert bench.markers(T0) == [(who.epoch + 1, False)]
    assert bench.cluster.counts["timed out"] == 1


def test_the_time_of_a_transaction_counts_from_its_first_partition():
    bench = Bench(transaction_version=1)
    who = bench.init(timeout_ms=1_000)
    bench.pass_ms(5_000)
    bench.go_on(who, T0)
    bench.pass_ms(800)
    bench.add(who, T1)
    bench.pass_ms(400)
    assert bench.describe().state == "CompleteAbort"


def test_a_time_out_while_the_log_is_loaded_waits_so_that_its_markers_are_written_once():
    bench = Bench(node_count=2, loading_ms=500, abort_check_interval_ms=100)
    bench.open(T0, timeout_ms=1_000)
    bench.pass_ms(900)
    bench.move_coordinator_of("a", 1 - bench.transaction_node())
    bench.pass_ms(400)
    assert bench.markers(T0) == []
    bench.pass_ms(300)
    assert len(bench.markers(T0)) == 1
    assert bench.cluster.counts["timed out"] == 1


def test_no_transaction_is_aborted_while_its_coordinator_is_down():
    bench = Bench()
    bench.open(T0, timeout_ms=1_000)
    bench.cluster.stop_node(0, bench.now_ms)
    bench.pass_ms(10_000)
    assert bench.cluster.counts["timed out"] == 0
    bench.cluster.start_node(0, bench.now_ms)
    bench.pass_ms(200)
    assert bench.cluster.counts["timed out"] == 1
    assert bench.describe().state == "CompleteAbort"


def test_a_v1_fence_that_cannot_be_written_spends_one_epoch_however_often_it_is_tried():
    bench = Bench(transaction_version=1)
    who = bench.open(T0)
    bench.cluster.decide_log_write = lambda _: LogWrite.LOST
    assert [bench.init_code() for _ in range(3)] == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 3
    bench.cluster.decide_log_write = lambda _: LogWrite.DONE
    assert bench.init_code() == ErrorCode.CONCURRENT_TRANSACTIONS
    assert bench.markers(T0) == [(who.epoch + 1, False)]


# --- markers that take time ----------------------------------------------------------------------


@both_versions
def test_an_end_is_answered_before_its_markers_are_written(version):
    bench = Bench(transaction_version=version, max_marker_delay_ms=50)
    who = bench.open(T0)
    bench.commit(who)
    assert bench.describe().state == "PrepareCommit"
    assert bench.values(T0) == []
    bench.pass_ms(50)
    assert bench.describe().state == "CompleteCommit"
    assert bench.values(T0) == ["v"]


def test_a_transaction_is_complete_when_the_last_marker_is_written():
    bench = Bench(node_count=3, max_marker_delay_ms=50)
    who = bench.open(T0, T1)
    bench.cluster.move_partition(T1, -1, bench.now_ms)
    bench.commit(who)
    bench.pass_ms(500)
    assert (bench.values(T0), bench.values(T1)) == (["v"], [])
    assert bench.describe().state == "PrepareCommit"
    bench.cluster.move_partition(T1, 2, bench.now_ms)
    bench.pass_ms(51)
    assert (bench.values(T0), bench.values(T1)) == (["v"], ["v"])
    assert bench.describe().state == "CompleteCommit"


@both_versions
def test_while_markers_are_written_the_next_transaction_has_to_wait(version):
    bench = Bench(transaction_version=version, max_marker_delay_ms=50)
    after = bench.commit(bench.open(T0))
    busy = ErrorCode.CONCURRENT_TRANSACTIONS
    told = busy if version == 2 else ErrorCode.NOT_ENOUGH_REPLICAS  # what an older client retries
    assert bench.init_code() == busy
    assert bench.add(after, T1) == {busy}
    assert bench.end(after, commit=False).error_code == busy
    assert bench.produce(after, T1, 0).error_code == told
    assert bench.describe().state == "PrepareCommit"
    bench.pass_ms(50)
    bench.go_on(after, T1)


def test_only_kafka_3_9_answers_producer_fenced_while_markers_are_written():
    for is_before_4, code in (
        (True, ErrorCode.PRODUCER_FENCED),
        (False, ErrorCode.CONCURRENT_TRANSACTIONS),
    ):
        bench = Bench(transaction_version=1, max_marker_delay_ms=50, is_before_4=is_before_4)
        fenced = bench.open(T0)
        assert bench.init_code() == ErrorCode.CONCURRENT_TRANSACTIONS
        assert bench.add(fenced, T1) == {code}


def test_a_completion_that_cannot_be_written_is_tried_again_without_new_markers():
    bench = Bench(max_marker_delay_ms=50)
    bench.commit(bench.open(T0))
    bench.cluster.decide_log_write = lambda _: LogWrite.LOST
    bench.pass_ms(60)
    assert bench.describe().state == "PrepareCommit"
    bench.cluster.decide_log_write = lambda _: LogWrite.DONE
    bench.pass_ms(1)
    assert bench.describe().state == "CompleteCommit"
    assert len(bench.markers(T0)) == 1


# --- what expires --------------------------------------------------------------------------------


def test_an_idle_transactional_id_expires_and_begins_again():
    bench = Bench(transactional_id_expiration_ms=1_000)
    who = bench.commit(bench.open(T0))
    bench.pass_ms(999)
    assert bench.describe().error_code == ErrorCode.NONE
    assert bench.cluster.transactional_ids == ["a"]
    bench.pass_ms(1)
    assert bench.describe().error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert bench.cluster.transactional_ids == []
    late = bench.end(who, commit=False)
    assert late.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    new = bench.init()
    assert new.producer_id != who.producer_id
    assert new.epoch == 0


def test_a_forgotten_id_stays_forgotten_when_its_coordinator_moves():
    bench = Bench(node_count=2, transactional_id_expiration_ms=1_000)
    bench.commit(bench.open(T0))
    bench.pass_ms(1_000)
    bench.move_coordinator_of("a", 1 - bench.transaction_node())
    assert bench.describe().error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


@pytest.mark.parametrize("is_decided", [False, True], ids=["ongoing", "in the midst of its end"])
def test_an_id_with_a_transaction_is_never_forgotten(is_decided):
    bench = Bench(transactional_id_expiration_ms=1_000)
    who = bench.open(T0)
    if is_decided:
        bench.cluster.move_partition(T0, -1, bench.now_ms)
        bench.commit(who)
    bench.pass_ms(10_000)
    assert bench.describe().state == ("PrepareCommit" if is_decided else "Ongoing")


def test_a_partition_forgets_an_idle_producer_and_takes_any_sequence_of_it():
    bench = Bench(producer_id_expiration_ms=1_000)
    plain = Who(None, bench.cluster.new_producer_id(), 0)
    bench.produce(plain, T0, 0)
    bench.pass_ms(999)
    gap = bench.produce(plain, T0, 5)
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    bench.pass_ms(1)
    assert bench.cluster.producer_states(T0) == []
    assert bench.produce(plain, T0, 5).error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("offered", "code"),
    [(2, ErrorCode.UNKNOWN_PRODUCER_ID), (3, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)],
)
def test_a_producer_of_which_only_a_marker_is_left_has_to_begin_again(offered, code):
    # Before 2.5 that counts as unknown, so that the producer can look what was deleted.
    bench = Bench(
        transaction_version=1, producer_id_expiration_ms=1_000, init_producer_id_version=offered
    )
    who = bench.open(T0)
    bench.commit(who)
    bench.pass_ms(1_000)
    bench.add(who, T0)
    bench.end(who, commit=False)
    bench.pass_ms(1)
    bench.add(who, T0)
    assert bench.produce(who, T0, 1).error_code == code


def test_a_partition_never_forgets_a_producer_whose_transaction_is_open():
    bench = Bench(producer_id_expiration_ms=1_000)
    who = bench.open(T0, timeout_ms=900_000)
    bench.pass_ms(10_000)
    assert bench.cluster.producer_states(T0) == [(who.producer_id, who.epoch, 0)]
    assert bench.cluster.last_stable_offset(T0) == 0


def test_verification_state_is_forgotten_with_the_idle_producers():
    bench = Bench(transaction_version=1, producer_id_expiration_ms=1_000)
    who = bench.init()
    early = bench.produce(who, T0, 2)  # not added yet: from now on later sequences are kept out
    assert early.error_code == ErrorCode.TRANSACTION_ABORTABLE
    bench.add(who, T0)
    bench.pass_ms(999)
    later = bench.produce(who, T0, 5)
    assert later.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    bench.pass_ms(1)
    assert bench.produce(who, T0, 5).error_code == ErrorCode.NONE


# --- the last epochs -----------------------------------------------------------------------------


@both_versions
def test_initialising_after_the_last_epoch_gives_a_new_producer_id(version):
    bench, who = at_epoch(LAST_EPOCH, transaction_version=version)
    after = bench.init()
    assert after.producer_id != who.producer_id
    assert after.epoch == 0
    assert bench.cluster.counts["rotated"] == 1


def test_a_v1_commit_under_the_last_epoch_keeps_it():
    bench, who = at_epoch(LAST_EPOCH, transaction_version=1)
    bench.go_on(who, T0)
    bench.commit(who)
    assert bench.markers(T0) == [(LAST_EPOCH, True)]
    bench.go_on(who, T0, at=1)


def test_a_v1_fence_uses_the_epoch_that_no_client_gets_and_then_the_id_is_new():
    bench, who = at_epoch(LAST_EPOCH, transaction_version=1)
    bench.go_on(who, T0)
    assert bench.init_code() == ErrorCode.CONCURRENT_TRANSACTIONS
    assert bench.markers(T0) == [(MAX_EPOCH, False)]
    assert bench.end(who, commit=True).error_code == ErrorCode.PRODUCER_FENCED
    after = bench.init()
    assert after.producer_id != who.producer_id
    assert after.epoch == 0


def test_a_v2_commit_under_the_last_epoch_marks_with_32767_and_answers_a_new_id():
    bench, who = at_epoch(LAST_EPOCH, transaction_version=2)
    bench.go_on(who, T0)
    after = bench.commit(who)
    assert bench.markers(T0) == [(MAX_EPOCH, True)]
    assert after.producer_id != who.producer_id
    assert after.epoch == 0
    again = bench.end(who, commit=True)
    assert (again.error_code, again.producer_id, again.producer_epoch) == (0, *after[1:])
    bench.go_on(after, T0, value="next")
    bench.commit(after)
    assert bench.values(T0) == ["v", "next"]


def test_a_v2_producer_id_is_kept_until_the_markers_are_written():
    bench, who = at_epoch(LAST_EPOCH, transaction_version=2, max_marker_delay_ms=50)
    bench.go_on(who, T2)
    after = bench.commit(who)
    found = bench.describe()
    assert (found.producer_id, found.producer_epoch) == (who.producer_id, MAX_EPOCH)
    bench.pass_ms(50)
    found = bench.describe()
    assert (found.producer_id, found.producer_epoch) == (after.producer_id, 0)


def test_a_v2_time_out_under_the_last_epoch_shuts_the_old_producer_id_out():
    bench, who = at_epoch(LAST_EPOCH, transaction_version=2)
    bench.go_on(who, T0)
    bench.pass_ms(60_200)
    assert bench.markers(T0) == [(MAX_EPOCH, False)]
    assert bench.produce(who, T0, 1).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert bench.produce(who, T1, 0).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert bench.init().producer_id != who.producer_id
