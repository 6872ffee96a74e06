"""The places of the records of one call, by row: offsets, partitions, errors, and the waits."""

from __future__ import annotations

from array import array
from fractions import Fraction
from typing import Any

import pytest

from tests.core.sending import with_three_partitions
from tests.core.support import NoWaiting
from txnproducer._core.append.row_appender import RowRun
from txnproducer._core.batches.append_blocked import AppendBlocked
from txnproducer._core.batches.batch_future import BatchMetadata, FutureBatchMetadata, RowsTaken
from txnproducer._core.batches.results import FutureRecordMetadata, ProduceRequestResult
from txnproducer._protocol.messages import (
    ApiKey,
    ProducePartitionResponse,
    ProduceResponse,
    RecordError,
)
from txnproducer._record.implementation import Rows
from txnproducer.errors import (
    ErrorCode,
    InvalidRecordError,
    KafkaError,
    KafkaTimeoutError,
    RecordTooLargeError,
    TopicAuthorizationError,
)
from txnproducer.records import RecordMetadata, TopicPartition

PRODUCE = ApiKey.PRODUCE


class NoWaiter(NoWaiting):
    """Notes for how long it was asked to wait."""

    def __init__(self):
        self.timeouts = []

    def wait_until(self, is_done, timeout_s):
        self.timeouts.append(timeout_s)
        return is_done()


def send_rows(harness, values, places=None, order=None):
    """Send rows as the shell does: runs of a partition each, in turns. Return their future.

    Args:
        harness: in a transaction.
        values: of the rows.
        places: of each run its partition, start and stop; None: one run, where load decides.
        order: of the rows.
    """
    future = FutureBatchMetadata("topic", len(values), harness)
    rows = Rows(len(values), tuple(values), None, None, harness.now_ms)
    order = None if order is None else array("i", order)
    number = harness.core.transaction_number
    runs = [
        RowRun(rows, order, partition, number, start, stop)
        for partition, start, stop in places or [(None, 0, len(values))]
    ]
    while runs:
        run = runs.pop(0)
        taken = harness.core.rows.append("topic", run, harness.now_ms)
        assert not isinstance(taken, AppendBlocked | FutureRecordMetadata)
        future.add(taken, order, 0)
        if run.next < run.stop:
            runs.append(run)
    return future


def written_by_value(harness, base_offsets):
    """Return for each value that was accepted where it is, from the bytes that were sent."""
    return {
        record.value: (batch.topic_partition.partition, base_offset + index)
        for batch, base_offset in zip(harness.sent_batches(), base_offsets, strict=True)
        if base_offset is not None
        for index, record in enumerate(batch.records)
    }


def ended(partition, count, base_offset=-1, log_append_time_ms=-1, error=None):
    """Return the result of a batch of so many rows."""
    result = ProduceRequestResult(TopicPartition("topic", partition), NoWaiter())
    result.set(base_offset, log_append_time_ms, None if error is None else lambda index: error)
    result.done()
    return RowsTaken(result, 0, 0, count)


# --- where they went


def test_consecutive_rows_have_the_offsets_of_their_batches():
    harness = with_three_partitions(linger_ms=10, batch_size=1_000)
    values = [b"%04d" % n * 30 for n in range(20)]
    harness.send(partition=1)  # so that the first row is not the batch's first
    future = send_rows(harness, values, [(1, 0, 20)])
    for base_offset in (100, 200, 300):
        harness.client.prepare_produce(base_offset=base_offset)
    metadata = future.result(60)
    written = written_by_value(harness, (100, 200, 300))
    assert list(metadata.partitions) == [1] * 20
    assert list(metadata.offsets) == [written[value][1] for value in values]
    assert metadata.offsets[0] == 101
    assert (metadata.offsets.typecode, metadata.partitions.typecode) == ("q", "i")


