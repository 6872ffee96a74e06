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
from txnproducer._broker import handlers
from txnproducer._protocol.messages import ApiKey
from txnproducer.errors import (
    ApplicationRecoverableError,
    ErrorCode,
    InvalidRecordError,
    KafkaError,
    KafkaTimeoutError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
)

OLD_CLUSTER = {"init_producer_id_version": 2}


def send_and_hold(*values):
    """Return cluster, harness, futures and requests: each record a request, none answered."""
    cluster = make_cluster(1)
    harness = Holding(cluster)
    harness.init()
    harness.know_topics()
    harness.begin()
    harness.held = []
    futures = []
    for value in values:
        futures.append(harness.send("topic", value))
        harness.settle()
    requests, harness.held = harness.held, None
    return cluster, harness, futures, requests


def send_two_and_have_the_first_refused(harness, *, is_aborting):
    """Send a and b, of which a is refused for good, and b, renumbered meanwhile, is written."""
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
    harness.client.answer(second, handlers.handle(harness.cluster, 0, second.body, harness.now_ms))
    harness.settle()
    harness.run_until(lambda: all(future.done() for future in futures))
    harness.complete(harness.core.begin_abort() if abort is None else abort)
    return futures


@pytest.mark.parametrize("is_aborting", [False, True])
@pytest.mark.parametrize(
    ("version", "options"), [(1, {}), (1, {"is_before_4": True}), (2, {})], ids=str
)
def test_the_next_transaction_does_not_begin_under_the_number_of_a_written_batch(
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


def test_a_batch_lost_after_it_was_renumbered_is_not_retried_before_2_5():
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
    harness.client.answer(first, handlers.handle(cluster, 0, first.body, harness.now_ms))
    harness.settle()
    harness.client.disconnect(second.connection)
    harness.run_until(lambda: all(future.done() for future in futures))
    handlers.handle(cluster, 0, second.body, harness.now_ms)
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


def test_a_too_large_batch_is_not_split_after_a_later_one_has_overtaken_it():
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


def test_a_retry_waits_for_the_answer_to_a_batch_renumbered_on_the_wire():
    # A broker that has forgotten the producer takes the third though it refused the second.
    cluster = make_cluster()
    harness = Holding(cluster, transactional_id=None)
    harness.run_until(lambda: harness.manager.identity.has_producer_id)
    harness.be_known()
    harness.know_topics()
    harness.held = []
    futures = []
    for value in (b"refused", b"again", b"written"):
        futures.append(harness.send("topic", value))
        harness.settle()
    requests, harness.held = harness.held, None
    harness.client.answer_produce(requests[0], ErrorCode.INVALID_RECORD)
    harness.client.answer_produce(requests[1], ErrorCode.NOT_ENOUGH_REPLICAS)
    slow = handlers.handle(cluster, 0, requests[2].body, harness.now_ms)
    harness.run_for(150)
    harness.client.answer(requests[2], slow)
    harness.run_until(lambda: all(future.done() for future in futures))
    assert isinstance(futures[0].exception(), InvalidRecordError)
    assert isinstance(futures[1].exception(), OutOfOrderSequenceError)
    assert futures[2].exception() is None
    assert [record.value for record in cluster.read(TP0, read_committed=False)] == [b"written"]


@pytest.mark.parametrize("is_written_first", [False, True])
def test_a_number_that_was_written_under_is_not_given_to_the_next_batch(is_written_first):
    # The broker would take it for the one that it has, and say so: acknowledged, and not written.
    cluster, harness, futures, requests = send_and_hold(b"refused", b"written", b"next")
    harness.client.answer_produce(requests[0], ErrorCode.INVALID_RECORD)
    harness.settle()
    written = handlers.handle(cluster, 0, requests[1].body, harness.now_ms)

    def refuse_the_last():
        harness.client.answer_produce(requests[2], ErrorCode.NOT_ENOUGH_REPLICAS)

    def answer_the_other():
        harness.client.answer(requests[1], written)

    steps = [refuse_the_last, answer_the_other]
    for step in reversed(steps) if is_written_first else steps:
        step()
        harness.settle()
    harness.run_until(lambda: all(future.done() for future in futures))
    assert [future.exception() is None for future in futures] == [False, True, False]
    harness.complete(harness.core.begin_abort())
    harness.transact(b"later")
    assert committed(cluster) == [b"later"]
    values = [record.value for record in cluster.read(TP0, read_committed=False)]
    assert values == [b"written", b"later"]


def test_a_batch_that_may_be_written_keeps_its_number_when_an_earlier_one_is_refused():
    # A leader that does not know the producer may have accepted those after it.
    harness = CoreHarness(transaction_version=1)
    harness.start_transaction()
    harness.know_topics()
    harness.client.prepare_add_partitions()
    futures, requests = send_each(harness, 3)
    for request, code in zip(
        requests, (ErrorCode.NOT_ENOUGH_REPLICAS, *[ErrorCode.REQUEST_TIMED_OUT] * 2), strict=True
    ):
        harness.client.answer_produce(request, code)
        harness.settle()
    again = wait_for_another(harness, requests)
    harness.client.answer_produce(again, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    for offset in (7, 8):
        harness.client.prepare_produce(base_offset=offset)
    harness.run_until(lambda: all(future.done() for future in futures))
    assert harness.sequences_sent() == [0, 1, 2, 0, 1, 2]
    assert [future.result().offset for future in futures[1:]] == [7, 8]


def test_a_batch_that_keeps_its_number_was_not_renumbered():
    # Before 2.5 all begins at 0 again where a broker has forgotten the producer; and nobody can
    # take a new epoch for what was renumbered on the wire.
    harness = CoreHarness(transaction_version=1)
    harness.client.default_versions = dict(NO_BUMP_VERSIONS)
    harness.start_transaction()
    harness.know_topics()
    harness.client.prepare_add_partitions()
    futures, requests = send_each(harness, 2)
    harness.client.answer_produce(requests[0], ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.settle()
    again = wait_for_another(harness, requests)
    harness.client.answer_produce(requests[1], ErrorCode.UNKNOWN_PRODUCER_ID, log_start_offset=0)
    harness.settle()
    harness.client.answer_produce(again, base_offset=7)
    harness.settle()
    harness.client.prepare_produce(base_offset=8)
    harness.run_until(lambda: all(future.done() for future in futures))
    assert [future.result().offset for future in futures] == [7, 8]
    harness.commit()
    harness.begin_transaction()


def test_a_batch_without_a_number_is_not_overtaken():
    # Its number is -1, which is ahead of those that are more than half the way round.
    harness = CoreHarness(transaction_version=1, max_in_flight_requests_per_connection=2)
    harness.start_transaction()
    harness.know_topics()
    harness.client.prepare_add_partitions()
    harness.manager.sequences.maybe_update_producer_id_and_epoch(TP0)
    harness.manager.sequences.partitions.get(TP0).increment_sequence((1 << 30) + 5)
    futures, requests = send_each(harness, 2)
    unsent = harness.send()
    harness.client.answer_produce(requests[0], ErrorCode.INVALID_RECORD)
    harness.client.answer_produce(requests[1], base_offset=7)
    harness.settle()
    assert futures[1].result().offset == 7
    # It hears why the transaction is over, and no tale of numbers.
    assert isinstance(unsent.exception(), InvalidRecordError)


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT]
)
def test_a_number_that_may_be_written_under_is_not_given_to_the_next_batch(code):
    cluster, harness, futures, requests = send_and_hold(b"a", b"b", b"c")
    harness.client.answer_produce(requests[0], ErrorCode.INVALID_RECORD)
    harness.settle()
    handlers.handle(cluster, 0, requests[1].body, harness.now_ms)
    for request, answer in ((requests[1], code), (requests[2], ErrorCode.NOT_ENOUGH_REPLICAS)):
        harness.client.answer_produce(request, answer)
        harness.settle()
    harness.run_until(lambda: all(future.done() for future in futures))
    assert all(future.exception() for future in futures)
    assert [record.value for record in cluster.read(TP0, read_committed=False)] == [b"b"]


def test_the_number_of_a_batch_that_expired_on_the_wire_is_not_given_away():
    cluster = make_cluster(1)
    harness = Holding(cluster, delivery_timeout_ms=6000, request_timeout_ms=6000, batch_size=100)
    harness.init()
    harness.know_topics()
    harness.begin()
    # They wait for their partition to be added: their time is up before that of their requests.
    harness.delayed, harness.held = [ApiKey.ADD_PARTITIONS_TO_TXN], []
    futures = [harness.send("topic", value * 80) for value in (b"a", b"b")]
    harness.run_until(lambda: len(harness.held or ()) == 2)
    futures.append(harness.send("topic", b"c"))
    harness.settle()
    requests, harness.held = harness.held, None
    handlers.handle(cluster, 0, requests[1].body, harness.now_ms)
    harness.client.answer_produce(requests[0], ErrorCode.INVALID_RECORD)
    harness.settle()
    harness.client.answer_produce(requests[2], ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.run_until(lambda: all(future.done() for future in futures))
    assert isinstance(futures[1].exception(), KafkaTimeoutError)
    assert isinstance(futures[2].exception(), OutOfOrderSequenceError)
    values = [record.value for record in cluster.read(TP0, read_committed=False)]
    assert values == [b"b" * 80]


def test_no_number_is_given_after_a_batch_that_failed_in_doubt():
    # A leader that does not know the producer has taken the second.
    cluster, harness, futures, requests = send_and_hold(b"a", b"b", b"c")
    harness.client.answer_produce(requests[0], ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.settle()
    handlers.handle(cluster, 0, requests[1].body, harness.now_ms)
    for request, code in (
        (requests[1], ErrorCode.UNKNOWN_SERVER_ERROR),
        (requests[2], ErrorCode.NOT_ENOUGH_REPLICAS),
    ):
        harness.client.answer_produce(request, code)
        harness.settle()
    harness.held = []
    harness.run_until(lambda: harness.held)
    (again,), harness.held = harness.held, None
    harness.client.answer_produce(again, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    harness.run_until(lambda: all(future.done() for future in futures))
    assert [future.exception() is None for future in futures] == [False, False, True]
    values = [record.value for record in cluster.read(TP0, read_committed=False)]
    assert values == [b"b", b"c"]


def test_a_late_answer_of_an_earlier_transaction_is_none_of_the_next_ones_business():
    harness = CoreHarness(
        transaction_version=1, delivery_timeout_ms=6000, request_timeout_ms=5000, batch_size=100
    )
    harness.start_transaction()
    harness.know_topics()
    # They wait for their partition to be added, and are old when they are sent.
    _, expired = (harness.send(value=b"x" * 80) for _ in range(2))
    harness.run_for(2000)
    (adding,) = harness.client.outstanding.values()
    harness.client.disconnect(adding.connection)
    harness.client.prepare_add_partitions()
    harness.client.prepare_find_coordinator()
    harness.run_until(lambda: len(harness.client.waiting(PRODUCE)) == 2)
    refused, late = harness.client.waiting(PRODUCE)
    harness.client.answer_produce(refused, ErrorCode.INVALID_RECORD)
    harness.run_until(expired.done)
    harness.client.prepare_init_producer_id(producer_epoch=9)
    harness.abort()
    harness.begin_transaction()
    harness.client.prepare_add_partitions()
    futures = [harness.send(value=b"y" * 80) for _ in range(2)]
    harness.settle()
    for request in [one for one in harness.client.waiting(PRODUCE) if one is not late]:
        harness.client.answer_produce(request, ErrorCode.NOT_ENOUGH_REPLICAS)
        harness.settle()
    harness.client.answer_produce(late, base_offset=5)
    harness.settle()
    for offset in (6, 7):
        harness.client.prepare_produce(base_offset=offset)
    harness.run_until(lambda: all(future.done() for future in futures))
    assert [future.result().offset for future in futures] == [6, 7]
    harness.commit()
    # Nor does it ask for another epoch.
    harness.begin_transaction()
    assert harness.manager.identity.producer_id_and_epoch.producer_epoch == 9


def test_only_a_renumbered_batch_is_overtaken_by_one_written_under_its_old_number():
    harness = CoreHarness(transaction_version=1)
    harness.start_transaction()
    harness.know_topics()
    harness.client.prepare_add_partitions()
    send_each(harness, 3)
    produce = harness.core._sender._producing
    first, second, third = produce._in_flight[TP0]
    for batch, sequence in ((first, 7), (second, 8)):
        batch.reset_producer_state(harness.manager.identity.producer_id_and_epoch, sequence)
    produce._fail_batches_renumbered_with(first, harness.now_ms)
    assert (second.is_overtaken, third.is_overtaken) == (True, False)
