"""The verdicts on one producer's connections, of which each that was cut has to hear.

Why it exists: a listener that asks for a login closes connections without an error. The client
asks it once for the reason, and all connections that it has cut meanwhile wait for the answer. One
that hears nothing is tried again, and cut again, so that no call shows it.
Owns: the client's news of connections, as the core gets it. Must not know: the network.

    heard     a connection that was cut while its address was asked for the reason gets the verdict
              together with the others
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from txnproducer._protocol.events import (
    ClientEvent,
    ClientResponse,
    ConnectionEvent,
    ConnectionId,
    ConnectionState,
)
from txnproducer._wire.diagnosis import NAME
from txnproducer.errors import DisconnectError, IllegalSaslStateError

__all__ = ["VerdictWatch"]


class VerdictWatch:
    """Judge the verdicts on one producer's connections.

    Args:
        client: gives the core its news.
        now_ms: returns the time.
        violate: takes the check and the text of a violation.
    """

    def __init__(
        self, client: Any, now_ms: Callable[[], int], violate: Callable[[str, str], None]
    ) -> None:
        self._client = client
        self._now_ms = now_ms
        self._violate = violate
        # By host, when it was last asked for the reason.
        self._asked_ms: dict[str, int] = {}
        # By connection, its host and the time of the cut.
        self._cut: dict[ConnectionId, tuple[str, int]] = {}
        # Established, with or without an answer to a request.
        self._is_answered: dict[ConnectionId, bool] = {}
        poll = client.poll

        def watched_poll(timeout_ms: int, now_ms: int) -> list[ClientEvent]:
            began_ms = self._now_ms()
            events: list[ClientEvent] = poll(timeout_ms, now_ms)
            self._take(events, began_ms)
            return events

        client.poll = watched_poll

    def looks_up(self, host: str) -> None:
        """Note that a name is looked up, perhaps for a question."""
        if threading.current_thread().name == NAME:
            self._asked_ms[host] = self._now_ms()

    def _host(self, connection: ConnectionId) -> str | None:
        node = self._client._nodes.get(connection.node_id)  # noqa: SLF001 - the judge looks inside
        return None if node is None else node.host

    def _take(self, events: list[ClientEvent], began_ms: int) -> None:
        lost: set[ConnectionId] = set()
        hosts: set[str] = set()
        for event in events:
            if isinstance(event, ClientResponse):
                connection = event.request.connection
                if event.failure is None:
                    self._is_answered[connection] = True
                else:
                    lost.add(connection)
            elif isinstance(event.error, IllegalSaslStateError):
                hosts.add(self._host(event.connection) or "")
                self._cut.pop(event.connection, None)
            else:
                self._note(event, event.connection in lost, began_ms)
        for host in hosts:
            self._judge(host)

    def _note(self, event: ConnectionEvent, has_lost: bool, began_ms: int) -> None:
        connection = event.connection
        if event.state is ConnectionState.READY:
            self._is_answered[connection] = False
            return
        is_answered = self._is_answered.pop(connection, True)
        host = self._host(connection)
        is_cut = has_lost and isinstance(event.error, DisconnectError)
        if is_cut and not is_answered and host is not None:
            self._cut[connection] = host, began_ms

    def _judge(self, host: str) -> None:
        """Judge the connections that were cut since the question to which there is a verdict."""
        asked_ms = self._asked_ms.get(host)
        for connection, (of, cut_ms) in list(self._cut.items()):
            if of != host:
                continue
            del self._cut[connection]
            # Of an earlier one: it may have had no answer.
            is_due = asked_ms is not None and cut_ms > asked_ms and self._host(connection) == host
            if is_due:
                self._violate(
                    "heard", f"{connection} was cut at {cut_ms} ms and hears no verdict on {host}"
                )
