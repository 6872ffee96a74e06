"""A consumer of a session closes the socket of each refused connection."""

from __future__ import annotations

import asyncio
import socket

import pytest
from kafka.errors import KafkaConnectionError
from kafka.net.inet import KafkaNetSocket

from txnproducer.admin._sockets import CLOSES_REFUSED


class Refusing:
    """Stands for kafka-python's loop, with a broker that is down."""

    async def wait_write(self, *_, **__):
        raise ConnectionRefusedError


def test_the_socket_of_a_refused_connection_is_closed():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # it does not listen
        with socket.socket() as one:
            one.setblocking(False)
            way = KafkaNetSocket(CLOSES_REFUSED["proxy_url"])
            with pytest.raises((ConnectionRefusedError, KafkaConnectionError)):
                asyncio.run(way.sock_connect(Refusing(), one, taken.getsockname()))
            assert one.fileno() == -1
