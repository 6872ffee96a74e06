"""The APIs of a broker, one file each.

`handle` is the entry point of the broker model. Owns: the table from requests to files.
Must not know: connections, faults, the clients that ask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txnproducer._broker.cluster import BrokerCluster
from txnproducer._broker.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_transactions,
    end_txn,
    find_coordinator,
    init_producer_id,
    metadata,
    produce,
    txn_offset_commit,
)
from txnproducer._protocol import messages

# Only these have a flag for transactions v2. The other requests are the same in both versions.
_OF_BOTH_VERSIONS = (
    messages.ProduceRequest,
    messages.EndTxnRequest,
    messages.TxnOffsetCommitRequest,
)

_HANDLERS: dict[type, Callable[[BrokerCluster, int, Any, int], messages.Response]] = {
    messages.MetadataRequest: metadata.handle,
    messages.FindCoordinatorRequest: find_coordinator.handle,
    messages.InitProducerIdRequest: init_producer_id.handle,
    messages.AddPartitionsToTxnRequest: add_partitions_to_txn.handle,
    messages.AddOffsetsToTxnRequest: add_offsets_to_txn.handle,
    messages.TxnOffsetCommitRequest: txn_offset_commit.handle,
    messages.EndTxnRequest: end_txn.handle,
    messages.DescribeTransactionsRequest: describe_transactions.handle,
    messages.ProduceRequest: produce.handle,
}


def handle(
    cluster: BrokerCluster, node_id: int, request: messages.Request, now_ms: int
) -> messages.Response:
    """Answer a request that has reached a broker."""
    if cluster.is_old(node_id) and isinstance(request, _OF_BOTH_VERSIONS):
        # The broker offers only an older version of the API, which does not know transactions v2.
        request = request._replace(is_transaction_v2_enabled=False)
    return _HANDLERS[type(request)](cluster, node_id, request, now_ms)
