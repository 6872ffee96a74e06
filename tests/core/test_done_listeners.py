"""The listeners of a batch's result: they are handed over once, when it ends."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from txnproducer._core.batches.batch_future import FutureBatchMetadata, RowsTaken
from txnproducer._core.batches.record_future import DeliveryFuture, FutureRecordMetadata
from txnproducer._core.batches.results import CallbackBatch, ProduceRequestResult
from txnproducer._core.transactions.transaction_loss import is_taken_over
from txnproducer.errors import ProducerFencedError
from txnproducer.records import TopicPartition


class Shell:
    """The part of the I/O thread that futures and results see."""

    def __init__(self) -> None:
        self.done_callbacks = self
        self.handed: list[Any] = []
        self.called: list[Any] = []
        self.awaited: Any = None  # ends while a task waits

    def hand_over(self, listeners):
        self.handed.append(listeners)

    def call(self, future, function):
        self.called.append((future, function))

    def as_concurrent_future(self, future):
        return ("twin of", future)

    def wait_in_loop(self, future):
        yield "wait"
        self.awaited.done()

    def wait_until(self, is_done, timeout_s):
        return is_done()

    def refuse_in_fork(self): ...


@pytest.fixture
def shell():
    return Shell()


def result_of(shell: Any, partition=0) -> ProduceRequestResult:
    return ProduceRequestResult(TopicPartition("topic", partition), shell)


def future_of(result, index=0):
    return FutureRecordMetadata(result, index, 5, 3, 4)


def test_a_result_hands_its_listeners_over_once(shell):
    result = result_of(shell)
    result.listeners = [(future_of(result), print)]
    listeners = result.listeners
    result.set(7, -1, None)
    assert shell.handed == []
    result.done()
    result.done()
    assert shell.handed == [listeners]
    without = result_of(shell)
    without.done()
    assert len(shell.handed) == 1


def test_a_split_hands_them_over_and_each_future_waits_for_its_part(shell):
    whole, first, second = (result_of(shell) for _ in range(3))
    early, late = future_of(whole, 0), future_of(whole, 3)
    whole.listeners = [(early, print), (late, print)]
    assert early.pending_end() is whole
    whole.split_into([(0, first), (2, second)])
    assert len(shell.handed) == 1
    assert (early.pending_end(), late.pending_end()) == (first, second)
    assert whole.first_pending() is first
    first.done()
    assert early.pending_end() is None
    assert whole.first_pending() is second
    second.done()
    assert whole.first_pending() is None


def test_the_future_of_many_rows_waits_for_one_batch_after_the_other(shell):
    first, second = result_of(shell), result_of(shell, 1)
    future = FutureBatchMetadata("topic", 2, shell)
    future.add(RowsTaken(first, 0, 0, 1), None, 0)
    future.add(RowsTaken(second, 0, 1, 1), array("q", [0, 1]), 0)
    assert future.pending_end() is first
    first.done()
    assert future.pending_end() is second
    second.done()
    assert future.pending_end() is None


@pytest.mark.parametrize("kind", ["one", "many"])
def test_a_future_passes_its_listeners_on_to_the_shell(shell, kind):
    result = result_of(shell)
    future: Any = future_of(result)
    if kind == "many":
        future = FutureBatchMetadata("topic", 1, shell)
        future.add(RowsTaken(result, 0, 0, 1), None, 0)
    future.add_done_callback(print)
    assert shell.called == [(future, print)]
    assert future.as_concurrent_future() == ("twin of", future)
    result.set(7, -1, None)
    shell.awaited = result
    steps = future.__await__()
    assert next(steps) == "wait"
    with pytest.raises(StopIteration) as stop:
        next(steps)
    found = stop.value.value
    assert (found if kind == "one" else found[0]).offset == 7
    with pytest.raises(StopIteration):
        next(future.__await__())


def test_a_delivery_callback_that_returns_a_coroutine_has_failed(shell, caplog):
    async def on_delivery(metadata, error):
        raise NotImplementedError

    batch = CallbackBatch([(future_of(result_of(shell)), on_delivery)], lambda: None)
    batch.run()
    (error,) = batch.raised
    assert isinstance(error, TypeError)
    assert "returned a coroutine, which nobody awaits" in caplog.text


def test_the_base_of_the_futures_has_no_end_of_its_own():
    future: Any = DeliveryFuture()
    for call in (future.done, future.result, future.pending_end, future._waiter_of):
        with pytest.raises(NotImplementedError):
            call()


def test_only_a_certain_loss_says_that_the_id_was_taken():
    text = "the transaction is lost: a newer producer of this id, epoch 7, has taken over (x)"
    assert is_taken_over(ProducerFencedError(text))
    likely = text.replace(": a newer", ": most likely a newer")
    assert not is_taken_over(ProducerFencedError(likely))
