"""The error of a broker's name none of whose addresses takes the connection."""

from __future__ import annotations

import socket

import pytest

from txnproducer._wire.tcp import BufferSizes, open_tcp
from txnproducer.errors import DisconnectError


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
            open_tcp("rotated", port, BufferSizes(), lambda: 5.0, lambda _: None)
        texts.append(str(told.value))
        found.reverse()
    assert texts[0] == texts[1]
    assert "127.0.0.1: " in texts[0]
    assert "127.0.0.2: " in texts[0]
