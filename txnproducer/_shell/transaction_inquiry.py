"""One question to the coordinator: the state of a transactional id.

Why it exists: a commit may still be in doubt when the producer has failed or was closed. Its loop
and its connections have ended by then, so the question needs a client of its own.
Owns: that client's life, the steps of the question, the text of its time-out. Must not know: the
meaning of the description (`commit_evidence`).

Rules:
* It uses the producer's settings and platform. So it logs in as the producer does, and reaches a
  test's cluster.
* One deadline bounds it: look-ups of names, logins, look-ups of the coordinator, retries.
* A loop of its own drives the client, and the caller waits for it. So an interrupt (Ctrl-C) meets
  the wait, and never the client in the midst of a step. The call ends the loop and waits for its
  end; after an interrupt the loop ends by itself. No thread and no descriptor is left.
* The bootstrap servers are asked first. The brokers that the producer knows come next, because
  one of them may be the reason for the doubt.
"""

from __future__ import annotations

from collections.abc import Iterable

from txnproducer._core.failed_tries import also, caused_by, in_words
from txnproducer._core.metadata import NEVER_MS
from txnproducer._core.ports import first_try_delay_ms
from txnproducer._protocol.events import (
    ClientEvent,
    ClientResponse,
    ConnectionEvent,
    ConnectionId,
    ConnectionState,
    ResponseFailure,
    data_connection,
)
from txnproducer._protocol.messages import (
    BrokerNode,
    CoordinatorType,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    Response,
    TransactionDescription,
)
from txnproducer._shell.asking_core import AskingCore
from txnproducer._shell.io_thread import IoThread
from txnproducer._sync.core_lock import new_loop_priority
from txnproducer._sync.held_logs import held_logger
from txnproducer._wire.network_client import NetworkClient
from txnproducer._wire.platform import Platform
from txnproducer.config import ProducerConfig
from txnproducer.errors import (
    AuthenticationError,
    DisconnectError,
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    RetriableError,
    error_for_code,
)

__all__ = ["TransactionInquiry", "describe_in_loop", "describe_transaction"]

_LOG = held_logger(__name__)


def describe_transaction(
    config: ProducerConfig,
    platform: Platform,
    timeout_s: float,
    known: Iterable[BrokerNode] = (),
    *,
    call: str = "resolve_outcome",
) -> TransactionDescription | None:
    """Return the coordinator's description of a transactional id (KIP-664, Kafka 3.0 and newer).

    Args:
        config: the settings of the producer of the id.
        platform: the platform of that producer.
        timeout_s: the deadline for all of it, in seconds.
        known: brokers to ask if no bootstrap server can be reached.
        call: the caller's, for texts.

    Returns:
        The description; None if the coordinator does not know the id (any more).

    Raises:
        KafkaTimeoutError: the cluster did not answer in time; the text names the last failed try.
        UnsupportedVersionError: the coordinator is too old for the question.
        InvalidConfigurationError: the login or the question was refused, or no host exists.
        ForkedProducerError: a signal handler has forked, and this is the child.
        KafkaError: the cluster refused.
    """
    io, inquiry = _made(config, platform, known)
    try:
        io.start(inquiry)
        io.wait_until(lambda: inquiry.is_over, timeout_s)
        # At once: a question has nothing that could end in good order.
        io.close(0)
    except BaseException:
        # Not `close`, which would wait for a thread that has not started, or is not in this fork.
        io.orphan()
        raise
    return inquiry.result(timeout_s, call)


async def describe_in_loop(
    config: ProducerConfig, platform: Platform, timeout_s: float, known: Iterable[BrokerNode] = ()
) -> TransactionDescription | None:
    """Ask as `describe_transaction` does, while the running task of an event loop waits."""
    io, inquiry = _made(config, platform, known)
    try:
        io.start(inquiry)
        await io.wait_in_loop(lambda: inquiry.is_over, timeout_s)
        await io.close_in_loop(0)
    except BaseException:
        io.orphan()  # the task was cancelled
        raise
    return inquiry.result(timeout_s)


