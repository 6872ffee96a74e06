"""The end of a producer in virtual time: by force only when its time is up."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from txnproducer._record.implementation import IMPL
from txnproducer._shell.io_thread import IoThread
from txnproducer.sim.stack.options import StackOptions
from txnproducer.sim.stack.run import StackRun

pytestmark = pytest.mark.skipif(
    IMPL != "python", reason="virtual time runs the parts in Python (TXNPRODUCER_IMPL=python)"
)
ORPHAN = IoThread.orphan


def checks(**call_rates: float) -> set[str]:
    """Run seeds that have only these faults. Return the checks that found something.

    A fenced producer is replaced by a new one, so that a run ends several.
    """
    calm = next(each for each in map(StackOptions.draw, range(100)) if each.is_calm)
    found: set[str] = set()
    for seed in range(4):
        options = replace(
            calm, seed=seed, transactions=12, call_rates=call_rates, event_s={"fence": 0.3}
        )
        found |= {check for check, _ in StackRun(options).run().violations}
    return found


def force(io: IoThread, *_: Any) -> None:
    io._force()


def test_a_dropped_producer_that_ends_by_force_is_found(monkeypatch):
    monkeypatch.setattr(IoThread, "orphan", force)
    assert checks(dropped=1.0) == {"forced"}


@pytest.mark.parametrize("rates", [{}, {"interrupt at a wait": 0.8}])
def test_a_close_that_ends_by_force_at_once_is_found(monkeypatch, rates):
    monkeypatch.setattr(IoThread, "initiate_close", force)
    assert checks(**rates) == {"forced"}


def test_a_close_in_a_callback_and_one_without_time_may_end_by_force():
    rates = {"callback closes": 0.2, "close at once": 0.5, "close on another thread": 0.3}
    assert checks(**rates) == set()


def test_the_collector_takes_producers_on_their_own_threads_too(monkeypatch):
    threads: list[bool] = []

    def orphan(io: IoThread) -> None:
        threads.append(threading.current_thread() is io._thread)
        ORPHAN(io)

    monkeypatch.setattr(IoThread, "orphan", orphan)
    assert checks(dropped=0.7) == set()
    assert set(threads) == {False, True}
