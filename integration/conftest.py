"""Fixtures of the integration tests: brokers by mode, topics and ids of a test's own."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from integration.brokers import MODES, Mode
from txnproducer import TransactionalProducer
from txnproducer.testing import EmbeddedKafka

_NUMBERS = itertools.count()


@dataclass
class Broker:
    """A running broker, and what tests make on it."""

    kafka: EmbeddedKafka
    mode: Mode

    @property
    def servers(self) -> str:
        return self.kafka.bootstrap_servers

    def topic(self, partitions: int = 1, config: dict[str, str] | None = None) -> str:
        name = f"topic-{os.getpid()}-{next(_NUMBERS)}"
        self.kafka.create_topic(name, partitions=partitions, config=config)
        return name

    def producer(self, transactional_id: str | None, **settings) -> TransactionalProducer:
        return TransactionalProducer(
            self.servers, transactional_id, **{"max_block_ms": 20_000, **settings}
        )

    def ready(self, transactional_id: str, **settings) -> TransactionalProducer:
        producer = self.producer(transactional_id, **settings)
        producer.init_transactions()
        return producer


@pytest.fixture(scope="session", params=MODES, ids=lambda mode: mode.name)
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """One broker, in each of the modes."""
    mode: Mode = request.param
    with mode.start() as kafka:
        yield Broker(kafka, mode)


@pytest.fixture
def transactional_id() -> str:
    return f"id-{os.getpid()}-{next(_NUMBERS)}"