def _made(
    config: ProducerConfig, platform: Platform, known: Iterable[BrokerNode]
) -> tuple[IoThread, TransactionInquiry]:
    priority = new_loop_priority()
    client = NetworkClient(config, platform.monotonic_ms, priority=priority, platform=platform)
    inquiry = TransactionInquiry(config, client, platform, known)
    name = f"txnproducer-inquiry-{config.client_id}"
    return IoThread(client, name, priority, platform), inquiry


class TransactionInquiry(AskingCore):
    """The steps of the question, which an I/O thread drives like a core.

    Args:
        config: the producer's settings.
        client: carries the requests.
        platform: has the source of the jitter.
        known: brokers to ask if no bootstrap server can be reached.

    Attributes:
        is_over: whether the question is answered or refused.
        is_closed: whether the loop may end.
    """

    def __init__(
        self,
        config: ProducerConfig,
        client: NetworkClient,
        platform: Platform,
        known: Iterable[BrokerNode] = (),
    ) -> None:
        super().__init__(config, client, platform)
        self.is_over = False
        self._transactional_id = config.transactional_id or ""
        self._known = {node.node_id: node for node in known}
        self._coordinator: BrokerNode | None = None
        self._unanswered = ""  # the request in flight, for the text of a time-out
        self._attempts = 0
        self._not_before_ms = -NEVER_MS
        self._last_try: KafkaError | None = None  # the last one that failed on a connection
        self._description: TransactionDescription | None = None
        self._error: KafkaError | None = None

    def result(
        self, timeout_s: float, call: str = "resolve_outcome"
    ) -> TransactionDescription | None:
        """Return the description, or None if the coordinator does not know the id.

        Args:
            timeout_s: the time that was given, for the text of a time-out.
            call: the caller's, likewise.

        Raises:
            KafkaError: the question was refused, or has no answer.
        """
        if not self.is_over:
            raise self._timed_out(timeout_s, call)
        if self._error is not None:
            raise self._error
        return self._description

    def _timed_out(self, timeout_s: float, call: str) -> KafkaTimeoutError:
        tries = self._tries.last
        last = self._last_try
        if self._unanswered:
            why = f": {self._unanswered} has no answer yet{also(tries)}"
        # A later failure to connect to its address would be the more recent one.
        elif last is not None and last not in tries:
            why = f": the last try failed ({last}){also(tries)}"
        elif tries:
            why = f": {in_words(tries)}"
        else:
            addresses = (node.address for node in self._metadata.bootstrap_nodes)
            why = f": no connection to {', '.join(addresses)} yet"
        error = KafkaTimeoutError(
            f"{call} got no answer within max_block_ms={round(timeout_s * 1000)}{why}."
            f" Call {call}() again to ask again"
        )
        causes = tries if last is None or last in tries else (*tries, last)
        return caused_by(error, causes)

    # --- the steps ------------------------------------------------------------------------------

    def run_once(self, now_ms: int) -> int:
        """Send the request that is due. Return the milliseconds until the next step is."""
        self._requests.end_unsent(now_ms)
        if self.is_over or self._unanswered:
            return NEVER_MS
        if now_ms < self._not_before_ms:
            return self._not_before_ms - now_ms
        connection = self._connection(now_ms)
        if connection is None:
            return first_try_delay_ms(self._client, self._metadata.node_ids, now_ms)
        if not self._client.is_ready(connection, now_ms):
            # At least 1: with 0 the loop would spin until the connection is there.
            return max(1, self._client.ready_delay_ms(connection, now_ms))
        self._ask(connection, now_ms)
        return 0 if self._requests.unsent else NEVER_MS

    def _connection(self, now_ms: int) -> ConnectionId | None:
        if self._coordinator is not None:
            return data_connection(self._coordinator.node_id)
        node_id = self._client.least_loaded_node(now_ms)
        if node_id is None and self._known.keys() - self._metadata.nodes.keys():
            for node in self._known.values():
                self._announce(node)
            node_id = self._client.least_loaded_node(now_ms)
        return None if node_id is None else data_connection(node_id)

    def _ask(self, connection: ConnectionId, now_ms: int) -> None:
        key = self._transactional_id
        if self._coordinator is None:
            find = FindCoordinatorRequest(key, CoordinatorType.TRANSACTION)
            self._unanswered = f"FindCoordinator to {self._address(connection)}"
            self._requests.send(connection, find, self._on_end, now_ms)
        else:
            self._unanswered = f"DescribeTransactions to {self._address(connection)}"
            describe = DescribeTransactionsRequest((key,))
            self._requests.send(connection, describe, self._on_end, now_ms)

    def _address(self, connection: ConnectionId) -> str:
        bootstrap = {node.node_id: node for node in self._metadata.bootstrap_nodes}
        node = (bootstrap | self._metadata.nodes)[connection.node_id]
        return node.address

    # --- answers and connections ----------------------------------------------------------------

    def handle(self, event: ClientEvent, now_ms: int) -> None:
        """Take in an answer, or news of a connection."""
        if self.is_closed:
            return  # the end of the client is no failed try
        if isinstance(event, ClientResponse):
            self._requests.handle(event, now_ms)
        else:
            self._handle_connection_event(event, now_ms)

    def _on_end(self, response: ClientResponse, now_ms: int) -> None:
        asked, self._unanswered = self._unanswered, ""
        if response.body is None:
            self._take_failure(response, asked, now_ms)
            return
        code, detail = self._take_answer(response.body)
        if code == ErrorCode.NONE:
            return
        answer = error_for_code(code)
        said = f" ({detail})" if detail else ""
        error = error_for_code(code, f"{asked} was answered by {answer}{said}")
        if isinstance(error, RetriableError):
            self._retry(error, now_ms)
        else:
            self._end(error)

    def _take_answer(self, body: Response) -> tuple[int, str | None]:
        """Take in a successful answer. Return the code of any other, and the broker's text."""
        if isinstance(body, FindCoordinatorResponse) and len(body.coordinators) == 1:
            (found,) = body.coordinators
            if found.error_code == ErrorCode.NONE:
                self._announce(found.node)
                self._coordinator = found.node
            return found.error_code, found.error_message
        if isinstance(body, DescribeTransactionsResponse) and len(body.transactions) == 1:
            (description,) = body.transactions
            if description.error_code == ErrorCode.NONE:
                self._description = description
                self._end(None)
            elif description.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                # Ids expire (transactional.id.expiration.ms), so this is an answer and no failure.
                self._end(None)
                return ErrorCode.NONE, None
            return description.error_code, None
        # One id was asked about, and to pick an answer would be a guess.
        return ErrorCode.UNKNOWN_SERVER_ERROR, "more or less than one id"

    def _take_failure(self, response: ClientResponse, asked: str, now_ms: int) -> None:
        failure = response.failure or ResponseFailure.DISCONNECTED
        error = response.error or DisconnectError(f"{asked}: {failure.name}")
        if failure.was_sent:
            self._retry(error, now_ms)
        else:
            self._end(error)

    def _handle_connection_event(self, event: ConnectionEvent, now_ms: int) -> None:
        self._refusals.handle_connection_event(event)
        self._tries.handle_connection_event(event, now_ms)
        if event.state is ConnectionState.READY:
            return
        if event.error is not None:
            self._last_try = event.error
        coordinator = self._coordinator
        is_coordinator = (
            coordinator is not None and event.connection.node_id == coordinator.node_id
        )
        is_refused = event.state is ConnectionState.AUTHENTICATION_FAILED
        if is_refused and (is_coordinator or self._refusals.leave_none):
            self._end(event.error or AuthenticationError())
        # A known broker shows that the names existed. They may come back, so the question goes on.
        elif self._tries.has_no_host and not self._known:
            self._end(self._tries.no_host_error())
        if is_coordinator:
            self._coordinator = None  # another broker may be the coordinator since

    def _retry(self, error: KafkaError, now_ms: int) -> None:
        _LOG.debug("asking again about %r: %s", self._transactional_id, error)
        self._last_try = error
        # Any error is reason enough: a look-up costs little, and the coordinator often has moved.
        self._coordinator = None
        self._not_before_ms = now_ms + self._backoff.draw_ms(self._attempts)
        self._attempts += 1

    def _end(self, error: KafkaError | None) -> None:
        # An answer stays: the end of a connection after it changes nothing.
        if not self.is_over:
            self._error = error
            self.is_over = True
