"""An asyncio service that answers a request when its record is committed.

Requests are tasks, and a producer has one transaction at a time. So one task writes all records
that wait in one transaction, and the requests await it. A request that is cancelled while it waits
is not written. Half of the requests arrive while the first ones are being committed.

It needs: pip install '.[testing]'
Run it: python examples/async_service.py [bootstrap servers]
"""

from __future__ import annotations

import asyncio

from _cluster import cluster, create_topic, values_in

from txnproducer.aio import AsyncTransactionalProducer
from txnproducer.errors import KafkaError

REQUESTS = 400


class GroupWriter:
    """Write the records that wait, all of them in one transaction.

    Args:
        producer: nothing else uses it.
        topic: where to.
        most: records of one transaction at most.
    """

    def __init__(self, producer: AsyncTransactionalProducer, topic: str, most: int = 500) -> None:
        self._producer = producer
        self._topic = topic
        self._most = most
        self._waiting: asyncio.Queue[tuple[bytes, asyncio.Future[None]]] = asyncio.Queue()
        self.transactions = 0

    async def write(self, value: bytes) -> None:
        """Return when the value is committed. Raise the error of its transaction if it is not."""
        done = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((value, done))
        await done

    async def run(self) -> None:
        """Write until the task is cancelled, or the producer has failed for good."""
        while True:
            taken = [await self._waiting.get()]
            while len(taken) < self._most and not self._waiting.empty():
                taken.append(self._waiting.get_nowait())
            await self._write_together(taken)

    async def _write_together(self, taken: list[tuple[bytes, asyncio.Future[None]]]) -> None:
        wanted = [(value, done) for value, done in taken if not done.done()]
        try:
            async with self._producer.transaction():
                for value, _ in wanted:
                    await self._producer.send(self._topic, value)
        except KafkaError as error:
            for _, done in wanted:
                if not done.done():
                    done.set_exception(error)
            if error.recovery != "abort":
                raise  # this producer cannot go on: let the process be replaced
        else:
            self.transactions += 1
            for _, done in wanted:
                if not done.done():
                    done.set_result(None)


async def serve(bootstrap_servers: str, topic: str) -> None:
    """Answer requests, and cancel one of them."""
    async with AsyncTransactionalProducer(bootstrap_servers, topic, linger_ms=0) as producer:
        writer = GroupWriter(producer, topic)
        writing = asyncio.create_task(writer.run())

        async def request(number: int) -> None:
            await asyncio.sleep(0.02 * (number % 2))
            await writer.write(b"order %d" % number)

        cancelled = asyncio.create_task(writer.write(b"an order that its customer has withdrawn"))
        cancelled.cancel()
        await asyncio.gather(*(request(number) for number in range(REQUESTS)))
        writing.cancel()
    is_grouped = writer.transactions < REQUESTS
    print(f"{REQUESTS} requests were answered, many with one transaction: {is_grouped}")


def main() -> None:
    """Run the service, and read its records."""
    with cluster() as bootstrap_servers:
        topic = create_topic(bootstrap_servers, "async-service")
        asyncio.run(serve(bootstrap_servers, topic))
        values = values_in(bootstrap_servers, topic)
        print(f"read_committed sees {len(values)} orders, {len(set(values))} of them different")


if __name__ == "__main__":
    main()
