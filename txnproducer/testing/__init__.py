"""A real Kafka for tests: `EmbeddedKafka`, providers and pytest fixtures.

Importing this package is cheap: brokers, Java and the network are touched only on use.
"""

from __future__ import annotations

from ._errors import (
    BrokerStartError,
    EmbeddedKafkaError,
    JarsUnavailableError,
    JavaNotFoundError,
    PortInUseError,
)
from .embedded import FAST_START_JVM, THROUGHPUT_JVM, EmbeddedKafka

__all__ = [
    "EmbeddedKafka",
    "FAST_START_JVM",
    "THROUGHPUT_JVM",
    "EmbeddedKafkaError",
    "BrokerStartError",
    "JarsUnavailableError",
    "JavaNotFoundError",
    "PortInUseError",
]
