"""The first requests of a connection, in bytes, to real brokers and to the server on the model.

Each case is a dialogue of a client that may make mistakes. Both sides have to answer with the same
codes, texts, mechanisms, lifetimes and ranges of versions, or to end the connection. The random
parts of SCRAM are not compared; kafka-python's client checks them.
"""

from __future__ import annotations

import itertools
import random
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest

from integration.brokers import MODES, Mode
from txnproducer._broker.cluster import BrokerCluster, ClusterOptions
from txnproducer._protocol import messages as m
from txnproducer._server.apis import APIS
from txnproducer._server.connection import ServerConnection
from txnproducer._server.login import Users
from txnproducer._server.script import Script
from txnproducer._wire import kafka_python as kp
from txnproducer._wire.codec import WireCodec, frame
from txnproducer.testing import EmbeddedKafka
from txnproducer.testing.embedded import DEFAULT_USERS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SESSION_MS = 60_000
PLAINTEXT, SASL = "PLAINTEXT", "SASL_PLAINTEXT"
CLOSED = "closed"
_PATIENCE_S = 20.0
_SIZE = struct.Struct(">i")


class Line(Protocol):
    """A connection to a broker."""

    def exchange(self, data: bytes) -> bytes:
        """Send a request, and return the answer's frame; nothing if the broker hangs up."""
        ...


class RealLine:
    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self._socket = socket.create_connection((host, int(port)), _PATIENCE_S)

    def exchange(self, data: bytes) -> bytes:
        try:
            self._socket.sendall(data)
            size = self._take(_SIZE.size)
            return size and self._take(*_SIZE.unpack(size))
        except ConnectionError:  # it was closed with the request unread
            return b""

    def _take(self, count: int) -> bytes:
        found = b""
        while len(found) < count and (piece := self._socket.recv(count - len(found))):
            found += piece
        return found

    def close(self) -> None:
        self._socket.close()


class ModelLine:
    def __init__(self, mode: Mode, listener: str) -> None:
        options = ClusterOptions(
            transaction_version=mode.transaction_version,
            is_before_4=mode.version.startswith("3."),
        )
        users = Users(DEFAULT_USERS, MECHANISMS, SESSION_MS)
        cluster = BrokerCluster(options, random.Random(1))
        self._connection = ServerConnection(
            cluster, 0, Script(), users if listener == SASL else None
        )

    def exchange(self, data: bytes) -> bytes:
        answers = self._connection.receive(data, 1_000)
        return answers[0].data[4:] if answers else b""

    def close(self) -> None:
        pass


def _versions(version: int) -> Any:
    return kp.ApiVersionsRequest(
        version=version, client_software_name="x", client_software_version="1"
    )


class Client:
    """A client's requests, each with the compared part of its answer."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._ids = itertools.count(1)
        self._codec = WireCodec("conformance")

    def ask(self, request: Any, answer: Any) -> Any:
        """Return the answer to a request; None if the broker hangs up."""
        found = self._line.exchange(frame(request, next(self._ids), "conformance"))
        return answer.decode(found, version=request.version, header=True) if found else None

    def metadata(self) -> Any:
        """Ask for a topic that is not there. Return the number of brokers and the topic's code."""
        request = m.MetadataRequest(("none",), allow_auto_topic_creation=False)
        data = self._codec.encode(request, 9, next(self._ids))
        found = self._line.exchange(b"".join(map(bytes, data)))
        if not found:
            return CLOSED
        answer: Any = self._codec.decode(request, 9, memoryview(found))
        return len(answer.brokers), [topic.error_code for topic in answer.topics]

    def raw(self, api: int, version: int, rest: bytes = b"") -> bytes:
        data = struct.pack(">hhih", api, version, next(self._ids), -1) + rest
        return self._line.exchange(_SIZE.pack(len(data)) + data)

    def unknown(self, api: int, version: int) -> str:
        return "answered" if self.raw(api, version) else CLOSED

    def versions_error(self, version: int) -> int | None:
        """Return the error of the answer to ApiVersions, after its correlation id."""
        found = self._line.exchange(frame(_versions(version), next(self._ids), "conformance"))
        return int.from_bytes(found[4:6]) if found else None

    def shake_hands(self, mechanism: str, version: int = 1) -> Any:
        request = kp.SaslHandshakeRequest(version=version, mechanism=mechanism)
        answer = self.ask(request, kp.SaslHandshakeResponse)
        return CLOSED if answer is None else (answer.error_code, sorted(answer.mechanisms))

    def authenticate(self, token: bytes, version: int = 2) -> Any:
        request = kp.SaslAuthenticateRequest(version=version, auth_bytes=token)
        return self.ask(request, kp.SaslAuthenticateResponse)

    def verdict(self, token: bytes, version: int = 2) -> Any:
        answer = self.authenticate(token, version)
        if answer is None:
            return CLOSED
        # What a server proves in SCRAM is random.
        return answer.error_code, answer.error_message, answer.session_lifetime_ms

    def log_in(self, mechanism: str, user: str, password: str, version: int = 2) -> list[Any]:
        """Log in as kafka-python does."""
        login = kp.get_sasl_mechanism(mechanism)(
            sasl_plain_username=user,
            sasl_plain_password=password,
            host="h",
            sasl_mechanism=mechanism,
        )
        told: list[Any] = [self.shake_hands(mechanism)]
        while not login.is_done():
            answer = self.authenticate(login.auth_bytes(), version)
            if answer is None:
                return [*told, CLOSED]
            told.append((answer.error_code, answer.error_message, answer.session_lifetime_ms))
            if answer.error_code:
                break
            login.receive(answer.auth_bytes)
        return told


