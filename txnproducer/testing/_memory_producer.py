"""The producer of an in-memory Kafka: the one that ships, with other sockets.

Owns: `MemoryProducer`, `MemoryPlatform`. Must not know: the cluster.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from txnproducer._wire.platform import Platform
from txnproducer.errors import IllegalStateError, KafkaError
from txnproducer.producer import TransactionalProducer


class MemoryPlatform(Platform):
    """The system, but for the sockets."""

    def __init__(self, open_socket: Callable[..., socket.socket]) -> None:
        self._open_socket = open_socket

    def open_socket(self, *arguments: Any) -> socket.socket:
        """Connect to a broker of the cluster."""
        return self._open_socket(*arguments)


def _cluster_is_closed(call: str) -> KafkaError:
    return IllegalStateError(f"cannot {call}: this InMemoryKafka is closed, and its producers too")


class MemoryProducer(TransactionalProducer):
    """The producer that ships, on the sockets of one in-memory cluster."""

    def __init__(self, platform: Platform, limit_ms: int, **settings: Any) -> None:
        self._platform = platform
        self._limit_ms = limit_ms
        super().__init__(**settings)

    def close_with_cluster(self) -> None:
        """Close the producer at once, because its cluster has ended."""
        if self._refusal is None:
            self.close(timeout=0)
            self._refuse(_cluster_is_closed)

    def _longest_timeout_ms(self) -> str:
        # The server has no DescribeConfigs.
        return str(self._limit_ms)


# A test sees the class that its service expects, also in texts and in logs.
MemoryProducer.__name__ = MemoryProducer.__qualname__ = TransactionalProducer.__name__
