"""A modelled Kafka, a database in SQLite, and relays between them."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from tests.ledger.model_ledger import read_from
from tests.outbox.outboxes import (
    CONFIG,
    LEDGERS,
    Steps,
)
from txnproducer.outbox import Outbox, OutboxRelay
from txnproducer.outbox import relay as module
from txnproducer.testing import InMemoryKafka


@pytest.fixture
def kafka(monkeypatch):
    with InMemoryKafka(topics={"orders": 3}) as cluster:
        cluster.create_topic(LEDGERS, 1, config={"cleanup.policy": "compact"})
        read_from(cluster, monkeypatch)

        class Producers:
            """Stands for the class, with producers of the cluster."""

            @staticmethod
            def from_config(config):
                settings = {"linger_ms": 0, "max_request_size": config.max_request_size}
                return cluster.producer(transactional_id=config.transactional_id, **settings)

        monkeypatch.setattr(module, "TransactionalProducer", Producers)
        yield cluster


@pytest.fixture
def outbox(tmp_path):
    engine = sa.create_engine(f"sqlite:///{tmp_path}/outbox.db")
    made = Outbox(engine)
    made.create_tables()
    yield made
    engine.dispose()


@pytest.fixture
def relay(outbox, kafka):
    """Return a function that makes a relay; all are closed in the end."""
    made = []

    def make(relay_id="r", **options):
        options.setdefault("batch_rows", 5)
        config = options.pop("config", CONFIG)
        made.append(OutboxRelay(outbox, config, relay_id=relay_id, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def steps(monkeypatch):
    return Steps(monkeypatch)
