"""Logins by token in virtual time: a provider that is slow, fails or hangs, and its judges."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from tests.needs import in_python
from txnproducer._server.login import TokenVerdict, Users
from txnproducer._wire import handshake
from txnproducer._wire.kept_threads import NAME
from txnproducer.sim.stack.client_watch import ClientWatch
from txnproducer.sim.stack.faults import ConnectionFaults, Ending
from txnproducer.sim.stack.login_watch import LoginWatch
from txnproducer.sim.stack.network import VirtualLink
from txnproducer.sim.stack.options import StackOptions
from txnproducer.sim.stack.requests_in_flight import RequestsInFlight
from txnproducer.sim.stack.run import StackResult, StackRun
from txnproducer.sim.stack.token_options import (
    ENDLESS,
    FAILS,
    HANGS,
    REFUSED,
    TOKEN_FAULTS,
    TokenOptions,
)
from txnproducer.sim.stack.token_watch import TokenWatch
from txnproducer.sim.stack.tokens import ConnectionTokens, IssuedTokens


def run_with(rates: dict[str, float], event_s: dict[str, float]) -> StackResult:
    """Run a seed without any other fault than those of tokens."""
    options = next(each for each in map(StackOptions.draw, range(100)) if each.is_calm)
    return StackRun(
        replace(
            options,
            users=True,
            mechanism="OAUTHBEARER",
            tokens=TokenOptions(20, 500, rates, event_s),
            event_s=event_s,
            transactions=8,
        )
    ).run()


# --- runs ---------------------------------------------------------------------------------------


@in_python
def test_a_run_without_a_fault_renews_its_logins():
    result = run_with({}, {})
    assert result.violations == []
    assert not result.faults


@in_python
@pytest.mark.parametrize(
    ("name", "rate"), [(FAILS, 0.3), (HANGS, 0.1), (REFUSED, 0.1), (ENDLESS, 0.0)]
)
def test_a_run_goes_on_after_each_fault_of_a_token(name, rate):
    result = run_with({name: rate} if rate else {}, {} if rate else {ENDLESS: 0.5})
    assert result.violations == []
    assert result.faults[name] > 0


@in_python
def test_a_login_that_the_client_never_ends_is_found(monkeypatch):
    monkeypatch.setattr(handshake, "_MOST_ROUNDS", 1 << 40)
    violations = run_with({}, {ENDLESS: 0.5}).violations
    assert {check for check, _ in violations} == {"endless"}


def test_each_fault_of_a_token_is_drawn_and_none_without_tokens():
    drawn = [StackOptions.draw(seed) for seed in range(1_000)]
    tokens = [each.tokens for each in drawn if each.tokens is not None]
    assert len(tokens) > 60
    assert {name for each in tokens for name in each.rates} == set(TOKEN_FAULTS)
    assert {each.users for each in drawn if each.mechanism == "OAUTHBEARER"} == {True}
    assert not any(ENDLESS in each.event_s for each in drawn if each.tokens is None)
    undisturbed = [each.tokens for each in drawn if each.tokens and each.is_undisturbed]
    assert undisturbed
    assert not any(each.rates for each in undisturbed)


def test_a_fault_of_a_token_disturbs_a_run():
    calm = next(each for each in map(StackOptions.draw, range(100)) if each.is_calm)
    assert replace(calm, tokens=TokenOptions(20, 500, {}, {})).is_calm
    assert not replace(calm, tokens=TokenOptions(20, 500, {HANGS: 0.1}, {})).is_undisturbed


@in_python
@pytest.mark.parametrize(
    ("ending", "after_ms", "is_calm"),
    [
        (Ending.RESET, 10_000, True),
        (Ending.RESET, 9_999, False),
        (Ending.HALF_OPEN, 49_999, False),
        (Ending.HALF_OPEN, 50_000, True),
    ],
)
def test_a_renewal_on_a_half_open_connection_has_half_a_minute(ending, after_ms, is_calm):
    options = next(each for each in map(StackOptions.draw, range(100)) if each.session_ms)
    run = StackRun(options)
    baton, network = run.world.baton, run.world.network
    sock = network.new_socket()
    address = next((node.host, node.port) for node in run.world.cluster.nodes.values())
    VirtualLink(network, sock, network._nodes[address], ConnectionFaults()).cut(ending)
    run.world.heal()
    baton.now_ns += after_ms * 1_000_000
    assert run.judge.begun().is_calm is is_calm


# --- the tokens ---------------------------------------------------------------------------------


def test_a_token_is_valid_until_its_end():
    now_ms = [1_000]
    issued = IssuedTokens(lambda: now_ms[0])
    token = issued.issue(500)
    now_ms[0] += 499
    assert issued.judge(token) == TokenVerdict(is_valid=True, lifetime_ms=1)
    now_ms[0] += 1
    assert not issued.judge(token).is_valid
    assert not issued.judge("of another provider").is_valid


@pytest.mark.parametrize(
    ("is_valid", "event", "refused_by", "expected"),
    [
        (True, None, None, TokenVerdict(is_valid=True, lifetime_ms=7)),
        (False, None, REFUSED, TokenVerdict(is_valid=False, lifetime_ms=7)),
        (True, "refuse logins", "refuse logins", TokenVerdict(is_valid=False, lifetime_ms=7)),
        (True, ENDLESS, ENDLESS, TokenVerdict(is_valid=True, lifetime_ms=7, ends_login=False)),
    ],
)
def test_the_broker_of_a_connection_judges_by_the_event_that_is_under_way(
    is_valid, event, refused_by, expected
):
    tokens = ConnectionTokens(lambda _: TokenVerdict(is_valid, 7), lambda: event)
    judge = tokens.of(Users({})).judge_token
    assert judge is not None
    assert judge("any") == expected
    assert tokens.refused_by == refused_by
    assert tokens.asks_on is (event == ENDLESS)


# --- the judges ---------------------------------------------------------------------------------


def thread(name: str = "any") -> threading.Thread:
    return threading.Thread(name=name)


@pytest.mark.parametrize(
    ("connections", "second_ms", "expected"),
    [(1, 100, ["provider"]), (2, 100, []), (1, 29_000, []), (0, 100, [])],
)
def test_a_provider_that_hangs_is_called_once_for_a_connection(connections, second_ms, expected):
    found: list[str] = []
    watch = TokenWatch(lambda check, _: found.append(check))
    watch.connections = lambda: connections
    watch.call_begins(thread(), 0)
    watch.call_begins(thread(), second_ms)
    assert found == expected


def test_a_provider_that_has_returned_may_be_called_again():
    found: list[str] = []
    watch = TokenWatch(lambda check, _: found.append(check))
    watch.connections = lambda: 1
    first = thread()
    watch.call_begins(first, 0)
    watch.call_ends(first, 10)
    watch.call_begins(thread(), 20)
    assert found == []


def client_watch(found: list[str]) -> ClientWatch:
    settings: dict[str, Any] = {
        "socket_connection_setup_timeout_ms": 500,
        "socket_connection_setup_timeout_max_ms": 500,
        "reconnect_backoff_ms": 100,
        "reconnect_backoff_max_ms": 100,
        "retry_backoff_ms": 100,
        "retry_backoff_max_ms": 100,
    }
    logins = LoginWatch((), lambda: ())
    return ClientWatch(settings, logins, lambda check, _: found.append(check))


@pytest.mark.parametrize(("looks_ms", "expected"), [(10_100, []), (11_000, ["retries"])])
def test_a_client_tries_again_within_its_back_off_once_its_provider_has_returned(
    looks_ms, expected
):
    found: list[str] = []
    watch = client_watch(found)
    watch.is_first_contact = True
    connects = thread(NAME)
    watch.look_up_begins(connects, 0)
    watch.look_up_ends(connects, 1, is_found=False)
    watch.tokens.call_begins(connects, 2)
    watch.judge_pause(9_000)
    assert found == []
    watch.tokens.call_ends(connects, 10_000)
    watch.judge_pause(looks_ms)
    assert found == expected


@pytest.mark.parametrize(("messages", "expected"), [(16, []), (17, ["endless"])])
def test_a_login_has_few_messages(messages, expected):
    found: list[str] = []
    client_watch(found).logs_in(0, messages)
    assert found == expected


def test_the_messages_of_each_login_are_counted():
    asked = RequestsInFlight()
    for key, count in ((18, 0), (17, 0), (36, 1), (36, 2), (0, 2), (17, 0), (36, 1)):
        asked.sent((4).to_bytes(4, "big") + key.to_bytes(2, "big") + bytes(2), 0)
        assert asked.login_messages == count
