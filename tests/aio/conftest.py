"""An event loop for each test, and producers on the scripted client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.live_client import LiveClient
from txnproducer.aio import AsyncTransactionalProducer

PATIENCE_S = 20.0

try:
    import uvloop
except ImportError:  # it has no wheels for each platform
    uvloop = None
LOOPS = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": pytest.param(
        None if uvloop is None else uvloop.new_event_loop,
        marks=pytest.mark.skipif(uvloop is None, reason="uvloop is not installed"),
    ),
}


@pytest.fixture(params=list(LOOPS.values()), ids=list(LOOPS))
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Return a function that runs a coroutine on a loop of its own, on both kinds of loops."""

    def run_on_loop(main: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(asyncio.wait_for(main, PATIENCE_S))

    return run_on_loop


@pytest.fixture
def make(client: LiveClient) -> Callable[..., AsyncTransactionalProducer]:
    """Return a maker of producers on the scripted client. A test closes its own."""

    def make_producer(
        transactional_id: str | None = "txn", **settings: Any
    ) -> AsyncTransactionalProducer:
        settings = {"max_block_ms": 10_000, "linger_ms": 0, **settings}
        return AsyncTransactionalProducer("boot:9092", transactional_id, **settings)

    return make_producer
