"""Many rows fill batches as the same records do one by one, and are refused as they are."""

from __future__ import annotations

from array import array
from functools import partial

import pytest

from tests.core.sending import in_transaction, with_three_partitions
from tests.harness import TP0, TP1, CoreHarness
from txnproducer._core.append.row_appender import RowRun
from txnproducer._core.batches.append_blocked import AppendBlocked, BlockReason
from txnproducer._core.transactions.state import TransactionState
from txnproducer._protocol.messages import ApiKey
from txnproducer._record.implementation import Rows
from txnproducer.errors import (
    BufferExhaustedError,
    IllegalStateError,
    KafkaError,
    ProducerFencedError,
    RecordTooLargeError,
    TransactionAbortedError,
)


def rows_of(records):
    """Return rows of records: timestamp, key, value, headers."""
    return Rows(
        len(records),
        tuple(record[2] for record in records),
        tuple(record[1] for record in records),
        tuple(record[3] for record in records),
        array("q", [record[0] for record in records]),
    )


def run_of(harness, values, partition=0, order=None):
    """Return a run of rows that have a value alone."""
    rows = Rows(len(values), tuple(values), None, None, harness.now_ms)
    places = None if order is None else array("i", order)
    stop = len(values) if order is None else len(order)
    return RowRun(rows, places, partition, harness.core.transaction_number, 0, stop)


def append(harness, run, topic="topic", blocked=None):
    return harness.core.rows.append(topic, run, harness.now_ms, blocked)


def append_all(harness, run, topic="topic"):
    """Append all rows, with the waits that they need. Return the number that each batch took."""
    taken = []
    outcome = None
    while run.next < run.stop:
        outcome = append(harness, run, topic, outcome)
        if isinstance(outcome, AppendBlocked):
            assert harness.wait_until(partial(harness.core.append_can_proceed, outcome), 60)
        else:
            taken.append(outcome)
            outcome = None
    return taken


def is_nothing_appended(harness):
    pool = harness.core._accumulator.pool
    return not harness.core._accumulator.has_incomplete and not pool.waiting


RECORDS = [
    (
        1_000 + n % 5,
        None if n % 3 else b"key-%d" % n,
        None if n % 7 == 6 else b"v" * (n * 37 % 400),
        (("n", b"%d" % n),) if n % 4 == 0 else (),
    )
    for n in range(200)
]


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("partition", [1, None])
@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize("records_before", [0, 3])
def test_rows_fill_the_batches_that_their_records_fill_one_by_one(
    compression, partition, is_ordered, records_before
):
    sent = []
    order = list(range(199, -1, -1)) if is_ordered else list(range(200))
    for is_by_row in (False, True):
        harness = with_three_partitions(
            linger_ms=5,
            batch_size=2_000,
            compression_type=compression,
            partitioner_ignore_keys=True,
        )
        for _ in range(200):
            harness.client.prepare_produce()
        for _ in range(records_before):
            harness.send(partition=partition)
        if is_by_row:
            places = array("i", order) if is_ordered else None
            number = harness.core.transaction_number
            append_all(harness, RowRun(rows_of(RECORDS), places, partition, number, 0, 200))
        else:
            for row in order:
                stamp, key, value, headers = RECORDS[row]
                harness.send("topic", value, key, partition, headers=headers, timestamp_ms=stamp)
        harness.commit()
        sent.append(harness.sent_batches())
    assert sent[0] == sent[1]
    assert sum(len(batch.records) for batch in sent[1]) == 200 + records_before
    assert len(sent[1]) > 5


def test_each_call_takes_the_rows_of_one_batch_and_says_which():
    harness = with_three_partitions(linger_ms=1_000, batch_size=1_000)
    run = run_of(harness, [b"x" * 100] * 20)
    harness.send(partition=0, value=b"x" * 100)
    taken = append_all(harness, run)
    assert [(t.first_index, t.start, t.count) for t in taken] == [(1, 0, 7), (0, 7, 8), (0, 15, 5)]
    assert len({id(t.result) for t in taken}) == 3
    assert [t.result.topic_partition for t in taken] == [TP0] * 3
    assert (run.next, run.stop) == (20, 20)


