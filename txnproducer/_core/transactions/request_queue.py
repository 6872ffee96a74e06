"""The coordinator requests that wait, in the order in which they are sent.

Owns: the order, which is by priority and then by the first queueing. Must not know: the meaning
of the requests.

Rule: a request that is queued again keeps its place among its equals. If two calls commit offsets
of one partition, a retry of the older one goes before the newer one, and cannot overwrite it.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from txnproducer._core.transactions.handler import TxnRequestHandler


class TxnRequestQueue:
    """A priority queue of requests."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, TxnRequestHandler]] = []
        self._next_order = 0

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, handler: TxnRequestHandler) -> None:
        """Queue a request."""
        # A retry keeps its number, and so its place.
        if handler.order < 0:
            handler.order = self._next_order
            self._next_order += 1
        heappush(self._heap, (handler.priority, handler.order, handler))

    def peek(self) -> TxnRequestHandler | None:
        """Return the request that goes next."""
        return self._heap[0][2] if self._heap else None

    def pop(self) -> TxnRequestHandler:
        """Take the request that goes next out of the queue."""
        return heappop(self._heap)[2]

    def any(self, is_meant: Callable[[TxnRequestHandler], bool]) -> bool:
        """Return whether a queued request meets a condition."""
        return any(is_meant(handler) for _, _, handler in self._heap)

    def end(
        self,
        is_meant: Callable[[TxnRequestHandler], bool],
        end: Callable[[TxnRequestHandler], None],
    ) -> None:
        """End all requests that meet a condition, in their order, and take them out of the queue.

        They are taken out last: if an exception comes in the middle, none is lost, and the call
        can be repeated.
        """
        ended = sorted(entry for entry in self._heap if is_meant(entry[2]))
        for _, _, handler in ended:
            end(handler)
        kept = [entry for entry in self._heap if entry not in ended]
        heapify(kept)
        self._heap = kept
