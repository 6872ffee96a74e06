"""Drive a `NetworkClient` the way the I/O thread does, with every wait bounded."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from txnproducer._protocol import messages as m
from txnproducer._protocol.events import (
    ClientEvent,
    ClientRequest,
    ClientResponse,
    ConnectionEvent,
    ConnectionId,
    ConnectionState,
)
from txnproducer._wire.network_client import NetworkClient
from txnproducer.config import ProducerConfig

BOOTSTRAP = ConnectionId(-1)
END_TXN = m.EndTxnRequest("x", 1, 1, True, True)
# A machine may stand still for seconds.
LONGEST_S = 30.0


def clock_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Driver:
    """A client, all its events, and short cuts."""

    def __init__(self, *addresses: str, **settings: object) -> None:
        config = ProducerConfig.build(
            **{
                "bootstrap_servers": list(addresses),
                "client_id": "me",
                "reconnect_backoff_ms": 20,
                "reconnect_backoff_max_ms": 40,
            }
            | settings
        )
        self.client = NetworkClient(config, clock_ms, random.Random(1))
        self.events: list[ClientEvent] = []
        self._token = 0

    def poll(self, timeout_ms: int = 0) -> list[ClientEvent]:
        events = self.client.poll(timeout_ms, clock_ms())
        self.events += events
        return events

    def until(self, condition: Callable[[], bool]) -> None:
        """Poll until a condition holds, and fail after half a minute."""
        end = time.monotonic() + LONGEST_S
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"did not happen; events: {self.events}")
            self.poll(20)

    def connect(self, connection: ConnectionId = BOOTSTRAP) -> int:
        """Wait until a connection is ready, or say why it is not.

        Returns:
            The time for which it was found ready. A request sent with this time is taken; a
            millisecond later the session may be due for renewal, and none is.
        """
        now_ms = 0

        def is_settled() -> bool:
            nonlocal now_ms
            now_ms = clock_ms()
            return self.client.is_ready(connection, now_ms) or bool(self.ends(connection))

        self.until(is_settled)
        if not self.client.is_connected(connection):
            raise AssertionError(f"not connected: {self.ends(connection)}")
        return now_ms

    def fail_to_connect(self, connection: ConnectionId = BOOTSTRAP) -> ConnectionEvent:
        """Ask for a connection, and return how the attempt ended."""
        self.client.is_ready(connection, clock_ms())
        self.until(lambda: bool(self.ends(connection)))
        return self.ends(connection)[0]

    def refusal(self, connection: ConnectionId = BOOTSTRAP) -> ConnectionEvent:
        """Ask for a connection, again after each cut, until it is refused. Return the refusal."""

        def refusals() -> list[ConnectionEvent]:
            self.client.is_ready(connection, clock_ms())
            refused = ConnectionState.AUTHENTICATION_FAILED
            return [end for end in self.ends(connection) if end.state is refused]

        self.until(lambda: bool(refusals()))
        return refusals()[0]

    def send(
        self,
        body: m.Request = END_TXN,
        connection: ConnectionId = BOOTSTRAP,
        timeout_ms: int = 5000,
        now_ms: int | None = None,
    ) -> ClientRequest:
        self._token += 1
        now_ms = clock_ms() if now_ms is None else now_ms
        request = ClientRequest(self._token, connection, body, now_ms, timeout_ms)
        self.client.send(request, now_ms)
        return request

    def answers_to(self, *requests: ClientRequest) -> list[ClientResponse]:
        """Wait until each request has ended, and return how, in the order of the requests."""
        self.until(lambda: all(self._ended(request) for request in requests))
        return [self._ended(request)[0] for request in requests]

    def _ended(self, request: ClientRequest) -> list[ClientResponse]:
        return [response for response in self.responses if response.request is request]

    @property
    def responses(self) -> list[ClientResponse]:
        return [event for event in self.events if isinstance(event, ClientResponse)]

    def ends(self, connection: ConnectionId = BOOTSTRAP) -> list[ConnectionEvent]:
        return [
            event
            for event in self.events
            if isinstance(event, ConnectionEvent)
            and event.connection == connection
            and event.state is not ConnectionState.READY
        ]

    def close(self) -> None:
        self.client.close()