def test_a_run_is_a_part_of_an_order():
    harness = with_three_partitions(linger_ms=5)
    run = run_of(harness, [b"0", b"1", b"2", b"3"], order=[3, 1, 0, 2])
    run.next, run.stop = 1, 3
    [taken] = append_all(harness, run)
    assert (taken.first_index, taken.start, taken.count) == (0, 1, 2)
    harness.client.prepare_produce()
    harness.commit()
    assert [batch.values for batch in harness.sent_batches()] == [[b"1", b"0"]]


def test_rows_without_partition_stay_with_one_until_its_batch_is_full_and_move_on():
    harness = in_transaction(linger_ms=1_000, batch_size=1_000, topics={"topic": 4})
    taken = append_all(harness, run_of(harness, [b"x" * 100] * 400, partition=None))
    assert {t.count for t in taken} == {8}
    assert {t.result.topic_partition.partition for t in taken} == {0, 1, 2, 3}


def test_rows_for_a_partition_join_the_transaction_and_records_their_batch():
    harness = with_three_partitions(linger_ms=5)
    harness.client.set_transaction_version(1)
    [taken] = append_all(harness, run_of(harness, [b"0", b"1"], partition=1))
    assert harness.core.needs_wakeup
    future = harness.send(partition=1)
    harness.client.prepare_produce(base_offset=10)
    harness.commit()
    assert future.result().offset == 12
    assert taken.result.base_offset == 10
    assert [batch.topic_partition for batch in harness.sent_batches()] == [TP1]


def test_rows_that_fill_a_batch_to_the_last_byte_wake_the_sender():
    """The first row alone would have lingered as long as the batch before it."""
    harness = with_three_partitions(linger_ms=1_000, batch_size=200)
    harness.send(partition=0)
    harness.run_for(10)
    # 61 bytes are the batch's own, 7 those of a small record, and 9 those of a larger one.
    rows = [b"x" * 50, b"x" * (200 - 61 - 57 - 9)]
    assert len(append_all(harness, run_of(harness, rows, partition=1))) == 1
    assert harness.core.needs_wakeup
    append_all(harness, run_of(harness, [b"x"], partition=2))
    harness.core.needs_wakeup = False
    append_all(harness, run_of(harness, [b"x"], partition=2))
    assert not harness.core.needs_wakeup


def test_rows_that_fill_the_batch_with_room_of_another_partition_wake_the_sender():
    harness = in_transaction(linger_ms=60_000, batch_size=1_000, topics={"topic": 2})
    for partition in range(2):
        harness.send(partition=partition, value=b"x" * 100)
    harness.run_for(10)
    harness.core.needs_wakeup = False
    # 61 bytes are the batch's own, and 9 those of a record beside its value.
    run = run_of(harness, [b"x" * (1_000 - 61 - 109 - 9)], partition=1)
    [taken] = append_all(harness, run)
    assert taken.first_index == 1
    assert harness.core._accumulator.topics["topic"].queues[1].batches[0].is_full
    assert harness.core.needs_wakeup


def test_a_large_row_gets_a_batch_of_its_own():
    harness = with_three_partitions(linger_ms=1_000, batch_size=1_000)
    taken = append_all(harness, run_of(harness, [b"s", b"x" * 5_000, b"s", b"s"]))
    assert [t.count for t in taken] == [1, 1, 2]


def test_the_rows_of_an_idempotent_producer_need_no_transaction():
    harness = CoreHarness(transactional_id=None)
    harness.start_idempotent()
    [taken] = append_all(harness, run_of(harness, [b"0", b"1"]))
    harness.client.prepare_produce(base_offset=3)
    harness.run_until(lambda: taken.result.is_done)
    assert [batch.values for batch in harness.sent_batches()] == [[b"0", b"1"]]


def test_rows_without_idempotence_go_the_same_way():
    harness = CoreHarness(transactional_id=None, enable_idempotence=False)
    harness.know_topics()
    [taken] = append_all(harness, run_of(harness, [b"0", b"1"]))
    assert taken.count == 2


def test_rows_join_the_batch_with_room_of_the_partition_that_is_chosen_next():
    harness = in_transaction(linger_ms=60_000, batch_size=1_000, topics={"topic": 4})
    for partition in range(4):
        harness.send(partition=partition, value=b"x" * 100)
    taken = append_all(harness, run_of(harness, [b"x" * 100] * 100, partition=None))
    joined = [t.result.topic_partition.partition for t in taken if t.first_index == 1]
    assert sorted(joined) == [0, 1, 2, 3]


