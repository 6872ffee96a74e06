"""The requests on the wire, each with what to do when it ends.

Owns: correlation ids, the table of what awaits an answer. Must not know: what the requests say.
Rule: each request ends exactly once; an end that nobody awaits (its producer was closed by force)
is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from txnproducer._core.ports import KafkaClient
from txnproducer._protocol.events import ClientRequest, ClientResponse, ConnectionId
from txnproducer._protocol.messages import Request

_LOG = logging.getLogger(__name__)

OnEnd: TypeAlias = Callable[[ClientResponse, int], None]


class RequestTracker:
    """Send requests, and bring each end to whoever awaits it.

    Args:
        client: carries them.
        request_timeout_ms: how long each may take.
    """

    def __init__(self, client: KafkaClient, request_timeout_ms: int) -> None:
        self._client = client
        self._request_timeout_ms = request_timeout_ms
        self._next_id = 1
        self._awaited: dict[int, OnEnd] = {}

    def send(self, connection: ConnectionId, body: Request, on_end: OnEnd, now_ms: int) -> int:
        """Put a request on a ready connection.

        Returns:
            Its correlation id.

        Raises:
            IllegalStateError: the connection is not ready; `on_end` will not be called.
        """
        correlation_id = self._next_id
        self._next_id += 1
        request = ClientRequest(correlation_id, connection, body, now_ms, self._request_timeout_ms)
        self._client.send(request, now_ms)
        self._awaited[correlation_id] = on_end
        return correlation_id

    def handle(self, response: ClientResponse, now_ms: int) -> None:
        """Bring the end of a request to whoever awaits it."""
        on_end = self._awaited.pop(response.request.correlation_id, None)
        if on_end is None:
            _LOG.debug("nobody awaits the end of request %s", response.request.correlation_id)
            return
        on_end(response, now_ms)
