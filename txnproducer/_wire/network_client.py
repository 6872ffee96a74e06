"""The client that carries the core's requests to real brokers: one loop over all connections.

Why it exists: the core asks `is_ready`, hands over requests and never waits. The client waits.
Owns: the selector, every connection and every attempt to make one, backoff, the nodes' addresses,
the versions that each node offers.
Must not know: transactions, leaders, which answers are good.
Rules: one thread owns it (the I/O thread). Other threads may call `wakeup`, `hurry`,
`in_flight_count` and `finalized_features`. `now_ms` and `clock_ms` are the same clock. Each
request gets exactly one `ClientResponse`: an answer, a time-out (which closes its connection, as
in the Java client), or DISCONNECTED, also at `close`. Connecting never blocks the loop: see
`connector`.
"""

from __future__ import annotations

import random
import selectors
import struct
from collections.abc import Callable, Iterable

from txnproducer._protocol.backoff import ExponentialBackoff
from txnproducer._protocol.events import (
    Channel,
    ClientEvent,
    ClientRequest,
    ClientResponse,
    ConnectionEvent,
    ConnectionId,
    ConnectionState,
    ResponseFailure,
    data_connection,
)
from txnproducer._protocol.messages import BrokerNode
from txnproducer._protocol.versions import FinalizedFeatures, NodeApiVersions
from txnproducer._sync.core_lock import Priority, new_loop_priority
from txnproducer._sync.held_logs import held_logger
from txnproducer.config import ProducerConfig
from txnproducer.errors import (
    DisconnectError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    UnsupportedVersionError,
)

from .codec import WireCodec
from .connect_settings import ConnectSettings
from .connection import NEVER_MS, Connection
from .connector import Connected, Connector, Suspicion, is_refusal
from .diagnosis import Diagnoses
from .io_calls import io_calls
from .kept_threads import KeptThreads
from .links import UNTIL_NEWS_MS, Known, WireLink, hopeless_at_ms
from .platform import SYSTEM, Platform
from .tcp import BufferSizes, with_address
from .version_choice import choose_version

_LOG = held_logger(__name__)

# An upper bound for one wait: `epoll_wait` takes an int, and the core asks for far less.
_LONGEST_WAIT_MS = 600_000
_HURRIED_MS = 1_000
_ENCODING_ERRORS = (
    ValueError,
    TypeError,
    OverflowError,
    struct.error,
)  # UnicodeError is the first
_UNTRIED = WireLink()


