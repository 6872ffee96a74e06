"""Transactions on real brokers, by the public API alone, in every mode."""

from __future__ import annotations

import random
import threading

import pytest

from integration.readers import read_with_confluent, read_with_kafka_python, values
from integration.waiting import wait_until
from txnproducer import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition, errors
from txnproducer.admin import committed_offsets, describe_transaction

pytestmark = pytest.mark.integration


def test_a_commit_makes_all_records_visible_with_their_offsets(broker, transactional_id):
    topic = broker.topic(partitions=3)
    with broker.ready(transactional_id) as producer:
        with producer.transaction() as txn:
            futures = [producer.send(topic, b"%d" % n, key=b"%d" % n) for n in range(100)]
        assert txn.outcome == "committed"
    found = read_with_confluent(broker.servers, topic)
    told = {(f.result(0).partition, f.result(0).offset): b"%d" % n for n, f in enumerate(futures)}
    assert {(read.partition, read.offset): read.value for read in found} == told


def test_an_abort_leaves_nothing_for_readers_at_read_committed(broker, transactional_id):
    topic = broker.topic()
    with broker.ready(transactional_id) as producer:
        producer.begin_transaction()
        producer.send(topic, b"aborted")
        producer.flush()
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"committed")
    assert values(read_with_confluent(broker.servers, topic)) == [b"committed"]
    everything = read_with_confluent(broker.servers, topic, "read_uncommitted")
    assert values(everything) == [b"aborted", b"committed"]


def test_an_exception_in_the_block_aborts_and_reaches_the_caller(broker, transactional_id):
    topic = broker.topic()
    with broker.ready(transactional_id) as producer:
        txn = producer.transaction()
        with pytest.raises(KeyboardInterrupt):
            _interrupted(txn, topic)
        assert txn.outcome == "aborted"
        with producer.transaction():
            producer.send(topic, b"after")
    assert values(read_with_confluent(broker.servers, topic)) == [b"after"]


def _interrupted(txn, topic):
    with txn:
        txn.send(topic, b"never")
        raise KeyboardInterrupt


def test_transactions_without_records_commit_and_abort(broker, transactional_id):
    with broker.ready(transactional_id) as producer:
        with producer.transaction():
            pass
        producer.begin_transaction()
        producer.abort_transaction()
        with producer.transaction() as txn:
            pass
        assert txn.outcome == "committed"


def test_a_newer_producer_fences_the_older_one(broker, transactional_id):
    topic = broker.topic()
    old = broker.ready(transactional_id)
    old.begin_transaction()
    old.send(topic, b"old")
    old.flush()
    with broker.ready(transactional_id) as new:
        with pytest.raises(errors.KafkaError) as caught:
            old.commit_transaction()
        assert caught.value.recovery == "restart"
        assert isinstance(caught.value, errors.ProducerFencedError)
        with pytest.raises(errors.KafkaError):
            old.begin_transaction()
        old.close(timeout=5)
        with new.transaction():
            new.send(topic, b"new")
    assert values(read_with_confluent(broker.servers, topic)) == [b"new"]


def test_offsets_are_committed_with_the_transaction_and_only_then(broker, transactional_id):
    topic = broker.topic()
    group = ConsumerGroupMetadata(f"group-{transactional_id}")
    place = TopicPartition(topic, 0)
    with broker.ready(transactional_id) as producer:
        producer.begin_transaction()
        producer.send(topic, b"aborted")
        producer.send_offsets_to_transaction({place: OffsetAndMetadata(5)}, group)
        producer.abort_transaction()
        assert _offset(broker, group, place) is None
        with producer.transaction() as txn:
            producer.send(topic, b"committed")
            txn.send_offsets({place: OffsetAndMetadata(7, "note")}, group)
        assert _offset(broker, group, place) == OffsetAndMetadata(7, "note", -1)
        with producer.transaction() as txn:  # offsets alone make a transaction too
            txn.send_offsets({place: OffsetAndMetadata(8)}, group)
        assert _offset(broker, group, place).offset == 8


def _offset(broker, group, place):
    found = committed_offsets(broker.servers, [group.group_id], partitions=[place])
    return found[group.group_id].get(place)


def test_first_offsets_of_a_partition_are_undecided_while_their_transaction_is_open(
    broker, transactional_id
):
    topic = broker.topic()
    place, group = TopicPartition(topic, 0), ConsumerGroupMetadata(f"group-{transactional_id}")
    with broker.ready(transactional_id) as producer:
        producer.begin_transaction()
        producer.send_offsets_to_transaction({place: OffsetAndMetadata(5)}, group)
        with pytest.raises(errors.UnstableOffsetCommitError):
            committed_offsets(broker.servers, [group.group_id], 2, partitions=[place])
        producer.commit_transaction()
        assert _offset(broker, group, place).offset == 5


def test_offsets_of_a_member_that_has_left_the_group_are_refused_and_abortable(
    broker, transactional_id
):
    topic = broker.topic()
    stale = ConsumerGroupMetadata(f"group-{transactional_id}", 3, "nobody-here")
    with broker.ready(transactional_id) as producer:
        producer.begin_transaction()
        producer.send(topic, b"never")
        with pytest.raises(errors.CommitFailedError) as caught:
            producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, stale)
        assert caught.value.recovery == "abort"
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"after")
    assert values(read_with_confluent(broker.servers, topic)) == [b"after"]