def test_rows_after_an_interrupted_call_meet_the_error_that_it_left():
    harness = with_three_partitions(linger_ms=1_000)
    run = run_of(harness, [b"0"])
    harness.manager.set_half_way(True)
    with pytest.raises(KafkaError, match="interrupted a call that sends offsets"):
        append(harness, run)
    assert run.next == 0
    assert is_nothing_appended(harness)


def test_rows_are_refused_while_the_transaction_is_being_leased():
    harness = with_three_partitions(linger_ms=1_000)
    run = run_of(harness, [b"0"])
    harness.core.begin_lease(2)
    with pytest.raises(IllegalStateError, match=r"send\(\) is refused"):
        append(harness, run)
    assert run.next == 0
    assert is_nothing_appended(harness)


class CountedRows:
    """Rows that count how often a batch was filled with them, or tried."""

    def __init__(self, rows):
        self._rows = rows
        self.fill_count = 0

    def append_to(self, *arguments):
        self.fill_count += 1
        return self._rows.append_to(*arguments)

    def record(self, row):
        return self._rows.record(row)


def counted_run_of(harness, values):
    run = run_of(harness, values)
    run.rows = CountedRows(run.rows)
    return run, run.rows


def test_a_full_batch_is_not_tried_again():
    harness = with_three_partitions(linger_ms=1_000, batch_size=1_000)
    run, rows = counted_run_of(harness, [b"x" * 100] * 80)
    assert len(append_all(harness, run)) == rows.fill_count == 10


def test_after_a_row_larger_than_a_batch_no_batch_is_filled_for_nothing():
    harness = with_three_partitions(linger_ms=1_000, batch_size=1_000)
    run, rows = counted_run_of(harness, [b"x" * 2_000] * 5)
    assert len(append_all(harness, run)) == 5
    assert rows.fill_count == 1 + 5


def test_without_memory_no_batch_is_filled():
    harness = with_three_partitions(buffer_memory=2_000, batch_size=1_000, linger_ms=60_000)
    run, rows = counted_run_of(harness, [b"x" * 100] * 30)
    for _ in range(2):
        assert not isinstance(append(harness, run), AppendBlocked)
    assert isinstance(append(harness, run), AppendBlocked)
    assert rows.fill_count == 2


# --- waiting


def test_rows_wait_for_a_partition_that_is_not_known():
    harness = with_three_partitions()
    blocked = append(harness, run_of(harness, [b"0"], partition=3))
    assert isinstance(blocked, AppendBlocked)
    assert blocked.reason is BlockReason.METADATA
    assert is_nothing_appended(harness)


def test_rows_wait_for_metadata_and_nothing_is_appended_before():
    harness = CoreHarness()
    harness.start_transaction()
    run = run_of(harness, [b"0", b"1"])
    blocked = append(harness, run)
    assert isinstance(blocked, AppendBlocked)
    assert (blocked.reason, run.next) == (BlockReason.METADATA, 0)
    assert is_nothing_appended(harness)
    harness.run_until(lambda: harness.core.append_can_proceed(blocked))
    outcome = append(harness, run, blocked=blocked)
    assert not isinstance(outcome, AppendBlocked)
    assert (outcome.count, run.next) == (2, 2)


def test_rows_wait_for_memory_and_go_on_with_it_where_they_stopped():
    harness = with_three_partitions(buffer_memory=2_000, batch_size=1_000, linger_ms=60_000)
    run = run_of(harness, [b"%d" % n * 100 for n in range(10)] * 3)
    counts = []
    for _ in range(2):
        taken = append(harness, run)
        assert not isinstance(taken, AppendBlocked)
        counts.append(taken.count)
    blocked = append(harness, run)
    assert isinstance(blocked, AppendBlocked)
    assert blocked.reason is BlockReason.MEMORY
    assert run.next == sum(counts)
    harness.settle()
    assert not harness.core.append_can_proceed(blocked)
    harness.client.answer_produce(harness.client.waiting(ApiKey.PRODUCE)[0])
    harness.settle()
    assert harness.core.append_can_proceed(blocked)
    taken = append(harness, run, blocked=blocked)
    assert not isinstance(taken, AppendBlocked)
    assert (taken.start, taken.first_index) == (sum(counts), 0)
    assert not harness.core._accumulator.pool.waiting


