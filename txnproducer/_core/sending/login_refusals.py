"""The brokers that refuse this client's login, and whether another one is left to ask.

Why it exists: one broker's refusal (an expired certificate, a password that has not been
replicated yet) says nothing about the others. A request that any broker can answer fails when all
of them refuse; a request to one broker fails when that one does.
Owns: the last state of each broker's connection. Must not know: requests.
Rule: a broker that was reached before may be back in a moment, and counts as one to ask. A broker
that could never be reached does not.
"""

from __future__ import annotations

from txnproducer._core.metadata import Metadata
from txnproducer._protocol.events import Channel, ConnectionEvent, ConnectionState


class LoginRefusals:
    """Follow the connections on which requests for any broker go.

    Args:
        metadata: names the brokers that there are.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._last: dict[int, ConnectionState] = {}

    def handle_connection_event(self, event: ConnectionEvent) -> None:
        """Take in the news of a connection."""
        node_id, channel = event.connection
        # Coordinators' connections go to one broker each, and fail their own request.
        if channel is not Channel.DATA:
            return
        # A lost connection does not change the outcome of the last login.
        if event.state is ConnectionState.DISCONNECTED:
            self._last.setdefault(node_id, event.state)
        else:
            self._last[node_id] = event.state

    @property
    def leave_none(self) -> bool:
        """Whether each broker has refused, or could never be reached. At least one has refused."""
        # A broker that was not tried yet may accept the login, so it counts as ready.
        node_ids = self._metadata.node_ids
        states = {self._last.get(node_id, ConnectionState.READY) for node_id in node_ids}
        refused = ConnectionState.AUTHENTICATION_FAILED
        return refused in states and ConnectionState.READY not in states
