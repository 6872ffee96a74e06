"""The brokers to which one producer connects: only those that its cluster has, as far as it knows.

Why it exists: a broker that has left the cluster for good refuses each attempt to connect, or its
address is another machine's. The producer goes on with the others, so that no call shows it.
Owns: the brokers that the core has named to the client. Must not know: the brokers that there are.

    gone      a producer connects to no broker that its last metadata did not name, except at its
              bootstrap addresses
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from txnproducer._protocol.messages import BrokerNode

__all__ = ["BrokerWatch"]

# An attempt that has begun before may still have to look the name up.
_MOMENT_MS: Final = 1_000


class BrokerWatch:
    """Judge the names that one producer looks up.

    Args:
        bootstrap: the hosts of its bootstrap addresses.
        now_ms: returns the time.
        violate: takes the check and the text of a violation.
    """

    def __init__(
        self,
        bootstrap: Collection[str],
        now_ms: Callable[[], int],
        violate: Callable[[str, str], None],
    ) -> None:
        self._bootstrap = bootstrap
        self._now_ms = now_ms
        self._violate = violate
        self._named: set[str] = set()
        # By host, when metadata named it no more.
        self._gone_ms: dict[str, int] = {}

    def listen(self, client: Any) -> None:
        """Follow the brokers that the core names to its client."""
        update, replace = client.update_nodes, client.replace_nodes

        def update_nodes(nodes: Iterable[BrokerNode]) -> None:
            named = tuple(nodes)
            self._add(named)
            update(named)

        def replace_nodes(nodes: Iterable[BrokerNode]) -> None:
            named = tuple(nodes)
            now_ms = self._now_ms()
            for host in self._named - {node.host for node in named}:
                self._gone_ms.setdefault(host, now_ms)
            self._add(named)
            # It calls the one above, too, which changes nothing.
            replace(named)

        client.update_nodes, client.replace_nodes = update_nodes, replace_nodes

    def _add(self, nodes: Iterable[BrokerNode]) -> None:
        for node in nodes:
            self._named.add(node.host)
            self._gone_ms.pop(node.host, None)

    def looks_up(self, host: str) -> None:
        """Judge an attempt to connect."""
        gone_ms, now_ms = self._gone_ms.get(host), self._now_ms()
        if gone_ms is None or host in self._bootstrap or now_ms <= gone_ms + _MOMENT_MS:
            return
        self._violate(
            "gone", f"an attempt to connect to {host}, {now_ms - gone_ms} ms after it had left"
        )
