"""All that the core knows of the outside: a client that carries requests, and a way to wait.

Owns: two protocols. The wire adapter's `NetworkClient`, the simulator's network and the tests'
scripted client implement `KafkaClient`; the I/O thread implements `Waiter`. The core never polls:
its driver polls the client, and hands each event to `ProducerCore.handle`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from txnproducer._protocol.events import ClientRequest, ConnectionId
from txnproducer._protocol.messages import BrokerNode
from txnproducer._protocol.versions import FinalizedFeatures, NodeApiVersions


class KafkaClient(Protocol):
    """The way of requests to brokers. No method blocks."""

    def update_nodes(self, nodes: Iterable[BrokerNode]) -> None:
        """Learn the addresses of some brokers. A changed one closes the broker's connections."""
        ...

    def replace_nodes(self, nodes: Iterable[BrokerNode]) -> None:
        """Learn the addresses of all brokers of the cluster, and forget all others.

        Bootstrap addresses, whose ids are negative, are kept. A forgotten broker is not connected
        to again; a connection that exists lives on until it is idle, as in the Java client.
        """
        ...

    def is_ready(self, connection: ConnectionId, now_ms: int) -> bool:
        """Return whether a request can be sent now. If there is no connection, begin to connect.

        False while connecting, backing off after a failure, throttled (KIP-219),
        re-authenticating, or at the in-flight limit.
        """
        ...

    def is_connected(self, connection: ConnectionId) -> bool:
        """Return whether the connection is established, even if it takes no request right now."""
        ...

    def ready_delay_ms(self, connection: ConnectionId, now_ms: int) -> int:
        """Return in how many milliseconds to ask `is_ready` again if no event comes before."""
        ...

    def throttle_delay_ms(self, connection: ConnectionId, now_ms: int) -> int:
        """Return for how many milliseconds the broker wants no request (0 = not throttled)."""
        ...

    def send(self, request: ClientRequest, now_ms: int) -> None:
        """Put a request on a ready connection. Exactly one `ClientResponse` comes as an event.

        Raises:
            IllegalStateError: the connection is not ready.
        """
        ...

    def least_loaded_node(self, now_ms: int) -> int | None:
        """Return the best broker for a request that any broker answers, or None when all back off.

        It prefers the ready connection (DATA channel) with the fewest requests in flight. Without
        a ready connection it returns a broker that can be connected to.
        """
        ...

    def in_flight_count(self, connection: ConnectionId | None = None) -> int:
        """Return how many requests await their answer, on one connection or on all."""
        ...

    def api_versions(self, node_id: int) -> NodeApiVersions | None:
        """Return the API versions of a broker's last handshake, even while it is disconnected."""
        ...

    def finalized_features(self) -> FinalizedFeatures:
        """Return the finalized features of the highest epoch seen on any connection."""
        ...


class Waiter(Protocol):
    """Lets an application thread wait for something that the core completes."""

    def wait_until(self, is_done: Callable[[], bool], timeout_s: float | None) -> bool:
        """Block until `is_done()` or the time-out. Return its last value. Ctrl-C interrupts."""
        ...

    def refuse_in_fork(self) -> None:
        """Raise `ForkedProducerError` in a fork, where no request completes any more."""
        ...
