"""The requests on the wire, each with the callback for its end.

Owns: correlation ids, the table of requests without an answer. Must not know: the content of
requests.
Rules:
* Each request ends exactly once; an end that is not awaited (its producer was closed by force) is
  dropped.
* This includes a request that could not be sent, as for lack of memory: it ends with the next
  step, like one whose connection was lost. A part of it may be on the wire.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from txnproducer._core.ports import KafkaClient
from txnproducer._protocol.events import (
    ClientRequest,
    ClientResponse,
    ConnectionId,
    ResponseFailure,
)
from txnproducer._protocol.messages import Request
from txnproducer._sync.held_logs import held_logger
from txnproducer.errors import KafkaError

_LOG = held_logger(__name__)

OnEnd: TypeAlias = Callable[[ClientResponse, int], None]


class RequestTracker:
    """Send requests, and hand each end to the callback of its request.

    Args:
        client: carries them.
        request_timeout_ms: how long each may take.

    Attributes:
        unsent: the ends of requests that could not be sent, which `end_unsent` reports.
    """

    def __init__(self, client: KafkaClient, request_timeout_ms: int) -> None:
        self._client = client
        self._request_timeout_ms = request_timeout_ms
        self._next_id = 1
        self._awaited: dict[int, OnEnd] = {}
        self.unsent: list[ClientResponse] = []

    def send(self, connection: ConnectionId, body: Request, on_end: OnEnd, now_ms: int) -> int:
        """Put a request on a ready connection.

        Returns:
            Its correlation id.
        """
        correlation_id = self._next_id
        self._next_id += 1
        request = ClientRequest(correlation_id, connection, body, now_ms, self._request_timeout_ms)
        self._awaited[correlation_id] = on_end
        try:
            self._client.send(request, now_ms)
        except Exception as error:  # noqa: BLE001 - every request must have an end
            _LOG.warning("could not send to %s: %r", connection, error, exc_info=True)
            known = error if isinstance(error, KafkaError) else KafkaError(f"not sent: {error!r}")
            # A part of it may be on the wire, so it counts as sent and lost.
            lost = ClientResponse(request, failure=ResponseFailure.DISCONNECTED, error=known)
            self.unsent.append(lost)
        return correlation_id

    def end_unsent(self, now_ms: int) -> None:
        """End the requests that could not be sent."""
        # Swapped first: a callback may send another request that fails.
        ended, self.unsent = self.unsent, []
        for response in ended:
            self.handle(response, now_ms)

    def handle(self, response: ClientResponse, now_ms: int) -> None:
        """Hand the end of a request to its callback."""
        # Taken out, so that a second end finds no callback.
        on_end = self._awaited.pop(response.request.correlation_id, None)
        if on_end is None:
            _LOG.debug("nobody awaits the end of request %s", response.request.correlation_id)
            return
        on_end(response, now_ms)
