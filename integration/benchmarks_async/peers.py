"""How each producer for asyncio writes a transaction.

Each by its own fastest way that its documentation names, with the same settings.
"""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any, Protocol

from integration.benchmarks.settings import in_words_of

_LIMIT_S = 60
_PARTITIONS = 6


class Peer(Protocol):
    """A producer that is open."""

    version: str

    async def write(self, values: list[bytes]) -> None:
        """Write the values in a transaction, and return when that is committed."""
        ...

    async def close(self) -> None:
        """Close the producer."""
        ...


class _Peer:
    """A producer that is open, and how it writes."""

    version: str
    _topic: str
    _by_columns: bool
    _next: int
    _producer: Any


class Ours(_Peer):
    """This project's."""

    @classmethod
    async def open(cls, servers: str, topic: str, table: str) -> Ours:
        from txnproducer.aio import AsyncTransactionalProducer

        self = cls()
        self.version = version("txnproducer")
        self._topic, self._by_columns = topic, table == "best"
        name = "txnproducer.send_batch" if self._by_columns else "txnproducer.send"
        settings: dict[str, Any] = in_words_of(name, table)
        self._producer = AsyncTransactionalProducer(servers, f"ours-{topic}", **settings)
        await self._producer.init_transactions()
        return self

    async def write(self, values: list[bytes]) -> None:
        async with self._producer.transaction():
            if self._by_columns:
                await self._producer.send_batch(self._topic, values)
                return
            send, topic = self._producer.send, self._topic
            for value in values:
                await send(topic, value)

    async def close(self) -> None:
        await self._producer.close()


class Aiokafka(_Peer):
    """aiokafka, by `send`; by batches that the caller builds where the values are at hand."""

    @classmethod
    async def open(cls, servers: str, topic: str, table: str) -> Aiokafka:
        from aiokafka import AIOKafkaProducer

        self = cls()
        self.version = version("aiokafka")
        self._topic, self._by_columns, self._next = topic, table == "best", 0
        settings: dict[str, Any] = in_words_of("aiokafka", table)
        self._producer = AIOKafkaProducer(
            bootstrap_servers=servers, transactional_id=f"aiokafka-{topic}", **settings
        )
        await self._producer.start()
        return self

    async def write(self, values: list[bytes]) -> None:
        async with self._producer.transaction():
            if self._by_columns:
                await self._send_batches(values)
                return
            send, topic = self._producer.send, self._topic
            for value in values:
                await send(topic, value)

    async def _send_batches(self, values: list[bytes]) -> None:
        batch, sent = self._producer.create_batch(), []
        for value in values:
            if batch.append(key=None, value=value, timestamp=None) is None:
                sent.append(await self._send_batch(batch))
                batch = self._producer.create_batch()
                batch.append(key=None, value=value, timestamp=None)
        sent.append(await self._send_batch(batch))
        await asyncio.gather(*sent)

    async def _send_batch(self, batch: Any) -> Any:
        batch.close()
        self._next = (self._next + 1) % _PARTITIONS
        return await self._producer.send_batch(batch, self._topic, partition=self._next)

    async def close(self) -> None:
        await self._producer.stop()


class Confluent(_Peer):
    """confluent-kafka's AIOProducer."""

    @classmethod
    async def open(cls, servers: str, topic: str, table: str) -> Confluent:
        from confluent_kafka.aio import AIOProducer

        self = cls()
        self.version = version("confluent-kafka")
        self._topic = topic
        settings = in_words_of("confluent.produce", table)
        ids = {"bootstrap.servers": servers, "transactional.id": f"confluent-{topic}"}
        self._producer = AIOProducer({**ids, **settings, "log_level": 3})
        await self._producer.init_transactions(_LIMIT_S)
        return self

    async def write(self, values: list[bytes]) -> None:
        await self._producer.begin_transaction()
        produce, topic = self._producer.produce, self._topic
        sent = [await produce(topic, value) for value in values]
        # It holds records back until it is asked, and a commit does not ask.
        await self._producer.flush()
        await self._producer.commit_transaction(_LIMIT_S)
        await asyncio.gather(*sent)

    async def close(self) -> None:
        await self._producer.close()


PEERS: dict[str, Any] = {
    "txnproducer": Ours,
    "aiokafka": Aiokafka,
    "confluent-kafka": Confluent,
}
