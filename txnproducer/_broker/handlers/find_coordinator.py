"""FindCoordinator (key 10), v0-v6.

Behavior:
* Returns the broker that coordinates a transactional id or a group. If that broker is down, the
  answer is COORDINATOR_NOT_AVAILABLE.

Version notes: v4 asks for many keys at once; a producer asks for one.
Simplifications: every broker learns at once that a coordinator has moved.
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
    del node_id, now_ms
    code = _check(cluster, request)
    node = _NOWHERE
    if not code:
        node = cluster.nodes[cluster.coordinator_node(request.key_type, request.key)]
    return FindCoordinatorResponse((Coordinator(request.key, node, code),))


def _check(cluster: BrokerCluster, request: FindCoordinatorRequest) -> ErrorCode:
    is_group = request.key_type is CoordinatorType.GROUP
    # Access comes first: also without a live coordinator the client learns that it may not ask.
    if is_group and not cluster.is_allowed(Resource.GROUP, request.key):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if not is_group and not cluster.is_allowed(Resource.TRANSACTIONAL_ID, request.key):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    is_up = cluster.is_up(cluster.coordinator_node(request.key_type, request.key))
    return ErrorCode.NONE if is_up else ErrorCode.COORDINATOR_NOT_AVAILABLE
