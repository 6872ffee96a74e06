"""The queue of coordinator requests, the one that is out, and the coordinators' addresses.

Owns: the queue and its order, the request that left it, the coordinators' addresses. Must not
know: states, operations, the purpose of a request.

Rules:
* At most one request is out. A request taken from the queue is sent, put back or failed.
* The order is by priority, and then by the first queueing. A request that is queued again keeps
  its place among its equals. If two calls commit offsets of one partition, a retry of the older
  one goes before the newer one, and cannot overwrite it.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

from txnproducer._core.failed_tries import Refusal
from txnproducer._core.transactions.requests import FindCoordinatorHandler, TxnRequestHandler
from txnproducer._protocol.messages import BrokerNode, CoordinatorType
from txnproducer._sync.held_logs import held_logger
from txnproducer.errors import IllegalStateError, KafkaError

_LOG = held_logger(__name__)

# So many coordinators are remembered, so that each is logged once.
_MOST_LOGGED: Final = 100


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
            handler.take_place(self._next_order)
            self._next_order += 1
        # The order is unique, so that the heap never compares two handlers.
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

    def refusals(self) -> list[Refusal]:
        """Return the last refusal of each queued request that was refused."""
        return [entry[2].refusal for entry in self._heap if entry[2].refusal is not None]

    def end(
        self,
        is_meant: Callable[[TxnRequestHandler], bool],
        end: Callable[[TxnRequestHandler], None],
    ) -> None:
        """End all requests that meet a condition, in their order, and take them out of the queue.

        They are taken out last: if an exception comes in the middle, none is lost, and the call
        can be repeated.
        """
        # The list of a heap is only partly in order, and callers see the order of the ends.
        ended = sorted(entry for entry in self._heap if is_meant(entry[2]))
        for _, _, handler in ended:
            end(handler)
        kept = [entry for entry in self._heap if entry not in ended]
        heapify(kept)
        self._heap = kept


class CoordinatorRequests:
    """The requests to coordinators, of which one at most is out.

    Args:
        name: the producer's, for the log.
        find_coordinator: makes the look-up of a coordinator, by key and kind.

    Attributes:
        queue: the requests that wait.
        out: the request that was taken to be sent, or was sent.
        has_in_flight_request: whether a request awaits its answer.
    """

    def __init__(
        self, name: str, find_coordinator: Callable[[str, CoordinatorType], FindCoordinatorHandler]
    ) -> None:
        self._name = name
        self._find_coordinator = find_coordinator
        self.queue = TxnRequestQueue()
        self.out: TxnRequestHandler | None = None
        self.has_in_flight_request = False
        self._coordinators: dict[CoordinatorType, BrokerNode | None] = {}
        self._coordinator_keys: dict[CoordinatorType, str] = {}
        self._logged: dict[tuple[CoordinatorType, str], BrokerNode] = {}

    @property
    def has_pending_requests(self) -> bool:
        """Whether a request is queued."""
        return bool(self.queue)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued, and nothing out."""
        return not self.queue and self.out is None

    def refusals(self) -> list[Refusal]:
        """Return the last refusal of each request that was refused and has not ended."""
        out = None if self.out is None else self.out.refusal
        return [*self.queue.refusals(), *(() if out is None else (out,))]

    # --- a request on its way -------------------------------------------------------------------

    def push_once(self, handler: TxnRequestHandler) -> None:
        """Queue the request of an operation, unless an interrupted call has queued it already."""
        # By its result: a start that is made again makes another handler.
        if not self.queue.any(lambda queued: queued.result is handler.result):
            self.queue.push(handler)

    def take(self) -> TxnRequestHandler:
        """Take the next request out of the queue, to be sent."""
        handler = self.queue.pop()
        handler.taken()
        self.out = handler
        key_type, key = handler.needs_coordinator, handler.coordinator_key
        if key_type is not None and self._coordinator_keys.get(key_type) != key:
            # The known coordinator belongs to another group, or to another transactional id.
            self._coordinators[key_type] = None
        return handler

    def put_aside(self) -> None:
        """Forget the request that was taken: it is not sent, and the caller ends it."""
        self.out = None

    def retry(self, handler: TxnRequestHandler) -> None:
        """Put a request back in the queue, in its place."""
        handler.put_back()
        if self.out is handler:
            self.out = None
        self.queue.push(handler)

    def give_up(self, handler: TxnRequestHandler) -> None:
        """End a request that was taken, and that the abort under way does not need."""
        # Before its end: an interrupted call must not leave a request out that has ended.
        self.out = None
        handler.give_up()

    def set_in_flight(self, handler: TxnRequestHandler, correlation_id: int) -> None:
        """Note that a request was sent; `correlation_id` is for the log alone."""
        _LOG.debug("%s: sent %s as request %s", self._name, handler, correlation_id)
        self.out = handler
        self.has_in_flight_request = True

    def clear_in_flight(self) -> None:
        """Note that the request on the wire has ended. Its handler gets the answer separately."""
        self.out = None
        self.has_in_flight_request = False

    # --- ends -----------------------------------------------------------------------------------

    def drop_requests_not_needed_for_abort(self) -> None:
        """End the queued requests that only a commit needs."""
        self.queue.end(lambda queued: queued.is_for_commit_only, lambda queued: queued.give_up())

    def fail_end_txn(self, error: KafkaError) -> None:
        """Fail a queued EndTxn."""
        self.queue.end(lambda queued: queued.is_end_txn, lambda queued: queued.fail(error))

    def fail_all(self, error: KafkaError) -> None:
        """Fail the queued requests, and then the one that is out."""
        self.queue.end(lambda _: True, lambda handler: handler.fail(error))
        if self.out is not None:
            self.out.fail(error)

    def fail_pending_requests(self, error: KafkaError) -> None:
        """Fail all requests, and forget the one that was out. The state is the caller's."""
        self.fail_all(error)
        self.out = None

    # --- coordinators ---------------------------------------------------------------------------

    def coordinator(self, key_type: CoordinatorType) -> BrokerNode | None:
        """Return a coordinator's address, or None if it has to be looked up."""
        return self._coordinators.get(key_type)

    def lookup_coordinator(self, handler: TxnRequestHandler) -> None:
        """Forget a request's coordinator, and queue its look-up unless one is queued."""
        key_type, key = handler.needs_coordinator, handler.coordinator_key
        if key_type is None:
            raise IllegalStateError(f"{handler} goes to any broker; nothing to look up")
        # Forgotten at once, so that no other request goes there meanwhile.
        self._coordinators[key_type] = None

        def is_same(queued: TxnRequestHandler) -> bool:
            if not isinstance(queued, FindCoordinatorHandler):
                return False
            return (queued.key_type, queued.key) == (key_type, key)

        # One look-up serves every request to the same coordinator.
        if not self.queue.any(is_same):
            self.queue.push(self._find_coordinator(key, key_type))

    def coordinator_found(self, key_type: CoordinatorType, key: str, node: BrokerNode) -> None:
        """Take in a coordinator's address."""
        # A coordinator that refuses is looked up many times a second, mostly in the same place.
        if self._logged.get((key_type, key)) != node:
            _LOG.info("%s: the coordinator of %s %r is %s", self._name, key_type.name, key, node)
            # A producer may commit for any number of groups, one after the other.
            if len(self._logged) >= _MOST_LOGGED:
                self._logged.clear()
            self._logged[key_type, key] = node
        self._coordinators[key_type] = node
        self._coordinator_keys[key_type] = key

    def handle_coordinator_disconnected(self, node_id: int) -> None:
        """Forget the coordinators on this broker, so that they are looked up again."""
        for key_type, node in self._coordinators.items():
            if node is not None and node.node_id == node_id:
                # Only values change, so the dict can be iterated meanwhile.
                self._coordinators[key_type] = None
