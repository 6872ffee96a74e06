"""A batch gets another number while it is on the wire: it may be written under the one of before.

So nothing may be written under that number for another reason, nor may the batch go out under the
new one unless it certainly is not written. Java's producer takes no such care.
"""

from __future__ import annotations

import pytest

from tests.core.on_cluster import Holding, committed, make_cluster
from tests.core.sending import PRODUCE, idempotent, send_each
from tests.harness import TP0, CoreHarness
from tests.scripted_client import NO_BUMP_VERSIONS
from txnproducer.errors import (
    ApplicationRecoverableError,
    ErrorCode,
    InvalidRecordError,
    KafkaError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
)

OLD_CLUSTER = {"init_producer_id_version": 2}


def send_two_and_have_the_first_refused(harness, *, is_aborting):
    """Send a and b; a is refused for good, and b, renumbered meanwhile, is written."""
    harness.held = []
    futures = []
    for value in (b"a", b"b"):
        futures.append(harness.send("topic", value))
        harness.settle()
    abort = harness.core.begin_abort() if is_aborting else None
    harness.settle()
    first, second = harness.held
    harness.held = None
    harness.client.answer_produce(first, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    harness.settle()
    harness.client.answer(second, harness.cluster.handle(0, second.body, harness.now_ms))
    harness.settle()
    harness.run_until(lambda: all(future.done() for future in futures))
    harness.complete(harness.core.begin_abort() if abort is None else abort)
    return futures


@pytest.mark.parametrize("is_aborting", [False, True])
@pytest.mark.parametrize(
    ("version", "options"), [(1, {}), (1, {"is_before_4": True}), (2, {})], ids=str
)
def test_the_next_transaction_does_not_begin_under_the_number_of_what_was_written(
    version, options, is_aborting
):
    cluster = make_cluster(version, **options)
    harness = Holding(cluster)
    harness.init()
    harness.know_topics()
    harness.begin()
    first, second = send_two_and_have_the_first_refused(harness, is_aborting=is_aborting)
    assert first.exception() is not None
    assert second.exception() is None
    harness.transact(b"c")
    assert committed(cluster) == [b"c"]


def test_where_the_epoch_cannot_be_raised_the_next_transaction_is_refused():
    harness = CoreHarness(transaction_version=1)
    harness.client.default_versions = dict(NO_BUMP_VERSIONS)
    harness.start_transaction()
    harness.know_topics()
    harness.client.prepare_add_partitions()
    futures, requests = send_each(harness, 2)
    abort = harness.core.begin_abort()
    harness.client.answer_produce(requests[0], ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    harness.settle()
    harness.client.answer_produce(requests[1], base_offset=0)
    harness.client.prepare_end_txn()
    harness.complete(abort)
    assert [future.error is None for future in futures] == [False, True]
    with pytest.raises(ApplicationRecoverableError, match="go on with a new one"):
        harness.begin_transaction()


def test_what_is_lost_after_it_was_renumbered_is_not_repeated_before_2_5():
    # The log was cut, and the broker has forgotten the producer: it is to begin at 0 again.
    cluster = make_cluster(1, **OLD_CLUSTER, producer_id_expiration_ms=60_000)
    cluster.told_log_start = lambda log: log.log_start_offset
    harness = Holding(cluster)
    harness.client.default_versions = dict(NO_BUMP_VERSIONS)
    harness.init()
    harness.transact(b"first")
    harness.run_for(200_000)
    log = cluster.logs[TP0]
    log.log_start_offset = log.log_end_offset
    harness.begin()
    harness.held = []
    futures = []
    for value in (b"a", b"b"):
        futures.append(harness.send("topic", value))
        harness.settle()
    first, second = harness.held
    harness.held = None
    harness.client.answer(first, cluster.handle(0, first.body, harness.now_ms))
    harness.settle()
    harness.client.disconnect(second.connection)
    harness.run_until(lambda: all(future.done() for future in futures))
    cluster.handle(0, second.body, harness.now_ms)
    assert futures[1].exception() is not None
    with pytest.raises(KafkaError):
        harness.end(is_commit=True)
    assert committed(cluster) == [b"first"]


@pytest.mark.parametrize("bump_count", [1, 2])
def test_an_overtaken_batch_stays_overtaken_through_any_number_of_bumps(bump_count):
    harness = idempotent()
    futures, requests = send_each(harness, 4)
    harness.client.answer_produce(requests[0], ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.client.answer_produce(requests[1], base_offset=5)
    harness.settle()
    again = wait_for_another(harness, requests)
    for request in requests[2 : 2 + bump_count]:
        harness.client.answer_produce(request, ErrorCode.INVALID_RECORD)
        harness.settle()
    harness.client.answer_produce(again, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    harness.run_until(futures[0].done)
    assert isinstance(futures[0].exception(), OutOfOrderSequenceError)
    assert futures[1].result().offset == 5


def wait_for_another(harness, requests):
    """Wait for the repetition of one of the requests that were answered."""

    def others():
        return [one for one in harness.client.waiting(PRODUCE) if one not in requests]

    harness.run_until(others)
    (again,) = others()
    return again


def test_an_overtaken_batch_that_is_too_large_is_not_split_behind_what_overtook_it():
    harness = idempotent(linger_ms=10)

    def send(*values):
        futures = [harness.send(value=value) for value in values]
        harness.run_for(10)
        return futures

    first, (second,), _ = send(b"a0", b"a1"), send(b"b"), send(b"c")
    requests = harness.client.waiting(PRODUCE)
    harness.client.answer_produce(requests[0], ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.client.answer_produce(requests[1], base_offset=5)
    harness.settle()
    again = wait_for_another(harness, requests)
    harness.client.answer_produce(requests[2], ErrorCode.INVALID_RECORD)
    harness.settle()
    harness.client.answer_produce(again, ErrorCode.MESSAGE_TOO_LARGE)
    harness.run_until(lambda: all(future.done() for future in first))
    assert all(isinstance(future.exception(), RecordTooLargeError) for future in first)
    assert second.result().offset == 5


def test_a_retry_waits_for_the_answer_of_what_was_renumbered_on_the_wire():
    # A broker that does not know the producer takes the third though it refused the second.
    cluster = make_cluster()
    harness = Holding(cluster, transactional_id=None)
    harness.run_until(lambda: harness.manager.has_producer_id)
    harness.know_topics()
    harness.held = []
    futures = []
    for value in (b"refused", b"again", b"written"):
        futures.append(harness.send("topic", value))
        harness.settle()
    requests, harness.held = harness.held, None
    harness.client.answer_produce(requests[0], ErrorCode.INVALID_RECORD)
    harness.client.answer_produce(requests[1], ErrorCode.NOT_ENOUGH_REPLICAS)
    slow = cluster.handle(0, requests[2].body, harness.now_ms)
    harness.run_for(150)
    harness.client.answer(requests[2], slow)
    harness.run_until(lambda: all(future.done() for future in futures))
    assert isinstance(futures[0].exception(), InvalidRecordError)
    assert isinstance(futures[1].exception(), OutOfOrderSequenceError)
    assert futures[2].exception() is None
    assert [record.value for record in cluster.read(TP0, read_committed=False)] == [b"written"]
