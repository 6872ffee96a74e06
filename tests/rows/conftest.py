"""Producers over the real core, loop and lock. The brokers are a script."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live_client import LiveClient, use_live_clients
from txnproducer import TransactionalProducer


@pytest.fixture
def client(monkeypatch):
    client = LiveClient(topics={"topic": 3})
    use_live_clients(monkeypatch, lambda: client)
    return client


@pytest.fixture
def make(client):
    made = []

    def make_producer(transactional_id: str | None = "txn", **settings: Any):
        settings = {"max_block_ms": 10_000, "linger_ms": 0, **settings}
        made.append(TransactionalProducer("boot:9092", transactional_id, **settings))
        if transactional_id is not None:
            made[-1].init_transactions()
        return made[-1]

    yield make_producer
    for one in made:
        one.close(0)


@pytest.fixture
def ready(make):
    return make()
