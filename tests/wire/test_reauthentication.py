"""Token providers that are slow, fail or have nothing, at the first login and at the next ones."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.wire import answers
from tests.wire.client_driver import BOOTSTRAP, Driver, clock_ms
from tests.wire.fake_broker import HANG_UP, FakeBroker
from txnproducer._protocol.events import ConnectionEvent, ConnectionId, ConnectionState
from txnproducer._wire.connect_settings import ConnectSettings
from txnproducer._wire.handshake import ExchangeStep, SaslLogin
from txnproducer._wire.links import WireLink
from txnproducer._wire.platform import SYSTEM
from txnproducer._wire.reauthentication import Reauthentication
from txnproducer._wire.sasl_mechanisms import make_mechanism
from txnproducer.errors import DisconnectError, InvalidConfigurationError, SaslAuthenticationError

LOST = ConnectionState.DISCONNECTED
REFUSED = ConnectionState.AUTHENTICATION_FAILED
OTHER = ConnectionId(-2)
Open = Callable[..., Driver]


@pytest.fixture
def drive() -> Iterator[Open]:
    with contextlib.ExitStack() as stack:

        def make(*brokers: FakeBroker, token: Callable[[], object], **settings: object) -> Driver:
            driver = Driver(
                *(broker.address for broker in brokers),
                security_protocol="SASL_PLAINTEXT",
                sasl_mechanism="OAUTHBEARER",
                sasl_oauth_token_provider=answers.token_provider(token),
                **settings,
            )
            stack.callback(driver.close)
            return driver

        yield make


def broker(lifetimes_ms: list[int] | None = None, mechanism: str = "OAUTHBEARER") -> FakeBroker:
    """Return a broker that grants sessions of these lifetimes, then without end."""
    lifetimes = itertools.chain(lifetimes_ms or [], itertools.repeat(0))

    def handle(api_key: int, correlation_id: int, request: bytes) -> bytes | None:
        if api_key == 17:
            return answers.sasl_handshake(correlation_id, 0, (mechanism,))
        if api_key == 36:
            return answers.sasl_authenticate(correlation_id, lifetime_ms=next(lifetimes))
        return answers.end_txn(correlation_id) if api_key == 26 else HANG_UP

    return FakeBroker(handle)


class Tokens:
    """A token provider that does something else at one of its calls."""

    def __init__(self, at_call: int, instead: Callable[[], object]) -> None:
        self.calls = 0
        self.threads: set[int] = set()
        self._at_call = at_call
        self._instead = instead

    def __call__(self) -> object:
        self.calls += 1
        self.threads.add(threading.get_ident())
        return self._instead() if self.calls == self._at_call else "token"


def fail() -> object:
    raise OSError("the identity provider is away")


def ready(driver: Driver) -> bool:
    return driver.client.is_ready(BOOTSTRAP, clock_ms())


def is_connected(driver: Driver) -> bool:
    """Return whether there is a connection. It may already be about to log in again."""
    ready(driver)
    return driver.client.is_connected(BOOTSTRAP)


# --- the first login ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("instead", "says"),
    [(fail, "the identity provider is away"), (lambda: None, "returned None")],
)
def test_a_provider_that_fails_once_is_asked_again_and_its_reason_is_reported(
    drive: Open, instead: Callable[[], object], says: str
) -> None:
    tokens = Tokens(1, instead)
    with broker() as one:
        driver = drive(one, token=tokens)
        driver.until(lambda: ready(driver))
    (end,) = driver.ends()
    assert end.state is LOST
    assert says in str(end.error)
    assert tokens.calls == 2


def test_a_provider_may_refuse_by_an_error_of_the_library(drive: Open) -> None:
    def refuse() -> object:
        raise SaslAuthenticationError("the account is locked")

    with broker() as one:
        end = drive(one, token=refuse).fail_to_connect()
    assert end.state is REFUSED
    assert "the account is locked" in str(end.error)


def test_a_provider_that_takes_too_long_is_named_by_its_mechanism(drive: Open) -> None:
    may_go_on = threading.Event()
    with broker() as one:
        driver = drive(
            one, token=lambda: may_go_on.wait(10), socket_connection_setup_timeout_ms=100
        )

        def is_told() -> bool:
            ready(driver)
            return any("the OAUTHBEARER login is under way" in str(e.error) for e in driver.ends())

        driver.until(is_told)
        assert {end.state for end in driver.ends()} == {LOST}
        may_go_on.set()


def kerberos(monkeypatch: pytest.MonkeyPatch, step: Callable[[], object]) -> None:
    """Put a module in gssapi's place. It calls `step` instead of a question to the KDC."""

    class Context:
        complete = True
        unwrap = wrap = staticmethod(lambda *given: types.SimpleNamespace(message=b"\1\0\0\0"))

        def __init__(self, **given: object) -> None: ...

        def step(self, token: bytes | None) -> object:
            return step()

    module: Any = types.ModuleType("gssapi")
    module.Name = type("Name", (), {"__init__": lambda *args, **given: None})
    module.Name.canonicalize = lambda name, mechanism: name
    module.NameType = types.SimpleNamespace(hostbased_service=1)
    module.MechType = types.SimpleNamespace(kerberos=1)
    module.SecurityContext = Context
    monkeypatch.setitem(sys.modules, "gssapi", module)


