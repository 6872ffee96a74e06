"""DescribeTransactions (key 65), v0.

Behavior:
* Returns the state of each id that the broker coordinates. An id that it does not know gets
  TRANSACTIONAL_ID_NOT_FOUND.
* Leaves out partitions of topics to which access is refused.

Version notes: there is one version (KIP-664).
Simplifications: none.
"""

from __future__ import annotations

from txnproducer._broker.cluster import BrokerCluster
from txnproducer._broker.coordination import check_transactional_id
from txnproducer._broker.resources import Resource
from txnproducer._protocol.messages import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionDescription,
)
from txnproducer.errors import ErrorCode


def handle(
    cluster: BrokerCluster, node_id: int, request: DescribeTransactionsRequest, now_ms: int
) -> DescribeTransactionsResponse:
    """Answer a DescribeTransactions request."""
    return DescribeTransactionsResponse(
        # Each id has its own error: ids of one request may have different coordinators.
        tuple(_describe(cluster, node_id, name, now_ms) for name in request.transactional_ids)
    )


def _describe(
    cluster: BrokerCluster, node_id: int, name: str, now_ms: int
) -> TransactionDescription:
    code = check_transactional_id(cluster, node_id, name, now_ms)
    known = None if code else cluster.transaction_coordinator(name).find(name)
    if known is None:
        return TransactionDescription(code or ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, name, "")
    return TransactionDescription(
        ErrorCode.NONE,
        name,
        known.state.value,
        known.producer_id,
        known.producer_epoch,
        known.timeout_ms,
        known.start_ms,
        # The access to the id does not show topics to which the client has none.
        tuple(p for p in sorted(known.partitions) if cluster.is_allowed(Resource.TOPIC, p.topic)),
    )
