"""AddPartitionsToTxn (key 24), v0-v3 from clients.

Behavior:
* Adds partitions to the transaction. The first ones begin it. Either all partitions are added or
  none: if one is unknown or refused, the others get OPERATION_NOT_ATTEMPTED.
* Answers CONCURRENT_TRANSACTIONS while the markers of the previous transaction are written.

Version notes: brokers send v4 and above to each other; clients do not send it with transactions
v2.
Simplifications: no other than answering in one step (see `transaction_coordinator`).
"""

from __future__ import annotations

from txnproducer._broker.cluster import BrokerCluster
from txnproducer._broker.coordination import add_partitions, check_access, check_id, check_topic
from txnproducer._protocol.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    PartitionErrorCode,
)
from txnproducer.errors import ErrorCode


def handle(
    cluster: BrokerCluster, node_id: int, request: AddPartitionsToTxnRequest, now_ms: int
) -> AddPartitionsToTxnResponse:
    """Answer an AddPartitionsToTxn request."""
    name = request.transactional_id
    code = check_access(cluster, name)
    if code:
        return _all(request, code)
    # Before the coordinator is asked: KafkaApis lets one bad partition fail the whole request.
    codes = {place: check_topic(cluster, place) for place in request.partitions}
    if any(codes.values()):
        return AddPartitionsToTxnResponse(
            tuple(
                # So the client can tell the partitions that are at fault from those that only went
                # with them.
                PartitionErrorCode(place, code or ErrorCode.OPERATION_NOT_ATTEMPTED)
                for place, code in codes.items()
            )
        )
    code = check_id(cluster, node_id, name, now_ms) or add_partitions(
        cluster,
        name,
        request.producer_id,
        request.producer_epoch,
        request.partitions,
        now_ms,
        # With v2 the leader of the partition adds it when the first batch arrives (KIP-890).
        is_v2=False,
    )
    return _all(request, code)


def _all(request: AddPartitionsToTxnRequest, code: ErrorCode) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        tuple(PartitionErrorCode(place, code) for place in request.partitions)
    )
