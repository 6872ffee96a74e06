"""Kafka for tests: a real one, one in memory, providers and pytest fixtures.

It is for users' tests and for this project's own. It must not know the sink, and only the commands
import it: the tools that start brokers stay out of a producer.
Pytest loads the fixtures in every run on a machine that has this package, so importing it must be
cheap: the names below are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._errors import (
        BrokerStartError,
        EmbeddedKafkaError,
        JarsUnavailableError,
        JavaNotFoundError,
        PortInUseError,
    )
    from ._memory_views import MemoryRecord, MemoryTransaction
    from .embedded import FAST_START_JVM, THROUGHPUT_JVM, EmbeddedKafka
    from .memory import InMemoryKafka
    from .providers import ContainerKafka, ExistingKafka, KafkaCluster, provide_kafka

__all__ = [
    "EmbeddedKafka",
    "InMemoryKafka",
    "MemoryRecord",
    "MemoryTransaction",
    "FAST_START_JVM",
    "THROUGHPUT_JVM",
    "KafkaCluster",
    "ExistingKafka",
    "ContainerKafka",
    "provide_kafka",
    "EmbeddedKafkaError",
    "BrokerStartError",
    "JarsUnavailableError",
    "JavaNotFoundError",
    "PortInUseError",
]

_HOMES = {
    "EmbeddedKafka": "embedded",
    "FAST_START_JVM": "embedded",
    "THROUGHPUT_JVM": "embedded",
    "InMemoryKafka": "memory",
    "MemoryRecord": "_memory_views",
    "MemoryTransaction": "_memory_views",
    "KafkaCluster": "providers",
    "ExistingKafka": "providers",
    "ContainerKafka": "providers",
    "provide_kafka": "providers",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f".{_HOMES.get(name, '_errors')}", __name__)
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
