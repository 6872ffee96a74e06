"""The producer for asyncio on an in-memory Kafka, with its faults."""

from __future__ import annotations

import asyncio

import pytest

from tests.needs import in_python
from txnproducer.errors import IllegalStateError, KafkaError
from txnproducer.testing import InMemoryKafka


@pytest.fixture
def kafka():
    with InMemoryKafka(topics={"orders": 2}) as kafka:
        yield kafka


def test_a_program_for_asyncio_is_tested_without_a_broker(kafka):
    async def main():
        async with kafka.async_producer("svc", linger_ms=0) as producer:
            assert type(producer).__name__ == "AsyncTransactionalProducer"
            async with producer.transaction() as transaction:
                await transaction.send("orders", b"first")
            async with producer.transaction():
                await producer.send_batch("orders", [b"second", b"third"])
            with pytest.raises(ZeroDivisionError):
                await fail(producer.transaction())

    asyncio.run(main())
    values = sorted(record.value for record in kafka.records("orders"))
    assert values == [b"first", b"second", b"third"]


async def fail(transaction):
    async with transaction:
        await transaction.send("orders", b"never")
        raise ZeroDivisionError


def test_a_fault_of_the_cluster_reaches_the_task(kafka):
    async def main():
        async with kafka.async_producer("svc", linger_ms=0) as producer:
            kafka.fail_next("EndTxn", error="TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
            with pytest.raises(KafkaError, match=r"TRANSACTIONAL_ID|authoriz"):
                async with producer.transaction():
                    await producer.send("orders", b"value")

    asyncio.run(main())


def test_a_run_is_repeated_after_an_abort(kafka):
    calls = []

    async def write(transaction):
        calls.append(transaction)
        await transaction.send("orders", b"value")

    async def main():
        async with kafka.async_producer("svc", linger_ms=0) as producer:
            kafka.fail_next("Produce", error="INVALID_PRODUCER_EPOCH")
            await producer.run_transaction(write)

    asyncio.run(main())
    assert len(calls) == 2
    assert [record.value for record in kafka.records("orders")] == [b"value"]


def test_a_producer_ends_with_its_cluster(kafka):
    async def main():
        producer = kafka.async_producer("svc")
        await producer.init_transactions()
        producer.begin_transaction()
        kafka.close()
        with pytest.raises(IllegalStateError, match="InMemoryKafka is closed"):
            await producer.send("orders", b"late")

    asyncio.run(main())
    assert kafka.records("orders") == []


@in_python
def test_virtual_time_has_no_event_loop():
    with InMemoryKafka(topics={"orders": 1}, clock="virtual") as kafka:
        with pytest.raises(RuntimeError, match="no event loop runs in virtual time"):
            kafka.async_producer("svc")
