"""The ready brokers, the batches that each gets, and the gate that keeps sequences in order."""

from __future__ import annotations

import pytest

from tests.core.draining import PRODUCER, TP2, Identity, Scene
from tests.core.support import TP0, TP1, answered, head, know, queued, topic_metadata
from txnproducer._core.metadata import NEVER_MS
from txnproducer._protocol.messages import LeaderIdAndEpoch
from txnproducer.records import ProducerIdAndEpoch

# --- ready ---------------------------------------------------------------------------------


@pytest.mark.conformance("5.07")
def test_a_broker_is_ready_when_linger_is_over_and_not_before():
    scene = Scene(linger_ms=10)
    scene.append()
    assert scene.ready(9) == set()
    assert scene.check(4).next_check_delay_ms == 6
    assert scene.ready(10) == {0}


@pytest.mark.conformance("5.01")
def test_a_full_batch_or_a_second_one_is_ready_at_once():
    scene = Scene(batch_size=300)
    scene.append(value=b"x" * 239)  # exactly to the limit
    assert head(scene.accumulator).is_full
    assert scene.ready() == {0}
    scene = Scene(batch_size=300)
    scene.append(value=b"x" * 100)
    scene.append(value=b"x" * 100)
    assert scene.ready() == set()
    scene.append(value=b"x" * 100)
    assert scene.ready() == {0}


def test_a_full_batch_stays_until_it_is_compressed_and_the_others_of_its_broker_go():
    scene = Scene(batch_size=300, compression_type="gzip")
    scene.append(TP2)
    scene.accumulator.begin_flush()
    scene.append(value=b"x" * 200)
    scene.append(value=b"x" * 200)
    full = head(scene.accumulator)
    assert [batch.topic_partition for batch in scene.drain()] == [TP2]
    assert scene.ready() == set()

    (sealed,) = scene.accumulator.full_batches.take()
    sealed.compress()

    assert scene.drain() == [full]


def test_a_batch_that_a_thread_compresses_is_waited_for_and_not_for_ever():
    scene = Scene(batch_size=300, compression_type="gzip")
    scene.append(value=b"x" * 200)
    scene.append(value=b"x" * 200)
    full = head(scene.accumulator)
    assert not scene.accumulator.full_batches.is_awaited
    sealed = scene.accumulator.full_batches.lend(0)

    assert scene.check(40).next_check_delay_ms == 60
    assert scene.accumulator.full_batches.is_awaited
    assert scene.ready(99) == set()
    assert not scene.accumulator.full_batches
    assert scene.ready(100) == set()  # that thread may have been interrupted
    assert scene.accumulator.full_batches.take() == [sealed]
    scene.accumulator.settle_compressed()  # as each step begins
    assert not scene.accumulator.full_batches.is_awaited
    sealed.compress()
    assert scene.ready(100) == {0}
    assert scene.drain(now_ms=100) == [full]


def test_a_step_that_leaves_a_batch_is_not_the_last_one():
    scene = Scene(batch_size=300, compression_type="gzip")
    scene.append(value=b"x" * 200)
    scene.append(value=b"x" * 200)
    # A thread may take the batch after this step, and be interrupted: it wakes nobody then.
    assert scene.check(0).next_check_delay_ms == 100
    assert scene.accumulator.full_batches.lend(30)
    assert scene.check(100).next_check_delay_ms == 30
    assert scene.check(130).next_check_delay_ms == 100
    assert scene.accumulator.full_batches.take()


def test_a_batch_that_a_thread_has_compressed_goes_at_once():
    scene = Scene(batch_size=300, compression_type="gzip")
    scene.append(value=b"x" * 200)
    scene.append(value=b"x" * 200)
    full = head(scene.accumulator)
    sealed = scene.accumulator.full_batches.lend(0)
    assert sealed is not None
    sealed.compress()

    assert scene.drain(now_ms=1) == [full]
    scene.accumulator.settle_compressed()
    assert not scene.accumulator.full_batches.held


def test_a_batch_of_a_thread_that_was_interrupted_is_sent_and_backs_off_like_others(monkeypatch):
    scene = Scene(batch_size=300, compression_type="gzip")
    scene.append(value=b"x" * 200)
    scene.append(value=b"x" * 200)
    full_batches, batch = scene.accumulator.full_batches, head(scene.accumulator)

    def interrupt(batch):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(full_batches, "_seal", interrupt)
        with pytest.raises(KeyboardInterrupt):
            full_batches.lend(0)
    assert scene.ready(100) == set()
    (sealed,) = full_batches.take()
    sealed.compress()
    assert scene.drain(now_ms=100) == [batch]
    scene.accumulator.reenqueue(batch, 100)
    scene.accumulator.settle_compressed()
    assert not full_batches.held
    assert scene.ready(150) == set()
    assert scene.ready(300) == {0}


