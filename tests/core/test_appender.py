"""From a record to its place in a batch: the choice of the partition, and possible failures."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from tests.core.sending import in_transaction, with_three_partitions
from tests.harness import TP0, TP1, CoreHarness
from txnproducer._core.batches.append_blocked import BlockReason
from txnproducer._core.batches.partitioner import partition_for_key
from txnproducer._core.producer_core import AppendBlocked
from txnproducer._core.transactions.state import TransactionState
from txnproducer._protocol.messages import ApiKey
from txnproducer.errors import (
    AuthenticationError,
    ErrorCode,
    IllegalStateError,
    InvalidProducerEpochError,
    InvalidTopicError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    SaslAuthenticationError,
    TransactionAbortedError,
    UnknownTopicOrPartitionError,
)
from txnproducer.records import TopicPartition


def partition_of(future) -> int:
    partition: int = future.metadata().partition
    return partition


@pytest.mark.conformance("5.39")
def test_a_key_decides_the_partition_on_both_the_long_and_the_short_way():
    harness = with_three_partitions(linger_ms=1_000)
    keys = [b"key-%d" % number for number in range(50)] * 2
    keys += [b"k" * 200] * 2  # longer than what the cache of hashes takes
    for key in keys:
        future = harness.send(key=key, partition=None)
        assert partition_of(future) == partition_for_key(key, 3)


def test_keys_can_be_ignored():
    harness = with_three_partitions(linger_ms=1_000, partitioner_ignore_keys=True)
    keys = [b"key-%d" % number for number in range(50)]
    assert len({partition_of(harness.send(key=key, partition=None)) for key in keys}) == 1


def test_a_key_follows_a_growing_topic():
    harness = with_three_partitions(linger_ms=1_000)
    harness.send(key=b"key", partition=None)
    harness.client.topics["topic"] = 50
    harness.core._metadata.request_update()
    harness.run_for(500)
    for key in [b"key-%d" % number for number in range(40)]:
        future = harness.send(key=key, partition=None)
        assert partition_of(future) == partition_for_key(key, 50)


@pytest.mark.conformance("5.39")
def test_without_a_key_the_partitioner_chooses_and_a_given_partition_is_taken():
    harness = with_three_partitions(linger_ms=1_000, batch_size=200)
    chosen = {partition_of(harness.send(value=b"x" * 100, partition=None)) for _ in range(60)}
    assert chosen == {0, 1, 2}
    for partition in range(3):
        future = harness.send(key=b"key", partition=partition)
        assert partition_of(future) == partition


@pytest.mark.conformance("5.40")
def test_records_without_key_fill_a_batch_and_move_on():
    harness = in_transaction(linger_ms=1_000, batch_size=1_000, topics={"topic": 4})
    counts: Counter[int] = Counter()
    for _ in range(400):
        counts[partition_of(harness.send(value=b"x" * 100, partition=None))] += 1
    assert set(counts) == {0, 1, 2, 3}
    # Eight records fill a batch, and a partition keeps one batch or two at a time.
    assert all(count % 8 == 0 for count in counts.values())


@pytest.mark.conformance("5.40")
def test_a_record_after_the_drain_stays_with_its_partition_until_the_size_is_reached():
    harness = with_three_partitions(batch_size=10_000)
    partitions = []
    for _ in range(60):
        harness.client.prepare_produce()
        partitions.append(partition_of(harness.send(value=b"x" * 1_000, partition=None)))
        harness.settle()
    runs = [n for n in range(1, 60) if partitions[n] != partitions[n - 1]]
    assert 2 <= len(runs) <= 6


def test_a_batch_with_headers_and_callbacks_goes_on_the_wire_as_given():
    harness = with_three_partitions(linger_ms=5)
    harness.client.prepare_produce(base_offset=9)
    headers = (("trace", b"1"), ("empty", None))
    harness.send(value=b"first", partition=1, is_watched=True)
    harness.send(value=None, key=b"k", partition=1, headers=headers, is_watched=True)
    harness.client.prepare_produce(base_offset=9)
    harness.commit()
    sent = {r.value: r for b in harness.sent_batches() for r in b.records}
    assert sent[None].headers == headers
    assert sent[None].key == b"k"
    assert len(harness.deliveries) == 2
    assert all(error is None and metadata.offset >= 9 for metadata, error in harness.deliveries)


def test_a_watched_record_on_the_short_way_is_called_back_too():
    harness = with_three_partitions(linger_ms=5)
    harness.client.prepare_produce()
    for _ in range(3):
        harness.send(is_watched=True)
    harness.commit()
    assert [metadata.offset for metadata, _ in harness.deliveries] == [0, 1, 2]


@pytest.mark.conformance("2.27")
@pytest.mark.trap(5)
@pytest.mark.parametrize(
    "error", [ProducerFencedError("fenced"), InvalidProducerEpochError("old")]
)
def test_a_fenced_producers_record_gets_a_failed_future(error):
    harness = with_three_partitions()
    harness.manager.progress.transition_to_fatal_error(error)
    future = harness.send(is_watched=True)
    assert type(future.exception()) is type(error)
    harness.settle()
    assert len(harness.deliveries) == 1


@pytest.mark.conformance("2.27")
def test_in_any_other_error_state_send_raises():
    harness = with_three_partitions()
    harness.manager.progress.transition_to_abortable_error(KafkaError("a reason"))
    with pytest.raises(KafkaError):
        harness.send()
    with pytest.raises(KafkaError):
        harness.send("not yet known")


def test_a_refused_login_fails_the_records_that_wait_for_metadata():
    harness = CoreHarness(transactional_id=None)
    harness.client.refusing_logins[-1] = SaslAuthenticationError("wrong password")
    future = harness.send()
    assert isinstance(future.exception(), AuthenticationError)
    assert harness.now_ms < 1_000


def test_a_refused_login_that_is_mended_is_forgotten():
    """Without idempotence: with it the producer must be made again after a failed request."""
    harness = CoreHarness(transactional_id=None, enable_idempotence=False)
    harness.client.refusing_logins[-1] = SaslAuthenticationError("wrong password")
    assert harness.send().exception() is not None
    harness.client.refusing_logins.clear()
    harness.run_for(2_000)
    harness.client.prepare_produce()
    future = harness.send()
    harness.run_until(future.done)
    assert future.exception() is None


@pytest.mark.conformance("5.04")
def test_memory_goes_to_the_next_waiter_when_the_record_found_a_place_without_it():
    harness = with_three_partitions(buffer_memory=100_000, batch_size=65_536, linger_ms=60_000)
    harness.send(partition=0)
    blocked = harness.try_send(partition=1)
    assert isinstance(blocked, AppendBlocked)
    harness.settle()
    harness.client.answer_produce(harness.client.waiting(ApiKey.PRODUCE)[0])
    harness.settle()
    first = harness.try_send(partition=1, blocked=blocked)
    assert not isinstance(first, AppendBlocked)
    assert not harness.core._accumulator.pool.waiting
    # Two wait; one of them makes the batch, and the other finds it.
    waits = [harness.try_send(partition=0), harness.try_send(partition=0)]
    assert all(isinstance(wait, AppendBlocked) for wait in waits)
    harness.settle()
    harness.client.answer_produce(harness.client.waiting(ApiKey.PRODUCE)[0])
    harness.settle()
    for wait in waits:
        assert not isinstance(harness.try_send(partition=0, blocked=wait), AppendBlocked)
    assert not harness.core._accumulator.pool.waiting


def test_a_wait_for_memory_that_ends_in_an_error_leaves_the_queue_too():
    harness = with_three_partitions(buffer_memory=100_000, batch_size=65_536)
    harness.send(partition=0)
    blocked = harness.try_send(partition=1)
    assert isinstance(blocked, AppendBlocked)
    harness.manager.progress.transition_to_fatal_error(ProducerFencedError("fenced"))
    future = harness.try_send(partition=1, blocked=blocked)
    assert not isinstance(future, AppendBlocked)
    assert isinstance(future.exception(), ProducerFencedError)
    assert not harness.core._accumulator.pool.waiting


@pytest.mark.conformance("2.06")
@pytest.mark.parametrize("call", ["begin_commit", "begin_abort"])
def test_a_record_sent_while_the_transaction_ends_is_refused_though_its_batch_is_open(call):
    harness = with_three_partitions(linger_ms=1_000)
    harness.send()
    getattr(harness.core, call)()
    with pytest.raises(IllegalStateError):
        harness.send()
    with pytest.raises(IllegalStateError):
        harness.send(partition=2)


def test_an_interrupted_wait_leaves_the_queue_for_memory():
    harness = with_three_partitions(buffer_memory=100_000, batch_size=65_536)
    harness.send(partition=0)
    blocked = harness.try_send(partition=1)
    assert isinstance(blocked, AppendBlocked)
    harness.core.give_up_append(blocked)
    assert not harness.core._accumulator.pool.waiting


@pytest.mark.conformance("2.25")
def test_a_send_that_fails_while_a_transaction_is_being_aborted_changes_nothing():
    harness = with_three_partitions(max_block_ms=1_000)
    harness.send()
    harness.settle()
    blocked = harness.try_send("missing")
    assert isinstance(blocked, AppendBlocked)
    harness.core.begin_abort()
    future = harness.core.time_out_append(blocked, "missing", None, None, 1_000, harness.now_ms)
    assert future.exception() is not None
    assert harness.state is TransactionState.ABORTING_TRANSACTION


def test_a_place_that_cannot_exist_is_known_without_a_question():
    core = in_transaction(topics={"topic": 3}).core
    for name in ("a b", "", "..", "x" * 250, "topic\n"):
        assert "is not a valid topic name" in (core.reason_against(name, None) or "")
    assert "has no partition 3: its highest partition number is 2" in (
        core.reason_against("topic", 3) or ""
    )
    for topic, partition in (("topic", 2), ("topic", None), ("not.known_yet-1", 9)):
        assert core.reason_against(topic, partition) is None


def waiting_for_partition(number):
    harness = with_three_partitions()
    blocked = harness.try_send(partition=number)
    assert isinstance(blocked, AppendBlocked)
    return harness, blocked


def go_on_waiting(harness, blocked, number):
    harness.run_until(partial(harness.core.append_can_proceed, blocked))
    return harness.try_send(partition=number, blocked=blocked)


def test_a_partition_that_two_answers_lack_a_second_apart_does_not_exist():
    harness, outcome = waiting_for_partition(9)
    began_ms = harness.now_ms
    while isinstance(outcome, AppendBlocked):
        outcome = go_on_waiting(harness, outcome, 9)
    assert 1_000 <= harness.now_ms - began_ms < 2_000
    assert isinstance(outcome.error, UnknownTopicOrPartitionError)
    assert outcome.error.recovery == "fix"
    assert "topic 'topic' has no partition 9: its highest partition number is 2" in str(
        outcome.error
    )
    assert harness.state is TransactionState.ABORTABLE_ERROR


def test_answers_to_earlier_questions_do_not_count_against_a_partition():
    harness, first = waiting_for_partition(9)
    for _ in range(30):  # the first call's answers, for three seconds
        again = go_on_waiting(harness, first, 9)
        if not isinstance(again, AppendBlocked):
            break
        first = again
    harness.abort()
    harness.begin_transaction()
    outcome = harness.try_send(partition=9)
    assert isinstance(outcome, AppendBlocked)
    assert outcome.missed_ms is None
    outcome = go_on_waiting(harness, outcome, 9)
    assert isinstance(outcome, AppendBlocked)
    assert outcome.missed_ms is not None


def test_a_partition_that_is_added_while_a_record_waits_for_it_is_written_to():
    harness, outcome = waiting_for_partition(3)
    for _ in range(3):
        outcome = go_on_waiting(harness, outcome, 3)
        assert isinstance(outcome, AppendBlocked)
    harness.client.topics["topic"] = 4
    while isinstance(outcome, AppendBlocked):
        outcome = go_on_waiting(harness, outcome, 3)
    assert outcome.error is None
    assert partition_of(outcome) == 3


def test_the_time_out_of_a_topic_that_the_cluster_denies_has_that_as_its_cause():
    harness = with_three_partitions()
    blocked = harness.try_send("missing")
    assert isinstance(blocked, AppendBlocked)
    harness.run_until(partial(harness.core.append_can_proceed, blocked))
    future = harness.core.time_out_append(blocked, "missing", None, None, 1_000, harness.now_ms)
    assert isinstance(future.error, KafkaTimeoutError)
    assert isinstance(future.error.__cause__, UnknownTopicOrPartitionError)


def test_partitions_and_their_leaders_are_returned():
    harness = CoreHarness(node_count=2)
    assert harness.core.partitions_for("topic", 0) is None
    assert not harness.core.is_topic_decided("topic")
    harness.run_until(lambda: harness.core.is_topic_decided("topic"))
    partitions = harness.core.partitions_for("topic", 0)
    assert partitions is not None
    assert [p.leader_id for p in partitions] == [0, 1]


def test_a_refused_topics_partitions_raise():
    harness = CoreHarness()
    harness.client.topic_errors["secret"] = 29
    assert harness.core.partitions_for("secret", 0) is None
    harness.run_until(lambda: harness.core.is_topic_decided("secret"))
    with pytest.raises(KafkaError, match="secret"):
        harness.core.partitions_for("secret", 0, has_asked=True)


def test_an_old_refusal_is_not_raised_by_partitions_for():
    harness = CoreHarness()
    harness.client.topic_errors["secret"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert harness.core.partitions_for("secret", harness.now_ms) is None
    harness.run_until(lambda: harness.core.is_topic_decided("secret"))
    harness.client.topic_errors.clear()
    harness.client.topics["secret"] = 1
    assert harness.core.partitions_for("secret", harness.now_ms) is None
    harness.run_until(lambda: harness.core.is_topic_decided("secret"))
    partitions = harness.core.partitions_for("secret", harness.now_ms, has_asked=True)
    assert partitions is not None
    assert [info.partition for info in partitions] == [0]


def test_a_refusal_of_long_ago_is_asked_about_again():
    # It came with a refresh that nobody waited for, and the topic may be allowed again. In Java
    # a send asks first, too.
    harness = with_three_partitions()
    harness.client.topic_errors["secret"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert harness.core.partitions_for("secret", harness.now_ms) is None
    harness.run_until(lambda: harness.core.is_topic_decided("secret"))
    harness.client.topic_errors.clear()
    harness.client.topics["secret"] = 1
    harness.client.prepare_produce(base_offset=3)
    future = harness.send("secret")
    harness.run_until(future.done)
    assert future.result().offset == 3


def test_a_topic_name_that_no_request_can_carry_fails_its_record_alone():
    harness = CoreHarness(transactional_id=None)
    harness.start_idempotent()
    assert isinstance(harness.send("half a pair: \ud83d").exception(), InvalidTopicError)
    with pytest.raises(InvalidTopicError, match="surrogates"):
        harness.core.partitions_for("half a pair: \ud83d", harness.now_ms)
    asked = [topic for request in harness.client.sent(ApiKey.METADATA) for topic in request.topics]
    assert asked == ["topic"]
    harness.client.prepare_produce(base_offset=3)
    future = harness.send()
    harness.run_until(future.done)
    assert future.result().offset == 3


@pytest.mark.parametrize("reason", ["metadata", "memory"])
def test_a_record_that_waited_belongs_to_no_later_transaction(reason):
    # Another thread ends the transaction, and begins the next one; Java's appends it there.
    harness = CoreHarness(buffer_memory=20_000, batch_size=16_384)
    harness.start_transaction()
    harness.know_topics()
    topic = "topic" if reason == "memory" else "slow"
    if reason == "memory":
        harness.send(value=b"x" * 10_000)
    blocked = harness.try_send(topic, value=b"x" * 15_000)
    assert isinstance(blocked, AppendBlocked)
    harness.abort()
    harness.begin_transaction()
    with pytest.raises(TransactionAbortedError, match="was not sent") as told:
        harness.try_send(topic, blocked=blocked)
    assert told.value.recovery == "resume"  # the transaction that is open now is another one
    with pytest.raises(TransactionAbortedError, match="was not sent"):
        harness.core.time_out_append(blocked, topic, None, None, 1, harness.now_ms)
    assert harness.state is TransactionState.IN_TRANSACTION
    assert harness.core.metrics()["waiting-threads"] == 0


def test_the_places_of_records_sent_to_two_partitions_do_not_mix():
    harness = with_three_partitions(linger_ms=5)
    first = [harness.send(partition=0) for _ in range(2)]
    second = [harness.send(partition=1) for _ in range(2)]
    harness.client.prepare_produce(base_offset=10)
    harness.commit()
    assert [f.result().offset for f in first] == [10, 11]
    assert [f.result().topic_partition for f in second] == [TP1, TP1]
    assert [f.result().topic_partition for f in first] == [TP0, TP0]
    assert TopicPartition("topic", 2) not in {b.topic_partition for b in harness.sent_batches()}


@pytest.mark.conformance("5.05")
@pytest.mark.parametrize("room", ["in its batch", "none"])
def test_nothing_is_appended_after_the_close_though_it_waited_before(room):
    harness = with_three_partitions(buffer_memory=100_000, batch_size=65_536)
    harness.send(partition=0)
    blocked = harness.try_send(partition=1)
    assert isinstance(blocked, AppendBlocked)
    accumulator = harness.core._accumulator
    accumulator.close()
    with pytest.raises(KafkaError, match="closed while the record was being sent"):
        harness.try_send(partition=0 if room == "in its batch" else 1, blocked=blocked)
    with pytest.raises(KafkaError, match="closed while the record was being sent"):
        harness.try_send(partition=0 if room == "in its batch" else 1)  # on the short way
    assert [batch.record_count for batch in accumulator._incomplete] == [1]
    assert not accumulator.pool.waiting


@pytest.mark.conformance("2.24")
def test_a_close_while_a_record_waits_raises_and_leaves_the_transaction_alone():
    harness = with_three_partitions(buffer_memory=100_000, batch_size=65_536)
    harness.send(partition=0)
    blocked = harness.try_send(partition=1)
    harness.core.initiate_close(0)
    with pytest.raises(KafkaError, match="closed while the record was being sent"):
        harness.try_send(partition=1, blocked=blocked)
    assert harness.state is TransactionState.IN_TRANSACTION
    assert harness.manager.machine.last_error is None


@pytest.mark.parametrize("is_compressed_before", [False, True])
def test_full_batches_may_be_compressed_before_the_first_step_that_can_send_them(
    is_compressed_before,
):
    harness = with_three_partitions(batch_size=2_000, compression_type="gzip", linger_ms=1_000)
    assert not harness.core.has_full_batches
    futures = [harness.send(value=b"x" * 900, partition=0) for _ in range(5)]
    assert harness.core.has_full_batches
    if is_compressed_before:
        lent = harness.core.lend_full_batch(0)  # to a thread that waits
        harness.core.run_once(0)
        assert harness.core.awaits_codec
        lent.compress()
        while harness.core.has_full_batches:
            for sealed in harness.core.take_full_batches():
                assert sealed is not lent
                sealed.compress()
        assert not harness.core.has_full_batches
    harness.run_for(1_500)
    sent = [len(batch.records) for batch in harness.sent_batches()]
    assert sum(sent) == len(futures)
    assert len(sent) > 1
    assert not harness.core.has_full_batches
    assert not harness.core._accumulator.full_batches._sealed


def test_a_record_refused_while_it_waited_for_memory_leaves_its_place_in_the_queue():
    # It would hold up every later record of the producer, for ever.
    harness = with_three_partitions(buffer_memory=100_000, batch_size=65_536)
    harness.send(partition=0)
    blocked = harness.try_send(partition=1)
    assert isinstance(blocked, AppendBlocked)
    harness.manager.progress.transition_to_abortable_error(KafkaError("meanwhile"))
    with pytest.raises(KafkaError, match="meanwhile"):
        harness.try_send(partition=1, blocked=blocked)
    assert not harness.core._accumulator.pool.waiting


def test_a_record_that_waits_for_metadata_instead_leaves_the_queue_for_memory():
    harness = with_three_partitions(buffer_memory=100_000, batch_size=65_536)
    harness.send(partition=0)
    blocked = harness.try_send(partition=1)
    harness.core._metadata.topics.clear()
    again = harness.try_send(partition=1, blocked=blocked)
    assert isinstance(again, AppendBlocked)
    assert again.reason is BlockReason.METADATA
    assert not harness.core._accumulator.pool.waiting


def test_a_key_waits_for_metadata_while_they_do_not_know_its_topic():
    harness = with_three_partitions(linger_ms=1_000)
    harness.send(key=b"key", partition=None)
    harness.client.topics.pop("topic")
    harness.core._metadata.request_update()
    harness.run_until(lambda: "topic" not in harness.core._metadata.topics)
    blocked = harness.try_send(key=b"key", partition=None)
    assert isinstance(blocked, AppendBlocked)
    assert blocked.reason is BlockReason.METADATA


def test_a_record_without_key_that_waited_for_memory_joins_another_waiters_batch():
    harness = with_three_partitions(
        topics={"topic": 3, "other": 1},
        buffer_memory=100_000,
        batch_size=65_536,
        linger_ms=60_000,
    )
    harness.send("other")
    waits = [harness.try_send(partition=None), harness.try_send(partition=None)]
    assert all(isinstance(wait, AppendBlocked) for wait in waits)
    harness.settle()
    harness.client.answer_produce(harness.client.waiting(ApiKey.PRODUCE)[0])
    harness.settle()
    sent = [harness.try_send(partition=None, blocked=wait) for wait in waits]
    assert len({partition_of(future) for future in sent}) == 1
    assert not harness.core._accumulator.pool.waiting


def test_a_record_that_finds_no_memory_wakes_the_sender():
    # Lingering batches are sent then, which frees memory.
    harness = CoreHarness(linger_ms=60_000, buffer_memory=40_000, batch_size=16_384)
    harness.start_transaction()
    harness.know_topics()
    for partition in (0, 1):
        harness.send(value=b"x" * 16_000, partition=partition)
    harness.settle()
    assert not harness.core.needs_wakeup
    assert isinstance(harness.try_send(value=b"x" * 16_000, partition=0), AppendBlocked)
    assert harness.core.needs_wakeup


def test_a_step_is_due_once_a_batch_is_compressed_if_a_record_waits_for_memory():
    harness = with_three_partitions(buffer_memory=100_000, batch_size=65_536)
    harness.send(partition=0)
    assert not harness.core.awaits_codec
    harness.try_send(partition=1)
    assert harness.core.awaits_codec
