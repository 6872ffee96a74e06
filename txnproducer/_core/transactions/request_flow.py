"""Between the operations and the sender: what is queued, where it goes, and what an error ends.

Owns: the queue and the request that left it, the coordinators, the operation that somebody waits
for, the transitions to the error states and what they fail. Must not know: what the operations
are, partitions, sequences.

Rules:
* One request is out at a time: taken from the queue, it is sent, or put back, or failed.
* Going fatal fails all that waits, in this order: the queue, the request that is out, the
  operation that was not acknowledged. (Java leaves queued requests waiting, and with them the
  calls that wait for these.)
* While a transaction is being aborted, abortable errors are nothing new: the state stays.
* The first fatal error is kept: what follows are its consequences.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from txnproducer._core.transactions.request_queue import TxnRequestQueue
from txnproducer._core.transactions.requests import FindCoordinatorHandler, TxnRequestHandler
from txnproducer._core.transactions.result import TransactionalRequestResult
from txnproducer._core.transactions.state import (
    TransactionState,
    TransactionStateMachine,
    recovery_when_fatal,
)
from txnproducer._protocol.messages import ApiKey, BrokerNode, CoordinatorType
from txnproducer._protocol.versions import NodeApiVersions
from txnproducer.errors import (
    ClusterAuthorizationError,
    IllegalStateError,
    KafkaError,
    TransactionalIdAuthorizationError,
)

_LOG = logging.getLogger(__name__)

# InitProducerId takes the present id and epoch, and answers with the next, from here on (KIP-360).
_FIRST_VERSION_WITH_BUMP: Final = 3


@dataclass(slots=True)
class PendingOperation:
    """An operation whose end its caller has not seen.

    Attributes:
        kind: the state it began with.
        result: its end.
        start: begins it; None once it has begun. If an exception comes in the middle, it is
            called again, so that each of its steps looks first whether it is done.
    """

    kind: TransactionState
    result: TransactionalRequestResult
    start: Callable[[TransactionalRequestResult], None] | None


class TxnRequestFlow(TransactionStateMachine, ABC):
    """See the module.

    Args:
        transactional_id: None for an idempotent producer.
        retry_backoff_ms: between two attempts of a request.
    """

    def __init__(self, transactional_id: str | None, retry_backoff_ms: int) -> None:
        is_named = transactional_id is not None
        super().__init__(
            f"transactional id {transactional_id!r}" if is_named else "idempotent producer"
        )
        self.transactional_id = transactional_id
        self.retry_backoff_ms = retry_backoff_ms
        self._queue = TxnRequestQueue()
        self._out: TxnRequestHandler | None = None
        self._has_in_flight = False
        self._pending: PendingOperation | None = None
        self._coordinators: dict[CoordinatorType, BrokerNode | None] = {}
        self._coordinator_keys: dict[CoordinatorType, str] = {}
        self._coordinator_can_bump = False

    @property
    def is_transactional(self) -> bool:
        """Whether there is a transactional id."""
        return self.transactional_id is not None

    # --- requests on their way ------------------------------------------------------------------

    @property
    def has_pending_requests(self) -> bool:
        """Whether a request is queued."""
        return bool(self._queue)

    @property
    def has_in_flight_request(self) -> bool:
        """Whether a request awaits its answer."""
        return self._has_in_flight

    def _take(self) -> TxnRequestHandler:
        handler = self._queue.pop()
        handler.is_taken = True
        self._out = handler
        if handler.needs_coordinator is not None:
            self._forget_other(handler.needs_coordinator, handler.coordinator_key)
        return handler

    def retry(self, handler: TxnRequestHandler) -> None:
        """Put a request back in the queue, in its place."""
        handler.is_retry = True
        handler.is_taken = False
        if self._out is handler:
            self._out = None
        self._queue.push(handler)

    def give_up(self, handler: TxnRequestHandler) -> None:
        """End a request that was taken, and that the abort under way does not need."""
        self._out = None
        handler.give_up()

    def set_in_flight(self, handler: TxnRequestHandler, correlation_id: int) -> None:
        """Note that a request was sent; `correlation_id` is for the log alone."""
        _LOG.debug("%s: sent %s as request %s", self.name, handler, correlation_id)
        self._out = handler
        self._has_in_flight = True

    def clear_in_flight(self) -> None:
        """Note that the request that was sent has ended; its answer is told to its handler."""
        self._out = None
        self._has_in_flight = False

    # --- coordinators ---------------------------------------------------------------------------

    @property
    def coordinator_can_bump(self) -> bool:
        """Whether the transaction coordinator raises epochs when asked; kept while it is away."""
        return self._coordinator_can_bump

    def coordinator(self, key_type: CoordinatorType) -> BrokerNode | None:
        """Return a coordinator's address, or None if it has to be looked up."""
        return self._coordinators.get(key_type)

    def lookup_coordinator(self, handler: TxnRequestHandler) -> None:
        """Forget a request's coordinator, and queue its look-up (once)."""
        key_type, key = handler.needs_coordinator, handler.coordinator_key
        if key_type is None:
            raise IllegalStateError(f"{handler} goes to any broker; nothing to look up")
        self._coordinators[key_type] = None

        def is_same(queued: TxnRequestHandler) -> bool:
            if not isinstance(queued, FindCoordinatorHandler):
                return False
            return (queued.key_type, queued.key) == (key_type, key)

        if not self._queue.any(is_same):
            self._queue.push(self._find_coordinator(key, key_type))

    @abstractmethod
    def _find_coordinator(self, key: str, key_type: CoordinatorType) -> FindCoordinatorHandler:
        """Return a look-up."""

    def coordinator_found(self, key_type: CoordinatorType, key: str, node: BrokerNode) -> None:
        """Take in a coordinator's address."""
        _LOG.info("%s: the coordinator of %s %r is %s", self.name, key_type.name, key, node)
        self._coordinators[key_type] = node
        self._coordinator_keys[key_type] = key

    def _forget_other(self, key_type: CoordinatorType, key: str) -> None:
        """Look up anew where the one that is known is another group's, or another id's."""
        if self._coordinator_keys.get(key_type) != key:
            self._coordinators[key_type] = None

    def handle_coordinator_ready(self, api_versions: NodeApiVersions | None) -> None:
        """Learn what the transaction coordinator can do."""
        version = (
            None if api_versions is None else api_versions.max_version(ApiKey.INIT_PRODUCER_ID)
        )
        self._coordinator_can_bump = version is not None and version >= _FIRST_VERSION_WITH_BUMP

    def handle_coordinator_disconnected(self, node_id: int) -> None:
        """Look up again whatever coordinator this broker was."""
        for key_type, node in self._coordinators.items():
            if node is not None and node.node_id == node_id:
                self._coordinators[key_type] = None

    # --- errors ---------------------------------------------------------------------------------

    @property
    def must_begin_anew(self) -> bool:
        """Whether an error left the producer without an identity, but otherwise sound.

        The sender then fails what waits and goes back to UNINITIALIZED, from where the application
        can initialize again.
        """
        if not self.has_abortable_error:
            return False
        return not self._has_identity or isinstance(
            self.last_error, ClusterAuthorizationError | TransactionalIdAuthorizationError
        )

    @property
    @abstractmethod
    def _has_identity(self) -> bool:
        """Whether the last initialization has succeeded."""

    def transition_to_abortable_error(self, error: KafkaError) -> None:
        """Have the transaction aborted; no news while it is, or after a fatal error."""
        if self.is_aborting or self.has_fatal_error:
            _LOG.debug("%s: in %s already: %s", self.name, self.state.name, error)
            return
        self.transition_to(TransactionState.ABORTABLE_ERROR, error)
        _LOG.info("%s: the transaction must be aborted: %s", self.name, error)
        if not self.must_begin_anew:
            error.recovery = "abort"
        elif error.recovery == "abort":
            error.recovery = "resume"  # there is nothing to abort, the call can be made again

    def transition_to_fatal_error(self, error: KafkaError, level: int = logging.ERROR) -> None:
        """End the producer; all that waits fails.

        Args:
            error: why.
            level: of the line in the log.
        """
        if not self.has_fatal_error:
            error.recovery = recovery_when_fatal(error)
            self.transition_to(TransactionState.FATAL_ERROR, error)
            _LOG.log(level, "%s: cannot go on: %s", self.name, error)
        self._fail_all(self.last_error or error)

    def _on_poisoned(self, error: KafkaError) -> None:
        self._fail_all(error)

    def _fail_all(self, error: KafkaError) -> None:
        self._fail_requests(error)
        if self._pending is not None:
            self._pending.result.fail(error)

    def _fail_requests(self, error: KafkaError) -> None:
        self._queue.end(lambda _: True, lambda handler: handler.fail(error))
        if self._out is not None:
            self._out.fail(error)

    def authentication_failed(
        self, error: KafkaError, in_hand: TxnRequestHandler | None = None
    ) -> None:
        """Take in that a broker refused us: what is queued can't be sent, and that is fatal.

        Args:
            error: the refusal.
            in_hand: the request that was taken to be sent, if there is one. (Java loses it.)
        """
        if in_hand is None and not self._queue:
            return
        self.transition_to_fatal_error(error)
        if in_hand is not None:
            in_hand.fail(error)

    def fail_pending_requests(self, error: KafkaError) -> None:
        """Fail what is queued; the state is the caller's to change."""
        self._fail_requests(error)
        self._out = None

    def close(self, error: KafkaError) -> None:
        """End: fail all that waits, on every way out."""
        if self._queue or self._out is not None:
            # What it fails hears of it; for the log it is what the application asked for.
            self.transition_to_fatal_error(error, logging.DEBUG)
        else:
            self._fail_all(error)