def has_ended(broker, transactional_id):
    answer = describe_transaction(broker.servers, transactional_id)
    return answer is not None and answer.state == "CompleteAbort"


def test_a_transaction_that_the_coordinator_timed_out_is_not_committed(broker, transactional_id):
    topic = broker.topic()
    producer = broker.ready(transactional_id, transaction_timeout_ms=1_000)
    try:
        producer.begin_transaction()
        producer.send(topic, b"too late")
        producer.flush()
        wait_until(lambda: has_ended(broker, transactional_id), "it is not timed out")
        with pytest.raises(errors.KafkaError) as caught:
            producer.commit_transaction()
        assert caught.value.recovery in ("abort", "restart")
        if caught.value.recovery == "abort":
            producer.abort_transaction()
        else:
            producer.close(timeout=5)
            producer = broker.ready(transactional_id)
        with producer.transaction():
            producer.send(topic, b"after")
    finally:
        producer.close(timeout=5)
    assert values(read_with_confluent(broker.servers, topic)) == [b"after"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read_by_others(broker, transactional_id, codec):
    topic = broker.topic()
    wanted = [b"%d" % n * 50 for n in range(500)]
    with broker.ready(transactional_id, compression_type=codec) as producer:
        with producer.transaction():
            for value in wanted:
                producer.send(topic, value)
    assert values(read_with_confluent(broker.servers, topic)) == wanted
    assert values(read_with_kafka_python(broker.servers, topic)) == wanted


@pytest.mark.parametrize("block_bytes", [262_144, 4_194_304])
def test_larger_blocks_of_lz4_are_read_by_others(broker, transactional_id, block_bytes):
    # By the broker, too, which looks into every batch with the Java client's reader.
    topic = broker.topic()
    wanted = [random.Random(n).randbytes(500).hex().encode() for n in range(1_500)]
    settings = {"compression_type": "lz4", "compression_lz4_block_bytes": block_bytes}
    with broker.ready(transactional_id, batch_size=900_000, linger_ms=50, **settings) as producer:
        with producer.transaction():
            for value in wanted:
                producer.send(topic, value)
    assert values(read_with_confluent(broker.servers, topic)) == wanted
    assert values(read_with_kafka_python(broker.servers, topic)) == wanted


def test_a_batch_too_large_for_the_topic_is_split(broker, transactional_id):
    topic = broker.topic(config={"max.message.bytes": "20000"})
    wanted = [b"%06d" % n * 100 for n in range(300)]
    with broker.ready(transactional_id, batch_size=65536, linger_ms=50) as producer:
        with producer.transaction():
            for value in wanted:
                producer.send(topic, value)
    assert values(read_with_confluent(broker.servers, topic)) == wanted


def test_one_record_too_large_fails_the_transaction_but_not_the_producer(broker, transactional_id):
    topic = broker.topic(config={"max.message.bytes": "20000"})
    with broker.ready(transactional_id) as producer:
        producer.begin_transaction()
        future = producer.send(topic, b"x" * 30_000)
        with pytest.raises(errors.KafkaError) as caught:
            producer.commit_transaction()
        assert caught.value.recovery == "abort"
        assert isinstance(future.exception(), errors.RecordTooLargeError)
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"small")
    assert values(read_with_confluent(broker.servers, topic)) == [b"small"]


def test_committed_and_aborted_transactions_of_several_threads_keep_their_order(
    broker, transactional_id
):
    topic = broker.topic(partitions=4)
    committed: dict[int, list[bytes]] = {p: [] for p in range(4)}
    with broker.ready(transactional_id, linger_ms=0, batch_size=2000) as producer:
        for number in range(12):
            is_aborted = number % 3 == 2
            producer.begin_transaction()
            threads = [
                threading.Thread(target=_fill, args=(producer, topic, p, number)) for p in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if is_aborted:
                producer.abort_transaction()
                continue
            producer.commit_transaction()
            for p in range(4):
                committed[p] += [b"%d:%d" % (number, n) for n in range(200)]
    by_confluent = read_with_confluent(broker.servers, topic)
    for p in range(4):
        assert [r.value for r in by_confluent if r.partition == p] == committed[p]
    assert by_confluent == read_with_kafka_python(broker.servers, topic)


def _fill(producer, topic, partition, number):
    for n in range(200):
        producer.send(topic, b"%d:%d" % (number, n), partition=partition)


def test_an_idempotent_producer_needs_no_transactional_id(broker):
    topic = broker.topic(partitions=2)
    with broker.producer(None) as producer:
        futures = [producer.send(topic, b"%d" % n, partition=n % 2) for n in range(200)]
        producer.flush()
        assert all(future.result(0).offset >= 0 for future in futures)
        with pytest.raises(errors.IllegalStateError):
            producer.begin_transaction()
    assert len(read_with_confluent(broker.servers, topic)) == 200


def test_closing_a_producer_aborts_its_open_transaction(broker, transactional_id):
    topic = broker.topic()
    producer = broker.ready(transactional_id)
    producer.begin_transaction()
    producer.send(topic, b"never")
    producer.flush()
    producer.close()
    with broker.ready(transactional_id + "-other") as other, other.transaction():
        other.send(topic, b"seen")
    # An open transaction would hold the reader back before `seen`.
    assert values(read_with_confluent(broker.servers, topic)) == [b"seen"]