class NetworkClient:
    """The core's `KafkaClient` for real brokers, with `poll`, `wakeup` and `close`.

    Args:
        config: addresses, time-outs, security.
        clock_ms: the clock of `now_ms`, which the connectors' threads and `poll` read.
        rng: spreads reconnects and re-authentications.
        priority: by which other threads give way to the thread that polls.
        platform: has the sockets, threads and locks.

    Raises:
        InvalidConfigurationError: a security setting is missing or wrong.
    """

    def __init__(
        self,
        config: ProducerConfig,
        clock_ms: Callable[[], int],
        rng: random.Random | None = None,
        priority: Priority | None = None,
        platform: Platform = SYSTEM,
    ) -> None:
        self._config = config
        self._clock_ms = clock_ms
        self._rng = rng or platform.rng()
        self._settings = ConnectSettings.from_security(
            config.client_id,
            config.security,
            BufferSizes(config.send_buffer_bytes, config.receive_buffer_bytes),
            platform,
        )
        self._codec = WireCodec(config.client_id)
        self._reconnects = ExponentialBackoff(
            config.reconnect_backoff_ms, config.reconnect_backoff_max_ms, self._rng
        )
        self._setup_timeouts = ExponentialBackoff(
            config.socket_connection_setup_timeout_ms,
            config.socket_connection_setup_timeout_max_ms,
            self._rng,
        )
        self._nodes = {
            -1 - number: BrokerNode(-1 - number, host, port)
            for number, (host, port) in enumerate(config.bootstrap_addresses)
        }
        self._links: dict[ConnectionId, WireLink] = {}
        self._api_versions: dict[int, NodeApiVersions] = {}
        self._known = Known(FinalizedFeatures())
        self._events: list[ClientEvent] = []
        self._unflushed: list[Connection] = []
        self._due_ms = 0  # the time of the next `_tick`; too early is harmless
        self._is_closed = False
        self._wakeup = platform.wakeup()
        self._threads = KeptThreads(platform)
        self._diagnoses = Diagnoses(self._settings, clock_ms, self._wakeup.set)
        self._calls = io_calls(priority or new_loop_priority())
        self._selector = platform.selector()
        self._selector.register(self._wakeup, selectors.EVENT_READ, None)

    # --- questions of the core ------------------------------------------------------------------

    def update_nodes(self, nodes: Iterable[BrokerNode]) -> None:
        """Note the addresses of some brokers. A changed address closes the node's connections."""
        for node in nodes:
            before = self._nodes.get(node.node_id)
            self._nodes[node.node_id] = node
            if before is None or (before.host, before.port) == (node.host, node.port):
                continue
            moved = DisconnectError(
                f"broker {node.node_id} has moved from {before.address} to {node.address}"
            )
            for channel in Channel:
                self._forget(ConnectionId(node.node_id, channel), moved)

    def replace_nodes(self, nodes: Iterable[BrokerNode]) -> None:
        """Note the addresses of all brokers, and forget all others except bootstrap addresses.

        A forgotten broker is not connected to again. An existing connection stays open until it is
        idle, as in the Java client.
        """
        named = {node.node_id: node for node in nodes}
        self._nodes = {n: node for n, node in self._nodes.items() if n < 0 or n in named}
        self.update_nodes(named.values())
        for connection_id, link in list(self._links.items()):
            if link.connection is None and connection_id.node_id not in self._nodes:
                self._forget(connection_id, None)
        kept = self._nodes.keys() | {connection_id.node_id for connection_id in self._links}
        for node_id in self._api_versions.keys() - kept:
            del self._api_versions[node_id]

    def is_ready(self, connection: ConnectionId, now_ms: int) -> bool:
        """Return whether a request can be sent now. Begin to connect if there is no connection."""
        link = self._links.get(connection)
        if link is not None and link.connection is not None:
            return link.connection.can_send(now_ms)
        if link is None or (link.connector is None and now_ms >= link.retry_at_ms):
            self._begin_to_connect(connection, now_ms)
        return False

    def is_connected(self, connection: ConnectionId) -> bool:
        """Return whether the connection is established, even if it takes no request now."""
        link = self._links.get(connection)
        return link is not None and link.connection is not None

    def ready_delay_ms(self, connection: ConnectionId, now_ms: int) -> int:
        """Return the milliseconds until `is_ready` is worth asking again without an event."""
        link = self._links.get(connection) or _UNTRIED
        if link.connection is None and connection.node_id not in self._nodes:
            return UNTIL_NEWS_MS
        return link.ready_delay_ms(now_ms)

    def throttle_delay_ms(self, connection: ConnectionId, now_ms: int) -> int:
        """Return the milliseconds for which the broker has asked for no requests (KIP-219)."""
        link = self._links.get(connection)
        if link is None or link.connection is None:
            return 0
        return max(0, link.connection.muted_until_ms - now_ms)

    def send(self, request: ClientRequest, now_ms: int) -> None:
        """Put a request on a ready connection. The next `poll` writes it.

        Raises:
            IllegalStateError: the connection is not ready.
        """
        link = self._links.get(request.connection)
        connection = None if link is None else link.connection
        if connection is None or not connection.can_send(now_ms):
            raise IllegalStateError(f"{request.connection} is not ready for a request")
        try:
            version = choose_version(request.body, self._api_versions[request.connection.node_id])
        except UnsupportedVersionError as error:
            failure = ResponseFailure.UNSUPPORTED_VERSION
            self._events.append(ClientResponse(request, failure=failure, error=error))
            return
        had_output = bool(connection.output)
        try:
            connection.send_request(request, version, now_ms)
        except _ENCODING_ERRORS as error:
            # Half a surrogate pair in a text, or a number that is too large. Such values are
            # refused earlier, where their origin is known. This is the last resort: the request
            # must end.
            failure = ResponseFailure.UNENCODABLE
            told = KafkaError(
                f"{type(request.body).__name__} could not be put into bytes: {error}"
            )
            self._events.append(ClientResponse(request, failure=failure, error=told))
            return
        if not had_output:
            self._unflushed.append(connection)
        self._due_ms = min(self._due_ms, now_ms + request.timeout_ms)

    def least_loaded_node(self, now_ms: int) -> int | None:
        """Return the best broker for a request that any can answer, or None if all back off."""
        best: tuple[int, int, int] | None = None
        best_id: int | None = None
        # In random order, so that many clients do not choose the same one of several equals.
        for node_id in self._rng.sample(list(self._nodes), len(self._nodes)):
            link = self._links.get(data_connection(node_id)) or _UNTRIED
            rank = link.rank(now_ms, is_bootstrap=node_id < 0)
            if rank is not None and (best is None or rank < best):
                best, best_id = rank, node_id
        return best_id

    def in_flight_count(self, connection: ConnectionId | None = None) -> int:
        """Return the number of requests that await their answer, on one connection or on all.

        Any thread may call it. Another thread than the loop's may get a number that is out of
        date.
        """
        # A copy: meanwhile the loop's thread may add and remove connections.
        links = list(self._links.values()) if connection is None else [self._links.get(connection)]
        connections = [link.connection for link in links if link is not None]
        return sum(each.in_flight_count for each in connections if each is not None)

    def api_versions(self, node_id: int) -> NodeApiVersions | None:
        """Return the versions that a broker offered at its last handshake."""
        return self._api_versions.get(node_id)

    def finalized_features(self) -> FinalizedFeatures:
        """Return the finalized features of the highest epoch seen on any connection."""
        features: FinalizedFeatures = self._known.features
        return features

    # --- the loop -------------------------------------------------------------------------------

    def wakeup(self) -> None:
        """End the `poll` that is under way, or the next one. Any thread may call it."""
        self._wakeup.set()

    def hurry(self) -> None:
        """Give each attempt to connect a second, from now on. Any thread may call it.

        At the interpreter's exit an attempt that hangs occupies one of the few remaining threads,
        and is often the only thing that an abort waits for.
        """
        self._known.longest_attempt_ms = _HURRIED_MS
        self._wakeup.set()

    def poll(self, timeout_ms: int, now_ms: int) -> list[ClientEvent]:
        """Move bytes until something happens, `wakeup` is called or the time is up.

        Args:
            timeout_ms: the longest wait.
            now_ms: the time.

        Returns:
            The events, in order; perhaps none.
        """
        end_ms = now_ms + timeout_ms
        # The requests that were queued since the last poll go out before the wait.
        if self._unflushed:
            self._flush(now_ms)
        while not self._is_closed:
            if now_ms >= self._due_ms:
                self._tick(now_ms)
            # No wait if events are there already: a failed request must not wait for other news.
            until_ms = min(end_ms, self._due_ms, now_ms + _LONGEST_WAIT_MS)
            wait_ms = 0 if self._events else max(0, until_ms - now_ms)
            ready = self._calls.wait(self._selector, wait_ms)
            now_ms = self._clock_ms()
            is_news = self._handle_ready(ready, now_ms)
            # Go on waiting only after a wake-up for the loop itself: sockets without a whole
            # answer, or work of `_tick` that was due.
            if self._events or is_news or now_ms >= end_ms or not (ready or until_ms < end_ms):
                break
        events, self._events = self._events, []
        return events

    def _handle_ready(self, ready: list[tuple[selectors.SelectorKey, int]], now_ms: int) -> bool:
        """Serve the ready sockets. Return whether the core should take a step."""
        is_news = False
        for key, mask in ready:
            if key.data is None:
                # Before the look at the results, so that a wake-up during it is not lost.
                self._wakeup.clear()
                self._collect(now_ms)  # other threads wake the loop when they have finished
                is_news = True
            else:
                is_news |= self._serve(key.data, mask, now_ms)
        return is_news

    def _serve(self, connection: Connection, mask: int, now_ms: int) -> bool:
        could_send = connection.can_send(now_ms)
        try:
            if mask & selectors.EVENT_READ:
                connection.receive(now_ms, self._events)
            # Without output there is nothing to write, and no writability is watched for.
            if mask & selectors.EVENT_WRITE or connection.output:
                connection.flush()
                self._watch(connection)
        except Exception as error:  # noqa: BLE001 - it costs this connection, not the loop
            self._disconnect(connection, _as_kafka_error(error), now_ms)
            return True
        if connection.must_log_in_again and not connection.in_flight_count:
            self._due_ms = min(self._due_ms, connection.next_deadline_ms())
        return not could_send and connection.can_send(now_ms)

    def _flush(self, now_ms: int) -> None:
        unflushed, self._unflushed = self._unflushed, []
        for connection in unflushed:
            # One that was closed meanwhile has nothing to write.
            try:
                connection.flush()
                self._watch(connection)
            except Exception as error:  # noqa: BLE001 - likewise
                self._disconnect(connection, _as_kafka_error(error), now_ms)

    def _watch(self, connection: Connection) -> None:
        """Watch a connection for writability exactly while it has bytes to write.

        Call it after each flush: it also takes the ends of requests that have no answer.
        """
        self._events += connection.take_written()
        has_output = bool(connection.output)
        if has_output != connection.is_watching_writes:
            connection.is_watching_writes = has_output
            mask = selectors.EVENT_READ
            if has_output:
                mask |= selectors.EVENT_WRITE
            self._selector.modify(connection.sock, mask, connection)

    # --- time -----------------------------------------------------------------------------------

    def _tick(self, now_ms: int) -> None:
        """Do the work that is due: time-outs, new logins, idle connections, hopeless attempts."""
        for connection_id, link in list(self._links.items()):
            connection, connector = link.connection, link.connector
            if connection is not None:
                try:
                    connection.tick(now_ms)
                    self._watch(connection)
                except Exception as error:  # noqa: BLE001 - likewise
                    self._disconnect(connection, _as_kafka_error(error), now_ms)
                    continue
                if now_ms >= link.idle_at_ms(self._config.connections_max_idle_ms):
                    self._forget(connection_id, None)
            elif connector is not None and now_ms >= hopeless_at_ms(connector):
                self._attempt_failed(connection_id, link, connector.timed_out(), now_ms)

        self._due_ms = min((self._due_of(link) for link in self._links.values()), default=NEVER_MS)

    def _due_of(self, link: WireLink) -> int:
        return link.due_ms(self._config.connections_max_idle_ms)

    # --- connecting and disconnecting -----------------------------------------------------------

    def _begin_to_connect(self, connection_id: ConnectionId, now_ms: int) -> None:
        node = self._nodes.get(connection_id.node_id)
        if node is None or self._is_closed:
            return
        link = self._links.setdefault(connection_id, WireLink())
        link.last_attempt_ms = now_ms
        hung_ms = link.hung_for_ms(now_ms)
        if hung_ms:
            hung = self._settings.hung(self._address(connection_id), hung_ms)
            self._attempt_failed(connection_id, link, hung, now_ms)
            return
        connector = Connector(
            node,
            self._settings,
            self._clock_ms,
            now_ms
            + min(
                self._setup_timeouts.draw_ms(link.late_attempts), self._known.longest_attempt_ms
            ),
            self._wakeup.set,
            # An address may accept connections and answer nothing: begin with the next one.
            first_address=link.failures,
        )
        try:
            connector.start(self._threads.run)
        except RuntimeError as error:  # the system has no more threads
            self._attempt_failed(
                connection_id, link, DisconnectError(f"cannot start to connect: {error}"), now_ms
            )
        else:
            link.connector = connector
            self._due_ms = min(self._due_ms, hopeless_at_ms(connector))

    def _collect(self, now_ms: int) -> None:
        """Take over the results of other threads: connectors, logins, diagnoses."""
        for connection_id, link in self._links.items():
            connection = link.connection
            if connection is not None and connection.reauthentication is not None:
                self._continue_login(connection, now_ms)
            outcome = None if link.connector is None else link.connector.collect()
            if isinstance(outcome, Connected):
                link.connector = None
                self._take_over(connection_id, link, outcome, now_ms)
            elif outcome is not None:
                self._attempt_failed(connection_id, link, outcome, now_ms)
            elif link.connector is not None:
                # `hurry` may have been called since the attempt began.
                deadline_ms = now_ms + self._known.longest_attempt_ms
                link.connector.deadline_ms = min(link.connector.deadline_ms, deadline_ms)
                self._due_ms = min(self._due_ms, hopeless_at_ms(link.connector))
        if self._diagnoses.are_awaited:
            self._report_verdicts()

    def _continue_login(self, connection: Connection, now_ms: int) -> None:
        try:
            connection.continue_login(now_ms)
            self._watch(connection)
        except KafkaError as error:
            self._disconnect(connection, error, now_ms)
            return
        if connection.must_log_in_again and not connection.in_flight_count:
            self._due_ms = min(self._due_ms, connection.next_deadline_ms())

    def _take_over(
        self, connection_id: ConnectionId, link: WireLink, connected: Connected, now_ms: int
    ) -> None:
        connection = Connection(
            connection_id,
            connected,
            self._codec,
            self._calls,
            self._config.max_in_flight_requests_per_connection,
            now_ms,
            self._rng,
            self._wakeup.set,
            self._settings.platform,
        )
        link.connection = connection
        link.late_attempts = 0
        node = self._nodes[connection_id.node_id]
        # The connection exists, so the address speaks the configured protocol.
        self._diagnoses.rule_out(node, Suspicion.WANTS_TLS, Suspicion.WANTS_NO_TLS)
        self._due_ms = min(self._due_ms, self._due_of(link))
        self._api_versions[connection_id.node_id] = connected.versions.api_versions
        # Features come from many brokers, in any order. The highest epoch is the newest.
        if connected.versions.features.epoch > self._known.features.epoch:
            self._known.features = connected.versions.features
        self._selector.register(connection.sock, selectors.EVENT_READ, connection)
        _LOG.debug("connected to %s (%s)", self._address(connection_id), connection_id)
        self._events.append(ConnectionEvent(connection_id, ConnectionState.READY))

    def _attempt_failed(
        self, connection_id: ConnectionId, link: WireLink, error: KafkaError, now_ms: int
    ) -> None:
        suspicion = None
        if link.connector is not None:
            suspicion = link.connector.suspicion
            link.connector.abandon()
            link.give_up_step(link.connector.step)
            link.connector = None
        if isinstance(error, KafkaTimeoutError):  # only these count as slow
            link.late_attempts += 1
        link.back_off(self._reconnects, now_ms)
        # The core hears of the end first, and of a suspicion's verdict later.
        self._report_end(connection_id, error)
        if suspicion is not None:
            self._suspect(connection_id, suspicion, now_ms)

    def _disconnect(self, connection: Connection, error: KafkaError, now_ms: int) -> None:
        """End a connection that is broken."""
        link = self._links.get(connection.id)
        if link is None or link.connection is not connection:
            return
        # An answer proves that the address works: the next failure is the first again.
        if connection.has_answered:
            link.failures = 0
        if connection.id.node_id in self._nodes:
            error = with_address(self._address(connection.id), error)
        # Before `_end`, which takes the requests in flight out.
        is_cut = connection.in_flight_count > 0 and isinstance(error, DisconnectError)
        link.back_off(self._reconnects, now_ms)
        link.give_up_step(connection.login_step)
        self._end(link, connection, error, now_ms)
        if connection.id.node_id not in self._nodes:
            return
        if connection.has_answered:
            self._diagnoses.rule_out(self._nodes[connection.id.node_id], Suspicion.WANTS_SASL)
        elif is_cut and self._settings.sasl_mechanism is None:
            self._suspect(connection.id, Suspicion.WANTS_SASL, now_ms)

    def _suspect(self, connection_id: ConnectionId, suspicion: Suspicion, now_ms: int) -> None:
        """Ask an address why it closed a connection, in parallel to the retry."""
        node = self._nodes[connection_id.node_id]
        self._rule_out_answered()
        self._diagnoses.suspect(connection_id, node, suspicion, now_ms)
        self._report_verdicts()  # another connection may already have asked

    def _report_verdicts(self) -> None:
        """Report each verdict of a diagnosis as the refusal of its closed connection."""
        self._rule_out_answered()
        for connection_id, node, refusal in self._diagnoses.verdicts():
            now = self._nodes.get(connection_id.node_id)
            if now is not None and (now.host, now.port) == (node.host, node.port):
                self._report_end(connection_id, refusal)

    def _rule_out_answered(self) -> None:
        for connection_id, link in self._links.items():
            node = self._nodes.get(connection_id.node_id)
            if node is not None and link.connection is not None and link.connection.has_answered:
                self._diagnoses.rule_out(node, Suspicion.WANTS_SASL)

    def _forget(self, connection_id: ConnectionId, error: KafkaError | None) -> None:
        """End a connection, or an attempt to make one, that has no fault."""
        link = self._links.pop(connection_id, None)
        if link is None:
            return
        if link.connector is not None:
            link.connector.abandon()
            link.give_up_step(link.connector.step)
            self._report_end(connection_id, None)  # no failure of the address
        if link.connection is not None:
            link.give_up_step(link.connection.login_step)
            self._end(link, link.connection, error, self._clock_ms())
        # The thread of a login outlives them, and may hang in the token provider: the next attempt
        # must not call that once more.
        if link.hanging_steps():
            self._links[connection_id] = WireLink(hung=link.hung)

    def _end(
        self, link: WireLink, connection: Connection, error: KafkaError | None, now_ms: int
    ) -> None:
        link.connection = None
        # Before the close: a closed socket has no descriptor to unregister.
        self._selector.unregister(connection.sock)
        self._events += connection.take_written()  # a flush may have failed after these
        for request, is_late in connection.close(now_ms):
            failure = ResponseFailure.TIMED_OUT if is_late else ResponseFailure.DISCONNECTED
            self._events.append(ClientResponse(request, failure=failure, error=error))
        self._report_end(connection.id, error)

    def _report_end(self, connection_id: ConnectionId, error: KafkaError | None) -> None:
        state = ConnectionState.DISCONNECTED
        if error is not None and is_refusal(error):
            state = ConnectionState.AUTHENTICATION_FAILED
        _LOG.debug("%s to %s: %s", state.name, self._address(connection_id), error)
        self._events.append(ConnectionEvent(connection_id, state, error))

    def _address(self, connection_id: ConnectionId) -> str:
        node = self._nodes.get(connection_id.node_id)
        return "?" if node is None else node.address

    def close(self) -> None:
        """Close everything. One more `poll` returns the end of each request that was in flight."""
        if self._is_closed:
            return
        self._is_closed = True
        # The order matters: connections first, which abandon their attempts. Then the threads,
        # which can end because their jobs have ended. The selector last, since connections
        # unregister.
        for connection_id in list(self._links):
            self._forget(connection_id, DisconnectError("the client was closed"))
        self._diagnoses.close()
        self._threads.close()
        self._unflushed.clear()
        self._selector.close()


def _as_kafka_error(error: Exception) -> KafkaError:
    """Return the error that ends a connection. Log it if it was not expected."""
    if isinstance(error, KafkaError):
        return error
    _LOG.error("giving up a connection: an unexpected error", exc_info=error)
    told = DisconnectError(f"an unexpected error: {error!r}")
    told.__cause__ = error
    return told
