"""The cases, by the API that they are about, and the register that they have filled."""

from __future__ import annotations

from integration.conformance.case import CASES
from integration.conformance.cases import (
    add_partitions,
    deleted_topics,
    end_txn,
    group_members,
    init_producer_id,
    last_epochs,
    lookup,
    markers,
    misdirected,
    offsets,
    older_clients,
    produce,
    produce_in_transactions,
    reading,
    refused_access,
    time_outs,
)

__all__ = [
    "CASES",
    "add_partitions",
    "deleted_topics",
    "end_txn",
    "group_members",
    "init_producer_id",
    "last_epochs",
    "lookup",
    "markers",
    "misdirected",
    "offsets",
    "older_clients",
    "produce",
    "produce_in_transactions",
    "reading",
    "refused_access",
    "time_outs",
]
