"""How each peer writes a work: run as a process of its own, so that none is warm for another.

Each prints one JSON line: seconds of wall clock and of CPU, from the first begin to the last
commit; starting, connecting and `init_transactions` are not counted.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

BATCH_BYTES = 65536
LINGER_MS = 5


@dataclass(frozen=True)
class Work:
    """What is written.

    Attributes:
        name: of the work.
        value_bytes: per record.
        records: per transaction.
        transactions: how many.
        codec: or None.
    """

    name: str
    value_bytes: int
    records: int
    transactions: int
    codec: str | None = None


WORKS = (
    Work("100 B, 50,000 per transaction", 100, 50_000, 4),
    Work("100 B, 1,000 per transaction", 100, 1_000, 60),
    Work("1 KB lz4, 20,000 per transaction", 1_000, 20_000, 3, "lz4"),
    Work("10 records per transaction", 100, 10, 150),
    Work("1 record per transaction", 100, 1, 150),
)

# As near to each other as their settings allow; what is not named is the peer's default.
SETTINGS = {
    "txnproducer": f"batch_size={BATCH_BYTES} linger_ms={LINGER_MS}",
    "kafka-python": f"batch_size={BATCH_BYTES} linger_ms={LINGER_MS}",
    "aiokafka": f"max_batch_size={BATCH_BYTES} linger_ms={LINGER_MS}",
    "confluent-kafka": f"batch.size={BATCH_BYTES} linger.ms={LINGER_MS}, produce(), poll(0)/1,000",
}


class Clock:
    """Wall and CPU seconds of this process since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.monotonic(), self._used()

    @staticmethod
    def _used() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    def read(self) -> dict[str, float]:
        return {"seconds": time.monotonic() - self._wall, "cpu": self._used() - self._cpu}


def run_txnproducer(servers: str, topic: str, name: str, work: Work) -> dict[str, float]:
    from txnproducer import TransactionalProducer

    value = b"x" * work.value_bytes
    with TransactionalProducer(
        servers,
        name,
        batch_size=BATCH_BYTES,
        linger_ms=LINGER_MS,
        compression_type=work.codec or "none",
    ) as producer:
        producer.init_transactions()
        clock = Clock()
        for _ in range(work.transactions):
            producer.begin_transaction()
            for _ in range(work.records):
                producer.send(topic, value)
            producer.commit_transaction()
        return clock.read()


def run_kafka_python(servers: str, topic: str, name: str, work: Work) -> dict[str, float]:
    from kafka import KafkaProducer

    value = b"x" * work.value_bytes
    producer = KafkaProducer(
        bootstrap_servers=servers,
        transactional_id=name,
        batch_size=BATCH_BYTES,
        linger_ms=LINGER_MS,
        compression_type=work.codec,
    )
    producer.init_transactions()
    clock = Clock()
    for _ in range(work.transactions):
        producer.begin_transaction()
        for _ in range(work.records):
            producer.send(topic, value)
        producer.commit_transaction()
    read = clock.read()
    producer.close()
    return read


def run_aiokafka(servers: str, topic: str, name: str, work: Work) -> dict[str, float]:
    from aiokafka import AIOKafkaProducer

    async def write() -> dict[str, float]:
        value = b"x" * work.value_bytes
        producer = AIOKafkaProducer(
            bootstrap_servers=servers,
            transactional_id=name,
            max_batch_size=BATCH_BYTES,
            linger_ms=LINGER_MS,
            compression_type=work.codec,
        )
        await producer.start()
        try:
            clock = Clock()
            for _ in range(work.transactions):
                async with producer.transaction():
                    for _ in range(work.records):
                        await producer.send(topic, value)
            return clock.read()
        finally:
            await producer.stop()

    return asyncio.run(write())


def run_confluent(servers: str, topic: str, name: str, work: Work) -> dict[str, float]:
    import confluent_kafka

    value = b"x" * work.value_bytes
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": servers,
            "transactional.id": name,
            "batch.size": BATCH_BYTES,
            "linger.ms": LINGER_MS,
            "compression.type": work.codec or "none",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    producer.init_transactions(30)
    clock = Clock()
    for _ in range(work.transactions):
        producer.begin_transaction()
        for number in range(work.records):
            producer.produce(topic, value)
            if number % 1_000 == 0:
                producer.poll(0)
        producer.commit_transaction(60)
    return clock.read()


PEERS: dict[str, Callable[[str, str, str, Work], dict[str, float]]] = {
    "txnproducer": run_txnproducer,
    "kafka-python": run_kafka_python,
    "aiokafka": run_aiokafka,
    "confluent-kafka": run_confluent,
}


def main() -> None:
    peer, servers, topic, work, share = sys.argv[1:]
    chosen: Any = WORKS[int(work)]
    transactions = max(1, int(chosen.transactions * float(share)))
    chosen = Work(chosen.name, chosen.value_bytes, chosen.records, transactions, chosen.codec)
    read = PEERS[peer](servers, topic, f"{peer}-{topic}", chosen)
    print(json.dumps({**read, "transactions": transactions}))


if __name__ == "__main__":
    main()