@pytest.mark.conformance("5.07")
@pytest.mark.trap(38)
def test_flush_completion_close_and_waiting_for_memory_end_linger():
    identity = Identity()
    scene = Scene(linger_ms=1_000, identity=identity)
    scene.append()
    assert scene.ready() == set()
    ticket = scene.accumulator.begin_flush()
    assert scene.ready() == {0}
    scene.accumulator.end_flush(ticket)
    assert scene.ready() == set()
    identity.is_completing = True
    assert scene.ready() == {0}
    identity.is_completing = False  # in the next transaction linger holds again
    assert scene.ready() == set()
    scene.accumulator.pool.allocate(scene.accumulator.pool.total_bytes)
    assert scene.accumulator.pool.is_exhausted
    assert scene.ready() == {0}
    scene.accumulator.pool.waiting.clear()
    scene.accumulator.close()
    assert scene.ready() == {0}


@pytest.mark.conformance("5.35")
def test_a_flush_hurries_all_batches_until_they_end_or_no_caller_waits_for_it():
    scene = Scene(linger_ms=1_000)
    scene.append(TP0)
    scene.append(TP1)
    ticket = scene.accumulator.begin_flush()
    assert scene.ready() == {0, 1}
    batches = scene.drain(0) + scene.drain(1)
    scene.append(TP2)  # after the flush's beginning: hurried by it, and not waited for
    assert scene.ready() == {0}
    for batch in batches:
        assert not ticket.is_done()
        answered(scene.accumulator, batch)
    assert ticket.is_done()
    assert scene.ready() == set()
    interrupted = scene.accumulator.begin_flush()
    assert scene.ready() == {0}
    scene.accumulator.end_flush(interrupted)
    scene.accumulator.end_flush(interrupted)  # an interrupt may come between this and its return
    assert scene.ready() == set()
    assert not interrupted.is_done()


@pytest.mark.conformance("5.10")
@pytest.mark.trap(38)
def test_nothing_ends_a_backoff_early():
    identity = Identity()
    scene = Scene(identity=identity, linger_ms=0)
    scene.append()
    (batch,) = scene.drain()
    scene.accumulator.reenqueue(batch, now_ms=50)
    scene.accumulator.begin_flush()
    scene.accumulator.close()
    identity.is_completing = True
    scene.accumulator.pool.allocate(scene.accumulator.pool.total_bytes)
    assert scene.accumulator.pool.is_exhausted
    assert scene.ready(149) == set()
    assert scene.check(149).next_check_delay_ms == 1
    assert scene.drain(now_ms=149) == []
    assert scene.ready(150) == {0}


@pytest.mark.conformance("5.08")
def test_the_next_look_is_due_when_the_first_wait_ends():
    scene = Scene(linger_ms=50)
    scene.append(TP0, now_ms=0)
    scene.append(TP1, now_ms=20)
    assert scene.check(30).next_check_delay_ms == 20
    assert Scene().check().next_check_delay_ms == NEVER_MS


@pytest.mark.conformance("5.08")
def test_the_next_look_is_due_when_a_backoff_ends_before_a_linger():
    scene = Scene(identity=Identity(), linger_ms=200)
    scene.append(TP0, now_ms=0)
    (batch,) = scene.drain(now_ms=200)
    scene.accumulator.reenqueue(batch, now_ms=200)
    scene.append(TP1, now_ms=200)
    backoff_ms = batch.backoff_ms
    assert 0 < backoff_ms < 200
    assert scene.check(200).next_check_delay_ms == backoff_ms


@pytest.mark.conformance("5.11")
def test_a_topic_without_a_leader_is_reported_and_its_records_stay():
    scene = Scene(leaders=[0, -1])
    scene.append(TP1)
    result = scene.check(100)
    assert result.unknown_leader_topics == {"topic"}
    assert result.ready_nodes == {}
    assert len(queued(scene.accumulator, TP1)) == 1


def test_a_leader_that_is_no_known_broker_counts_as_none():
    scene = Scene(leaders=[9])
    scene.append()
    assert scene.check(100).unknown_leader_topics == {"topic"}


@pytest.mark.conformance("5.14")
@pytest.mark.trap(39)
def test_a_retry_aimed_at_a_newer_leader_epoch_skips_its_backoff_once():
    scene = Scene(identity=Identity(), linger_ms=0)
    scene.append()
    (batch,) = scene.drain()
    scene.accumulator.reenqueue(batch, now_ms=0)
    assert scene.ready() == set()
    know(scene.metadata, topic_metadata("topic", [1, 1, 0]))  # another leader, the same epoch
    assert scene.ready() == set()
    scene.metadata.update_leaders({TP0: LeaderIdAndEpoch(1, 7)}, [])
    assert scene.ready() == {1}
    (batch,) = scene.drain(node_id=1)
    scene.accumulator.reenqueue(batch, now_ms=0)
    assert scene.ready() == set()


