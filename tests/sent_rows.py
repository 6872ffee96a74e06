"""Producers over a script of three partitions, and looks at the rows that they have sent."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live_client import LiveClient, use_live_clients
from txnproducer import TransactionalProducer
from txnproducer._protocol.messages import ProduceRequest
from txnproducer._record import read_batches
from txnproducer.errors import KafkaError

PATIENCE_S = 10.0


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


def written(client):
    """Return every record that was sent, by partition, in order."""
    records: dict[int, list[Any]] = {}
    for request in client.requests:
        if isinstance(request.body, ProduceRequest):
            for part in request.body.partitions:
                batches = records.setdefault(part.topic_partition.partition, [])
                batches += [record for batch in read_batches(part.records) for record in batch]
    return records


def values_written(client):
    return sorted(record.value for part in written(client).values() for record in part)


def assert_can_only_be_aborted(one, reason=None):
    """Show that a commit is refused and an abort works, and the next transaction commits."""
    one._max_block_s = PATIENCE_S
    with pytest.raises(KafkaError, match=reason) as caught:
        one.commit_transaction()
    assert caught.value.recovery == "abort"
    one.abort_transaction()
    with one.transaction():
        one.send("topic", b"the next one", partition=0)


def interrupt(*arguments, **more):
    raise KeyboardInterrupt
