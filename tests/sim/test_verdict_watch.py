"""Listeners that ask for a login in virtual time, and the judge of the verdicts on them."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.needs import in_python
from txnproducer._protocol.events import (
    Channel,
    ClientEvent,
    ClientRequest,
    ClientResponse,
    ConnectionEvent,
    ConnectionId,
    ConnectionState,
    ResponseFailure,
)
from txnproducer._protocol.messages import BrokerNode, MetadataRequest, MetadataResponse
from txnproducer._wire.diagnosis import NAME, Diagnoses
from txnproducer.errors import DisconnectError, IllegalSaslStateError, KafkaError
from txnproducer.sim.stack.foreign import ForeignListeners
from txnproducer.sim.stack.listeners import ASKS, Listeners
from txnproducer.sim.stack.options import StackOptions
from txnproducer.sim.stack.run import StackResult, StackRun
from txnproducer.sim.stack.verdict_watch import VerdictWatch

DATA, COORDINATOR = (ConnectionId(1, channel) for channel in Channel)
CUT, VERDICT = DisconnectError("closed"), IllegalSaslStateError("the listener wants a login")


def ready(connection: ConnectionId) -> ClientEvent:
    return ConnectionEvent(connection, ConnectionState.READY)


def answer(connection: ConnectionId) -> ClientEvent:
    request = ClientRequest(0, connection, MetadataRequest(()), 0, 100)
    return ClientResponse(request, MetadataResponse((), (), None))


def ended(connection: ConnectionId, error: KafkaError = CUT) -> list[ClientEvent]:
    request = ClientRequest(0, connection, MetadataRequest(()), 0, 100)
    return [
        ClientResponse(request, failure=ResponseFailure.DISCONNECTED, error=error),
        ConnectionEvent(connection, ConnectionState.DISCONNECTED, error),
    ]


def verdict(connection: ConnectionId) -> ClientEvent:
    return ConnectionEvent(connection, ConnectionState.AUTHENTICATION_FAILED, VERDICT)


class Scene:
    """A client that is given its news, its judge, and the time."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.found: list[str] = []
        self._nodes = {1: BrokerNode(1, "host", 9092), 2: BrokerNode(2, "other", 9092)}
        self._news: list[ClientEvent] = []
        self.watch = VerdictWatch(
            self, lambda: self.now_ms, lambda check, _: self.found.append(check)
        )

    def poll(self, timeout_ms: int, now_ms: int) -> list[ClientEvent]:
        return self._news

    def happens(self, *events: ClientEvent) -> None:
        """Give the client news, some time later."""
        self.now_ms += 10
        self._news = list(events)
        self.poll(0, self.now_ms)

    def asks(self, name: str = NAME) -> None:
        """Let a thread look the name up."""
        self.now_ms += 10
        thread = threading.Thread(target=self.watch.looks_up, args=("host",), name=name)
        thread.start()
        thread.join()


@pytest.fixture
def scene() -> Scene:
    """Return a client with two connections, of which one was cut, and the question is asked."""
    scene = Scene()
    scene.happens(ready(DATA), ready(COORDINATOR))
    scene.happens(*ended(DATA))
    scene.asks()
    return scene


def test_a_connection_that_was_cut_and_hears_nothing_is_found(scene):
    scene.happens(*ended(COORDINATOR))
    scene.happens(verdict(DATA))
    assert scene.found == ["heard"]


def test_all_connections_hear_the_verdict_together(scene):
    scene.happens(*ended(COORDINATOR))
    scene.happens(verdict(DATA), verdict(COORDINATOR))
    assert scene.found == []


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([], id="it goes on"),
        pytest.param([answer(COORDINATOR), *ended(COORDINATOR)], id="it has answered"),
        pytest.param(ended(COORDINATOR)[1:], id="no request was in flight"),
        pytest.param(ended(COORDINATOR, KafkaError("late")), id="it was not cut"),
        pytest.param([ready(ConnectionId(2)), *ended(ConnectionId(2))], id="another address"),
    ],
)
def test_other_connections_need_not_hear_it(scene, events):
    scene.happens(*events)
    scene.happens(verdict(DATA))
    assert scene.found == []


def test_a_question_of_before_may_have_had_no_answer(scene):
    scene.happens(*ended(COORDINATOR))
    scene.asks()
    scene.happens(verdict(DATA))
    assert scene.found == []


def test_only_a_question_looks_the_name_up_for_the_judge():
    scene = Scene()
    scene.happens(ready(COORDINATOR))
    scene.asks("txnproducer-connect")
    scene.happens(*ended(COORDINATOR))
    scene.happens(verdict(DATA))
    assert scene.found == []


def test_a_client_may_take_a_listener_for_one_that_asks_for_a_minute():
    counted: list[str] = []
    listeners = Listeners(counted.append)
    listeners.begin([0, 1])
    listeners.begin([1])
    listeners.end([0, 1], 1_000)
    assert (listeners.users_at(0), listeners.asking) == (None, [1])
    assert listeners.has_asked_lately(0, 61_000)
    assert not listeners.has_asked_lately(0, 80_000)
    assert listeners.has_asked_lately(1, 80_000)
    assert not listeners.has_asked_lately(2, 0)
    listeners.closes()
    assert counted == [ASKS]


def play(seed: int, **settings: Any) -> StackResult:
    """Play a run with one event: a listener asks for a login."""
    calm = next(each for each in map(StackOptions.draw, range(100)) if each.is_calm)
    options = replace(calm, seed=seed, users=False, session_ms=0, event_s={ASKS: 1.0})
    return StackRun(replace(options, settings={**options.settings, **settings})).run()


@in_python
def test_producers_go_on_when_the_listeners_take_them_again():
    results = [play(seed) for seed in (3, 7, 8)]
    assert [result.violations for result in results] == [[]] * 3
    assert all(result.faults[ASKS] for result in results)


@in_python
def test_a_verdict_that_one_connection_alone_hears_is_found(monkeypatch):
    verdicts = Diagnoses.verdicts

    def first(diagnoses: Diagnoses) -> Iterable[Any]:
        return list(verdicts(diagnoses))[:1]

    monkeypatch.setattr(Diagnoses, "verdicts", first)
    found = {check for seed in (14, 15, 16) for check, _ in play(seed).violations}
    assert found == {"heard"}


class FakeWorld:
    """The parts of a world that the event touches: a cluster, its cuts, and later calls."""

    def __init__(self) -> None:
        self.cut: list[int] = []
        self.due: list[Callable[[], None]] = []
        self.options = SimpleNamespace(users=None)
        self.cluster = SimpleNamespace(nodes={0: None})
        self.network = SimpleNamespace(cut=lambda node_id, _: self.cut.append(node_id))
        self.baton = SimpleNamespace(now_ms=0, call_after=self._call_after)

    def _call_after(self, _: float, action: Callable[[], None]) -> None:
        self.due.append(action)


def test_a_broker_restarts_with_its_last_event_and_not_after_the_faults_have_ended():
    world: Any = FakeWorld()
    foreign = ForeignListeners(world, random.Random(1), lambda _: None)
    foreign.begin()
    foreign.begin()
    assert world.cut == [0, 0]
    world.due.pop()()  # the other event lasts
    assert world.cut == [0, 0]
    foreign.heal()
    assert world.cut == [0, 0, 0]
    world.due.pop()()
    assert world.cut == [0, 0, 0]
