"""An interrupt in `send_batch` or `send_arrow` leaves no part of the rows to be committed."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import sys

import pytest

from tests import sent_rows
from tests.live_client import commits_sent
from tests.sent_rows import assert_can_only_be_aborted, interrupt, values_written
from txnproducer._protocol.messages import ApiKey
from txnproducer._shell.columns import sending
from txnproducer._shell.waiting import append_at_once
from txnproducer.errors import BufferExhaustedError, KafkaError

# Fixtures of these tests. Other tests have their own under these names.
client, make, ready = sent_rows.client, sent_rows.make, sent_rows.ready


def test_an_interrupt_in_the_midst_leaves_a_transaction_that_can_only_be_aborted(
    make, client, monkeypatch
):
    one = make(buffer_memory=40_000, batch_size=16_384)
    one.partitions_for("topic")
    client.held.add(ApiKey.PRODUCE)
    one.begin_transaction()
    with monkeypatch.context() as patch:
        patch.setattr(one._io, "wait_until", interrupt)
        with pytest.raises(KeyboardInterrupt):
            one.send_batch("topic", [b"x" * 1_000] * 100)
    assert one.metrics()["waiting-threads"] == 0
    with one._lock:
        client.release(ApiKey.PRODUCE)
    assert_can_only_be_aborted(one, r"\d\d of 100 rows .*KeyboardInterrupt")


def test_an_interrupt_before_any_row_was_sent_changes_nothing(make, client, monkeypatch):
    one = make(buffer_memory=40_000, batch_size=16_384)
    client.held.add(ApiKey.PRODUCE)
    one.begin_transaction()
    sent = [one.send("topic", b"x" * 16_000, partition=0) for _ in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(one._io, "wait_until", interrupt)
        for partitions in (None, [1]):
            with pytest.raises(KeyboardInterrupt):
                one.send_batch("topic", [b"x" * 16_000], None, None, partitions)
    assert one.transaction_state == "IN_TRANSACTION"
    assert one.metrics()["waiting-threads"] == 0
    with one._lock:
        client.release(ApiKey.PRODUCE)
    one.commit_transaction()
    assert [future.error for future in sent] == [None, None]
    assert len(values_written(client)) == 2


@pytest.mark.parametrize("is_interrupted_again", [False, True])
def test_an_interrupt_after_the_first_rows_leaves_no_part_of_them_to_be_committed(
    make, client, monkeypatch, is_interrupted_again
):
    # The rows are in their batch, and no caller knows it yet.
    one = make(linger_ms=1_000)
    one.partitions_for("topic")
    one.begin_transaction()
    with monkeypatch.context() as patch:
        # The first call looks around.
        step = InterruptOnce(calls_before=1, function=append_at_once)
        patch.setattr(sending, "append_at_once", step)
        if is_interrupted_again:  # while the first interrupt ends the call
            patch.setattr(sending, "leave_append", interrupt)
        with pytest.raises(KeyboardInterrupt):
            one.send_batch("topic", [b"0", b"1"], partitions=[0, 1])
    assert_can_only_be_aborted(one)
    assert commits_sent(client) == [False, True]


def test_an_interrupt_before_the_wait_for_memory_leaves_no_place_in_its_queue(
    make, client, monkeypatch
):
    one = make(buffer_memory=40_000, batch_size=16_384)
    one.partitions_for("topic")
    client.held.add(ApiKey.PRODUCE)
    one.begin_transaction()
    with monkeypatch.context() as patch:
        patch.setattr(sending, "append_when_possible", interrupt)
        with pytest.raises(KeyboardInterrupt):
            one.send_batch("topic", [b"x" * 1_000] * 100)
    assert one.metrics()["waiting-threads"] == 0
    with one._lock:
        client.release(ApiKey.PRODUCE)
    assert_can_only_be_aborted(one)


class InterruptOnce:
    """A function that raises as Ctrl-C does, once, after its work is done."""

    def __init__(self, calls_before, function):
        self.calls_before = calls_before
        self.function = function

    def __call__(self, *arguments):
        result = self.function(*arguments)
        self.calls_before -= 1
        if self.calls_before == -1:
            raise KeyboardInterrupt
        return result


def interrupted_at(number, call):
    """Make a call, and let Ctrl-C come at the so manieth function of the package that it enters.

    Returns:
        Which function that was, or None if the call enters fewer.
    """
    entered = []

    def trace(frame, event, _):
        if event == "call" and "txnproducer" in frame.f_code.co_filename:
            entered.append(frame.f_code.co_name)
            if len(entered) == number:
                sys.settrace(before)
                raise KeyboardInterrupt

    before = sys.gettrace()
    # No finaliser of a producer that an earlier test left may run in here: Python swallows what
    # is raised in one, so that it would be counted for an interrupt that the call never saw.
    gc.disable()
    sys.settrace(trace)
    try:
        with contextlib.suppress(KeyboardInterrupt, KafkaError):
            failed = getattr(call(), "error", None)
            assert failed is None or isinstance(failed, BufferExhaustedError)
    finally:
        sys.settrace(before)
        gc.enable()
    return entered[-1] if len(entered) == number else None


@pytest.mark.parametrize("is_by_row", [False, True])
# The larger one is larger than a batch.
@pytest.mark.parametrize("size", [16_000, 20_000])
@pytest.mark.parametrize("partition", [0, None])
@pytest.mark.parametrize("batches_before", [0, 2])
def test_an_interrupt_at_any_point_leaves_no_waiter_and_no_memory_taken(
    make, client, is_by_row, size, partition, batches_before
):
    one = make(buffer_memory=40_000, batch_size=16_384)
    one.partitions_for("topic")
    one._config = dataclasses.replace(one._config, max_block_ms=1)
    one._rows._max_block_ms = 1
    calls = {
        False: lambda: one.send("topic", b"x" * size, partition=partition),
        True: lambda: one.send_batch("topic", [b"x" * size], partitions=[partition]),
    }
    entered = set()
    wanted = {"time_out_append", "fail_append"} if batches_before == 2 else set()
    pool = one._core._accumulator.pool

    def interrupt_everywhere():
        for number in itertools.count(1):
            one.begin_transaction()
            with one._lock:
                client.held.add(ApiKey.PRODUCE)
            for _ in range(batches_before):
                one.send("topic", b"x" * 16_000, partition=0)
            name = interrupted_at(number, calls[is_by_row])
            assert not pool.waiting, name
            with one._lock:
                client.release(ApiKey.PRODUCE)
            one.abort_transaction()
            assert pool.available_bytes == 40_000, name
            if name is None:
                return
            entered.add(name)

    # How many functions are entered while it waits, nobody knows: one may be passed over.
    for _ in range(5):
        interrupt_everywhere()
        if not wanted or entered & wanted:
            break
    # It comes at the next function or the one after that, as the loop's thread goes about.
    if is_by_row and not batches_before:
        assert entered & {"_next_queue", "_begin_batch", "begin_batch"}
    if size > 16_384 or not is_by_row or batches_before:
        assert entered & {"append_any", "_append_record", "_append_to"}
    assert bool(entered & {"time_out_append", "fail_append"}) is bool(wanted)
