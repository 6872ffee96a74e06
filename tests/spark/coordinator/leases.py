"""Transactions by leases: ids that are taken, records under them, and their ends."""

from __future__ import annotations

from txnproducer.config import ProducerConfig
from txnproducer.lease import TransactionParticipant
from txnproducer.spark.ledger.coordinator_client import CoordinatorClient

PATIENCE_MS = 10_000
IDS = [f"sink.p{number}" for number in range(20)]


def made(servers, **settings):
    settings = {"retry_backoff_ms": 5, "reconnect_backoff_ms": 5, **settings}
    return CoordinatorClient(
        ProducerConfig.build(bootstrap_servers=servers, transactional_id="unused", **settings)
    )


def take(client, ids=IDS, timeout_ms=PATIENCE_MS):
    return client.take_ids(ids, timeout_ms)


def commit(client, leases, timeout_ms=PATIENCE_MS):
    return client.end_ids(leases, is_commit=True, timeout_ms=timeout_ms)


def abort(client, leases, timeout_ms=PATIENCE_MS):
    return client.end_ids(leases, is_commit=False, timeout_ms=timeout_ms)


def leased(client, ids=IDS):
    taken = take(client, ids)
    claims = client.take_claims([(name, 0) for name in ids], PATIENCE_MS)
    return [taken[name].lease([claims[name, 0]]) for name in ids]


def write(lease, number, servers):
    with TransactionParticipant(lease, 0, servers) as part:
        part.send("orders", b"%d" % number, partition=number)
        return part.receipt()


def written(client, servers, ids=IDS):
    leases = leased(client, ids)
    for number, lease in enumerate(leases):
        write(lease, number, servers)
    return leases


def values(kafka, **how):
    return sorted(int(record.value) for record in kafka.records("orders", **how))


def errors(ends):
    return {type(end.error) for end in ends.values()}
