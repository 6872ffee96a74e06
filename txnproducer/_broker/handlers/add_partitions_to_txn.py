"""AddPartitionsToTxn (key 24), v0-v3 from clients.

Behavior:
* Adds partitions to the transaction. The first ones begin it. Either all partitions are added or
  none: if one is unknown or refused, the others get OPERATION_NOT_ATTEMPTED.
* Answers CONCURRENT_TRANSACTIONS while the markers of the previous transaction are written.
* A broker that does not know yet that it has resigned answers NONE if it remembers the transaction
  as open, with these partitions in it.

Version notes: brokers send v4 and above to each other; clients do not send it with transactions
v2.
Simplifications: answers in one step (see `transaction_coordinator`). Such a broker refuses nothing
from its memory, and before Kafka 2.5 it answers nothing from it.
"""

from __future__ import annotations

from txnproducer._broker.cluster import BrokerCluster
from txnproducer._broker.coordination import add_for_client, check_access, check_topic
from txnproducer._protocol.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    PartitionErrorCode,
)
from txnproducer.errors import ErrorCode
from txnproducer.records import ProducerIdAndEpoch


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
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    code = add_for_client(cluster, node_id, name, producer, request.partitions, now_ms)
    return _all(request, code)


def _all(request: AddPartitionsToTxnRequest, code: ErrorCode) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        tuple(PartitionErrorCode(place, code) for place in request.partitions)
    )
