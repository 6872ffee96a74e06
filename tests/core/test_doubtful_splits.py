"""A batch in doubt is refused as too large: its parts are sent only if that cannot double records.

The topic's limit was lowered in between. The broker knows a batch by its first number and its
last, so it takes a part for a gap, not for the duplicate that it is. Java's producer believes it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.on_cluster import OnCluster, committed, make_cluster
from tests.core.sending import PRODUCE, idempotent
from tests.harness import TP0
from tests.scripted_client import NO_BUMP_VERSIONS
from txnproducer._protocol.messages import ApiKey
from txnproducer.errors import ErrorCode, KafkaError, OutOfOrderSequenceError


def written_but_refused(answer):
    refused = [
        partition._replace(error_code=ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, base_offset=-1)
        for partition in answer.partitions
    ]
    return answer._replace(partitions=tuple(refused))


def limit_batches(cluster, limit_bytes):
    limit_before = cluster.options.max_message_bytes
    cluster.options = replace(cluster.options, max_message_bytes=limit_bytes)
    return limit_before


def test_an_idempotent_producer_does_not_write_its_parts_a_second_time():
    cluster = make_cluster()
    harness = OnCluster(cluster, transactional_id=None, linger_ms=10)
    harness.write(b"first")
    harness.lost.append(ApiKey.PRODUCE)
    futures = [harness.send("topic", value * 100) for value in (b"a", b"b")]
    harness.run_until(lambda: not harness.lost)
    limit_batches(cluster, 200)
    harness.run_until(lambda: all(future.done() for future in futures))
    assert all(isinstance(future.exception(), OutOfOrderSequenceError) for future in futures)
    values = [record.value[:1] for record in cluster.read(TP0, read_committed=False)]
    assert values == [b"f", b"a", b"b"]


def begin_doubtful(cluster, *, is_old=False):
    """Begin a transaction of which a batch is written and refused, and the limit then lowered."""
    harness = OnCluster(cluster, linger_ms=10)
    if is_old:
        harness.client.default_versions = dict(NO_BUMP_VERSIONS)
    harness.init()
    harness.transact(b"first")
    harness.begin()
    harness.rewrite[ApiKey.PRODUCE] = written_but_refused
    futures = [harness.send("topic", value * 100) for value in (b"a", b"b")]
    harness.run_until(lambda: not harness.rewrite)
    harness.settle()
    return harness, futures


@pytest.mark.parametrize("is_aborting", [False, True])
@pytest.mark.parametrize("version", [1, 2])
def test_the_next_transaction_does_not_use_the_numbers_of_parts_again(version, is_aborting):
    cluster = make_cluster(version)
    harness, futures = begin_doubtful(cluster)
    limit_before = limit_batches(cluster, 200)
    if not is_aborting:
        harness.run_until(lambda: all(future.done() for future in futures))
    harness.end(is_commit=False)
    assert all(future.exception() is not None for future in futures)
    limit_batches(cluster, limit_before)
    harness.begin()
    following = [harness.send("topic", value * 10) for value in (b"c", b"d")]
    harness.run_until(lambda: all(future.done() for future in following))
    harness.end(is_commit=True)
    assert [value[:1] for value in committed(cluster)] == [b"f", b"c", b"d"]


@pytest.mark.parametrize("is_aborting", [False, True])
def test_where_the_epoch_cannot_be_raised_the_producer_ends(is_aborting):
    cluster = make_cluster(1, init_producer_id_version=2)
    harness, futures = begin_doubtful(cluster, is_old=True)
    limit_batches(cluster, 200)
    if not is_aborting:
        harness.run_until(lambda: all(future.done() for future in futures))
    with pytest.raises(KafkaError, match="too old to go on safely"):
        harness.end(is_commit=False)
    assert [value[:1] for value in committed(cluster)] == [b"f"]


def split_with_the_first_part_on_the_wire(harness):
    """Have a batch of two refused as too large, after an attempt that may be written."""
    futures = [harness.send(value=value) for value in (b"a" * 100, b"b" * 100)]
    harness.run_for(10)
    # The first split is into parts of `batch_size`, which take both; the next one halves.
    for code in (ErrorCode.REQUEST_TIMED_OUT, *[ErrorCode.MESSAGE_TOO_LARGE] * 2):
        harness.run_until(lambda: harness.client.waiting(PRODUCE))
        harness.client.answer_produce(harness.client.waiting(PRODUCE)[0], code)
        harness.settle()
    assert [len(batch.values) for batch in harness.sent_batches()] == [2, 2, 2, 1]
    return futures


def test_an_expired_part_is_not_reported_as_never_sent():
    harness = idempotent(linger_ms=10, request_timeout_ms=5_000, delivery_timeout_ms=5_010)
    futures = split_with_the_first_part_on_the_wire(harness)
    harness.run_until(lambda: all(future.done() for future in futures))
    assert "it may have the records" in str(futures[0].exception())
    told = str(futures[1].exception())
    assert "the broker may have the records; its last attempt ended with: MESSAGE_" in told
    assert "Check whether they are there" in told


def test_parts_that_expire_together_call_back_in_their_order():
    harness = idempotent(linger_ms=10, request_timeout_ms=5_000, delivery_timeout_ms=5_010)
    futures = split_with_the_first_part_on_the_wire(harness)
    order = []
    for batch in harness.core._accumulator._incomplete:
        batch.add_callback(
            0, futures[0], lambda *_, batch=batch: order.append(batch.base_sequence)
        )
    harness.run_until(lambda: all(future.done() for future in futures))
    assert order == [0, 1]


def test_parts_are_aborted_in_their_order():
    harness = idempotent(linger_ms=10)
    futures = split_with_the_first_part_on_the_wire(harness)
    harness.send(value=b"later")
    harness.run_for(10)
    accumulator, order = harness.core._accumulator, []
    for batch in accumulator._incomplete:
        batch.add_callback(
            0, futures[0], lambda *_, batch=batch: order.append(batch.base_sequence)
        )
    accumulator.abort_batches(KafkaError("closed by force"))
    harness.run_callbacks()
    assert order == [0, 1, -1]


def too_large(answer):
    refused = [
        partition._replace(error_code=ErrorCode.MESSAGE_TOO_LARGE, base_offset=-1)
        for partition in answer.partitions
    ]
    return answer._replace(partitions=tuple(refused))


def test_a_part_that_the_broker_takes_for_the_whole_keeps_its_records_timestamps():
    # The limit was raised again, and the part is as large as the whole. A broker that has a batch
    # tells the newest timestamp in it.
    cluster = make_cluster()
    harness = OnCluster(cluster, transactional_id=None, linger_ms=10)
    harness.write(b"first")
    harness.rewrite[ApiKey.PRODUCE] = written_but_refused
    futures = [harness.send("topic", b"v", timestamp_ms=stamp) for stamp in (1_000, 2_000)]
    harness.run_until(lambda: not harness.rewrite)
    harness.rewrite[ApiKey.PRODUCE] = too_large
    harness.run_until(lambda: all(future.done() for future in futures))
    assert [future.result().timestamp_ms for future in futures] == [1_000, 2_000]
    assert [future.result().offset for future in futures] == [1, 2]
