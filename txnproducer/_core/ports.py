"""All that the core knows of the outside: a client that carries requests, and a way to wait.

Owns: the protocols, and the earliest time at which a client may connect. The wire adapter's
`NetworkClient`, the simulator's network and the tests' scripted client implement `KafkaClient`;
the I/O thread implements `Waiter`. The core never polls: its driver polls the client, and hands
each event to `ProducerCore.handle`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

from txnproducer._protocol.events import ClientRequest, ConnectionId, data_connection
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


def first_try_delay_ms(client: KafkaClient, node_ids: Iterable[int], now_ms: int) -> int:
    """Return in how many milliseconds the first of these brokers may be tried.

    It is for the time when `least_loaded_node` returns None. At least 1: with 0 the loop would
    spin.
    """
    delays_ms = (client.ready_delay_ms(data_connection(n), now_ms) for n in node_ids)
    return max(1, min(delays_ms))


class Waiter(Protocol):
    """Lets an application thread wait for something that the core completes."""

    def wait_until(self, is_done: Callable[[], bool], timeout_s: float | None) -> bool:
        """Block until `is_done()` or the time-out. Return its last value. Ctrl-C interrupts."""
        ...

    def refuse_in_fork(self) -> None:
        """Raise `ForkedProducerError` in a fork, where no request completes any more."""
        ...

    @property
    def done_callbacks(self) -> DoneCallbacks:
        """The calls that are made once a future has ended."""
        ...


class PendingEnd(Protocol):
    """The result of a batch that has not ended yet.

    Attributes:
        listeners: the futures that depend on it, with the calls to make once they have ended. It
            hands them to its `Waiter` when it ends. Change it with the shell's lock held.
    """

    listeners: list[DoneListener] | None


class EndingFuture(Protocol):
    """A future, as the shell sees it that tells others of its end."""

    def pending_end(self) -> PendingEnd | None:
        """Return the result that it waits for now, or None once it has ended."""
        ...

    def done(self) -> bool:
        """Return whether it has ended. In a fork it raises if it has not."""
        ...

    def result(self, timeout: float | None = None) -> Any:
        """Return the outcome, or raise the error."""
        ...


DoneListener: TypeAlias = tuple[EndingFuture, Callable[[Any], object]]


class DoneCallbacks(Protocol):
    """Tells others of the ends of futures: functions, event loops, futures of other kinds."""

    def call(self, future: EndingFuture, function: Callable[[Any], object]) -> None:
        """Call a function with a future once that has ended; at once if it has."""
        ...

    def as_concurrent_future(self, future: EndingFuture) -> Any:
        """Return a `concurrent.futures.Future` that ends as a future does."""
        ...

    def wait_in_loop(self, future: EndingFuture) -> Generator[Any, None, None]:
        """Let the running task of an event loop wait for a future's end."""
        ...

    def hand_over(self, listeners: Sequence[DoneListener]) -> None:
        """Take the listeners of a result that has ended. Called with the shell's lock held."""
        ...
