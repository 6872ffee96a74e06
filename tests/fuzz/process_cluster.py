"""The brokers of a round of `processes`, and their trouble.

Owns: the cluster in memory, the proxy before each broker, the settings of a client, the faults at
brokers and logins. Must not know: processes, judges.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, Self
from urllib.parse import urlsplit

from integration.cutting_proxy import CuttingProxy
from tests.fuzz.frame_proxy import REAL, FrameProxy
from tests.fuzz.process_writer import MAX_BLOCK_MS
from txnproducer._server.login import Users
from txnproducer.testing import InMemoryKafka
from txnproducer.testing._config import HOST
from txnproducer.testing._memory_server import MemoryServer

PLAIN, TLS, LOGIN = "plain", "TLS", "TLS with SCRAM"
REFUSED_LOGINS: Final = "logins refused for a while"
_PASSWORD: Final = "secret"
# A login with TLS takes 5,000, and a transaction 2,000.
_MOST_BYTES: Final = 60_000
# How many kinds of faults a round with changed answers has, and their rates.
_KINDS: Final = 5
_RATES: Final = (0.15, 0.5)
SETTINGS: Final[dict[str, Any]] = {
    "max_block_ms": MAX_BLOCK_MS,
    "request_timeout_ms": 500,
    "delivery_timeout_ms": 2_000,
    "transaction_timeout_ms": 5_000,
    "linger_ms": 1,
    "retry_backoff_ms": 5,
    "retry_backoff_max_ms": 50,
    "reconnect_backoff_ms": 5,
    "reconnect_backoff_max_ms": 50,
    "socket_connection_setup_timeout_ms": 500,
    "socket_connection_setup_timeout_max_ms": 1_000,
}


class ProcessCluster:
    """Two brokers in memory with a proxy before each. It is used as a context manager.

    Half of the rounds have proxies that cut connections at random bytes, the others such as change
    answers. Logins of half of the rounds that have any are valid for a moment only.

    Args:
        rng: decides everything.

    Attributes:
        kafka: the cluster.
        servers: the addresses that a client gets.
        faults: how often each fault took effect.
        wrong: the rules that a client broke on its connections.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._security = rng.choice((PLAIN, TLS, LOGIN))
        self._passwords = {"alice": _PASSWORD}
        self._session_ms = rng.choice((0, 250)) if self._security == LOGIN else 0
        self.kafka = InMemoryKafka(
            {"t": 3},
            nodes=2,
            transaction_version=rng.choice((1, 2)),
            users=self._passwords if self._security == LOGIN else None,
        )
        self._stack = contextlib.ExitStack()
        self._proxies: list[CuttingProxy | FrameProxy] = []
        self._straight = ""
        self.servers = ""
        self.faults: Counter[str] = Counter()
        self.wrong: list[str] = []

    def __enter__(self) -> Self:
        self._stack.enter_context(self.kafka)
        is_secure = self._security != PLAIN
        self._straight = self.kafka.listen(tls=is_secure)
        if self._security == LOGIN:
            # The dictionary is shared: a password that changes is refused at once.
            self._server._users = Users(self._passwords, session_lifetime_ms=self._session_ms)
        if self._rng.random() < 0.5:
            self._cut(self._straight, is_secure=is_secure)
        else:
            # The proxy ends TLS, and brokers name the proxies to the clients of this listener.
            self._change(self.kafka.listen(), is_secure=is_secure)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        for proxy in self._proxies:
            self.faults.update(proxy.counts)
            if isinstance(proxy, FrameProxy):
                self.wrong += proxy.wrong

    @property
    def _server(self) -> MemoryServer:
        server = self.kafka._live
        assert isinstance(server, MemoryServer)
        return server

    def _cut(self, servers: str, *, is_secure: bool) -> None:
        self._lead_through(
            [
                CuttingProxy(
                    address,
                    self._rng.randrange(10**9),
                    longest_s=0.8,
                    silent=0.05,
                    most_bytes=_MOST_BYTES,
                    tls=is_secure,
                )
                for address in map(address_of, servers.split(","))
            ],
            is_secure=is_secure,
        )

    def _change(self, servers: str, *, is_secure: bool) -> None:
        rates = {kind: self._rng.uniform(*_RATES) for kind in self._rng.sample(REAL, _KINDS)}
        self._lead_through(
            [
                FrameProxy(
                    address,
                    rates,
                    self._rng.randrange(10**9),
                    self.kafka._tls().context if is_secure else None,
                    tls_cut=self._rng.choice((0.0, 0.2)),
                    has_sessions=self._session_ms > 0,
                )
                for address in map(address_of, servers.split(","))
            ],
            is_secure=False,
        )

    def _lead_through(
        self, proxies: Sequence[CuttingProxy | FrameProxy], *, is_secure: bool
    ) -> None:
        """Tell clients that brokers listen at the proxies' ports."""
        advertised = self._server._listeners.advertised[is_secure]
        for node, proxy in enumerate(proxies):
            self._stack.enter_context(proxy)
            self._proxies.append(proxy)
            advertised[node] = (HOST, proxy.port)
        self.servers = ",".join(f"{host}:{port}" for host, port in advertised.values())

    def heal(self) -> None:
        """End the faults: clients get the brokers' own addresses."""
        self._passwords["alice"] = _PASSWORD
        advertised = self._server._listeners.advertised[self._security != PLAIN]
        for node, text in enumerate(self._straight.split(",")):
            advertised[node] = address_of(text)
        self.kafka.clear_faults()
        self.servers = self._straight

    def settings(self) -> dict[str, Any]:
        """Return the settings of a producer."""
        settings = {**SETTINGS, "bootstrap_servers": self.servers, "transactional_id": "id"}
        if self._security == PLAIN:
            return settings
        settings |= {"security_protocol": "SSL", "ssl_cafile": self.kafka.ca_file}
        if self._security == LOGIN:
            settings |= {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "SCRAM-SHA-256",
                "sasl_plain_username": "alice",
                "sasl_plain_password": _PASSWORD,
            }
        return settings

    def trouble(self) -> None:
        """Make a fault at a broker, or none."""
        kafka, api = self.kafka, self._rng.choice(("InitProducerId", "Produce", "EndTxn"))
        match self._rng.randrange(8):
            case 0:
                kafka.lose_answer(api)
            case 1:
                kafka.lose_request(api)
            case 2:
                kafka.delay(api, 0.1)
            case 3 if kafka.transactions():  # an id that nobody has used has no coordinator
                kafka.move_coordinator("id")
            case 4:
                kafka.move_leader("t", self._rng.randrange(3))
            case 5:
                kafka.fail_next("Produce", error="NOT_ENOUGH_REPLICAS")
            case 6 if self._security == LOGIN:
                self._change_password()

    def _change_password(self) -> None:
        # For a refused login the producer ends: most processes shall do more than that.
        is_refused = self._passwords["alice"] == _PASSWORD and self._rng.random() < 0.2
        self.faults[REFUSED_LOGINS] += is_refused
        self._passwords["alice"] = "another" if is_refused else _PASSWORD


def address_of(text: str) -> tuple[str, int]:
    """Return the host and the port of an address."""
    parts = urlsplit(f"//{text}")
    return parts.hostname or "", parts.port or 0
