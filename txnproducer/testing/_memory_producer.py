"""The producers of an in-memory Kafka: those that ship, with other sockets.

Owns: `MemoryProducer`, `MemoryAsyncProducer`, `MemoryPlatform`. Must not know: the cluster.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Protocol

from txnproducer._wire.platform import Platform
from txnproducer.aio import AsyncTransactionalProducer
from txnproducer.aio.loop_producer import LoopProducer
from txnproducer.config import ProducerConfig
from txnproducer.errors import IllegalStateError, KafkaError
from txnproducer.producer import TransactionalProducer

from ._memory_views import MemoryQuestions


class MemoryPlatform(Platform):
    """The system, but for the sockets."""

    def __init__(self, open_socket: Callable[..., socket.socket]) -> None:
        self._open_socket = open_socket

    def open_socket(self, *arguments: Any) -> socket.socket:
        """Connect to a broker of the cluster."""
        return self._open_socket(*arguments)


class ClosedWithCluster(Protocol):
    """A producer that ends with its cluster."""

    def close_with_cluster(self) -> None:
        """End at once."""
        ...


def _cluster_is_closed(call: str) -> KafkaError:
    return IllegalStateError(f"cannot {call}: this InMemoryKafka is closed, and its producers too")


class _OfCluster:
    """The part of a producer that is one in-memory cluster's."""

    _cluster_questions: MemoryQuestions

    def _questions(self) -> MemoryQuestions:
        return self._cluster_questions

    def _longest_timeout_ms(self) -> str | None:
        return self._cluster_questions.ask_setting("transaction.max.timeout.ms")


class MemoryProducer(_OfCluster, TransactionalProducer):
    """The producer that ships, on the sockets of one in-memory cluster."""

    def __init__(self, platform: Platform, questions: MemoryQuestions, **settings: Any) -> None:
        self._platform = platform
        self._cluster_questions = questions
        super().__init__(**settings)

    def close_with_cluster(self) -> None:
        """Close the producer at once, because its cluster has ended."""
        if self._refusal is None:
            self.close(timeout=0)
            self._refuse(_cluster_is_closed)


class _MemoryCalls(_OfCluster, LoopProducer):
    """The calls of a producer for asyncio, on those sockets."""

    def __init__(
        self, platform: Platform, questions: MemoryQuestions, config: ProducerConfig
    ) -> None:
        self._platform = platform
        self._cluster_questions = questions
        self._open(config)


class MemoryAsyncProducer(AsyncTransactionalProducer):
    """The producer for asyncio that ships, on the sockets of one in-memory cluster."""

    def __init__(self, platform: Platform, questions: MemoryQuestions, **settings: Any) -> None:
        self._of_cluster = platform, questions
        super().__init__(**settings)

    def _make_calls(self, config: ProducerConfig) -> LoopProducer:
        return _MemoryCalls(*self._of_cluster, config)

    def close_with_cluster(self) -> None:
        """Let the producer end at once, because its cluster has ended."""
        calls = self._calls
        if calls._refusal is None:  # noqa: SLF001 - our own class
            calls._refuse(_cluster_is_closed)  # noqa: SLF001
            # Without a wait, which would block an event loop.
            calls._io.end_at_once()  # noqa: SLF001


# A test sees the class that its service expects, also in texts and in logs.
MemoryProducer.__name__ = MemoryProducer.__qualname__ = TransactionalProducer.__name__
MemoryAsyncProducer.__name__ = AsyncTransactionalProducer.__name__
MemoryAsyncProducer.__qualname__ = AsyncTransactionalProducer.__qualname__