def test_a_moment_without_a_kdc_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither at the first login nor at a renewal."""
    calls = itertools.count()

    def step() -> object:
        if next(calls) in {0, 2}:
            raise OSError("cannot contact any KDC for realm 'EXAMPLE.COM'")
        return b"token"

    kerberos(monkeypatch, step)
    with broker([100, 100], mechanism="GSSAPI") as one:
        driver = Driver(one.address, security_protocol="SASL_PLAINTEXT", sasl_mechanism="GSSAPI")
        driver.until(lambda: is_connected(driver))
        driver.until(lambda: len(driver.ends()) == 2 and is_connected(driver))
        driver.close()
        address = one.address
    for end in driver.ends()[:2]:
        assert end.state is LOST
        assert f"{address}: the GSSAPI login failed on our side: " in str(end.error)
        assert "cannot contact any KDC" in str(end.error)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "sasl_kerberos_service_name or sasl_kerberos_name required"),
        ({"sasl_kerberos_service_name": 7}, "unsupported operand"),
    ],
)
def test_a_wrong_setting_of_kerberos_is_a_refusal(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], says: str
) -> None:
    kerberos(monkeypatch, lambda: b"token")
    with pytest.raises(InvalidConfigurationError, match=says):
        make_mechanism("GSSAPI", settings, "h")


def test_kerberos_without_its_package_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with broker(mechanism="GSSAPI") as one:
        driver = Driver(one.address, security_protocol="SASL_PLAINTEXT", sasl_mechanism="GSSAPI")
        end = driver.fail_to_connect()
        driver.close()
        assert str(end.error).startswith(f"{one.address}: ")
    assert end.state is REFUSED
    assert "GSSAPI lib not found" in str(end.error)


# --- the next ones ------------------------------------------------------------------------------


def test_a_slow_provider_stops_no_other_connection(drive: Open) -> None:
    is_asked, may_go_on = threading.Event(), threading.Event()

    def wait() -> object:
        is_asked.set()
        assert may_go_on.wait(10)
        return "token"

    tokens = Tokens(2, wait)
    with broker([100]) as slow, broker() as other:
        driver = drive(slow, other, token=tokens)
        driver.until(lambda: is_connected(driver))
        driver.until(is_asked.is_set)
        driver.connect(OTHER)
        driver.answers_to(driver.send(connection=OTHER))
        assert driver.client.is_connected(BOOTSTRAP)
        assert not ready(driver)
        may_go_on.set()
        driver.until(lambda: ready(driver))
        driver.answers_to(driver.send())
        assert driver.ends() == []
        assert threading.get_ident() not in tokens.threads
        assert slow.connections == 1


def test_every_session_is_renewed_in_its_time(drive: Open) -> None:
    """The loop learns of each new lifetime, though it was another thread that logged in."""
    tokens = Tokens(0, fail)
    with broker([100, 100, 100]) as one:
        driver = drive(one, token=tokens)
        driver.until(lambda: is_connected(driver))
        driver.until(lambda: tokens.calls == 4 and ready(driver))
        assert one.connections == 1


def test_a_provider_that_fails_at_a_renewal_costs_only_the_connection(
    drive: Open,
) -> None:
    with broker([100]) as one:
        driver = drive(one, token=Tokens(2, fail))
        driver.until(lambda: is_connected(driver))
        driver.until(lambda: bool(driver.ends()))
        driver.until(lambda: ready(driver))
        driver.answers_to(driver.send())
    (end,) = driver.ends()
    assert end.state is LOST
    assert "the identity provider is away" in str(end.error)


def test_a_refusal_at_a_renewal_names_the_broker_and_keeps_the_providers_error(
    drive: Open,
) -> None:
    locked = SaslAuthenticationError("the account is locked")

    def refuse() -> object:
        raise locked

    with broker([100]) as one:
        driver = drive(one, token=Tokens(2, refuse))
        driver.until(lambda: is_connected(driver))
        driver.until(lambda: bool(driver.ends()))
        (end,) = driver.ends()
        assert str(end.error) == f"{one.address}: the account is locked"
    assert end.state is REFUSED
    assert str(locked) == "the account is locked"


def test_closing_the_client_does_not_wait_for_a_provider(drive: Open) -> None:
    is_asked, may_go_on = threading.Event(), threading.Event()

    def wait() -> object:
        is_asked.set()
        assert may_go_on.wait(10)
        return "token"

    with broker([100]) as one:
        driver = drive(one, token=Tokens(2, wait))
        driver.until(lambda: is_connected(driver))
        driver.until(is_asked.is_set)
        driver.close()
        driver.poll()
        may_go_on.set()
    assert [event.state for event in driver.events if isinstance(event, ConnectionEvent)] == [
        ConnectionState.READY,
        LOST,
    ]


# --- a provider that hangs for good --------------------------------------------------------------


def is_told_that_it_hangs(driver: Driver) -> bool:
    ready(driver)
    return any(
        "the token provider has not returned for 1 s" in str(e.error) for e in driver.ends()
    )


def count_login_threads() -> int:
    names = [thread.name for thread in threading.enumerate()]
    return names.count("txnproducer-connect") + names.count("txnproducer-login")


def test_a_provider_that_hangs_at_a_login_is_not_called_again_until_it_returns(
    drive: Open,
) -> None:
    may_go_on = threading.Event()
    tokens = Tokens(1, lambda: may_go_on.wait(10) and "token")
    before = count_login_threads()
    with broker() as one:
        driver = drive(one, token=tokens, socket_connection_setup_timeout_ms=100)
        driver.until(lambda: is_told_that_it_hangs(driver))
        driver.until(lambda: ready(driver) or len(driver.ends()) >= 10)
        assert tokens.calls == 1
        assert one.connections == 1
        assert count_login_threads() <= before + 1
        assert {end.state for end in driver.ends()} == {LOST}
        may_go_on.set()
        driver.until(lambda: ready(driver))
        assert tokens.calls == 2


def test_a_provider_that_hangs_at_a_renewal_is_not_called_again_until_it_returns(
    drive: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txnproducer._wire.connection._MAX_REAUTHENTICATION_MS", 100)
    may_go_on = threading.Event()
    tokens = Tokens(2, lambda: may_go_on.wait(10) and "token")
    with broker([100]) as one:
        driver = drive(one, token=tokens)
        driver.until(lambda: is_connected(driver))
        driver.until(lambda: is_told_that_it_hangs(driver))
        driver.until(lambda: ready(driver) or len(driver.ends()) >= 10)
        assert tokens.calls == 2
        assert one.connections == 1
        may_go_on.set()
        driver.until(lambda: ready(driver))
        assert tokens.calls == 3


def test_another_brokers_login_does_not_wait_for_one_that_hangs(drive: Open) -> None:
    is_asked, may_go_on = threading.Event(), threading.Event()

    def wait() -> object:
        is_asked.set()
        return may_go_on.wait(10) and "token"

    with broker() as one, broker() as other:
        driver = drive(one, other, token=Tokens(1, wait))
        assert not ready(driver)
        driver.until(is_asked.is_set)
        driver.connect(OTHER)
        may_go_on.set()


def test_the_threads_that_hang_grow_by_one_when_the_time_has_doubled() -> None:
    link = WireLink()
    now_ms = calls = 0
    while now_ms < 24 * 3_600_000:
        if not link.hung_for_ms(now_ms):
            calls += 1
            link.give_up_step(ExchangeStep(now_ms))
        now_ms += 1_000
        assert link.hung_for_ms(now_ms) in (0, now_ms - link.hung[-1].began_ms)
    assert calls == len(link.hung) == 12
    assert [step.began_ms for step in link.hung[:4]] == [0, 30_000, 90_000, 210_000]
    for step in link.hung:
        step.is_over = True
    assert link.hung_for_ms(now_ms) == 0
    assert link.hung == []


@pytest.mark.parametrize("step", [None, ExchangeStep(0, is_over=True)])
def test_a_login_that_has_returned_does_not_count_as_hung(step: ExchangeStep | None) -> None:
    link = WireLink()
    link.give_up_step(step)
    assert link.hung_for_ms(10) == 0


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"sasl_mechanism": "GSSAPI"}, "our side of a GSSAPI login has not returned for 32 s"),
        ({"sasl_oauth_token_provider": object()}, "the token provider has not returned for 32 s"),
    ],
)
def test_a_hung_step_is_named_with_its_duration(settings: dict[str, Any], text: str) -> None:
    given = ConnectSettings("me", settings, sasl_mechanism=settings.get("sasl_mechanism"))
    told = {str(given.hung("h:9", ms)) for ms in (32_000, 42_000, 63_999)}
    assert len(told) == 1  # a text that changes is logged again
    assert text in told.pop()


# --- one login alone ----------------------------------------------------------------------------


def begun(done: threading.Event, token: Callable[[], object]) -> Reauthentication:
    provider = answers.token_provider(token)
    login = SaslLogin("me", "h", "OAUTHBEARER", {"sasl_oauth_token_provider": provider}, 2)
    again = Reauthentication(login, itertools.count(), done.set, SYSTEM)
    again.begin()
    return again


OFFERED = memoryview(answers.sasl_handshake(0, 0, ("OAUTHBEARER",)))


def test_an_answer_during_a_step_ends_the_login() -> None:
    may_go_on, done = threading.Event(), threading.Event()
    again = begun(done, lambda: may_go_on.wait(10) and "token")
    again.answer(OFFERED, 0)
    assert again.collect() is None
    with pytest.raises(DisconnectError, match="did not ask for"):
        again.answer(OFFERED, 0)
    may_go_on.set()
    assert done.wait(5)


def test_without_a_thread_the_login_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    again = begun(threading.Event(), lambda: "token")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_more)
        with pytest.raises(DisconnectError, match="cannot start to log in again"):
            again.answer(OFFERED, 0)


def test_an_unexpected_error_in_a_step_ends_the_login(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_oddly(*args: object) -> object:
        raise TypeError("an answer of nulls")

    done = threading.Event()
    again = begun(done, lambda: "token")
    monkeypatch.setattr("txnproducer._wire.handshake.make_mechanism", fail_oddly)
    again.answer(OFFERED, 0)
    assert done.wait(5)
    with pytest.raises(DisconnectError, match="an answer of nulls"):
        again.collect()


def test_an_abandoned_login_keeps_no_socket_while_its_token_provider_hangs(drive: Open) -> None:
    is_asked, may_go_on = threading.Event(), threading.Event()

    def wait() -> object:
        is_asked.set()
        assert may_go_on.wait(10)
        return "token"

    with broker([100]) as one:
        driver = drive(one, token=Tokens(1, wait))
        driver.until(lambda: ready(driver) or is_asked.is_set())
        connector = driver.client._links[BOOTSTRAP].connector
        assert connector is not None
        sock = connector._sock
        assert sock is not None
        driver.close()
        assert sock.fileno() == -1
        may_go_on.set()
