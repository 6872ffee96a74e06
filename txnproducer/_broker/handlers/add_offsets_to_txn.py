"""AddOffsetsToTxn (key 25), v0-v4.

Behavior:
* Adds a group's partition of `__consumer_offsets` to the transaction, as AddPartitionsToTxn does
  with others.

Version notes: clients do not send it with transactions v2.
Simplifications: no other than answering in one step (see `transaction_coordinator`).
"""

from __future__ import annotations

from txnproducer._broker.cluster import BrokerCluster
from txnproducer._broker.coordination import add_for_client, check_access
from txnproducer._broker.resources import Resource
from txnproducer._protocol.messages import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from txnproducer.errors import ErrorCode
from txnproducer.records import ProducerIdAndEpoch


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
    # The marker has to reach the partition that keeps the group's offsets.
    place = cluster.offsets_partition(request.group_id)
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    code = add_for_client(cluster, node_id, name, producer, [place], now_ms)
    return AddOffsetsToTxnResponse(code)