Dialogue = Callable[[Client], Any]


def offers(client: Client, version: int) -> Any:
    """Return the ranges of a producer's requests and of the login's, and the level in use."""
    answer = client.ask(_versions(version), kp.ApiVersionsResponse)
    ours = {*map(int, APIS), 17, 18, 36}
    ranges = sorted(
        (each.api_key, each.min_version, each.max_version)
        for each in answer.api_keys
        if each.api_key in ours
    )
    levels = {each.name: each.max_version_level for each in answer.finalized_features or ()}
    return answer.error_code, ranges, levels.get("transaction.version", 0)


def a_newer_question(client: Client) -> Any:
    """Ask for the versions in one that no broker knows. The answer is of version 0 (KIP-511)."""
    answer = kp.ApiVersionsResponse.decode(
        client.raw(18, 99, b"\0\x02x\x021\0"), version=0, header=True
    )
    ranges = [(each.api_key, each.min_version, each.max_version) for each in answer.api_keys]
    return answer.error_code, ranges


def logins(client: Client, *steps: tuple[str, str, str]) -> list[Any]:
    return [client.log_in(*step) for step in steps] + [client.metadata()]


ALICE = DEFAULT_USERS["alice"]
DIALOGUES: dict[str, tuple[str, Dialogue]] = {
    **{
        f"offers-{listener}-v{version}": (
            listener,
            lambda client, version=version: offers(client, version),  # type: ignore[misc]
        )
        for listener in (PLAINTEXT, SASL)
        for version in (0, 2, 3, 4)
    },
    "a newer question for versions": (PLAINTEXT, a_newer_question),
    "a newer question, an old one, and a login": (
        SASL,
        lambda client: [
            a_newer_question(client),
            client.versions_error(4),
            logins(client, ("PLAIN", "alice", ALICE)),
        ],
    ),
    "a newer question after the handshake": (
        SASL,
        lambda client: [
            client.shake_hands("PLAIN"),
            a_newer_question(client),
            client.metadata(),
        ],
    ),
    "another mechanism and another request at the second login": (
        SASL,
        lambda client: [
            logins(client, ("PLAIN", "alice", ALICE)),
            client.shake_hands("SCRAM-SHA-256"),
            client.metadata(),
        ],
    ),
    "an unknown request": (PLAINTEXT, lambda client: client.unknown(999, 0)),
    "an unknown version": (PLAINTEXT, lambda client: client.unknown(3, 99)),
    "an unknown request before the login": (SASL, lambda client: client.unknown(999, 0)),
    "a login where none is due": (
        PLAINTEXT,
        lambda client: [client.shake_hands("PLAIN"), client.verdict(b"x"), client.metadata()],
    ),
    "no login": (SASL, lambda client: client.metadata()),
    "versions, and no login": (
        SASL,
        lambda client: [client.versions_error(4), client.metadata()],
    ),
    "versions twice": (
        SASL,
        lambda client: [client.versions_error(4), client.versions_error(4)],
    ),
    "versions after the login": (
        SASL,
        lambda client: [
            logins(client, ("PLAIN", "alice", ALICE)),
            client.versions_error(4),
            client.metadata(),
        ],
    ),
    "a token without a handshake": (SASL, lambda client: client.verdict(b"x")),
    "another request after the handshake": (
        SASL,
        lambda client: [client.shake_hands("PLAIN"), client.metadata(), client.metadata()],
    ),
    "versions after the handshake": (
        SASL,
        lambda client: [
            client.shake_hands("PLAIN"),
            client.versions_error(4),
            client.metadata(),
        ],
    ),
    "two handshakes": (
        SASL,
        lambda client: [
            client.shake_hands("PLAIN"),
            client.shake_hands("SCRAM-SHA-256"),
            client.metadata(),
        ],
    ),
    "an unknown mechanism": (
        SASL,
        lambda client: [client.shake_hands("GSSAPI"), client.shake_hands("PLAIN")],
    ),
    "an unknown mechanism at the second login": (
        SASL,
        lambda client: [
            logins(client, ("PLAIN", "alice", ALICE)),
            client.shake_hands("GSSAPI"),
        ],
    ),
    "another request in the second login": (
        SASL,
        lambda client: [
            logins(client, ("PLAIN", "alice", ALICE)),
            client.shake_hands("PLAIN"),
            client.metadata(),
            client.metadata(),
        ],
    ),
    "a wrong password at the second login": (
        SASL,
        lambda client: logins(
            client, ("SCRAM-SHA-256", "alice", ALICE), ("SCRAM-SHA-256", "alice", "wrong")
        ),
    ),
    "a token after the login": (
        SASL,
        lambda client: [logins(client, ("PLAIN", "alice", ALICE)), client.verdict(b"x")],
    ),
    "another user at the second login": (
        SASL,
        lambda client: logins(
            client, ("PLAIN", "alice", ALICE), ("PLAIN", "bob", DEFAULT_USERS["bob"])
        ),
    ),
    "another mechanism at the second login": (
        SASL,
        lambda client: logins(
            client, ("PLAIN", "alice", ALICE), ("SCRAM-SHA-256", "alice", ALICE)
        ),
    ),
    **{
        f"{mechanism}-{name}": (
            SASL,
            lambda client, mechanism=mechanism, step=step: logins(  # type: ignore[misc]
                client, (mechanism, *step)
            ),
        )
        for mechanism in MECHANISMS
        for name, step in {
            "right": ("alice", ALICE),
            "wrong": ("alice", "wrong"),
            "unknown": ("nobody", ALICE),
        }.items()
    },
    **{
        f"{mechanism}-again": (
            SASL,
            lambda client, mechanism=mechanism: logins(  # type: ignore[misc]
                client, *[(mechanism, "alice", ALICE)] * 2
            ),
        )
        for mechanism in MECHANISMS
    },
    **{
        f"{mechanism}-nonsense-{number}": (
            SASL,
            lambda client, mechanism=mechanism, token=token: [  # type: ignore[misc]
                client.shake_hands(mechanism),
                client.verdict(token),
                client.metadata(),
            ],
        )
        for mechanism in MECHANISMS[:2]
        for number, token in enumerate(
            (
                b"",
                b"\xff\xfe",
                b"n,,n=alice",
                b"a,b",
                b"\0alice",
                b"\0alice\0",
                b"\0\0x",
                b"alice\0alice\0" + ALICE.encode(),
                b"bob\0alice\0" + ALICE.encode(),
            )
        )
    },
}