def test_ordered_rows_have_the_partitions_and_offsets_that_they_were_written_to():
    harness = with_three_partitions(linger_ms=10, batch_size=1_000)
    values = [b"%04d" % n * 30 for n in range(20)]
    order = sorted(range(20), key=lambda row: (row % 3, row))
    future = send_rows(harness, values, [(0, 0, 7), (1, 7, 14), (2, 14, 20)], order)
    assert len({id(piece.taken.result) for piece in future._pieces}) == 3
    harness.client.prepare_produce(base_offset=50)
    metadata = future.result(60)
    written = written_by_value(harness, [50] * 3)
    assert [(row.partition, row.offset) for row in metadata] == [written[v] for v in values]
    assert list(metadata.partitions) == [row % 3 for row in range(20)]


def test_the_rows_of_a_second_block_follow_those_of_the_first():
    future = FutureBatchMetadata("topic", 5, NoWaiter())
    future.add(ended(0, 2, base_offset=10), None, 0)
    future.add(ended(1, 3, base_offset=20), array("i", [2, 0, 1]), 2)
    metadata = future.result()
    assert list(metadata.offsets) == [10, 11, 21, 22, 20]
    assert list(metadata.partitions) == [0, 0, 1, 1, 1]


@pytest.mark.parametrize("is_ordered", [False, True])
def test_an_offset_that_the_broker_does_not_know_stays_unknown(is_ordered):
    order = array("i", [1, 0]) if is_ordered else None
    future = FutureBatchMetadata("topic", 2, NoWaiter())
    future.add(ended(1, 2, base_offset=-1, log_append_time_ms=77), order, 0)
    assert list(future.result()) == [RecordMetadata("topic", 1, -1, 77)] * 2


@pytest.mark.parametrize("is_ordered", [False, True])
def test_the_brokers_timestamp_is_returned_and_none_of_our_own(is_ordered):
    order = array("i", [1, 0]) if is_ordered else None
    future = FutureBatchMetadata("topic", 3, NoWaiter())
    future.add(ended(0, 2, base_offset=5, log_append_time_ms=99), order, 0)
    future.add(ended(1, 1, base_offset=6), None, 2)
    assert [row.timestamp_ms for row in future.result()] == [99, 99, -1]


@pytest.mark.parametrize("is_ordered", [False, True])
def test_the_rows_of_a_batch_that_was_split_have_the_offsets_of_its_parts(is_ordered):
    harness = with_three_partitions(linger_ms=10, batch_size=6_000)
    values = [b"%03d" % n * 300 for n in range(6)]
    order = [5, 3, 1, 0, 2, 4] if is_ordered else None
    future = send_rows(harness, values, [(0, 0, 6)], order)
    harness.run_until(lambda: harness.client.sent(PRODUCE))
    base_offsets: list[int | None] = []
    offset = 1_000
    while not future.done():
        [request] = harness.client.waiting(PRODUCE)
        count = harness.sent_batches()[-1].header.record_count
        if count > 1:
            harness.client.answer_produce(request, ErrorCode.MESSAGE_TOO_LARGE)
            base_offsets.append(None)
        else:
            harness.client.answer_produce(request, base_offset=offset)
            base_offsets.append(offset)
            offset += 10
        harness.settle()
    assert None in base_offsets
    written = written_by_value(harness, base_offsets)
    metadata = future.result()
    assert [(row.partition, row.offset) for row in metadata] == [written[v] for v in values]


def test_a_part_of_a_split_without_known_offset_leaves_its_rows_without():
    parent, first, second = (
        ProduceRequestResult(TopicPartition("topic", 2), NoWaiter()) for _ in range(3)
    )
    parent.split_into([(0, first), (2, second)])
    first.set(-1, -1, None)
    second.set(40, -1, None)
    future = FutureBatchMetadata("topic", 3, NoWaiter())
    future.add(RowsTaken(parent, 0, 0, 3), None, 0)
    first.done()
    assert not future.done()
    second.done()
    assert list(future.result().offsets) == [-1, -1, 40]
    assert list(future.result().partitions) == [2, 2, 2]


# --- what a result is