@pytest.mark.conformance("5.12")
def test_a_leader_that_changed_without_a_newer_epoch_does_not_skip_the_backoff():
    scene = Scene(identity=Identity(), linger_ms=0)
    scene.append()
    (batch,) = scene.drain()
    scene.accumulator.reenqueue(batch, now_ms=0)
    know(scene.metadata, topic_metadata("topic", [1], [0]))
    assert scene.ready() == set()


# --- drain ---------------------------------------------------------------------------------


@pytest.mark.conformance("5.15")
def test_a_drain_takes_one_batch_of_each_partition_of_the_broker():
    scene = Scene(batch_size=0)
    for place in (TP0, TP0, TP1, TP2):
        scene.append(place)
    assert [b.topic_partition for b in scene.drain(0)] == [TP0, TP2]
    assert scene.has_more
    assert [b.topic_partition for b in scene.drain(1)] == [TP1]
    assert [b.topic_partition for b in scene.drain(0)] == [TP0]
    assert not scene.has_more
    assert scene.drain(0) == []


def test_a_lingering_partition_goes_along_with_a_ready_one_of_its_broker():
    scene = Scene(leaders=[0, 0], linger_ms=100, batch_size=300)
    scene.append(TP0, value=b"x" * 500)
    scene.append(TP1)
    assert {b.topic_partition for b in scene.drain(0)} == {TP0, TP1}


@pytest.mark.conformance("5.16")
def test_a_batch_that_does_not_fit_a_request_comes_first_in_the_next_one():
    scene = Scene(leaders=[0, 0, 0], batch_size=0)
    for place in (TP0, TP1, TP2) * 2:
        scene.append(place, value=b"x" * 400)
    order = []
    for _ in range(3):
        drained = scene.drain(max_size=1_000)
        assert len(drained) == 2
        order += [batch.topic_partition.partition for batch in drained]
    assert order == [0, 1, 2, 0, 1, 2]


@pytest.mark.conformance("5.15")
def test_the_first_batch_is_taken_even_if_it_is_larger_than_a_request():
    scene = Scene(leaders=[0, 0], batch_size=0)
    scene.append(TP0, value=b"x" * 2_000)
    scene.append(TP1)
    assert [b.topic_partition for b in scene.drain(max_size=500)] == [TP0]
    assert scene.has_more


@pytest.mark.conformance("5.17")
def test_a_partition_that_backs_off_is_passed_over():
    scene = Scene(leaders=[0, 0], identity=Identity(), batch_size=0)
    scene.append(TP0)
    (refused,) = scene.drain()
    scene.accumulator.reenqueue(refused, now_ms=0)
    scene.append(TP1)
    assert [b.topic_partition for b in scene.drain(now_ms=1)] == [TP1]
    assert scene.drain(now_ms=1) == []
    assert scene.drain(now_ms=200) == [refused]


@pytest.mark.conformance("5.17")
def test_a_partition_with_nothing_queued_is_passed_over():
    scene = Scene(leaders=[0, 0, 1], batch_size=0)
    scene.append(TP0)
    scene.append(TP1)
    assert len(scene.drain()) == 2
    scene.append(TP1)
    assert [b.topic_partition for b in scene.drain()] == [TP1]
    assert scene.ready() == set()
    assert scene.drain(node_id=1) == []  # a broker that leads nothing but an empty queue


@pytest.mark.conformance("5.17")
def test_a_muted_partition_is_skipped_until_it_is_unmuted():
    scene = Scene(leaders=[0, 0], batch_size=0)
    scene.append(TP0)
    scene.append(TP1)
    scene.accumulator.mute_partition(TP0)
    assert [b.topic_partition for b in scene.drain()] == [TP1]
    assert scene.ready() == set()
    scene.accumulator.unmute_partition(TP0)
    assert [b.topic_partition for b in scene.drain()] == [TP0]


# --- numbers -------------------------------------------------------------------------------


@pytest.mark.conformance("4.01")
@pytest.mark.trap(20)
def test_a_batch_is_numbered_when_it_is_drained_and_the_next_follows_it():
    scene = Scene(identity=Identity(), batch_size=250)
    for _ in range(3):
        scene.append(value=b"x" * 60)
    assert not head(scene.accumulator).has_sequence
    (first,) = scene.drain()
    (second,) = scene.drain(now_ms=10)
    assert (first.base_sequence, first.record_count) == (0, 2)
    assert (second.base_sequence, second.record_count) == (2, 1)
    assert ProducerIdAndEpoch(first.producer_id, first.producer_epoch) == PRODUCER


