"""Mistakes with event loops and tasks raise at once, with the way out."""

from __future__ import annotations

import asyncio
import logging
import threading
import warnings

import pytest

from tests.waiting import wait_until
from txnproducer import TransactionalProducer
from txnproducer.errors import IllegalStateError, KafkaError


def test_a_second_loop_is_refused(make, client):
    producer = make()

    async def use():
        async with producer.transaction():
            await producer.send("topic", b"value")

    asyncio.run(producer.init_transactions())
    with pytest.raises(IllegalStateError, match=r"another event loop.*make one in each loop"):
        asyncio.run(use())
    producer._calls.close(0)


def test_a_second_thread_is_refused(make, client):
    async def main():
        async with make() as producer:
            errors = []

            def work():
                try:
                    asyncio.run(producer.flush())
                except IllegalStateError as error:
                    errors.append(error)

            await asyncio.to_thread(work)
            assert "which threads may share" in str(errors[0])

    asyncio.run(main())


def test_a_plain_with_is_refused(make, client):
    async def main():
        producer = make()
        with pytest.raises(TypeError, match="async with AsyncTransactionalProducer"), producer:
            pytest.fail("entered")
        async with producer:
            with pytest.raises(TypeError, match=r"async with producer\.transaction"):
                with producer.transaction():
                    pytest.fail("entered")

    asyncio.run(main())


def test_an_async_with_of_the_producer_for_threads_is_refused(client):
    async def main(producer):
        async with producer:
            pytest.fail("entered")

    with TransactionalProducer("boot:9092", "txn") as producer:
        with pytest.raises(TypeError, match="AsyncTransactionalProducer"):
            asyncio.run(main(producer))
        with pytest.raises(TypeError, match="AsyncTransactionalProducer"):
            asyncio.run(main(producer.transaction()))


def test_a_block_in_a_block_is_refused(run, make, client):
    async def nest(producer):
        async with producer.transaction():
            await producer.send("topic", b"of the outer one")
            async with producer.transaction():
                pytest.fail("entered")

    async def main():
        async with make() as producer:
            with pytest.raises(IllegalStateError, match="transaction"):
                await nest(producer)
            assert producer.transaction_state == "READY"

    run(main())


@pytest.mark.parametrize("call", ["begin_transaction", "commit_transaction", "abort_transaction"])
def test_the_block_of_another_task_is_not_ended(run, make, client, call):
    async def main():
        async with make() as producer:

            async def meddle():
                result = getattr(producer, call)()
                if result is not None:
                    await result

            async with producer.transaction() as transaction:
                await transaction.send("topic", b"value")
                with pytest.raises(IllegalStateError, match=r"another task's.*asyncio\.timeout"):
                    await asyncio.ensure_future(meddle())
                await asyncio.ensure_future(transaction.send("topic", b"of another task"))
            assert transaction.outcome == "committed"

    run(main())


def test_a_transaction_that_is_over_takes_no_records(run, make, client):
    async def main():
        async with make() as producer:
            transaction = producer.transaction()
            with pytest.raises(IllegalStateError, match="not begun"):
                await transaction.send("topic", b"early")
            async with transaction:
                pass
            with pytest.raises(IllegalStateError, match="committed"):
                await transaction.send("topic", b"late")
            with pytest.raises(IllegalStateError, match="used once"):
                await transaction.__aenter__()

    run(main())


# --- the producer for threads, on an event loop's thread -----------------------------------------


@pytest.mark.parametrize(
    "call", [lambda one: one.commit_transaction(), lambda one: one.send("topic", b"").result()]
)
def test_a_call_that_blocks_an_event_loop_warns_at_its_line(client, call):
    with TransactionalProducer("boot:9092", "txn", linger_ms=0) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("topic", b"value")

        async def main():
            call(producer)

        with pytest.warns(RuntimeWarning, match="blocks the event loop") as found:
            asyncio.run(main())
        assert {warning.filename for warning in found} == {__file__}
        assert "AsyncTransactionalProducer" in str(found[0].message)


def test_a_call_that_does_not_wait_does_not_warn(client):
    with TransactionalProducer("boot:9092", "txn", linger_ms=0) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        future = producer.send("topic", b"value")
        producer.flush()

        async def main():
            assert future.result().topic == "topic"
            producer.send("topic", b"value")

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            asyncio.run(main())
        producer.abort_transaction()


def test_an_await_of_a_call_for_threads_fails_after_the_warning(client):
    with TransactionalProducer("boot:9092", "txn", linger_ms=0) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("topic", b"value")

        async def main():
            await producer.commit_transaction()  # type: ignore[func-returns-value, misc]

        with pytest.warns(RuntimeWarning, match="blocks"), pytest.raises(TypeError):
            asyncio.run(main())


def test_a_delivery_callback_that_awaits_is_logged(client, caplog):
    async def on_delivery(metadata, error):
        raise NotImplementedError

    with TransactionalProducer("boot:9092", None, linger_ms=0) as producer:
        with caplog.at_level(logging.ERROR):
            producer.send("topic", b"value", on_delivery=on_delivery)
            wait_until(lambda: caplog.records)
        assert "returned a coroutine, which nobody awaits" in caplog.text
        assert "await the future" in caplog.text


def test_a_thread_beside_the_loop_does_not_warn(client):
    errors: list[KafkaError] = []

    async def main(producer):
        def work():
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                producer.flush()

        thread = threading.Thread(target=work)
        thread.start()
        await asyncio.to_thread(thread.join)

    with TransactionalProducer("boot:9092", None) as producer:
        producer.send("topic", b"value")
        asyncio.run(main(producer))
    assert errors == []