def test_metadata_are_a_sequence_of_each_rows():
    future = FutureBatchMetadata("topic", 3, NoWaiter())
    future.add(ended(1, 3, base_offset=7), None, 0)
    metadata = future.result()
    rows = [RecordMetadata("topic", 1, offset) for offset in (7, 8, 9)]
    assert isinstance(metadata, BatchMetadata)
    assert len(metadata) == len(future) == 3
    assert list(metadata) == rows
    assert metadata[0] == rows[0]
    assert metadata[-1] == rows[2]
    assert metadata[1:] == rows[1:]
    assert metadata[::-2] == rows[::-2]
    assert metadata[5:] == []
    assert rows[1] in metadata
    assert metadata.index(rows[2]) == 2
    assert list(reversed(metadata)) == rows[::-1]
    for row in (3, -4):
        with pytest.raises(IndexError):
            metadata[row]
    assert repr(metadata) == "<BatchMetadata of 3 records in 'topic'>"


def test_no_rows_are_done_at_once():
    waiter = NoWaiter()
    future = FutureBatchMetadata("topic", 0, waiter)
    assert future.done()
    assert future.exception() is None
    assert list(future.result(0)) == []
    assert (len(future), future.taken_count, future.errors()) == (0, 0, {})
    assert waiter.timeouts == []


# --- waiting


def test_it_is_done_when_the_last_batch_is():
    harness = with_three_partitions(linger_ms=10)
    future = send_rows(harness, [b"0", b"1", b"2"], [(0, 0, 1), (1, 1, 3)])
    assert (future.taken_count, len(future)) == (3, 3)
    assert not future.done()
    assert repr(future) == "<FutureBatchMetadata of 3 records for 'topic' pending>"
    harness.run_until(lambda: harness.client.waiting(PRODUCE))
    harness.client.answer_produce(harness.client.waiting(PRODUCE)[0])
    harness.settle()
    assert future.done()
    assert future.done()
    assert future.exception(0) is None
    assert repr(future) == "<FutureBatchMetadata of 3 records for 'topic' ended>"


def test_a_lagging_first_batch_is_waited_for():
    lagging = ProduceRequestResult(TopicPartition("topic", 0), NoWaiter())
    future = FutureBatchMetadata("topic", 2, NoWaiter())
    future.add(RowsTaken(lagging, 0, 0, 1), None, 0)
    future.add(ended(1, 1, base_offset=4), None, 1)
    assert not future.done()
    lagging.set(3, -1, None)
    assert not future.done()
    lagging.done()
    assert future.done()
    assert list(future.result().offsets) == [3, 4]


def test_rows_added_later_are_waited_for_too():
    future = FutureBatchMetadata("topic", 2, NoWaiter())
    future.add(ended(0, 1, base_offset=3), None, 0)
    assert future.done()
    later = ProduceRequestResult(TopicPartition("topic", 0), NoWaiter())
    future.add(RowsTaken(later, 0, 0, 1), None, 1)
    assert not future.done()


@pytest.mark.parametrize(
    ("timeout", "said"),
    [
        (2.5, "not delivered within 2.5 s; they"),
        (Fraction(5, 2), "not delivered within 2.5 s; they"),
        (None, "not delivered; they"),
    ],
)
def test_a_wait_that_times_out_says_how_much_is_left_and_that_it_goes_on(timeout, said):
    waiter = NoWaiter()
    future = FutureBatchMetadata("topic", 9, waiter)
    future.add(ended(0, 2, base_offset=3), None, 0)
    for _ in range(2):
        result = ProduceRequestResult(TopicPartition("topic", 0), waiter)
        future.add(RowsTaken(result, 0, 0, 2), None, 0)
    for call in (future.result, future.exception):
        with pytest.raises(KafkaTimeoutError) as caught:
            call(timeout)
        text = str(caught.value)
        assert text.startswith("2 batches of 9 records for 'topic' were ")
        assert said in text
        assert text.endswith("still on their way, so call result() again, or raise the timeout")
    assert waiter.timeouts == [timeout, timeout]


