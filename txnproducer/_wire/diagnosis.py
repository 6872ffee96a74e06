"""Find out why a broker closed a connection without an answer, in parallel to the retries.

Why it exists: a listener with another protocol sends no error, it closes the connection. So does a
proxy, or a broker that is stopped. A second connection tells them apart. The client does not wait
for it: a peer that accepts it and stays silent would delay the use of a healthy cluster.
Owns: the questions, their timing, the verdicts. Must not know: attempts, backoff, events.
Rules: one question takes a second at most. An address is asked each question once a minute at
most, for all of its connections, and not at all after it has spoken the protocol in question. Only
a certain answer becomes a verdict. Nothing secret is sent.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from txnproducer._protocol.events import ConnectionId
from txnproducer._protocol.messages import BrokerNode
from txnproducer._sync.held_logs import held_logger
from txnproducer.errors import DisconnectError, KafkaError

from .connect_settings import ConnectSettings
from .connector import (
    Connected,
    Connector,
    Suspicion,
    is_refusal,
    new_correlation_ids,
)
from .handshake import exchange_api_versions, exchange_sasl_question
from .kept_threads import Job
from .tls import needs_tls, not_tls

Address: TypeAlias = tuple[str, int]

_LOG = held_logger(__name__)

NAME = "txnproducer-diagnosis"
LONGEST_MS = 1_000
PAUSE_MS = 60_000


class Diagnosis(Connector):
    """One question to one address. Its outcome is a refusal, or an error that proves nothing.

    Args:
        suspicion: the reason to check.
        node: the broker's address.
        settings: the settings that all connections share.
        clock_ms: the caller's clock.
        on_done: called on the diagnosis's thread once there is an outcome to `collect`.
    """

    def __init__(
        self,
        suspicion: Suspicion,
        node: BrokerNode,
        settings: ConnectSettings,
        clock_ms: Callable[[], int],
        on_done: Callable[[], None],
    ) -> None:
        super().__init__(node, settings, clock_ms, clock_ms() + LONGEST_MS, on_done)
        self._asks = suspicion

    def _connect(self) -> Connected:
        if self._asks is Suspicion.WANTS_TLS:
            self._greet_with_tls()
        elif self._asks is Suspicion.WANTS_NO_TLS:
            self._ask_without_tls()
        else:
            self._ask_for_sasl()
        raise DisconnectError(f"{self._address} does not say why it closed a connection")

    def _ask_without_tls(self) -> None:
        self._open_tcp()
        try:
            self._drive(exchange_api_versions(self._settings.client_id, new_correlation_ids()))
        except KafkaError as error:  # even a TLS alert: it proves nothing about TLS here
            raise DisconnectError(f"{self._address} does not answer without TLS") from error
        raise not_tls(self._address)

    def _greet_with_tls(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # Nothing is sent over this connection; it only matters whether the peer speaks TLS. The
        # name is first: Python refuses CERT_NONE while names are checked.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        self._open_tcp()
        try:
            self._speak_tls(context)
        except ssl.SSLError as error:
            # An alert is TLS as well. Only bytes of another protocol are not.
            if "ALERT" not in (error.reason or ""):
                raise
        raise needs_tls(self._address)

    def _ask_for_sasl(self) -> None:
        self._open()
        client_id, correlation_ids = self._settings.client_id, new_correlation_ids()
        self._drive(exchange_api_versions(client_id, correlation_ids))
        self._drive(exchange_sasl_question(client_id, correlation_ids))


@dataclass(slots=True)
class _Asked:
    """The last question of its kind to an address, and the cut connections that await its end."""

    node: BrokerNode
    diagnosis: Diagnosis
    at_ms: int
    waiting: set[ConnectionId] = field(default_factory=set)


class Diagnoses:
    """All diagnoses of one client.

    Args:
        settings: the settings that all connections share.
        clock_ms: the client's clock.
        on_done: wakes the loop, which then calls `verdicts`.
    """

    def __init__(
        self,
        settings: ConnectSettings,
        clock_ms: Callable[[], int],
        on_done: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._clock_ms = clock_ms
        self._on_done = on_done
        self._ruled_out: set[tuple[Address, Suspicion]] = set()
        self._asked: dict[tuple[Address, Suspicion], _Asked] = {}

    @property
    def are_awaited(self) -> bool:
        """Whether a closed connection still waits for its verdict."""
        return any(asked.waiting for asked in self._asked.values())

    def rule_out(self, node: BrokerNode, *suspicions: Suspicion) -> None:
        """Note that an address has spoken the protocol, which voids later verdicts."""
        self._ruled_out.update(((node.host, node.port), each) for each in suspicions)

    def suspect(
        self, connection: ConnectionId, node: BrokerNode, suspicion: Suspicion, now_ms: int
    ) -> None:
        """Note that an address closed a connection, and ask it why unless the answer is known."""
        key = (node.host, node.port), suspicion
        if key in self._ruled_out:
            return
        asked = self._asked.get(key)
        if asked is None or now_ms - asked.at_ms >= PAUSE_MS:
            diagnosis = Diagnosis(suspicion, node, self._settings, self._clock_ms, self._on_done)
            try:
                diagnosis.start(self._run)
            except RuntimeError as error:  # no more threads, or the interpreter is about to end
                _LOG.debug("cannot ask %s:%s why it hung up: %s", node.host, node.port, error)
                return
            asked = self._asked[key] = _Asked(node, diagnosis, now_ms)
        asked.waiting.add(connection)

    def verdicts(self) -> Iterator[tuple[ConnectionId, BrokerNode, KafkaError]]:
        """Yield the refusals that are certain, once for each closed connection."""
        for key, asked in self._asked.items():
            outcome = asked.diagnosis.collect()
            if outcome is None:
                continue
            # Each closed connection hears the verdict once; a later one asks again.
            waiting, asked.waiting = asked.waiting, set()
            # The address may have spoken the protocol on another connection since the question.
            is_void = key in self._ruled_out
            if isinstance(outcome, KafkaError) and is_refusal(outcome) and not is_void:
                for connection in waiting:
                    yield connection, asked.node, outcome

    def _run(self, job: Job) -> None:
        # A thread of its own: a question must not wait for an attempt to connect, nor delay one.
        self._settings.platform.thread(job, NAME).start()

    def close(self) -> None:
        """Give up all questions that are under way."""
        for asked in self._asked.values():
            asked.diagnosis.abandon()
