"""Fixtures: a cluster in memory, the producer that prepares, and another process's one."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from tests.two_phase.processes import Process
from txnproducer.testing import InMemoryKafka


@pytest.fixture
def kafka():
    with InMemoryKafka(topics={"payments": 2}, nodes=3) as kafka:
        yield kafka


@pytest.fixture
def producer(kafka):
    with kafka.producer("t") as producer:
        producer.init_transactions()
        yield producer


@pytest.fixture
def other(kafka):
    """Another process's producer of the id, which is not initialized."""
    with kafka.producer("t") as producer:
        yield producer


@pytest.fixture
def engine(tmp_path):
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'payments.db'}")
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE payments (amount INTEGER UNIQUE)"))
    yield engine
    engine.dispose()


@pytest.fixture
def start(kafka, engine):
    processes = []

    def start(**options):
        processes.append(Process(kafka, engine, **options))
        return processes[-1].start()

    yield start
    for process in processes:
        process.producer.close()
