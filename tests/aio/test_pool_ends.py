"""The ends of a pool's producers: an id that is lost to a newer one, a cancellation, the close."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from tests.live_client import LiveClient, use_live_clients
from tests.lost_pools import ID, REFUSAL, SETTINGS
from txnproducer._shell import transaction_runs
from txnproducer.aio import AsyncProducerPool, AsyncTransactionalProducer
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    InvalidConfigurationError,
    KafkaError,
    ProducerFencedError,
)
from txnproducer.testing import InMemoryKafka


@pytest.fixture(autouse=True)
def no_waits(monkeypatch):
    monkeypatch.setattr(transaction_runs, "_FIRST_WAIT_S", 0)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def kafka(request):
    with InMemoryKafka(topics={"topic": 1}, transaction_version=request.param) as kafka:
        yield kafka


@pytest.fixture
def make_pool(kafka, tmp_path):
    def make(**settings):
        settings = {**SETTINGS, "lock_folder": tmp_path, **settings}
        return AsyncProducerPool(kafka.listen(), "svc", worker=0, **settings)

    return make


async def write(transaction):
    return await (await transaction.send("topic", b"value"))


def epoch(kafka):
    return kafka.transactions()[ID].producer_epoch


# --- an id that a newer producer has taken -------------------------------------------------------


async def in_a_block(pool, kafka):
    async with pool.producer() as producer, producer.transaction() as transaction:
        kafka.fence(ID)
        await write(transaction)


async def in_a_transaction_that_is_left_open(pool, kafka):
    async with pool.producer() as producer:
        producer.begin_transaction()
        await write(producer)
        kafka.fence(ID)


async def in_a_run(pool, kafka):
    async def lose(transaction):
        kafka.fence(ID)
        await write(transaction)

    await pool.run(lose)


async def in_a_run_with_an_error_of_its_own(pool, kafka):
    async def lose(transaction):
        kafka.fence(ID)
        try:
            await write(transaction)
        except KafkaError as error:
            raise LookupError("the order could not be written") from error

    await pool.run(lose, retry_on=LookupError)


async def in_a_run_with_a_group_of_tasks(pool, kafka):
    async def lose(transaction):
        kafka.fence(ID)
        async with asyncio.TaskGroup() as group:
            group.create_task(write(transaction))

    await pool.run(lose, retry_on=ExceptionGroup)


LOSSES = (
    in_a_block,
    in_a_transaction_that_is_left_open,
    in_a_run,
    in_a_run_with_an_error_of_its_own,
    in_a_run_with_a_group_of_tasks,
)


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
def test_an_id_that_a_newer_producer_has_taken_is_left_to_it(run, make_pool, kafka, lose):
    async def main():
        async with make_pool() as pool:
            await pool.run(write)
            with suppress(KafkaError, LookupError, ExceptionGroup):
                await lose(pool, kafka)
            taken = epoch(kafka)
            assert "a newer producer of this id" in str(pool.failure)
            for _ in range(2):
                with pytest.raises(ProducerFencedError, match=REFUSAL):
                    await pool.run(write)
                with pytest.raises(ProducerFencedError, match=REFUSAL):
                    async with pool.producer():
                        pass
            assert epoch(kafka) == taken, "the newer producer was fenced"

    run(main())


@pytest.mark.parametrize("is_written", [True, False])
def test_a_doubt_after_a_fence_is_looked_at_without_a_new_producer(
    run, make_pool, kafka, is_written
):
    calls: list[Any] = []
    epochs: list[int] = []
    fences: list[Any] = []

    async def take_over():
        while kafka.remaining_faults():  # the commit has no answer
            await asyncio.sleep(0.001)
        kafka.fence(ID)

    async def write_and_lose_the_answer(transaction):
        calls.append(await write(transaction))
        if len(calls) == 1:
            kafka.lose_answer("EndTxn")
            fences.append(asyncio.ensure_future(take_over()))

    async def look():
        await fences[0]
        epochs.append(epoch(kafka))
        return is_written

    async def main():
        async with make_pool() as pool:
            await pool.run(write)
            if is_written:
                await pool.run(write_and_lose_the_answer, is_written=look)
            else:
                with pytest.raises(CommitOutcomeUnknownError):
                    await pool.run(write_and_lose_the_answer, is_written=look)
            assert len(calls) == 1
            assert "a newer producer of this id" in str(pool.failure)
            assert epochs == [epoch(kafka)]

    run(main())


# --- cancellations -------------------------------------------------------------------------------


def test_a_producer_whose_close_was_cancelled_is_not_lent_again(run, make_pool, kafka):
    lent: list[Any] = []

    async def main():
        async with make_pool() as pool:
            await pool.run(write)

            async def leave_open():
                async with pool.producer() as producer:
                    lent.append(producer)
                    producer.begin_transaction()
                    await write(producer)
                    kafka.delay("EndTxn", 0.3)

            task = asyncio.ensure_future(leave_open())
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while lent[0].transaction_state != "READY":  # the abort goes on
                await asyncio.sleep(0.001)
            for _ in range(2):
                await pool.run(write)
                async with pool.producer() as another, another.transaction():
                    assert another is not lent[0]

    run(main())


def test_a_run_that_was_cancelled_while_its_producer_was_closed_spoils_no_other(
    run, make_pool, kafka
):
    async def main():
        async with make_pool(max_block_ms=300) as pool:
            await pool.run(write)

            async def fail(transaction):
                await write(transaction)
                kafka.delay("EndTxn", 2)  # longer than the abort is awaited
                raise ZeroDivisionError

            task = asyncio.ensure_future(pool.run(fail))
            await asyncio.sleep(0.55)  # the end of a failed producer takes half a second
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            kafka.clear_faults()
            for _ in range(2):
                await pool.run(write)

    run(main())


# --- a closed pool -------------------------------------------------------------------------------


@pytest.fixture
def make_scripted(monkeypatch, tmp_path):
    use_live_clients(monkeypatch, LiveClient)

    def make():
        return AsyncProducerPool("boot:9092", "svc", worker=0, lock_folder=tmp_path, **SETTINGS)

    return make


def test_a_producer_that_its_borrower_has_closed_is_not_lent_again(run, make_scripted):
    async def main():
        async with make_scripted() as pool:
            async with pool.producer() as producer:
                await producer.close()
            assert await pool.run(write)

    run(main())


def test_a_producer_that_comes_back_to_a_closed_pool_obeys_its_time_out(
    run, make_scripted, monkeypatch
):
    closes: list[Any] = []
    usual = AsyncTransactionalProducer.close

    async def close(producer, timeout=None):
        closes.append(timeout)
        await usual(producer, timeout)

    async def main():
        pool = make_scripted()
        async with pool.producer():
            await pool.close(3)
        assert closes == [3]
        with pytest.raises(ValueError, match="negative"):
            await pool.close(-1)

    monkeypatch.setattr(AsyncTransactionalProducer, "close", close)
    run(main())


def test_a_worker_is_given_back_after_a_cancelled_close_was_made_again(
    run, make_scripted, monkeypatch
):
    async def cancel(*_):
        raise asyncio.CancelledError

    async def main():
        pool, other = make_scripted(), make_scripted()
        loan = pool.producer()
        await loan.__aenter__()
        await pool.close()
        with monkeypatch.context() as patch:
            patch.setattr(AsyncTransactionalProducer, "close", cancel)
            with pytest.raises(asyncio.CancelledError):
                await loan.__aexit__(None, None, None)
        with pytest.raises(InvalidConfigurationError, match="another pool of this process"):
            await other.run(write)
        await pool.close()
        async with other:
            assert await other.run(write)

    run(main())
