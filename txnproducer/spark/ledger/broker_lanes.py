"""The connections to one broker for many requests, and the requests that wait for one of them.

Why it exists: the client keeps one connection for each id of a broker. So each further connection
has an id of its own, with the same address.

Owns: these ids, the number of connections. Must not know: requests, answers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from txnproducer._protocol.events import ConnectionId, data_connection
from txnproducer._protocol.messages import BrokerNode
from txnproducer.spark.ledger.id_requests import IdRequest

MOST_CONNECTIONS: Final = 8
# Requests in a queue for each further connection. Fewer would open all of them for a few ids.
_REQUESTS_A_CONNECTION: Final = 4
# Above all ids of brokers, which have 31 bits.
_LANE: Final = 1 << 32

Waiting: TypeAlias = deque[IdRequest]


def node_of(connection: ConnectionId) -> int:
    """Return the id of a connection's broker. That of a bootstrap address stays as it is."""
    node_id = connection.node_id
    return node_id % _LANE if node_id >= 0 else node_id


@dataclass(eq=False)
class BrokerLanes:
    """A broker, with the requests that wait for one of its connections.

    Attributes:
        node: the broker.
        waiting: the requests, in order.
        lanes: the number of its connections.
    """

    node: BrokerNode
    waiting: Waiting = field(default_factory=deque)
    lanes: int = 1

    @property
    def nodes(self) -> list[BrokerNode]:
        """The broker, by the id of each connection."""
        return [self._node(lane) for lane in range(self.lanes)]

    @property
    def connections(self) -> list[ConnectionId]:
        """Its connections, the first one with the broker's own id."""
        return [data_connection(node.node_id) for node in self.nodes]

    def widen(self, count: int) -> list[BrokerNode]:
        """Add the connections that a number of requests needs. Return the new ones."""
        before = self.lanes
        wanted = min(MOST_CONNECTIONS, -(-count // _REQUESTS_A_CONNECTION))
        self.lanes = max(before, wanted)
        return [self._node(lane) for lane in range(before, self.lanes)]

    def _node(self, lane: int) -> BrokerNode:
        return replace(self.node, node_id=self.node.node_id + lane * _LANE)
