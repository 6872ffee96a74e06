"""A task that is cancelled, at each of the waits of a program: nothing is left undecided."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.live_client import commits_sent
from tests.waiting import becomes_true
from txnproducer._protocol.messages import ApiKey
from txnproducer.records import ConsumerGroupMetadata, TopicPartition

OFFSETS = {TopicPartition("in", 0): 5}
GROUP = ConsumerGroupMetadata("group")
MOST_WAITS = 60


@dataclass
class CancelAt:
    """Awaits a coroutine, and cancels its task at one of the waits.

    Attributes:
        at: the number of the wait, from 0.
        waits: the number of them so far.
    """

    at: int
    waits: int = 0

    def __call__(self, main: Coroutine[Any, Any, Any]) -> CancelAt:
        self._main = main
        return self

    def __await__(self) -> Generator[Any, None, Any]:
        steps = self._main.__await__()
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                wait = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as stop:
                return stop.value
            if self.waits == self.at:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            self.waits += 1
            answer, error = None, None
            try:
                answer = yield wait
            except BaseException as raised:  # noqa: BLE001 - passed on to the coroutine
                error = raised


@dataclass
class Program:
    """A program that waits in each call, and the outcome of its transaction."""

    make: Callable[..., Any]
    transactions: list[Any] = field(default_factory=list)

    async def run(self) -> None:
        settings = {"buffer_memory": 40_000, "batch_size": 16_384}
        async with self.make(**settings) as producer:
            async with producer.transaction() as transaction:
                self.transactions.append(transaction)
                await transaction.send("other", b"whose partitions are not known yet")
                for _ in range(4):  # more than the memory takes
                    await transaction.send("topic", b"x" * 16_000, partition=0)
                await transaction.send_batch("topic", [b"x" * 8_000] * 8)
                await transaction.send_offsets(OFFSETS, GROUP)
                await producer.flush()
                future = await transaction.send("topic", b"last")
                await future
            await self.close(producer)

    async def close(self, producer: Any) -> None:
        """End by the call that a block makes at its end, here with the outcome known."""
        assert self.transactions[0].outcome == "committed"


def test_a_program_that_is_cancelled_at_any_wait_ends_its_transaction(make, client):
    client.topics["other"] = 1
    outcomes = set()
    # How many waits a run has depends on the threads. So the end is the run that is over before.
    for at in range(MOST_WAITS):
        sent_before = len(commits_sent(client))
        program = Program(make)

        async def main(program=program, at=at) -> bool:
            try:
                await CancelAt(at)(program.run())
            except asyncio.CancelledError:
                return True
            return False

        was_cancelled = asyncio.run(asyncio.wait_for(main(), 20))
        sent = commits_sent(client)[sent_before:]
        # Without a transaction there is nothing to end: it was cancelled in `init_transactions`.
        outcome = program.transactions[0].outcome if program.transactions else None
        wanted: dict[str | None, list[list[bool]]]
        wanted = {None: [[]], "aborted": [[False], []], "committed": [[True]]}
        assert sent in wanted[outcome], f"wait {at}: {outcome}"
        outcomes.add(outcome)
        if not was_cancelled:
            break
    assert at >= 8
    assert not was_cancelled
    assert outcomes == {None, "aborted", "committed"}


def test_a_commit_whose_task_is_cancelled_goes_on_and_can_be_awaited(run, make, client):
    async def main():
        async with make() as producer:
            client.held.add(ApiKey.END_TXN)

            async def work():
                async with producer.transaction() as transaction:
                    transactions.append(transaction)
                    await producer.send("topic", b"a payment")

            transactions: list[Any] = []
            task = asyncio.ensure_future(work())
            while not client.sent(ApiKey.END_TXN):
                await asyncio.sleep(0.001)  # another thread sends it
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert transactions[0].outcome == "open", "its caller is not told a lie"
            client.release(ApiKey.END_TXN)
            await producer.commit_transaction()
            assert transactions[0].outcome == "committed"

    run(main())
    assert commits_sent(client) == [True]


def test_a_time_out_inside_a_block_aborts_it(run, make, client):
    async def main():
        async with make() as producer:
            client.held.add(ApiKey.PRODUCE)
            transaction = producer.transaction()

            async def work():
                async with asyncio.timeout(0.02), transaction:
                    future = await transaction.send("topic", b"value")
                    await future

            task = asyncio.ensure_future(work())
            while producer.transaction_state != "ABORTING_TRANSACTION":
                await asyncio.sleep(0.001)  # until the time is up
            client.release(ApiKey.PRODUCE)
            with pytest.raises(TimeoutError):
                await task
            assert transaction.outcome == "aborted"

    run(main())
    assert commits_sent(client) == [False]


def test_a_second_cancellation_ends_the_wait_for_the_abort_alone(run, make, client):
    async def main():
        async with make() as producer:
            client.held.update((ApiKey.PRODUCE, ApiKey.END_TXN))
            transaction = producer.transaction()

            async def work():
                async with transaction:
                    await (await transaction.send("topic", b"value"))

            task = asyncio.ensure_future(work())
            while not client.sent(ApiKey.PRODUCE):
                await asyncio.sleep(0.001)  # another thread sends it
            task.cancel()
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert transaction.outcome == "aborted", "certain, since no commit was sent"
            client.release(ApiKey.PRODUCE, ApiKey.END_TXN)
            async with producer.transaction():
                await producer.send("topic", b"of the next one")

    run(main())
    assert commits_sent(client) == [False, True]


def test_a_group_with_a_failing_sibling_aborts_the_block(run, make, client):
    async def main():
        async with make() as producer:
            transaction = producer.transaction()

            async def fail():
                await asyncio.sleep(0.01)
                raise ZeroDivisionError

            async def write_for_ever():
                while True:
                    await (await transaction.send("topic", b"value"))

            async def work():
                async with transaction, asyncio.TaskGroup() as group:
                    group.create_task(write_for_ever())
                    group.create_task(fail())

            with pytest.raises(ExceptionGroup):
                await work()
            assert transaction.outcome == "aborted"

    run(main())
    assert commits_sent(client) == [False]


def test_a_close_whose_task_is_cancelled_goes_on_to_its_end(run, make, client):
    async def main():
        producer = make()
        await producer.init_transactions()
        client.held.add(ApiKey.PRODUCE)
        producer.begin_transaction()
        await producer.send("topic", b"value")
        closing = asyncio.ensure_future(producer.close())
        await asyncio.sleep(0.01)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        client.release(ApiKey.PRODUCE)
        await producer.close()
        assert client.is_closed

    run(main())
    assert commits_sent(client) == [False]


@pytest.mark.parametrize("ends_first", [True, False])
def test_the_next_block_waits_for_a_commit_that_its_task_has_left(run, make, client, ends_first):
    async def main():
        async with make() as producer:
            client.held.add(ApiKey.END_TXN)
            left = producer.transaction()

            async def work():
                async with left:
                    await producer.send("topic", b"value")

            task = asyncio.ensure_future(work())
            while not client.sent(ApiKey.END_TXN):
                await asyncio.sleep(0.001)  # another thread sends it
            task.cancel()
            await asyncio.wait([task])
            if ends_first:
                client.release(ApiKey.END_TXN)
                await asyncio.sleep(0.02)  # until the commit has ended in the background
            next_block = asyncio.ensure_future(producer.transaction().__aenter__())
            await asyncio.sleep(0.02)  # long enough for a block that does not wait
            client.release(ApiKey.END_TXN)
            await next_block
            assert left.outcome == "committed"
            await producer.abort_transaction()

    run(main())


def test_a_loop_that_is_closed_with_a_waiting_task_keeps_no_producer(make, client):
    loop = asyncio.new_event_loop()
    producer = make()
    loop.run_until_complete(producer.init_transactions())
    client.held.add(ApiKey.PRODUCE)

    async def begin():
        producer.begin_transaction()
        await producer.send("topic", b"value")
        asyncio.ensure_future(producer.flush()).add_done_callback(lambda _: None)
        await asyncio.sleep(0)

    loop.run_until_complete(begin())
    loop.close()
    io = producer._calls._io
    assert len(io._waits) == 1
    client.release(ApiKey.PRODUCE)
    assert becomes_true(lambda: not io._waits)
    producer._calls.close(0)
