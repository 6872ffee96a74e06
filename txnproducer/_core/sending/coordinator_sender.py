"""Sends the transaction manager's requests: one at a time, each to the broker it is meant for.

Owns: the request in hand (taken from the queue, waiting for its broker or its backoff), the one on
the wire, the news of coordinators' connections. Must not know: the meaning of answers, which the
request's handler knows.

Rules:
* Nothing blocks here: a request whose broker is not ready stays in hand, and the step returns when
  to look again.
* Backoff counts from the end of the request's previous attempt; a first attempt has none.
* A coordinator that cannot be reached, or that the cluster no longer has, is looked up again.
* Data and new partitions wait until the previous transaction's markers are written
  (`marker_gate`).
* A refused login fails the requests if the one in hand goes to that broker, or if it may go to any
  broker and all of them refuse. (Java looks at the node that the request goes to as well.)
* Coordinators have connections of their own, so that a large Produce request does not delay an
  EndTxn.
"""

from __future__ import annotations

from txnproducer._core.batches.record_accumulator import RecordAccumulator
from txnproducer._core.failed_tries import FailedTries
from txnproducer._core.metadata import NEVER_MS, Metadata
from txnproducer._core.ports import KafkaClient, first_try_delay_ms
from txnproducer._core.sending.login_refusals import LoginRefusals
from txnproducer._core.sending.loss_inquiry import LossInquiry
from txnproducer._core.sending.marker_gate import MarkerGate
from txnproducer._core.sending.quotas import quota_error
from txnproducer._core.sending.request_tracker import RequestTracker
from txnproducer._core.transactions.handler import RequestPriority, TxnRequestHandler
from txnproducer._core.transactions.manager import TransactionManager
from txnproducer._core.transactions.state import TransactionState
from txnproducer._core.transactions.transaction_loss import TransactionLoss
from txnproducer._protocol.events import (
    Channel,
    ClientResponse,
    ConnectionEvent,
    ConnectionId,
    ConnectionState,
    ResponseFailure,
    coordinator_connection,
    data_connection,
)
from txnproducer._protocol.messages import (
    BrokerNode,
    CoordinatorType,
    EndTxnResponse,
    FindCoordinatorResponse,
)
from txnproducer._sync.held_logs import held_logger
from txnproducer.errors import AuthenticationError, KafkaError, TransactionAbortedError

_LOG = held_logger(__name__)

# In these no batch is sent any more, unless it was before.
_DROPPING_STATES = (TransactionState.ABORTABLE_ERROR, TransactionState.ABORTING_TRANSACTION)