def test_rows_that_waited_for_memory_join_the_batch_of_a_record_that_did_too():
    harness = with_three_partitions(buffer_memory=100_000, batch_size=65_536, linger_ms=60_000)
    harness.send(partition=0)
    other = harness.try_send(partition=1)
    run = run_of(harness, [b"0", b"1"], partition=1)
    blocked = append(harness, run)
    assert isinstance(blocked, AppendBlocked)
    assert isinstance(other, AppendBlocked)
    harness.settle()
    harness.client.answer_produce(harness.client.waiting(ApiKey.PRODUCE)[0])
    harness.settle()
    assert not isinstance(harness.try_send(partition=1, blocked=other), AppendBlocked)
    taken = append(harness, run, blocked=blocked)
    assert not isinstance(taken, AppendBlocked)
    assert (taken.first_index, taken.count) == (1, 2)
    assert not harness.core._accumulator.pool.waiting


def test_rows_that_time_out_waiting_for_memory_make_the_transaction_abortable():
    harness = with_three_partitions(buffer_memory=100_000, batch_size=65_536)
    harness.send(partition=0)
    blocked = append(harness, run_of(harness, [b"0"], partition=1))
    assert isinstance(blocked, AppendBlocked)
    future = harness.core.time_out_append(blocked, "topic", 1, None, 9, harness.now_ms)
    assert isinstance(future.error, BufferExhaustedError)
    assert harness.state is TransactionState.ABORTABLE_ERROR
    assert not harness.core._accumulator.pool.waiting


# --- refusals


def test_rows_of_a_closed_producer_are_refused():
    harness = with_three_partitions(linger_ms=1_000)
    run = run_of(harness, [b"0"])
    harness.core.force_close(harness.now_ms)
    with pytest.raises(KafkaError, match="closed"):
        append(harness, run)
    assert run.next == 0


@pytest.mark.parametrize("begin", ["nothing", "commit", "abort"])
def test_without_an_open_transaction_nothing_is_appended(begin):
    harness = CoreHarness()
    harness.init_transactions()
    harness.know_topics()
    if begin != "nothing":
        harness.begin_transaction()
        harness.client.prepare_produce()
        harness.send()
        getattr(harness, begin)()
    run = run_of(harness, [b"0"])
    with pytest.raises(IllegalStateError):
        append(harness, run)
    assert run.next == 0
    assert is_nothing_appended(harness)
    assert harness.state is TransactionState.READY


@pytest.mark.parametrize("call", ["begin_commit", "begin_abort"])
def test_rows_are_refused_while_the_transaction_ends_though_a_batch_is_open(call):
    harness = with_three_partitions(linger_ms=1_000)
    harness.send()
    run = run_of(harness, [b"0"])
    batch = harness.core._accumulator.topics["topic"].queues[0].open_batch
    getattr(harness.core, call)()
    with pytest.raises(IllegalStateError):
        append(harness, run)
    assert run.next == 0
    assert batch.record_count == 1


@pytest.mark.parametrize("is_batch_open", [False, True])
def test_in_an_abortable_error_rows_raise_its_cause(is_batch_open):
    harness = with_three_partitions(linger_ms=1_000)
    if is_batch_open:
        harness.send()
    run = run_of(harness, [b"0"])
    harness.manager.progress.transition_to_abortable_error(KafkaError("a reason"))
    with pytest.raises(KafkaError, match="a reason"):
        append(harness, run)
    assert run.next == 0


def test_the_rows_of_a_fenced_producer_give_a_failed_future():
    harness = with_three_partitions()
    run = run_of(harness, [b"0"])
    harness.manager.progress.transition_to_fatal_error(ProducerFencedError("fenced"))
    failed = append(harness, run)
    assert isinstance(failed.error, ProducerFencedError)
    assert run.next == 0
    assert is_nothing_appended(harness)


def test_a_row_too_large_fails_and_makes_the_transaction_abortable():
    harness = with_three_partitions(max_request_size=1_000, linger_ms=1_000)
    run = run_of(harness, [b"small", b"x" * 2_000])
    append(harness, run)
    failed = append(harness, run)
    assert isinstance(failed.error, RecordTooLargeError)
    assert run.next == 1
    assert harness.state is TransactionState.ABORTABLE_ERROR


