"""Thousands of tasks that send at the same time."""

from __future__ import annotations

import asyncio

from tests.live_client import commits_sent
from txnproducer._protocol.messages import ApiKey
from txnproducer.errors import IllegalStateError, TransactionAbortedError

TASKS = 10_000


def test_ten_thousand_tasks_send_into_one_transaction(run, make, client):
    client.topics.update({"first": 2, "second": 3})

    async def main():
        # Small batches: the partitions are drawn once for each, and all of them must come up.
        async with make(buffer_memory=200_000, batch_size=1_000, linger_ms=1) as producer:
            waits: list[int] = []

            async def send(number):
                topic = ("first", "second")[number % 2]
                future = await producer.send(topic, b"%d" % number)
                waits.append(len(producer._calls._io._waits))
                return (await future).partition

            async with producer.transaction() as transaction:
                places = await asyncio.gather(*(send(number) for number in range(TASKS)))
            assert transaction.outcome == "committed"
            assert len(places) == TASKS
            assert set(places) == {0, 1, 2}
            # One for each topic: thousands would be asked in every turn whether they can go on.
            assert max(waits) <= 2
            assert not producer._turns

    run(main())
    assert commits_sent(client) == [True]
    assert len(client.sent(ApiKey.PRODUCE)) > 10


def test_the_records_of_one_task_keep_their_order_while_they_wait(run, make, client):
    async def main():
        async with make(None, buffer_memory=40_000, batch_size=10_000) as producer:
            futures = []

            async def send_all(first):
                for number in range(first, first + 30):
                    value = b"%d" % number + bytes(3_000)
                    futures.append((first, await producer.send("topic", value, partition=0)))

            await asyncio.gather(*(send_all(1000 * n) for n in range(5)))
            for first in range(0, 5000, 1000):
                own = [(await future).offset for name, future in futures if name == first]
                assert own == sorted(own)

    run(main())


def test_a_task_that_is_cancelled_in_the_queue_lets_the_next_one_go_on(run, make, client):
    async def main():
        async with make(None, buffer_memory=40_000, batch_size=16_384) as producer:
            await producer.partitions_for("topic")
            client.held.add(ApiKey.PRODUCE)
            for _ in range(2):
                await producer.send("topic", b"x" * 16_000, partition=0)
            tasks = [
                asyncio.ensure_future(producer.send("topic", b"x" * 16_000, partition=0))
                for _ in range(4)
            ]
            await asyncio.sleep(0.02)  # until all of them wait
            for task in tasks[:2]:  # the one that waits for memory, and the one behind it
                task.cancel()
            client.release(ApiKey.PRODUCE)
            done, _ = await asyncio.wait(tasks)
            assert sum(task.cancelled() for task in done) == 2
            for task in tasks[2:]:
                await task.result()
            assert producer.metrics()["waiting-threads"] == 0
            assert not producer._turns

    run(main())


def test_a_record_that_waits_does_not_land_in_the_next_transaction(run, make, client):
    async def main():
        async with make(buffer_memory=40_000, batch_size=16_384) as producer:
            await producer.partitions_for("topic")
            client.held.add(ApiKey.PRODUCE)
            first = producer.transaction()
            await first.__aenter__()
            for _ in range(2):
                await first.send("topic", b"x" * 16_000, partition=0)
            waits = [
                asyncio.ensure_future(first.send("topic", b"x" * 16_000, partition=0))
                for _ in range(3)
            ]
            await asyncio.sleep(0.02)  # until all of them wait
            aborting = asyncio.ensure_future(first.__aexit__(ValueError, ValueError(), None))
            await asyncio.sleep(0)
            client.release(ApiKey.PRODUCE)
            await aborting
            async with producer.transaction() as second:
                future = await second.send("topic", b"of the second")
                found = await asyncio.gather(*waits, return_exceptions=True)
                await future
            kinds = {type(one) for one in found}
            assert kinds <= {TransactionAbortedError, IllegalStateError}, found

    run(main())
    assert commits_sent(client) == [False, True]
