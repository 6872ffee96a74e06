"""A look-up of a name that hangs is not begun again, since each holds a thread."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.wire.client_driver import BOOTSTRAP, Driver, clock_ms
from txnproducer._wire.platform import Platform
from txnproducer.errors import DisconnectError


class HangingNames:
    """Look-ups of names that hang until they may go on."""

    def __init__(self) -> None:
        self.look_ups = 0
        self.may_go_on = threading.Event()

    def look_up(self, _: Platform, host: str, port: int) -> list[Any]:
        self.look_ups += 1
        self.may_go_on.wait(10)
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[HangingNames]:
    """Return names, the look-ups of which end with the test."""
    hanging = HangingNames()
    monkeypatch.setattr(Platform, "look_up", lambda *place: hanging.look_up(*place))
    yield hanging
    hanging.may_go_on.set()


def try_to_connect(driver: Driver) -> bool:
    driver.client.is_ready(BOOTSTRAP, clock_ms())
    return len(driver.ends()) > 5


def test_a_look_up_that_hangs_is_not_begun_again(names: HangingNames) -> None:
    driver = Driver(
        "127.0.0.1:1",
        reconnect_backoff_ms=5,
        reconnect_backoff_max_ms=5,
        socket_connection_setup_timeout_ms=20,
        socket_connection_setup_timeout_max_ms=20,
    )
    driver.until(lambda: try_to_connect(driver))
    assert names.look_ups == 1
    error = driver.ends()[-1].error
    assert isinstance(error, DisconnectError)
    assert "the look-up of the name has not returned yet" in str(error)
    names.may_go_on.set()
    driver.until(lambda: try_to_connect(driver) and "refused" in str(driver.ends()[-1].error))
    driver.client.close()
