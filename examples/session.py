"""Read, transform, write with a session: it takes care of offsets, rebalances and failures.

Two workers of one group share the input. One of them stops after a while, so that the other takes
over its partitions. One record always fails, and goes to the dead-letter topic.

It needs: pip install '.[testing]'
Run it: python examples/session.py [bootstrap servers]
"""

from __future__ import annotations

import threading

from _cluster import cluster, create_topic, new_name, values_in

from txnproducer import Transaction, TransactionalProducer
from txnproducer.session import Record, TransactSession

NUMBERS = range(1, 201)


def write_numbers(bootstrap_servers: str, topic: str) -> None:
    with TransactionalProducer(bootstrap_servers, new_name("numbers")) as producer:
        producer.init_transactions()
        with producer.transaction():
            for number in NUMBERS:
                producer.send(topic, b"%d" % number, key=b"%d" % (number % 8))
            producer.send(topic, b"not a number", key=b"8")


class Worker:
    """One member of the group, in a thread. In production it is a process of its own."""

    def __init__(self, servers: str, name: str, topics: tuple[str, str, str]) -> None:
        numbers, self._squares, dead = topics
        self._stop = threading.Event()
        self._session = TransactSession.for_kafka_python(
            [numbers],
            f"squares of {numbers}",
            f"{numbers}-{name}",
            bootstrap_servers=servers,
            max_failures=2,
            dead_letter_topic=dead,
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._session as session:
            session.run(self._square, self._stop, max_records=10)

    def _square(self, record: Record, transaction: Transaction) -> None:
        transaction.send(self._squares, b"%d" % (int(record.value) ** 2), key=record.key)

    def stop(self) -> None:
        """End after the batch under way, and leave the group."""
        self._stop.set()
        self._thread.join()


def main() -> None:
    with cluster() as bootstrap_servers:
        numbers = create_topic(bootstrap_servers, "numbers", partitions=4)
        squares = create_topic(bootstrap_servers, "squares", partitions=4)
        dead = create_topic(bootstrap_servers, "dead")
        topics = numbers, squares, dead
        workers = [Worker(bootstrap_servers, name, topics) for name in ("a", "b")]
        write_numbers(bootstrap_servers, numbers)
        workers[0].stop()
        while len(values_in(bootstrap_servers, squares)) < len(NUMBERS):
            pass  # each look takes a second
        workers[1].stop()
        found = sorted(int(value) for value in values_in(bootstrap_servers, squares))
        print(f"each square once: {found == [number**2 for number in NUMBERS]}")
        print(f"in the dead-letter topic: {values_in(bootstrap_servers, dead)}")


if __name__ == "__main__":
    main()
