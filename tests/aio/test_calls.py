"""The producer for asyncio: its calls, their ends, and its use of the event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.live_client import SHORT_MS, commits_sent
from txnproducer._protocol.messages import ApiKey
from txnproducer.errors import (
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    RecordTooLargeError,
)
from txnproducer.records import ConsumerGroupMetadata, TopicPartition

OFFSETS = {TopicPartition("in", 0): 5}
GROUP = ConsumerGroupMetadata("group")


async def fail_in(transaction):
    async with transaction:
        await transaction.send("topic", b"value")
        raise ZeroDivisionError


def test_a_program_writes_in_transactions(run, make, client):
    async def main():
        async with make() as producer:
            assert producer.transaction_state == "READY"
            async with producer.transaction() as transaction:
                future = await transaction.send("topic", b"value", headers={"name": b"header"})
                rows = await transaction.send_batch(
                    "topic", [b"1", b"2"], headers=[None, {"h": b""}]
                )
                await transaction.send_offsets(OFFSETS, GROUP)
                await producer.flush()
                assert (await future).topic == "topic"
                assert len(await rows) == 2
            assert transaction.outcome == "committed"
        assert repr(producer) == "<AsyncTransactionalProducer 'txn' closed>"

    run(main())
    assert commits_sent(client) == [True]


def test_an_exception_in_a_block_aborts_and_goes_on_to_the_caller(run, make, client):
    async def main():
        async with make() as producer:
            transaction = producer.transaction()
            with pytest.raises(ZeroDivisionError):
                await fail_in(transaction)
            assert transaction.outcome == "aborted"
            async with producer.transaction():
                await producer.send("topic", b"of the next one")

    run(main())
    assert commits_sent(client) == [False, True]


def test_init_is_left_to_the_caller_on_request(run, make, client):
    async def main():
        async with make(init=False) as producer:
            assert producer.transaction_state == "UNINITIALIZED"
            await producer.init_transactions()
            producer.begin_transaction()
            await producer.send("topic", b"value")
            await producer.commit_transaction()
        async with make(None) as producer:
            await (await producer.send("topic", b"without transactions"))

    run(main())


def test_an_init_that_fails_closes_the_producer(run, make, client):
    client.prepare_init_producer_id(error_code=53)  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    async def main():
        producer = make()
        with pytest.raises(KafkaError):
            async with producer:
                pytest.fail("the block is entered")
        assert "closed" in repr(producer)

    run(main())


# --- time-outs and errors ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ApiKey.PRODUCE, ApiKey.END_TXN])
def test_a_commit_that_times_out_goes_on_and_is_awaited_again(run, make, client, kind):
    async def main():
        async with make() as producer:
            producer._calls._max_block_s = SHORT_MS / 1000
            client.held.add(kind)
            with pytest.raises(KafkaTimeoutError, match="call commit_transaction"):
                async with producer.transaction() as transaction:
                    await producer.send("topic", b"value")
            assert transaction.outcome == "open"
            client.release(kind)
            producer._calls._max_block_s = 10
            await producer.commit_transaction()
            assert transaction.outcome == "committed"

    run(main())


def test_the_commit_of_a_fenced_producer_says_so(run, make, client):
    async def main():
        async with make() as producer:
            client.prepare_produce(error_code=90)  # PRODUCER_FENCED
            with pytest.raises(ProducerFencedError):
                async with producer.transaction() as transaction:
                    await producer.send("topic", b"value")
            assert transaction.outcome == "aborted"

    run(main())


def test_an_abort_that_timed_out_is_awaited_by_the_next_block(run, make, client):
    async def main():
        async with make() as producer:
            client.held.add(ApiKey.END_TXN)
            producer._calls._max_block_s = SHORT_MS / 1000
            with pytest.raises(ZeroDivisionError) as found:
                await fail_in(producer.transaction())
            assert "Aborting the transaction failed too" in found.value.__notes__[0]
            producer._calls._max_block_s = 10
            next_block = asyncio.ensure_future(producer.transaction().__aenter__())
            await asyncio.sleep(0.02)  # long enough for a block that does not wait
            assert not next_block.done()
            client.release(ApiKey.END_TXN)
            await next_block
            await producer.abort_transaction()

    run(main())


def test_a_record_that_finds_no_memory_waits_and_goes_on(run, make, client):
    async def main():
        async with make(None, buffer_memory=40_000, batch_size=16_384) as producer:
            client.held.add(ApiKey.PRODUCE)
            first = [await producer.send("topic", b"x" * 16_000, partition=0) for _ in range(2)]
            third = asyncio.ensure_future(producer.send("topic", b"x" * 16_000, partition=0))
            await asyncio.sleep(0.02)  # long enough for a send that does not wait
            assert not third.done()
            client.release(ApiKey.PRODUCE)
            offsets = [(await future).offset for future in (*first, await third)]
            assert offsets == sorted(set(offsets))

    run(main())


@pytest.mark.parametrize("call", ["append_in_loop", "transaction_number", "_send_in_turn"])
def test_an_exception_before_the_wait_leaves_no_place_in_the_queue_for_memory(
    run, make, client, monkeypatch, call
):
    class Raised(BaseException):
        """As a signal handler raises it."""

    def fail(*_):
        raise Raised

    async def main():
        async with make(None, buffer_memory=40_000, batch_size=16_384) as producer:
            client.held.add(ApiKey.PRODUCE)
            for _ in range(2):
                await producer.send("topic", b"x" * 16_000, partition=0)
            calls = producer._calls
            with monkeypatch.context() as patch:
                if call == "_send_in_turn":
                    patch.setattr(producer, call, fail)
                elif call == "transaction_number":
                    patch.setattr(type(calls), call, property(fail))
                else:
                    patch.setattr(calls, call, fail)
                with pytest.raises(Raised):
                    await producer.send("topic", b"x" * 16_000, partition=0)
            assert not calls._core._accumulator.pool.waiting
            assert not producer._turns
            client.release(ApiKey.PRODUCE)
            await (await producer.send("topic", b"x" * 16_000, partition=0))

    run(main())


def test_a_record_that_waits_too_long_fails_by_its_future(run, make, client):
    async def main():
        settings = {"buffer_memory": 40_000, "batch_size": 16_384, "max_block_ms": SHORT_MS}
        async with make(None, **settings) as producer:
            await producer.send("topic", b"", partition=0)
            client.held.add(ApiKey.PRODUCE)
            for _ in range(2):
                await producer.send("topic", b"x" * 16_000, partition=0)
            waits = [producer.send("topic", b"x" * 16_000, partition=0) for _ in range(3)]
            futures = await asyncio.gather(*waits)
            for future in futures:
                with pytest.raises(KafkaError, match="buffer_memory"):
                    await future
            client.release(ApiKey.PRODUCE)
            await (await producer.send("topic", b"", partition=0))
            assert not producer._turns

    run(main())


def test_a_record_that_is_refused_fails_by_its_future_or_at_once(run, make, client):
    async def main():
        async with make(max_request_size=1000) as producer:
            with pytest.raises(IllegalStateError, match="begin_transaction"):
                await producer.send("topic", b"outside")
            producer.begin_transaction()
            future = await producer.send("topic", bytes(2000))
            with pytest.raises(RecordTooLargeError):
                await future

    run(main())


def test_an_unknown_outcome_is_resolved(run, make, client):
    async def main():
        async with make() as producer:
            with pytest.raises(IllegalStateError, match="no commit has ended"):
                await producer.resolve_outcome()
            async with producer.transaction():
                await producer.send("topic", b"value")
            assert await producer.resolve_outcome() == "committed"

    run(main())


def test_a_close_ends_what_is_open_and_a_second_one_does_nothing(run, make, client):
    async def main():
        producer = make()
        await producer.init_transactions()
        client.held.add(ApiKey.PRODUCE)
        producer.begin_transaction()
        future = await producer.send("topic", b"value")
        closing = asyncio.ensure_future(producer.close())
        await asyncio.sleep(0.02)  # long enough for a close that does not wait
        assert not closing.done()
        client.release(ApiKey.PRODUCE)
        await closing
        assert (await future).topic == "topic"
        await producer.close()
        with pytest.raises(IllegalStateError, match="closed"):
            await producer.send("topic", b"late")

    run(main())
    assert commits_sent(client) == [False]


def test_a_closed_producer_leaves_no_thread(run, make, client):
    before = threading.active_count()

    async def main():
        async with make() as producer:
            assert threading.active_count() == before + 1
            await producer.flush()

    run(main())
    assert threading.active_count() == before


# --- the event loop ------------------------------------------------------------------------------


def test_the_loop_goes_on_while_a_call_waits(run, make, client):
    async def main():
        async with make() as producer:
            client.held.add(ApiKey.END_TXN)
            ticks = 0
            producer.begin_transaction()
            await producer.send("topic", b"value")
            commit = asyncio.ensure_future(producer.commit_transaction())
            while ticks < 20:
                await asyncio.sleep(0.001)
                ticks += 1
            assert not commit.done()
            client.release(ApiKey.END_TXN)
            await commit

    run(main())


def test_a_loop_is_woken_once_for_a_commit(make, client, monkeypatch):
    async def main():
        async with make() as producer:
            await producer.partitions_for("topic")
            loop, wakes = asyncio.get_running_loop(), []
            usual = loop.call_soon_threadsafe

            def call_soon(*args):
                wakes.append(args)
                usual(*args)

            monkeypatch.setattr(loop, "call_soon_threadsafe", call_soon)
            for _ in range(10):
                async with producer.transaction():
                    for _ in range(100):
                        await producer.send("topic", b"value")
            assert len(wakes) == 10

    asyncio.run(main())


def test_many_columns_let_other_tasks_go_on_between_two_batches(run, make, client):
    async def main():
        async with make(batch_size=10_000) as producer:
            await producer.partitions_for("topic")
            turns = 0

            async def count():
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            counting = asyncio.ensure_future(count())
            async with producer.transaction():
                await producer.send_batch("topic", [b"x" * 1000] * 200)
            counting.cancel()
            assert turns > 20

    run(main())