class CoordinatorSender:
    """Send the manager's requests to their brokers.

    Args:
        transactions: has the requests.
        client: knows which brokers can be sent to.
        requests: sends.
        metadata: asked for an update if no broker can be reached.
        accumulator: its unsent batches are dropped if the transaction ends without them.
        refusals: know whether any broker is left that may take a request.
        tries: learn which requests have no answer.
        gate: knows whether data and new partitions have to wait.
        request_timeout_ms: how long a request waits for its broker's connection.
        retry_backoff_ms: the wait after a broker's connection did not come in time.
    """

    def __init__(
        self,
        transactions: TransactionManager,
        client: KafkaClient,
        requests: RequestTracker,
        metadata: Metadata,
        accumulator: RecordAccumulator,
        refusals: LoginRefusals,
        tries: FailedTries,
        gate: MarkerGate,
        *,
        request_timeout_ms: int,
        retry_backoff_ms: int,
    ) -> None:
        self._transactions = transactions
        self._client = client
        self._requests = requests
        self._metadata = metadata
        self._accumulator = accumulator
        self._refusals = refusals
        self._tries = tries
        self._request_timeout_ms = request_timeout_ms
        self._retry_backoff_ms = retry_backoff_ms
        self._gate = gate
        self._inquiry = LossInquiry(client, requests, transactions.transactional_id)
        self._in_hand: TxnRequestHandler | None = None
        self._taken_ms = 0
        self._not_before_ms: dict[TxnRequestHandler, int] = {}

    @property
    def has_request(self) -> bool:
        """Whether a request is in hand or on the wire."""
        return self._in_hand is not None or self._transactions.requests.has_in_flight_request

    def quota_error(self, now_ms: int) -> KafkaError | None:
        """Return that the broker of the request in hand takes none for now, or None."""
        handler = self._in_hand
        if handler is None or handler.needs_coordinator is None:
            return None
        connection = self._connection_for(handler, now_ms)
        if connection is None:
            return None
        return quota_error(self._client, connection, "is the coordinator", now_ms)

    def ask_about_loss(self, loss: TransactionLoss, now_ms: int) -> int:
        """Ask the coordinator why the transaction was lost. No request waits for it.

        Returns:
            After how many milliseconds to call again.
        """
        return self._inquiry.step(loss, self._transaction_coordinator, now_ms)

    def step(self, now_ms: int) -> int | None:
        """Send the next request if there is one that may go.

        Returns:
            After how many milliseconds to look again; None when there is none, so that data may be
            sent.
        """
        transactions = self._transactions
        # One request at a time: answers change the state by which the next request is chosen.
        if transactions.requests.has_in_flight_request:
            return NEVER_MS
        # Before `next_request`: EndTxn waits for batches that are still to be sent.
        if transactions.machine.state in _DROPPING_STATES:
            self._drop_unsent_batches()
        in_hand = self._in_hand
        # It was taken before the abort began. Sent now, it would add to a transaction that is to
        # end.
        if in_hand is not None and transactions.machine.is_aborting and in_hand.is_for_commit_only:
            self._in_hand = None
            transactions.requests.give_up(in_hand)
        if self._in_hand is None:
            self._in_hand = transactions.progress.next_request(self._accumulator.has_incomplete)
            # The wait for a broker counts from here, and not from the queueing: requests ahead
            # take their time.
            self._taken_ms = now_ms
        if self._in_hand is None:
            # Handlers are the keys, so the entries of finished ones would pile up.
            if self._not_before_ms and not transactions.requests.has_pending_requests:
                self._not_before_ms.clear()
            return self._hold_data(now_ms)
        return self._send(self._in_hand, now_ms)

    def _hold_data(self, now_ms: int) -> int | None:
        """Return how long data must wait for the previous transaction's markers, None if not."""
        # Only a waiting batch is worth a question to the coordinator.
        if not self._accumulator.has_undrained:
            return None
        return self._gate.wait_ms(self._transaction_coordinator, now_ms)

    @property
    def _transaction_coordinator(self) -> BrokerNode | None:
        return self._transactions.requests.coordinator(CoordinatorType.TRANSACTION)

    def _drop_unsent_batches(self) -> None:
        machine = self._transactions.machine
        is_aborting = machine.state is TransactionState.ABORTING_TRANSACTION
        error = TransactionAbortedError() if is_aborting else machine.last_error
        self._accumulator.abort_undrained_batches(error or KafkaError())

    def _send(self, handler: TxnRequestHandler, now_ms: int) -> int:
        wait_ms = self._not_before_ms.get(handler, now_ms) - now_ms
        if wait_ms > 0:
            return wait_ms
        # These begin the next transaction at the coordinator, which refuses while markers are
        # missing.
        if handler.priority is RequestPriority.ADD_PARTITIONS_OR_OFFSETS:
            held_ms = self._gate.wait_ms(self._transaction_coordinator, now_ms)
            if held_ms is not None:
                return held_ms
        connection = self._connection_for(handler, now_ms)
        if connection is None:
            first_try_ms = first_try_delay_ms(self._client, self._metadata.node_ids, now_ms)
            return self._look_up_or_back_off(handler, first_try_ms, now_ms)
        if not self._client.is_ready(connection, now_ms):
            return self._wait_for(connection, handler, now_ms)
        if handler.needs_coordinator is CoordinatorType.TRANSACTION:
            # Learnt while it is connected: the effect of a later error depends on it.
            self._transactions.identity.learn_coordinator(
                self._client.api_versions(connection.node_id)
            )
        request = handler.build_request()
        self._in_hand = None
        self._not_before_ms.pop(handler, None)
        correlation_id = self._requests.send(
            connection,
            request,
            lambda response, end_ms: self._on_end(handler, response, end_ms),
            now_ms,
        )
        self._transactions.requests.set_in_flight(handler, correlation_id)
        return NEVER_MS

    def _connection_for(self, handler: TxnRequestHandler, now_ms: int) -> ConnectionId | None:
        if handler.needs_coordinator is None:
            node_id = self._client.least_loaded_node(now_ms)
            return None if node_id is None else data_connection(node_id)
        node = self._transactions.requests.coordinator(handler.needs_coordinator)
        return None if node is None else coordinator_connection(node.node_id)

    def _look_up_or_back_off(self, handler: TxnRequestHandler, wait_ms: int, now_ms: int) -> int:
        # Back into the queue, since the look-up has to go first and only one request is in hand.
        self._in_hand = None
        if handler.needs_coordinator is not None:
            self._transactions.requests.lookup_coordinator(handler)
            self._transactions.requests.retry(handler)
            return 0  # the look-up is next
        self._transactions.requests.retry(handler)
        # No longer than that: news of a connection may come before, and must count then.
        self._not_before_ms[handler] = now_ms + min(wait_ms, self._retry_backoff_ms)
        # All known brokers may have moved: only new metadata can name others.
        self._metadata.request_update()
        return wait_ms

    def _wait_for(self, connection: ConnectionId, handler: TxnRequestHandler, now_ms: int) -> int:
        throttle_ms = self._client.throttle_delay_ms(connection, now_ms)
        if throttle_ms:
            return throttle_ms  # the broker asked for this wait; it is not a failure
        waited_ms = now_ms - self._taken_ms
        # Its broker may be gone for good, and another one be the coordinator since.
        if waited_ms >= self._request_timeout_ms:
            return self._look_up_or_back_off(handler, self._retry_backoff_ms, now_ms)
        # At least 1: with 0 the loop would spin until the connection is there.
        ready_ms = max(1, self._client.ready_delay_ms(connection, now_ms))
        return min(ready_ms, self._request_timeout_ms - waited_ms)

    # --- answers and connections ----------------------------------------------------------------

    def _on_end(self, handler: TxnRequestHandler, response: ClientResponse, now_ms: int) -> None:
        # Before the handler acts, which may queue the request again.
        self._transactions.requests.clear_in_flight()
        body = response.body
        # The answer has the coordinator's address, which metadata may not have yet.
        if isinstance(body, FindCoordinatorResponse):
            self._client.update_nodes(c.node for c in body.coordinators if not c.error_code)
        # Before the handler, which completes the transaction: the next one must find the gate
        # closed.
        if isinstance(body, EndTxnResponse) and not body.error_code:
            self._gate.transaction_ended(now_ms)
        if body is not None:
            handler.on_response(body)
        else:
            failure = response.failure or ResponseFailure.DISCONNECTED
            handler.on_failure(failure, response.error)
        # After the handler, which knows whether it was refused.
        if handler.priority is RequestPriority.ADD_PARTITIONS_OR_OFFSETS:
            is_refused = body is None or handler.is_retry
            self._gate.note_end(response.request.created_ms, now_ms, is_refused=is_refused)
        if handler.is_retry:
            self._not_before_ms[handler] = now_ms + handler.retry_backoff_ms
            handler.note_refusal(response, now_ms)
            self._tries.warn_of_loss(handler.refusal)

    def handle_connection_event(self, event: ConnectionEvent) -> None:
        """Handle a connection's event: a disconnected coordinator is looked up again."""
        connection = event.connection
        if event.state is ConnectionState.AUTHENTICATION_FAILED:
            if self._is_hopeless_after_refusal_by(connection):
                self._fail_authentication(event.error)
        elif (
            # A lost data connection says nothing about the coordinator: the channels fail apart.
            event.state is ConnectionState.DISCONNECTED
            and connection.channel is Channel.COORDINATOR
        ):
            self._transactions.requests.handle_coordinator_disconnected(connection.node_id)

    def _is_hopeless_after_refusal_by(self, connection: ConnectionId) -> bool:
        """Return whether no broker is left for the request in hand after this refused login."""
        handler = self._in_hand
        if handler is None:
            return False  # the next request connects again, and is refused by itself
        if handler.needs_coordinator is None:
            return self._refusals.leave_none
        node = self._transactions.requests.coordinator(handler.needs_coordinator)
        return node is not None and connection == (node.node_id, Channel.COORDINATOR)

    def _fail_authentication(self, error: KafkaError | None) -> None:
        reason = (
            error
            if isinstance(error, AuthenticationError)
            else AuthenticationError(None if error is None else str(error))
        )
        has_request_in_hand, self._in_hand = self._in_hand is not None, None
        self._transactions.progress.authentication_failed(
            reason, has_request_in_hand=has_request_in_hand
        )

    def forget_coordinators_not_in(self, node_ids: set[int]) -> None:
        """Look up again the coordinators that are no longer in the cluster's metadata."""
        for kind in CoordinatorType:
            node = self._transactions.requests.coordinator(kind)
            if node is not None and node.node_id not in node_ids:
                _LOG.debug("coordinator %s has left the cluster", node)
                self._transactions.requests.handle_coordinator_disconnected(node.node_id)

    def fail_request_in_hand(self, error: KafkaError) -> None:
        """Fail the request that was taken from the queue and not sent."""
        self._not_before_ms.clear()
        if self._in_hand is not None:
            # Failed before it is forgotten: if an exception comes between, this can be repeated.
            self._in_hand.fail(error)
            self._in_hand = None
