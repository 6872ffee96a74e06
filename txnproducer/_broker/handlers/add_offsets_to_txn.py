"""AddOffsetsToTxn (key 25), v0-v4.

Behavior:
* Adds a group's partition of `__consumer_offsets` to the transaction, as AddPartitionsToTxn does
  with others.

Version notes: clients do not send it with transactions v2.
Simplifications: no other than answering in one step (see `transaction_coordinator`).
"""

from __future__ import annotations

from txnproducer._broker.cluster import BrokerCluster
from txnproducer._broker.coordination import add_partitions, check_access, check_id
from txnproducer._broker.resources import Resource
from txnproducer._protocol.messages import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from txnproducer.errors import ErrorCode


def handle(
    cluster: BrokerCluster, node_id: int, request: AddOffsetsToTxnRequest, now_ms: int
) -> AddOffsetsToTxnResponse:
    """Answer an AddOffsetsToTxn request."""
    name = request.transactional_id
    # KafkaApis checks the access to both before it asks the coordinator.
    code = check_access(cluster, name)
    if code:
        return AddOffsetsToTxnResponse(code)
    if not cluster.is_allowed(Resource.GROUP, request.group_id):
        return AddOffsetsToTxnResponse(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    code = check_id(cluster, node_id, name, now_ms) or add_partitions(
        cluster,
        name,
        request.producer_id,
        request.producer_epoch,
        # The marker has to reach the partition that keeps the group's offsets.
        [cluster.offsets_partition(request.group_id)],
        now_ms,
        # With v2 the group's coordinator adds its partition when the offsets arrive (KIP-890).
        is_v2=False,
    )
    return AddOffsetsToTxnResponse(code)
