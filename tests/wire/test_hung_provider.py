"""A token provider that hangs is not called again, even if its connection was forgotten."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.wire import answers
from tests.wire.client_driver import Driver, clock_ms
from tests.wire.fake_broker import HANG_UP, FakeBroker
from txnproducer._protocol.events import ConnectionId
from txnproducer._protocol.messages import BrokerNode
from txnproducer._wire.connect_settings import ConnectSettings

NODE = ConnectionId(7)


class HangingTokens:
    """A provider that gives some tokens, and hangs at each call after that.

    Args:
        good: how many tokens it gives before.
    """

    def __init__(self, good: int) -> None:
        self.calls = 0
        self.may_go_on = threading.Event()
        self._good = good

    def __call__(self) -> object:
        self.calls += 1
        return "token" if self.calls <= self._good or self.may_go_on.wait(10) else None

    @property
    def hangs(self) -> bool:
        return self.calls > self._good


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """Return a broker with sessions of a tenth of a second."""

    def handle(api_key: int, correlation_id: int, request: bytes) -> bytes | None:
        if api_key == 17:
            return answers.sasl_handshake(correlation_id, 0, ("OAUTHBEARER",))
        return (
            answers.sasl_authenticate(correlation_id, lifetime_ms=100)
            if api_key == 36
            else HANG_UP
        )

    with FakeBroker(handle) as one:
        yield one


def drive(broker: FakeBroker, tokens: Callable[[], object]) -> Driver:
    driver = Driver(
        broker.address,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=answers.token_provider(tokens),
        connections_max_idle_ms=300,
    )
    driver.client.update_nodes([node(broker)])
    return driver


def node(broker: FakeBroker) -> BrokerNode:
    host, port = broker.address.split(":")
    return BrokerNode(NODE.node_id, host, int(port))


def is_told_that_it_hangs(driver: Driver) -> bool:
    driver.client.is_ready(NODE, clock_ms())
    return any("the token provider has not returned" in str(e.error) for e in driver.ends(NODE))


def test_an_idle_connection_whose_renewal_hangs_is_not_replaced_by_a_second_call(broker):
    tokens = HangingTokens(1)
    driver = drive(broker, tokens)
    driver.connect(NODE)
    driver.until(lambda: tokens.hangs)
    driver.until(lambda: not driver.client.is_connected(NODE))
    driver.until(lambda: is_told_that_it_hangs(driver))
    assert tokens.calls == 2
    tokens.may_go_on.set()
    driver.until(lambda: driver.client.is_ready(NODE, clock_ms()))
    driver.close()


def test_a_broker_that_comes_back_while_its_login_hangs_is_not_logged_in_to_again(broker):
    tokens = HangingTokens(0)
    driver = drive(broker, tokens)
    driver.client.is_ready(NODE, clock_ms())
    driver.until(lambda: tokens.hangs)
    driver.client.replace_nodes([])
    driver.client.replace_nodes([node(broker)])
    driver.until(lambda: is_told_that_it_hangs(driver))
    assert tokens.calls == 1
    tokens.may_go_on.set()
    driver.until(lambda: driver.client.is_ready(NODE, clock_ms()))
    driver.close()


@pytest.mark.parametrize(
    ("hung_ms", "since"),
    [(5, "yet"), (999, "yet"), (1_000, "for 1 s or longer"), (7_000, "for 4 s or longer")],
)
def test_the_time_for_which_a_login_hangs_is_given_in_powers_of_two(hung_ms, since):
    ours: Any = SimpleNamespace(sasl_mechanism="GSSAPI", security={})
    error = ConnectSettings.hung(ours, "broker:9092", hung_ms)
    assert f"our side of a GSSAPI login has not returned {since}, and" in str(error)