def test_a_forgotten_producer_begins_with_one_batch_again():
    scene = Scene(identity=Identity(), batch_size=0)
    scene.append(value=b"first")
    scene.append(value=b"second")
    (first,) = scene.drain()
    scene.identity.sequences.producer_id_and_epoch = ProducerIdAndEpoch(6, 0)
    scene.identity.sequences.remove_in_flight_batch(first)
    (second,) = scene.drain(now_ms=10)
    assert (second.producer_id, second.base_sequence) == (6, 0)
    scene.append(value=b"third")
    assert scene.drain(now_ms=20) == []


@pytest.mark.conformance("4.04")
def test_a_retry_keeps_its_number():
    scene = Scene(identity=Identity(), batch_size=0)
    scene.append()
    (batch,) = scene.drain()
    scene.accumulator.reenqueue(batch, now_ms=0)
    scene.identity.sequences.producer_id_and_epoch = ProducerIdAndEpoch(6, 0)
    (again,) = scene.drain(now_ms=200)
    assert again is batch
    assert again.base_sequence == 0
    assert ProducerIdAndEpoch(again.producer_id, again.producer_epoch) == PRODUCER
    assert scene.identity.sequences.partitions.get_or_create(TP0).next_sequence == 1


@pytest.mark.conformance("4.13")
def test_a_partition_that_may_not_be_sent_to_waits_and_its_neighbours_go():
    """Java stops the whole broker there and begins with the same partition again."""
    identity = Identity(is_transactional=True)
    scene = Scene(leaders=[0, 0], identity=identity, batch_size=0)
    scene.append(TP0)
    scene.append(TP1)
    identity.forbidden = {TP0}
    assert [b.topic_partition for b in scene.drain()] == [TP1]
    assert scene.ready() == set()  # a gated partition alone keeps nobody busy
    identity.forbidden = set()
    assert [b.topic_partition for b in scene.drain()] == [TP0]


@pytest.mark.conformance("4.15")
@pytest.mark.quirk("Q1")
def test_one_gated_partition_does_not_starve_the_others_of_its_broker():
    identity = Identity()
    scene = Scene(leaders=[0, 0, 0], identity=identity, batch_size=0)
    identity.forbidden = {TP0}
    for _ in range(5):
        for place in (TP0, TP1, TP2):
            scene.append(place)
    for _ in range(5):
        assert [b.topic_partition for b in scene.drain()] == [TP1, TP2]


@pytest.mark.conformance("4.07")
@pytest.mark.trap(21, 22)
def test_only_the_lowest_of_several_retries_goes_and_a_new_batch_follows_the_last():
    identity = Identity()
    scene = Scene(identity=identity, batch_size=0)
    for _ in range(4):
        scene.append()
    batches = [scene.drain()[0] for _ in range(3)]
    for batch in reversed(batches):  # the fourth waits already
        scene.accumulator.reenqueue(batch, now_ms=0)
    (again,) = scene.drain(now_ms=500)
    assert again is batches[0]
    assert scene.drain(now_ms=500) == []  # 1 is not the lowest in flight while 0 is not answered
    for number in (0, 1):
        identity.sequences.remove_in_flight_batch(batches[number])
        assert scene.drain(now_ms=500) == [batches[number + 1]]
    (new,) = scene.drain(now_ms=500)  # 2 was resent, answered or not: the new one follows
    assert new.base_sequence == 3


@pytest.mark.conformance("4.16")
@pytest.mark.trap(25, 26)
def test_new_batches_wait_for_those_of_an_old_epoch_and_then_begin_at_zero():
    identity = Identity()
    scene = Scene(identity=identity, batch_size=0)
    scene.append()
    scene.append()
    (old,) = scene.drain()
    identity.sequences.producer_id_and_epoch = ProducerIdAndEpoch(5, 2)
    assert scene.drain() == []
    identity.sequences.remove_in_flight_batch(old)
    (new,) = scene.drain()
    assert (new.producer_epoch, new.base_sequence) == (2, 0)
    scene.append()
    (next_one,) = scene.drain()
    assert (next_one.producer_epoch, next_one.base_sequence) == (2, 1)


@pytest.mark.conformance("4.37")
@pytest.mark.trap(30)
def test_no_new_batch_is_numbered_after_one_with_an_unknown_outcome():
    identity = Identity()
    scene = Scene(identity=identity, batch_size=0)
    scene.append()
    scene.append()
    (lost,) = scene.drain()
    identity.sequences.remove_in_flight_batch(lost)
    identity.sequences.mark_sequence_unresolved(lost)
    assert scene.drain() == []
