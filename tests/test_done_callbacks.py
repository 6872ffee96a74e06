"""The futures of records as Python's own: done-callbacks, `await`, futures of `concurrent`."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading

import pytest

from tests.waiting import wait_until
from txnproducer import TransactionalProducer
from txnproducer._protocol.messages import ApiKey, ProduceRequest
from txnproducer.errors import (
    IllegalStateError,
    KafkaError,
    RecordTooLargeError,
    TransactionAbortedError,
)

PATIENCE_S = 10.0


@pytest.fixture
def held(client):
    """Leave every record unacknowledged until the returned function is called."""
    client.held.add(ApiKey.PRODUCE)
    return lambda: client.release(ApiKey.PRODUCE)


def send_one(producer: TransactionalProducer):
    return producer.send("topic", b"value", partition=0)


def send_three(producer: TransactionalProducer):
    return producer.send_batch("topic", [b"1", b"2", b"3"])


both = pytest.mark.parametrize("send", [send_one, send_three])


# --- done-callbacks ------------------------------------------------------------------------------


@both
def test_a_function_is_called_once_the_future_has_ended_without_the_lock(ready, held, send):
    calls: list[object] = []
    ready.begin_transaction()
    future = send(ready)

    def note(ended):
        calls.append((ended is future, ended.done(), ready._io.is_current, ready._lock.locked()))

    future.add_done_callback(note)
    assert calls == []
    held()
    wait_until(lambda: calls)
    assert calls == [(True, True, True, False)]
    assert future.exception(0) is None


@both
def test_a_future_that_has_ended_calls_at_once_and_on_the_calling_thread(ready, send):
    ready.begin_transaction()
    future = send(ready)
    future.result(PATIENCE_S)
    calls: list[object] = []
    future.add_done_callback(lambda _: calls.append(threading.current_thread()))
    assert calls == [threading.current_thread()]


def test_functions_run_after_the_delivery_callbacks_and_in_the_order_of_their_batches(ready, held):
    calls: list[object] = []
    ready.begin_transaction()
    for name in ("first", "second"):
        future = ready.send(
            "topic", b"", partition=0, on_delivery=lambda *_, n=name: calls.append(f"{n} sent")
        )
        future.add_done_callback(lambda _, n=name: calls.append(n))
    held()
    wait_until(lambda: len(calls) == 4)
    assert calls == ["first sent", "second sent", "first", "second"]


def test_an_exception_is_logged_and_ends_neither_the_thread_nor_the_other_calls(
    ready, held, caplog
):
    calls: list[object] = []

    def fail(_):
        raise SystemExit("of the user")

    ready.begin_transaction()
    future = send_one(ready)
    for call in (fail, calls.append, fail, calls.append):
        future.add_done_callback(call)
    with caplog.at_level(logging.ERROR):
        held()
        wait_until(lambda: len(calls) == 2)
        ready.commit_transaction()
        future.add_done_callback(lambda _: calls[7])
        with pytest.raises(SystemExit):  # the caller's own thread
            future.add_done_callback(fail)
    assert caplog.text.count("a done-callback failed for <FutureRecordMetadata topic-0") == 3


@both
@pytest.mark.filterwarnings("error")
def test_a_callback_whose_result_would_have_to_be_awaited_is_logged(ready, send, caplog):
    async def note(_): ...

    ready.begin_transaction()
    future = send(ready)
    future.add_done_callback(lambda done: note(done))
    with caplog.at_level(logging.ERROR):
        ready.commit_transaction()
        wait_until(lambda: "returned an awaitable, which nothing awaits" in caplog.text)


@pytest.mark.parametrize("send", [send_one, send_three])
def test_a_function_is_called_for_records_that_are_aborted(ready, held, send):
    errors: list[object] = []
    ready.begin_transaction()
    future = send(ready)
    future.add_done_callback(lambda ended: errors.append(ended.exception(0)))
    ready.close(0)
    assert len(errors) == 1
    assert isinstance(errors[0], KafkaError)


@both
def test_an_abort_of_records_that_wait_calls_at_once(make, send):
    errors: list[object] = []
    producer = make(linger_ms=60_000)
    producer.init_transactions()
    producer.partitions_for("topic")
    producer.begin_transaction()
    future = send(producer)
    future.add_done_callback(lambda ended: errors.append(ended.exception(0)))
    producer.abort_transaction()
    wait_until(lambda: errors)
    assert isinstance(errors[0], TransactionAbortedError)


def test_a_function_is_called_for_a_record_that_was_never_sent(make, client):
    errors: list[object] = []
    producer = make(max_request_size=1000)
    producer.init_transactions()
    producer.begin_transaction()
    future = producer.send("topic", bytes(2000))
    future.add_done_callback(lambda ended: errors.append(ended.exception(0)))
    assert isinstance(errors[0], RecordTooLargeError)


def test_a_commit_does_not_wait_for_a_function(ready, held):
    may_end = threading.Event()
    ready.begin_transaction()
    future = send_one(ready)
    ended = []
    future.add_done_callback(lambda _: ended.append(may_end.wait(PATIENCE_S)))
    held()
    assert future.result(PATIENCE_S)
    assert not ended
    may_end.set()
    ready.commit_transaction()


def test_a_function_that_waits_for_the_producer_is_refused(ready, held, caplog):
    raised: list[object] = []

    def commit(_):
        try:
            ready.commit_transaction()
        except IllegalStateError as error:
            raised.append(error)

    ready.begin_transaction()
    send_one(ready).add_done_callback(commit)
    held()
    wait_until(lambda: raised)
    assert "cannot wait" in str(raised[0])


async def asynchronous(_):
    raise NotImplementedError


@pytest.mark.parametrize(
    ("call", "advice"), [(None, "a function of one argument"), (asynchronous, "await the future")]
)
def test_an_object_that_cannot_be_called_is_refused_at_once(ready, call, advice):
    ready.begin_transaction()
    with pytest.raises(TypeError, match=advice):
        send_one(ready).add_done_callback(call)


@both
def test_asyncio_wait_is_refused_where_it_would_never_return(ready, send):
    ready.begin_transaction()
    future = send(ready)

    async def wait():
        with pytest.raises(TypeError, match=r"give it asyncio.ensure_future\(future\)"):
            await asyncio.wait([future])
        done, _ = await asyncio.wait([asyncio.ensure_future(future)], timeout=PATIENCE_S)
        return len(done)

    assert asyncio.run(wait()) == 1


def test_a_function_added_in_a_function_is_called_too(ready, held):
    calls: list[object] = []
    ready.begin_transaction()
    first = send_one(ready)

    def send_again(_):
        send_one(ready).add_done_callback(calls.append)

    first.add_done_callback(send_again)
    held()
    wait_until(lambda: calls)
    assert calls[0] is not first
    ready.commit_transaction()


# --- futures of `concurrent` ---------------------------------------------------------------------


@both
def test_a_concurrent_future_ends_as_the_future_does(ready, held, send):
    ready.begin_transaction()
    future = send(ready)
    twin = future.as_concurrent_future()
    assert isinstance(twin, concurrent.futures.Future)
    assert not twin.cancel()
    assert not concurrent.futures.wait([twin], timeout=0.01).done
    held()
    assert concurrent.futures.wait([twin], timeout=PATIENCE_S).done == {twin}
    expected = future.result(0)
    assert list(twin.result(0)) == list(expected)


@both
def test_a_concurrent_future_has_the_error(ready, held, send):
    ready.begin_transaction()
    twin = send(ready).as_concurrent_future()
    ready.close(0)
    assert isinstance(twin.exception(PATIENCE_S), KafkaError)


# --- await ---------------------------------------------------------------------------------------


@both
def test_a_future_is_awaited(ready, held, send):
    ready.begin_transaction()
    future = send(ready)

    async def main():
        waiting = asyncio.ensure_future(future)
        await asyncio.sleep(0)
        assert not waiting.done()
        held()
        found = await asyncio.wait_for(waiting, PATIENCE_S)
        assert list(found) == list(future.result(0))
        assert list(await future) == list(found), "again, at once"

    asyncio.run(main())


def test_an_awaited_future_raises_its_error(ready, held):
    ready.begin_transaction()
    future = send_one(ready)

    async def main():
        waiting = asyncio.ensure_future(future)
        await asyncio.sleep(0)
        await asyncio.to_thread(ready.close, 0)
        with pytest.raises(KafkaError, match="closed"):
            await asyncio.wait_for(waiting, PATIENCE_S)

    asyncio.run(main())


def test_a_loop_is_woken_once_for_all_tasks_that_can_go_on(ready, client, held, monkeypatch):
    ready.begin_transaction()
    futures = [send_one(ready) for _ in range(1000)]

    async def main():
        loop, wakes = asyncio.get_running_loop(), []
        usual = loop.call_soon_threadsafe

        def call_soon(*args):
            wakes.append(args)
            usual(*args)

        monkeypatch.setattr(loop, "call_soon_threadsafe", call_soon)
        waiting = [asyncio.ensure_future(future) for future in futures]
        await asyncio.sleep(0)
        held()
        await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S)
        # Usually one. On a slow machine a batch is sent before the last record is there.
        batches = sum(isinstance(request.body, ProduceRequest) for request in client.requests)
        assert 1 <= len(wakes) <= batches < 100

    asyncio.run(main())


def test_a_task_that_is_cancelled_ends_its_own_wait_alone(ready, held):
    ready.begin_transaction()
    future = send_one(ready)

    async def main():
        cancelled, other = asyncio.ensure_future(future), asyncio.ensure_future(future)
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        held()
        assert (await asyncio.wait_for(other, PATIENCE_S)).topic == "topic"

    asyncio.run(main())


def test_a_loop_that_was_closed_harms_nobody(ready, held, caplog):
    ready.begin_transaction()
    future = send_one(ready)

    async def begin():
        asyncio.ensure_future(future).add_done_callback(lambda _: None)
        await asyncio.sleep(0)

    with caplog.at_level(logging.ERROR):
        asyncio.run(begin())
        held()
        assert future.result(PATIENCE_S)
        ready.commit_transaction()
    assert caplog.text == ""


def test_an_await_without_a_loop_is_pythons_own_error(ready, held):
    ready.begin_transaction()
    with pytest.raises(RuntimeError, match="no running event loop"):
        send_one(ready).__await__().send(None)


# --- the parts of a call and of a batch ----------------------------------------------------------


@pytest.mark.parametrize("is_asynchronous", [True, False])
def test_the_end_of_a_split_batch_is_that_of_the_part_of_each_record(
    ready, client, held, is_asynchronous
):
    calls: list[object] = []
    ready.begin_transaction()
    futures = [*(send_one(ready) for _ in range(4)), ready.send_batch("topic", [b""] * 4, None)]
    for future in futures:
        future.add_done_callback(lambda ended: calls.append(ended.exception(0)))
    client.prepare_produce(error_code=10)  # MESSAGE_TOO_LARGE

    async def main():
        waiting = [asyncio.ensure_future(future) for future in futures]
        await asyncio.sleep(0)
        held()
        await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S)

    if is_asynchronous:
        asyncio.run(main())
    held()
    wait_until(lambda: len(calls) == len(futures))
    assert calls == [None] * len(futures)
    assert len(client.sent(ApiKey.PRODUCE)) > 1, "it was split"


def test_the_end_of_many_rows_is_that_of_the_last_batch(ready, client, held):
    calls: list[object] = []
    ready.begin_transaction()
    rows = ready.send_batch("topic", [b"0", b"1"], partitions=[0, 1])
    rows.add_done_callback(calls.append)
    twin = rows.as_concurrent_future()
    held()
    assert twin.result(PATIENCE_S).partitions.tolist() == [0, 1]
    wait_until(lambda: calls)
    assert calls == [rows]
