"""One attempt to connect to a broker, on a thread that may block.

Why it exists: name look-ups, TLS handshakes and logins block or need many turns. Here they run one
after the other, within one deadline, and every error keeps its own type. The client's loop gets a
socket that is ready for requests, or the reason why there is none.
Owns: the thread, the socket until it is handed over, the suspicion of a wrong protocol.
Must not know: backoff, requests, events, how a suspicion is checked (`diagnosis`).
Rules: every step is bounded by the deadline; an abandoned attempt closes its own socket;
`clock_ms` is the caller's clock. A wrong password or an unknown authority is reported at once, as
an `AuthenticationError`. All other failures may be temporary, so the client tries again.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from itertools import chain, repeat
from typing import Any, TypeAlias, TypeVar

from txnproducer._protocol.messages import ApiKey, BrokerNode, MetadataRequest
from txnproducer.errors import (
    DisconnectError,
    InvalidConfigurationError,
    KafkaError,
    KafkaTimeoutError,
    UnsupportedVersionError,
)

from .connect_settings import ConnectSettings
from .handshake import (
    BrokerVersions,
    Exchange,
    ExchangeStep,
    SaslLogin,
    exchange_api_versions,
    exchange_login,
)
from .kept_threads import Job
from .sasl_mechanisms import shown
from .tcp import with_address
from .tls import needs_tls, tls_error
from .version_choice import choose_version

T = TypeVar("T")
AnySocket: TypeAlias = "socket.socket | ssl.SSLSocket"

FRAME_SIZE = struct.Struct(">i")
MAX_HANDSHAKE_ANSWER_BYTES = 1_000_000
_TLS_ALERT = 0x15
_LARGEST_CORRELATION_ID = 2**31 - 1


class Suspicion(Enum):
    """A reason for which a broker may have closed a connection without an answer."""

    WANTS_TLS = auto()  # a client without TLS was cut during its first exchange
    WANTS_NO_TLS = auto()  # a client with TLS was cut during the TLS handshake
    WANTS_SASL = auto()  # a client without a login was cut after its first request


@dataclass(frozen=True, slots=True)
class Connected:
    """A socket after its handshake, with the handshake's results.

    Attributes:
        sock: the connected socket.
        versions: the versions and features that the broker offers.
        correlation_ids: the connection's next numbers.
        login: the login, for re-authentication; None without SASL.
        session_lifetime_ms: how long the login is valid; 0 if it does not end.
        login_ms: when the login's last message was sent, on the connector's clock.
    """

    sock: AnySocket
    versions: BrokerVersions
    correlation_ids: Iterator[int]
    login: SaslLogin | None = None
    session_lifetime_ms: int = 0
    login_ms: int = 0


class Connector:
    """One attempt to connect.

    Args:
        node: the broker's address.
        settings: the settings that all connections share.
        clock_ms: the caller's clock.
        deadline_ms: when to give up, on that clock.
        on_done: called on the connector's thread once there is an outcome to `collect`.
        first_address: which of the name's addresses comes first.

    Attributes:
        suspicion: a possible reason of the failure, if the broker closed the connection.
        step: the last step of an exchange.
        doing: the current phase, for the text of an attempt that takes too long.
    """

    def __init__(
        self,
        node: BrokerNode,
        settings: ConnectSettings,
        clock_ms: Callable[[], int],
        deadline_ms: int,
        on_done: Callable[[], None],
        first_address: int = 0,
    ) -> None:
        self.deadline_ms = deadline_ms
        self._first_address = first_address
        self.suspicion: Suspicion | None = None
        self.step: ExchangeStep | None = None
        self.doing = "the look-up of the name, or the TCP connection"
        self._node = node
        self._address = node.address
        self._settings = settings
        self._clock_ms = clock_ms
        self._on_done = on_done
        self._lock = settings.platform.lock()
        self._is_abandoned = False
        self._sock: AnySocket | None = None
        self._outcome: Connected | KafkaError | None = None
        self._last_said_ms = 0

    def start(self, run: Callable[[Job], None]) -> None:
        """Begin to connect.

        Args:
            run: runs the attempt on a thread that may block.

        Raises:
            RuntimeError: there is no thread for it.
        """
        run(self._run)

    def collect(self) -> Connected | KafkaError | None:
        """Return the outcome, None while there is none. The caller owns the outcome's socket."""
        return self._outcome

    def abandon(self) -> None:
        """Give the attempt up. Its outcome will not be collected."""
        with self._lock:
            self._is_abandoned = True
            if isinstance(self._outcome, Connected):
                self._outcome.sock.close()
            # Shut down, not closed: the thread may be in a call on the socket, and a closed
            # descriptor could be reused under it.
            elif self._sock is not None:
                with suppress(OSError):  # not connected yet, or no longer
                    self._sock.shutdown(socket.SHUT_RDWR)
                if self.step is not None and not self.step.is_over:
                    # The thread is in a token provider, which may hang, and does not use the
                    # socket.
                    self._sock.close()

    def timed_out(self) -> KafkaTimeoutError:
        """Return the error of the attempt at its deadline, with a stable text."""
        return KafkaTimeoutError(
            f"no connection to {self._address} within socket_connection_setup_timeout_ms:"
            f" {self.doing} is under way"
        )

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        outcome: Connected | KafkaError
        try:
            outcome = self._connect()
        except KafkaError as error:
            outcome = with_address(self._address, error)
        except OSError as error:
            outcome = DisconnectError(f"cannot talk to {self._address}: {error}")
        except Exception as error:  # noqa: BLE001  (the thread must report every error)
            outcome = DisconnectError(f"cannot connect to {self._address}: {shown(error)}")
            outcome.__cause__ = error
        # Under the lock: `abandon` either sees the outcome, or this sees that it was abandoned.
        with self._lock:
            self._outcome = outcome
            if self._sock is not None and (
                self._is_abandoned or not isinstance(outcome, Connected)
            ):
                self._sock.close()
        if not self._is_abandoned:
            self._on_done()

    def _connect(self) -> Connected:
        self._open()
        correlation_ids = new_correlation_ids()
        settings = self._settings
        self.doing = "the exchange of versions"
        versions = self._drive_first(exchange_api_versions(settings.client_id, correlation_ids))
        _check_metadata(versions)
        login = None
        session_lifetime_ms = 0
        if settings.sasl_mechanism is not None:
            self.doing = f"the {settings.sasl_mechanism} login"
            login = SaslLogin(
                settings.client_id,
                self._node.host,
                settings.sasl_mechanism,
                settings.security,
                versions.sasl_authenticate_version,
            )
            session_lifetime_ms = self._drive(exchange_login(login, correlation_ids))
        sock = self._connected_sock
        sock.setblocking(False)
        return Connected(
            sock, versions, correlation_ids, login, session_lifetime_ms, self._last_said_ms
        )

    def _open(self) -> None:
        """Connect by TCP, and do the TLS handshake if it is configured."""
        self._open_tcp()
        context = self._settings.ssl_context
        if context is None:
            return
        self.doing = "the TLS handshake"
        try:
            self._speak_tls(context)
        except TimeoutError as error:
            raise self.timed_out() from error
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError) as error:
            self.suspicion = Suspicion.WANTS_NO_TLS
            raise DisconnectError(
                f"{self._address} closed the connection during the TLS handshake"
            ) from error
        except ssl.SSLError as error:
            raise self._tls_error(error) from error

    def _speak_tls(self, context: ssl.SSLContext) -> None:
        # Wrapped before the handshake, so that `abandon` can end a handshake that hangs.
        tls_sock = context.wrap_socket(
            self._connected_sock,
            # Certificates name hosts without the dot that ends an absolute name.
            server_hostname=self._node.host.rstrip("."),
            do_handshake_on_connect=False,
        )
        self._keep(tls_sock)
        tls_sock.settimeout(self._remaining_s())
        tls_sock.do_handshake()

    def _open_tcp(self) -> None:
        node, settings = self._node, self._settings
        settings.platform.open_socket(
            node.host,
            node.port,
            settings.buffers,
            self._remaining_s,
            self._keep,
            self._first_address,
        )

    # --- talking --------------------------------------------------------------------------------

    def _drive_first(self, exchange: Exchange[T]) -> T:
        """Drive the first exchange, in which a listener with another protocol shows itself."""
        try:
            return self._drive(exchange)
        except ssl.SSLError as error:  # TLS 1.3 reports a missing client certificate only now
            raise self._tls_error(error) from error
        except DisconnectError as error:
            if self._settings.ssl_context is None:
                self.suspicion = Suspicion.WANTS_TLS
            elif not self._settings.security.get("ssl_certfile"):
                hint = "does the broker ask for a client certificate? then set ssl_certfile"
                raise DisconnectError(f"{error} ({hint})") from error
            raise

    def _drive(self, exchange: Exchange[T]) -> T:
        """Run an exchange on the blocking socket to its end."""
        try:
            request = next(exchange)
            while True:
                sock = self._connected_sock
                sock.settimeout(self._remaining_s())
                self._last_said_ms = self._clock_ms()
                with suppress(ConnectionError, ssl.SSLEOFError):
                    sock.sendall(request)
                # If that failed, go on to read: the broker may have said why before it closed.
                request = self._step(exchange, self._read_frame())
        except StopIteration as end:
            result: T = end.value
            return result
        except TimeoutError as error:
            # `KafkaTimeoutError` is a `TimeoutError` as well, and names the phase already.
            if isinstance(error, KafkaError):
                raise
            raise self.timed_out() from error
        except ConnectionError as error:
            raise self._hung_up(error) from error

    def _step(self, exchange: Exchange[Any], payload: memoryview) -> bytes:
        """Go on with an exchange, which may call the user's code for any length of time."""
        step = ExchangeStep(self._clock_ms())
        with self._lock:
            self.step = step
        try:
            return exchange.send(payload)
        finally:
            with self._lock:
                step.is_over = True

    def _read_frame(self) -> memoryview:
        head = self._read(FRAME_SIZE.size)
        (size,) = FRAME_SIZE.unpack(head)
        if not 4 <= size <= MAX_HANDSHAKE_ANSWER_BYTES:
            # A TLS listener answers plain bytes with an alert: its type, then the major version 3.
            if head[0] == _TLS_ALERT and head[1] == 3:
                raise needs_tls(self._address)
            raise DisconnectError(
                f"{self._address} is not a Kafka broker: it answered {head!r}..."
            )
        return memoryview(self._read(size))

    def _read(self, size: int) -> bytes:
        sock = self._connected_sock
        data = bytearray()
        while len(data) < size:
            sock.settimeout(self._remaining_s())
            chunk = sock.recv(size - len(data))
            if not chunk:
                raise self._hung_up()
            data += chunk
        return bytes(data)

    # --- helpers --------------------------------------------------------------------------------

    def _tls_error(self, error: ssl.SSLError) -> KafkaError:
        security = self._settings.security
        has_certificate = bool(security.get("ssl_certfile") or security.get("ssl_context"))
        return tls_error(error, self._address, self._node.host, has_certificate=has_certificate)

    @property
    def _connected_sock(self) -> AnySocket:
        if self._sock is None:
            raise DisconnectError(f"no connection to {self._address}")
        return self._sock

    def _keep(self, sock: AnySocket) -> None:
        """Make a socket the one that `abandon` can reach, and close the one before it."""
        with self._lock:
            before, self._sock = self._sock, sock
            if before is not None:
                before.close()
            if self._is_abandoned:
                raise DisconnectError("the attempt was given up")

    def _remaining_s(self) -> float:
        remaining_ms = self.deadline_ms - self._clock_ms()
        if remaining_ms <= 0:
            raise self.timed_out()
        return remaining_ms / 1000

    def _hung_up(self, error: OSError | None = None) -> DisconnectError:
        # The same words for both ways to hang up, reset or end: a peer may take now one and now
        # the other, and one reason is worth one warning.
        told = DisconnectError(f"{self._address} closed the connection during the handshake")
        told.__cause__ = error
        return told


def _check_metadata(versions: BrokerVersions) -> None:
    """Refuse a server that answers no question about the cluster.

    A controller accepts connections from clients and offers almost none of a broker's requests.
    The producer would ask it for coordinators and producer ids, and end with its refusal. The next
    bootstrap server may be a broker.
    """
    try:
        choose_version(MetadataRequest(()), versions.api_versions)
    except UnsupportedVersionError as error:
        is_missing = ApiKey.METADATA not in versions.api_versions.ranges
        hint = ": is it the port of a controller?" if is_missing else ""
        raise DisconnectError(f"{error}{hint}") from error


def is_refusal(error: KafkaError) -> bool:
    """Return whether the broker, TLS or a setting refused, so that a retry cannot help."""
    return isinstance(error, InvalidConfigurationError)


def new_correlation_ids() -> Iterator[int]:
    """Return a connection's numbers: 0 to the largest int32, then again from 0."""
    # No generator, since each request would enter its frame.
    return chain.from_iterable(repeat(range(_LARGEST_CORRELATION_ID + 1)))
