"""How each Python client writes a transaction, by each of its calls.

Each is given its rows in the form that its call takes, before any clock starts: nobody is charged
for making lists, tables or dicts. Must not know: clocks, works, the other peers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from integration.benchmarks.confluent import Produce, ProduceBatch
from integration.benchmarks.job import Job
from integration.benchmarks.raw import RawLoop, RawSender, RawWaits
from integration.benchmarks.rows import Peer, Rows, Threads


class Send:
    """txnproducer, a call of `send` for each record."""

    def __init__(self, job: Job, rows: Rows) -> None:
        from txnproducer import TransactionalProducer
        from txnproducer._record.implementation import IMPL

        self.version = f"{version('txnproducer')} ({IMPL})"
        self._topic = job.topic
        self._rows = rows
        self._parts = rows.parts(job.threads)
        self._threads = Threads(job.threads)
        self._producer = TransactionalProducer(job.servers, job.transactional_id, **job.settings)
        self._producer.init_transactions()
        self.begin = self._producer.begin_transaction
        self.commit = self._producer.commit_transaction

    def write(self) -> None:
        self._threads.run(self._send, self._parts)

    def _send(self, rows: Rows) -> None:
        send, topic = self._producer.send, self._topic
        for _ in range(rows.repeats):
            if rows.places is None:
                for value in rows.values:
                    send(topic, value)
            else:
                for value, place in zip(rows.values, rows.places, strict=True):
                    send(topic, value, partition=place)

    def close(self) -> None:
        self._threads.close()
        self._producer.close()


class SendBatch(Send):
    """txnproducer, all values by one call of `send_batch`."""

    def write(self) -> None:
        rows = self._rows
        for _ in range(rows.repeats):
            self._producer.send_batch(self._topic, rows.values, partitions=rows.places)


class SendArrow(Send):
    """txnproducer, a pyarrow table by one call of `send_arrow`."""

    def __init__(self, job: Job, rows: Rows) -> None:
        import pyarrow as pa

        columns = {"value": pa.array(rows.values, pa.binary())}
        if rows.places is not None:
            columns["partition"] = pa.array(rows.places, pa.int32())
        self._table = pa.table(columns)
        super().__init__(job, rows)

    def write(self) -> None:
        for _ in range(self._rows.repeats):
            self._producer.send_arrow(self._topic, self._table)


class KafkaPython:
    """kafka-python."""

    def __init__(self, job: Job, rows: Rows) -> None:
        from kafka import KafkaProducer

        self.version = version("kafka-python")
        self._topic, self._rows = job.topic, rows
        self._producer = KafkaProducer(
            bootstrap_servers=job.servers, transactional_id=job.transactional_id, **job.settings
        )
        self._producer.init_transactions()
        self.begin = self._producer.begin_transaction
        self.commit = self._producer.commit_transaction

    def write(self) -> None:
        send, topic, rows = self._producer.send, self._topic, self._rows
        for _ in range(rows.repeats):
            if rows.places is None:
                for value in rows.values:
                    send(topic, value)
            else:
                for value, place in zip(rows.values, rows.places, strict=True):
                    send(topic, value, partition=place)

    def close(self) -> None:
        self._producer.close()


class Aiokafka:
    """aiokafka, on an event loop of its own."""

    def __init__(self, job: Job, rows: Rows) -> None:
        self.version = version("aiokafka")
        self._job, self._rows = job, rows
        self._loop = asyncio.new_event_loop()
        self._producer = self._loop.run_until_complete(self._open())

    async def _open(self) -> Any:
        from aiokafka import AIOKafkaProducer

        job = self._job
        producer = AIOKafkaProducer(
            bootstrap_servers=job.servers, transactional_id=job.transactional_id, **job.settings
        )
        await producer.start()
        return producer

    def begin(self) -> None:
        self._loop.run_until_complete(self._producer.begin_transaction())

    def write(self) -> None:
        self._loop.run_until_complete(self._write())

    async def _write(self) -> None:
        send, topic, rows = self._producer.send, self._job.topic, self._rows
        for _ in range(rows.repeats):
            if rows.places is None:
                for value in rows.values:
                    await send(topic, value)
            else:
                for value, place in zip(rows.values, rows.places, strict=True):
                    await send(topic, value, partition=place)

    def commit(self) -> None:
        self._loop.run_until_complete(self._producer.commit_transaction())

    def close(self) -> None:
        self._loop.run_until_complete(self._producer.stop())
        self._loop.close()


OPEN: dict[str, Callable[[Job, Rows], Peer]] = {
    "txnproducer.send": Send,
    "txnproducer.send_batch": SendBatch,
    "txnproducer.send_arrow": SendArrow,
    "txnproducer.python": Send,
    "kafka-python": KafkaPython,
    "aiokafka": Aiokafka,
    "confluent.produce": Produce,
    "confluent.produce_batch": ProduceBatch,
    "raw.sender": RawSender,
    "raw.loop": RawLoop,
    "raw.waits": RawWaits,
}
