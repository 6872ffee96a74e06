"""The producer for asyncio on a real broker: transactions, offsets, fencing, cancellation."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from integration.readers import read_with_confluent, values
from txnproducer import TransactionalProducer
from txnproducer.admin import committed_offsets
from txnproducer.aio import AsyncTransactionalProducer
from txnproducer.errors import KafkaError
from txnproducer.records import ConsumerGroupMetadata, TopicPartition

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
TRANSACTIONS = 150


def committed(kafka, topic):
    return sorted(values(read_with_confluent(kafka.bootstrap_servers, topic)))


def test_records_columns_and_offsets_are_committed_together(kafka, topic, transactional_id):
    async def main():
        async with AsyncTransactionalProducer(kafka.bootstrap_servers, transactional_id) as one:
            async with one.transaction() as transaction:
                future = await transaction.send(topic, b"first", headers={"name": b"header"})
                rows = await transaction.send_batch(topic, [b"second", b"third"])
                offsets = {TopicPartition(topic, 0): 7}
                await transaction.send_offsets(offsets, ConsumerGroupMetadata(transactional_id))
            assert transaction.outcome == "committed"
            assert (await future).offset >= 0
            assert len(await rows) == 2
            assert await one.resolve_outcome() == "committed"

    asyncio.run(main())
    assert committed(kafka, topic) == [b"first", b"second", b"third"]
    found = committed_offsets(kafka.bootstrap_servers, [transactional_id])
    assert [place.offset for place in found[transactional_id].values()] == [7]


def test_a_newer_producer_of_the_id_fences_this_one(kafka, topic, transactional_id):
    async def main():
        async with AsyncTransactionalProducer(kafka.bootstrap_servers, transactional_id) as one:
            await asyncio.to_thread(take_over, kafka, transactional_id)
            with pytest.raises(KafkaError, match="a newer producer of this id"):
                await write(one.transaction(), topic, b"of the older one")

    asyncio.run(main())
    assert committed(kafka, topic) == []


def take_over(kafka, transactional_id):
    with TransactionalProducer(kafka.bootstrap_servers, transactional_id) as newer:
        newer.init_transactions()


async def write(transaction, topic, value):
    async with transaction:
        await transaction.send(topic, value)


def test_tasks_that_are_cancelled_at_any_time_know_what_is_committed(
    kafka, topic, transactional_id
):
    rng = random.Random(5)
    written: list[bytes] = []

    async def pay(one: AsyncTransactionalProducer, number: int, transactions: list[Any]) -> None:
        async with one.transaction() as transaction:
            transactions.append(transaction)
            for part in range(3):
                await transaction.send(topic, b"%d.%d" % (number, part))
                await asyncio.sleep(rng.uniform(0, 0.002))

    async def main():
        outcomes: set[str | None] = set()
        servers = kafka.bootstrap_servers
        async with AsyncTransactionalProducer(servers, transactional_id, linger_ms=0) as one:
            for number in range(TRANSACTIONS):
                transactions: list[Any] = []
                task = asyncio.create_task(pay(one, number, transactions))
                # From before the first record to after the commit.
                await asyncio.wait([task], timeout=rng.uniform(0, 0.012))
                task.cancel()
                await asyncio.wait([task])
                (transaction,) = transactions or [None]
                if transaction is not None and transaction.outcome == "open":
                    outcomes.add("open")
                    await one.commit_transaction()
                outcome = None if transaction is None else transaction.outcome
                outcomes.add(outcome)
                if outcome == "committed":
                    written.extend(b"%d.%d" % (number, part) for part in range(3))
        return outcomes

    outcomes = asyncio.run(main())
    assert committed(kafka, topic) == sorted(written)
    assert outcomes >= {"committed", "aborted"}
