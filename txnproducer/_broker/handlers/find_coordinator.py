"""FindCoordinator (key 10), v0-v6.

Behavior:
* Returns the broker that coordinates a transactional id or a group. If that broker is down, the
  answer is COORDINATOR_NOT_AVAILABLE.
* With transactions v1 the broker that has coordinated an id, and does not know yet that it has
  resigned, names itself.

Version notes: v4 asks for many keys at once; a producer asks for one.
Simplifications: every other broker learns at once that a coordinator has moved; with v2 each does.
"""

from __future__ import annotations

from txnproducer._broker.cluster import BrokerCluster
from txnproducer._broker.resources import Resource
from txnproducer._protocol.messages import (
    BrokerNode,
    Coordinator,
    CoordinatorType,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from txnproducer.errors import ErrorCode

_NOWHERE = BrokerNode(-1, "", -1)


def handle(
    cluster: BrokerCluster, node_id: int, request: FindCoordinatorRequest, now_ms: int
) -> FindCoordinatorResponse:
    """Answer a FindCoordinator request."""
    # Any broker answers: the metadata say where each coordinator is.
    code = _check(cluster, request)
    node = _NOWHERE
    if not code and _has_old_metadata(cluster, node_id, request, now_ms):
        node = cluster.nodes[node_id]
    elif not code:
        node = cluster.nodes[cluster.coordinator_node(request.key_type, request.key)]
    return FindCoordinatorResponse((Coordinator(request.key, node, code),))


def _has_old_metadata(
    cluster: BrokerCluster, node_id: int, request: FindCoordinatorRequest, now_ms: int
) -> bool:
    if request.key_type is CoordinatorType.GROUP or cluster.transaction_version >= 2:
        return False
    coordinator = cluster.transaction_coordinator(request.key)
    return coordinator.remembered_at(request.key, node_id, now_ms) is not None


def _check(cluster: BrokerCluster, request: FindCoordinatorRequest) -> ErrorCode:
    is_group = request.key_type is CoordinatorType.GROUP
    # Access comes first: also without a live coordinator the client learns that it may not ask.
    if is_group and not cluster.is_allowed(Resource.GROUP, request.key):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if not is_group and not cluster.is_allowed(Resource.TRANSACTIONAL_ID, request.key):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    is_up = cluster.is_up(cluster.coordinator_node(request.key_type, request.key))
    return ErrorCode.NONE if is_up else ErrorCode.COORDINATOR_NOT_AVAILABLE
