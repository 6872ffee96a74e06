"""The futures of records: as callbacks, for a library of Python's executors, and awaited.

None of this is needed: the commit waits for all records, and fails with any.

It needs: pip install '.[testing]'
python examples/futures.py [bootstrap servers]
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Sequence
from typing import Any

from _cluster import cluster, create_topic, new_name, values_in

from txnproducer import TransactionalProducer

ORDERS = [f"order {number}".encode() for number in range(5)]


def with_callbacks(producer: TransactionalProducer, topic: str) -> list[int]:
    """Return the offsets as they become known. The callbacks run on the producer's I/O thread."""
    offsets: list[int] = []

    def note(future: Any) -> None:
        if future.exception() is None:
            offsets.append(future.result().offset)

    with producer.transaction():
        for order in ORDERS:
            producer.send(topic, order).add_done_callback(note)
    return offsets


def with_concurrent_futures(producer: TransactionalProducer, topic: str) -> list[int]:
    """Wait with the tools for executors, as a library that knows no other futures does."""
    with producer.transaction():
        futures = [producer.send(topic, order).as_concurrent_future() for order in ORDERS]
        done, _ = concurrent.futures.wait(futures, timeout=10)
    return sorted(future.result().offset for future in done)


async def awaited(futures: Sequence[Any]) -> list[int]:
    """Await futures of a producer for threads in an event loop."""
    return [record.offset for record in await asyncio.gather(*futures)]


def main() -> None:
    with cluster() as servers:
        topic = create_topic(servers, "orders")
        with TransactionalProducer(servers, new_name("orders")) as producer:
            producer.init_transactions()
            print("offsets by callbacks:", with_callbacks(producer, topic))
            print("by concurrent.futures:", with_concurrent_futures(producer, topic))
            with producer.transaction():
                futures = [producer.send(topic, order) for order in ORDERS]
                print("awaited:", asyncio.run(awaited(futures)))
        print(f"read_committed sees {len(values_in(servers, topic))} orders")


if __name__ == "__main__":
    main()
