"""The Python clients that the campaign writes with, in one form.

Each adapter has the same blocking calls, and says what its client's documentation tells an
application to do about an error. Must not know: workloads, histories, faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from integration.chaos.plan import OURS

Verdict = Literal["again", "abort", "restart", "unknown"]
"""`again`: the same call once more. `abort`: the transaction is not committed, and the producer
goes on after an abort. `restart`: not committed, and a new producer is needed. `unknown`: a new
producer is needed, and a commit under way may be in or not."""

REQUEST_S, DELIVERY_S, TRANSACTION_S, BLOCK_S = 5, 15, 20, 15


class Client(Protocol):
    """A transactional producer that is initialized."""

    names_refusals: bool

    def begin(self) -> None: ...
    def send(self, topic: str, partition: int, value: bytes) -> None: ...
    def offsets(self, offsets: Mapping[tuple[str, int], int], consumer: Any) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...
    def verdict(self, error: Exception) -> Verdict: ...
    def resolve(self) -> str: ...
    def failed(self) -> Exception | None: ...


class _Base:
    # Whether a commit's error with verdict `abort` says that nothing is committed. Documentation
    # after Java's only says to abort then, and that may fail as well.
    names_refusals = False

    def resolve(self) -> str:
        return "unknown"

    def failed(self) -> Exception | None:
        """Return the error of a failed send if its commit succeeded, for clients with futures."""
        return None


class Ours(_Base):
    """txnproducer."""

    # `recovery` is "abort" only if nothing is committed: docs/errors.md.
    names_refusals = True

    def __init__(self, servers: str, transactional_id: str) -> None:
        from txnproducer import TransactionalProducer

        self._producer = TransactionalProducer(
            servers,
            transactional_id,
            linger_ms=5,
            request_timeout_ms=REQUEST_S * 1000,
            delivery_timeout_ms=DELIVERY_S * 1000,
            max_block_ms=BLOCK_S * 1000,
            transaction_timeout_ms=TRANSACTION_S * 1000,
        )
        self.init = self._producer.init_transactions
        self.begin = self._producer.begin_transaction
        self.commit = self._producer.commit_transaction
        self.abort = self._producer.abort_transaction

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._producer.send(topic, value, partition=partition)

    def offsets(self, offsets: Mapping[tuple[str, int], int], consumer: Any) -> None:
        from txnproducer import TopicPartition

        self._producer.send_offsets_to_transaction(
            {TopicPartition(*place): offset for place, offset in offsets.items()},
            consumer.group_metadata(),
        )

    def close(self) -> None:
        self._producer.close(timeout=5)

    def verdict(self, error: Exception) -> Verdict:
        recovery = getattr(error, "recovery", "restart")
        known: dict[str, Verdict] = {"resume": "again", "abort": "abort", "unknown": "unknown"}
        return known.get(recovery, "restart")

    def resolve(self) -> str:
        return self._producer.resolve_outcome()


class KafkaPython(_Base):
    """kafka-python."""

    def __init__(self, servers: str, transactional_id: str) -> None:
        from kafka import KafkaProducer

        self._producer = KafkaProducer(
            bootstrap_servers=servers.split(","),
            transactional_id=transactional_id,
            linger_ms=5,
            request_timeout_ms=REQUEST_S * 1000,
            delivery_timeout_ms=DELIVERY_S * 1000,
            max_block_ms=BLOCK_S * 1000,
            transaction_timeout_ms=TRANSACTION_S * 1000,
        )
        self._futures: list[Any] = []
        self.init = self._producer.init_transactions
        self.commit = self._producer.commit_transaction
        self.abort = self._producer.abort_transaction

    def begin(self) -> None:
        self._futures = []
        self._producer.begin_transaction()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._futures.append(self._producer.send(topic, value, partition=partition))

    def failed(self) -> Exception | None:
        return next((each.exception for each in self._futures if each.failed()), None)

    def offsets(self, offsets: Mapping[tuple[str, int], int], consumer: Any) -> None:
        from kafka import TopicPartition
        from kafka.structs import OffsetAndMetadata

        self._producer.send_offsets_to_transaction(
            {TopicPartition(*p): OffsetAndMetadata(at, "", -1) for p, at in offsets.items()},
            consumer.group_metadata(),
        )

    def close(self) -> None:
        self._producer.close(timeout=5)

    def verdict(self, error: Exception) -> Verdict:
        # As the Java client's documentation tells, which this client follows.
        from kafka import errors

        if isinstance(error, errors.KafkaTimeoutError):
            return "again"
        fatal = ("ProducerFenced", "InvalidProducerEpoch", "OutOfOrder", "IllegalState")
        if type(error).__name__.startswith(fatal) or not isinstance(error, errors.KafkaError):
            return "unknown"
        return "abort"


class Aiokafka(_Base):
    """aiokafka, on an event loop of its own."""

    def __init__(self, servers: str, transactional_id: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._servers, self._id = servers, transactional_id
        self._producer: Any = None
        self._futures: list[Any] = []

    def _run(self, call: Any, limit: float = BLOCK_S) -> Any:
        async def bounded() -> Any:
            return await asyncio.wait_for(call, limit)

        return self._loop.run_until_complete(bounded())

    def init(self) -> None:
        self._loop.run_until_complete(self._open())

    async def _open(self) -> None:
        from aiokafka import AIOKafkaProducer

        self._producer = AIOKafkaProducer(
            bootstrap_servers=self._servers,
            transactional_id=self._id,
            linger_ms=5,
            request_timeout_ms=REQUEST_S * 1000,
            transaction_timeout_ms=TRANSACTION_S * 1000,
        )
        await asyncio.wait_for(self._producer.start(), 2 * BLOCK_S)

    def begin(self) -> None:
        self._futures = []
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._futures.append(self._run(self._producer.send(topic, value, partition=partition)))

    def offsets(self, offsets: Mapping[tuple[str, int], int], consumer: Any) -> None:
        from aiokafka.structs import OffsetAndMetadata, TopicPartition

        # This client takes the group's id alone.
        places = {TopicPartition(*p): OffsetAndMetadata(at, "") for p, at in offsets.items()}
        group = consumer.group_metadata().group_id
        self._run(self._producer.send_offsets_to_transaction(places, group))

    def failed(self) -> Exception | None:
        done = (each for each in self._futures if each.done() and not each.cancelled())
        return next((error for each in done if (error := each.exception())), None)

    def commit(self) -> None:
        # Cancelled at the limit: the client shields the request, but is left in an open state.
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        if self._producer is not None:
            self._run(self._producer.stop(), 5)

    def verdict(self, error: Exception) -> Verdict:
        from aiokafka import errors

        if isinstance(error, errors.ProducerFenced | errors.OutOfOrderSequenceNumber):
            return "unknown"
        if isinstance(error, errors.IllegalOperation | TimeoutError):
            return "unknown"
        return "abort" if isinstance(error, errors.KafkaError) else "unknown"


class Confluent(_Base):
    """confluent-kafka."""

    def __init__(self, servers: str, transactional_id: str) -> None:
        import confluent_kafka

        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": servers,
                "transactional.id": transactional_id,
                "linger.ms": 5,
                "socket.timeout.ms": REQUEST_S * 1000,
                "message.timeout.ms": DELIVERY_S * 1000,
                "transaction.timeout.ms": TRANSACTION_S * 1000,
                "log_level": 0,
            }
        )
        self.begin = self._producer.begin_transaction

    def init(self) -> None:
        self._producer.init_transactions(2 * BLOCK_S)

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._producer.produce(topic, value, partition=partition)
        self._producer.poll(0)

    def offsets(self, offsets: Mapping[tuple[str, int], int], consumer: Any) -> None:
        from confluent_kafka import TopicPartition

        places = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        metadata = consumer.consumer_group_metadata()
        self._producer.send_offsets_to_transaction(places, metadata, BLOCK_S)

    def commit(self) -> None:
        self._producer.commit_transaction(BLOCK_S)

    def abort(self) -> None:
        self._producer.abort_transaction(BLOCK_S)

    def close(self) -> None:
        # The next producer of the id aborts the open transaction.
        self._producer.purge()

    def verdict(self, error: Exception) -> Verdict:
        reason: Any = error.args[0] if error.args else None
        if not hasattr(reason, "txn_requires_abort"):
            return "unknown"
        if reason.txn_requires_abort():
            return "abort"
        return "again" if reason.retriable() else "unknown"


OPEN: dict[str, Callable[[str, str], Any]] = {
    OURS: Ours,
    "kafka-python": KafkaPython,
    "aiokafka": Aiokafka,
    "confluent-kafka": Confluent,
}
