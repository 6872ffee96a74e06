"""The gate that keeps sequences in order: why a batch whose time has come stays in its queue."""

from __future__ import annotations

import pytest

from tests.core.draining import TP2, Identity, Scene
from tests.core.support import TP0
from txnproducer._protocol.messages import ProducePartitionResponse
from txnproducer.records import ProducerIdAndEpoch

ANSWER = ProducePartitionResponse(TP0, 0, base_offset=0)


def numbered(records=2, **options):
    """Return a scene with records for one partition, each a batch, and arguments for a drain."""
    identity = Identity(**options)
    scene = Scene(identity=identity, batch_size=0)
    for _ in range(records):
        scene.append()
    return scene, identity.sequences


@pytest.mark.conformance("4.12")
def test_a_batch_waits_while_its_partition_may_not_be_sent_to():
    scene, _ = numbered(1)
    scene.identity.forbidden = {TP0}
    assert scene.drain() == []
    scene.identity.forbidden = {TP2}
    (batch,) = scene.drain()
    scene.accumulator.reenqueue(batch, now_ms=0)
    scene.identity.forbidden = {TP0}  # with a number as without
    assert scene.drain(now_ms=500) == []
    scene.identity.forbidden = set()
    assert scene.drain(now_ms=500) == [batch]


@pytest.mark.conformance("4.12")
def test_without_a_producer_id_nothing_goes():
    identity = Identity()
    identity.sequences.producer_id_and_epoch = ProducerIdAndEpoch.NONE
    scene = Scene(identity=identity, batch_size=0)
    scene.append()
    assert scene.ready() == set()


@pytest.mark.conformance("4.12")
@pytest.mark.parametrize("new", [ProducerIdAndEpoch(5, 2), ProducerIdAndEpoch(6, 1)])
def test_a_new_batch_waits_while_one_of_an_older_id_or_epoch_is_in_flight(new):
    scene, sequences = numbered()
    (old,) = scene.drain()
    sequences.producer_id_and_epoch = new
    sequences._known_as[TP0] = new.producer_id  # else it would wait for that alone
    assert scene.drain() == []
    sequences.handle_completed_batch(old, ANSWER)
    sequences._known_as[TP0] = new.producer_id
    (batch,) = scene.drain()
    assert ProducerIdAndEpoch(batch.producer_id, batch.producer_epoch) == new


@pytest.mark.conformance("4.12")
def test_a_new_batch_waits_while_the_outcome_of_an_earlier_one_is_in_doubt():
    scene, sequences = numbered(3)
    lost, later = scene.drain() + scene.drain()
    sequences.remove_in_flight_batch(lost)
    sequences.mark_sequence_unresolved(lost)
    assert scene.drain() == []
    sequences.handle_completed_batch(later, ANSWER)  # so the lost one was written
    assert scene.drain() == []
    assert sequences.maybe_resolve_sequences() == []
    (new,) = scene.drain()
    assert new.base_sequence == 2


@pytest.mark.conformance("4.12")
def test_only_the_lowest_in_flight_of_several_retries_goes():
    scene, sequences = numbered(3)
    first, second, third = (scene.drain()[0] for _ in range(3))
    for batch in (second, third):
        scene.accumulator.reenqueue(batch, now_ms=0)
    assert scene.drain(now_ms=500) == []  # the first one, still on the wire, is lower
    scene.accumulator.reenqueue(first, now_ms=0)
    for batch in (first, second, third):
        assert scene.drain(now_ms=500) == [batch]
        assert scene.drain(now_ms=500) == []
        sequences.handle_completed_batch(batch, ANSWER)


@pytest.mark.conformance("4.12")
def test_a_partitions_first_batch_is_alone_until_it_is_written():
    """Java's sends the next one: a leader that refuses the first may write that, and no other."""
    scene = Scene(identity=Identity(), batch_size=0)
    scene.identity.sequences._known_as.clear()
    scene.append(value=b"first")
    scene.append(value=b"second")
    scene.append(TP2, value=b"another partition's")
    first, other = scene.drain()
    assert scene.drain(now_ms=10) == []
    answer = ProducePartitionResponse(TP0, 0, base_offset=0)
    scene.identity.sequences.handle_completed_batch(first, answer)
    (second,) = scene.drain(now_ms=20)
    assert (second.base_sequence, other.topic_partition) == (1, TP2)
    scene.append(value=b"third")
    assert [batch.base_sequence for batch in scene.drain(now_ms=30)] == [2]


@pytest.mark.conformance("4.12")
def test_no_more_batches_are_in_flight_than_a_broker_can_deduplicate():
    """Java counts those of a connection: when the leader moves there can be more."""
    scene = Scene(identity=Identity(), batch_size=0)
    for number in range(6):
        scene.append(value=b"%d" % number)
    sent = [batch for _ in range(6) for batch in scene.drain()]
    assert [batch.base_sequence for batch in sent] == [0, 1, 2, 3, 4]
    answer = ProducePartitionResponse(TP0, 0, base_offset=0)
    scene.identity.sequences.handle_completed_batch(sent[0], answer)
    assert [batch.base_sequence for batch in scene.drain()] == [5]