@pytest.mark.parametrize("is_blocked", [False, True])
@pytest.mark.parametrize("is_batch_open", [False, True])
def test_rows_belong_to_no_later_transaction(is_blocked, is_batch_open):
    harness = with_three_partitions(buffer_memory=20_000, batch_size=16_384, linger_ms=1_000)
    run = run_of(harness, [b"x" * 15_000], partition=1)
    blocked = None
    if is_blocked:
        harness.send(value=b"x" * 10_000)
        outcome = append(harness, run)
        assert isinstance(outcome, AppendBlocked)
        blocked = outcome
    harness.abort()
    harness.begin_transaction()
    if is_batch_open and not is_blocked:
        harness.send(partition=1, value=b"of the next one")
    with pytest.raises(TransactionAbortedError, match="was not sent") as told:
        append(harness, run, blocked=blocked)
    assert told.value.recovery == "resume"
    assert run.next == 0
    assert harness.state is TransactionState.IN_TRANSACTION
    if blocked is not None:
        harness.core.give_up_append(blocked)
    assert not harness.core._accumulator.pool.waiting


@pytest.mark.parametrize("forget", ["topic", "queue"])
def test_a_batch_that_is_not_found_again_is_said_aloud(forget, monkeypatch):
    # It cannot happen; were it to, rows would be in no future.
    harness = with_three_partitions(linger_ms=1_000, compression_type="gzip")
    run = run_of(harness, [b"0"])
    topics = {} if forget == "topic" else {"topic": type("None", (), {"queues": {}})}
    monkeypatch.setattr(harness.core.rows, "_topics", topics)
    with pytest.raises(IllegalStateError, match="a record of 'topic' was taken by no batch"):
        append(harness, run)


# --- before any row is sent


def check_partition(harness, partition, blocked=None):
    return harness.core.check_partition("topic", partition, harness.now_ms, blocked)


def test_a_partition_that_is_known_is_there():
    harness = with_three_partitions()
    assert check_partition(harness, 2) is None
    assert is_nothing_appended(harness)


def test_a_partition_is_waited_for_as_a_record_of_it_waits():
    harness = CoreHarness(topics={"topic": 3})
    harness.start_transaction()
    blocked = check_partition(harness, 2)
    assert isinstance(blocked, AppendBlocked)
    assert blocked.reason is BlockReason.METADATA
    harness.run_until(partial(harness.core.append_can_proceed, blocked))
    assert check_partition(harness, 2, blocked) is None
    blocked = check_partition(harness, 3, blocked)
    assert isinstance(blocked, AppendBlocked)
    failed = harness.core.time_out_append(blocked, "topic", 3, None, 9, harness.now_ms)
    assert "topic 'topic' has no partition 3" in str(failed.error)
    assert harness.state is TransactionState.ABORTABLE_ERROR


def test_a_partition_that_there_is_not_is_refused_where_a_record_of_it_is():
    harness = with_three_partitions()
    blocked = check_partition(harness, 3)
    assert isinstance(blocked, AppendBlocked)
    harness.abort()
    with pytest.raises(IllegalStateError):
        check_partition(harness, 3)
    harness.begin_transaction()
    with pytest.raises(TransactionAbortedError):
        check_partition(harness, 3, blocked)
    harness.core.force_close(harness.now_ms)
    with pytest.raises(KafkaError, match="closed"):
        check_partition(harness, 3)


def test_the_state_is_checked_even_without_rows():
    harness = with_three_partitions()
    harness.core.check_can_append()
    harness.abort()
    with pytest.raises(IllegalStateError):
        harness.core.check_can_append()
    harness.begin_transaction()
    harness.manager.progress.transition_to_fatal_error(ProducerFencedError("fenced"))
    with pytest.raises(ProducerFencedError):
        harness.core.check_can_append()
    CoreHarness(transactional_id=None, enable_idempotence=False).core.check_can_append()


def test_a_row_in_a_batch_that_is_not_found_again_counts_as_taken(monkeypatch):
    harness = with_three_partitions(linger_ms=1_000, compression_type="gzip")
    run = run_of(harness, [b"0", b"1"])
    monkeypatch.setattr(harness.core.rows, "_topics", {})
    with pytest.raises(IllegalStateError, match="taken by no batch"):
        append(harness, run)
    assert run.next == 1
