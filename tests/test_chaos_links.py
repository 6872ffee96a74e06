"""Links hold the bytes of a direction that is cut, and deliver them when it heals."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from integration.chaos.links import HOST, OTHERS, Links

CLIENTS, SERVER = "clients", "server"


@pytest.fixture
def echo() -> Iterator[int]:
    """Return the port of a server that sends everything back."""
    listener = socket.create_server((HOST, 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                while part := connection.recv(100):
                    connection.sendall(part)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


@pytest.fixture
def links() -> Iterator[Links]:
    made = Links(lambda: {CLIENTS: [os.getpid()]})
    made.start()
    yield made
    made.stop()


def talk(port: int) -> socket.socket:
    connection = socket.create_connection((HOST, port), 5)
    connection.sendall(b"one")
    assert connection.recv(100) == b"one"
    return connection


@pytest.mark.parametrize("direction", [(CLIENTS, SERVER), (SERVER, CLIENTS)])
def test_a_direction_that_is_cut_delivers_after_it_heals(
    direction: tuple[str, str], echo: int, links: Links
) -> None:
    with talk(links.add(SERVER, echo)) as connection:
        links.cut([direction])
        connection.sendall(b"two")
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(100)
        links.heal()
        connection.settimeout(5)
        assert connection.recv(100) == b"two"


def test_a_link_between_others_is_not_touched(echo: int, links: Links) -> None:
    port = links.add(SERVER, echo)
    links.cut([(OTHERS, SERVER), (SERVER, OTHERS)])
    talk(port).close()


def test_a_connection_that_is_made_during_a_cut_is_silent_until_it_heals(
    echo: int, links: Links
) -> None:
    port = links.add(SERVER, echo)
    links.cut([(SERVER, CLIENTS)])
    with socket.create_connection((HOST, port), 5) as connection:
        connection.sendall(b"one")
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(100)
        links.heal()
        connection.settimeout(5)
        assert connection.recv(100) == b"one"


def test_a_slow_link_delays_both_ways(echo: int, links: Links) -> None:
    with talk(links.add(SERVER, echo)) as connection:
        links.slow([(CLIENTS, SERVER), (SERVER, CLIENTS)], 0.1)
        began = time.monotonic()
        connection.sendall(b"two")
        assert connection.recv(100) == b"two"
        assert time.monotonic() - began >= 0.2
