"""Helpers that lease a transaction and let participants write into it, on a modelled cluster."""

from __future__ import annotations

import pickle

import pytest

from tests.core.on_cluster import OnCluster
from tests.harness import GROUP, TP0, TP1
from txnproducer.records import OffsetAndMetadata, ProducerIdAndEpoch, TransactionLease

VERSIONS = pytest.mark.parametrize("version", [1, 2])
GROUP_OF_NOBODY = GROUP._replace(group_id="ledger", generation_id=-1, member_id="")


def lease_of(holder, claims=2):
    holder.complete(holder.core.begin_lease(claims))
    return holder.manager.share.lease


def leased(holder, claims=2):
    """Begin a transaction, and lease it, as it comes out of a pickle."""
    holder.begin()
    return pickle.loads(pickle.dumps(lease_of(holder, claims)))


def join(cluster, lease, claim, **settings):
    """Return a producer that has asked for a claim, and how that ended."""
    harness = OnCluster(cluster, transactional_id=lease.transactional_id, **settings)
    result = harness.core.begin_join(lease, claim)
    harness.run_until(lambda: result.is_completed)
    result.acknowledge()
    return harness, result.error


def participant(cluster, lease, claim, **settings):
    harness, error = join(cluster, lease, claim, **settings)
    assert error is None
    return harness


def write(harness, place, *values):
    futures = [harness.send(place.topic, value, partition=place.partition) for value in values]
    harness.run_until(lambda: all(future.done() for future in futures))
    return [future.result() for future in futures]


def share(cluster, holder, values, claims=2):
    """Have participants write values, one partition each, and return their receipts."""
    lease = leased(holder, claims)
    receipts = []
    for claim, place in enumerate((TP0, TP1)[:claims]):
        harness = participant(cluster, lease, claim)
        write(harness, place, *values)
        receipts.append(harness.core.give_receipt())
    return receipts


def a_lease():
    identity = ProducerIdAndEpoch(1, 0)
    return TransactionLease("txn", identity, is_transaction_v2=True, claims=(identity,))


def calls_of(harness):
    core = harness.core
    return {
        "init_transactions": core.init_transactions,
        "begin_transaction": core.begin_transaction,
        "send_offsets": lambda: core.send_offsets_to_transaction(
            {TP0: OffsetAndMetadata(1)}, GROUP
        ),
        "commit_transaction": core.begin_commit,
        "abort_transaction": core.begin_abort,
        "lease": lambda: core.begin_lease(1),
        "adopt": lambda: core.adopt([]),
        "resume": lambda: core.resume(harness.manager.share.lease),
        "join": lambda: core.begin_join(a_lease(), 0),
    }


def resumed(cluster, lease):
    harness = OnCluster(cluster, transactional_id=lease.transactional_id)
    harness.core.resume(lease)
    return harness
