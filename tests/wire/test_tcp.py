"""The error for a broker's name if none of its addresses takes the connection."""

from __future__ import annotations

import pickle
import socket
from typing import Any

import pytest

from txnproducer._wire import tcp
from txnproducer._wire.platform import SYSTEM
from txnproducer._wire.tcp import BufferSizes, open_tcp, with_address
from txnproducer.errors import (
    DisconnectError,
    KafkaError,
    KafkaTimeoutError,
    SaslAuthenticationError,
    TopicAuthorizationError,
)


def test_addresses_that_a_name_server_rotates_make_one_text(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))
        for host in ("127.0.0.1", "127.0.0.2")
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    texts = []
    for _ in range(2):
        with pytest.raises(DisconnectError) as told:
            open_tcp(SYSTEM, "rotated", port, BufferSizes(), lambda: 5.0, lambda _: None)
        texts.append(str(told.value))
        found.reverse()
    assert texts[0] == texts[1]
    assert "127.0.0.1: " in texts[0]
    assert "127.0.0.2: " in texts[0]


class WithoutNetwork:
    """A platform on which no socket can be made."""

    def __init__(self, *found: Any) -> None:
        self._found = list(found)

    def look_up(self, host: str, port: int) -> list[Any]:
        return self._found

    def new_socket(self, family: int, kind: int, protocol: int) -> socket.socket:
        raise OSError("no sockets")


def test_the_address_of_an_ipv6_host_has_brackets():
    found = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 9, 0, 0))
    for network, text in (
        (WithoutNetwork(), "cannot find the host of [::1]:9"),
        (WithoutNetwork(found), "cannot connect to [::1]:9 (::1: no sockets)"),
    ):
        with pytest.raises(DisconnectError) as told:
            open_tcp(network, "::1", 9, BufferSizes(), lambda: 5.0, lambda _: None)
        assert str(told.value) == text


class LockedError(SaslAuthenticationError):
    """An error of a token provider, with a constructor of its own."""

    def __init__(self, *, user: str) -> None:
        super().__init__(f"{user} is locked")
        self.user = user


@pytest.mark.parametrize(
    "error",
    [
        DisconnectError("lost", recovery="abort"),
        KafkaTimeoutError("late"),
        TopicAuthorizationError(topics=["a"]),
        LockedError(user="alice"),
    ],
)
def test_an_error_gets_the_address_and_is_otherwise_unchanged(error: KafkaError) -> None:
    error.__cause__ = OSError("why")
    before = str(error)
    told = with_address("h:9092", error)
    assert str(told) == f"h:9092: {before}"
    assert type(told) is type(error)
    assert told.__dict__ == error.__dict__
    assert told.__cause__ is error.__cause__
    assert str(error) == before
    assert with_address("h:9092", told) is told
    if not isinstance(error, LockedError):
        assert str(pickle.loads(pickle.dumps(told))) == str(told)


@pytest.mark.parametrize(("first", "order"), [(0, "012"), (1, "120"), (5, "201")])
def test_the_addresses_are_tried_from_the_given_one_on(
    monkeypatch: pytest.MonkeyPatch, first: int, order: str
) -> None:
    tried = []

    def refuse(_: socket.socket, sockaddr: Any, *__: object) -> socket.socket:
        tried.append(sockaddr[0][-1])
        raise ConnectionRefusedError

    monkeypatch.setattr(tcp, "_connect", refuse)
    found = [(0, 0, 0, "", (f"10.0.0.{number}", 9)) for number in range(3)]
    network = WithoutNetwork(*found)
    monkeypatch.setattr(network, "new_socket", lambda *_: None)
    with pytest.raises(DisconnectError):
        open_tcp(network, "many", 9, BufferSizes(), lambda: 5.0, lambda _: None, first)
    assert "".join(tried) == order