def test_the_time_out_of_one_record_may_be_any_number():
    result = ProduceRequestResult(TopicPartition("topic", 0), NoWaiter())
    half: Any = Fraction(1, 2)
    with pytest.raises(KafkaTimeoutError, match=r"not delivered within 0\.5 s"):
        FutureRecordMetadata(result, 0, 5, 3, 4).result(half)


def test_a_result_that_comes_in_time_is_waited_for():
    harness = with_three_partitions(linger_ms=10)
    future = send_rows(harness, [b"0"])
    with pytest.raises(KafkaTimeoutError):
        future.result(0.001)
    harness.run_until(lambda: harness.client.waiting(PRODUCE))
    harness.client.answer_produce(harness.client.waiting(PRODUCE)[0], base_offset=8)
    assert future.result(1).offsets[0] == 8


# --- errors


@pytest.mark.parametrize("is_ordered", [False, True])
def test_errors_are_reported_by_row_and_the_first_rows_is_raised(is_ordered):
    refused, too_large = KafkaError("refused"), RecordTooLargeError("too large")
    order = array("i", [3, 2, 1, 0, 4]) if is_ordered else None
    future = FutureBatchMetadata("topic", 6, NoWaiter())
    pieces = [(0, 2, refused), (2, 1, None), (3, 2, too_large)]
    for start, count, error in pieces:
        result = ended(0, count, error=error).result
        future.add(RowsTaken(result, 0, start, count), order, 1)
    expected = {1: refused, 2: refused, 4: too_large, 5: too_large}
    if is_ordered:
        expected = {4: refused, 3: refused, 1: too_large, 5: too_large}
    assert future.errors() == expected
    assert future.exception() is expected[1]
    with pytest.raises(KafkaError, match=str(expected[1])):
        future.result()


def test_errors_of_some_rows_are_each_their_own():
    harness = with_three_partitions(linger_ms=10)
    harness.send(partition=0)
    future = send_rows(harness, [b"0", b"1", b"2"], [(0, 0, 3)], [2, 1, 0])
    harness.run_until(lambda: harness.client.waiting(PRODUCE))
    [request] = harness.client.waiting(PRODUCE)
    answer = ProducePartitionResponse(
        TopicPartition("topic", 0),
        ErrorCode.INVALID_RECORD,
        record_errors=(RecordError(2, "the second row's"),),
        error_message="the batch's",
    )
    harness.client.answer(request, ProduceResponse((answer,)))
    harness.settle()
    errors = future.errors()
    assert sorted(errors) == [0, 1, 2]
    assert isinstance(errors[1], InvalidRecordError)
    assert "the second row's" in str(errors[1])
    assert "the second row's" not in str(errors[0])
    assert future.exception() is not None
    assert str(future.exception()) == str(errors[0])


def test_errors_of_the_rows_of_one_part_of_a_split_are_theirs_alone():
    error = KafkaError("refused")
    parent, first, second = (
        ProduceRequestResult(TopicPartition("topic", 2), NoWaiter()) for _ in range(3)
    )
    parent.split_into([(0, first), (2, second)])
    first.set(5, -1, None)
    second.set(-1, -1, lambda index: error)
    future = FutureBatchMetadata("topic", 3, NoWaiter())
    future.add(RowsTaken(parent, 1, 0, 3), None, 0)
    assert future.errors() == {1: error, 2: error}
    for part in (first, second):
        part.done()
    assert future.exception() is error


def test_known_errors_are_reported_before_the_end():
    harness = with_three_partitions(linger_ms=10, node_count=2)
    future = send_rows(harness, [b"0", b"1"], [(0, 0, 1), (1, 1, 2)])
    assert future.errors() == {}
    harness.run_until(lambda: len(harness.client.waiting(PRODUCE)) == 2)
    first, second = sorted(harness.client.waiting(PRODUCE), key=lambda r: r.connection.node_id)
    harness.client.answer_produce(second, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    harness.settle()
    assert [*future.errors()] == [1]
    assert not future.done()
    harness.client.answer_produce(first, base_offset=5)
    harness.settle()
    assert isinstance(future.exception(0), TopicAuthorizationError)
    with pytest.raises(TopicAuthorizationError):
        future.result(0)
