"""Runs of a coroutine function in a transaction, and the pool of producers for tasks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.live_client import commits_sent, kept_clients
from txnproducer._protocol.messages import ApiKey
from txnproducer._shell import transaction_runs
from txnproducer.aio import AsyncProducerPool
from txnproducer.aio.runs import run_in_task
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    IllegalStateError,
    KafkaTimeoutError,
)
from txnproducer.testing import InMemoryKafka

SETTINGS: dict[str, Any] = {"linger_ms": 0, "max_block_ms": 10_000}


@pytest.fixture(autouse=True)
def no_waits(monkeypatch):
    monkeypatch.setattr(transaction_runs, "_FIRST_WAIT_S", 0)


async def write(transaction):
    await transaction.send("topic", b"value", partition=0)
    return "value"


# --- one producer --------------------------------------------------------------------------------


def test_a_function_is_run_until_it_is_committed(run, make, client):
    client.prepare_produce(error_code=47)  # INVALID_PRODUCER_EPOCH: the transaction is aborted
    seen: list[Any] = []

    async def main():
        async with make() as producer:
            assert await producer.run_transaction(write, on_retry=seen.append) == "value"

    run(main())
    assert commits_sent(client)[-1] is True
    assert [attempt.number for attempt in seen] == [1]


def test_a_commit_that_times_out_is_awaited_and_the_function_is_not_run_again(run, make, client):
    calls = []

    async def count(transaction):
        calls.append(await write(transaction))

    async def main():
        async with make() as producer:
            producer._calls._max_block_s = 0.02
            client.held.add(ApiKey.END_TXN)
            running = asyncio.ensure_future(producer.run_transaction(count))
            await asyncio.sleep(0.05)  # longer than a commit is awaited at once
            producer._calls._max_block_s = 10
            client.release(ApiKey.END_TXN)
            await running

    run(main())
    assert len(calls) == 1
    assert commits_sent(client) == [True]


@pytest.mark.parametrize("is_coroutine", [True, False])
@pytest.mark.parametrize(("written", "raises"), [(True, None), (False, CommitOutcomeUnknownError)])
def test_a_doubt_is_decided_by_a_look(run, written, raises, is_coroutine):
    class Producer:
        outcome = "open"

        def transaction(self):
            return self

        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            self.outcome = "unknown"
            raise CommitOutcomeUnknownError("lost")

        async def resolve_outcome(self):
            return "unknown"

    async def look():
        return written

    async def fn(_):
        return "value"

    async def main():
        producer: Any = Producer()
        bounds = transaction_runs.Bounds()
        looks: Any = look if is_coroutine else lambda: written
        if raises is None:
            assert await run_in_task(producer, fn, bounds, looks) == "value"
            return
        with pytest.raises(raises):
            await run_in_task(producer, fn, bounds, looks)

    run(main())


def test_a_cancellation_ends_the_runs(run, make, client):
    async def wait_for_ever(_):
        await asyncio.sleep(60)

    async def main():
        async with make() as producer:
            task = asyncio.ensure_future(
                producer.run_transaction(wait_for_ever, retry_on=BaseException)
            )
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert producer.transaction_state == "READY"

    run(main())


def test_a_function_that_is_not_awaited_is_refused(run, make, client):
    async def main():
        async with make() as producer:
            with pytest.raises(TypeError, match="no coroutine function"):
                await producer.run_transaction(lambda _: None, retry_on=Exception)

    run(main())


def test_a_function_that_forgets_to_await_another_commits_nothing(run, make, client):
    calls = []

    async def write(transaction):
        raise NotImplementedError

    async def forget(transaction):
        calls.append(transaction)
        return write(transaction)

    async def main():
        async with make() as producer:
            with pytest.raises(TypeError, match=r"has not run to its end.*Await it"):
                await producer.run_transaction(forget, retry_on=Exception)
            assert producer.transaction_state == "READY"

    run(main())
    assert len(calls) == 1
    assert True not in commits_sent(client)


# --- the pool ------------------------------------------------------------------------------------


@pytest.fixture
def clients(monkeypatch):
    return kept_clients(monkeypatch)


@pytest.fixture
def make_pool(clients, tmp_path):
    def make_one():
        return AsyncProducerPool("boot:9092", "svc", worker=0, lock_folder=tmp_path, **SETTINGS)

    return make_one


def inits(client):
    return [request.transactional_id for request in client.sent(ApiKey.INIT_PRODUCER_ID)]


def test_each_task_that_writes_has_a_producer_of_its_own(run, make_pool, clients):
    async def main():
        async with make_pool() as pool:
            barrier = asyncio.Barrier(3)

            async def write_together(transaction):
                await barrier.wait()
                return await write(transaction)

            found = await asyncio.gather(*(pool.run(write_together) for _ in range(3)))
            assert found == ["value"] * 3
            await pool.run(write)
            assert len(clients) == 3

    run(main())
    names = sorted(name for client in clients for name in inits(client))
    assert names == ["svc-0-0", "svc-0-1", "svc-0-2"]
    assert all(client.is_closed for client in clients)


def test_a_producer_whose_transaction_timed_out_is_renewed_under_its_id(run, tmp_path):
    seen: list[Any] = []

    async def main(kafka):
        async def lose_once(transaction):
            await (await transaction.send("topic", b"value", partition=0))
            if not seen:
                await asyncio.sleep(0.2)  # longer than the time-out, or it would look like a fence
                kafka.time_out_transaction("svc-0-0")

        settings = {**SETTINGS, "lock_folder": tmp_path, "transaction_timeout_ms": 100}
        async with AsyncProducerPool(kafka.listen(), "svc", worker=0, **settings) as pool:
            await pool.run(lose_once, on_retry=seen.append)

    with InMemoryKafka(topics={"topic": 1}) as kafka:
        run(main(kafka))
        assert len(seen) == 1
        assert [record.value for record in kafka.records("topic")] == [b"value"]


def test_a_task_that_is_cancelled_in_the_commit_learns_how_it_ended(run, make_pool, clients):
    async def main():
        async with make_pool() as pool:
            await pool.run(write)
            clients[0].held.add(ApiKey.END_TXN)
            task = asyncio.ensure_future(pool.run(write))
            while len(clients[0].sent(ApiKey.END_TXN)) < 2:
                await asyncio.sleep(0.001)  # another thread sends it
            task.cancel()
            await asyncio.sleep(0.01)
            assert not task.done(), "it waits for the commit"
            clients[0].release(ApiKey.END_TXN)
            with pytest.raises(asyncio.CancelledError) as found:
                await task
            notes = list(getattr(found.value, "__notes__", []))
            assert notes in ([], ["The transaction's outcome: committed"])
            assert await pool.run(write) == "value"

    run(main())
    assert len(clients) == 1
    assert commits_sent(clients[0]) == [True] * 3


def test_a_cancellation_while_a_failed_producer_is_closed_ends_the_runs(
    run, make_pool, clients, monkeypatch
):
    calls = []

    async def fail(_):
        calls.append(1)
        raise ZeroDivisionError

    async def cancel(*_):
        raise asyncio.CancelledError

    async def main():
        async with make_pool() as pool:
            monkeypatch.setattr(pool, "_drop_if_failed", cancel)
            with pytest.raises(asyncio.CancelledError):
                await pool.run(fail, retry_on=ZeroDivisionError)

    run(main())
    assert len(calls) == 1


def test_a_closed_pool_lends_nothing_and_closes_what_comes_back(run, make_pool, clients):
    async def main():
        pool = make_pool()
        async with pool.producer():
            await pool.run(write)
            await pool.close()
            assert [client.is_closed for client in clients] == [False, True]
            with pytest.raises(IllegalStateError, match="closed: make another"):
                await pool.run(write)
        assert all(client.is_closed for client in clients)
        async with make_pool() as other:
            assert await other.run(write) == "value"

    run(main())


def test_a_loan_ends_also_if_its_producer_cannot_be_made(run, make_pool, clients, monkeypatch):
    async def refuse(*_):
        raise KafkaTimeoutError("no answer")

    async def main():
        async with make_pool() as pool:
            with monkeypatch.context() as patch:
                patch.setattr(AsyncProducerPool, "_ready", refuse)
                with pytest.raises(KafkaTimeoutError):
                    await pool.run(write, attempts=2)
            assert await pool.run(write) == "value"
            assert all(member.is_free for member in pool._members)

    run(main())


def test_a_pool_in_another_event_loop_is_refused_by_its_name(run, make_pool):
    pool = make_pool()

    async def first():
        assert await pool.run(write) == "value"

    async def second():
        for call in (pool.run(write), pool.close()):
            with pytest.raises(IllegalStateError, match="this AsyncProducerPool belongs to"):
                await call

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(first())
        run(second())
        loop.run_until_complete(pool.close())
    finally:
        loop.close()


def test_a_commit_and_an_abort_that_time_out_leave_a_doubt(run, tmp_path):
    async def main(kafka):
        settings: dict[str, Any] = {"lock_folder": tmp_path, "max_block_ms": 500, "linger_ms": 0}
        settings |= {"request_timeout_ms": 300, "delivery_timeout_ms": 1_000}
        async with AsyncProducerPool(kafka.listen(), "svc", worker=0, **settings) as pool:

            async def write_and_lose_the_ends(transaction):
                await write(transaction)
                kafka.lose_answer("EndTxn", times=1_000)

            await pool.run(write)
            with pytest.raises(CommitOutcomeUnknownError, match="given up the producer"):
                await pool.run(write_and_lose_the_ends, attempts=1)
            kafka.clear_faults()

    with InMemoryKafka({"topic": 1}) as kafka:
        run(main(kafka))
