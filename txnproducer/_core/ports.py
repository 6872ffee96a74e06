"""All that the core knows of the outside: a client that carries requests, a way to wait, and dice.

Owns: three protocols. The wire adapter's `NetworkClient`, the simulator's network and the tests' scripted
client implement `KafkaClient`; the I/O thread implements `Waiter`. The core never polls: whoever drives it
polls the client, and hands each event to `ProducerCore.handle`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from txnproducer._protocol.events import ClientRequest, ConnectionId
from txnproducer._protocol.messages import BrokerNode
from txnproducer._protocol.versions import FinalizedFeatures, NodeApiVersions


class KafkaClient(Protocol):
    """Carries requests to brokers. No method blocks."""

    def update_nodes(self, nodes: Iterable[BrokerNode]) -> None:
        """Learn the addresses of brokers; ids not named are kept, a changed address closes the old connections."""
        ...

    def is_ready(self, connection: ConnectionId, now_ms: int) -> bool:
        """Tell whether a request can be sent on a connection now; begin to connect where there is none.

        False while connecting, backing off after a failure, throttled (KIP-219), re-authenticating, or at the
        in-flight limit.
        """
        ...

    def is_connected(self, connection: ConnectionId) -> bool:
        """Tell whether the connection is established, even if it can't take a request right now."""
        ...

    def ready_delay_ms(self, connection: ConnectionId, now_ms: int) -> int:
        """Return after how many milliseconds `is_ready` is worth asking again if no event comes before."""
        ...

    def throttle_delay_ms(self, connection: ConnectionId, now_ms: int) -> int:
        """Return for how many milliseconds the broker has asked not to be sent to (0 = not throttled)."""
        ...

    def send(self, request: ClientRequest, now_ms: int) -> None:
        """Put a request on a ready connection. Its `ClientResponse` comes as an event, always exactly once.

        Raises:
            IllegalStateError: the connection is not ready.
        """
        ...

    def least_loaded_node(self, now_ms: int) -> int | None:
        """Return the id of the best broker for a request that any broker answers, or None when all back off.

        Prefers a ready connection (DATA channel) with the fewest requests in flight; else one that can be connected to.
        """
        ...

    def in_flight_count(self, connection: ConnectionId | None = None) -> int:
        """Return how many requests await their answer, on one connection or on all."""
        ...

    def api_versions(self, node_id: int) -> NodeApiVersions | None:
        """Return what a broker offered at its last handshake; kept while it is disconnected."""
        ...

    def finalized_features(self) -> FinalizedFeatures:
        """Return the finalized features of the highest epoch seen on any connection."""
        ...


class Waiter(Protocol):
    """Lets an application thread wait for something that the core completes."""

    def wait_until(self, is_done: Callable[[], bool], timeout_s: float | None) -> bool:
        """Block until `is_done()` or the time-out; return what `is_done()` says last. Interruptible by Ctrl-C."""
        ...


class Dice(Protocol):
    """A source of randomness; a `random.Random`, seeded in the simulator and in tests."""

    def random(self) -> float:
        """Return a number from 0 to below 1."""
        ...

    def randrange(self, stop: int, /) -> int:
        """Return an integer from 0 to below `stop`."""
        ...
