"""Notes at the end of each test run: the implementation that ran, and files that are large."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.ctrl_c import hear_ctrl_c
from tests.live_client import LiveClient, use_live_clients
from tests.turns import leave_to_others
from tests.under_way import tell_tests_under_way
from txnproducer import TransactionalProducer
from txnproducer._shell.log_thread import hand_out

# Lines that tests hand over for the end of the run: things to know that are no failure.
NOTES = pytest.StashKey[list[str]]()

hear_ctrl_c()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[NOTES] = []
    tell_tests_under_way(config)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_to_others(config, items)


def pytest_report_header(config: pytest.Config) -> str:
    """Name the implementation of the record builder: the whole suite must pass with each."""
    try:
        implementation = getattr(importlib.import_module("txnproducer._record"), "IMPL", "unknown")
    except ImportError as error:
        implementation = f"none ({error})"
    return f"txnproducer: IMPL={implementation}"


@pytest.fixture
def run_notes(request: pytest.FixtureRequest) -> list[str]:
    """Return a list whose lines are printed when the run ends."""
    return request.config.stash[NOTES]


@pytest.fixture
def caplog(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """Return pytest's fixture, which waits at each look for the records that are held."""
    usual = pytest.LogCaptureFixture.handler

    def look(fixture: pytest.LogCaptureFixture) -> Any:
        hand_out()
        return usual.__get__(fixture)

    monkeypatch.setattr(pytest.LogCaptureFixture, "handler", property(look))
    return caplog


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> LiveClient:
    """Return the client that every producer of the test runs on, instead of sockets."""
    client = LiveClient()
    use_live_clients(monkeypatch, lambda: client)
    return client


@pytest.fixture
def make(client: LiveClient) -> Iterator[Callable[..., TransactionalProducer]]:
    """Return a maker of producers on that client, which are closed when the test ends."""
    made = []

    def make_producer(
        transactional_id: str | None = "txn", **settings: Any
    ) -> TransactionalProducer:
        settings = {"max_block_ms": 10_000, "linger_ms": 0, **settings}
        made.append(TransactionalProducer("boot:9092", transactional_id, **settings))
        return made[-1]

    yield make_producer
    for one in made:
        one.close(0)


@pytest.fixture
def ready(make: Callable[..., TransactionalProducer]) -> TransactionalProducer:
    """Return a producer that is initialized."""
    one = make()
    one.init_transactions()
    return one


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand the lines to the process that writes the report, if this one does not."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["notes"] = session.config.stash[NOTES]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the lines of one of several processes (pytest-xdist)."""
    node.config.stash[NOTES].extend(getattr(node, "workeroutput", {}).get("notes", ()))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    notes = config.stash[NOTES]
    if notes:
        terminalreporter.section("notes")
        for note in notes:
            terminalreporter.write_line(note)
