"""A function's token serves all connections, is replaced in time, and its failures have a name."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kafka.net.sasl.oauth import AbstractTokenProvider

from tests.wire import answers
from tests.wire.client_driver import BOOTSTRAP, Driver, clock_ms
from tests.wire.fake_broker import HANG_UP, FakeBroker
from txnproducer import TransactionalProducer
from txnproducer._protocol.events import ConnectionId, ConnectionState
from txnproducer._wire.called_tokens import CalledTokens, token_provider
from txnproducer._wire.platform import Platform
from txnproducer.config import ProducerConfig
from txnproducer.errors import (
    InvalidConfigurationError,
    KafkaTimeoutError,
    SaslAuthenticationError,
)

NOW_S = 1_800_000_000
OTHER = ConnectionId(-2)
LOGIN: dict[str, Any] = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}


class Clock(Platform):
    """A platform with clocks that a test moves."""

    def __init__(self) -> None:
        self.now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_clock_ms(self) -> int:
        return NOW_S * 1000 + self.now_ms


class Function:
    """Returns numbered tokens that are valid for 100 s, or raises."""

    def __init__(self, clock: Clock) -> None:
        self.calls = 0
        self.error: Exception | None = None
        self._clock = clock

    def __call__(self) -> tuple[str, float]:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return f"token-{self.calls}", self._clock.wall_clock_ms() / 1000 + 100


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def function(clock: Clock) -> Function:
    return Function(clock)


@pytest.fixture
def tokens(clock: Clock, function: Function) -> CalledTokens:
    return CalledTokens(function, clock)


# --- one token ----------------------------------------------------------------------------------


def test_a_token_is_kept_for_most_of_its_life(clock, tokens, function):
    for now_ms in (0, 1, 79_999):
        clock.now_ms = now_ms
        assert tokens.token() == "token-1"
    clock.now_ms = 80_000
    assert tokens.token() == "token-2"
    assert function.calls == 2


def test_a_token_before_is_used_while_the_function_fails_and_it_is_valid(
    clock, tokens, function, caplog
):
    tokens.token()
    function.error = OSError("the identity provider is away")
    clock.now_ms = 99_999
    with caplog.at_level(logging.WARNING):
        assert tokens.token() == "token-1"
    assert "the identity provider is away" in caplog.text
    assert "token-1" not in caplog.text
    clock.now_ms = 100_000
    with pytest.raises(OSError, match="is away"):
        tokens.token()
    function.error = None
    assert tokens.token() == "token-4"


def test_an_error_of_this_package_is_raised_even_while_a_token_is_valid(clock, tokens, function):
    tokens.token()
    function.error = SaslAuthenticationError("the account is locked")
    clock.now_ms = 90_000
    with pytest.raises(SaslAuthenticationError, match="the account is locked"):
        tokens.token()


def test_the_end_of_a_token_may_be_a_time_with_a_zone(clock):
    ends = datetime.fromtimestamp(NOW_S, UTC) + timedelta(seconds=10)
    numbers = itertools.count(1)
    tokens = CalledTokens(lambda: (f"token-{next(numbers)}", ends), clock)
    assert [tokens.token(), tokens.token()] == ["token-1", "token-1"]
    clock.now_ms = 8_000
    assert tokens.token() == "token-2"


def test_a_token_that_has_expired_already_is_not_kept(clock, function):
    tokens = CalledTokens(lambda: (function()[0], NOW_S - 5), clock)
    assert [tokens.token(), tokens.token()] == ["token-1", "token-2"]


async def fetch() -> tuple[str, float]:
    return "hunter2", NOW_S


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ("hunter2", "returned a str"),
        (("hunter2", NOW_S, "me", {}), "returned a tuple of 4"),
        ((b"hunter2", NOW_S), "returned a token of type bytes, which must be a str"),
        (("hunter2", "soon"), "an expires_at of type str, which must be seconds since the epoch"),
        (("hunter2", True), "an expires_at of type bool"),
        (("hunter2", None), "an expires_at of type NoneType"),
        (("hunter2", 3600), "expires_at=3600, which is no time .*: add time.time.. to a lifetime"),
        (("hunter2", NOW_S * 1000), "and divide milliseconds by 1000"),
        (("hunter2", float("nan")), "expires_at=nan, which is no time"),
        (("hunter2", datetime(2027, 1, 1)), "a datetime without a time zone"),  # noqa: DTZ001
    ],
)
def test_another_result_is_a_refusal_that_names_the_form_and_shows_no_token(clock, found, told):
    with pytest.raises(InvalidConfigurationError, match=rf"\(token, expires_at\).*{told}") as e:
        CalledTokens(lambda: found, clock).token()
    assert "hunter2" not in str(e.value)


def test_an_asynchronous_function_is_refused(clock):
    with pytest.raises(InvalidConfigurationError, match="a coroutine: use a plain function"):
        CalledTokens(fetch, clock).token()  # type: ignore[arg-type]


@pytest.mark.parametrize("token", [None, ""])
def test_no_token_may_be_one_in_a_moment(clock, token):
    with pytest.raises(ValueError, match="returned no token"):
        CalledTokens(lambda: (token, NOW_S + 100), clock).token()


# --- the setting --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("module:name", r"a function that returns \(token, expires_at\), .*, not str"),
        (AbstractTokenProvider, "not the class AbstractTokenProvider"),
    ],
)
def test_a_setting_that_is_neither_is_refused_when_the_producer_is_made(given, told):
    with pytest.raises(InvalidConfigurationError, match=f"sasl_oauth_token_provider.*{told}"):
        TransactionalProducer("broker:1", sasl_oauth_token_provider=given, **LOGIN)


def test_a_provider_of_kafka_python_is_used_as_it_is():
    given = answers.token_provider(lambda: "token")
    assert token_provider(given) is given


def test_a_configuration_shows_no_function():
    config = ProducerConfig.build(
        bootstrap_servers="b", sasl_oauth_token_provider=lambda: ("hunter2", 1), **LOGIN
    )
    assert "sasl_oauth_token_provider='***'" in repr(config)


# --- connections --------------------------------------------------------------------------------


def broker(lifetime_ms: int = 0) -> FakeBroker:
    def handle(api_key: int, correlation_id: int, request: bytes) -> bytes | None:
        if api_key == 17:
            return answers.sasl_handshake(correlation_id, 0, ("OAUTHBEARER",))
        if api_key == 36:
            return answers.sasl_authenticate(correlation_id, lifetime_ms=lifetime_ms)
        return HANG_UP

    return FakeBroker(handle)


class Called:
    """A function that notes its calls and their threads."""

    def __init__(self, act: Callable[[int], object], life_s: float = 3600) -> None:
        self.threads: list[int] = []
        self._act = act
        self._life_s = life_s

    def __call__(self) -> tuple[object, float]:
        self.threads.append(threading.get_ident())
        return self._act(len(self.threads)), time.time() + self._life_s

    @property
    def calls(self) -> int:
        return len(self.threads)


@pytest.fixture
def drive() -> Iterator[Callable[..., Driver]]:
    made: list[Driver] = []

    def make(function: Called, *brokers: FakeBroker, **settings: object) -> Driver:
        addresses = [each.address for each in brokers]
        made.append(Driver(*addresses, sasl_oauth_token_provider=function, **LOGIN, **settings))
        return made[-1]

    yield make
    for driver in made:
        driver.close()


def test_the_connections_of_a_producer_share_a_token(drive):
    function = Called(str)
    with broker() as one, broker() as other:
        driver = drive(function, one, other)
        driver.connect()
        driver.connect(OTHER)
    assert function.calls == 1
    assert threading.get_ident() not in function.threads


def test_a_session_that_ends_before_its_token_is_renewed_with_the_same(drive):
    function = Called(str)
    with broker(100) as one:
        driver = drive(function, one)
        driver.connect()
        driver.until(lambda: driver.client.is_ready(BOOTSTRAP, clock_ms()) and logins(one) >= 3)
        assert driver.ends() == []
    assert function.calls == 1


def test_a_session_that_ends_with_its_token_is_renewed_with_a_new_one(drive):
    function = Called(str, 0.2)
    with broker(200) as one:
        driver = drive(function, one)
        driver.connect()
        driver.until(lambda: driver.client.is_ready(BOOTSTRAP, clock_ms()) and logins(one) >= 3)
        assert driver.ends() == []
    assert function.calls >= 3


def logins(broker: FakeBroker) -> int:
    return sum(request[0] == 36 for request in broker.requests)


def test_a_function_that_fails_once_is_called_again_and_its_reason_is_reported(drive):
    def act(call: int) -> object:
        if call == 1:
            raise OSError("the identity provider is away")
        return "token"

    function = Called(act)
    with broker() as one:
        driver = drive(function, one)
        driver.until(lambda: driver.client.is_ready(BOOTSTRAP, clock_ms()))
    (end,) = driver.ends()
    assert end.state is ConnectionState.DISCONNECTED
    assert "the identity provider is away" in str(end.error)
    assert isinstance(end.error.__cause__, OSError)
    assert function.calls == 2


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lambda _: 5, "must be a str"),
        (lambda _: 1 / 0, ""),
    ],
)
def test_a_result_of_another_form_ends_the_producer_and_a_failure_does_not(drive, act, told):
    with broker() as one:
        end = drive(Called(act), one).fail_to_connect()
    is_refused = end.state is ConnectionState.AUTHENTICATION_FAILED
    assert is_refused == bool(told)
    assert told in str(end.error)


def test_a_function_that_hangs_is_bounded_and_not_called_again_meanwhile():
    may_go_on = threading.Event()
    function = Called(lambda _: may_go_on.wait(20) and "token")
    told = ""
    with (
        broker() as one,
        TransactionalProducer(
            one.address,
            "t",
            sasl_oauth_token_provider=function,
            socket_connection_setup_timeout_ms=100,
            max_block_ms=300,
            **LOGIN,
        ) as producer,
    ):
        end_s = time.monotonic() + 10
        while "has not returned" not in told and time.monotonic() < end_s:
            with pytest.raises(KafkaTimeoutError) as error:
                producer.init_transactions()
            told = str(error.value)
        assert function.calls == 1
        may_go_on.set()
    assert "the token provider has not returned" in told