@pytest.fixture(scope="module", params=MODES, ids=lambda mode: mode.name)
def broker(request: pytest.FixtureRequest) -> Iterator[tuple[Mode, EmbeddedKafka]]:
    mode: Mode = request.param
    with EmbeddedKafka(
        version=mode.version,
        features=dict(mode.features),
        listeners=(PLAINTEXT, SASL),
        sasl_mechanisms=MECHANISMS,
        settings={"connections.max.reauth.ms": SESSION_MS},
    ) as kafka:
        yield mode, kafka


def told(line: RealLine | ModelLine, dialogue: Dialogue) -> Any:
    try:
        return dialogue(Client(line))
    finally:
        line.close()


@pytest.mark.parametrize(("listener", "dialogue"), DIALOGUES.values(), ids=DIALOGUES)
def test_the_server_on_the_model_answers_as_a_real_broker(
    broker: tuple[Mode, EmbeddedKafka],
    listener: str,
    dialogue: Dialogue,
    caplog: pytest.LogCaptureFixture,
) -> None:
    mode, kafka = broker
    address = kafka.addresses(listener)
    real = told(RealLine(address), dialogue)
    assert told(ModelLine(mode, listener), dialogue) == real
    # A defect of the server's ends the connection too.
    assert [each.message for each in caplog.records if "_server" in each.name] == []
